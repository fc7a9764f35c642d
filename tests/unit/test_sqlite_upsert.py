"""The SQLite sink replacing rows by key (I1)."""

from __future__ import annotations

import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, RowError
from tests.unit.test_sqlite_sink import KEYED, Rig, keyed


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def upsert(rig: Rig, schema: pa.Schema = KEYED, **options: Any) -> Any:
    return rig.engine(schema, mode="upsert", key=["k"], **options)


def test_i1_a_later_checkpoint_replaces_rows_by_key(rig: Rig) -> None:
    engine = upsert(rig)
    engine.run(0, keyed(("a", 1, 0), ("b", 2, 0)))
    engine.run(1, keyed(("a", 3, 0), ("c", 4, 0)))
    assert rig.execute("SELECT k, v FROM rows ORDER BY k") == [("a", 3), ("b", 2), ("c", 4)]


@pytest.mark.parametrize("partitions", [[keyed(("a", 1, 0), ("a", 2, 0))], [keyed(("a", 1, 0)), keyed(("a", 2, 0))]])
def test_i1_two_rows_of_one_key_without_an_order_are_refused_before_the_decision(
    rig: Rig, partitions: list[list[pa.RecordBatch]]
) -> None:
    """In one subtask or across subtasks; with order_by the same rows go in."""
    engine = upsert(rig)
    with pytest.raises(
        RowError, match=r"checkpoint 0 has several rows with key \{'k': 'a'\}.*order_by='column', or drop"
    ):
        engine.run(0, *partitions)
    assert engine.files("decisions") == engine.files("wal") == []
    engine = upsert(rig, order_by="v")
    engine.run(0, *partitions)
    assert rig.execute("SELECT k, v FROM rows") == [("a", 2)]


def test_i1_the_largest_order_wins_whatever_the_order_of_arrival(rig: Rig) -> None:
    engine = upsert(rig, order_by="at")
    engine.run(0, keyed(("a", 1, 5), ("a", 2, 3)), keyed(("a", 3, 9)), keyed(("a", 4, None)))
    assert rig.execute("SELECT v, at FROM rows") == [(3, 9)]
    engine.run(1, keyed(("a", 5, 8)))
    assert rig.execute("SELECT v, at FROM rows") == [(3, 9)], "an older row that comes late changes nothing"
    engine.run(2, keyed(("a", 6, 9)))
    assert rig.execute("SELECT v, at FROM rows") == [(6, 9)]


def test_i1_a_row_without_an_order_gives_way_to_one_with(rig: Rig) -> None:
    engine = upsert(rig, order_by="at")
    engine.run(0, keyed(("a", 1, None)))
    engine.run(1, keyed(("a", 2, 0)))
    assert rig.execute("SELECT v, at FROM rows") == [(2, 0)]


def test_a_timestamp_orders_by_instant_and_not_by_the_sessions_time_zone(rig: Rig) -> None:
    """When clocks go back, 02:30+0200 is before 02:10+0100; as text of the zone it would not be."""
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.timestamp("us", "Europe/Amsterdam"))])
    engine = upsert(rig, schema, order_by="at")
    early, late = (datetime.datetime(2024, 10, 27, h, m, tzinfo=datetime.UTC) for h, m in ((0, 30), (1, 10)))
    engine.run(0, keyed(("a", 1, early), schema=schema))
    engine.run(1, keyed(("a", 2, late), schema=schema))
    assert rig.execute("SELECT v FROM rows") == [(2,)]


@pytest.mark.parametrize(
    ("kind", "small", "large"),
    [
        (pa.float64(), 9.5, 10.5),
        (pa.date32(), datetime.date(2023, 12, 31), datetime.date(2024, 1, 1)),
        (pa.string(), "a", "b"),
    ],
)
def test_what_can_be_ordered_is(rig: Rig, kind: pa.DataType, small: Any, large: Any) -> None:
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", kind)])
    engine = upsert(rig, schema, order_by="at")
    engine.run(0, keyed(("a", 1, large), schema=schema))
    engine.run(1, keyed(("a", 2, small), schema=schema))
    assert rig.execute("SELECT v FROM rows") == [(1,)]


@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.list_(pa.int64()), pa.struct([("a", pa.int64())])])
def test_an_order_sqlite_would_get_wrong_is_refused(rig: Rig, kind: pa.DataType) -> None:
    """Decimals are kept as exact text, and as text 9.50 is larger than 10.00."""
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", kind)])
    with pytest.raises(ConfigError, match=r"order_by='at'.*has no order"):
        upsert(rig, schema, order_by="at")


def test_decimal_keys_are_equal_by_value(rig: Rig) -> None:
    schema = pa.schema([("k", pa.decimal128(10, 2)), ("v", pa.int64())])
    engine = upsert(rig, schema)
    engine.run(0, keyed((Decimal("1.10"), 1), schema=schema))
    engine.run(1, keyed((Decimal("1.1"), 2), schema=schema))
    assert rig.execute("SELECT * FROM rows") == [("1.10", 2)]


@pytest.mark.parametrize(("kind", "value"), [(pa.string(), None), (pa.float64(), None)])
def test_i1_a_row_without_a_key_is_refused(rig: Rig, kind: pa.DataType, value: Any) -> None:
    schema = pa.schema([("k", kind), ("v", pa.int64())])
    engine = upsert(rig, schema)
    with pytest.raises(
        RowError, match=r"a row has no value in key column 'k'.*Filter such rows out or fill the key in"
    ):
        engine.run(0, keyed((value, 1), schema=schema))
    assert engine.files("decisions") == []


def test_rows_that_are_all_key_are_kept_once(rig: Rig) -> None:
    schema = pa.schema([("k", pa.string())])
    engine = upsert(rig, schema)
    engine.run(0, keyed(("a",), schema=schema))
    engine.run(1, keyed(("a",), ("b",), schema=schema))
    assert rig.execute("SELECT k FROM rows ORDER BY k") == [("a",), ("b",)]


def test_key_and_order_must_be_columns(rig: Rig) -> None:
    with pytest.raises(
        ConfigError, match=r"key and order_by must be columns of the DataFrame; when is not among k, v, at"
    ):
        upsert(rig, order_by="when")


def test_an_existing_table_needs_a_unique_index_on_the_key(rig: Rig) -> None:
    rig.execute("CREATE TABLE rows (k, v, at)")
    with pytest.raises(ConfigError, match=r"cannot write into table 'rows'.*needs a unique index on \(k\)"):
        upsert(rig)
    rig.execute("CREATE UNIQUE INDEX by_k ON rows (k)")
    engine = upsert(rig)
    engine.run(0, keyed(("a", 1, 0)))
    engine.run(1, keyed(("a", 2, 0)))
    assert rig.execute("SELECT v FROM rows") == [(2,)]


def test_i1_zero_and_minus_zero_are_one_key(rig: Rig) -> None:
    """To SQLite they are equal, to Arrow they are not."""
    schema = pa.schema([("k", pa.float64()), ("v", pa.int64())])
    engine = upsert(rig, schema)
    with pytest.raises(RowError, match=r"several rows with key \{'k': 0\.0\}"):
        engine.run(0, keyed((0.0, 1), (-0.0, 2), schema=schema))


@pytest.mark.parametrize(("collation", "other"), [("NOCASE", "KEY"), ("RTRIM", "key  ")])
def test_i1_keys_that_the_table_takes_for_one_are_one(rig: Rig, collation: str, other: str) -> None:
    rig.execute(f"CREATE TABLE rows (k TEXT COLLATE {collation} PRIMARY KEY, v BIGINT, at BIGINT)")
    engine = upsert(rig)
    with pytest.raises(RowError, match="checkpoint 0 has several rows with key"):
        engine.run(0, keyed(("key", 1, 0)), keyed((other, 2, 0)))
    assert engine.files("decisions") == []
    engine.run(0, keyed(("key", 1, 0)), keyed(("another", 2, 0)))
    engine.run(1, keyed((other, 3, 0)))
    assert rig.execute("SELECT v FROM rows ORDER BY v") == [(2,), (3,)]
