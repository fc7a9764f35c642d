"""Rows that delete, in the SQLite sink (I2); what all sinks share is in tests/contract/test_deletes.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ConfigError, RowError
from holdfast.sinks.deletes import DELETED
from tests.unit.test_sqlite_sink import KEYED, Rig, keyed

SCHEMA = KEYED.append(pa.field(DELETED, pa.bool_()))
Row = tuple[Any, ...]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def rows(*given: Row) -> list[pa.RecordBatch]:
    return keyed(*given, schema=SCHEMA)


def engine(rig: Rig, **options: Any) -> Any:
    return rig.engine(SCHEMA, mode="upsert", key=["k"], delete_when="op = 'd'", **options)


def graves(rig: Rig) -> str:
    ((name,),) = rig.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'holdfast_deleted%'")
    return str(name)


def test_i2_a_deleted_row_stays_away_and_a_newer_one_comes_back(rig: Rig) -> None:
    query = engine(rig, order_by="at")
    query.run(0, rows(("a", 1, 1, False), ("b", 2, 1, None)))
    query.run(1, rows(("a", None, 5, True)))
    query.run(2, rows(("a", 3, 4, False)))
    assert rig.execute("SELECT k, v FROM rows") == [("b", 2)]
    query.run(3, rows(("a", 4, 6, False)))
    assert rig.execute("SELECT k, v FROM rows ORDER BY k") == [("a", 4), ("b", 2)]


def test_i2_a_delete_counts_for_every_spelling_that_the_table_takes_for_the_key(rig: Rig) -> None:
    rig.execute("CREATE TABLE rows (k TEXT COLLATE NOCASE PRIMARY KEY, v BIGINT, at BIGINT)")
    query = engine(rig, order_by="at")
    query.run(0, rows(("key", 1, 1, False)))
    query.run(1, rows(("KEY", None, 5, True)))
    query.run(2, rows(("Key", 3, 4, False)))
    assert rig.execute("SELECT k, v FROM rows") == []


def test_without_an_order_nothing_is_remembered(rig: Rig) -> None:
    query = engine(rig)
    query.run(0, rows(("a", 1, 1, False)))
    query.run(1, rows(("a", None, None, True)))
    assert rig.execute("SELECT k FROM rows") == []
    query.run(2, rows(("a", 2, 1, False)))
    assert rig.execute("SELECT k, v FROM rows") == [("a", 2)]
    assert rig.execute("SELECT name FROM sqlite_master WHERE name LIKE 'holdfast_deleted%'") == []
    with pytest.raises(RowError, match="several rows with key"):
        query.run(3, rows(("a", 2, 1, False), ("a", 2, 1, True)))


def test_deletes_are_forgotten_after_their_time_and_never_many_at_once(rig: Rig) -> None:
    query = engine(rig, order_by="at", keep_deletes="1h")
    many = 3_000
    query.run(0, rows(*((f"{n}", None, 5, True) for n in range(many))))
    name = graves(rig)
    ((least, most),) = rig.execute(f"SELECT min(until), max(until) FROM {name}")
    ((now,),) = rig.execute("SELECT CAST(strftime('%s', 'now') AS INTEGER) * 1000")
    assert now + 3_000_000 < least <= most < now + 3_700_000
    rig.execute(f"UPDATE {name} SET until = 0")
    left = []
    for number in range(1, 5):
        query.run(number, rows(("x", 1, 1, False)))
        left += rig.execute(f"SELECT count(*) FROM {name}")
    assert left == [(2_000,), (1_000,), (0,), (0,)], "a commit forgets some, so that none takes long"
    query.run(5, rows(("7", 7, 1, False)))
    assert rig.execute("SELECT v FROM rows WHERE k = '7'") == [(7,)]


def test_a_checkpoint_with_many_deletes_forgets_as_many(rig: Rig) -> None:
    query = engine(rig, order_by="at")
    query.run(0, rows(*((f"{n}", None, 5, True) for n in range(4_000))))
    rig.execute(f"UPDATE {graves(rig)} SET until = 0")
    query.run(1, rows(*((f"n{n}", None, 5, True) for n in range(2_000))))
    assert rig.execute(f"SELECT count(*) FROM {graves(rig)}") == [(2_000,)]


def test_a_row_that_deletes_need_not_be_one_that_the_table_takes(rig: Rig) -> None:
    rig.execute("CREATE TABLE rows (k TEXT PRIMARY KEY, v INTEGER NOT NULL CHECK (v > 0), at INTEGER)")
    query = engine(rig, order_by="at")
    query.run(0, rows(("a", 1, 1, False), ("b", None, 1, True)))
    query.run(1, rows(("a", None, 2, True)))
    assert rig.execute("SELECT k FROM rows") == []
    with pytest.raises(RowError, match="NOT NULL constraint failed"):
        query.run(2, rows(("c", None, 2, False)))
    with pytest.raises(RowError, match="a row has no value in key column 'k'"):
        query.run(2, rows((None, 1, 2, True)))


def test_d6_what_was_decided_with_deletes_is_committed_so(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    query = engine(rig, order_by="at")
    query.run(0, rows(("a", 1, 1, False), ("b", 1, 1, False)))
    with monkeypatch.context() as patch:
        patch.setattr(type(query.sinks[0]), "commit", lambda *_: (_ for _ in ()).throw(ValueError("away")))
        with pytest.raises(Exception, match="away"):
            query.run(1, rows(("a", None, 2, True)))
            query.settle()
    query.restart(hf.SqliteSink(rig.path, "rows", mode="upsert", key=["k"]), schema=KEYED)
    assert rig.execute("SELECT k FROM rows") == [("b",)]
    assert rig.execute(f"SELECT k0, at FROM {graves(rig)}") == [("a", 2)]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"mode": "ledger", "delete_when": "true"}, "delete_when belongs to mode='upsert'"),
        ({"mode": "upsert", "key": ["k"], "delete_when": " "}, "delete_when must be a condition in Spark SQL"),
        ({"mode": "upsert", "key": ["k"], "delete_when": True}, "delete_when must be a condition in Spark SQL"),
        ({"mode": "upsert", "key": ["k"], "keep_deletes": "0s"}, 'keep_deletes must be a duration from "1s"'),
        ({"mode": "upsert", "key": ["k"], "keep_deletes": "a week"}, "keep_deletes must be a duration"),
    ],
)
def test_options_are_checked_when_the_sink_is_made(tmp_path: Path, options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        hf.SqliteSink(tmp_path / "out.db", "t", **options)


def test_rows_that_did_not_come_through_write_stream_are_refused(rig: Rig) -> None:
    with pytest.raises(ConfigError, match=r"delete_when=\"op = 'd'\" is computed by hf.write_stream"):
        rig.engine(KEYED, mode="upsert", key=["k"], delete_when="op = 'd'")
    with pytest.raises(ConfigError, match="__holdfast_deleted is the name of a column of holdfast's own"):
        rig.engine(SCHEMA)
