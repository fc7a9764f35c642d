"""Every type at its edges: a value is refused in the task by column, or delivered and read back equal. Nothing else."""

from __future__ import annotations

import itertools
import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.model import Outcome
from holdfast.errors import ConfigError, RowError
from holdfast.testing.local import LocalBatch, PickledTasks
from tests.integration.pg import Query
from tests.servers.postgres import PostgresServer, execute

ANY = st.nothing()


@dataclass(frozen=True)
class Case:
    """A column, the values to try, and how to read one back; `values` are as Arrow stores them."""

    sql: str
    arrow: pa.DataType
    edges: tuple[Any, ...]
    drawn: st.SearchStrategy[Any] = ANY
    read: str = "v"
    same: Callable[[Any, Any], bool] = lambda given, found: bool(given == found)


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def texts() -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=12), st.text(max_size=12).map(lambda t: t.encode("utf-8", "surrogatepass")))


def same_float(size: str) -> Callable[[Any, Any], bool]:
    return lambda given, found: struct.pack(size, given) == found or (math.isnan(given) and found is not None)


def json_equal(given: bytes, found: str) -> bool:
    exact = {"parse_int": Decimal, "parse_float": Decimal}
    return bool(json.loads(given, **exact) == json.loads(found, **exact))


def sent(since: int = 946_684_800_000_000) -> Callable[[Any, Any], bool]:
    """As the server sends it: in microseconds since 2000, or since nothing."""
    return lambda given, found: given - since == int.from_bytes(found[:8], "big", signed=True)


# ruff: noqa: E501  tables are read by the line
INTS = (0, -1, 2**15 - 1, 2**15, 2**31 - 1, 2**31, -(2**31), 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1.7976931348623157e308, 1e-45)
TEXTS = (
    b"",
    b"\0",
    b"a\0b",
    b"ab\xff",
    b"\xed\xa0\x80",
    b"\xf5\x80\x80\x80",
    b"\xc0\x80",
    "naïve ☃ 😀".encode(),
    b" ",
    b"x" * 2**20,
)
DAYS = (
    0,
    -719_528,
    -719_162,
    2_932_896,
    2_932_897,
    10_957,
    -(2**31),
    2**31 - 1,
    -(2**31) + 10_957,
    2_145_042_904,
    2_145_042_905,
    -2_440_588,
    -2_440_589,
)
MICROS = (0, 1, -1, -62_135_596_800_000_000, -62_167_219_200_000_000, 253_402_300_799_999_999, 253_402_300_800_000_000,
          2**63 - 1, -(2**63), -(2**63) + 946_684_800_000_000, -210_866_803_200_000_000, -210_866_803_200_000_001)  # fmt: skip
DIGITS = (
    Decimal(0),
    Decimal("0.01"),
    Decimal("-99999999.99"),
    Decimal("99999999.99"),
    Decimal("1E+8"),
    Decimal("-1E+35"),
)
LISTS: tuple[Any, ...] = ([], [None], [1, None, -(2**63)], [2**63 - 1] * 1000)

CASES = {
    "bool": Case("boolean", pa.bool_(), (True, False)),
    "int2": Case("smallint", pa.int64(), INTS, integers(17)),
    "int4": Case("integer", pa.int64(), INTS, integers(33)),
    "int8": Case("bigint", pa.int64(), INTS, integers(64)),
    "int8 from uint64": Case("bigint", pa.uint64(), (0, 2**63 - 1, 2**63, 2**64 - 1), st.integers(0, 2**64 - 1)),
    "float4": Case("real", pa.float32(), FLOATS[:5] + FLOATS[-1:], st.floats(width=32), "float4send(v)", same_float(">f")),
    "float8": Case("double precision", pa.float64(), FLOATS, st.floats(), "float8send(v)", same_float(">d")),
    "float8 from int": Case("double precision", pa.int64(), INTS, integers(64)),
    "numeric": Case("numeric", pa.decimal128(38, 2), (*DIGITS, Decimal("9" * 36 + ".99")), read="v::text", same=lambda g, f: g == Decimal(f)),
    "numeric(10,2)": Case("numeric(10,2)", pa.decimal128(38, 2), (*DIGITS, Decimal("9" * 36)),
                          st.decimals(-(10**9), 10**9, places=2), "v::text", lambda g, f: g == Decimal(f)),
    "numeric(38,38)": Case("numeric(38,38)", pa.decimal128(38, 38), (Decimal("0." + "9" * 38), Decimal("1E-38")), read="v::text",
                           same=lambda g, f: g == Decimal(f)),
    "text": Case("text", pa.string(), TEXTS, texts(), "convert_to(v, 'UTF8')"),
    "varchar(5)": Case("varchar(5)", pa.string(), (*TEXTS, b"12345 ", "äöüß☃".encode()), texts(), "convert_to(v, 'UTF8')"),
    "char(5)": Case("char(5)", pa.string(), (*TEXTS, b"12345 ", b"123  "), texts(), "convert_to(v, 'UTF8')",
                    lambda g, f: g.rstrip(b" ") == f.rstrip(b" ")),
    "text of a large_string": Case("text", pa.large_string(), TEXTS, texts(), "convert_to(v, 'UTF8')"),
    "bytea": Case("bytea", pa.binary(), (b"", b"\0", b"\xff" * 2**20), st.binary(max_size=30)),
    "uuid": Case("uuid", pa.string(), (b"", b"0" * 32, b"0" * 31 + b"g", b"\xff" * 32, "ä".encode() * 16), st.uuids().map(lambda u: str(u).encode()),
                 "v::text", lambda g, f: g.decode().replace("-", "").lower() == f.replace("-", "")),
    "json": Case("json", pa.string(), (b"", b"{", b"1", b'"\xff"', b'{"a": "\\u0000"}', b"[" * 200 + b"]" * 200), read="v::text", same=json_equal),
    "jsonb": Case("jsonb", pa.string(), (b"", b"{", b"1e400", b'"\xff"', b'"\\u0000"', b'{"a": [1, null]}'), read="v::text", same=json_equal),
    "enum": Case("mood", pa.string(), (b"sad", b"", b"glad", b"sad\0", b"\xff"), texts(), "convert_to(v::text, 'UTF8')"),
    "inet": Case("inet", pa.string(), (b"10.0.0.1", b"10.0.0.256", b"", b"::1", b"\xff"), texts(), "convert_to(v::text, 'UTF8')",
                 lambda g, f: f in (g.strip() + b"/32", g.strip() + b"/128")),
    "domain": Case("few", pa.int64(), (0, 4, 5, 2**40), integers(33)),
    "date": Case("date", pa.date32(), DAYS, integers(32), "v - date '1970-01-01'"),
    "timestamp": Case("timestamp", pa.timestamp("us"), MICROS, integers(64), "timestamp_send(v)", sent()),
    "timestamptz": Case("timestamptz", pa.timestamp("us", "UTC"), MICROS, integers(64), "timestamptz_send(v)", sent()),
    "timestamptz(3)": Case("timestamptz(3)", pa.timestamp("us", "UTC"), MICROS, integers(64), "timestamptz_send(v)", sent()),
    "timestamp of ns": Case("timestamp", pa.timestamp("ns"), (0, 1, 1000, 2**63 - 1), integers(53).map(lambda n: n * 1000),
                            "timestamp_send(v)", lambda g, f: sent()(g / 1000, f)),
    "timestamp of s": Case("timestamp", pa.timestamp("s"), (0, 2**63 - 1, 253_402_300_800), integers(45),
                           "timestamp_send(v)", lambda g, f: sent()(g * 10**6, f)),
    "time": Case("time", pa.time64("us"), (0, 86_399_999_999, 86_400_000_000, 86_400_000_001, -1), integers(38),
                 "time_send(v)", sent(0)),
    "interval": Case("interval", pa.duration("us"), (0, 1, -1, 2**62, -(2**63), 2**63 - 1), integers(60),
                     "interval_send(v)", sent(0)),
    "bigint[]": Case("bigint[]", pa.list_(pa.int64()), LISTS, st.lists(st.none() | integers(64), max_size=4)),
    "smallint[]": Case("smallint[]", pa.list_(pa.int64()), LISTS, st.lists(st.none() | integers(17), max_size=4)),
    "date[]": Case("date[]", pa.list_(pa.date32()), ([-(2**31) + 10_957], [0, None]), read="(SELECT array_agg(d - date '1970-01-01') FROM unnest(v) d)"),
    "varchar(3)[]": Case("varchar(3)[]", pa.list_(pa.string()), (["abcd"], ["abc", None], ["\0"], [])),
    "char(3)[]": Case("char(3)[]", pa.list_(pa.string()), (["abcd"], ["abc "], ["ab", None], []), st.lists(st.text(" ab", max_size=5), max_size=2),
                      same=lambda g, f: [t and t.rstrip() for t in g] == [t and t.rstrip() for t in f]),
    "varchar of a domain[]": Case("short[]", pa.list_(pa.string()), (["abcd"], ["abc "], ["ab", None], []), st.lists(st.text(" ab", max_size=5), max_size=2), "v::text[]"),
    "bit(3)": Case("bit(3)", pa.string(), (b"101", b"1011", b"10", b"x", b""), st.text("01", max_size=5).map(str.encode), "v::text", lambda g, f: g.decode() == f),
    "bit(3)[]": Case("bit(3)[]", pa.list_(pa.string()), (["101", None], ["1"]), st.lists(st.text("01", min_size=2, max_size=4), max_size=2), "v::text[]"),
    "varbit of a domain": Case("flags", pa.string(), (b"101", b"1011", b""), st.text("01", max_size=5).map(str.encode), "v::text", lambda g, f: g.decode() == f),
    "numeric(5,1) of a domain[]": Case("tenths[]", pa.list_(pa.string()), (["1.5", "1.50"], ["1.25"], ["99999"]),
        st.lists(st.decimals(-10**5, 10**5, places=2).map(str), max_size=2), "v::numeric[]", lambda g, f: [Decimal(t) for t in g] == f),
    "numeric(5,-2) of a domain[]": Case("hundreds[]", pa.list_(pa.string()), (["100"], ["150"], ["1e7"]), st.lists(st.integers(0, 10**8).map(lambda n: str(n * 50)), max_size=2), "v::numeric[]",
        lambda g, f: [Decimal(t) for t in g] == f),
    "timetz(1)": Case("timetz(1)", pa.string(), (b"01:02:03.5+00", b"01:02:03.55+00", b"01:02:03.4999999+00"), read="v::text", same=lambda g, f: g.decode() == f),
    "timestamp(2)[]": Case("timestamp(2)[]", pa.list_(pa.timestamp("us")), ([0], [10_000, None], [1]), st.lists(st.integers(0, 10**6).map(lambda n: n * 5_000), max_size=2),
        read="(SELECT coalesce(array_agg((extract(epoch FROM d) * 1000000)::bigint), '{}') FROM unnest(v) d)"),
    "interval(1) of a domain": Case("took", pa.duration("us"), (100_000, 150_000), integers(40), "interval_send(v)", sent(0)),
    "text[]": Case("text[]", pa.list_(pa.string()), ([], [""], ["\0"], ['"{,}\\', None, "☃"]), st.lists(st.none() | st.text(max_size=4), max_size=3).filter(
        lambda texts: all(t is None or t.isprintable() for t in texts))),
}  # fmt: skip


#: those whose rows a task proves without the server
PROVABLE = (
    "bool", "int2", "int4", "int8", "int8 from uint64", "float4", "float8", "float8 from int", "text", "varchar(5)",
    "char(5)", "text of a large_string", "bytea", "uuid", "date", "timestamp", "timestamptz", "timestamptz(3)",
    "timestamp of ns", "timestamp of s",
)  # fmt: skip


def array(case: Case, value: Any) -> pa.Array:
    """One row; texts are made of bytes, whatever these are."""
    if isinstance(value, bytes):
        width = "q" if pa.types.is_large_string(case.arrow) else "i"
        offsets = pa.py_buffer(struct.pack(f"={width}{width}", 0, len(value)))
        return pa.Array.from_buffers(case.arrow, 1, [None, offsets, pa.py_buffer(value)])
    stored = {pa.date32(): pa.int32()}.get(case.arrow, pa.int64())
    if pa.types.is_temporal(case.arrow):
        return pa.array([value], stored).view(case.arrow)
    if case.arrow == pa.list_(pa.date32()):
        return pa.ListArray.from_arrays([0, len(value)], pa.array(value, pa.int32()).view(pa.date32()))
    return pa.array([value], case.arrow)


@pytest.fixture(scope="module")
def dsn(postgres: PostgresServer) -> str:
    made = postgres.new_database()
    execute(made, "CREATE TYPE mood AS ENUM ('sad', 'happy'); CREATE DOMAIN few AS int CHECK (VALUE < 5)")
    execute(
        made, "CREATE DOMAIN short AS varchar(3); CREATE DOMAIN flags AS varbit(3); CREATE DOMAIN took AS interval(1)"
    )
    execute(made, "CREATE DOMAIN tenths AS numeric(5,1); CREATE DOMAIN hundreds AS numeric(5,-2)")
    execute(made, "ALTER DATABASE " + made.rpartition("/")[2] + " SET TimeZone = 'UTC'")
    return made


class Column:
    """A query into a table of one column."""

    def __init__(self, dsn: str, folder: Path, case: Case, **options: str) -> None:
        self.case, self.dsn = case, dsn
        self.table = f"t{next(self.numbers)}"
        execute(dsn, f"CREATE TABLE {self.table} (v {case.sql})")
        query = Query(folder, dsn, name=self.table, schema=pa.schema([("v", case.arrow)]))
        self.run = query.start(query.sink(self.table, **options))
        self.checkpoints = itertools.count()

    numbers = itertools.count()

    def check(self, value: Any) -> str:
        """Whether it was `refused` or `delivered`; any third thing is an error."""
        (sink,) = self.run.sinks
        batch = pa.RecordBatch.from_arrays([array(self.case, value)], names=["v"])
        checkpoint = next(self.checkpoints)
        try:
            (report,) = LocalBatch([[batch]]).write(self.run.info, self.run.sinks, checkpoint, 0)
        except RowError as error:
            assert "column 'v'" in str(error) or "few_check" in str(error), str(error)
            assert sink.name in str(error) and len(str(error)) < 1500
            return "refused"
        assert sink.commit(checkpoint, [c.data for c in report.committables], PickledTasks()) is Outcome.COMMITTED
        ((found,),) = execute(self.dsn, f"SELECT {self.case.read} FROM {self.table}")
        assert self.case.same(value, found), (value, found)
        execute(self.dsn, f"TRUNCATE {self.table}")
        return "delivered"


@pytest.mark.parametrize("mode", ["ledger", "two-phase"])
@pytest.mark.parametrize("name", CASES)
def test_d1_an_edge_is_refused_by_column_or_read_back_equal(dsn: str, tmp_path: Path, name: str, mode: str) -> None:
    look_at_edges(dsn, tmp_path, name, mode=mode)


@pytest.mark.parametrize("name", PROVABLE)
def test_d1_an_edge_is_refused_by_column_or_read_back_equal_when_the_task_proves_it_alone(
    dsn: str, tmp_path: Path, name: str
) -> None:
    look_at_edges(dsn, tmp_path, name, stage="log")


@pytest.mark.parametrize("name", [name for name in CASES if name not in PROVABLE])
def test_d1_a_type_that_the_task_cannot_prove_alone_is_refused_at_the_start(
    dsn: str, tmp_path: Path, name: str
) -> None:
    with pytest.raises(ConfigError, match=r"column 'v' is of .*stage='server'"):
        Column(dsn, tmp_path, CASES[name], stage="log")


def look_at_edges(dsn: str, tmp_path: Path, name: str, **options: str) -> None:
    column = Column(dsn, tmp_path, CASES[name], **options)
    seen = [column.check(value) for value in CASES[name].edges]
    column.run.close()
    assert "delivered" in seen
    assert Query(tmp_path, dsn).leftovers == []


@pytest.mark.parametrize(
    ("name", "stage"),
    [(name, "server") for name, case in CASES.items() if not case.drawn.is_empty]
    + [(name, "log") for name in PROVABLE if not CASES[name].drawn.is_empty],
)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_d1_any_value_is_refused_by_column_or_read_back_equal(
    dsn: str, columns: Callable[[str, str], Column], name: str, stage: str, data: st.DataObject
) -> None:
    columns(name, stage).check(data.draw(CASES[name].drawn))


@pytest.fixture
def columns(dsn: str, tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str, str], Column]:
    made: list[Column] = []

    def one(name: str, stage: str) -> Column:
        if not made:
            made.append(Column(dsn, tmp_path, CASES[name], stage=stage))
            request.addfinalizer(made[0].run.close)
        return made[0]

    return one
