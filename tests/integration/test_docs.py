"""The snippets of the docs run against a real Spark, real files and a real broker; rows arrive where they say."""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import holdfast as hf
from holdfast.checkpoint.savepoint import list_savepoints
from holdfast.spark.session import STATES
from tests.integration.test_kafka_sink import consume
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer, execute
from tests.unit.test_docs import DOCS, EXAMPLES, PAGES, README, ROOT, SINKS, blocks

pytestmark = pytest.mark.spark
PYTHON = "py(?:thon)?"
SCHEMA = "id long, amount double, customer string, country string, ordered_at timestamp"
ROWS = [
    {"id": n, "amount": n / 2, "customer": f"c{n}", "country": "de", "ordered_at": "2026-01-01T00:00:00Z"}
    for n in range(5)
]
#: What spark-pipelines runs in tests/crash/test_doors.py.
PIPELINE = (ROOT / "examples" / "pipelines" / "transformations" / "orders.py").read_text()
#: Pages whose snippets need a broker, and what they call it.
BROKERS = {
    "kafka.md": ("broker:9092", ["paid-orders", "totals", "totals-progress"]),
    "routes.md": ("localhost:9092", ["orders", "orders.de"]),
}


class Page:
    """A page's snippets, run in order in one namespace, with folders of their own and servers that are there."""

    def __init__(self, page: Path, folder: Path, spark: SparkSession, replaced: dict[str, str]) -> None:
        self.page, self.folder = page, folder
        self._replaced = {"/data/": f"{folder}/data/", **replaced}
        incoming = folder / "data" / "incoming"
        incoming.mkdir(parents=True)
        (incoming / "0.json").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
        self.orders = spark.readStream.schema(SCHEMA).json(str(incoming))
        # As in a script, so that Spark's tasks get classes and functions of a snippet by value.
        self.names: dict[str, Any] = {"__name__": "__main__", "orders": self.orders, "post": _post(folder)}
        self.queries: list[StreamingQuery] = []

    def run(self) -> None:
        """Every snippet; and what starts a query, or would, is run to its end."""
        for block in blocks(self.page, PYTHON):
            if any(block in example for example in (*EXAMPLES, PIPELINE)):
                continue
            for old, new in self._replaced.items():
                block = block.replace(old, new)
            exec(compile(block, str(self.page), "exec"), self.names)
            self._finish()
        for name, function in list(self.names.items()):
            if name.startswith("test_"):
                (self.folder / name).mkdir()
                function(self.folder / name)

    def _finish(self) -> None:
        for name in ("query", "writer"):
            made = self.names.pop(name, None)
            if isinstance(made, DataStreamWriter):
                made = made.trigger(availableNow=True).start()
                made.awaitTermination()
            elif isinstance(made, StreamingQuery):
                made.processAllAvailable()
                made.stop()
            else:
                assert made is None, f"{name} is no query: {made!r}"
                continue
            self.queries.append(made)

    def deliver(self, sink: hf.TwoPhaseCommitSink, name: str) -> None:
        """A sink that a snippet made, used."""
        writer = hf.write_stream(self.orders, sink, name=name, checkpoint_location=str(self.folder / name))
        writer.trigger(availableNow=True).start().awaitTermination()


def _post(folder: Path) -> Callable[[Any], None]:
    path = str(folder / "posted")

    def post(batch: Any) -> None:
        with open(path, "a") as file:  # noqa: PTH123  by value, in a task
            file.writelines(f"{n}\n" for n in batch.column("id").to_pylist())

    post.__module__ = "__main__"
    return post


@pytest.fixture
def run_page(spark, tmp_path, monkeypatch, request) -> Iterator[Callable[[Path], Page]]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT / "examples")

    def run(page: Path) -> Page:
        replaced = {}
        if page.name in BROKERS:
            kafka: KafkaBroker = request.getfixturevalue("kafka")
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
            server, topics = BROKERS[page.name]
            for done in admin.create_topics([NewTopic(topic, 1, 1) for topic in topics]).values():
                done.result(60)
            replaced[server] = kafka.bootstrap
        made = Page(page, tmp_path, spark, replaced)
        made.run()
        return made

    settings = {key: spark.conf.get(key, None) for key in STATES["rocksdb"]}
    yield run
    for key, value in settings.items():  # docs/state.md asks for them, for the session that all tests share
        spark.conf.unset(key) if value is None else spark.conf.set(key, value)
    for module in set(SINKS) & set(sys.modules):
        del sys.modules[module]


def rows(page: Page, table: str = "orders") -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(page.folder / "data" / "shop.db")
    try:
        return connection.execute(f"SELECT id, amount FROM {table} ORDER BY id").fetchall()
    finally:
        connection.close()


@pytest.mark.parametrize("page", [DOCS / "index.md", DOCS / "guarantees.md", README], ids=lambda page: page.name)
def test_rows_arrive_in_sqlite(run_page, page, capsys) -> None:
    made = run_page(page)
    assert len(made.queries) == 1
    assert rows(made) == [(row["id"], row["amount"]) for row in ROWS]
    if page == README:
        made.deliver(made.names["sink"], "endpoint")
        assert sorted(map(int, (made.folder / "posted").read_text().split())) == [row["id"] for row in ROWS]


def test_rows_arrive_through_every_door(spark, tmp_path) -> None:
    """The snippet of declarative pipelines is a part of an example, and spark-pipelines runs that in
    tests/crash/test_doors.py, where a server of Spark Connect is, too: the same call is made of a remote frame."""
    remote = 'remote("sc://spark-server:15002")'
    page = DOCS / "spark-doors.md"
    assert remote in page.read_text()
    assert [block in PIPELINE for block in blocks(page, PYTHON) if "dp.create_sink" in block] == [True]
    made = Page(page, tmp_path, spark, {remote: 'appName("tests")'})
    made.run()
    assert len(made.queries) == 2, "the format, and write_stream on the same location"
    assert rows(made) == [(row["id"], row["amount"]) for row in ROWS]


def test_rows_arrive_in_files(run_page) -> None:
    made = run_page(DOCS / "files.md")
    table = pq.read_table(made.folder / "data" / "orders")
    assert sorted(table.column("id").to_pylist()) == [row["id"] for row in ROWS]
    assert list((made.folder / "data" / "orders" / "country=de").glob("date=*"))


def test_rows_arrive_in_kafka(run_page, kafka: KafkaBroker) -> None:
    made = run_page(DOCS / "kafka.md")
    found = consume(kafka, "paid-orders")
    assert sorted(row["key"] for row in found) == [row["customer"].encode() for row in ROWS]
    assert json.loads(found[0]["value"])["country"] == "de"
    followed: list[tuple[Any, ...]] = []

    def told(*values: Any) -> None:
        followed.append(values)
        raise StopFollowingError

    made.orders = made.orders.selectExpr("customer AS key", "string(amount) AS value")
    made.deliver(made.names["totals"], "totals")
    made.names["print"] = told
    with pytest.raises(StopFollowingError):
        made.names["follow"](-1)
    assert followed == [(0, len(ROWS), None, len(ROWS))]


class StopFollowingError(Exception):
    """Ends a reader that would go on for ever."""


def test_a_savepoint_is_taken_of_a_pipeline_that_ran(spark, tmp_path, capsys) -> None:
    Page(DOCS / "index.md", tmp_path, spark, {}).run()
    (tmp_path / "data" / "incoming" / "0.json").unlink()
    (tmp_path / "data" / "incoming").rmdir()
    made = Page(DOCS / "savepoints.md", tmp_path, spark, {"s3://bucket/": f"{tmp_path}/saved/"})
    made.run()
    capsys.readouterr()
    made.names["before_the_change"]()
    assert f"{tmp_path}/saved/savepoints/" in capsys.readouterr().out
    (saved,) = list_savepoints(f"{tmp_path}/saved/savepoints")
    assert saved.checkpoint_id == 0


def test_operations_prints_the_checkpoints_of_a_pipeline_that_ran(run_page, spark, tmp_path, capsys) -> None:
    before = Page(DOCS / "index.md", tmp_path, spark, {})
    before.run()
    capsys.readouterr()
    (tmp_path / "data" / "incoming" / "0.json").unlink()
    (tmp_path / "data" / "incoming").rmdir()
    run_page(DOCS / "operations.md")
    assert f"0 complete {len(ROWS)} " in capsys.readouterr().out


def test_routes_give_each_sink_its_rows(run_page, kafka: KafkaBroker) -> None:
    made = run_page(DOCS / "routes.md")
    assert len(made.queries) == 3
    assert rows(made) == [(row["id"], row["amount"]) for row in ROWS]
    assert len(consume(kafka, "orders.de")) == len(ROWS)
    assert pq.read_table(made.folder / "data" / "by-country" / "de").num_rows == len(ROWS)
    files = pq.read_table(made.folder / "data" / "orders")
    assert sorted(files.column("id").to_pylist()) == [row["id"] for row in ROWS]
    assert sorted(row["key"] for row in consume(kafka, "orders")) == [row["customer"].encode() for row in ROWS]


def test_from_foreachbatch_rows_arrive_in_both(run_page) -> None:
    made = run_page(DOCS / "from-foreachbatch.md")
    assert rows(made) == [(row["id"], row["amount"]) for row in ROWS]
    made.deliver(made.names["sink"], "endpoint")
    assert sorted(map(int, (made.folder / "posted").read_text().split())) == [row["id"] for row in ROWS]


def test_kafka_to_postgres_totals_arrive(
    spark, tmp_path, kafka: KafkaBroker, postgres: PostgresServer, topic: Callable[..., str]
) -> None:
    orders, producer = topic("orders", partitions=1), Producer({"bootstrap.servers": kafka.bootstrap})
    for n in range(6):
        order = {"id": n, "amount": 1.5, "at": f"2026-01-01T00:0{n % 2}:00Z"}
        producer.produce(orders, json.dumps(order).encode())
    assert producer.flush(30) == 0
    dsn = postgres.new_database()
    replaced = {"localhost:9092": kafka.bootstrap, "postgresql://localhost/shop": dsn, '["orders"]': f'["{orders}"]'}
    Page(DOCS / "kafka-to-postgres.md", tmp_path, spark, replaced).run()
    assert execute(dsn, "SELECT amount, orders FROM totals ORDER BY minute") == [(4.5, 3), (4.5, 3)]


def test_changes_of_debezium_arrive_in_postgres(
    spark, tmp_path, kafka: KafkaBroker, postgres: PostgresServer, topic: Callable[..., str]
) -> None:
    people, producer = topic("people", partitions=1), Producer({"bootstrap.servers": kafka.bootstrap})
    for lsn, (op, number) in enumerate([("c", 1), ("c", 2), ("d", 1)]):
        row = {"id": number, "name": f"n{number}", "amount": 1.0}
        envelope = {"op": op, "source": {"lsn": lsn}, "before": None, "after": None}
        envelope["before" if op == "d" else "after"] = row
        producer.produce(people, json.dumps(envelope).encode(), json.dumps({"id": number}).encode())
    assert producer.flush(30) == 0
    dsn = postgres.new_database()
    execute(dsn, "CREATE TABLE people (id bigint PRIMARY KEY, name text, amount double precision, position bigint)")
    replaced = {
        "localhost:9092": kafka.bootstrap,
        "postgresql://writer@localhost/shop": dsn,
        "shop.public.people": people,
    }
    Page(DOCS / "changes.md", tmp_path, spark, replaced).run()
    assert execute(dsn, "SELECT id, name FROM people") == [(2, "n2")]


TESTED = (
    "index.md",
    "guarantees.md",
    "files.md",
    "kafka.md",
    "operations.md",
    "routes.md",
    README.name,
    "quickstart.md",
    "from-foreachbatch.md",
    "kafka-to-postgres.md",
    "changes.md",
    "flink.md",
    "spark-doors.md",
    "savepoints.md",
    # tests/integration/test_docs_stores.py
    "postgres.md",
    "cassandra.md",
    "sqlite.md",
    "schema-changes.md",
)


def test_the_moved_flink_job_and_its_window(spark, tmp_path, kafka: KafkaBroker, topic: Callable[..., str]) -> None:
    source, target = topic("orders", partitions=1), topic("totals", partitions=1)
    replaced = {"localhost:9092": kafka.bootstrap, '["orders"]': f'["{source}"]', '"totals")': f'"{target}")'}
    page = Page(DOCS / "flink.md", tmp_path, spark, replaced)
    page.run()
    orders = [("a", 1.5, "12:00:01"), ("a", 2.0, "12:00:59"), ("a", 4.0, "12:01:00"), ("b", 8.0, "12:00:30")]
    values = [json.dumps({"customer": c, "amount": n, "at": f"2026-01-01T{at}Z"}).encode() for c, n, at in orders]
    found = page.names["totals"](spark.createDataFrame([(value,) for value in values], "value binary")).collect()
    assert sorted((row.key, json.loads(row.value)["amount"]) for row in found) == [("a", 3.5), ("a", 4.0), ("b", 8.0)]
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    late = json.dumps({"customer": "z", "amount": 1.0, "at": "2026-01-01T13:00:00Z"}).encode()
    for value in (*values, late):
        producer.produce(source, value)
    assert producer.flush(30) == 0
    page.names["pipeline"](spark).trigger(availableNow=True).start().awaitTermination()
    sums = sorted((row["key"], json.loads(row["value"])["amount"]) for row in consume(kafka, target))
    assert sums == [(b"a", 3.5), (b"a", 4.0), (b"b", 8.0)]


@pytest.mark.parametrize(
    "page", [p for p in [*PAGES, README] if p.name not in TESTED and blocks(p, PYTHON)], ids=lambda page: page.name
)
def test_the_snippets_of_other_pages_run(run_page, page, capsys) -> None:
    made = run_page(page)
    assert made.queries == [], "name the page in a test of its own, which looks at the rows"
