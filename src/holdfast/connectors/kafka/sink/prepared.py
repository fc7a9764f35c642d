"""One task's open transaction: rows and marks go in, and it is left open for the driver to end."""

from __future__ import annotations

import time
import uuid
from typing import Any

from holdfast.connectors.kafka.client.transactions import ONGOING, TransactionClient, TransactionRef
from holdfast.connectors.kafka.sink import ids
from holdfast.connectors.kafka.sink.target import RowWriter, Target
from holdfast.core.naming import Task


class OpenedTransaction:
    """Of one attempt at one subtask."""

    def __init__(self, target: Target, task: Task) -> None:
        self._target, self._task = target, task
        self._id = str(ids.make(task))
        self._producer = target.producer(self._id, identified=True)
        try:
            self._producer.initialise()
            self._producer.begin()
        except BaseException:
            # Nobody else would: the task has no transaction to abort yet, and its worker process lives on.
            self._producer.drop()
            raise
        self.writer = RowWriter(target, self._producer)
        self._ref: TransactionRef
        self._prepared = False

    def prepare(self) -> dict[str, Any] | None:
        """Put the marks in, wait until every row is on the brokers, and let go of it."""
        task, topic = self._task, self.writer.first_topic
        assert topic is not None
        mark, nonce = ids.mark_group(self._id, task.lineage), uuid.uuid4().hex
        self._producer.mark(topic, mark, task.checkpoint_id + 1, nonce)
        self._producer.mark(topic, ids.ledger_group(task.pipeline, task.sink), task.checkpoint_id + 1, task.lineage)
        self._producer.flush()
        self._ref = TransactionRef(self._id, *self._producer.identity())
        self._producer.drop()
        self._prepared = True
        return {
            "version": 2,
            "transactional_id": self._id,
            "producer_id": self._ref.producer_id,
            "epoch": self._ref.epoch,
            "mark": mark,
            "nonce": nonce,
            "subtask": task.subtask,
            "rows": self.writer.rows,
            "servers": self._target.servers,
            # Where its rows were meant to go: a repair produces them there, whatever the options are by then (16).
            "topic": self._target.topic,
            "partitioner": self._target.config["partitioner"],
            "at": int(time.time() * 1000),
        }

    def abort(self) -> None:
        """Undo it, prepared or not."""
        if not self._prepared:
            try:
                self._ref = TransactionRef(self._id, *self._producer.identity())
                self._producer.abort()
            finally:
                self._producer.drop()
        # As the driver would. After `prepare` the producer is gone and the transaction open; before it, librdkafka can
        # leave it open too: it forgets a partition whose answer arrives in the middle of its abort, and asks for none.
        with TransactionClient(self._target.settings, owner=self._target.owner) as client:
            if self._prepared or any(t.state == ONGOING and t.ref == self._ref for t in client.describe([self._id])):
                client.end([self._ref], commit=False)
