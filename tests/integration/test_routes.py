"""Own rows for each sink with Spark: expressions, columns, one job for all, what is refused when the writer is made."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.checkpoint.history import checkpoints
from holdfast.spark import partitions
from tests.integration.helpers import add_file, read_files, select
from tests.servers.kafka import KafkaBroker

pytestmark = pytest.mark.spark


def run(frame: DataFrame, sinks: Any, folder: Path, mode: str = "append") -> None:
    """All there is, then stop."""
    writer = hf.write_stream(frame, sinks, name="routes", checkpoint_location=str(folder / "checkpoint"))
    writer.outputMode(mode).trigger(availableNow=True).start().awaitTermination()


def table(folder: Path, name: str) -> hf.SqliteSink:
    return hf.SqliteSink(str(folder / "out.db"), name, name=name)


@pytest.fixture
def stream(spark: SparkSession, tmp_path: Path) -> DataFrame:
    for number in range(2):
        add_file(tmp_path / "in", number, range(number * 6, number * 6 + 6))
    return read_files(spark, tmp_path / "in")


@pytest.mark.contract("R6")
def test_each_sink_gets_its_rows_and_columns_in_one_job(
    stream: DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs: list[bool] = []
    original = partitions.each_partition

    def counted(frame: DataFrame, plan: Any, function: Any, **how: Any) -> list[str]:
        jobs.append(plan is not None)
        return original(frame, plan, function, **how)

    monkeypatch.setattr("holdfast.spark.tasks.each_partition", counted)
    run(
        stream,
        [
            hf.route(table(tmp_path, "large"), where="id > 5", select=["id", "id * 2 AS twice"]),
            hf.route(table(tmp_path, "words"), where="word = 'w1'", select=["upper(word) AS word", "id * 2 AS two"]),
            hf.route(table(tmp_path, "none"), where="id > 100"),
            table(tmp_path, "whole"),
        ],
        tmp_path,
    )
    out = tmp_path / "out.db"
    assert sorted(select(out, "SELECT * FROM large")) == [(i, 2 * i) for i in range(6, 12)]
    assert sorted(select(out, "SELECT * FROM words")) == [("W1", 2 * i) for i in (1, 4, 7, 10)]
    assert select(out, "SELECT * FROM none") == []
    assert sorted(select(out, "SELECT id, word FROM whole")) == [(i, f"w{i % 3}") for i in range(12)]
    assert [row[1] for row in select(out, "PRAGMA table_info(whole)")] == ["id", "word", "at"]
    assert len(jobs) == 2, "one job a batch for four sinks"
    assert jobs[-1], "plain types come from the plan"
    rows = [{name: sink["rows"] for name, sink in c.sinks.items()} for c in checkpoints(str(tmp_path / "checkpoint"))]
    assert {"large": 0, "words": 2, "none": 0, "whole": 6} in rows
    assert {"large": 6, "words": 2, "none": 0, "whole": 6} in rows


def test_an_expression_that_two_routes_share_is_one_column_and_what_nobody_needs_is_left_out(
    stream: DataFrame, tmp_path: Path
) -> None:
    writer = hf.write_stream(
        stream,
        [
            hf.route(table(tmp_path, "a"), where="id > 5", select=["id * 2 AS x"]),
            hf.route(table(tmp_path, "b"), where="id > 5", select=["id * 2 AS y", "word"]),
        ],
        name="shared",
        checkpoint_location=str(tmp_path / "checkpoint"),
    )
    assert writer._df.columns == ["word", "__holdfast_0", "__holdfast_1"]


def test_nested_columns_and_stars(spark: SparkSession, stream: DataFrame, tmp_path: Path) -> None:
    frame = stream.selectExpr("id", "struct(word AS inner, id + 1 AS next) AS s")
    files = hf.FileSink(str(tmp_path / "out"), "parquet", rolling=hf.Rolling(age="0s"), name="nested")
    run(
        frame,
        [
            hf.route(files, where="s.next % 2 = 0", select=["*", "array(id, s.next) AS both"]),
            hf.route(table(tmp_path, "flat"), select=["s.*", "s.inner AS again"]),
        ],
        tmp_path,
    )
    got = sorted((row.id, row.s.next, row.both) for row in spark.read.parquet(str(tmp_path / "out")).collect())
    assert got == [(i, i + 1, [i, i + 1]) for i in range(1, 12, 2)]
    assert sorted(select(tmp_path / "out.db", "SELECT * FROM flat"))[:2] == [("w0", 1, "w0"), ("w0", 4, "w0")]


def test_routes_of_an_aggregation_are_over_its_result(stream: DataFrame, tmp_path: Path) -> None:
    counts = stream.groupBy("word").count()
    sink = hf.SqliteSink(str(tmp_path / "out.db"), "counts", mode="upsert", key=["word"], name="counts")
    run(counts, [hf.route(sink, where="word <> 'w0'", select=["word", "count * 10 AS tens"])], tmp_path, "update")
    assert sorted(select(tmp_path / "out.db", "SELECT * FROM counts")) == [("w1", 40), ("w2", 40)]


@pytest.mark.contract("R6")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "nope > 3"}, r"route of sink 'out': where='nope > 3': .*nope"),
        ({"where": "id >"}, r"where='id >'.*[Ss]yntax error"),
        ({"where": "id + 1"}, r"where='id \+ 1' must be a condition, true or false, and it is bigint"),
        ({"reject": "word"}, r"reject='word' must be a condition"),
        ({"select": ["id", "no_such(id) AS x"]}, r"select='no_such\(id\) AS x': .*no_such"),
        ({"select": ["sum(id) AS s"]}, r"select='sum\(id\) AS s' does not make one value of each row"),
        ({"select": ["explode(array(id)) AS e"]}, "does not make one value of each row"),
        ({"select": ["rand() AS r"]}, r"select='rand\(\) AS r' gives another value each time"),
        ({"where": "uuid() > 'a'"}, "gives another value each time"),
        ({"select": ["id", "word AS id"]}, "two columns the name 'id'"),
    ],
)
def test_a_wrong_expression_is_an_error_when_the_writer_is_made(
    stream: DataFrame, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(hf.HoldfastError, match=rf"(?s){message}") as caught:
        hf.write_stream(
            stream, hf.route(table(tmp_path, "out"), **options), name="w", checkpoint_location=str(tmp_path / "c")
        )
    assert caught.value.action == "fix"


def test_a_schema_that_a_sink_cannot_take_is_that_of_its_own_columns(stream: DataFrame, tmp_path: Path) -> None:
    sink = hf.SqliteSink(str(tmp_path / "out.db"), "t", mode="upsert", key=["id"], name="keyed")
    with pytest.raises(hf.HoldfastError, match=r"key and order_by must be columns.*id is not among word"):
        run(stream, hf.route(sink, select=["word"]), tmp_path)


@pytest.mark.contract("R6")
def test_kafka_and_files_of_one_stream(
    spark: SparkSession, stream: DataFrame, tmp_path: Path, kafka: KafkaBroker, topic: Callable[..., str]
) -> None:
    name = topic()
    files = hf.FileSink(str(tmp_path / "out"), "parquet", rolling=hf.Rolling(age="0s"), name="files")
    sink = hf.KafkaSink(kafka.bootstrap, name, key="string(id)", value="to_json(struct(*))")
    run(stream, [hf.route(sink, where="id % 2 = 0"), files], tmp_path)
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap).option("subscribe", name)
    got = {row.key.decode(): json.loads(row.value) for row in reader.load().collect()}
    assert sorted(map(int, got)) == list(range(0, 12, 2))
    assert got["4"]["word"] == "w1"
    assert spark.read.parquet(str(tmp_path / "out")).count() == 12
