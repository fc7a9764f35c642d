"""Kafka without transactions: `at-least-once` waits for the brokers before the checkpoint, `none` does not (P1)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Tasks
from holdfast.connectors.kafka.rdkafka import TransactionalProducer
from holdfast.connectors.kafka.target import RowWriter, Target
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task
from holdfast.sinks.two_phase import TwoPhaseCommitSink

logger = logging.getLogger("holdfast")
#: Producers of this worker process. One that nobody waits for must outlive its task, else its rows go with it.
_PRODUCERS: dict[tuple[Any, ...], TransactionalProducer] = {}


class Plain(TwoPhaseCommitSink):
    """Rows are visible as soon as the brokers have them."""

    name = "kafka-plain"

    def __init__(self, target: Target, *, wait: bool) -> None:
        self.name = target.sink
        self._target, self._wait = target, wait

    def begin(self, task: Task) -> RowWriter:
        """See TwoPhaseCommitSink."""
        return RowWriter(self._target, self._producer())

    def write(self, txn: RowWriter, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        txn.write(batch)

    def pre_commit(self, txn: RowWriter) -> Mapping[str, Any] | None:
        """Every row is on the brokers, or the task fails; without waiting, failures are only told."""
        producer = self._producer()
        if self._wait:
            producer.flush()
        else:
            failed = producer.failures()
            if failed:
                logger.warning(
                    "sink %s: %d rows did not reach the brokers (delivery='none')", self._target.sink, failed
                )
        return None

    def abort(self, txn: RowWriter) -> None:
        """The rows cannot be taken back; a producer that failed is not used again."""
        producer = _PRODUCERS.pop(self._key(), None)
        if producer is not None:
            producer.drop()

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Nothing is left to do."""
        return Outcome.COMMITTED

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """Nothing can be undone."""

    def _producer(self) -> TransactionalProducer:
        key = self._key()
        if key not in _PRODUCERS:
            _PRODUCERS[key] = self._target.producer()
        return _PRODUCERS[key]

    def _key(self) -> tuple[Any, ...]:
        return (self._target.servers, self._wait, *sorted((k, str(v)) for k, v in self._target.config.items()))
