"""Sinks whose endpoint makes repeated writes harmless by itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Tasks
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task
from holdfast.errors import ConfigError
from holdfast.sinks.two_phase import TwoPhaseCommitSink


class IdempotentSink(TwoPhaseCommitSink):
    """Effectively once: rows are written straight from the task, and a replay writes the same rows over themselves.

    Needs from the endpoint: writing a row again changes nothing (upsert by key). Needs from the query: a replay gives
    the same rows. Rows are visible before the checkpoint is decided, so a reader can see part of a batch that is then
    run again; where that matters, use a two-phase or write-ahead sink.
    """

    def connect(self, task: Task) -> Any:
        """Open a connection for this task attempt; None by default."""
        return None

    @abstractmethod
    def upsert(self, connection: Any, batch: pa.RecordBatch) -> None:
        """Write rows so that writing them again changes nothing; durable when it returns or when `disconnect` does."""

    def disconnect(self, connection: Any) -> None:
        """Flush and close; raising fails the task."""

    def begin(self, task: Task) -> list[Any]:
        """See TwoPhaseCommitSink."""
        return [self.connect(task)]

    def write(self, txn: list[Any], batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        self.upsert(txn[0], batch)

    def pre_commit(self, txn: list[Any]) -> Mapping[str, Any] | None:
        """See TwoPhaseCommitSink."""
        self.disconnect(txn.pop())
        return None

    def abort(self, txn: list[Any]) -> None:
        """See TwoPhaseCommitSink; a connection is closed once, also when another sink fails after this one."""
        if txn:
            self.disconnect(txn.pop())

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Nothing is left to do: the rows were written by the tasks, which leave nothing to commit."""
        if committables:
            raise ConfigError(
                f"sink {self.name!r}: checkpoint {checkpoint_id} was decided while this sink had another mode or "
                "delivery, and its rows are not delivered yet. Start once more with the former one, let it catch up, "
                "then change it"
            )
        return Outcome.COMMITTED

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """Nothing to undo: the replay overwrites."""
