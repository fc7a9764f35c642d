"""Committing what is decided: in order, with retries, once per checkpoint and sink (T3, T6, W5)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import Sink, Tasks
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Committable, Outcome
from holdfast.core.recovery import Commit, plan_recovery
from holdfast.errors import PERMANENT, CommitError, ConfigError, FencedError, HoldfastError, LostError

logger = logging.getLogger("holdfast")
#: A failed attempt of a sink that may lag that took this many seconds is followed by a rest of REST times as long.
SLOW, REST, LONGEST_REST = 0.5, 5.0, 30.0


@dataclass(frozen=True)
class Retries:
    """How often a commit that fails is tried again before the query fails, and how long to wait between."""

    attempts: int = 5
    first_wait: float = 0.1
    longest_wait: float = 5.0

    def wait(self, attempt: int) -> float:
        """Seconds to wait after the given attempt, counted from 1."""
        return min(self.longest_wait, self.first_wait * 2.0 ** (attempt - 1))


class Delivery:
    """Commits decided checkpoints and records it."""

    def __init__(
        self,
        log: CheckpointLog,
        sinks: Mapping[str, Sink],
        tasks: Tasks,
        *,
        retries: Retries,
        sleep: Callable[[float], None] = time.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._sinks = sinks
        self._tasks = tasks
        self._retries = retries
        self._sleep = sleep
        self._clock = clock
        self._not_before: dict[str, float] = {}
        #: what the last pass could not deliver, by sink; shown in errors and statistics
        self.blocked: dict[str, str] = {}
        #: what an endpoint dropped: not tried again, and up to the coordinator to repair or to stop at
        self.lost: dict[Commit, LostError] = {}

    def deliver(self) -> dict[Commit, Outcome]:
        """Commit everything owed, in order. A sink that may lag stops at its first failure; any other raises.

        Only after the other sinks had their turn: the decision holds for them too, and what they prepared can time out.
        """
        done: dict[Commit, Outcome] = {}
        failed: dict[str, HoldfastError] = {}
        now = self._clock()
        self.blocked = {name: why for name, why in self.blocked.items() if self._not_before.get(name, 0.0) > now}
        for action in plan_recovery(self._log.facts):
            if action.sink in self.blocked or action.sink in failed or action in self.lost:
                continue
            try:
                outcome = self._commit(action)
            except FencedError:
                raise
            except HoldfastError as error:  # raised below
                failed[action.sink] = error
                continue
            if outcome is not None:
                done[action] = outcome
        for first in failed.values():
            raise first
        return done

    def _commit(self, action: Commit) -> Outcome | None:
        sink = self._sinks[action.sink]
        committables = self._log.facts.decided[action.checkpoint_id].of(action.sink)
        try:
            outcome = self._attempt(sink, action.checkpoint_id, committables) if committables else Outcome.COMMITTED
        except LostError as error:
            # The other sinks still commit: the decision stands.
            self.lost[action] = error
            return None
        if outcome is None:
            return None
        with faults.point("commit.record"):
            self._log.record_commit(action.checkpoint_id, action.sink, {"outcome": outcome, **totals(committables)})
        return outcome

    def _attempt(
        self, sink: Sink, checkpoint_id: CheckpointId, committables: tuple[Committable, ...]
    ) -> Outcome | None:
        """A done outcome; None when the sink may lag and did not commit; CommitError when it may not."""
        attempts = 1 if sink.may_lag else self._retries.attempts
        began = self._clock()
        failure: Exception | None = None
        for attempt in range(1, attempts + 1):
            try:
                with faults.point("commit.sink"):
                    outcome = sink.commit(checkpoint_id, [c.data for c in committables], self._tasks)
            except PERMANENT:
                raise
            except Exception as error:  # noqa: BLE001  any error of an endpoint is retried, then raised below
                failure, why = error, f"{type(error).__name__}: {error}"
            else:
                if outcome is not None and not isinstance(outcome, Outcome):
                    raise ConfigError(f"sink {sink.name!r}: commit must return an Outcome or None, not {outcome!r}")
                outcome = outcome or Outcome.COMMITTED
                if outcome.done:
                    return outcome
                if outcome is Outcome.LOST:
                    raise self._lost(sink, checkpoint_id, committables)
                failure, why = None, f"the sink answered {outcome.value!r}"
            if attempt < attempts:
                logger.warning("commit of checkpoint %d to %s failed, trying again: %s", checkpoint_id, sink.name, why)
                self._sleep(self._retries.wait(attempt))
        if sink.may_lag:
            self.blocked[sink.name] = why
            self._rest(sink, began)
            logger.warning("checkpoint %d stays pending for sink %s: %s", checkpoint_id, sink.name, why)
            return None
        raise CommitError(
            f"checkpoint {checkpoint_id} is decided but sink {sink.name!r} did not commit it in {attempts} attempts "
            f"({why}). Nothing is lost: once the endpoint works again, start the query and it will be committed first"
        ) from failure

    def _rest(self, sink: Sink, began: float) -> None:
        """An endpoint that fails slowly (a connection that times out) may not slow every batch down."""
        took = self._clock() - began
        if took >= SLOW:
            self._not_before[sink.name] = self._clock() + min(LONGEST_REST, REST * took)

    def _lost(self, sink: Sink, checkpoint_id: CheckpointId, committables: tuple[Committable, ...]) -> LostError:
        rows = sum(c.rows for c in committables)
        return LostError(
            f"sink {sink.name!r} answered that its transaction of checkpoint {checkpoint_id} is gone ({rows} rows in "
            f"{len(committables)} subtasks, some of which may be committed)"
        )


def totals(committables: tuple[Committable, ...]) -> dict[str, Any]:
    """Rows, bytes and subtasks of one sink in one checkpoint."""
    return {
        "rows": sum(c.rows for c in committables),
        "bytes": sum(c.bytes for c in committables),
        "subtasks": len(committables),
    }
