"""`spark.holdfast.fewRows`: a batch of few rows from Kafka is written by one task; what is lost is produced again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from holdfast.connectors.kafka.sink.options import KafkaSink
from holdfast.spark import private
from holdfast.spark.partitions import FEW_ROWS
from tests.integration.test_kafka_sink import consume, late_sink

pytestmark = pytest.mark.spark
Make = Callable[..., str]
ROWS, PARTITIONS = 30, 3


@pytest.fixture
def few(spark: SparkSession) -> Iterator[Callable[[str], None]]:
    """Sets the limit."""
    yield lambda limit: spark.conf.set(FEW_ROWS, limit)
    spark.conf.unset(FEW_ROWS)


@pytest.fixture
def source(spark: SparkSession, kafka: Any, topic: Make) -> DataFrame:
    """Rows in each of three partitions."""
    name = topic("in", PARTITIONS)
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    for number in range(ROWS):
        producer.produce(name, str(number).encode(), partition=number % PARTITIONS)
    producer.flush()
    rows = hf.read_kafka(
        spark, bootstrap_servers=kafka.bootstrap, topics=[name], group_id=name, start=hf.StartFrom.earliest()
    )
    return rows.select("value")


def named(folder: Path) -> str:
    return f"{folder.parent.name}-{folder.name}"


def deliver(frame: DataFrame, sinks: Any, folder: Path) -> int:
    """By how many subtasks the first checkpoint was written."""
    writer = hf.write_stream(frame, sinks, name=named(folder), checkpoint_location=str(folder))
    writer.trigger(availableNow=True).start().awaitTermination()
    return hf.checkpoints(str(folder))[0].subtasks


def numbers(kafka: Any, name: str) -> list[int]:
    return sorted(int(row["value"]) for row in consume(kafka, name))


@pytest.mark.parametrize(
    ("mode", "limit", "subtasks"),
    [
        ("two-phase", "30", 1),
        ("two-phase", "29", PARTITIONS),
        ("write-ahead", "30", 1),
        ("write-ahead", "0", PARTITIONS),
        ("two-phase", None, PARTITIONS),
    ],
)
def test_few_rows_are_written_by_one_task_and_more_by_one_for_each_partition(
    kafka, topic, source, few, tmp_path, mode, limit, subtasks
) -> None:
    if limit is not None:
        few(limit)
    name = topic("out")
    light = source.where("length(value) > 0").selectExpr("value", "value AS key")
    assert deliver(light, KafkaSink(kafka.bootstrap, name, mode=mode), tmp_path / "c") == subtasks
    assert numbers(kafka, name) == list(range(ROWS))
    assert "MicroBatchScanExec.start" not in private.interfaces.missed


def test_where_rows_may_be_much_work_each_partition_has_its_task(spark, kafka, topic, source, few, tmp_path) -> None:
    """Python functions, shuffles, and sinks that do not ask for it."""
    few("4000")
    name, other = topic("out"), hf.SqliteSink(str(tmp_path / "out.db"), "t")
    sink = KafkaSink(kafka.bootstrap, name)
    same = f.udf(lambda value: bytes(value), "binary")
    assert deliver(source.select(same("value").alias("value")), sink, tmp_path / "function") == PARTITIONS
    assert deliver(source.repartition(2), sink, tmp_path / "shuffle") == 2
    assert deliver(source, [sink, other], tmp_path / "sqlite") == PARTITIONS
    assert numbers(kafka, name) == sorted([*range(ROWS)] * 3)


def test_without_what_tells_the_rows_each_partition_has_its_task(
    kafka, topic, source, few, tmp_path, monkeypatch
) -> None:
    few("4000")
    monkeypatch.setattr(private.interfaces, "missed", set())

    def use(name: str, ask: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        return otherwise() if name == "MicroBatchScanExec.start" else ask()

    monkeypatch.setattr(private.interfaces, "use", use)
    name = topic("out")
    assert deliver(source, KafkaSink(kafka.bootstrap, name), tmp_path / "c") == PARTITIONS
    assert numbers(kafka, name) == list(range(ROWS))


@pytest.mark.contract("P5")
def test_one_transaction_of_all_partitions_that_times_out_is_produced_again(
    kafka, topic, source, few, tmp_path
) -> None:
    """The replay has the rows in three parts, which together are those that were lost."""
    few("4000")
    name = topic("late", 1)
    sink, paused = late_sink(kafka, name, named(tmp_path / "c"))
    assert deliver(source, sink, tmp_path / "c") == 1
    assert len(paused) == 2
    assert numbers(kafka, name) == list(range(ROWS))
    assert hf.checkpoints(str(tmp_path / "c"))[0].repaired == {"k": {"rows": ROWS, "subtasks": PARTITIONS}}


def test_a_limit_that_is_no_number_is_told_at_the_start(kafka, topic, source, few, tmp_path) -> None:
    few("many")
    with pytest.raises(hf.HoldfastError, match=r"spark\.holdfast\.fewRows=many: give a number of rows"):
        deliver(source, KafkaSink(kafka.bootstrap, topic("out")), tmp_path / "c")
