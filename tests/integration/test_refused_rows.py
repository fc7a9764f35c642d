"""D1 with Spark: a value no endpoint could take is refused in the task, and the mended query goes on from there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import expr

import holdfast as hf
from tests.integration.helpers import add_file, ids, read_files

pytestmark = pytest.mark.spark


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
