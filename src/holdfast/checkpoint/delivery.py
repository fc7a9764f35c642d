"""Committing what is decided: one loop for each sink, in order, with retries (T3, T6, W5, rule 13).

A Delivery is a small state machine. Its own thread calls `step` again and again (holdfast.checkpoint.loops); a test
may call the steps of several in any order. The log is the only thing that two of them share.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from holdfast.checkpoint.findings import record_finding
from holdfast.checkpoint.guard import described, wrapped
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import Sink, Tasks
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Committable, Outcome
from holdfast.core.recovery import OwedCommit, owed, plan_recovery
from holdfast.core.retry import Retry
from holdfast.errors import CommitError, ConfigError, FencedError, HoldfastError, LostError, StorageError, permanent

logger = logging.getLogger("holdfast")
#: A slow failure of a sink that may lag is followed by a rest of the same length, up to this: it may hold an executor.
LONGEST_REST = 30.0
#: Seconds for which a loop believes that no newer driver has come.
FENCE_LOOK = 1.0


@dataclass(frozen=True)
class Standing:
    """What a loop is about, for status and errors; times in seconds since the epoch."""

    doing: str
    since: float
    failures: int
    problem: str | None
    #: attempts that failed, of all that this loop has done
    retried: int = 0


class Delivery:
    """The loop of one sink."""

    def __init__(
        self,
        log: CheckpointLog,
        sink: Sink,
        tasks: Tasks,
        *,
        retry: Retry,
        clock: Callable[[], float],
        lost: dict[OwedCommit, LostError],
        completed: Callable[[CheckpointId], None] = lambda checkpoint_id: None,
        chores: Callable[[Sink, Tasks], float | None] = lambda sink, tasks: None,
        first: Callable[[], None] | None = None,
        beside: Callable[[str], Standing | None] = lambda sink: None,
    ) -> None:
        self.sink, self.tasks = sink, tasks
        self._log, self._retry, self._clock = log, retry, clock
        #: what endpoints dropped: not tried again, and up to the coordinator to repair or to stop at
        self._lost = lost
        self._completed, self._chores = completed, chores
        #: what comes before all else, until it has worked: undoing what older runs have left (W7, W8)
        self._first = first
        #: what the sink does beside committing, or cannot do
        self._beside = beside
        #: why this loop gave up; it does nothing any more
        self.failure: HoldfastError | None = None
        self.outcomes: dict[CheckpointId, Outcome] = {}
        #: how many checkpoints this loop has committed
        self.delivered = 0
        #: checkpoints that this sink is told about when every sink has committed them
        self._awaited: set[CheckpointId] = set()
        self._unrecorded: tuple[CheckpointId, Outcome] | None = None
        self._failing, self._failing_since, self._failures, self._not_before = "", 0.0, 0, 0.0
        self._retried = 0
        self._fence_seen = float("-inf")
        self._cut_off = False
        self._standing = Standing("idle", clock(), 0, None)

    @property
    def standing(self) -> Standing:
        """What it does now, and since when."""
        known, beside = self._standing, self._beside(self.sink.name)
        if beside is None or known.doing.startswith("committing") or (known.problem and beside.problem):
            return replace(known, retried=self._retried)
        trouble = known if known.problem else beside
        return Standing(beside.doing, beside.since, trouble.failures, trouble.problem, self._retried)

    @property
    def problem(self) -> str | None:
        """Why the last attempt failed; None when it did not."""
        return self._standing.problem

    def expect(self, checkpoint_id: CheckpointId) -> None:
        """A checkpoint is decided: tell the sink when it is complete."""
        self._awaited.add(checkpoint_id)

    def done_through(self, checkpoint_id: CheckpointId) -> bool:
        """Whether nothing up to this checkpoint is left to commit, but for what is lost."""
        waiting = owed(self._log.facts, self.sink.name)
        return not any(n <= checkpoint_id and OwedCommit(n, self.sink.name) not in self._lost for n in waiting)

    def notified(self, checkpoint_id: CheckpointId) -> bool:
        """Whether the sink was told that this checkpoint is complete."""
        return checkpoint_id not in self._awaited

    @property
    def told(self) -> bool:
        """Whether the sink was told of every checkpoint that is complete."""
        return self._awaited <= {c.checkpoint_id for c in plan_recovery(self._log.facts)}

    def step(self) -> float | None:
        """One move. Seconds until the next is due; 0: at once; None: when something is decided, or never."""
        if self.failure is not None or self._cut_off:
            return None
        now = self._clock()
        if now < self._not_before:
            return self._not_before - now
        if self._first is not None:
            return self._begin(self._first, now)
        action = self._next()
        if action is not None:
            return self._commit(action)
        try:
            if self._notify():
                return 0.0
            wait = self._chores(self.sink, self.tasks)
        except Exception as error:  # noqa: BLE001  goes on below, by what kind it is
            return self._trouble("maintenance", wrapped(self.sink, "maintenance", error), None, now)
        self._calm()
        return wait

    def _begin(self, first: Callable[[], None], now: float) -> float | None:
        try:
            first()
        except Exception as error:  # noqa: BLE001  goes on below, by what kind it is
            return self._trouble("sweep", wrapped(self.sink, "sweep", error), None, now)
        self._first = None
        self._calm()
        return 0.0

    def cut_off(self) -> None:
        """The run is over and waits no longer: begin nothing more, and end the job that is under way, if any."""
        self._cut_off = True
        if hasattr(self.tasks, "cancel"):
            self.tasks.cancel()

    # -- committing -------------------------------------------------------------------------------------------------

    def _next(self) -> OwedCommit | None:
        """The oldest checkpoint that this sink owes and has not lost."""
        actions = (OwedCommit(n, self.sink.name) for n in owed(self._log.facts, self.sink.name))
        return next((action for action in actions if action not in self._lost), None)

    def _commit(self, action: OwedCommit) -> float | None:
        began = self._clock()
        number = action.checkpoint_id
        self._standing = Standing(f"committing checkpoint {number}", began, self._failures, self.problem)
        committables = self._log.facts.decided[number].of(action.sink)
        try:
            self._look_for_fence(began)
            outcome = self._attempt(number, committables)
            with faults.point("commit.record", self.sink.name):
                told = {"outcome": outcome, **totals(committables), "at": int(self._clock() * 1000)}
                self._log.record_commit(number, action.sink, told)
        except LostError as error:
            if self._done_by_another(action, error):
                return 0.0
            # The other sinks still commit: the decision stands.
            self._lost[action] = error
            self._calm()
            return 0.0
        except Exception as error:  # noqa: BLE001  any error of an endpoint is retried or ends the query
            if permanent(error) and self._done_by_another(action, error):
                return 0.0
            what = f"commit of checkpoint {number}"
            return self._trouble(what, wrapped(self.sink, what, error), action, began)
        self._unrecorded = None
        self._done(number, outcome)
        return 0.0

    def _done(self, number: CheckpointId, outcome: Outcome) -> None:
        self.outcomes[number] = outcome
        self.delivered += 1
        self._calm()
        self._completed(number)

    def _done_by_another(self, action: OwedCommit, error: Exception) -> bool:
        """Whether the work is gone because an older driver, paused in the middle of it, woke up and finished it."""
        try:
            if isinstance(error, FencedError) or not self._log.find_commit(action.checkpoint_id, action.sink):
                return False
        except StorageError as problem:
            error.add_note(f"while looking whether another driver has committed it: {problem}")
            return False
        self._done(action.checkpoint_id, Outcome.ALREADY_COMMITTED)
        return True

    def _attempt(self, number: CheckpointId, committables: tuple[Committable, ...]) -> Outcome:
        """A done outcome, or an error."""
        if self._unrecorded is not None and self._unrecorded[0] == number:
            return self._unrecorded[1]  # sent already: only the record is missing, and sending again cannot help (D10)
        outcome: Outcome | None = Outcome.COMMITTED
        if committables:
            with faults.point("commit.sink", self.sink.name):
                outcome = self.sink.commit(number, [c.data for c in committables], self.tasks)
        if outcome is not None and not isinstance(outcome, Outcome):
            raise ConfigError(f"sink {self.sink.name!r}: commit must return an Outcome or None, not {outcome!r}")
        outcome = outcome or Outcome.COMMITTED
        if outcome is Outcome.LOST:
            rows = sum(c.rows for c in committables)
            raise LostError(
                f"{described(self.sink)} answered that its transaction of checkpoint {number} is gone ({rows} rows in "
                f"{len(committables)} subtasks, some of which may be committed)"
            )
        if not outcome.done:
            raise CommitError(f"{described(self.sink)} answered {outcome.value!r} for checkpoint {number}")
        self._unrecorded = (number, outcome)
        return outcome

    def _look_for_fence(self, now: float) -> None:
        """A driver that was paused finds out before it touches an endpoint."""
        if now >= self._fence_seen + FENCE_LOOK:
            self._log.ensure_not_fenced()
            self._fence_seen = self._clock()

    def _notify(self) -> bool:
        """Tell the sink about the oldest checkpoint that has become complete."""
        missing = {c.checkpoint_id for c in plan_recovery(self._log.facts)}
        for number in sorted(self._awaited):
            if number not in missing:
                self._standing = Standing(f"being told of checkpoint {number}", self._clock(), 0, None)
                self.sink.notify_checkpoint_complete(number)
                self._awaited.discard(number)
                self.outcomes.pop(number - 100, None)
                return True
        return False

    # -- trouble ----------------------------------------------------------------------------------------------------

    def _trouble(self, what: str, error: HoldfastError, action: OwedCommit | None, began: float) -> float | None:
        """Try again later, or give up: at once if trying again cannot help, else when `retry` is over."""
        now = self._clock()
        if self._cut_off:  # what failed is the job that was ended; the end of the run tells what is left
            logger.debug("%s of sink %s was cut off: %s", what, self.sink.name, error)
            return None
        if what != self._failing:
            self._failing, self._failing_since, self._failures = what, began, 0
        self._failures += 1
        self._retried += 1
        took, failing = now - began, now - self._failing_since
        self._standing = Standing(f"waiting to try {what} again", self._failing_since, self._failures, str(error))
        if permanent(error) or (not self.sink.may_lag and failing >= self._retry.seconds):
            self._give_up(error, action)
            return None
        wait = self._retry.wait(self._failures)
        if self.sink.may_lag:
            wait = max(wait, min(took, LONGEST_REST))
        self._not_before = now + wait
        log = logger.warning if self._failures in (1, 2, 4, 8) or self._failures % 16 == 0 else logger.debug
        log("%s of sink %s failed, trying again in %.1f s: %s", what, self.sink.name, wait, error)
        return wait

    def _give_up(self, error: HoldfastError, action: OwedCommit | None) -> None:
        if action is not None and not permanent(error):
            failing = self._clock() - self._failing_since
            failed = CommitError(
                f"checkpoint {action.checkpoint_id} is decided, but sink {action.sink!r} did not commit it in "
                f"{self._failures} attempts over {failing:.0f} s: {error}. Nothing is lost: once the endpoint works "
                "again, start the query and it is committed first; retry=hf.Retry(for_=...) says how long to try"
            )
            failed.__cause__ = error
            error = failed
        if action is not None:
            try:
                record_finding(self._log, action, error)
            except StorageError as problem:
                error.add_note(f"while this was noted for `holdfast resolve`: {problem}")
        self._standing = Standing("stopped", self._clock(), self._failures, str(error))
        self.failure = error

    def _calm(self) -> None:
        if self._failures or self._standing.doing != "idle":
            self._failing, self._failures, self._not_before = "", 0, 0.0
            self._standing = Standing("idle", self._clock(), 0, None)


def totals(committables: tuple[Committable, ...]) -> dict[str, Any]:
    """Rows, bytes and subtasks of one sink in one checkpoint."""
    return {
        "rows": sum(c.rows for c in committables),
        "bytes": sum(c.bytes for c in committables),
        "subtasks": len(committables),
    }
