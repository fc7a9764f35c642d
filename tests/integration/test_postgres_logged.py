"""PostgresSink with stage="log": rows wait in the checkpoint location, and one task copies a whole checkpoint."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.connectors.postgres.ledger import Ledger
from holdfast.connectors.postgres.logged import Deliver, _name
from holdfast.core.model import Outcome
from holdfast.errors import (
    ConfigError,
    InjectedFault,
    LostError,
    RecordError,
    RestoredEndpointError,
    RowError,
    SinkError,
)
from holdfast.testing.local import PickledTasks, armed
from tests.integration.pg import SCHEMA, Query, batch, rows, settle
from tests.integration.test_postgres_decided import COLLISIONS, prepare
from tests.integration.test_postgres_proofs import LONG
from tests.servers.postgres import PostgresServer, execute

LOG: dict[str, Any] = {"stage": "log"}
KEYED = "CREATE TABLE t (id bigint PRIMARY KEY, name text)"


@pytest.fixture
def query(postgres: PostgresServer, tmp_path: Path) -> Query:
    return Query(tmp_path / "checkpoint", postgres.new_database())


def logged_files(query: Query) -> list[Path]:
    return sorted(Path(query.local.folder).glob("holdfast/wal/**/*.arrow"))


def deliveries(run: Any, data: list[Any], numbers: tuple[int, ...]) -> tuple[list[Deliver], list[Any]]:
    """What tasks of the driver would be, for a checkpoint's rows."""
    ledger = Ledger(run.sinks[0].server, "_holdfast", run.sinks[0].name)
    return [Deliver(ledger, run.info, 0, -1, "", number) for number in numbers], sorted(
        data, key=lambda c: c["subtask"]
    )


# -- what a task can prove by itself ----------------------------------------------------------------------------------

#: what makes the table, and what the error says of it
UNPROVABLE = [
    ("(id bigint, name json)", "column 'name' is of type json"),
    ("(id bigint, name jsonb)", "column 'name' is of type jsonb"),
    ("(id bigint, name inet)", "column 'name' is of type inet"),
    ("(id numeric, name text)", "column 'id' is of type numeric"),
    ("(id bigint, name short)", "column 'name' is of a domain"),
    ("(id bigint, name text, CONSTRAINT few CHECK (id < 5))", "constraint 'few' is checked"),
    ("(id bigint, name text, n bigint GENERATED ALWAYS AS (10 / id) STORED)", "column 'n' is computed"),
    ("(id bigint, name text) PARTITION BY RANGE (id)", "it is partitioned"),
    ("PARTITION OF whole FOR VALUES IN (1)", "it is a partition"),
    ("(id bigint, name text); CREATE INDEX i ON %s (lower(name))", "index '.*' has an expression"),
    ("(id bigint, name text); CREATE INDEX i ON %s (id) WHERE 1 / id > 0", "index '.*' has an expression"),
    ("(id bigint, name text); CREATE INDEX i ON %s USING brin (name)", r"index '.*' \(brin\)"),
    ("(id bigint, name char(9000) UNIQUE)", r"index '.*' \(btree\)"),
    ("(id bigint, name char(900000))", "columns name of type char are very long"),
    ("(id bigint, name text); ALTER TABLE %s ALTER name SET STORAGE PLAIN", "storage PLAIN"),
    (f"(id bigint, name text, {', '.join(f'c{n} text' for n in range(300))})", "302 columns may be too many"),
    ("(id bigint, name text); CREATE RULE r AS ON INSERT TO %s DO ALSO SELECT 1", "it has rules"),
]


def test_rule_11_a_table_whose_rows_only_the_server_can_judge_is_refused_at_the_start(query: Query) -> None:
    execute(
        query.dsn, "CREATE DOMAIN short AS varchar(3); CREATE TABLE whole (id bigint, name text) PARTITION BY LIST (id)"
    )
    for number, (table, why) in enumerate(UNPROVABLE):
        name = f"t{number}"
        body, _, more = table.partition(";")
        execute(query.dsn, f"CREATE TABLE {name} {body};" + more.replace("%s", name).replace("INDEX i ", "INDEX "))
        with pytest.raises(ConfigError, match=rf"{why}.*stage='server'") as caught:
            query.start(query.sink(name, **LOG))
        assert f"does not go with table public.{name}" in str(caught.value)


def test_rule_11_a_database_that_is_not_utf8_is_refused(query: Query, postgres: PostgresServer) -> None:
    execute(postgres.dsn(), "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    query.dsn = query.dsn.rpartition("/")[0] + "/latin"
    with pytest.raises(ConfigError, match="encoding is LATIN1, not UTF8"):
        query.start(**LOG)


def test_what_only_the_server_could_judge_is_refused_before_the_table_is_made(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    schema = pa.schema([("id", pa.int64()), ("n", pa.decimal128(9, 2))])
    query = Query(tmp_path, postgres.new_database(), schema=schema)
    with pytest.raises(ConfigError, match="column 'n' is of type numeric"):
        query.start(**LOG)
    assert query.select("SELECT to_regclass('t')") == [(None,)]


def test_by_default_rows_wait_in_the_log_where_that_refuses_nothing(query: Query) -> None:
    """Where a task could not tell, or would refuse a long text that an index may take, they wait at the server."""
    execute(query.dsn, "CREATE DOMAIN word AS text")
    tables = {
        "(id bigint PRIMARY KEY, name text)": "logged",
        "(id bigint, name text); CREATE INDEX ON %s USING hash (name)": "logged",
        "(id bigint, name text UNIQUE)": "staged",
        "(id numeric, name text)": "staged",
        "(id bigint, name word)": "staged",
        "(id bigint, name text, CHECK (id < 5))": "staged",
    }
    sinks = []
    for number, table in enumerate(tables):
        execute(query.dsn, f"CREATE TABLE t{number} " + table.replace("%s", f"t{number}"))
        sinks.append(hf.PostgresSink(query.dsn, f"t{number}"))
    run = query.start(*sinks)
    run.run(0, batch(rows(1), rows(2)))
    decided = run.coordinator._log.facts.decided[0]
    assert {sink.name: {c.data["kind"] for c in decided.of(sink.name)} for sink in sinks} == {
        f"postgres-t{number}": {kind} for number, kind in enumerate(tables.values())
    }
    long = {"id": 3, "name": "x" * 9000}  # a btree compresses it
    run.run(1, batch([long]))
    settle(run)
    assert [query.ids(f"t{number}") for number in range(len(tables))] == [[1, 2, 3]] * len(tables)


def test_by_default_rows_do_not_pass_an_object_store(query: Query) -> None:
    sink = hf.PostgresSink(query.dsn, "t")
    assert not sink.may_log("s3://bucket/checkpoint")
    assert sink.shared_paths("s3://bucket/checkpoint") == ()
    assert sink.shared_paths("/data/checkpoint") == ("/data/checkpoint",)
    assert hf.PostgresSink(query.dsn, "t", **LOG).may_log("s3://bucket/checkpoint")


def test_other_modes_have_no_such_stage() -> None:
    for mode in ("two-phase", "upsert"):
        with pytest.raises(ConfigError, match="stage='log' belongs to mode='ledger'"):
            hf.PostgresSink("postgresql://h/d", "t", mode=mode, key=["id"] if mode == "upsert" else (), **LOG)


@pytest.mark.parametrize(
    ("table", "bad", "message", "good"),
    [
        ("(id bigint, name text NOT NULL)", None, "column 'name' has a value that is null", ""),
        ("(id bigint, name varchar(3))", "abcd", "column 'name': 'abcd' has more than 3", "abc"),
        ("(id bigint, name text)", "a\0b", "column 'name' has a value that has a zero byte", "ab"),
        ("(id bigint, name text UNIQUE)", LONG[:2681], "more than the 2680 bytes .* index 't_name_key'", LONG[:2680]),
        ("(id bigint, name text, UNIQUE (id, name))", LONG[:2665], "more than the 2664 bytes .* index", LONG[:2664]),
        ("(id bigint, name char(9) UNIQUE)", "x" * 10, "has more than 9 characters", "x"),
        ("(id bigint, name text); CREATE INDEX ON t USING hash (name)", "\0", "zero byte", "x" * 9000),
    ],
    ids=["not null", "length", "zero byte", "index", "two columns", "char", "hash"],
)
def test_rule_11_a_value_that_the_table_would_not_take_is_refused_in_the_task(
    query: Query, table: str, bad: Any, message: str, good: str
) -> None:
    execute(query.dsn, f"CREATE TABLE t {table}")
    run = query.start(create=False, **LOG)
    with pytest.raises(RowError, match=message) as caught:
        run.run(0, batch([{"id": 1, "name": good}, {"id": 2, "name": bad}]))
    assert "sink 'postgres-t'" in str(caught.value) and len(str(caught.value)) < 600
    assert run.coordinator.pending == [] and logged_files(query) == []
    run = query.start(create=False, **LOG)
    run.run(0, batch([{"id": 1, "name": good}]))
    run.close()
    assert [row[1].rstrip() for row in query.select()] == [good]


# -- one transaction, whoever runs it ---------------------------------------------------------------------------------


@pytest.mark.parametrize("table", [KEYED, "CREATE TABLE t (id bigint, name text)"], ids=["key", "no key"])
def test_rule_9_the_delivering_task_may_run_twice_at_once(query: Query, table: str) -> None:
    execute(query.dsn, table)
    run = query.start(create=False, **LOG)
    data = prepare(run, rows(1, 2), rows(3))
    (deliver, _), handles = deliveries(run, data, (1, 1))
    outcomes: list[Any] = []
    with psycopg.connect(query.dsn) as blocker:
        # Both have begun, and are held up before their rows are there.
        blocker.execute("LOCK TABLE t IN EXCLUSIVE MODE")
        twins = [threading.Thread(target=lambda: outcomes.append(deliver(handles))) for _ in range(2)]
        for twin in twins:
            twin.start()
        waiting = (
            "SELECT count(*) FROM pg_locks l JOIN pg_class c ON c.oid = relation WHERE relname = 't' AND NOT granted"
        )
        while query.select(waiting) != [(2,)]:
            assert all(twin.is_alive() for twin in twins)
        blocker.commit()
    for twin in twins:
        twin.join()
    assert sorted(outcomes) == [Outcome.ALREADY_COMMITTED, Outcome.COMMITTED]
    assert deliver(handles) is Outcome.ALREADY_COMMITTED
    assert query.ids() == [1, 2, 3]
    assert query.select("SELECT checkpoint_id, row_count FROM _holdfast.ledger") == [(0, 3)]
    run.close()


@contextmanager
def paused(query: Query, run: Any, number: int) -> Iterator[psycopg.Connection[Any]]:
    """A task that has copied row 1 and was stopped before it could commit."""
    with psycopg.connect(query.dsn) as connection:
        name = _name(run.info, run.sinks[0].name, number)
        connection.execute(f"SET LOCAL application_name = '{name}'")
        connection.execute("INSERT INTO t VALUES (1, 'of a paused task')")
        yield connection


def test_a_task_that_is_paused_in_the_middle_is_ended_when_it_is_in_the_way(query: Query) -> None:
    execute(query.dsn, KEYED)
    run = query.start(create=False, lock_timeout=0.5, **LOG)
    data = prepare(run, rows(1), rows(2))
    (deliver,), handles = deliveries(run, data, (7,))
    with paused(query, run, 7) as twin:
        with pytest.raises(SinkError, match="longer than lock_timeout"):
            deliver(handles)
        assert twin.execute("SELECT 1").fetchone() == (1,), "it may yet commit, and is as good as this one"
        twin.rollback()
    with paused(query, run, 6) as earlier:
        with pytest.raises(SinkError, match="longer than lock_timeout"):
            deliver(handles)
        assert deliver(handles) is Outcome.COMMITTED
        with pytest.raises(psycopg.OperationalError):
            earlier.execute("SELECT 1")
        earlier.close()
    assert query.select() == [(1, "n1"), (2, "n2")]
    run.close()


def test_rule_15_an_older_copy_is_noticed_while_the_query_runs(query: Query) -> None:
    run = query.start(**LOG)
    for checkpoint in range(2):
        run.run(checkpoint, batch(rows(checkpoint)))
    settle(run)
    execute(query.dsn, "DELETE FROM _holdfast.ledger WHERE checkpoint_id > 0; DELETE FROM t WHERE id > 0")
    with pytest.raises(RestoredEndpointError, match="checkpoints 1 to 1 were committed"):
        run.run(2, batch(rows(2)))
        settle(run)
    assert query.ids() == [0]


def test_a_trigger_that_leaves_rows_out_does_so(query: Query) -> None:
    execute(query.dsn, KEYED)
    execute(query.dsn, "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'")
    execute(query.dsn, "CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW WHEN (NEW.id > 1) EXECUTE FUNCTION f()")
    run = query.start(create=False, **LOG)
    run.run(0, batch(rows(1, 2), rows(3)))
    run.close()
    assert query.ids() == [1] and query.select("SELECT row_count FROM _holdfast.ledger") == [(3,)]


# -- between decision and commit --------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["log", "server"])
def test_rule_16_each_checkpoint_is_committed_in_the_stage_it_was_decided_in(query: Query, first: str) -> None:
    other = {"log": "server", "server": "log"}[first]
    execute(query.dsn, "CREATE TABLE t (id bigint, name text); CREATE TABLE new (id bigint, name text)")
    run = query.start(query.sink(name="out", stage=first))
    with pytest.raises(InjectedFault), armed("decision=lost"):
        run.run(0, batch(rows(1), rows(2)))
    batch(rows(9)).write(run.info, run.sinks, 1, 0)  # by a task that nobody waits for
    run = query.start(query.sink("new", name="out", stage=other))
    run.run(0, batch(rows(1), rows(2)))
    with pytest.raises(InjectedFault), armed("decision=lost"):
        run.run(1, batch(rows(3)))
    run = query.start(query.sink("new", name="out", stage=first))
    run.run(1, batch(rows(3)))
    run.run(2, batch(rows(4)))
    run.close()
    assert query.ids() == [1, 2] and query.ids("new") == [3, 4]
    assert query.leftovers == [] and logged_files(query) == []


def test_rule_3_files_go_when_the_commit_is_recorded_and_those_of_nobody_at_the_next_start(query: Query) -> None:
    run = query.start(**LOG)
    kept: list[int] = []
    run.run(0, batch(rows(1), rows(2), prepared=lambda _: kept.append(len(logged_files(query)))))
    settle(run)
    assert kept == [2] and logged_files(query) == []
    data = prepare(run, rows(3), checkpoint=1)
    assert run.sinks[0].still_prepared(data) == data
    run = query.start(**LOG)
    assert logged_files(query) == [] and run.sinks[0].still_prepared(data) == []
    run.close()


def test_a_file_that_is_gone_is_lost_and_one_that_is_damaged_is_told(query: Query) -> None:
    run = query.start(**LOG)
    data = prepare(run, rows(1), rows(2, 22), rows(3))
    sealed = Path(run.info.location, data[1]["handle"])
    good = sealed.read_bytes()
    sealed.unlink()
    with pytest.raises(LostError, match=r"is missing: 2 rows of 1 subtasks") as error:
        run.sinks[0].commit(0, data, PickledTasks())
    assert list(error.value.lost) == [data[1]]
    sealed.write_bytes(good[:-9] + b"x" + good[-8:])
    with pytest.raises(RecordError, match="is damaged"):
        run.sinks[0].commit(0, data, PickledTasks())
    assert query.ids() == [], "a checkpoint is copied as a whole"
    sealed.write_bytes(good)
    assert run.sinks[0].commit(0, data, PickledTasks()) is Outcome.COMMITTED
    assert query.ids() == [1, 2, 3, 22]
    run.close()


@pytest.mark.parametrize(("tables", "there", "message"), COLLISIONS, ids=["unique", "foreign", "exclusion", "trigger"])
def test_rule_12_what_only_the_commit_can_refuse_names_the_constraint_and_its_rows_can_be_read(
    query: Query, tables: str, there: str, message: str
) -> None:
    execute(query.dsn, f"{tables}; {there}")
    run = query.start(create=False, **LOG)
    data = prepare(run, rows(1), rows(2, 3))
    with pytest.raises(RowError, match=rf"checkpoint 0 does not go into table public.t.*{message}.*holdfast resolve"):
        run.sinks[0].commit(0, data, PickledTasks())
    assert pa.Table.from_batches(list(run.sinks[0].rows_of(data))).to_pylist() == rows(1, 2, 3)
    run.close()


def resolve(query: Query, *options: object) -> Any:
    done = CliRunner().invoke(app, ["resolve", query.local.folder, *map(str, options)])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_d4_rows_given_up_are_in_the_report_and_are_sent_again_in_whatever_stage_the_sink_is_then(query: Query) -> None:
    execute(query.dsn, KEYED + "; INSERT INTO t VALUES (1, 'in the way')")
    run = query.start(create=False, **LOG)
    with pytest.raises(RowError, match="duplicate key"):
        run.run(0, batch(rows(1), rows(2)))
        settle(run)
    resolve(query, "--sink", "postgres-t", "--give-up", "--yes")
    run = query.start(create=False, **LOG)
    run.run(0, batch(rows(1), rows(2)))
    run.close()
    found = resolve(query, "--rows", 0, "--sink", "postgres-t")
    assert sorted(json.loads(line)["id"] for line in found.splitlines()) == [1, 2]
    execute(query.dsn, "DELETE FROM t")
    resolve(query, "--send-again", 0, "--sink", "postgres-t", "--yes")
    run = query.start(create=False, stage="server")
    with armed("commit.sink=lost"):
        run.run(1, batch(rows(3)))
    settle(run)
    run.close()
    assert query.select() == [(1, "n1"), (2, "n2"), (3, "n3")]
    parts = query.select("SELECT part, row_count FROM _holdfast.ledger WHERE checkpoint_id = 1 ORDER BY 1")
    assert parts == [("", 1), ("log", 2)]
    assert query.leftovers == []


def test_columns_that_are_new_are_added_with_the_rows(query: Query) -> None:
    wider = pa.schema([*SCHEMA, ("at", pa.timestamp("us", "UTC"))])
    execute(query.dsn, KEYED)
    query.local.schema = wider
    run = query.start(create=False, schema_change="evolve", **LOG)
    data = [c.data for r in batch(rows(1), schema=wider).write(run.info, run.sinks, 0, 0) for c in r.committables]
    assert query.select("SELECT count(*) FROM pg_attribute WHERE attrelid = 't'::regclass AND attname = 'at'") == [(0,)]
    assert run.sinks[0].commit(0, data, PickledTasks()) is Outcome.COMMITTED
    assert query.select() == [(1, "n1", None)]
    run.close()


def test_a_pattern_has_a_log_and_a_ledger_for_each_table(query: Query) -> None:
    execute(query.dsn, "CREATE TABLE t_a (id bigint, name text); CREATE TABLE t_b (id bigint, name text)")
    run = query.start(query.sink("t_{name}", name="out", **LOG))
    run.run(0, batch([{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]))
    run.run(1, batch([{"id": 3, "name": "b"}]))
    run.close()
    assert query.ids("t_a") == [1] and query.ids("t_b") == [2, 3]
    assert query.select("SELECT sink, max(checkpoint_id) FROM _holdfast.ledger GROUP BY 1 ORDER BY 1") == [
        ("out#t_a", 0),
        ("out#t_b", 1),
    ]
    assert logged_files(query) == []


def test_driver_and_tasks_must_share_the_log(query: Query) -> None:
    assert query.sink(**LOG).shared_paths("/ck/holdfast") == ("/ck/holdfast",)
    assert query.sink().shared_paths("/ck/holdfast") == ()
