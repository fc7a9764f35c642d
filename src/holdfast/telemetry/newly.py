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
    """Each checkpoint once when it is complete, and each time it was aborted; what was over before is left out."""

    def __init__(self, location: str) -> None:
        self._location = location
        #: all below are complete, and were told of
        self._floor: int | None = None
        #: of those above: how often it was aborted, and whether it is complete
        self._seen: dict[int, tuple[int, bool]] = {}
        #: what the last look read, oldest first
        self.history: list[CheckpointStats] = []
        with suppress(HoldfastError):  # tried again at the next look; until then nothing counts
            self.look()

    def look(self) -> list[CheckpointStats]:
        """Those that are over since the last look, oldest first; HoldfastError when the files cannot be read."""
        self.history = self._back_to(self._floor)
        fresh: list[CheckpointStats] = []
        for stats in self.history if self._floor is not None else ():
            if stats.checkpoint_id >= (self._floor or 0):
                aborted, complete = self._seen.get(stats.checkpoint_id, (0, False))
                # One that was aborted is run again, and may be complete by now.
                fresh += [_as_aborted(stats)] * (stats.failures - aborted)
                fresh += [stats] if stats.status == State.COMPLETE and not complete else []
        newest = max((s.checkpoint_id for s in self.history), default=-1)
        # A sink that lags completes old ones: they must still be in sight then.
        self._floor = min((s.checkpoint_id for s in self.history if s.status != State.COMPLETE), default=newest + 1)
        above = (s for s in self.history if s.checkpoint_id >= (self._floor or 0))
        self._seen = {s.checkpoint_id: (s.failures, s.status == State.COMPLETE) for s in above}
        return fresh

    def _back_to(self, floor: int | None) -> list[CheckpointStats]:
        """The newest part of the history, from this checkpoint on if it is not too long ago."""
        last = WINDOW
        found = checkpoints(self._location, last=last)
        while floor is not None and found and found[0].checkpoint_id > floor and last < LONGEST:
            last = min(LONGEST, last * 4)
            found = checkpoints(self._location, last=last)
        return found


def _as_aborted(stats: CheckpointStats) -> CheckpointStats:
    return CheckpointStats(
        stats.checkpoint_id,
        str(State.ABORTED),
        generation=stats.generation,
        started=stats.started,
        trigger=stats.trigger,
        error=stats.error,
    )
