"""Nested values in SQLite come back as they were by Spark's `from_json`, as docs/sqlite.md says."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import holdfast as hf

pytestmark = pytest.mark.spark
#: column -> its type and a value of it
COLUMNS = {
    "a": ("array<bigint>", "array(1L, NULL, -9223372036854775807L)"),
    "b": ("array<binary>", "array(X'00ff', X'', NULL)"),
    "x": ("array<double>", "array(double('NaN'), double('Infinity'), -double('Infinity'), 0.1D, NULL)"),
    "d": ("array<decimal(38,9)>", "array(CAST('12345678901234567890.123456789' AS DECIMAL(38,9)))"),
    "t": ("array<string>", "array('a\"b', '', 'é\\n', NULL)"),
    "s": (
        "struct<raw: binary, at: timestamp, local: timestamp_ntz, day: date, n: struct<ok: boolean, x: float>>",
        "named_struct('raw', X'0a', 'at', timestamp'2026-07-01 12:30:00.000001Z', "
        "'local', timestamp_ntz'2026-07-01 12:30:00.5', 'day', date'1969-12-31', "
        "'n', named_struct('ok', true, 'x', float('NaN')))",
    ),
}


def test_arrays_and_structs_come_back_by_from_json(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1}\n{"id": 2}\n')
    typed = {name: f"CAST({value} AS {kind})" for name, (kind, value) in COLUMNS.items()}
    columns = ["id", *(f"CASE WHEN id = 1 THEN {value} END AS {name}" for name, value in typed.items())]
    frame = spark.readStream.schema("id long").json(str(tmp_path / "in")).selectExpr(*columns)
    writer = hf.write_stream(
        frame,
        hf.SqliteSink(tmp_path / "out.db", "t"),
        name="nested",
        checkpoint_location=str(tmp_path / "checkpoint"),
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        rows = connection.execute(f"SELECT id, {', '.join(COLUMNS)} FROM t ORDER BY id").fetchall()
    texts = spark.createDataFrame(rows, f"id long, {', '.join(f'{name} string' for name in COLUMNS)}")
    read = [f.from_json(name, kind).alias(name) for name, (kind, _) in COLUMNS.items()]
    found = texts.select("id", *read).orderBy("id").collect()
    wanted = spark.range(1, 3).selectExpr(*columns).orderBy("id").collect()
    assert repr(found) == repr(wanted)
    assert "NaN" in repr(found[0]) or "nan" in repr(found[0])
    assert {value for name, value in found[1].asDict().items() if name != "id"} == {None}
