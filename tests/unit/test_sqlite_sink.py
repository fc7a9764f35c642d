"""The SQLite sink: one transaction for a checkpoint and its ledger row; upsert by key (I1, T3, T8)."""

from __future__ import annotations

import dataclasses
import datetime
import json
import re
import sqlite3
import threading
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.ports import LoopTasks
from holdfast.connectors.sqlite import SqliteSink
from holdfast.core.model import Outcome
from holdfast.errors import CommitError, ConfigError, RowError
from holdfast.testing.audit import audit
from tests.unit.inprocess import Engine

KEYED = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.int64())])


def keyed(*rows: tuple[Any, ...], schema: pa.Schema = KEYED) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema=schema)]


class Rig:
    """An engine with one SqliteSink, and a look into its file."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path = folder, folder / "out.db"

    def engine(self, schema: pa.Schema | None = None, table: str = "rows", **options: Any) -> Engine:
        sink = SqliteSink(str(self.path), table, **options)
        if schema is not None:
            opened = sink.open
            sink.open = lambda run: opened(_with_schema(run, schema))  # type: ignore[method-assign]
        return Engine(str(self.folder / "ck" / "holdfast"), sink)

    def execute(self, statement: str, *values: Any) -> list[Any]:
        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement, values).fetchall()


def _with_schema(run: Any, schema: pa.Schema) -> Any:
    return dataclasses.replace(run, schema=schema)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


# -- ledger -----------------------------------------------------------------------------------------------------------


def test_rows_of_all_subtasks_and_the_ledger_row_are_there_together(rig: Rig) -> None:
    engine = rig.engine()
    engine.run(0, [1, 2], [], [3])
    engine.run(1, [4])
    assert rig.execute("SELECT id, name FROM rows ORDER BY id") == [(1, "n1"), (2, "n2"), (3, "n3"), (4, "n4")]
    ledger = rig.execute("SELECT pipeline, sink, checkpoint_id, lineage, row_count FROM holdfast_ledger")
    assert ledger == [("orders", "sqlite-rows", c, engine.log.lineage, n) for c, n in ((0, 3), (1, 1))]


def test_t3_a_second_commit_of_a_checkpoint_changes_nothing(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = rig.engine()
    (sink,) = engine.sinks
    real, answers = sink.commit, []

    def twice(*arguments: Any) -> Outcome:
        answers.extend([real(*arguments), real(*arguments)])
        return answers[-1]

    monkeypatch.setattr(sink, "commit", twice)
    engine.run(0, [1, 2])
    assert answers == [Outcome.COMMITTED, Outcome.ALREADY_COMMITTED]
    assert audit([1, 2], [row[0] for row in rig.execute("SELECT id FROM rows")]).ok


def test_a_commit_that_fails_in_the_middle_leaves_nothing_of_it(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = rig.engine()
    engine.run(0, [1])
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.connectors.sqlite.table._ADD_TO_LEDGER", "INSERT INTO gone VALUES (?,?,?,?,?,?)")
        engine.run(1, [2], [3])
        with pytest.raises(CommitError, match="no such table: gone"):
            engine.settle()
    assert rig.execute("SELECT id FROM rows") == [(1,)]
    engine.restart()
    assert rig.execute("SELECT id FROM rows") == [(1,), (2,), (3,)]


def test_a_reader_sees_whole_checkpoints_only(rig: Rig) -> None:
    engine = rig.engine()
    engine.run(0, list(range(100)), list(range(100, 200)))
    stop, torn, counts = threading.Event(), [], set()

    def read() -> None:
        with closing(sqlite3.connect(rig.path)) as connection:
            while not stop.is_set():
                rows, ledger = connection.execute(
                    "SELECT (SELECT count(*) FROM rows), (SELECT sum(row_count) FROM holdfast_ledger)"
                ).fetchone()
                counts.add(rows)
                if rows % 200 or rows != ledger:
                    torn.append((rows, ledger))

    reader = threading.Thread(target=read)
    reader.start()
    for checkpoint_id in range(1, 6):
        engine.run(checkpoint_id, list(range(100)), list(range(100, 200)))
    stop.set()
    reader.join()
    assert torn == []
    assert counts <= {200 * n for n in range(1, 7)}


def test_the_ledger_is_pruned_and_its_newest_row_stays(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.connectors.sqlite.table._LEDGER_KEPT", 3)
    engine = rig.engine()
    for checkpoint_id in range(8):
        engine.run(checkpoint_id, [checkpoint_id])
    assert rig.execute("SELECT checkpoint_id FROM holdfast_ledger") == [(5,), (6,), (7,)]
    engine.restart()


# -- the table --------------------------------------------------------------------------------------------------------


def test_a_column_the_table_lacks_is_named_before_the_first_row(rig: Rig) -> None:
    rig.execute("CREATE TABLE rows (id INTEGER)")
    with pytest.raises(ConfigError, match=r"'rows' in .*out.db has no column name: add it with ALTER TABLE"):
        rig.engine()
    rig.execute("ALTER TABLE rows ADD COLUMN name")
    rig.engine().run(0, [1])
    assert rig.execute("SELECT * FROM rows") == [(1, "n1")]


def test_a_column_that_must_be_given_and_is_not_is_named_before_the_first_row(rig: Rig) -> None:
    rig.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY, name, shop TEXT NOT NULL, day TEXT NOT NULL DEFAULT 'x')")
    with pytest.raises(ConfigError, match=r"column shop of table 'rows'.*NOT NULL.*default"):
        rig.engine()


def test_an_existing_table_keeps_its_other_columns_and_its_case(rig: Rig) -> None:
    rig.execute("CREATE TABLE rows (ID INTEGER, Name TEXT, shop TEXT DEFAULT 'here')")
    rig.engine().run(0, [1])
    assert rig.execute("SELECT * FROM rows") == [(1, "n1", "here")]


def test_two_columns_sqlite_cannot_tell_apart_are_refused(rig: Rig) -> None:
    schema = pa.schema([("a", pa.int64()), ("A", pa.int64())])
    with pytest.raises(ConfigError, match=r"cannot write into table 'rows'.*duplicate column name: A"):
        rig.engine(schema)


def test_a_row_that_meets_one_that_is_there_stops_the_query_at_once_and_is_kept(rig: Rig) -> None:
    """Only the commit can see it. Trying again cannot help; the rows wait in the log for the table to be changed."""
    rig.execute("CREATE TABLE rows (id INTEGER UNIQUE, name)")
    engine = rig.engine()
    engine.run(0, [1, 99])
    with pytest.raises(RowError, match=r"checkpoint 1.*'rows'.*UNIQUE.*Nothing is lost.*change the table.*resolve"):
        engine.run(1, [2, 99])
    assert engine.waits == []
    rig.execute("ALTER TABLE rows RENAME TO strict")
    rig.execute("CREATE TABLE rows AS SELECT * FROM strict")
    engine.restart()
    assert sorted(row[0] for row in rig.execute("SELECT id FROM rows")) == [1, 2, 99, 99]


@pytest.mark.parametrize(
    ("declared", "reason"),
    [
        ("id INTEGER CHECK (id < 10), name", "CHECK constraint failed: id < 10"),
        ("id INTEGER, name TEXT NOT NULL CHECK (length(name) < 3)", "CHECK constraint failed"),
        ("id INTEGER, name INTEGER) STRICT", "cannot store TEXT value in INTEGER column rows.name"),
        ("id INTEGER, name TEXT, twice AS (id * 2) STORED CHECK (twice < 20)", "CHECK constraint failed"),
        ("id INTEGER UNIQUE CHECK (id < 10), name UNIQUE", "CHECK constraint failed"),
    ],
)
def test_d1_a_row_that_the_table_refuses_for_itself_is_refused_before_the_decision(
    rig: Rig, declared: str, reason: str
) -> None:
    rig.execute(f"CREATE TABLE rows ({declared}" + ("" if "STRICT" in declared else ")"))
    engine = rig.engine()
    refused = rf"sink 'sqlite-rows': a row does not go into table 'rows' of .*out.db: {re.escape(reason)}.*The first is"
    with pytest.raises(RowError, match=refused):
        engine.run(0, [2, 99], [2, 99])
    assert engine.files("decisions") == engine.files("wal") == []
    rig.execute("DROP TABLE rows")
    engine.restart()
    engine.run(0, [2, 99])
    assert rig.execute("SELECT id FROM rows") == [(2,), (99,)]


def test_rows_with_equal_values_are_no_reason_to_refuse_a_task(rig: Rig) -> None:
    """Whether a key is taken is seen when the rows are committed: an upsert may well give it twice."""
    rig.execute("CREATE TABLE rows (id INTEGER PRIMARY KEY NOT NULL, name TEXT NOT NULL)")
    engine = rig.engine(mode="upsert", key=["id"], order_by="name")
    engine.run(0, [1, 1, 2], [1])
    assert rig.execute("SELECT id FROM rows") == [(1,), (2,)]


@pytest.mark.parametrize("table", ['a"b; drop table rows; --', "select", "ä ü", "x'y", "1", "a.b", "`", "[x]"])
def test_any_table_and_column_name_is_only_a_name(rig: Rig, table: str) -> None:
    schema = pa.schema([('i"d; --', pa.int64()), ("order", pa.string()), ("日本", pa.float64())])
    rig.execute("CREATE TABLE rows (x)")
    engine = rig.engine(schema, table=table, mode="upsert", key=['i"d; --'], order_by="日本", name="odd")
    engine.run(0, keyed((1, "a", 1.0), (1, "b", 2.0), schema=schema))
    quoted = '"' + table.replace('"', '""') + '"'
    assert rig.execute(f"SELECT * FROM {quoted}") == [(1, "b", 2.0)]
    assert rig.execute("SELECT count(*) FROM rows") == [(0,)]


def test_any_path_is_only_a_path(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.path = tmp_path / "a?b#c%20 'd'&mode=ro.db"
    rig.engine().run(0, [1])
    assert [path.name for path in tmp_path.glob("a*.db")] == [rig.path.name]
    assert rig.execute("SELECT id FROM rows") == [(1,)]


def test_values_of_every_type_keep_their_meaning(rig: Rig) -> None:
    utc = datetime.UTC
    instant = datetime.datetime(2024, 7, 1, 12, 0, 0, 5, tzinfo=utc)
    columns: dict[str, tuple[pa.DataType, Any, Any]] = {
        "long": (pa.int64(), -(2**63), -(2**63)),
        "byte": (pa.int8(), 7, 7),
        "bool": (pa.bool_(), True, 1),
        "float": (pa.float64(), 1.5, 1.5),
        "text": (pa.string(), "ä'\"\0\n", "ä'\"\0\n"),
        "large": (pa.large_string(), "x", "x"),
        "blob": (pa.binary(), b"\0\xff", b"\0\xff"),
        "money": (pa.decimal128(38, 2), Decimal("12345678901234567890.10"), "12345678901234567890.10"),
        "day": (pa.date32(), datetime.date(2024, 2, 29), "2024-02-29"),
        "utc": (pa.timestamp("us", "UTC"), instant, "2024-07-01 12:00:00.000005Z"),
        "zoned": (pa.timestamp("us", "Europe/Amsterdam"), instant, "2024-07-01 12:00:00.000005Z"),
        "plain": (pa.timestamp("us"), instant.replace(tzinfo=None), "2024-07-01 12:00:00.000005"),
        "took": (pa.duration("us"), datetime.timedelta(seconds=1), 1_000_000),
        "list": (pa.list_(pa.int64()), [1, None], "[1, null]"),
        "struct": (pa.struct([("a", pa.string())]), {"a": "ä"}, json.dumps({"a": "ä"})),
        "map": (pa.map_(pa.string(), pa.int64()), [("k", 1)], '[["k", 1]]'),
        "none": (pa.null(), None, None),
    }
    schema = pa.schema([(name, kind) for name, (kind, _, _) in columns.items()])
    engine = rig.engine(schema)
    engine.run(0, keyed(tuple(value for _, value, _ in columns.values()), tuple([None] * len(columns)), schema=schema))
    full, nulls = rig.execute("SELECT * FROM rows")
    assert dict(zip(columns, full, strict=True)) == {name: stored for name, (_, _, stored) in columns.items()}
    assert nulls == (None,) * len(columns)


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("", "t"), {}, "path must be the path of a file"),
        ((":memory:", "t"), {}, "path must name a file.*executors open it too"),
        ((5, "t"), {}, "path must be text or a path, not 5"),
        (("f", ""), {}, "table must be the name"),
        (("f", "a\0"), {}, "table must be the name"),
        (("f", "sqlite_x"), {}, "not begin with sqlite_ or holdfast_"),
        (("f", "HOLDFAST_LEDGER"), {}, "not begin with sqlite_ or holdfast_"),
        (("f", "t"), {"mode": "merge"}, "mode must be one of ledger, upsert, append, not 'merge'"),
        (("f", "t"), {"mode": "upsert"}, r"mode='upsert' needs key=\["),
        (("f", "t"), {"mode": "upsert", "key": "id"}, r"key must be a list of columns: key=\['id'\]"),
        (("f", "t"), {"key": ["id"]}, "key and order_by belong to mode='upsert'"),
        (("f", "t"), {"order_by": "id"}, "key and order_by belong to mode='upsert'"),
        (("f", "t"), {"name": "a\nb"}, "name .* printable"),
    ],
)
def test_a_wrong_option_is_named_when_the_sink_is_made(arguments: Any, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SqliteSink(*arguments, **options)


def test_the_sink_is_idle_outside_a_query(rig: Rig) -> None:
    sink = SqliteSink(str(rig.path), "rows")
    with pytest.raises(ConfigError, match="sink 'sqlite-rows' is not part of a running query"):
        sink.commit(0, [], LoopTasks())
