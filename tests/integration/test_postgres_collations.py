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
@pytest.mark.parametrize(("collation", "last"), [("C", "a"), ("en-x-icu", "B")])
def test_i1_text_is_ordered_as_the_column_says_within_a_checkpoint_as_well_as_over_several(
    query: Query, collation: str, last: str, together: bool
) -> None:
    """By bytes "B" is before "a", in a dictionary after it."""
    execute(query.dsn, f'CREATE TABLE t (k text PRIMARY KEY, at text COLLATE "{collation}", v bigint)')
    run = query.start(create=False, mode="upsert", key=["k"], order_by="at")
    upper, lower = row("x", "B", 1), row("x", "a", 2)
    checkpoints = [[upper, lower]] if together else [[upper], [lower]]
    for number, changes in enumerate(checkpoints):
        run.run(number, batch(changes, schema=SCHEMA))
    settle(run)
    run.close()
    assert query.select("SELECT at FROM t") == [(last,)]


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
