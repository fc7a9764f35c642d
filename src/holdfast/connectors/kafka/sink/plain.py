"""Kafka without transactions: `at-least-once` waits for the brokers before the checkpoint, `none` does not (P1)."""

from __future__ import annotations

import logging
from typing import Any

import pyarrow as pa

from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer
from holdfast.connectors.kafka.sink.target import RowWriter, Target
from holdfast.core.naming import Task
from holdfast.sinks.idempotent import IdempotentSink

logger = logging.getLogger("holdfast")
#: Producers of this worker process. One that nobody waits for must outlive its task, else its rows go with it.
_PRODUCERS: dict[tuple[Any, ...], TransactionalProducer] = {}


class Plain(IdempotentSink):
    """Rows are visible as soon as the brokers have them."""

    name = "kafka-plain"

    def __init__(self, target: Target, *, wait: bool) -> None:
        self.name = target.sink
        self._target, self._wait = target, wait

    def connect(self, task: Task) -> RowWriter:
        """See IdempotentSink."""
        return RowWriter(self._target, self._producer())

    def upsert(self, connection: RowWriter, batch: pa.RecordBatch) -> None:
        """See IdempotentSink; here a row that is written again is there twice."""
        connection.write(batch)

    def disconnect(self, connection: RowWriter) -> None:
        """Every row is on the brokers, or the task fails; without waiting, failures are only told."""
        producer = self._producer()
        if self._wait:
            producer.flush()
            return
        failed = producer.failures()
        if failed:
            logger.warning("sink %s (delivery='none'): %d rows did not reach the brokers", self.name, failed)

    def abort(self, txn: list[Any]) -> None:
        """The rows cannot be taken back; a producer that failed is not used again."""
        producer = _PRODUCERS.pop(self._key(), None)
        if producer is not None:
            producer.drop()

    def _producer(self) -> TransactionalProducer:
        key = self._key()
        if key not in _PRODUCERS:
            _PRODUCERS[key] = self._target.producer(waits=self._wait)
        return _PRODUCERS[key]

    def _key(self) -> tuple[Any, ...]:
        return (self._target.servers, self._wait, *sorted((k, str(v)) for k, v in self._target.config.items()))
