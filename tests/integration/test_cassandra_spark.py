"""CassandraSink under Spark: worker processes, restarts, an outage (W6, W7)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from tests.integration.helpers import add_file, read_files
from tests.servers.cassandra import CassandraServer

pytestmark = pytest.mark.spark


class Recorded(hf.CassandraSink):
    """Notes the order in which checkpoints reach Cassandra."""

    note: str = ""

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: int, timestamp: int) -> bool:
        taken = super().send_values(values, checkpoint_id, timestamp)
        with Path(self.note).open("a") as file:
            file.write(f"{checkpoint_id}\n")
        return taken


@pytest.fixture
def keyspace(cassandra: CassandraServer) -> str:
    name = f"spark_{uuid.uuid4().hex[:8]}"
    cassandra.execute(
        f"CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
    cassandra.execute(f"CREATE TABLE {name}.orders (id bigint PRIMARY KEY, word text, at timestamp)")
    return name


def wait(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def test_checkpoints_arrive_and_a_restart_adds_only_new_rows(
    spark: SparkSession, cassandra: CassandraServer, keyspace: str, tmp_path: Path
) -> None:
    """Also that a later row replaces an earlier one, with a sum that grows in update mode."""
    cassandra.execute(f"CREATE TABLE {keyspace}.totals (word text PRIMARY KEY, n bigint)")

    def run() -> None:
        frame = read_files(spark, tmp_path / "in")
        totals = frame.groupBy("word").agg(f.count("*").alias("n"))
        for rows, mode, table in ((frame, "append", "orders"), (totals, "update", "totals")):
            sink = hf.CassandraSink(keyspace=keyspace, table=table, **cassandra.options)
            writer = hf.write_stream(rows, sink, name=table, checkpoint_location=str(tmp_path / table))
            writer.outputMode(mode).trigger(availableNow=True).start().awaitTermination()

    add_file(tmp_path / "in", 0, range(60))
    add_file(tmp_path / "in", 1, range(60, 90))
    run()
    add_file(tmp_path / "in", 2, range(90, 120))
    run()
    rows = cassandra.execute(f"SELECT id, word FROM {keyspace}.orders")
    assert sorted((row["id"], row["word"]) for row in rows) == [(i, f"w{i % 3}") for i in range(120)]
    totals = cassandra.execute(f"SELECT word, n FROM {keyspace}.totals")
    assert sorted((row["word"], row["n"]) for row in totals) == [(f"w{i}", 40) for i in range(3)]
    done = [(c.checkpoint_id, c.status, c.rows) for c in hf.checkpoints(str(tmp_path / "orders"))]
    assert done == [(0, "complete", 60), (1, "complete", 30), (2, "complete", 30)]


def test_w6_the_stream_goes_on_while_cassandra_is_down_and_catches_up_in_order(
    spark: SparkSession, cassandra: CassandraServer, keyspace: str, tmp_path: Path
) -> None:
    sink = Recorded(keyspace=keyspace, table="orders", timeout=5, **cassandra.options)
    sink.note = str(tmp_path / "order")
    location = str(tmp_path / "checkpoint")
    add_file(tmp_path / "in", 0, range(10))
    writer = hf.write_stream(read_files(spark, tmp_path / "in"), sink, name="outage", checkpoint_location=location)
    query = writer.trigger(processingTime="200 milliseconds").start()
    try:
        query.processAllAvailable()
        wait(lambda: [c.status for c in hf.checkpoints(location)] == ["complete"])
        assert len(cassandra.execute(f"SELECT id FROM {keyspace}.orders")) == 10
        cassandra.stop(kill=True)
        for number in range(1, 4):
            add_file(tmp_path / "in", number, range(10 * number, 10 * number + 10))
            query.processAllAvailable()
        assert query.isActive
        # A batch written during the outage replaces nothing newer: the same ids come again before the server is back.
        add_file(tmp_path / "in", 4, range(30, 40), minute=30)
        query.processAllAvailable()
        assert [c.status for c in hf.checkpoints(location)] == ["complete", *["lagging"] * 4]
        cassandra.start()
        wait(lambda: all(c.status == "complete" for c in hf.checkpoints(location)))
    finally:
        query.stop()
        if cassandra.down:
            cassandra.start()
    rows = {row["id"]: row["at"] for row in cassandra.execute(f"SELECT id, at FROM {keyspace}.orders")}
    assert sorted(rows) == list(range(40))
    assert {rows[i].minute for i in range(30, 40)} == {30}
    order = [int(line) for line in Path(sink.note).read_text().splitlines()]
    assert order == sorted(order)
    assert set(order) == set(range(5))
