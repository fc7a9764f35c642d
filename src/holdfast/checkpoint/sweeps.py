"""Undoing what nobody decided, and what else comes due without rows (rules 2, 3, 7, 8, 13).

Work of this run's own generation is undone only while no task prepares any: by the batch, which waits for it. Work of
older generations can be undone beside tasks, since every name carries its generation: so a sink that may lag does it in
its own loop, where an endpoint that hangs delays nobody.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

from holdfast.checkpoint.delivery import Standing
from holdfast.checkpoint.guard import guarded, hangs
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.loops import Loops
from holdfast.checkpoint.maintenance import NeedsMaintenance, maintain
from holdfast.checkpoint.ports import Sink, Tasks
from holdfast.core.model import CheckpointId
from holdfast.core.recovery import STEPS, Moment, Step, owed
from holdfast.errors import HoldfastError, SinkError, first_line, permanent

logger = logging.getLogger("holdfast")
SWEEPING, WAITING = "sweeping", "waiting to sweep again"
#: seconds between two sweeps while no batch comes
SWEEP_EVERY = 10.0
#: seconds that a batch which was stopped waits for a sweep all the same: most endpoints need far less
STOPPED = 3.0
#: seconds between two looks of a loop at what may be due
CHORES_EVERY = 2.0


@runtime_checkable
class Logged(Protocol):
    """What a sink has whose tasks write to the write-ahead log and nowhere else."""

    def sweep_log(self, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]) -> None:
        """Remove files of the log that are not in `decided`, of this and older generations; touch no endpoint."""


class Sweeps:
    """The sweeps of one run: by the batch before its tasks and after a failure, by each sink's loop in between."""

    def __init__(
        self,
        log: CheckpointLog,
        sinks: Sequence[Sink],
        *,
        loops: Loops,
        patience: float,
        clock: Callable[[], float],
        idle: threading.Lock,
        open_for_work: Callable[[], bool],
        over: Callable[[], bool],
    ) -> None:
        self._log, self._sinks, self._loops, self._clock = log, sinks, loops, clock
        #: seconds that a batch waits for a sweep, unless it is `over` before
        self._patience, self._over = patience, over
        self._idle, self._open_for_work = idle, open_for_work
        self._swept: dict[str, float] = {}
        #: sink -> what it does beside committing, and since when
        self.under_way: dict[str, tuple[str, float]] = {}
        #: sinks whose last sweep failed: since when, how often in a row, and why
        self._failing: dict[str, Standing] = {}
        #: sinks that may be undoing work of this generation, or have a chore: no task may run beside it
        self._in_the_way: set[str] = set()
        #: what was told of the last one that a batch waited for in vain
        self._hangs: SinkError | None = None
        #: `recover` of a sink is never called twice at a time
        self._one_by_one = {sink.name: threading.Lock() for sink in sinks}

    def perform(self, moment: Moment, leave: Sequence[str] = (), patience: float | None = None) -> None:
        """Sweep where the table of steps says so. An endpoint that is away is swept the next time (D9)."""
        if Step.SWEEP not in STEPS[moment]:
            return
        for sink in self._sinks:
            if sink.name in leave or (moment is Moment.BATCH and self._untouched(sink)):
                continue
            if sink.may_lag and (isinstance(sink, Logged) or moment is not Moment.FAILED):
                self._try(sink, partial(self.tidy, sink))
            else:
                self._try(sink, partial(self.own, sink, patience))

    def tidy(self, sink: Sink) -> None:
        """For a sink that may lag: undo at once what needs no endpoint for it, and leave the rest to its loop."""
        if isinstance(sink, Logged):
            sink.sweep_log(self._log.generation, self._decided(sink))
        else:
            self._swept.pop(sink.name, None)

    def _untouched(self, sink: Sink) -> bool:
        """Whether this sink got no row of the last checkpoint and was swept a moment ago: then it costs nothing.

        What tasks of a dead driver prepare late is found by the timer, and by the next sweep of a batch.
        """
        last = self._log.last_decided
        if last is None or self._log.facts.decided[last].of(sink.name):
            return False
        return self._clock() < self._swept.get(sink.name, float("-inf")) + SWEEP_EVERY

    def _try(self, sink: Sink, do: Callable[[], None]) -> None:
        try:
            with guarded(sink, "sweep"):
                do()
            self._failing.pop(sink.name, None)
        except HoldfastError as error:
            # One that hangs may still undo what tasks would prepare now.
            if permanent(error) or error is self._hangs:
                raise
            before = self._failing.get(sink.name, Standing(WAITING, self._clock(), 0, None))
            self._failing[sink.name] = replace(before, failures=before.failures + 1, problem=first_line(error))
            logger.warning("sweep of sink %s failed, it is tried again: %s", sink.name, first_line(error))

    def own(self, sink: Sink, patience: float | None = None) -> None:
        """Let one sink undo all that no record names; while no task prepares anything."""
        began = self._clock()
        seconds, over = (self._patience, self._over) if patience is None else (patience, lambda: False)
        if over():  # a stop cancelled the batch: what its tasks prepared is undone, unless the endpoint hangs (S6)
            seconds, over = min(seconds, STOPPED), lambda: False

        def recover() -> None:
            try:
                self._recover(sink, self._log.generation)
            finally:
                self._in_the_way.discard(sink.name)

        if sink.name not in self._in_the_way:
            self._in_the_way.add(sink.name)
            if self._loops.call(sink.name, recover, seconds, over):
                return
        self._hangs = hangs(sink, *self.under_way.get(sink.name, (SWEEPING, began)), self._clock())
        raise self._hangs

    def older(self, sink: Sink) -> None:
        """Let one sink undo what older runs have left and no record names; tasks of this one may be at work."""
        self._log.ensure_not_fenced()
        self._recover(sink, self._log.generation - 1)

    def _recover(self, sink: Sink, generation: int) -> None:
        with self._one_by_one[sink.name], self._busy(sink, SWEEPING):
            self._swept[sink.name] = self._clock()
            sink.recover(self._log.pipeline, generation, self._decided(sink))

    def _decided(self, sink: Sink) -> dict[CheckpointId, list[Any]]:
        return {k: [c.data for c in v] for k, v in owed(self._log.facts, sink.name).items()}

    @contextmanager
    def _busy(self, sink: Sink, what: str) -> Iterator[None]:
        self.under_way[sink.name] = (what, self._clock())
        try:
            yield
        finally:
            del self.under_way[sink.name]

    def chores(self, sink: Sink, tasks: Tasks) -> float:
        """In the sink's own loop: sweep now and then, and do what has come due; for most of it no batch may run."""
        # What may be decided is not undone: after a record in doubt nothing is, until a new start has read the log.
        if self._log.in_doubt or not self._open_for_work():
            return CHORES_EVERY
        due = self._clock() >= self._swept.get(sink.name, 0.0) + SWEEP_EVERY
        if sink.may_lag and due:
            self._try(sink, lambda: self.older(sink))
        if not self._idle.acquire(blocking=False):
            return CHORES_EVERY
        self._in_the_way.add(sink.name)
        try:
            if self._log.in_doubt or not self._open_for_work():
                return CHORES_EVERY
            if due and not sink.may_lag:
                self._log.ensure_not_fenced()
                self._try(sink, lambda: self._recover(sink, self._log.generation))
            if isinstance(sink, NeedsMaintenance) and not owed(self._log.facts, sink.name):
                with self._busy(sink, "completing what is due"):
                    maintain(self._log, sink, tasks, self._clock())
        finally:
            self._in_the_way.discard(sink.name)
            self._idle.release()
        return CHORES_EVERY

    def standing(self, sink: str) -> Standing | None:
        """What a sink does beside committing, and since when; or that its sweeps fail."""
        failing, doing = self._failing.get(sink), self.under_way.get(sink)
        if doing is None or failing is not None:
            return failing
        return Standing(*doing, 0, None)

    def blame(self) -> SinkError | None:
        """Who is busy with its endpoint, so that no task may begin; None when nobody is."""
        for sink in self._sinks:
            if sink.name in self._in_the_way:
                now = self._clock()
                return hangs(sink, *self.under_way.get(sink.name, (SWEEPING, now)), now)
        return None
