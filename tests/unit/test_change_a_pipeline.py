"""docs/howto/change-a-pipeline.md, row by row, without Spark; what needs Spark is in tests/integration."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.sinkbook import read_book
from holdfast.checkpoint.start_from import start_from
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.sqlite import SqliteSink
from holdfast.errors import ConfigError
from tests.unit.inprocess import SCHEMA, Endpoint, PreparingSink, SendingSink
from tests.unit.sparkfiles import SavedEngine
from tests.unit.test_savepoint import rows_in, sink, stopped

ROOT = Path(__file__).parents[2]
WIDER = pa.schema([*SCHEMA, ("price", pa.int64())])


def wider(*ids: int) -> list[pa.RecordBatch]:
    columns = [pa.array(ids, pa.int64()), pa.array([f"n{i}" for i in ids]), pa.array(ids, pa.int64())]
    return [pa.RecordBatch.from_arrays(columns, schema=WIDER)]


def test_the_page_names_the_files_with_its_tests() -> None:
    page = (ROOT / "docs/howto/change-a-pipeline.md").read_text()
    for name in re.findall(r"`(tests/[\w/]+\.py)`", page):
        assert (ROOT / name).is_file(), name
    for target in re.findall(r"\]\(([^)#\s]+)", page):
        assert (ROOT / "docs/howto" / target).exists(), target


def test_more_and_fewer_subtasks(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(0, [1], [2])
    engine.restart(sink(tmp_path))
    engine.run(1, [3], [4], [5], [6], [7])
    engine.restart(sink(tmp_path))
    engine.run(2, [8])
    engine.stop()
    assert rows_in(tmp_path / "shop.db") == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_sink_that_is_added_gets_rows_from_then_on_and_status_says_since_when(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(0, [1])
    engine.restart(sink(tmp_path), SqliteSink(tmp_path / "b.db", "orders", name="b"))
    engine.run(1, [2])
    engine.stop()
    assert (rows_in(tmp_path / "shop.db"), rows_in(tmp_path / "b.db")) == ([1, 2], [2])
    assert read_book(engine.storage)["b"].since == 1


def test_a_sink_that_is_owed_rows_cannot_be_removed_before_it_has_them(tmp_path) -> None:
    endpoint, kept = Endpoint(), PreparingSink(Endpoint(), "kept")
    endpoint.down = False
    lagging = SendingSink(endpoint, FileCheckpointCommitter(tmp_path / "marks"))
    engine = SavedEngine(tmp_path / "ck", kept, lagging)
    engine.run(0, [1])
    with pytest.raises(ConfigError, match="still owes its rows to sink 'sending'"):
        engine.restart(kept)
    endpoint.down = None
    engine.restart(kept, lagging)
    engine.settle()
    engine.restart(kept)
    engine.run(1, [2])
    assert endpoint.rows == [1]


def test_a_renamed_sink_is_another_one_unless_it_keeps_its_name(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(0, [1])
    engine.restart(SqliteSink(tmp_path / "shop.db", "orders", name="renamed"))
    engine.run(1, [2])
    book = read_book(engine.storage)
    assert book["renamed"].since == 1
    engine.restart(SqliteSink(tmp_path / "shop.db", "orders", name="sqlite-orders"))
    engine.run(2, [3])
    engine.stop()
    assert rows_in(tmp_path / "shop.db") == [1, 2, 3]


def test_another_table_gets_what_is_decided_from_then_on(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", SqliteSink(tmp_path / "shop.db", "orders", name="shop"))
    engine.run(0, [1])
    engine.restart(SqliteSink(tmp_path / "shop.db", "others", name="shop"))
    engine.run(1, [2])
    engine.stop()
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        assert connection.execute("SELECT id FROM others").fetchall() == [(2,)]
    assert rows_in(tmp_path / "shop.db") == [1]


def test_a_new_name_is_refused_in_place_and_goes_through_a_savepoint(tmp_path) -> None:
    stopped(tmp_path)
    with pytest.raises(ConfigError, match="belongs to pipeline 'orders'"):
        SavedEngine(tmp_path / "ck", sink(tmp_path), pipeline="new")
    start_from(hf.savepoint(tmp_path / "ck", tmp_path / "saved").path, str(tmp_path / "new"), name="new")
    engine = SavedEngine(tmp_path / "new", sink(tmp_path), pipeline="new")
    engine.run(2, [20])
    engine.stop()
    assert rows_in(tmp_path / "shop.db") == [0, 1, 10, 11, 20]


def test_another_place_goes_through_a_savepoint(tmp_path) -> None:
    stopped(tmp_path)
    start_from(hf.savepoint(tmp_path / "ck", tmp_path / "saved").path, str(tmp_path / "moved"))
    engine = SavedEngine(tmp_path / "moved", sink(tmp_path))
    engine.run(2, [20])
    engine.stop()
    assert rows_in(tmp_path / "shop.db") == [0, 1, 10, 11, 20]


def test_a_new_column_in_files_is_allowed_by_schema_change(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", FileSink(tmp_path / "out", "parquet"))
    engine.run(0, [1])
    engine.stop()
    with pytest.raises(ConfigError, match="schema_change='evolve'"):
        engine.start(FileSink(tmp_path / "out", "parquet"), schema=WIDER)
    engine.start(FileSink(tmp_path / "out", "parquet", schema_change="evolve"), schema=WIDER)
    engine.run(1, wider(2))
    engine.stop()
    import pyarrow.dataset as ds

    files = [str(p) for p in sorted((tmp_path / "out").glob("*.parquet"))]
    table = ds.dataset(files, schema=WIDER).to_table().to_pylist()
    assert sorted((row["id"], row["price"]) for row in table if row["id"] == 2) == [(2, 2)]
    assert [row["price"] for row in table if row["id"] == 1] == [None]


def test_another_type_of_a_column_is_refused_in_files_that_keep_types(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", FileSink(tmp_path / "out", "parquet"))
    engine.run(0, [1])
    engine.stop()
    other = pa.schema([("id", pa.string()), ("name", pa.string())])
    with pytest.raises(ConfigError, match="column 'id' is string now and was int64"):
        engine.start(FileSink(tmp_path / "out", "parquet"), schema=other)


def test_a_new_column_must_be_in_the_table_first(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(0, [1])
    engine.stop()
    with pytest.raises(hf.HoldfastError, match="price"):
        engine.start(sink(tmp_path), schema=WIDER)
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        connection.execute("ALTER TABLE orders ADD COLUMN price INTEGER")
    engine.start(sink(tmp_path), schema=WIDER)
    engine.run(1, wider(2))
    engine.stop()
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        assert connection.execute("SELECT id, price FROM orders ORDER BY id").fetchall() == [(1, None), (2, 2)]
