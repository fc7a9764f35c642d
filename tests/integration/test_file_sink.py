"""FileSink on real Spark: readers beside a running query, the end of a run, kills in the middle of a roll (F1-F6)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pyarrow.dataset
import pytest
from pyspark.sql import functions as f

import holdfast as hf
from holdfast.testing import audit
from tests.integration.helpers import SCHEMA, add_file, read_files

pytestmark = pytest.mark.spark
NASTY = ["a/b", "..", "=", "%", "\x00", "😀", " ", "x=y%2Fz", "plain", None, ""]


def files(out: Path) -> list[Path]:
    return sorted(p for p in out.rglob("*-*-*") if p.is_file() and "_holdfast" not in p.parts)


def hidden(out: Path) -> list[Path]:
    found = [p for p in (out / "_holdfast").rglob("*") if p.is_file()]
    return [path for path in found if path.parent.parent.name != "ledger"]


def write(frame: Any, sink: hf.FileSink, folder: Path, **options: Any) -> Any:
    return hf.write_stream(frame, sink, name="to-files", checkpoint_location=str(folder / "checkpoint"), **options)


def run(frame: Any, sink: hf.FileSink, folder: Path) -> None:
    write(frame, sink, folder).trigger(availableNow=True).start().awaitTermination()


@pytest.mark.contract("F6")
def test_the_end_of_an_available_now_run_completes_the_last_files(spark, tmp_path) -> None:
    """F6: eight batches of two partitions are one file for each bucket, and Spark reads the buckets back."""
    for number in range(8):
        add_file(tmp_path / "in", number, range(number * 30, number * 30 + 30))
    out = tmp_path / "out"
    buckets = ["word", hf.TimeBucket("date=%Y-%m-%d", column="at")]
    frame = read_files(spark, tmp_path / "in").repartition(2)
    run(frame, hf.FileSink(str(out), bucket_by=buckets), tmp_path)
    assert len(files(out)) == 3
    assert hidden(out) == []
    found = spark.read.parquet(str(out))
    assert set(found.columns) == {"id", "at", "word", "date"}
    assert sorted((r.id, r.word, str(r.date)) for r in found.collect()) == [
        (i, f"w{i % 3}", "2024-01-01") for i in range(240)
    ]
    run(frame, hf.FileSink(str(out), bucket_by=buckets), tmp_path)
    assert len(files(out)) == 3, "a run without rows adds nothing"
    assert [c.status for c in hf.checkpoints(str(tmp_path / "checkpoint"))][:8] == ["complete"] * 8


@pytest.mark.contract("F1")
def test_every_reader_sees_committed_rows_only_while_the_query_runs(spark, tmp_path) -> None:
    """F1: and what it saw stays; a stopped query leaves nothing behind."""
    out, incoming = tmp_path / "out", tmp_path / "in"
    add_file(incoming, 0, range(20))
    sink = hf.FileSink(str(out), rolling=hf.Rolling(size=None, age="2s", inactivity="1s"))
    query = (
        write(read_files(spark, incoming).repartition(2), sink, tmp_path).trigger(processingTime="0 seconds").start()
    )
    seen: set[int] = set()
    try:
        for number in range(1, 12):
            add_file(incoming, number, range(number * 20, number * 20 + 20))
            time.sleep(0.4)
            if files(out):
                before = _arrow(out)
                again = [_spark(spark, out), _duckdb(out), _pandas(out)]
                for rows in [before, *again]:
                    assert len(rows) == len(set(rows)), "no row twice"
                    assert seen <= set(rows), "what was seen stays"
                    seen |= set(rows)
                    assert len(seen) % 20 == 0, "whole checkpoints"
        deadline = time.monotonic() + 60
        while not files(out) or _arrow(out) != list(range(240)) or hidden(out):
            assert time.monotonic() < deadline, "the source is quiet: age and inactivity must do it"
            time.sleep(0.2)
        add_file(incoming, 99, range(240, 250))
        query.processAllAvailable()
    finally:
        query.stop()
    assert _arrow(out) == _spark(spark, out) == _duckdb(out) == _pandas(out) == list(range(250))
    assert hidden(out) == []
    assert len(files(out)) < 13


def _arrow(out: Path) -> list[int]:
    return sorted(pa.dataset.dataset(out).to_table()["id"].to_pylist())


def _pandas(out: Path) -> list[int]:
    return sorted(pandas.read_parquet(out)["id"])


def _duckdb(out: Path) -> list[int]:
    with duckdb.connect() as connection:
        return [
            r[0]
            for r in connection.execute(f"SELECT id FROM read_parquet('{out}/**/*.parquet') ORDER BY id").fetchall()
        ]


def _spark(spark: Any, out: Path) -> list[int]:
    return sorted(row.id for row in spark.read.parquet(str(out)).collect())


@pytest.mark.contract("F2")
def test_any_bucket_value_is_read_back_by_spark_and_stays_below_the_root(spark, tmp_path) -> None:
    """F2."""
    (tmp_path / "in").mkdir()
    lines = [json.dumps({"id": number, "word": value}) for number, value in enumerate(NASTY)]
    (tmp_path / "in" / "0.json").write_text("\n".join(lines))
    out = tmp_path / "root" / "out"
    frame = spark.readStream.schema("id long, word string").json(str(tmp_path / "in"))
    run(frame, hf.FileSink(str(out), bucket_by="word"), tmp_path)
    assert all(file.resolve().is_relative_to(out) for file in files(out))
    assert list((tmp_path / "root").iterdir()) == [out]
    found = spark.read.schema("id long, word string").parquet(str(out))
    assert {row.id: row.word for row in found.collect()} == {n: v or None for n, v in enumerate(NASTY)}


@pytest.mark.contract("F6")
@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_sparks_types_come_back(spark, tmp_path, form) -> None:
    add_file(tmp_path / "in", 0, range(5))
    frame = read_files(spark, tmp_path / "in").select(*_columns(form))
    schema = frame.schema
    out = tmp_path / "out"
    # The reader below is told of quotes and line ends: without that, CSV with both would be refused.
    readers = {"csv_readers": ["python"]} if form == "csv" else {}
    run(frame, hf.FileSink(str(out), form, **readers), tmp_path)
    reader = spark.read.schema(schema)
    if form == "csv":
        reader = reader.option("header", True).option("multiLine", True).option("escape", '"')
    found = getattr(reader, form)(str(out))
    batch = spark.read.schema(SCHEMA).json(str(tmp_path / "in"))
    expected = batch.select(*_columns(form))
    assert sorted(map(str, found.collect())) == sorted(map(str, expected.collect()))


def _columns(form: str) -> list[Any]:
    plain = [
        f.col("id"),
        f.when(f.col("id") > 1, f.col("word")).alias("text"),
        # Spark's CSV reader takes empty text for null
        f.when(f.col("id") == 3, f.lit("x" if form == "csv" else "")).otherwise('a "q"\n,é😀').alias("odd"),
        (f.col("id") / 2).alias("half"),
        (f.col("id") % 2 == 0).alias("even"),
        f.expr("cast(id as decimal(10, 2))").alias("price"),
        f.expr("cast(at as date)").alias("day"),
        f.col("at"),
        f.expr("cast(at as timestamp_ntz)").alias("local"),
    ]
    nested = [
        f.array("id", f.lit(None)).alias("l"),
        f.struct("word", f.lit(1).alias("n")).alias("s"),
        f.create_map("word", "id").alias("m"),
    ]
    return plain if form == "csv" else plain + nested


JOB = """
import sys
import holdfast as hf
from tests.integration.helpers import SCHEMA
from tests.spark_conf import FAST

work, age = sys.argv[1:]
spark = hf.session("files", conf={**FAST, "spark.master": "local[2]"})
spark.sparkContext.setLogLevel("OFF")
source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{work}/in").repartition(2)
sink = hf.FileSink(f"{work}/out", bucket_by="word", rolling=hf.Rolling(age=age))
writer = hf.write_stream(source, sink, name="to-files", checkpoint_location=f"{work}/checkpoint")
writer.trigger(availableNow=True).start().awaitTermination()
"""


@pytest.mark.contract("F4", "F5")
def test_a_driver_killed_in_the_middle_of_its_rolls_leaves_each_row_in_one_file(tmp_path) -> None:
    """F4, F5: kill -9 at the decision, before and after the mark, at the end of the run; then `holdfast flush`."""
    for number in range(4):
        add_file(tmp_path / "in", number, range(number * 30, number * 30 + 30))
    out = tmp_path / "out"
    seen: list[int] = []
    for fault, age in (
        ("decision=kill-after@2", "1h"),  # two checkpoints decided, nothing is visible
        ("commit.mark=kill@2", "0s"),  # files are there, their mark is not
        ("commit.mark=kill-after@2", "1h"),  # the mark of the files at the end of the run is there
    ):
        assert _job(tmp_path, fault, age) == -9, fault
        rows = _arrow(out) if files(out) else []
        assert len(rows) == len(set(rows))
        assert set(seen) <= set(rows)
        seen = rows
    command = [Path(sys.executable).with_name("holdfast"), "flush", tmp_path / "checkpoint"]
    subprocess.run(command, check=True, timeout=120, capture_output=True)
    assert audit(seen, [i for i in _arrow(out) if i in seen]).ok
    assert _job(tmp_path, "", "1h") == 0
    assert audit(range(120), _arrow(out)).ok
    assert hidden(out) == []


def _job(work: Path, fault: str, age: str) -> int:
    # What is tested may be found by this variable, too.
    places = [os.fspath(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "HOLDFAST_FAULT": fault, "PYTHONPATH": os.pathsep.join(places)}
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(work), age], env=environment, capture_output=True, timeout=250, check=False
    )
    assert done.returncode in (0, -9), done.stderr.decode()[-3000:]
    return done.returncode
