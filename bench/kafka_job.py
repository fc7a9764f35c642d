"""One run of the Kafka benchmark in a process of its own; the last line it prints is JSON.

A fresh process each time, so that no way runs on a Java machine that another one has warmed up.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import holdfast as hf
from bench.kafka_topics import ALIKE, ALIKE_READER, PARTITIONS, some_rows

SPARK, ALIKE_SPARK, TWO_PHASE, WRITE_AHEAD, RAW = "spark", "spark-alike", "two-phase", "write-ahead", "librdkafka"


def spark_run(way: str, servers: str, source: str, target: str, batch: int, folder: Path) -> list[dict[str, Any]]:
    """Kafka -> Kafka as each comes, in the same session; the progress of each micro-batch."""
    conf = {
        "spark.master": f"local[{PARTITIONS}]",
        "spark.log.level": "ERROR",
        "spark.driver.memory": "2g",
        "spark.sql.streaming.numRecentProgressUpdates": "5000",
    }
    spark = hf.session("bench-kafka", kafka=True, conf=conf)
    if way in (SPARK, ALIKE_SPARK):
        reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", source)
        reader = reader.option("startingOffsets", "earliest").option("kafka.isolation.level", "read_committed")
        reader = reader.option("maxOffsetsPerTrigger", batch).options(**(ALIKE_READER if way == ALIKE_SPARK else {}))
        frame = reader.load().select("key", "value")
        writer = frame.writeStream.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", target)
        writer = writer.options(**({f"kafka.{k}": v for k, v in ALIKE.items()} if way == ALIKE_SPARK else {}))
        writer = writer.option("checkpointLocation", str(folder))
    else:
        rows = hf.read_kafka(
            spark,
            bootstrap_servers=servers,
            topics=[source],
            group_id=folder.name,
            start=hf.StartFrom.earliest(),
            options={"maxOffsetsPerTrigger": str(batch)},
        )
        sink = hf.KafkaSink(servers, target, mode=way)
        writer = hf.write_stream(rows.select("key", "value"), sink, name="bench-kafka", checkpoint_location=str(folder))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    if query.exception() is not None:
        raise query.exception()
    kept = ("batchId", "timestamp", "numInputRows", "durationMs")
    return [{key: progress[key] for key in kept} for progress in query.recentProgress if progress["numInputRows"]]


def raw_run(servers: str, target: str, rows: int, batch: int) -> list[dict[str, Any]]:
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
    done = []
    for number in range(-(-rows // batch)):
        begin, wanted = time.perf_counter(), min(batch, rows - number * batch)
        producer.begin()
        for chunk in chunks[: -(-wanted // chunks[0].num_rows)]:
            messages, partitioned, alive = to_messages(chunk, PARTITIONS)
            producer.produce(target, messages, partitioned=partitioned)
            del alive
        producer.flush()
        producer.commit()
        took = {"triggerExecution": (time.perf_counter() - begin) * 1000}
        done.append({"batchId": number, "numInputRows": wanted, "durationMs": took})
    producer.drop()
    return done


def cpu_seconds() -> float:
    """What this process and all below it have used so far: Spark's Java machine and its Python workers."""
    parents, used = {}, {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(stat.parent.name)] = int(fields[1])
        used[int(stat.parent.name)] = sum(map(int, fields[11:15]))
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(used[pid] for pid in own) / os.sysconf("SC_CLK_TCK")


def main(arguments: list[str]) -> None:
    way, servers, source, target, rows, batch, folder = arguments
    if way == RAW:
        batches = raw_run(servers, target, int(rows), int(batch))
    else:
        batches = spark_run(way, servers, source, target, int(batch), Path(folder))
    print(json.dumps({"batches": batches, "cpu": cpu_seconds()}))


if __name__ == "__main__":
    main(sys.argv[1:])
