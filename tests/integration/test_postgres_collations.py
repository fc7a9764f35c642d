"""Columns that are compared otherwise than their type is: a staged value is compared as the column says, too.

The wheel's servers know the order of bytes only, so this one is Debian's, which is built with ICU.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import RowError
from holdfast.sinks.deletes import DELETED
from holdfast.testing.local import PickledTasks
from tests.integration.pg import Query, batch, settle
from tests.servers.debian import program
from tests.servers.postgres import PostgresServer, execute

SCHEMA = pa.schema([("k", pa.string()), ("at", pa.string()), ("v", pa.int64())])


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    program("pg_ctlcluster", "postgresql")
    newest = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: int(folder.parent.name))
    made = PostgresServer(installed=newest, fsync="off")
    made.start()
    yield made
    made.close()


@pytest.fixture
def query(server: PostgresServer, tmp_path: Path) -> Query:
    made = Query(tmp_path, server.new_database(), schema=SCHEMA)
    execute(made.dsn, "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    return made


def row(k: str, at: str, v: int) -> dict[str, Any]:
    return {"k": k, "at": at, "v": v}


@pytest.mark.parametrize("together", [True, False], ids=["one checkpoint", "two"])
@pytest.mark.parametrize(
    "kind",
    [
        'text COLLATE "C"',
        'text COLLATE "en-x-icu"',
        'varchar(3) COLLATE "en-x-icu"',
        'char(3) COLLATE "en-x-icu"',
        "word",
    ],
)
def test_i1_text_is_ordered_by_its_bytes_within_a_checkpoint_as_well_as_over_several(
    query: Query, kind: str, together: bool
) -> None:
    """By bytes "B" is before "a", in a dictionary after it."""
    execute(query.dsn, 'CREATE DOMAIN word AS text COLLATE "en-x-icu"')
    execute(query.dsn, f"CREATE TABLE t (k text PRIMARY KEY, at {kind}, v bigint)")
    run = query.start(create=False, mode="upsert", key=["k"], order_by="at")
    upper, lower = row("x", "B", 1), row("x", "a", 2)
    checkpoints = [[upper, lower]] if together else [[upper], [lower]]
    for number, changes in enumerate(checkpoints):
        run.run(number, batch(changes, schema=SCHEMA))
    settle(run)
    run.close()
    assert query.select("SELECT trim(at) FROM t") == [("a",)]


@pytest.mark.parametrize("deleting", [False, True], ids=["rows", "deletes"])
def test_i1_a_database_of_another_order_than_bytes_changes_nothing(
    server: PostgresServer, tmp_path: Path, deleting: bool
) -> None:
    """The table is made by create=True, so its texts are compared as the database says."""
    dsn = server.new_database()
    database = f"{dsn.rpartition('/')[2]}_icu"
    execute(dsn, f"CREATE DATABASE {database} TEMPLATE template0 LOCALE_PROVIDER icu ICU_LOCALE 'en'")
    query = Query(tmp_path, f"{dsn.rpartition('/')[0]}/{database}", schema=SCHEMA)
    assert query.select("SELECT 'B' > 'a'") == [(True,)]
    schema = pa.schema([*SCHEMA, (DELETED, pa.bool_())]) if deleting else SCHEMA
    query = Query(tmp_path, query.dsn, schema=schema)
    options: dict[str, Any] = {"delete_when": "true"} if deleting else {}
    run = query.start(mode="upsert", key=["k"], order_by="at", **options)
    x, y = [("a", False), ("B", True)], [("a", True), ("Z", True), ("B", False)]
    for number, (k, at, gone) in enumerate([("x", *change) for change in x] + [("y", *change) for change in y]):
        change = {**row(k, at, number), **({DELETED: gone} if deleting else {})}
        run.run(number, batch([change], schema=schema))
        settle(run)
    run.close()
    # "B" and "Z" are older than "a": the delete of x does nothing, and the row of y stays away.
    wanted = [("x", "a", 0)] if deleting else [("x", "a", 0), ("y", "a", 2)]
    assert query.select("SELECT k, at, v FROM t ORDER BY 1") == wanted


def test_rule_16_what_an_earlier_version_decided_is_committed_in_the_order_it_knew(query: Query) -> None:
    execute(query.dsn, 'CREATE TABLE t (k text PRIMARY KEY, at text COLLATE "en-x-icu", v bigint)')
    run = query.start(create=False, mode="upsert", key=["k"], order_by="at")
    (sink,) = run.sinks
    for number, (at, last) in enumerate([("a", "a"), ("B", "B"), ("a", "a")]):
        (report,) = batch([row("x", at, number)], schema=SCHEMA).write(run.info, run.sinks, number, 0)
        data = [{**c.data} for c in report.committables]
        assert data[0]["by_bytes"]
        if number == 1:
            del data[0]["by_bytes"]
        sink.commit(number, data, PickledTasks())
        assert query.select("SELECT at FROM t") == [(last,)]
    run.close()


def test_i1_keys_that_the_column_takes_for_one_are_one_row(query: Query) -> None:
    """Decided as two, they would fail at every commit: one statement may not change a row twice."""
    execute(query.dsn, "CREATE TABLE t (k text COLLATE ci PRIMARY KEY, at text, v bigint)")
    run = query.start(create=False, mode="upsert", key=["k"], order_by="at")
    run.run(0, batch([row("Key", "1", 1)], [row("KEY", "3", 3), row("key", "2", 2)], schema=SCHEMA))
    settle(run)
    run.run(1, batch([row("kEy", "2", 4)], schema=SCHEMA))
    settle(run)
    run.close()
    assert query.select("SELECT at, v FROM t") == [("3", 3)]


def test_d1_two_rows_of_such_a_key_without_an_order_are_refused_before_the_decision(query: Query) -> None:
    execute(query.dsn, "CREATE TABLE t (k text COLLATE ci PRIMARY KEY, at text, v bigint)")
    run = query.start(create=False, mode="upsert", key=["k"])
    with pytest.raises(RowError, match=r"has several rows with key k=[kK]ey"):
        run.run(0, batch([row("Key", "1", 1)], [row("key", "1", 2)], schema=SCHEMA))
    assert run.coordinator.pending == [] and run.coordinator.complete_through is None
    run.close()


def test_d1_a_check_and_a_partition_are_asked_as_the_column_says(query: Query) -> None:
    execute(
        query.dsn,
        "CREATE TABLE t (k text COLLATE ci, at text COLLATE \"en-x-icu\", v bigint, CHECK (k <> 'NO')) "
        "PARTITION BY RANGE (at)",
    )
    execute(query.dsn, "CREATE TABLE t_all PARTITION OF t FOR VALUES FROM ('a') TO ('c')")
    run = query.start(create=False)
    for number, bad in enumerate((row("no", "a", 1), row("x", "C", 1))):
        with pytest.raises(RowError):
            run.run(number, batch([bad], schema=SCHEMA))
        assert run.coordinator.pending == [] and run.coordinator.complete_through is None
    run.run(0, batch([row("x", "B", 1)], schema=SCHEMA))
    settle(run)
    run.close()
    assert query.select("SELECT at FROM t") == [("B",)]
