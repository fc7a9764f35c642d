"""The life of a query run: claim, fence, recover, begin delivery, then batches and timer (design: "The driver's loop").

What is done is elsewhere: `micro_batch.py` runs a batch, each sink's `delivery.py` commits (rule 13), `ending.py` ends.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
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
from holdfast.checkpoint.micro_batch import MicroBatches
from holdfast.checkpoint.origin import Origin
from holdfast.checkpoint.ports import Batch, EnginePosition, Run, Sink, Tasks
from holdfast.checkpoint.prepare import undone
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
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.recovery import OwedCommit, complete_through, plan_recovery
from holdfast.core.retry import Retry
from holdfast.errors import HoldfastError, LostError, UndeliveredError

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
        #: what endpoints dropped after the decision
        self._lost: dict[OwedCommit, LostError] = {}
        self._sending = SendAgain(log)
        self._repairs = Repairs(log, {s.name: s for s in sinks}, self._lost, letters, tasks)
        self._replays = Replays(log, self._sinks, tasks, letters)
        retrying = Retrying(self._retry, self._loops, clock)
        self._retrying = retrying
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
        self._batches = MicroBatches(
            log,
            self._set,
            tasks,
            retrying=retrying,
            waiting=self._waiting,
            sweeps=self._sweeps,
            repairs=self._repairs,
            replays=self._replays,
            sending=self._sending,
            letters=letters,
            between=None if self._desk is None else partial(self._desk.serve, self._ending.settle),
            drain_timeout=drain_timeout if bounded else None,
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
                self._batches.begin(self.run_info, self._story, self._origin)
        except BaseException as error:
            undone([lambda: self.close(wait=5.0)], error)
            raise
        return self.run_info

    @property
    def claimed(self) -> bool:
        """Whether this run has its generation."""
        return self._log.generation >= 0

    @property
    def inherited(self) -> Collection[CheckpointId]:
        """What earlier runs decided and did not deliver: a start delivers it first."""
        return self._story.inherited

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

    def run(self, checkpoint_id: CheckpointId, batch: Batch) -> None:
        """One micro-batch. Returning means that Spark may commit it."""
        self._batches.run(checkpoint_id, batch)

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
