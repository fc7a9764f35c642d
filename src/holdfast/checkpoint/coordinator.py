"""The driver's loop: recover, run tasks, decide, wait for whom it must wait (design: "The driver's loop").

Committing is not done here: every sink has a delivery loop of its own (rule 13). The batch waits for those sinks whose
prepared work can expire, and for the others that may not lag to be at most one checkpoint behind.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.checkpoint import orders, refusals
from holdfast.checkpoint.again import SendAgain
from holdfast.checkpoint.bad_rows import Letters
from holdfast.checkpoint.dead import Replays
from holdfast.checkpoint.delivery import Delivery
from holdfast.checkpoint.ending import Ending
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.loops import Loops, Threads
from holdfast.checkpoint.origin import Ahead, Origin
from holdfast.checkpoint.phases import Phases
from holdfast.checkpoint.ports import Batch, EnginePosition, Run, Sink, Tasks
from holdfast.checkpoint.prepare import Preparation, Prepared, undone
from holdfast.checkpoint.pulse import AtWork
from holdfast.checkpoint.repair import Repairs
from holdfast.checkpoint.retrying import Retrying, Starting
from holdfast.checkpoint.rewind import check_not_rewinding
from holdfast.checkpoint.savepoint_orders import Desk
from holdfast.checkpoint.sinkbook import note_sinks
from holdfast.checkpoint.sinkset import SinkSet
from holdfast.checkpoint.story import Story
from holdfast.checkpoint.sweeps import Sweeps
from holdfast.checkpoint.waiting import Waiting
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Decided, Outcome
from holdfast.core.recovery import Moment, OwedCommit, complete_through, plan_recovery
from holdfast.core.retry import Retry
from holdfast.core.states import Event, State, advance
from holdfast.errors import FencedError, HoldfastError, LostError, UndeliveredError

logger = logging.getLogger("holdfast")


class Coordinator:
    """Runs the checkpoints of one query run."""

    def __init__(
        self,
        log: CheckpointLog,
        sinks: Sequence[Sink],
        tasks: Tasks,
        *,
        delivery: str = "exactly-once",
        take_over: bool = False,
        retry: Retry | None = None,
        bounded: bool = False,
        drain_timeout: float = 60.0,
        letters: Letters | None = None,
        location: str | None = None,
        trigger: str | None = None,
        loops: Loops | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log, self._sinks, self._tasks = log, list(sinks), tasks
        self._retry, self._loops, self._clock = retry or Retry(), loops or Threads(), clock
        self._set = SinkSet(log, self._sinks, delivery)
        # At-least-once may double rows but never refuses to go on: a foreign or newer ledger is simply set aside.
        self._take_over = take_over or delivery == "at-least-once"
        #: the run ends by itself when its input does: then nothing may be left behind
        self._bounded, self._drain_timeout = bounded, drain_timeout
        #: what endpoints dropped after the decision
        self._lost: dict[OwedCommit, LostError] = {}
        self._sending = SendAgain(log)
        self._repairs = Repairs(log, {s.name: s for s in sinks}, self._lost, letters, tasks)
        self._replays = Replays(log, self._sinks, tasks, letters)
        retrying = Retrying(self._retry, self._loops, clock)
        self._retrying = retrying
        self._preparation = Preparation(
            self._set, tasks, retrying=retrying, undo=self._abort, letters=letters, replays=self._replays
        )
        self._waiting = Waiting(log, self._sinks, retrying)
        #: where Spark's part of the checkpoint is, and who takes savepoints of it; None: nobody does
        self._desk = None if location is None else Desk(log, location, clock)
        #: where this lineage began, until it is known that it goes on from there
        self._origin: Origin | None = None
        self._trigger = trigger
        self._story: Story
        self._sweeps = Sweeps(
            log,
            self._sinks,
            loops=self._loops,
            patience=self._retry.patience(),
            clock=clock,
            idle=self._waiting.idle,
            open_for_work=lambda: self._waiting.noticed is None and bool(self._set.opened),
            over=lambda: self._waiting.hurried,
        )
        self._ending = Ending(
            log, self._set, tasks, loops=self._loops, clock=clock, waiting=self._waiting, sweeps=self._sweeps
        )
        self.run_info: Run | None = None

    # -- the life of a run ------------------------------------------------------------------------------------------

    def start(self, engine: Callable[[], EnginePosition], schema: Any = None) -> Run:
        """Claim, fence, read; open the sinks; undo what is undecided and commit what is decided (rules 1, 7; T4).

        `engine` is asked only after the fence: until then an older driver may still plan and decide.
        """
        check_not_rewinding(self._log.storage)
        self._log.start()  # Step.FENCE
        self._origin = refusals.check_origin(self._log)
        position = engine()
        refusals.check_engine(self._log, position, adopt=self._take_over)
        names = [sink.name for sink in self._sinks]
        orders.abandon(self._log, names)
        refusals.check_sinks(self._log, names)
        refusals.check_patterns(self._log, self._sinks)
        self._story = Story(self._log, self._outcomes, self._trigger)
        if self._story.inherited:
            count = len(self._story.inherited)
            logger.info("%d checkpoints are decided and not delivered yet: they come first", count)
        try:
            self.run_info = self._set.open(
                schema, may_take_over=self._take_over, again=self._retrying.at_start, origin=self._origin
            )
            note_sinks(self._log, names)
            # Rows that are given up may be many: to read them takes as long as it takes.
            orders.carry_out(self._log, self._sinks, self._retrying.of_sink)
            self._sending.load()
            self._replays.load()
            with faults.point("recovery"):
                for sink in self._sinks:
                    # One that may lag begins its loop with it, but for a take-over, which is whole or begins anew.
                    own = not sink.may_lag or self._log.taking_over
                    sweep = partial(self._sweeps.own if own else self._sweeps.tidy, sink)
                    self._retrying.of_sink("sweep", sweep, sink)
                taking_over = self._log.taking_over
                # Before anything is committed under the new lineage: a take-over that is repeated begins with nothing.
                self._log.finish_take_over()
                self._begin_delivery(swept=taking_over)
                self._waiting.until(lambda d: d.sink.may_lag or d.done_through(self._waiting.newest))
                self._repairs.check(position.committed)
        except BaseException as error:
            undone([lambda: self.close(wait=5.0)], error)
            raise
        return self.run_info

    @property
    def claimed(self) -> bool:
        """Whether this run has its generation."""
        return self._log.generation >= 0

    @property
    def deliveries(self) -> list[Delivery]:
        """The loops of the sinks."""
        return self._waiting.deliveries

    @property
    def at_work(self) -> Sequence[AtWork]:
        """The loops; before there are any, the sinks that the start is busy with."""
        if self.deliveries:
            return self.deliveries
        swept = ((sink, self._sweeps.standing(sink.name)) for sink in self._sinks)
        sweeping = [Starting(sink, standing) for sink, standing in swept if standing is not None]
        return [*self._retrying.starting.values(), *sweeping]

    def _begin_delivery(self, *, swept: bool) -> None:
        own = getattr(self._tasks, "of_sink", lambda name: self._tasks)
        self._waiting.deliveries = [
            Delivery(
                self._log,
                sink,
                own(sink.name),
                retry=self._retry,
                clock=self._clock,
                lost=self._lost,
                completed=self._story.committed,
                chores=self._sweeps.chores,
                first=partial(self._sweeps.older, sink) if sink.may_lag and not swept else None,
                beside=self._sweeps.standing,
            )
            for sink in self._sinks
        ]
        for delivery in self.deliveries:
            for checkpoint_id in self._story.inherited:
                delivery.expect(checkpoint_id)
        self._loops.start(self.deliveries, self._log.pipeline)

    def _outcomes(self, checkpoint_id: CheckpointId) -> dict[str, Outcome]:
        return {d.sink.name: d.outcomes[checkpoint_id] for d in self.deliveries if checkpoint_id in d.outcomes}

    @property
    def failure(self) -> HoldfastError | None:
        """Why the run cannot go on; None while it can."""
        return self._waiting.failure

    def tick(self) -> None:
        """The timer: let the loops do what is due although no batch comes (rules 7, 8), and notice what is lost."""
        try:
            if self.failure is None and self.run_info is not None:
                self._repairs.check(None)
        except HoldfastError as error:
            self._waiting.noticed = error
        self._loops.wake()
        if self._desk is not None and self.failure is None and self.run_info is not None:
            self._ending.take_savepoints(self._desk)

    @property
    def pending(self) -> list[OwedCommit]:
        """What is decided and not yet committed."""
        return plan_recovery(self._log.facts)

    @property
    def complete_through(self) -> CheckpointId | None:
        """The last checkpoint at and below which every sink has committed (rule 6)."""
        return complete_through(self._log.facts)

    def keyed_state(self, found: Mapping[CheckpointId, Mapping[str, Any]]) -> None:
        """The engine tells of its state after some checkpoints; statistics, nothing is decided by it."""
        if self.run_info is not None:
            self._story.keyed_state(found)

    # -- the end of a run -------------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """The query is being stopped: a batch that waits for an endpoint waits no longer."""
        self._waiting.hurry()

    def drain(self, timeout: float, *, only_prompt: bool = False) -> bool:
        """Wait until all is delivered, or what sinks that may not lag owe; False when some is left (D8)."""
        return self._waiting.drain(timeout, only_prompt=only_prompt)

    def tell(self, timeout: float) -> bool:
        """Wait until every sink knows of all that is complete, and has thrown away what it kept for it."""
        return self._waiting.tell(timeout)

    def undelivered(self) -> UndeliveredError | None:
        """What is left, by sink, checkpoints and rows; None when nothing is."""
        return self._waiting.undelivered()

    def finish(self, wait: float) -> list[str]:
        """The query has ended well; the names of sinks whose loop did not end in time."""
        return self._ending.finish(wait)

    def close(self, wait: float, *, sweep: bool = False) -> list[str]:
        """The run is over; every sink is closed but those that are stuck in their endpoint, whose names are given."""
        return self._ending.close(wait, sweep=sweep)

    # -- one batch --------------------------------------------------------------------------------------------------

    def run(self, checkpoint_id: CheckpointId, batch: Batch) -> None:
        """One micro-batch. Returning means that Spark may commit it."""
        self._waiting.raise_failure()
        self._log.ensure_not_fenced()
        self._repairs.check(checkpoint_id - 1)
        with self._waiting.batch(self._sweeps.blame):
            if self._desk is not None:
                self._desk.serve(self._ending.settle)
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
        assert self.run_info is not None
        clock = Phases(self._clock)
        started, state = clock.started, State.RUNNING
        try:
            self._sweeps.perform(Moment.BATCH)
            self._waiting.make_room()
            with clock.phase("tasks"):
                prepared = self._skip(checkpoint_id, batch) or self._preparation.run(
                    self.run_info, checkpoint_id, batch, started
                )
        except BaseException as error:
            failed = advance(state, Event.FAIL)
            undone([partial(self._story.failed, checkpoint_id, failed, started, error)], error)
            self._blame_the_fence(error)
            raise
        state = advance(state, Event.PREPARE)
        with clock.phase("decide"):
            decided = self._decide(checkpoint_id, prepared, started)
        state = advance(state, Event.DECIDE)
        # Always, since a loop that was awake may have committed it by now; and not before there is a decision, since
        # what is not decided looks complete.
        for delivery in self.deliveries:
            delivery.expect(checkpoint_id)
        refusals.warn_of_timeouts(self._sinks, self._clock() - started / 1000)
        self._deliver(checkpoint_id, clock)
        self._repair(checkpoint_id, batch, clock)
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

    def _decide(self, checkpoint_id: CheckpointId, prepared: Prepared, started: int) -> Decided:
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
            fenced = advance(State.PREPARED, Event.FENCE)
            undone([partial(self._story.failed, checkpoint_id, fenced, started, error)], error)
            raise

    def _replay(self, checkpoint_id: CheckpointId, batch: Batch) -> None:
        """Spark runs a decided batch again: write nothing, finish the commits, let state and watermark advance."""
        clock = Phases(self._clock)
        self._sweeps.perform(Moment.BATCH)
        self._deliver(checkpoint_id, clock)
        if self._repairs.needed(checkpoint_id):
            self._repair(checkpoint_id, batch, clock)
        else:
            batch.drain()
        self._story.replayed(checkpoint_id, clock.started)
        self._drain_if_bounded(checkpoint_id)

    def _repair(self, checkpoint_id: CheckpointId, batch: Batch, clock: Phases) -> None:
        """Produce again what an endpoint dropped between decision and commit, as the batch is at hand (P5)."""
        if not self._repairs.needed(checkpoint_id):
            return
        assert self.run_info is not None
        self._repairs.check(checkpoint_id - 1)
        try:
            with clock.phase("repair"):
                repaired = self._repairs.repair(checkpoint_id, batch, self.run_info)
        except BaseException as error:
            # Nothing of the repair is recorded, or all of it: the sweep knows which, unless the store did not say.
            if not self._log.in_doubt:
                undone([lambda: self._sweeps.perform(Moment.FAILED)], error)
            raise
        self._story.repaired(checkpoint_id, repaired)
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
            if not any(action.checkpoint_id == checkpoint_id for action in self.pending):
                self._loops.wake()  # whoever committed before the others rests until then
                until(lambda d: d.sink.may_lag or d.sink.overlaps or d.notified(checkpoint_id))

    def _drain_if_bounded(self, checkpoint_id: CheckpointId) -> None:
        if self._bounded:
            self._waiting.drain_or_raise(self._drain_timeout)
            # What is lost counts as done to a loop. No replay can bring it back when the run is over.
            self._repairs.check(checkpoint_id)
