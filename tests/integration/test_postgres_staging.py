"""Staging tables are made once and stay: no churn, no row lost, nothing that a backup or a subscriber trips over."""

from __future__ import annotations

import os
import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from holdfast.connectors.postgres import stages
from holdfast.core.model import Outcome
from holdfast.errors import InjectedFault
from holdfast.sinks.subtask import make_task
from holdfast.testing.local import PickledTasks, armed
from tests.integration.pg import Query, as_it_was, batch, rows
from tests.servers.postgres import PASSWORD, PostgresServer, binaries, execute

LEDGER, UPSERT = {"mode": "ledger"}, {"mode": "upsert", "key": ["id"], "order_by": "name"}
appending = pytest.mark.parametrize("options", [LEDGER, UPSERT], ids=["ledger", "upsert"])
CATALOG = "SELECT oid, relname FROM pg_class WHERE relnamespace = '_holdfast'::regnamespace ORDER BY 1"
STAGES = "SELECT relname FROM pg_class WHERE relname ~ '^(stage|raw)_' AND relkind = 'r' ORDER BY 1"


@pytest.fixture
def query(postgres: PostgresServer, tmp_path: Path) -> Query:
    return Query(tmp_path / "checkpoint", postgres.new_database())


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every table that has a row has grown."""
    monkeypatch.setattr(stages, "LARGE", 1)


def prepare(run: Any, *partitions: Any, checkpoint: int = 0) -> list[Any]:
    reports = batch(*partitions).write(run.info, run.sinks, checkpoint, 0)
    return [c.data for report in reports for c in report.committables]


@appending
def test_nothing_is_made_or_dropped_from_one_checkpoint_to_the_next(query: Query, options: dict[str, Any]) -> None:
    run = query.start(**options)
    run.run(0, batch(rows(0), rows(1)))
    before = query.select(CATALOG)
    for checkpoint in range(1, 6):
        run.run(checkpoint, batch(rows(2 * checkpoint), rows(2 * checkpoint + 1)))
    run.close()
    again = query.start(**options)
    again.run(6, batch(rows(12)))
    again.close()
    assert query.select(CATALOG) == before
    assert len(query.select(STAGES)) == 2, "one to be moved while the other is written"
    assert query.ids() == list(range(13))


@appending
@pytest.mark.usefixtures("small")
def test_a_staging_table_that_has_grown_is_emptied_and_used_again(query: Query, options: dict[str, Any]) -> None:
    run = query.start(**options)
    for checkpoint in range(6):
        run.run(checkpoint, batch(rows(2 * checkpoint), rows(2 * checkpoint + 1)))
    run.close()
    names = [name for (name,) in query.select(STAGES)]
    assert len(names) == 2
    for name in names:
        assert query.select(f"SELECT count(*) FROM _holdfast.{name}") == [(0,)]
    assert query.ids() == list(range(12))


@pytest.mark.usefixtures("small")
def test_rows_that_are_decided_or_another_drivers_are_never_emptied_away(query: Query) -> None:
    run = query.start()
    (sink,) = run.sinks
    decided = prepare(run, rows(1), rows(2))
    (stage,) = {c["table"] for c in decided}
    sink.recover("orders", run.info.generation, {0: decided})
    assert query.select(f"SELECT count(*) FROM _holdfast.{stage}") == [(2,)]
    assert sink._place.rows != stage, "the next tasks write elsewhere"
    # Another driver takes over while this one is paused; then it wakes up.
    newer, info = query.sink(), replace(run.info, generation=run.info.generation + 1, last_decided=0)
    newer.open(info)
    newer.recover("orders", info.generation, {0: decided})
    (report,) = batch(rows(3)).write(info, [newer], 1, 0)
    theirs = [c.data for c in report.committables]
    sink.recover("orders", run.info.generation, {0: decided})
    assert sink.commit(0, decided, PickledTasks()) is Outcome.COMMITTED
    sink.recover("orders", run.info.generation, {})
    assert newer.commit(1, theirs, PickledTasks()) is Outcome.COMMITTED
    newer.close()
    run.close()
    assert query.ids() == [1, 2, 3]
    assert query.leftovers == []


@pytest.mark.usefixtures("small")
def test_a_task_that_is_still_writing_keeps_its_table(query: Query) -> None:
    run = query.start()
    (sink,) = run.sinks
    writer = sink.begin(make_task(run.info, sink.name, 0, 0, 0, 0))
    sink.write(writer, pa.RecordBatch.from_pylist(rows(1), schema=query.local.schema))
    stage = sink._place.rows
    writer._execute("SELECT 1")  # so that its COPY is over
    sink.recover("orders", run.info.generation, {})
    assert sink._place.rows == stage or query.select(f"SELECT 1 FROM _holdfast.{stage}") == []
    data = writer.prepare()
    assert sink.commit(0, [data], PickledTasks()) is Outcome.COMMITTED
    run.close()
    assert query.ids() == [1]


@pytest.mark.usefixtures("small")
def test_nothing_is_made_while_a_checkpoint_is_moved_and_the_next_one_written(query: Query) -> None:
    run = query.start()
    before = query.select(CATALOG)
    (sink,) = run.sinks
    for checkpoint in range(4):
        data = prepare(run, rows(checkpoint), checkpoint=checkpoint)
        sink.recover("orders", run.info.generation, {checkpoint: data})  # as the next batch does when it begins
        later = prepare(run, rows(10 + checkpoint), checkpoint=checkpoint + 10)
        assert {c["table"] for c in data}.isdisjoint(c["table"] for c in later)
        sink.commit(checkpoint, data, PickledTasks())
        sink.recover("orders", run.info.generation, {})
    run.close()
    assert query.ids() == list(range(4))
    assert [name for _, name in query.select(CATALOG)] == [name for _, name in before]


@appending
@pytest.mark.usefixtures("small")
def test_a_backup_that_reads_for_hours_holds_nothing_up(query: Query, options: dict[str, Any]) -> None:
    """pg_dump has a lock on every table for as long as it runs, so none of these can be emptied."""
    run = query.start(**options)
    run.run(0, batch(rows(0)))
    with psycopg.connect(query.dsn) as backup:
        for (name,) in query.select(STAGES):
            backup.execute(f"LOCK TABLE _holdfast.{name} IN ACCESS SHARE MODE")
        for checkpoint in range(1, 8):
            run.run(checkpoint, batch(rows(checkpoint)))
        assert query.ids() == list(range(8))
        assert len(query.select(STAGES)) <= 4, "it goes on in new ones, which are emptied"
    for checkpoint in range(8, 12):
        run.run(checkpoint, batch(rows(checkpoint)))
    run.close()
    assert query.ids() == list(range(12))
    assert len(query.select(STAGES)) <= 4
    assert query.leftovers == []


@pytest.mark.parametrize("version", [1, 2])
def test_what_an_earlier_version_left_is_finished_or_dropped_by_a_start(query: Query, version: int) -> None:
    run = query.start()
    run.run(0, batch(rows(0)))
    data = prepare(run, rows(1), rows(2), checkpoint=1)
    undecided = prepare(run, rows(9), checkpoint=2)
    token = make_task(run.info, "postgres-t", 1, 0, 0, 0).token
    for committable in undecided:
        as_it_was(query, committable, token, version)
    old = [as_it_was(query, committable, token, version) for committable in data]
    other = make_task(run.info, "another sink", 1, 0, 0, 0).token
    execute(query.dsn, f"CREATE TABLE _holdfast.stage_{'0' * 32} (n int)")
    execute(query.dsn, f"COMMENT ON TABLE _holdfast.stage_{'0' * 32} IS '{other}'")
    sink, info = query.sink(), replace(run.info, generation=run.info.generation + 1, last_decided=1)
    sink.open(info)
    sink.recover("orders", info.generation, {1: old})
    assert len(query.leftovers) == 3, "what is decided, and what is another's"
    assert [b.num_rows for b in sink.rows_of(old)] == [1, 1]
    assert sink.still_prepared(old) == old
    assert sink.commit(1, old, PickledTasks()) is Outcome.COMMITTED
    assert sink.commit(1, old, PickledTasks()) is Outcome.ALREADY_COMMITTED
    sink.close()
    assert query.ids() == [0, 1, 2]
    assert query.leftovers == [f"stage_{'0' * 32}"]


def test_columns_that_change_between_starts_get_a_staging_table_of_their_own(query: Query) -> None:
    run = query.start()
    with pytest.raises(InjectedFault), armed("decision=lost"):
        run.run(0, batch(rows(1)))
    execute(query.dsn, "ALTER TABLE t ADD COLUMN more int DEFAULT 7, ALTER name TYPE varchar(9)")
    run = query.start()
    run.run(0, batch(rows(1)))
    run.run(1, batch(rows(2)))
    run.close()
    assert query.select() == [(1, "n1", 7), (2, "n2", 7)]
    assert len(query.select(STAGES)) == 4


def test_texts_to_cast_pass_through_an_unlogged_table_in_both_ways(query: Query) -> None:
    execute(query.dsn, "CREATE TABLE t (id bigint, name inet)")
    for checkpoint, mode in enumerate(["ledger", "two-phase"]):
        run = query.start(create=False, mode=mode)
        run.run(checkpoint, batch([{"id": 0, "name": "10.0.0.1"}], [{"id": 1, "name": None}]))
        run.close()
    found = query.select("SELECT relpersistence::text FROM pg_class WHERE relname ~ '^raw_' AND relkind = 'r'")
    assert found == [("u",)]
    assert query.select("SELECT DISTINCT relpersistence::text FROM pg_class WHERE relname ~ '^stage_'") == [("p",)]
    assert query.select("SELECT id, count(*) FROM t GROUP BY 1 ORDER BY 1") == [(0, 2), (1, 2)]


def test_texts_to_cast_keep_their_order_in_an_upsert(postgres: PostgresServer, tmp_path: Path) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("at", pa.int64())])
    query = Query(tmp_path / "checkpoint", postgres.new_database(), schema=schema)
    execute(query.dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name inet, at bigint)")
    run = query.start(create=False, mode="upsert", key=["id"], order_by="at")
    values = [{"id": 1, "name": f"10.0.0.{n}", "at": 7} for n in range(6)]
    run.run(0, batch(values[:2], values[2:], schema=schema))
    run.close()
    assert query.select("SELECT id, host(name) FROM t") == [(1, "10.0.0.5")]


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("mode", ["ledger", "two-phase"])
def test_pg_dump_beside_a_running_pipeline_never_fails(query: Query, tmp_path: Path, mode: str) -> None:
    """Of 25 dumps, 8 failed when each checkpoint made and dropped tables."""
    run = query.start(mode=mode)
    run.run(0, batch(rows(0)))
    stop, failures, done = threading.Event(), list[str](), list[int]()

    def dump() -> None:
        environment = {**os.environ, "PGPASSWORD": PASSWORD}
        while len(done) < 8:
            command = [str(binaries() / "pg_dump"), "-Fc", "-f", str(tmp_path / "dump"), "-d", query.dsn]
            ran = subprocess.run(command, capture_output=True, text=True, env=environment)
            done.append(ran.returncode)
            failures.extend([ran.stderr] if ran.returncode else [])
        stop.set()

    thread = threading.Thread(target=dump)
    thread.start()
    checkpoint = 0
    while not stop.is_set():
        checkpoint += 1
        run.run(checkpoint, batch(rows(2 * checkpoint), rows(2 * checkpoint + 1)))
    thread.join()
    run.close()
    assert failures == [] and done == [0] * 8
    assert len(query.ids()) == 2 * checkpoint + 1
