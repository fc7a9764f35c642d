"""PostgresSink under a real Spark."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import holdfast as hf
from holdfast.connectors.postgres import logged
from holdfast.core.model import Outcome
from tests.integration.helpers import add_file, read_files
from tests.servers.postgres import PostgresServer, execute, left_behind

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("mode", ["ledger", "log", "two-phase", "upsert"])
def test_two_checkpoints_of_three_partitions_arrive_once(
    spark: SparkSession, postgres: PostgresServer, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"upsert": {"mode": mode, "key": ["id"]}, "log": {"stage": "log"}}.get(mode, {"mode": mode})
    if mode == "log":
        # As speculation does, or an executor that was given up and lives: the same task twice, at the same time.
        monkeypatch.setattr(logged, "commit", twice)
    dsn = postgres.new_database()
    add_file(tmp_path / "in", 0, range(50))
    add_file(tmp_path / "in", 1, range(50, 100))
    frame = read_files(spark, tmp_path / "in").repartition(3)
    for _ in range(2):  # the second start has nothing to do
        sink = hf.PostgresSink(dsn, "orders", create=True, **options)
        writer = hf.write_stream(frame, sink, name="orders", checkpoint_location=str(tmp_path / "checkpoint"))
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
    assert [row[0] for row in execute(dsn, "SELECT id FROM orders ORDER BY id")] == list(range(100))
    types = execute(dsn, "SELECT pg_typeof(id)::text, pg_typeof(word)::text, pg_typeof(at)::text FROM orders LIMIT 1")
    assert types == [("bigint", "text", "timestamp with time zone")]
    statistics = hf.checkpoints(str(tmp_path / "checkpoint"))
    assert [(c.status, c.rows, c.subtasks) for c in statistics] == [("complete", 50, 3), ("complete", 50, 3)]
    assert left_behind(dsn) == []


def twice(
    ledger: Any, run: Any, checkpoint_id: int, handles: Sequence[Any], known: int, part: str, tasks: Any
) -> Outcome:
    deliver = logged.Deliver(ledger, run, checkpoint_id, known, part, 1)
    outcomes = tasks.map(deliver, [list(handles)] * 2)
    assert sorted(outcomes) == [Outcome.ALREADY_COMMITTED, Outcome.COMMITTED]
    return Outcome.COMMITTED


def test_columns_of_every_kind_come_from_spark(spark: SparkSession, postgres: PostgresServer, tmp_path: Path) -> None:
    dsn = postgres.new_database()
    execute(
        dsn,
        "CREATE TABLE t (id int, amount numeric(12,2), doc jsonb, u uuid, day date, at timestamptz, local timestamp, "
        "tags text[], raw bytea, ok boolean, f real, nothing text, took interval)",
    )
    add_file(tmp_path / "in", 0, range(3))
    frame = read_files(spark, tmp_path / "in").selectExpr(
        "cast(id as int) id", "cast(id * 1.5 as decimal(12,2)) amount", "to_json(struct(id, word)) doc",
        "'12345678-9abc-def0-1234-56789abcdef0' u", "cast(at as date) day", "at", "cast(at as timestamp_ntz) local",
        "array(word, null) tags", "cast(word as binary) raw", "id > 0 ok", "cast(id as float) f", "null nothing",
        "interval '1' day took",
    )  # fmt: skip
    for number, mode in enumerate(["ledger", "two-phase"]):
        writer = hf.write_stream(
            frame,
            hf.PostgresSink(dsn, "t", mode=mode, name=f"sink-{number}"),
            name=f"types-{number}",
            checkpoint_location=str(tmp_path / f"checkpoint-{number}"),
        )
        assert writer.trigger(availableNow=True).start().awaitTermination(120)
    found = execute(
        dsn,
        "SELECT count(*), sum(amount)::text, min(doc ->> 'word'), count(DISTINCT u), min(tags[1]), bool_or(ok), "
        "max(took) = interval '1 day' FROM t",
    )
    assert found == [(6, "9.00", "w0", 1, "w0", True, True)]


@pytest.mark.parametrize("mode", ["ledger", "two-phase"])
def test_a_server_that_is_away_for_a_while_does_not_end_a_query_with_the_default_retry(
    spark: SparkSession, tmp_path: Path, mode: str
) -> None:
    server = PostgresServer(fsync="off")
    server.start()
    try:
        dsn = server.new_database()
        add_file(tmp_path / "in", 0, range(10))
        frame = read_files(spark, tmp_path / "in").repartition(2)
        sink = hf.PostgresSink(dsn, "orders", mode=mode, create=True)
        writer = hf.write_stream(frame, sink, name="away", checkpoint_location=str(tmp_path / "checkpoint"))
        query = writer.trigger(processingTime="0 seconds").start()
        wait_until(query, lambda: counted(dsn) == 10)
        server.stop(kill=True)
        add_file(tmp_path / "in", 1, range(10, 20))
        away = time.monotonic() + 12  # longer than one attempt goes on trying to connect
        while time.monotonic() < away:
            assert query.isActive, query.exception()
            time.sleep(0.5)
        server.start()
        wait_until(query, lambda: counted(dsn) == 20)
        add_file(tmp_path / "in", 2, range(20, 30))
        wait_until(query, lambda: counted(dsn) == 30)
        query.stop()
        assert [row[0] for row in execute(dsn, "SELECT id FROM orders ORDER BY id")] == list(range(30))
        assert left_behind(dsn) == []
    finally:
        server.close()


def counted(dsn: str) -> int:
    return int(execute(dsn, "SELECT count(*) FROM orders")[0][0]) if exists(dsn) else 0


def exists(dsn: str) -> bool:
    return execute(dsn, "SELECT to_regclass('orders')") != [(None,)]


def wait_until(query: StreamingQuery, done: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert query.isActive, query.exception()
        assert time.monotonic() < deadline, "rows do not arrive"
        time.sleep(0.2)
