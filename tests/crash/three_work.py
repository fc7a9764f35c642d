"""One stream into Kafka, PostgreSQL and files with one decision."""

from __future__ import annotations

import uuid
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.connectors.kafka.client.transactions import TransactionClient
from holdfast.core.naming import escape
from tests.crash.harness import ROWS
from tests.crash.stores import Files, Postgres, Store
from tests.crash.stores_work import StoresWork
from tests.integration.test_kafka_sink import consume
from tests.servers.kafka import KafkaBroker


class Topic(Store):
    """A topic of Kafka; no reader watches it: tests.crash.kafka_work has one that does."""

    kind = "kafka"
    watched = False

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker, topic = broker, f"three-{uuid.uuid4().hex[:8]}"
        self.options = {"bootstrap_servers": broker.bootstrap, "topic": topic}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(60)

    def received(self) -> list[int]:
        """See Store."""
        return [int(row["value"]) for row in consume(self._broker, self.options["topic"])]

    def open_transactions(self, name: str) -> list[Any]:
        """What tasks of this pipeline have begun and nobody has ended."""
        with TransactionClient({"bootstrap.servers": self._broker.bootstrap}) as client:
            return list(client.ongoing(f"hfk1-{escape(name)}-"))

    def assert_nothing_left(self, name: str, checkpoints: int) -> None:
        """See Store."""
        assert self.open_transactions(name) == []


class Three(StoresWork):
    """All three take the one column that a Kafka sink takes."""

    def make(self, kind: str, number: int) -> Store:
        """See StoresWork."""
        if kind == "kafka":
            return Topic(self.servers("kafka"))
        if kind == "files":
            return Files(self.folder / "files", "value", buckets=False)
        return Postgres(self.database(), "orders", kind, "value text")

    def start(self, fault: str = "", **spec: Any) -> Any:
        """See Work."""
        return super().start(fault, columns=["string(id) AS value"], **spec)

    def counts(self) -> list[int]:
        """How many checkpoints are to be seen in each, in the order of their commits."""
        found = [len(store.received()) for store in self.stores]
        assert all(count % ROWS == 0 for count in found), f"a part of a checkpoint is seen: {found}"
        return [count // ROWS for count in found]
