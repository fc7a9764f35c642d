"""docs/howto/change-a-pipeline.md: what only Spark can show."""

from __future__ import annotations

from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.errors import PySparkException

import holdfast as hf
from tests.integration.helpers import add_file, ids, read_files, select

pytestmark = pytest.mark.spark


def run(frame, sink, place: Path, mode: str = "append") -> None:
    writer = hf.write_stream(frame, sink, name="changed", checkpoint_location=place).outputMode(mode)
    writer.trigger(availableNow=True).start().awaitTermination()


def test_a_query_without_state_may_change_and_get_no_other_source(spark, tmp_path: Path) -> None:
    def sink() -> hf.SqliteSink:
        return hf.SqliteSink(tmp_path / "shop.db", "orders")

    add_file(tmp_path / "in", 0, range(5))
    frame = read_files(spark, tmp_path / "in")
    run(frame, sink(), tmp_path / "ck")
    add_file(tmp_path / "in", 1, range(5, 10))
    run(frame.where("id % 2 = 0").repartition(3), sink(), tmp_path / "ck")
    assert ids(tmp_path / "shop.db") == [0, 1, 2, 3, 4, 6, 8]
    add_file(tmp_path / "more", 0, range(20, 22))
    with pytest.raises((hf.HoldfastError, PySparkException)):
        run(frame.union(read_files(spark, tmp_path / "more")), sink(), tmp_path / "ck")
    assert ids(tmp_path / "shop.db") == [0, 1, 2, 3, 4, 6, 8]


def test_a_query_with_state_keeps_its_partitions_and_its_keys(spark, tmp_path: Path) -> None:
    def sink() -> hf.SqliteSink:
        return hf.SqliteSink(tmp_path / "words.db", "words", mode="upsert", key=["word"])

    add_file(tmp_path / "in", 0, range(6))
    frame = read_files(spark, tmp_path / "in")
    run(frame.groupBy("word").count(), sink(), tmp_path / "ck", "update")
    before = spark.conf.get("spark.sql.shuffle.partitions")
    add_file(tmp_path / "in", 1, range(6, 12))
    try:
        spark.conf.set("spark.sql.shuffle.partitions", "5")
        run(frame.groupBy("word").count(), sink(), tmp_path / "ck", "update")
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", before)
    assert dict(select(tmp_path / "words.db", "SELECT word, count FROM words")) == {"w0": 4, "w1": 4, "w2": 4}
    folders = [p for p in (tmp_path / "ck" / "state" / "0").iterdir() if p.name.isdigit()]
    assert len(folders) == int(before)
    add_file(tmp_path / "in", 2, range(12, 15))
    with pytest.raises((hf.HoldfastError, PySparkException)):
        run(frame.selectExpr("id AS word", "at").groupBy("word").count(), sink(), tmp_path / "ck", "update")
    assert dict(select(tmp_path / "words.db", "SELECT word, count FROM words")) == {"w0": 4, "w1": 4, "w2": 4}


def test_new_partitions_of_a_topic_are_read_from_their_beginning(spark, tmp_path: Path, kafka, topic) -> None:
    source = topic("grown", 1)

    def send(numbers: range, partition: int) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap})  # a new one knows the partitions of now
        for number in numbers:
            producer.produce(source, str(number), partition=partition)
        assert producer.flush(30) == 0

    def read() -> None:
        start = hf.StartFrom.earliest()
        rows = hf.read_kafka(
            spark, bootstrap_servers=kafka.bootstrap, topics=[source], group_id="grown", start=start
        ).selectExpr("bigint(string(value)) AS id")
        run(rows, hf.SqliteSink(tmp_path / "shop.db", "orders"), tmp_path / "ck")

    send(range(5), 0)
    read()
    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
    admin.create_partitions([NewPartitions(source, 3)])[source].result(60)
    send(range(5, 8), 2)
    send(range(8, 10), 0)
    read()
    assert ids(tmp_path / "shop.db") == list(range(10))
