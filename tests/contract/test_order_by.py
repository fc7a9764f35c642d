"""I1: `order_by` means the same in every sink that replaces rows by key. One table of rows, three real stores."""

from __future__ import annotations

import datetime
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ConfigError, RowError
from holdfast.sinks.order import is_older
from holdfast.testing.local import LocalBatch, LocalQuery
from tests.servers.cassandra import CassandraServer
from tests.servers.postgres import PostgresServer, execute

DAY = datetime.date
UTC = datetime.UTC
#: type -> (smallest, middle, largest), and what Cassandra calls it
ORDERS: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "whole number": (pa.int64(), "bigint", [-3, 9, 10]),
    "double": (pa.float64(), "double", [-1.5, 9.5, float("inf")]),
    "date": (pa.date32(), "date", [DAY(1969, 12, 31), DAY(2023, 12, 31), DAY(2024, 1, 1)]),
    "moment": (
        pa.timestamp("us", "Europe/Amsterdam"),
        "timestamp",
        [
            datetime.datetime(1960, 1, 1, tzinfo=UTC),
            *(datetime.datetime(2024, 10, 27, h, 30, tzinfo=UTC) for h in (0, 1)),
        ],
    ),
    "microseconds": (
        pa.timestamp("us", "UTC"),
        "timestamp",
        [datetime.datetime(2024, 10, 27, 0, 30, 0, 123_000 + more, tzinfo=UTC) for more in (0, 1, 2)],
    ),
    "text": (pa.string(), "text", ["", "9", "é"]),
}
S, M, L = 0, 1, 2
#: for each checkpoint its subtasks: (key, which order or None, value); then what is in the table
CHECKPOINTS: list[tuple[list[list[tuple[str, int | None, str]]], dict[str, str]]] = [
    (
        [
            [("a", M, "middle"), ("a", S, "small")],
            [("a", L, "large"), ("b", M, "b"), ("c", None, "nothing"), ("c", None, "last")],
        ],
        {"a": "large", "b": "b", "c": "last"},
    ),
    # Late and older: nothing changes. Equal: the last one written. A value beats none.
    ([[("a", M, "late"), ("b", M, "equal"), ("c", S, "value")]], {"a": "large", "b": "equal", "c": "value"}),
    ([[("a", None, "none"), ("b", S, "old"), ("c", None, "none")]], {"a": "large", "b": "equal", "c": "value"}),
    # Of equal ones in two subtasks the later one, which is the same one in every attempt.
    (
        [[("d", M, "one"), ("a", L, "again")], [("d", M, "two"), ("d", S, "three")]],
        {"a": "again", "b": "equal", "c": "value", "d": "two"},
    ),
]  # fmt: skip


def check(
    folder: Path, kind: str, make: Callable[..., hf.TwoPhaseCommitSink], read: Callable[[], dict[str, str]]
) -> None:
    arrow, _, values = ORDERS[kind]
    schema = pa.schema([("k", pa.string()), ("at", arrow), ("v", pa.string())])
    query = LocalQuery(str(folder / "checkpoint"), "orders", schema)
    run = query.start([make(order_by="at")])
    for number, (subtasks, expected) in enumerate(CHECKPOINTS):
        rows = [
            [{"k": k, "at": None if at is None else values[at], "v": v} for k, at, v in subtask] for subtask in subtasks
        ]
        run.run(number, LocalBatch([[pa.RecordBatch.from_pylist(part, schema=schema)] for part in rows]))
        run.coordinator.drain(60.0)
        assert run.coordinator.failure is None
        assert read() == expected, f"after checkpoint {number}"
    run.close()
    with pytest.raises(ConfigError, match=r"order_by='k' is part of the key \(k\).*name another column"):
        query.start([make(order_by="k")])
    with pytest.raises(ConfigError, match="key and order_by must be columns of the DataFrame; when is not among k, at"):
        query.start([make(order_by="when")])


@pytest.mark.parametrize("kind", ORDERS)
def test_i1_order_by_in_sqlite(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "out.db"

    def read() -> dict[str, str]:
        with closing(sqlite3.connect(path)) as connection:
            return dict(connection.execute("SELECT k, v FROM t").fetchall())

    check(tmp_path, kind, lambda **options: hf.SqliteSink(path, "t", mode="upsert", key=["k"], **options), read)


@pytest.mark.parametrize("kind", ORDERS)
def test_i1_order_by_in_postgres(postgres: PostgresServer, tmp_path: Path, kind: str) -> None:
    dsn = postgres.new_database()
    upsert = {"mode": "upsert", "key": ["k"], "create": True}
    check(
        tmp_path,
        kind,
        lambda **options: hf.PostgresSink(dsn, "t", **upsert, **options),
        lambda: dict(execute(dsn, "SELECT k, v FROM t")),
    )


@pytest.mark.parametrize("kind", [kind for kind in ORDERS if kind != "microseconds"])
def test_i1_order_by_in_cassandra(cassandra: CassandraServer, tmp_path: Path, kind: str) -> None:
    keyspace = f"orders_{uuid.uuid4().hex[:8]}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cassandra.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
    cassandra.execute(f"CREATE TABLE {keyspace}.t (k text PRIMARY KEY, at {ORDERS[kind][1]}, v text)")
    place = {"keyspace": keyspace, "table": "t", **cassandra.options}
    check(
        tmp_path,
        kind,
        lambda **options: hf.CassandraSink(**place, **options),
        lambda: {row["k"]: row["v"] for row in cassandra.execute(f"SELECT k, v FROM {keyspace}.t")},
    )


def test_i1_an_order_that_cassandra_would_cut_is_refused_before_the_decision(
    cassandra: CassandraServer, tmp_path: Path
) -> None:
    """It keeps milliseconds: of two rows that differ by less an older one would replace a newer one."""
    keyspace = f"orders_{uuid.uuid4().hex[:8]}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cassandra.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
    cassandra.execute(f"CREATE TABLE {keyspace}.t (k text PRIMARY KEY, at timestamp, v text)")
    arrow, _, values = ORDERS["microseconds"]
    schema = pa.schema([("k", pa.string()), ("at", arrow), ("v", pa.string())])
    query = LocalQuery(str(tmp_path / "checkpoint"), "orders", schema)
    run = query.start([hf.CassandraSink(keyspace=keyspace, table="t", order_by="at", **cassandra.options)])
    rows = pa.RecordBatch.from_pylist([{"k": "a", "at": values[M], "v": "x"}], schema=schema)
    with pytest.raises(
        RowError, match=r"column 'at' \(timestamp\): '2024-10-27 00:30:00.123001' is finer than a milli"
    ):
        run.run(0, LocalBatch([[rows]]))
    assert query.storage.walk("decisions") == []
    run.close()


def test_an_order_that_has_none_is_refused_by_the_sink_that_has_none(tmp_path: Path) -> None:
    for kind, why in ((pa.list_(pa.int64()), "which has no order"), (pa.decimal128(9, 2), "has no order in SQLite")):
        schema = pa.schema([("k", pa.string()), ("at", kind)])
        sink = hf.SqliteSink(tmp_path / "out.db", "t", mode="upsert", key=["k"], order_by="at")
        with pytest.raises(ConfigError, match=why):
            LocalQuery(str(tmp_path / "checkpoint"), "orders", schema).start([sink])


@pytest.mark.parametrize(
    ("value", "stored", "older"),
    [
        (1, None, False), (None, None, False), (None, 1, True), (1, 1, False), (1, 2, True), (2, 1, False),
        (float("nan"), float("inf"), False), (float("inf"), float("nan"), True), (float("nan"), float("nan"), False),
        (Decimal("9.5"), Decimal("10"), True), (b"\x7f", b"\x80", True),
    ],
)  # fmt: skip
def test_which_of_two_is_older(value: Any, stored: Any, older: bool) -> None:
    assert is_older(value, stored) is older
