"""Checkpoints that are over since somebody last asked: for whoever counts them or tells others of them."""

from __future__ import annotations

from contextlib import suppress

from holdfast.checkpoint.history import CheckpointStats, checkpoints
from holdfast.core.states import State
from holdfast.errors import HoldfastError

#: checkpoints of the history that one look reads; more than a pipeline completes between two of them
WINDOW = 300
#: ... and at most, while a sink owes older ones
LONGEST = 20_000


class Newly:
    """Each checkpoint once, when it is complete or aborted; what was over before the first look is left out."""

    def __init__(self, location: str) -> None:
        self._location = location
        self._seen: set[tuple[int, str, int | None]] = set()
        #: all below are complete, and were told of
        self._floor: int | None = None
        #: what the last look read, oldest first
        self.history: list[CheckpointStats] = []
        with suppress(HoldfastError):  # tried again at the next look; until then nothing counts
            self.look()

    def look(self) -> list[CheckpointStats]:
        """Those that are over since the last look, oldest first; HoldfastError when the files cannot be read."""
        self.history = self._back_to(self._floor)
        over = [stats for stats in self.history if stats.status in (State.COMPLETE, State.ABORTED)]
        floor = self._floor
        fresh = [] if floor is None else [s for s in over if s.checkpoint_id >= floor and _key(s) not in self._seen]
        newest = max((s.checkpoint_id for s in self.history), default=-1)
        # A sink that lags completes old ones: they must still be in sight then.
        self._floor = min((s.checkpoint_id for s in self.history if s.status != State.COMPLETE), default=newest + 1)
        self._seen = {_key(s) for s in over if s.checkpoint_id >= self._floor}
        return fresh

    def _back_to(self, floor: int | None) -> list[CheckpointStats]:
        """The newest part of the history, from this checkpoint on if it is not too long ago."""
        last = WINDOW
        found = checkpoints(self._location, last=last)
        while floor is not None and found and found[0].checkpoint_id > floor and last < LONGEST:
            last = min(LONGEST, last * 4)
            found = checkpoints(self._location, last=last)
        return found


def _key(stats: CheckpointStats) -> tuple[int, str, int | None]:
    """A checkpoint is complete once, also if Spark runs its batch again; it may fail again and again."""
    return stats.checkpoint_id, stats.status, None if stats.status == State.COMPLETE else stats.generation
