"""D1 with Spark: a value no endpoint could take is refused in the task, and the mended query goes on from there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr, from_json

import holdfast as hf
from tests.integration.helpers import add_file, ids, read_files, select

pytestmark = pytest.mark.spark


def test_what_sqlite_keeps_as_json_is_read_back_by_spark_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """Nested binary, NaN, infinities, moments, decimals: with the column's own type, from_json gives them back."""
    add_file(tmp_path / "in", 0, [1])
    nested = (
        "named_struct('b', X'00ff', 'f', array(double('NaN'), double('Infinity'), double('-Infinity'), 0.1D), 'r', "
        "float('NaN'), 't', timestamp'2026-07-01 12:30:00Z', 'd', date'2026-07-01', 'c', 1.50BD, 'none', "
        "CAST(NULL AS STRING), 'bb', array(X'', X'ff'))"
    )
    frame = read_files(spark, tmp_path / "in").select("id", expr(nested).alias("v"))
    sink = hf.SqliteSink(tmp_path / "out.db", "orders", mode="append")
    writer = hf.write_stream(frame, sink, name="nested", checkpoint_location=tmp_path / "checkpoint")
    writer.trigger(availableNow=True).start().awaitTermination()
    ((text,),) = select(tmp_path / "out.db", "SELECT v FROM orders")
    assert "NaN" in text
    sent = spark.range(1).select(expr(nested).alias("v"))
    read = spark.createDataFrame([(text,)], "v string").select(from_json("v", sent.schema["v"].dataType).alias("v"))
    assert repr(read.collect()) == repr(sent.collect())


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("CASE WHEN id = 3 THEN CAST(X'6162ff' AS STRING) ELSE word END", r"is not UTF-8.*b'ab\\xff'"),
        ("CASE WHEN id = 3 THEN timestamp_micros(4611686018427387904) ELSE at END", "years 0000 to 9999"),
    ],
)
@pytest.mark.parametrize("kind", ["json", "sqlite"])
def test_a_value_no_endpoint_could_take_is_refused_and_the_mended_query_goes_on(
    spark: SparkSession, tmp_path: Path, kind: str, bad: str, reason: str
) -> None:
    for number in range(2):
        add_file(tmp_path / "in", number, range(number * 3, number * 3 + 3))

    def run(expression: str) -> None:
        frame = read_files(spark, tmp_path / "in").select("id", expr(expression).alias("v"))
        sink: hf.TwoPhaseCommitSink = hf.SqliteSink(str(tmp_path / "out.db"), "orders", name="out")
        if kind == "json":
            sink = hf.FileSink(str(tmp_path / "out"), "json", rolling=hf.Rolling(age="0s"), name="out")
        writer = hf.write_stream(frame, sink, name="mended", checkpoint_location=str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    with pytest.raises(Exception, match=rf"(?s)sink 'out': column 'v' has a value that .*{reason}"):
        run(bad)
    run(bad.replace("id = 3", "false"))
    if kind == "sqlite":
        assert ids(tmp_path / "out.db") == list(range(6))
    else:
        lines = [line for file in (tmp_path / "out").glob("*.json") for line in file.read_text().splitlines()]
        assert sorted(json.loads(line)["id"] for line in lines) == list(range(6))
