"""PostgresSink, mode upsert: the last row of a key wins, whatever order and however often rows come (I1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, RowError
from tests.integration.pg import Query, batch
from tests.servers.postgres import PostgresServer, execute

SCHEMA = pa.schema([("k", pa.string()), ("Version", pa.int64()), ("v", pa.string())])


@pytest.fixture
def query(postgres: PostgresServer, tmp_path: Path) -> Query:
    return Query(tmp_path, postgres.new_database(), schema=SCHEMA)


def values(*given: tuple[str | None, int | None, str]) -> list[dict[str, Any]]:
    return [{"k": k, "Version": version, "v": v} for k, version, v in given]


def test_i1_the_largest_order_by_wins_within_and_between_subtasks_and_checkpoints(query: Query) -> None:
    run = query.start(mode="upsert", key=["k"], order_by="Version")
    run.run(0, batch(values(("a", 2, "a2"), ("a", 1, "a1")), values(("a", 3, "a3"), ("b", 1, "b1")), schema=SCHEMA))
    assert query.select() == [("a", 3, "a3"), ("b", 1, "b1")]
    run.run(1, batch(values(("a", 1, "late"), ("b", 1, "equal")), values(("c", None, "c")), schema=SCHEMA))
    assert query.select() == [("a", 3, "a3"), ("b", 1, "equal"), ("c", None, "c")]
    run.run(2, batch(values(("c", 0, "c0"), ("a", None, "none")), schema=SCHEMA))
    run.close()
    assert query.select() == [("a", 3, "a3"), ("b", 1, "equal"), ("c", 0, "c0")]


def test_i1_of_equal_order_by_the_row_written_last_wins(query: Query) -> None:
    run = query.start(mode="upsert", key=["k"], order_by="Version")
    first = values(*[("a", 1, f"first {n}") for n in range(5)])
    run.run(0, batch(first, values(("a", 1, "second"), ("a", 1, "last")), schema=SCHEMA))
    run.close()
    assert query.select() == [("a", 1, "last")]


def test_i1_without_order_by_two_rows_of_a_key_are_an_error_before_the_decision(query: Query) -> None:
    run = query.start(mode="upsert", key=["k"])
    run.run(0, batch(values(("a", 1, "x"), ("b", 1, "x")), schema=SCHEMA))
    run.run(1, batch(values(("a", 2, "y")), schema=SCHEMA))
    with pytest.raises(RowError, match=r"checkpoint 2 has several rows with key k=a.*order_by='column'"):
        run.run(2, batch(values(("a", 3, "z"), ("c", 3, "z")), values(("a", 4, "z")), schema=SCHEMA))
    assert run.coordinator.pending == []
    assert query.select() == [("a", 2, "y"), ("b", 1, "x")]
    assert query.leftovers == []


def test_a_row_without_a_key_is_an_error(query: Query) -> None:
    run = query.start(mode="upsert", key=["k"])
    with pytest.raises(RowError, match="no value in key column 'k'"):
        run.run(0, batch(values((None, 1, "x")), schema=SCHEMA))


def test_the_table_needs_a_unique_index_on_the_key(query: Query) -> None:
    execute(query.dsn, 'CREATE TABLE t (k text, "Version" bigint, v text)')
    with pytest.raises(ConfigError, match=r"no unique or exclusion constraint.*needs a unique index on \(k, Version\)"):
        query.start(mode="upsert", key=["k", "Version"])
    execute(query.dsn, 'CREATE UNIQUE INDEX ON t (k, "Version")')
    run = query.start(mode="upsert", key=["k", "Version"])
    run.run(0, batch(values(("a", 1, "x"), ("a", 2, "y")), schema=SCHEMA))
    run.run(1, batch(values(("a", 2, "z")), schema=SCHEMA))
    run.close()
    assert query.select() == [("a", 1, "x"), ("a", 2, "z")]


def test_a_table_of_nothing_but_keys_and_an_order_that_has_no_order(query: Query) -> None:
    query.local.schema = pa.schema([("k", pa.string())])
    run = query.start(mode="upsert", key=["k"])
    for checkpoint in range(2):
        run.run(checkpoint, batch([{"k": "a"}], schema=query.local.schema))
    run.close()
    assert query.select() == [("a",)]
    execute(query.dsn, "CREATE TABLE j (k text PRIMARY KEY, o json)")
    query.local.schema = pa.schema([("k", pa.string()), ("o", pa.string())])
    with pytest.raises(ConfigError, match="could not identify an ordering operator for type json"):
        query.start(query.sink("j", mode="upsert", key=["k"], order_by="o", name="j"))


@pytest.mark.parametrize("option", [{"key": ["nokey"]}, {"key": ["k"], "order_by": "norder"}])
def test_key_and_order_by_must_be_columns(query: Query, option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="must be columns of the DataFrame; no"):
        query.start(mode="upsert", **option)
