"""T8: one stream into Kafka, PostgreSQL and files with one decision; the driver is killed between each two commits."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.connectors.kafka.client.transactions import TransactionClient
from holdfast.core.naming import escape
from tests.crash import stores_job
from tests.crash.harness import ROWS
from tests.crash.stores import Files, Postgres, Store
from tests.crash.stores_work import STORES, StoresWork
from tests.integration.test_kafka_sink import consume
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer

THREE = "three-stores"


class Topic(Store):
    """A topic of Kafka; no reader watches it: tests.crash.kafka_work has one that does."""

    kind = "kafka"
    watched = False

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker, topic = broker, f"three-{uuid.uuid4().hex[:8]}"
        self.options = {"bootstrap_servers": broker.bootstrap, "topic": topic}
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic(topic, 2, 1)])[topic].result(30)

    def received(self) -> list[int]:
        return [int(row["value"]) for row in consume(self._broker, self.options["topic"])]

    def assert_nothing_left(self, name: str, checkpoints: int) -> None:
        with TransactionClient({"bootstrap.servers": self._broker.bootstrap}) as client:
            assert client.ongoing(f"hfk1-{escape(name)}-") == []


class Three(StoresWork):
    """All three take the one column that a Kafka sink takes."""

    def make(self, kind: str, number: int) -> Store:
        if kind == "kafka":
            return Topic(self.servers("kafka"))
        if kind == "files":
            return Files(self.folder / "files", "value", buckets=False)
        return Postgres(self.database(), "orders", kind, "value text")

    def start(self, fault: str = "", **spec: Any) -> Any:
        return super().start(fault, columns=["string(id) AS value"], **spec)

    def counts(self) -> list[int]:
        """How many checkpoints are to be seen in each, in the order of their commits."""
        found = [len(store.received()) for store in self.stores]
        assert all(count % ROWS == 0 for count in found), f"a part of a checkpoint is seen: {found}"
        return [count // ROWS for count in found]


@pytest.fixture
def work(
    tmp_path: Path, kafka: KafkaBroker, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Three]:
    monkeypatch.setitem(STORES, THREE, ("kafka", "ledger", "files"))
    servers = {"kafka": kafka, "postgres": postgres}
    with closing(Three(tmp_path / "work", THREE, servers.__getitem__)) as work:
        yield work


@pytest.mark.timeout(600)
def test_t8_the_driver_is_killed_between_each_two_commits_and_the_three_are_equal(work: Three) -> None:
    names = [sink.name for sink in stores_job.sinks([(store.kind, store.options) for store in work.stores])]
    for checkpoint, late in enumerate(names):
        # One hangs in its commit, the two others have done theirs: then the driver dies. The next run begins with it.
        others = set(names) - {late}
        work.kill_when(f"commit.sink:{late}=hang", lambda at=checkpoint, done=others: done <= work.committed_by(at))  # type: ignore[misc]
        assert late not in work.committed_by(checkpoint), work.log()
        seen = [checkpoint + (name != late) for name in names]
        assert work.counts() == seen, f"{late} was late\n{work.log()}"
    work.crash("batch.return=kill")
    assert work.counts() == [3, 3, 3], work.log()
    work.run_clean()
    work.assert_clean()
    kafka, table, files = (sorted(store.received()) for store in work.stores)
    assert kafka == table == files == work.sent()
