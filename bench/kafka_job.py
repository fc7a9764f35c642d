"""One run of the Kafka benchmark in a process of its own: over all rows there are, or until its standard input ends.

A fresh process each time, so that no way runs on a Java machine that another one has warmed up.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from bench.kafka_topics import ALIKE, ALIKE_READER, PARTITIONS, some_rows
from holdfast.spark.checkpoint_files import quick_files

SPARK, ALIKE_SPARK, TWO_PHASE, WRITE_AHEAD, RAW = "spark", "spark-alike", "two-phase", "write-ahead", "librdkafka"
ALL, LIVE = "all", "live"


def session(name: str) -> SparkSession:
    """The same for every way."""
    conf = {
        "spark.master": f"local[{PARTITIONS}]",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "2g",
    }
    return hf.session(name, kafka=True, conf=conf)


def read(spark: SparkSession, way: str, servers: str, source: str, batch: int, group: str) -> DataFrame:
    """The rows of a topic, as each comes."""
    if way in (SPARK, ALIKE_SPARK):
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", source)
        reader = reader.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed")
        reader = reader.option("maxOffsetsPerTrigger", batch).options(**(ALIKE_READER if way == ALIKE_SPARK else {}))
        return reader.load()
    return hf.read_kafka(
        spark,
        bootstrap_servers=servers,
        topics=[source],
        group_id=group,
        start=hf.StartFrom.earliest(),
        options={"maxOffsetsPerTrigger": str(batch)},
    )


def write(frame: DataFrame, way: str, servers: str, target: str, folder: Path, *, live: bool = False) -> None:
    """Into a topic, as each comes: all rows there are, or until standard input ends."""
    if way in (SPARK, ALIKE_SPARK):
        writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", target)
        writer = writer.options(**({f"kafka.{k}": v for k, v in ALIKE.items()} if way == ALIKE_SPARK else {}))
        writer = writer.option("checkpointLocation", str(folder))
    else:
        sink = hf.KafkaSink(servers, target, mode=way)
        writer = hf.write_stream(frame, sink, name="bench-kafka", checkpoint_location=str(folder))
    # Spark's own checkpoint files as holdfast has them written.
    alike = quick_files(frame.sparkSession, f"file:{folder}") if way == ALIKE_SPARK else nullcontext()
    with alike:
        query = (writer if live else writer.trigger(availableNow=True)).start()
    if live:
        sys.stdin.read()
        query.stop()
        return
    query.awaitTermination()
    if query.exception() is not None:
        raise query.exception()


def spark_run(kind: str, way: str, servers: str, source: str, target: str, batch: int, folder: Path) -> None:
    """Kafka -> Kafka, in the same session."""
    rows = read(session("bench-kafka"), way, servers, source, batch, folder.name)
    write(rows.select("key", "value"), way, servers, target, folder, live=kind == LIVE)


def raw_run(servers: str, target: str, rows: int, batch: int) -> None:
    """The same rows from memory: a transaction for each batch, one process, no Spark."""
    from holdfast.connectors.kafka.producer.arrow import to_messages
    from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer

    producer = TransactionalProducer(
        {"bootstrap.servers": servers, "transactional.id": target, **ALIKE, "partitioner": "murmur2_random"},
        timeout=120,
    )
    producer.initialise()
    chunks = list(some_rows(min(rows, batch)))
    assert producer.partitions(target) == PARTITIONS
    for number in range(-(-rows // batch)):
        wanted = min(batch, rows - number * batch)
        producer.begin()
        for chunk in chunks[: -(-wanted // chunks[0].num_rows)]:
            messages, partitioned, alive = to_messages(chunk, PARTITIONS)
            producer.produce(target, messages, partitioned=partitioned)
            del alive
        producer.flush()
        producer.commit()
    producer.drop()


def main(arguments: list[str]) -> None:
    kind, way, servers, source, target, rows, batch, folder = arguments
    if way == RAW:
        raw_run(servers, target, int(rows), int(batch))
    else:
        spark_run(kind, way, servers, source, target, int(batch), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
