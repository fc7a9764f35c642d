"""Streams of changes with Spark: `delete_when` is computed in the one pass, and needs no column of the table (I2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.errors import ConfigError
from tests.integration.helpers import add_file, read_files, select

pytestmark = pytest.mark.spark


def run(frame: DataFrame, sinks: Any, folder: Path) -> None:
    """All there is, then stop."""
    writer = hf.write_stream(frame, sinks, name="changes", checkpoint_location=str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()


def test_i2_spark_computes_what_deletes(spark: SparkSession, tmp_path: Path) -> None:
    """Rows 0 to 9, then 0 to 4 again, later, as deletes of w0 and w1, then all of them once more, older than those."""
    add_file(tmp_path / "in", 0, range(10), minute=1)
    add_file(tmp_path / "in", 1, range(5), minute=3)
    add_file(tmp_path / "in", 2, range(10), minute=2)
    path = tmp_path / "out.db"
    deletes = {"key": ["id"], "order_by": "at", "delete_when": "word <> 'w2' AND minute(at) = 3"}
    run(
        read_files(spark, tmp_path / "in"),
        [
            hf.route(hf.SqliteSink(path, "routed", mode="upsert", name="a", **deletes), select=["id", "at"]),
            hf.SqliteSink(path, "whole", mode="upsert", name="b", **deletes),
            hf.SqliteSink(path, "plain", name="c"),
        ],
        tmp_path,
    )
    kept = [(2, 3), *((i, 2) for i in range(5, 10))]
    minute = "CAST(substr(at, 15, 2) AS INTEGER)"
    for table in ("routed", "whole"):
        assert select(path, f"SELECT id, {minute} FROM {table} ORDER BY id") == kept
    assert [row[1] for row in select(path, "PRAGMA table_info(routed)")] == ["id", "at"]
    assert [row[1] for row in select(path, "PRAGMA table_info(plain)")] == ["id", "word", "at"]
    assert select(path, "SELECT count(*) FROM plain") == [(25,)]


@pytest.mark.parametrize(
    ("condition", "wrong"),
    [
        ("op = 'd'", "sink 'sqlite-t': delete_when=\"op = 'd'\""),
        ("id", "delete_when='id' must be a condition, true or false, and it is bigint"),
        ("rand() < 0.5", "gives another value each time"),
    ],
)
def test_a_wrong_condition_is_an_error_when_the_writer_is_made(
    spark: SparkSession, tmp_path: Path, condition: str, wrong: str
) -> None:
    add_file(tmp_path / "in", 0, range(2))
    sink = hf.SqliteSink(tmp_path / "out.db", "t", mode="upsert", key=["id"], delete_when=condition)
    with pytest.raises(ConfigError, match=wrong):
        hf.write_stream(
            read_files(spark, tmp_path / "in"), sink, name="changes", checkpoint_location=str(tmp_path / "checkpoint")
        )


@pytest.mark.contract("I3")
def test_spark_reads_files_from_before_and_after_a_new_column(spark: SparkSession, tmp_path: Path) -> None:
    """As docs/schema-changes.md says: `mergeSchema` for Parquet, nothing for JSON."""
    add_file(tmp_path / "in", 0, range(3))
    stream = read_files(spark, tmp_path / "in")
    sinks = {form: str(tmp_path / form) for form in ("parquet", "json")}

    def write(frame: DataFrame) -> None:
        given = [
            hf.FileSink(path, form, name=form, rolling=hf.Rolling(age="0s"), schema_change="evolve")
            for form, path in sinks.items()
        ]
        run(frame, given, tmp_path)

    write(stream.select("id", "word"))
    add_file(tmp_path / "in", 1, range(3, 5))
    write(stream.selectExpr("id", "word", "id * 2 AS twice"))
    expected = [(n, None if n < 3 else 2 * n) for n in range(5)]
    merged = spark.read.option("mergeSchema", "true").parquet(sinks["parquet"])
    for found in (merged, spark.read.json(sinks["json"])):
        assert [tuple(row) for row in found.select("id", "twice").orderBy("id").collect()] == expected
    own = spark.read.schema("id long, word string, twice long").parquet(sinks["parquet"])
    assert [tuple(row) for row in own.select("id", "twice").orderBy("id").collect()] == expected
