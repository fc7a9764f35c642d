"""Every type goes into PostgreSQL and comes back, and a column that does not fit is named before the first row."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, RowError
from tests.integration.pg import Query, batch
from tests.servers.postgres import PostgresServer, execute

UTC = dt.timezone.utc  # noqa: UP017  as psycopg gives it back
U = uuid.UUID("12345678-9abc-def0-1234-56789abcdef0")
NOON = dt.datetime(2024, 2, 29, 12, 0, 0, 123456)
#: column type, Arrow type, what goes in, what comes out (None: the same)
TYPES: list[tuple[str, pa.DataType, list[Any], list[Any] | None]] = [
    ("smallint", pa.int16(), [0, -32768, 32767], None),
    ("smallint", pa.int8(), [-128, 127], None),
    ("integer", pa.int32(), [0, -(2**31), 2**31 - 1], None),
    ("integer", pa.int64(), [5, -5], None),
    ("bigint", pa.int64(), [0, -(2**63), 2**63 - 1], None),
    ("bigint", pa.int32(), [7], None),
    ("real", pa.float32(), [0.5, float("inf")], None),
    ("double precision", pa.float64(), [0.1, -1e300, float("-inf")], None),
    ("double precision", pa.int64(), [2**52], [float(2**52)]),
    ("boolean", pa.bool_(), [True, False], None),
    ("numeric", pa.decimal128(38, 18), [Decimal("12345678901234567890.000000000000000001"), Decimal("-0.5")], None),
    ("numeric(10,2)", pa.decimal128(10, 2), [Decimal("99999999.99"), Decimal("0.00"), Decimal("-1.10")], None),
    ("numeric(10,2)", pa.int32(), [12], [Decimal("12.00")]),
    ("numeric", pa.int64(), [2**63 - 1, -(2**63)], [Decimal(2**63 - 1), Decimal(-(2**63))]),
    ("text", pa.string(), ["", "naïve ☃ 漢字 😀", 'q"u\\o\te', "x" * 100_000], None),
    ("varchar(5)", pa.string(), ["12345", ""], None),
    ("char(3)", pa.string(), ["abc"], None),
    ("bytea", pa.binary(), [b"", b"\x00\xff\\", bytes(range(256))], None),
    ("uuid", pa.string(), [str(U), U.hex.upper()], [U, U]),
    ("json", pa.string(), ['{"a": [1, null]}', "[]"], [{"a": [1, None]}, []]),
    ("jsonb", pa.string(), ['{"b": 1, "a": "é"}', "17", "null"], [{"a": "é", "b": 1}, 17, None]),
    ("date", pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)], None),
    ("timestamp", pa.timestamp("us"), [NOON, dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31)], None),
    ("timestamptz", pa.timestamp("us", "UTC"), [NOON.replace(tzinfo=UTC)], None),
    ("timestamptz", pa.timestamp("us", "America/Lima"), [NOON.replace(tzinfo=UTC)], None),
    ("time", pa.time64("us"), [dt.time(23, 59, 59, 999999)], None),
    ("interval", pa.duration("us"), [dt.timedelta(days=-2, microseconds=3)], None),
    ("integer[]", pa.list_(pa.int32()), [[1, None, 3], []], None),
    ("bigint[]", pa.list_(pa.int32()), [[1]], None),
    ("text[]", pa.list_(pa.string()), [["a", None, "", '"{,}'], []], None),
    ("varchar(3)[]", pa.list_(pa.string()), [["abc", None]], None),
    ("double precision[]", pa.list_(pa.float64()), [[0.5, None]], None),
    ("boolean[]", pa.list_(pa.bool_()), [[True, None]], None),
    ("numeric[]", pa.list_(pa.decimal128(10, 2)), [[Decimal("1.25"), None]], None),
    ("date[]", pa.list_(pa.date32()), [[dt.date(2024, 1, 1)]], None),
    ("timestamptz[]", pa.list_(pa.timestamp("us", "UTC")), [[NOON.replace(tzinfo=UTC), None]], None),
    ("uuid[]", pa.list_(pa.string()), [[str(U), None]], [[U, None]]),
    ("jsonb[]", pa.list_(pa.string()), [['{"a": 1}']], [[{"a": 1}]]),
    ("inet", pa.string(), ["10.0.0.1"], None),
    ("mood", pa.string(), ["sad", "happy"], None),
    ("price", pa.decimal128(10, 2), [Decimal("1.50")], None),
    ("label", pa.string(), ["ok"], None),
    ("text", pa.null(), [], None),
    ("numeric(5,1)", pa.null(), [], None),
    ("uuid", pa.null(), [], None),
]


@pytest.fixture
def make(postgres: PostgresServer, tmp_path: Path) -> Callable[..., Query]:
    dsn = postgres.new_database()
    execute(dsn, "CREATE TYPE mood AS ENUM ('sad', 'happy')")
    execute(dsn, "CREATE DOMAIN price AS numeric(10,2) CHECK (VALUE > 0)")
    execute(dsn, "CREATE DOMAIN label AS text NOT NULL")

    def ready(schema: pa.Schema, statement: str = "") -> Query:
        if statement:
            execute(dsn, statement)
        return Query(tmp_path / uuid.uuid4().hex, dsn, schema=schema)

    return ready


@pytest.mark.parametrize("mode", ["ledger", "two-phase", "upsert"])
def test_every_type_round_trips(make: Callable[..., Query], mode: str) -> None:
    fields: list[pa.Field] = [pa.field("id", pa.int64())]
    columns, given, wanted = ["id bigint PRIMARY KEY"], [{}, {}, {}, {}, {}], [{}, {}, {}, {}, {}]
    for number, (sql, arrow, into, out) in enumerate(TYPES):
        name = f"Column {number}"
        nullable = sql != "label"
        fields.append(pa.field(name, arrow))
        columns.append(f'"{name}" {sql}')
        for row in range(5):
            empty = row >= len(into) and nullable
            given[row][name] = None if empty else into[row % len(into)]
            wanted[row][name] = None if empty else (out or into)[row % len(into)]
    for row in range(5):
        given[row]["id"] = wanted[row]["id"] = row
    query = make(pa.schema(fields), f"CREATE TABLE t ({', '.join(columns)})")
    options: dict[str, Any] = {"mode": mode, "create": False, **({"key": ["id"]} if mode == "upsert" else {})}
    run = query.start(**options)
    run.run(0, batch(given[:2], given[2:], schema=query.local.schema))
    run.close()
    found = query.dicts("SELECT * FROM t ORDER BY id")
    for number, (sql, *_) in enumerate(TYPES):
        name = f"Column {number}"
        got, want = [row[name] for row in found], [row[name] for row in wanted]
        assert [str(v) if sql == "inet" and v is not None else v for v in got] == want, (sql, name)
    assert query.leftovers == []


def test_a_table_made_on_request_holds_what_the_dataframe_holds(make: Callable[..., Query]) -> None:
    schema = pa.schema(
        [
            ("tiny", pa.int8()), ("small", pa.int16()), ("middle", pa.int32()), ("Big Number", pa.int64()),
            ("f", pa.float32()), ("d", pa.float64()), ("b", pa.bool_()), ("n", pa.decimal128(12, 3)),
            ("s", pa.string()), ("raw", pa.binary()), ("day", pa.date32()), ("at", pa.timestamp("us", "UTC")),
            ("local", pa.timestamp("us")), ("tags", pa.list_(pa.string())), ("length", pa.duration("us")),
            ('quo"te', pa.string()), ("nothing", pa.null()),
        ]
    )  # fmt: skip
    query = make(schema, "CREATE SCHEMA shop")
    row = {
        "tiny": 1,
        "Big Number": 2,
        "n": Decimal("1.500"),
        "tags": ["x"],
        "at": NOON.replace(tzinfo=UTC),
        'quo"te': "y",
    }
    run = query.start(query.sink("shop.Orders", create=True))
    run.run(0, batch([row], schema=schema))
    run.close()
    types = query.select(
        "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
        "WHERE attrelid = 'shop.\"Orders\"'::regclass AND attnum > 0 ORDER BY attnum"
    )
    assert [sql for _, sql in types] == [
        "smallint", "smallint", "integer", "bigint", "real", "double precision", "boolean", "numeric(12,3)", "text",
        "bytea", "date", "timestamp with time zone", "timestamp without time zone", "text[]", "interval", "text",
        "text",
    ]  # fmt: skip
    (found,) = query.dicts('SELECT * FROM shop."Orders"')
    assert {name: value for name, value in found.items() if value is not None} == row
    assert run.sinks[0].name == "postgres-shop.Orders"


MISMATCHES = [
    ("id bigint, name text", {"id": pa.int64(), "nam": pa.string()}, r"table t has no column nam:.*has id, name"),
    (
        "id bigint, name text, must int NOT NULL",
        {"id": pa.int64(), "name": pa.string()},
        "column must of table t is NOT",
    ),
    (
        "id bigint, name integer",
        {"id": pa.int64(), "name": pa.string()},
        "name is string.*integer in the table: cast it",
    ),
    ("id bigint, name text", {"id": pa.string(), "name": pa.int64()}, "id is string.*bigint.*; name is int64"),
    ("id bigint, name real", {"id": pa.int64(), "name": pa.float64()}, "name is double .*and real in the table"),
    ("id bigint, name numeric", {"id": pa.int64(), "name": pa.float64()}, "cast it to decimal"),
    ("id bigint, name numeric(9,2)", {"id": pa.int64(), "name": pa.decimal128(9, 3)}, "rounded to 2 digits"),
    ("id bigint, name timestamp", {"id": pa.int64(), "name": pa.timestamp("us", "UTC")}, "cast it to timestamp_ntz"),
    ("id bigint, name timestamptz", {"id": pa.int64(), "name": pa.timestamp("us")}, "is no instant"),
    ("id bigint, name jsonb", {"id": pa.int64(), "name": pa.struct([("a", pa.int64())])}, r"use to_json\(\)"),
    ("id bigint, name mood", {"id": pa.int64(), "name": pa.int64()}, "name is int64.*mood.*cast it to string"),
    ("id bigint, name text", {"id": pa.int64(), "name": pa.list_(pa.string())}, "name is list"),
    ("id bigint, name text[]", {"id": pa.int64(), "name": pa.string()}, "make it an array"),
    ("id bigint, name int GENERATED ALWAYS AS (1) STORED", {"id": pa.int64(), "name": pa.int64()}, 'column "name"'),
    ("id bigint", {"id": pa.int64(), "ID": pa.int64()}, "two columns of the DataFrame are column 'id'"),
]


@pytest.mark.parametrize(("columns", "schema", "message"), MISMATCHES)
def test_a_column_that_does_not_fit_is_named_at_the_start(
    make: Callable[..., Query], columns: str, schema: dict[str, pa.DataType], message: str
) -> None:
    query = make(pa.schema(list(schema.items())), f"CREATE TABLE t ({columns})")
    with pytest.raises(ConfigError, match=message):
        query.start(create=False)


def test_a_missing_table_is_an_error_with_the_statement_that_makes_it(make: Callable[..., Query]) -> None:
    query = make(pa.schema([("id", pa.int64()), ("v", pa.decimal128(5, 1))]))
    with pytest.raises(ConfigError, match=r"no table t .*Pass create=True, or create it: (.*)") as caught:
        query.start(create=False)
    execute(query.dsn, str(caught.value).rpartition("create it: ")[2])
    query.start(create=False).close()


def test_a_view_and_a_type_without_a_column_are_refused(make: Callable[..., Query]) -> None:
    query = make(pa.schema([("id", pa.int64())]), "CREATE VIEW v AS SELECT 1::bigint AS id")
    with pytest.raises(ConfigError, match="v is not a table"):
        query.start(query.sink("v"))
    query = make(pa.schema([("m", pa.map_(pa.string(), pa.int64()))]))
    with pytest.raises(ConfigError, match=r"column 'm' is of type map.*to_json"):
        query.start(create=True)


def test_columns_are_found_whatever_their_case_and_defaults_are_kept(make: Callable[..., Query]) -> None:
    statement = "CREATE TABLE t (id bigint, orderid int, made timestamptz NOT NULL DEFAULT now(), n serial)"
    query = make(pa.schema([("orderId", pa.int32()), ("id", pa.int64())]), statement)
    for number, mode in enumerate(("ledger", "two-phase")):
        run = query.start(mode=mode, create=False)
        run.run(number, batch([{"orderId": 7, "id": number}], schema=query.local.schema))
        run.close()
    assert query.select("SELECT id, orderid, made IS NULL, n FROM t ORDER BY 1") == [(0, 7, False, 1), (1, 7, False, 2)]


def test_a_number_that_does_not_fit_its_column_is_an_error_that_names_it(make: Callable[..., Query]) -> None:
    query = make(pa.schema([("id", pa.int64())]), "CREATE TABLE t (id integer)")
    run = query.start(create=False)
    with pytest.raises(RowError, match=r"column 'id': .*2147483648"):
        run.run(0, batch([{"id": 2**31}], schema=query.local.schema))


def test_a_partitioned_table_takes_rows(make: Callable[..., Query]) -> None:
    query = make(pa.schema([("id", pa.int64())]), "CREATE TABLE t (id bigint) PARTITION BY RANGE (id)")
    execute(query.dsn, "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (10)")
    for number, mode in enumerate(("ledger", "two-phase")):
        run = query.start(mode=mode, create=False)
        run.run(number, batch([{"id": number}], schema=query.local.schema))
        run.close()
    assert query.ids() == [0, 1]


def test_large_json_survives(make: Callable[..., Query]) -> None:
    query = make(pa.schema([("doc", pa.string())]), "CREATE TABLE t (doc jsonb)")
    document = {"list": list(range(20_000)), "text": "☃" * 1000}
    run = query.start(create=False)
    run.run(0, batch([{"doc": json.dumps(document)}], schema=query.local.schema))
    run.close()
    assert query.select() == [(document,)]
