"""Nothing that depends on the rows fails after the decision: the task proves it, by column and reason (rule 11, D1)."""

from __future__ import annotations

import datetime as dt
import random
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, RowError
from tests.integration.pg import Query, batch
from tests.servers.postgres import PostgresServer, execute

STRING, NUMBER, LIST = pa.string(), pa.int64(), pa.list_(pa.string())
CUT = "would be cut or rounded by type"
LONG = "".join(random.Random(7).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=9000))  # that no compression shortens
#: what makes the table, the Arrow type of column v, a value it refuses, what the error says, and one that it takes
REFUSED: list[tuple[str, pa.DataType, Any, str, Any]] = [
    ("CREATE TABLE t (v varchar(3))", STRING, "ab  ", "column 'v': 'ab  ' has more than 3 characters", "äöü"),
    ("CREATE TABLE t (v char(3))", STRING, "abc ", "column 'v'.*more than 3", "abc"),
    ("CREATE TABLE t (v varchar(3)[])", LIST, ["abcd"], "column 'v'.*more than 3", ["abc"]),
    ("CREATE TABLE t (v varchar(3)[])", LIST, ["abc "], "column 'v': 'abc ' has more than 3 characters", ["äöü", None]),
    ("CREATE TABLE t (v char(3)[])", LIST, ["a", "abcd"], "column 'v'.*more than 3", ["a"]),
    ("CREATE DOMAIN d AS varchar(3); CREATE TABLE t (v d[])", LIST, ["abcd"], "column 'v'.*more than 3", ["abc", None]),
    ("CREATE DOMAIN d AS char(3)[]; CREATE DOMAIN e AS d; CREATE TABLE t (v e)", LIST, ["abc "], "more than 3", ["ab"]),
    ("CREATE TABLE t (v bit(3))", STRING, "1011", f"column 'v'.*1011 {CUT} bit\\(3\\)", "101"),
    ("CREATE TABLE t (v bit(3))", STRING, "10", f"column 'v'.*10 {CUT} bit", "101"),
    ("CREATE TABLE t (v bit(3)[])", LIST, ["101", "1"], f"column 'v'.*{CUT} bit", ["101", None]),
    ("CREATE TABLE t (v varbit(3))", STRING, "1011", f"column 'v'.*1011 {CUT} bit varying", "10"),
    ("CREATE DOMAIN d AS bit(3); CREATE TABLE t (v d)", STRING, "1011", f"column 'v'.*{CUT} d", "101"),
    ("CREATE DOMAIN d AS bit(3); CREATE TABLE t (v d[])", LIST, ["1011"], f"column 'v'.*{CUT} d", ["101"]),
    ("CREATE DOMAIN d AS numeric(5,1); CREATE TABLE t (v d[])", LIST, ["1.25"], f"column 'v'.*{CUT} d", ["1.50", None]),
    ("CREATE DOMAIN d AS numeric(5,-2); CREATE TABLE t (v d[])", LIST, ["150"], f"column 'v'.*{CUT} d", ["1e3"]),
    ("CREATE DOMAIN d AS timestamptz(0); CREATE TABLE t (v d[])", LIST, ["2020-01-01 01:02:03.5Z"], CUT, ["epoch"]),
    ("CREATE DOMAIN d AS interval(0); CREATE TABLE t (v d[])", LIST, ["1.5 s"], f"column 'v'.*{CUT} d", ["2 s"]),
    ("CREATE TABLE t (v timetz(0))", STRING, "01:02:03.5+01", f"column 'v'.*{CUT} time", "01:02:03+01"),
    ("CREATE TABLE t (v timetz)", STRING, "01:02:03.1234567+01", "column 'v'.*microseconds", "01:02:03.1234560+01"),
    ("CREATE TABLE t (v tsrange)", STRING, "[2020-01-01 00:00:00.0000001,)", "column 'v'.*microseconds", "empty"),
    ("CREATE TABLE t (v name[])", LIST, ["x" * 64], "column 'v'.*more than 63 bytes", ["x" * 63]),
    ("CREATE DOMAIN d AS varchar(3); CREATE DOMAIN e AS d; CREATE TABLE t (v e)", STRING, "abcd", "more than 3", "abc"),
    ("CREATE DOMAIN d AS int CHECK (VALUE < 5); CREATE TABLE t (v d)", NUMBER, 5, 'constraint "d_check"', 4),
    (
        "CREATE DOMAIN d AS inet CHECK (masklen(VALUE) = 32); CREATE TABLE t (v d)",
        STRING,
        "10.0.0.0/8",
        "d_check",
        None,
    ),
    ('CREATE TABLE t (v "char")', STRING, "ab", "column 'v': 'ab' has more than 1 bytes", "a"),
    ('CREATE TABLE t (v "char")', STRING, "ä", "column 'v': 'ä' has more than 1 bytes", "a"),
    ("CREATE TABLE t (v name)", STRING, "x" * 64, "column 'v'.*more than 63 bytes", "x" * 63),
    ("CREATE TABLE t (v timestamptz(0))", pa.timestamp("us", "UTC"), 1, "column 'v'.*would be rounded", None),
    ("CREATE TABLE t (v timestamp(3)[])", pa.list_(pa.timestamp("us")), [999], "column 'v'.*would be rounded", None),
    ("CREATE TABLE t (v time(0))", pa.time64("us"), 5, "column 'v'.*would be rounded", dt.time(1)),
    ("CREATE TABLE t (v interval(0))", pa.duration("us"), 5, "column 'v'.*would be rounded", dt.timedelta(1)),
    ("CREATE TABLE t (v numeric(3,1))", pa.decimal128(5, 1), Decimal("100.0"), "column 'v'.*overflow", Decimal("1.5")),
    ("CREATE TABLE t (v smallint)", NUMBER, 40_000, "column 'v'", 7),
    ("CREATE TABLE t (v text NOT NULL)", STRING, None, "column 'v'.*not-null", "x"),
    ("CREATE TABLE t (v int CONSTRAINT few CHECK (v < 5))", NUMBER, 5, 'constraint "few"', 4),
    ("CREATE TABLE t (v int); ALTER TABLE t ADD CONSTRAINT few CHECK (v < 5) NOT VALID", NUMBER, 5, '"few"', 4),
    ("CREATE TABLE t (v int, w int DEFAULT 3, CONSTRAINT few CHECK (v < w))", NUMBER, 3, 'constraint "few"', 2),
    ("CREATE TABLE t (v int, w int GENERATED ALWAYS AS (10 / v) STORED)", NUMBER, 0, "division by zero", 2),
    ("CREATE TABLE t (v int, w int GENERATED ALWAYS AS (v - 1) STORED CHECK (w > 0))", NUMBER, 1, "t_w_check", 2),
    ("CREATE TABLE t (v int, w int GENERATED ALWAYS AS (nullif(v, 1)) STORED NOT NULL)", NUMBER, 1, "column 'w'", 2),
    (
        "CREATE TABLE t (v inet, w int GENERATED ALWAYS AS (8 / (masklen(v) - 8)) STORED)",
        STRING,
        "10.0.0.0/8",
        "division by zero",
        None,
    ),
    ("CREATE TABLE t (v text PRIMARY KEY)", STRING, LONG, "index row", "x" * 9000),
    ("CREATE TABLE t (v text); CREATE INDEX ON t (lower(v))", STRING, LONG, "index row", "x"),
    ("CREATE TABLE t (v text); CREATE INDEX ON t ((v::int)) WHERE v <> 'x'", STRING, "y", "invalid input syntax", "x"),
    ("CREATE TABLE t (v jsonb)", STRING, '"\\u0000"', "column 'v'.*Unicode", '"a"'),
    ("CREATE TABLE t (v xml)", STRING, "<a", "column 'v'", None),
    (
        "CREATE TABLE t (v int) PARTITION BY RANGE (v); CREATE TABLE p PARTITION OF t FOR VALUES FROM (0) TO (9)",
        NUMBER,
        9,
        r'no partition for row \{"v":9\}',
        8,
    ),
    ("CREATE TABLE t (v int) PARTITION BY LIST (v)", NUMBER, 9, "no partition", None),
]


def some(schema: pa.Schema, value: Any) -> Any:
    return batch([{"v": value}], schema=schema)


@pytest.mark.parametrize("mode", ["ledger", "two-phase"])
@pytest.mark.parametrize(
    ("tables", "kind", "bad", "message", "good"), REFUSED, ids=[re.sub(r"\W+", " ", r[0]) for r in REFUSED]
)
def test_d1_what_the_table_would_refuse_cut_or_round_is_refused_in_the_task(
    postgres: PostgresServer,
    tmp_path: Path,
    mode: str,
    tables: str,
    kind: pa.DataType,
    bad: Any,
    message: str,
    good: Any,
) -> None:
    if (
        " xml" in tables
        and "--with-libxml"
        not in execute(postgres.dsn(), "SELECT setting FROM pg_config() WHERE name = 'CONFIGURE'")[0][0]
    ):
        message = "unsupported XML feature"
    schema = pa.schema([("v", kind)])
    query = Query(tmp_path, postgres.new_database(), schema=schema)
    execute(query.dsn, tables)
    run = query.start(create=False, mode=mode)
    if mode == "two-phase":
        message = message.replace(r'no partition for row \{"v":9\}', "no partition of relation")
    with pytest.raises((RowError, ConfigError) if "XML feature" in message else RowError, match=message) as caught:
        run.run(0, some(schema, bad))
    assert "sink 'postgres-t'" in str(caught.value) and len(str(caught.value)) < 1500
    if mode == "ledger" and "index" in message:
        assert "column 'v' in index 't_" in str(caught.value)
    assert run.coordinator.pending == [], "nothing is decided"
    assert query.leftovers == []
    run = query.start(create=False, mode=mode)
    if good is not None:
        run.run(0, some(schema, good))
        assert len(query.select("SELECT v FROM t")) == 1
    run.close()


@pytest.mark.parametrize(
    ("column", "kind", "message"),
    [
        ("numeric(5,-2)", pa.int64(), "rounded to -2 digits"),
        ("numeric(5,-2)", pa.decimal128(5, 0), "rounded to -2 digits"),
        ("numeric(5,-2)[]", pa.list_(pa.decimal128(5, 0)), "rounded to -2 digits"),
        ("hundreds", pa.int64(), "rounded to -2 digits"),
        ("money", pa.string(), "make the column numeric"),
        ("money[]", pa.list_(pa.string()), "make the column numeric"),
        ("pair", pa.string(), "a part of it would be cut or rounded"),
        ("pair[]", pa.list_(pa.string()), "a part of it would be cut or rounded"),
        ("lists[]", pa.list_(pa.string()), "arrays of a domain over arrays"),
        ("interval hour", pa.duration("us"), "keeps some fields only"),
    ],
)
def test_d1_a_column_that_rounds_every_value_is_refused_at_the_start(
    postgres: PostgresServer, tmp_path: Path, column: str, kind: pa.DataType, message: str
) -> None:
    query = Query(tmp_path, postgres.new_database(), schema=pa.schema([("v", kind)]))
    execute(query.dsn, "CREATE DOMAIN hundreds AS numeric(5,-2); CREATE DOMAIN lists AS int[]")
    execute(query.dsn, "CREATE DOMAIN short AS varchar(3); CREATE TYPE pair AS (a int, b short)")
    execute(query.dsn, f"CREATE TABLE t (v {column})")
    with pytest.raises(ConfigError, match=message):
        query.start(create=False)


def test_a_partition_made_after_the_start_takes_rows(postgres: PostgresServer, tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64())])
    query = Query(tmp_path, postgres.new_database(), schema=schema)
    execute(query.dsn, "CREATE TABLE t (v int, at int DEFAULT 5) PARTITION BY LIST (v)")
    run = query.start(create=False)
    execute(query.dsn, "CREATE TABLE p PARTITION OF t FOR VALUES IN (1) PARTITION BY RANGE (at)")
    execute(query.dsn, "CREATE TABLE q PARTITION OF p DEFAULT")
    run.run(0, some(schema, 1))
    run.close()
    assert query.select("SELECT v, at FROM q") == [(1, 5)]


def test_defaults_that_differ_from_row_to_row_are_left_to_the_table(postgres: PostgresServer, tmp_path: Path) -> None:
    schema = pa.schema([("v", pa.int64())])
    query = Query(tmp_path, postgres.new_database(), schema=schema)
    execute(
        query.dsn,
        "CREATE TABLE t (v int, n serial, i int GENERATED ALWAYS AS IDENTITY, at timestamptz DEFAULT now(), "
        "CHECK (n > 0), CHECK (i > 0), CHECK (at > '2020-01-01'), w int GENERATED ALWAYS AS (v + n) STORED)",
    )
    run = query.start(create=False)
    run.run(0, batch([{"v": 1}, {"v": 2}], schema=schema))
    run.close()
    assert query.select("SELECT v, n, i, w FROM t ORDER BY 1") == [(1, 1, 1, 2), (2, 2, 2, 4)]
