"""The end of a run, and the moment between two batches that a savepoint needs: sinks that hold nothing back."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from holdfast.checkpoint.guard import guarded
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.loops import Loops
from holdfast.checkpoint.maintenance import NeedsMaintenance, maintain
from holdfast.checkpoint.ports import Sink, Tasks
from holdfast.checkpoint.savepoint_orders import Desk
from holdfast.checkpoint.sinkset import SinkSet
from holdfast.checkpoint.sweeps import Sweeps
from holdfast.checkpoint.waiting import Waiting
from holdfast.core.recovery import Moment, owed, plan_recovery
from holdfast.errors import HoldfastError, first_line

logger = logging.getLogger("holdfast")
#: seconds that the end of a run waits for what it undoes, and for a sink to close
LAST_SWEEP, LAST_CLOSE = 4.0, 2.0
#: Seconds for which a savepoint waits, between two batches, for sinks that are just committing.
SAVEPOINT_PATIENCE = 5.0


class Ending:
    """Lets sinks complete what they hold back, undoes what nobody decided, and closes them."""

    def __init__(
        self,
        log: CheckpointLog,
        sinks: SinkSet,
        tasks: Tasks,
        *,
        loops: Loops,
        clock: Callable[[], float],
        waiting: Waiting,
        sweeps: Sweeps,
    ) -> None:
        self._log, self._set, self._tasks = log, sinks, tasks
        self._loops, self._clock, self._waiting, self._sweeps = loops, clock, waiting, sweeps

    # -- between two batches ----------------------------------------------------------------------------------------

    def take_savepoints(self, desk: Desk) -> None:
        """While no batch is under way; if one is, the next one begins with it."""
        desk.look()
        if not desk.waiting or not self._waiting.idle.acquire(blocking=False):
            return
        try:
            desk.serve(self.settle)
        except HoldfastError as error:
            self._waiting.noticed = error
        finally:
            self._waiting.idle.release()

    def settle(self) -> bool:
        """Between two batches: whether every sink has all that is decided, and holds nothing back for later rows."""
        waiting = self._waiting
        if self._log.in_doubt or not waiting.drain(SAVEPOINT_PATIENCE) or waiting.failure is not None:
            return False
        if plan_recovery(self._log.facts):
            return False
        self._complete(self._set.sinks, "completing its files for a savepoint")
        return True

    def _complete(self, sinks: Sequence[Sink], doing: str) -> None:
        """Let these complete what they hold back for later rows (F6)."""
        for sink in sinks:
            if isinstance(sink, NeedsMaintenance):
                with guarded(sink, doing):
                    maintain(self._log, sink, self._tasks, self._clock(), last=True)

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self, wait: float) -> list[str]:
        """The query has ended well: stop the loops, then let sinks complete what they hold back for later rows (F6).

        The names of sinks whose loop did not end in time: the next start does what is left.
        """
        deadline = time.monotonic() + wait
        stuck = self._loops.stop(wait)
        left, waiting = max(0.0, deadline - time.monotonic()), self._waiting
        if waiting.failure is None and self._set.opened and waiting.idle.acquire(timeout=left):
            try:
                # A sink that has not committed a decided checkpoint has a state without its rows: nothing to plan from.
                free = [s for s in self._set.sinks if s.name not in stuck and not owed(self._log.facts, s.name)]
                self._complete(free, "completing its last files")
            finally:
                waiting.idle.release()
        return stuck

    def close(self, wait: float, *, sweep: bool = False) -> list[str]:
        """The run is over; every sink is closed but those that are stuck in their endpoint, whose names are given."""
        stuck = self._loops.stop(wait)
        try:
            if sweep:
                self._sweep_leftovers(stuck)
        finally:
            stuck = self._loops.stop(0.0)
            stuck += self._set.close(stuck, self._close_one)
        return stuck

    def _close_one(self, sink: Sink) -> bool:
        return self._loops.call(sink.name, sink.close, LAST_CLOSE, lambda: False)

    def _sweep_leftovers(self, stuck: Sequence[str]) -> None:
        """The query ended in the middle of a batch: undo what its tasks prepared, where endpoints answer."""
        if self._log.in_doubt or not self._set.opened or not self._waiting.idle.acquire(timeout=1.0):
            return
        try:
            self._log.ensure_not_fenced()
            self._sweeps.perform(Moment.FAILED, leave=stuck, patience=LAST_SWEEP)
        except HoldfastError as error:
            logger.info("what the last batch prepared is undone by the next start: %s", first_line(error))
        finally:
            self._waiting.idle.release()
