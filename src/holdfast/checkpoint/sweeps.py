"""Undoing what nobody decided, and what else comes due without rows (rules 2, 3, 7, 8)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from holdfast.checkpoint.guard import guarded
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.maintenance import NeedsMaintenance, maintain
from holdfast.checkpoint.ports import Sink, Tasks
from holdfast.core.recovery import STEPS, Moment, Step, owed
from holdfast.errors import HoldfastError, first_line, permanent

logger = logging.getLogger("holdfast")
#: seconds between two sweeps while no batch comes
SWEEP_EVERY = 10.0
#: seconds between two looks of a loop at what may be due
CHORES_EVERY = 2.0


class Sweeps:
    """The sweeps of one run: by the batch before its tasks and after a failure, by each sink's loop in between."""

    def __init__(
        self,
        log: CheckpointLog,
        sinks: Sequence[Sink],
        *,
        clock: Callable[[], float],
        idle: threading.Lock,
        open_for_work: Callable[[], bool],
    ) -> None:
        self._log, self._sinks, self._clock = log, sinks, clock
        self._idle, self._open_for_work = idle, open_for_work
        self._swept: dict[str, float] = {}

    def perform(self, moment: Moment, leave: Sequence[str] = ()) -> None:
        """Sweep where the table of steps says so. An endpoint that is away is swept the next time (D9)."""
        if Step.SWEEP not in STEPS[moment]:
            return
        for sink in self._sinks:
            if sink.name not in leave and not (moment is Moment.BATCH and self._untouched(sink)):
                self._sweep(sink)

    def _untouched(self, sink: Sink) -> bool:
        """Whether this sink got no row of the last checkpoint and was swept a moment ago: then it costs nothing.

        What tasks of a dead driver prepare late is found by the timer, and by the next sweep of a batch.
        """
        last = self._log.last_decided
        if last is None or self._log.facts.decided[last].of(sink.name):
            return False
        return self._clock() < self._swept.get(sink.name, float("-inf")) + SWEEP_EVERY

    def _sweep(self, sink: Sink) -> None:
        try:
            with guarded(sink, "sweep"):
                self.recover(sink)
        except HoldfastError as error:
            if permanent(error):
                raise
            logger.warning("sweep of sink %s failed, it is tried again: %s", sink.name, first_line(error))

    def recover(self, sink: Sink) -> None:
        """Let one sink undo what no record names."""
        self._swept[sink.name] = self._clock()
        decided = {k: [c.data for c in v] for k, v in owed(self._log.facts, sink.name).items()}
        sink.recover(self._log.pipeline, self._log.generation, decided)

    def chores(self, sink: Sink, tasks: Tasks) -> float:
        """In the sink's own loop, while no batch is under way: sweep now and then, and do what has come due."""
        if not self._idle.acquire(blocking=False):
            return CHORES_EVERY
        try:
            # What may be decided is not undone: after a record in doubt nothing is, until a new start has read the log.
            if self._log.in_doubt or not self._open_for_work():
                return CHORES_EVERY
            if self._clock() >= self._swept.get(sink.name, 0.0) + SWEEP_EVERY:
                self._log.ensure_not_fenced()
                self._sweep(sink)
            if isinstance(sink, NeedsMaintenance) and not owed(self._log.facts, sink.name):
                maintain(self._log, sink, tasks, self._clock())
        finally:
            self._idle.release()
        return CHORES_EVERY
