"""One micro-batch: run its tasks, decide, wait for whom it must wait; or finish one that is decided already.

Committing is not done here: every sink has a delivery loop of its own (rule 13). The batch waits for those sinks whose
prepared work can expire, and for the others that may not lag to be at most one checkpoint behind.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from holdfast.checkpoint import refusals
from holdfast.checkpoint.again import SendAgain
from holdfast.checkpoint.bad_rows import Letters
from holdfast.checkpoint.dead import Replays
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.origin import Ahead, Origin
from holdfast.checkpoint.phases import Phases
from holdfast.checkpoint.ports import Batch, Run, Tasks
from holdfast.checkpoint.prepare import Preparation, Prepared, undone
from holdfast.checkpoint.repair import Repairs
from holdfast.checkpoint.retrying import Retrying
from holdfast.checkpoint.sinkset import SinkSet
from holdfast.checkpoint.story import Story
from holdfast.checkpoint.sweeps import Sweeps
from holdfast.checkpoint.waiting import Waiting
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Decided
from holdfast.core.recovery import Moment, plan_recovery
from holdfast.core.states import Event, State, advance, recorded
from holdfast.errors import FencedError

logger = logging.getLogger("holdfast")


class MicroBatches:
    """Runs the micro-batches of one query run, one at a time."""

    _run: Run
    _story: Story

    def __init__(
        self,
        log: CheckpointLog,
        sinks: SinkSet,
        tasks: Tasks,
        *,
        retrying: Retrying,
        waiting: Waiting,
        sweeps: Sweeps,
        repairs: Repairs,
        replays: Replays,
        sending: SendAgain,
        letters: Letters | None,
        between: Callable[[], None] | None,
        drain_timeout: float | None,
    ) -> None:
        """`between` is done before a batch begins, `drain_timeout` is that of a run which ends with its input."""
        self._log, self._set, self._sinks = log, sinks, sinks.sinks
        self._loops, self._clock = retrying.loops, retrying.clock
        self._waiting, self._sweeps, self._repairs = waiting, sweeps, repairs
        self._replays, self._sending = replays, sending
        self._between, self._drain_timeout = between, drain_timeout
        self._preparation = Preparation(
            sinks, tasks, retrying=retrying, undo=self._abort, letters=letters, replays=replays
        )
        #: where this lineage began, until it is known that it goes on from there
        self._origin: Origin | None = None

    def begin(self, run: Run, story: Story, origin: Origin | None) -> None:
        """The run has started."""
        self._run, self._story, self._origin = run, story, origin

    def run(self, checkpoint_id: CheckpointId, batch: Batch) -> None:
        """One micro-batch. Returning means that Spark may commit it."""
        self._waiting.raise_failure()
        self._log.ensure_not_fenced()
        self._repairs.check(checkpoint_id - 1)
        with self._waiting.batch(self._sweeps.blame):
            if self._between is not None:
                self._between()
            if checkpoint_id in self._log.facts.decided:
                self._replay(checkpoint_id, batch)
            else:
                refusals.check_not_stale(self._log, checkpoint_id)
                self._write(checkpoint_id, batch)
        self._log.prune()
        # Spark would stop a fenced driver too, when it writes its own commit, but its error names no way out.
        self._log.ensure_not_fenced()
        with faults.point("batch.return"):
            return

    def _write(self, checkpoint_id: CheckpointId, batch: Batch) -> None:
        clock = Phases(self._clock)
        started, state = clock.started, State.RUNNING
        try:
            self._sweeps.perform(Moment.BATCH)
            self._waiting.make_room()
            with clock.phase("tasks"):
                prepared = self._skip(checkpoint_id, batch) or self._preparation.run(
                    self._run, checkpoint_id, batch, started
                )
        except BaseException as error:
            failed = advance(state, Event.FAIL)
            undone([partial(self._story.failed, checkpoint_id, failed, started, error)], error)
            self._blame_the_fence(error)
            raise
        state = advance(state, Event.PREPARE)
        with clock.phase("decide"):
            decided = self._decide(checkpoint_id, prepared, started, state)
        state = advance(state, Event.DECIDE)
        # Always, since a loop that was awake may have committed it by now; and not before there is a decision, since
        # what is not decided looks complete.
        for delivery in self._waiting.deliveries:
            delivery.expect(checkpoint_id)
        refusals.warn_of_timeouts(self._sinks, self._clock() - started / 1000)
        self._deliver(checkpoint_id, clock)
        self._repair(checkpoint_id, batch, clock, state)
        self._story.decided(checkpoint_id, state, clock, prepared.reports, decided)
        self._drain_if_bounded(checkpoint_id)

    def _skip(self, checkpoint_id: CheckpointId, batch: Batch) -> Prepared | None:
        """The first batch of a lineage that leaves out what sinks have already: nothing, if it proves equal to that."""
        origin = self._origin
        if origin is None or origin.ahead is not Ahead.SKIP or checkpoint_id != origin.checkpoint_id + 1:
            return None
        if not origin.further:
            return None
        for name, expected in origin.proof([sink.name for sink in self._sinks]).items():
            refusals.check_equal(name, expected, batch.digests(name))
        logger.info("checkpoint %d is what sinks have already, and is left out", checkpoint_id)
        return Prepared([], [], self._set.snapshot(checkpoint_id))

    def _decide(self, checkpoint_id: CheckpointId, prepared: Prepared, started: int, state: State) -> Decided:
        names = [sink.name for sink in self._sinks]
        further = self._sending.committables(names, prepared.committables)
        everything = [*prepared.committables, *further]
        try:
            with faults.point("decision"):
                decided = self._log.decide(checkpoint_id, names, everything, timestamp=started, state=prepared.state)
            self._replays.decided(checkpoint_id)
            if further:
                self._sending.done(names, checkpoint_id)
            return decided
        except FencedError as error:
            # Only here is it certain that there is no decision. After any other error there may be one: clean up
            # nothing, let the restart read the log.
            undone([partial(self._abort, checkpoint_id, error)], error)
            fenced = advance(state, Event.FENCE)
            undone([partial(self._story.failed, checkpoint_id, fenced, started, error)], error)
            raise

    def _replay(self, checkpoint_id: CheckpointId, batch: Batch) -> None:
        """Spark runs a decided batch again: write nothing, finish the commits, let state and watermark advance."""
        clock = Phases(self._clock)
        self._sweeps.perform(Moment.BATCH)
        self._deliver(checkpoint_id, clock)
        if self._repairs.needed(checkpoint_id):
            self._repair(checkpoint_id, batch, clock, recorded(committed=False))
        else:
            batch.drain()
        self._story.replayed(checkpoint_id, clock.started)
        self._drain_if_bounded(checkpoint_id)

    def _repair(self, checkpoint_id: CheckpointId, batch: Batch, clock: Phases, state: State) -> None:
        """Produce again what an endpoint dropped between decision and commit, as the batch is at hand (P5)."""
        if not self._repairs.needed(checkpoint_id):
            return
        self._repairs.check(checkpoint_id - 1)
        try:
            with clock.phase("repair"):
                repaired = self._repairs.repair(checkpoint_id, batch, self._run)
        except BaseException as error:
            # Nothing of the repair is recorded, or all of it: the sweep knows which, unless the store did not say.
            if not self._log.in_doubt:
                undone([lambda: self._sweeps.perform(Moment.FAILED)], error)
            raise
        self._story.repaired(checkpoint_id, state, repaired)
        self._deliver(checkpoint_id, clock)
        self._repairs.check(checkpoint_id)

    def _abort(self, checkpoint_id: CheckpointId, error: BaseException) -> None:
        """Undo what the tasks prepared and tell every sink (S6); errors here must not hide the first one."""
        steps: list[Callable[[], Any]] = [lambda: self._sweeps.perform(Moment.FAILED)]
        steps += [lambda s=sink: s.notify_checkpoint_aborted(checkpoint_id) for sink in self._sinks]  # type: ignore[misc]
        undone(steps, error)
        if (hanging := self._sweeps.blame()) is not None:
            raise hanging from error  # tasks that run again would be undone by it

    def _blame_the_fence(self, error: BaseException) -> None:
        """A successor undoes what a paused driver prepared, and then anything can fail: name the reason instead."""
        try:
            self._log.ensure_not_fenced()
        except FencedError as reason:
            if reason is not error and isinstance(error, Exception):
                raise reason from error
        except Exception as problem:  # noqa: BLE001  attached to the error that is on its way up
            error.add_note(f"while looking for a newer driver: {type(problem).__name__}: {problem}")

    # -- committing -------------------------------------------------------------------------------------------------

    def _deliver(self, checkpoint_id: CheckpointId, clock: Phases) -> None:
        """The loops commit; wait for those that may not lag: for this checkpoint, or for all before it."""
        until = self._waiting.until
        with clock.phase("commit"):
            self._loops.wake()
            until(lambda d: d.sink.may_lag or d.done_through(checkpoint_id - (1 if d.sink.overlaps else 0)))
        with clock.phase("notify"):
            if not any(action.checkpoint_id == checkpoint_id for action in plan_recovery(self._log.facts)):
                self._loops.wake()  # whoever committed before the others rests until then
                until(lambda d: d.sink.may_lag or d.sink.overlaps or d.notified(checkpoint_id))

    def _drain_if_bounded(self, checkpoint_id: CheckpointId) -> None:
        if self._drain_timeout is not None:
            self._waiting.drain_or_raise(self._drain_timeout)
            # What is lost counts as done to a loop. No replay can bring it back when the run is over.
            self._repairs.check(checkpoint_id)
