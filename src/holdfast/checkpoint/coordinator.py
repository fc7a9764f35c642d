"""The driver's loop: recover, run tasks, decide, commit, notify (design: "The driver's loop")."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.checkpoint import refusals
from holdfast.checkpoint.delivery import Delivery, Retries
from holdfast.checkpoint.history import History
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.phases import Phases, summary
from holdfast.checkpoint.ports import Batch, EnginePosition, Run, Sink, SubtaskReport, Tasks
from holdfast.checkpoint.repair import Repairs
from holdfast.checkpoint.sinkset import SinkSet, each
from holdfast.checkpoint.upkeep import Upkeep, keep_up
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Committable, Decided
from holdfast.core.recovery import STEPS, Commit, Moment, Step, complete_through, owed, plan_recovery
from holdfast.core.states import Event, State, advance
from holdfast.errors import PERMANENT, FencedError

logger = logging.getLogger("holdfast")
#: seconds between two sweeps while no batch comes
SWEEP_EVERY = 10.0


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
        retries: Retries | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._log = log
        self._sinks = list(sinks)
        self._set = SinkSet(log, self._sinks, delivery)
        self._tasks = tasks
        # At-least-once may double rows but never refuses to go on: a foreign or newer ledger is simply set aside.
        self._take_over = take_over or delivery == "at-least-once"
        self._delivery = Delivery(
            log, {s.name: s for s in sinks}, tasks, retries=retries or Retries(), sleep=sleep, clock=clock
        )
        self._repairs = Repairs(log, {s.name: s for s in sinks}, self._delivery.lost)
        self._clock = clock
        # One at a time: batches, the timer and the start all sweep and deliver.
        self._lock = threading.RLock()
        #: why the timer gave up
        self.failure: Exception | None = None
        self._lagging: set[CheckpointId] = set()
        #: what earlier runs decided and did not finish
        self._inherited: frozenset[CheckpointId] = frozenset()
        #: the last files are being completed: whoever waits for the end waits for them
        self.completing = False
        #: a batch is being written: its state is in the making, so nobody else may plan
        self._writing = False
        self._swept = 0.0
        self.run_info: Run | None = None

    # -- the life of a run ------------------------------------------------------------------------------------------

    def start(self, engine: Callable[[], EnginePosition], schema: Any = None) -> Run:
        """Claim, fence, read; open the sinks; undo what is undecided and commit what is decided (rules 1, 7; T4).

        `engine` is asked only after the fence: until then an older driver may still plan and decide.
        """
        with self._lock:
            self._log.start()  # Step.FENCE
            position = engine()
            refusals.check_engine(self._log, position, adopt=self._take_over)
            refusals.check_sinks(self._log, [sink.name for sink in self._sinks])
            self._history = History(self._log.storage, self._log.generation)
            self._lagging = {c.checkpoint_id for c in plan_recovery(self._log.facts)}
            self._inherited = frozenset(self._lagging)
            if self._inherited:
                logger.info("%d checkpoints are decided and not delivered yet: they come first", len(self._inherited))
            try:
                self.run_info = self._set.open(schema, may_take_over=self._take_over)
                with faults.point("recovery"):
                    self._perform(Moment.START)
                    self._repairs.check(position.committed)
                    keep_up(self._log, self._sinks, self._tasks, self._clock())
            except BaseException as error:
                try:
                    self.close()
                except Exception as problem:  # noqa: BLE001  attached to the error that is on its way up
                    error.add_note(f"while closing the sinks: {type(problem).__name__}: {problem}")
                raise
            return self.run_info

    def finish(self, wait: float = -1) -> None:
        """The query has ended well: let sinks complete what they hold back for later rows (F6).

        Nothing happens while a delivery is under way for longer than `wait`: the next start does it.
        """
        if not any(isinstance(sink, Upkeep) for sink in self._set.opened) or not self._lock.acquire(timeout=wait):
            return
        try:
            if self._set.opened and not self._writing and self.failure is None:
                self.completing = True
                # A sink that has not committed a decided checkpoint has a state without its rows: nothing to plan from.
                ready = [sink for sink in self._sinks if not owed(self._log.facts, sink.name)]
                keep_up(self._log, ready, self._tasks, self._clock(), last=True)
        finally:
            self.completing = False
            self._lock.release()

    def close(self, wait: float = -1) -> None:
        """The run is over; every sink is closed. TimeoutError when a delivery is under way for longer than `wait`."""
        if not self._lock.acquire(timeout=wait):
            raise TimeoutError("a delivery is still under way")
        try:
            self._set.close()
        finally:
            self._lock.release()

    def run(self, checkpoint_id: CheckpointId, batch: Batch) -> None:
        """One micro-batch. Returning means every sink that may not lag has it; Spark may then commit it."""
        if self.failure is not None:
            raise self.failure
        self._log.ensure_not_fenced()
        self._repairs.check(checkpoint_id - 1)
        # Set before the sweep of the batch's start, which waits for the timer's: so none begins while tasks prepare.
        self._writing = True
        try:
            if checkpoint_id in self._log.facts.decided:
                self._replay(checkpoint_id, batch)
            else:
                refusals.check_not_stale(self._log, checkpoint_id)
                self._write(checkpoint_id, batch)
        finally:
            self._writing = False
        with self._lock:
            self._log.prune()
        # Spark would stop a fenced driver too, when it writes its own commit, but its error names no way out.
        self._log.ensure_not_fenced()
        with faults.point("batch.return"):
            return

    def tick(self) -> None:
        """The timer: deliver what lags, sweep, and let sinks do what is due, although no batch comes (rules 7, 8).

        An error that trying again cannot mend is kept in `failure`: the next batch raises it, and whoever runs the
        timer stops the query. Any other is tried again at the next tick.
        """
        if self.failure is not None:
            return
        if not self._lock.acquire(blocking=False):
            return
        try:
            # What may be decided is not undone: after a record in doubt nothing is, until a new start has read the log.
            still = self._set.opened and not self._writing and not self._log.in_doubt
            quiet = still and self._clock() >= self._swept + SWEEP_EVERY
            if self._lagging or quiet:
                self._log.ensure_not_fenced()
                self._perform(Moment.QUIET if quiet else Moment.TIMER)
                self._repairs.check(None)
            if self._set.opened and not self._writing:
                keep_up(self._log, self._sinks, self._tasks, self._clock())
        except PERMANENT as error:
            self.failure = error
            logger.exception("delivery of pending checkpoints stopped; the query will fail with this error")
        except Exception:  # the storage or the engine; the next batch meets it too if it lasts
            logger.exception("delivery of pending checkpoints failed, trying again")
        finally:
            self._lock.release()

    @property
    def pending(self) -> list[Commit]:
        """What is decided and not yet committed."""
        return plan_recovery(self._log.facts)

    @property
    def complete_through(self) -> CheckpointId | None:
        """The last checkpoint at and below which every sink has committed (rule 6)."""
        return complete_through(self._log.facts)

    # -- one batch --------------------------------------------------------------------------------------------------

    def _write(self, checkpoint_id: CheckpointId, batch: Batch) -> None:
        assert self.run_info is not None
        clock = Phases(self._clock)
        started = clock.started
        state = State.RUNNING
        try:
            self._perform(Moment.BATCH)
            self._repairs.check(checkpoint_id - 1)
            refusals.check_backlog(self._log, self._sinks, self._delivery.blocked)
            with clock.phase("tasks"):
                reports = batch.write(self.run_info, self._sinks, checkpoint_id, started)
                committables = [c for report in reports for c in report.committables]
                for sink in self._sinks:
                    mine = [c.data for c in committables if c.sink == sink.name]
                    if mine:
                        sink.validate(checkpoint_id, mine, self._tasks)
                operator_state = self._set.snapshot(checkpoint_id)
        except BaseException as error:
            self._abort(checkpoint_id, advance(state, Event.FAIL), started, error)
            self._blame_the_fence(error)
            raise
        state = advance(state, Event.PREPARE)
        with clock.phase("decide"):
            decided = self._decide(checkpoint_id, committables, started, operator_state)
        state = advance(state, Event.DECIDE)
        with self._lock:
            self._lagging.add(checkpoint_id)
            refusals.warn_of_timeouts(self._sinks, self._clock() - started / 1000)
            done = self._perform(Moment.DECIDED, clock, current=checkpoint_id)
            done |= self._repair(checkpoint_id, batch, clock)
            state = advance(state, Event.LAG if checkpoint_id in self._lagging else Event.COMMIT)
        self._add_history(checkpoint_id, state, clock, reports, decided, done)

    def _decide(
        self, checkpoint_id: CheckpointId, committables: list[Committable], started: int, state: Mapping[str, Any]
    ) -> Decided:
        names = [sink.name for sink in self._sinks]
        try:
            with self._lock, faults.point("decision"):
                return self._log.decide(checkpoint_id, names, committables, timestamp=started, state=state)
        except FencedError as error:
            # Only here is it certain that there is no decision. After any other error there may be one: clean up
            # nothing, let the restart read the log.
            self._abort(checkpoint_id, advance(State.PREPARED, Event.FENCE), started, error)
            raise

    def _replay(self, checkpoint_id: CheckpointId, batch: Batch) -> None:
        """Spark runs a decided batch again: write nothing, finish the commits, let state and watermark advance."""
        started = int(self._clock() * 1000)
        self._perform(Moment.BATCH)
        if self._repairs.needed(checkpoint_id):
            self._repair(checkpoint_id, batch, Phases(self._clock))
        else:
            batch.drain()
        status = State.LAGGING if checkpoint_id in self._lagging else State.COMPLETE
        self._history.add(checkpoint_id, {"status": status, "restored": True, "started": started})

    def _repair(self, checkpoint_id: CheckpointId, batch: Batch, clock: Phases) -> dict[Commit, Any]:
        """Produce again what an endpoint dropped between decision and commit, as the batch is at hand (P5)."""
        if not self._repairs.needed(checkpoint_id):
            return {}
        assert self.run_info is not None
        self._repairs.check(checkpoint_id - 1)
        try:
            with clock.phase("repair"):
                repaired = self._repairs.repair(checkpoint_id, batch, self.run_info)
        except BaseException as error:
            # Nothing of the repair is recorded, or all of it: the sweep knows which, unless the store did not say.
            if not self._log.in_doubt:
                self._abort_repair(error)
            raise
        entry = {"repaired": {r.sink: {"rows": r.rows, "subtasks": r.subtasks} for r in repaired}}
        self._history.add(checkpoint_id, {"status": State.DECIDED, **entry})
        done = self._perform(Moment.DECIDED, clock, current=checkpoint_id)
        self._repairs.check(checkpoint_id)
        return done

    def _abort_repair(self, error: BaseException) -> None:
        try:
            self._perform(Moment.FAILED)
        except Exception as problem:  # noqa: BLE001  attached to the error that is on its way up
            error.add_note(f"while cleaning up after it: {type(problem).__name__}: {problem}")

    def _abort(self, checkpoint_id: CheckpointId, state: State, started: int, error: BaseException) -> None:
        """Undo what the tasks prepared and tell every sink (S6); errors here must not hide the first one."""
        steps: list[Callable[[], Any]] = [lambda: self._perform(Moment.FAILED)]
        steps += [lambda s=sink: s.notify_checkpoint_aborted(checkpoint_id) for sink in self._sinks]  # type: ignore[misc]
        entry = {"status": state, "started": started, "error": f"{type(error).__name__}: {first_line(error)}"}
        steps.append(lambda: self._history.add(checkpoint_id, entry))
        for step in steps:
            try:
                step()
            except Exception as problem:  # noqa: BLE001  attached to the error that is on its way up
                error.add_note(f"while cleaning up after it: {type(problem).__name__}: {problem}")

    def _blame_the_fence(self, error: BaseException) -> None:
        """A successor undoes what a paused driver prepared, and then anything can fail: name the reason instead."""
        try:
            self._log.ensure_not_fenced()
        except FencedError as reason:
            if reason is not error and isinstance(error, Exception):
                raise reason from error
        except Exception as problem:  # noqa: BLE001  attached to the error that is on its way up
            error.add_note(f"while looking for a newer driver: {type(problem).__name__}: {problem}")

    # -- steps ------------------------------------------------------------------------------------------------------

    def _perform(
        self, moment: Moment, clock: Phases | None = None, *, current: CheckpointId | None = None
    ) -> dict[Commit, Any]:
        """Do what the table of steps says for this moment; `current` writes its own history."""
        done: dict[Commit, Any] = {}
        clock = clock or Phases(self._clock)
        with self._lock:
            for step in STEPS[moment]:
                if step is Step.SWEEP:
                    self._sweep()
                elif step is Step.DELIVER:
                    with clock.phase("commit"):
                        done = self._delivery.deliver()
                    with clock.phase("notify"):
                        self._completed(current)
        return done

    def _sweep(self) -> None:
        self._swept = self._clock()
        for sink in self._sinks:
            decided = {k: [c.data for c in v] for k, v in owed(self._log.facts, sink.name).items()}
            sink.recover(self._log.pipeline, self._log.generation, decided)

    def _completed(self, current: CheckpointId | None) -> None:
        """Tell the sinks about checkpoints that have just become complete, in order."""
        missing = {c.checkpoint_id for c in plan_recovery(self._log.facts)}
        for checkpoint_id in sorted(self._lagging - missing):
            self._lagging.discard(checkpoint_id)
            if checkpoint_id != current:
                inherited = checkpoint_id in self._inherited
                self._history.add(checkpoint_id, {"status": State.COMPLETE, "restored": inherited})
            each(lambda sink, number=checkpoint_id: sink.notify_checkpoint_complete(number), self._sinks)  # type: ignore[misc]

    def _add_history(
        self,
        checkpoint_id: CheckpointId,
        state: State,
        clock: Phases,
        reports: Sequence[SubtaskReport],
        decided: Decided,
        done: Mapping[Commit, Any],
    ) -> None:
        committed = self._log.facts.commits.get(checkpoint_id, ())
        entry = {"status": state, **clock.told(), **summary(checkpoint_id, reports, decided, done, committed)}
        self._history.add(checkpoint_id, entry)


def first_line(error: BaseException) -> str:
    """Enough of an error for a table; Spark's hold whole stack traces."""
    return str(error).strip().partition("\n")[0][:500]
