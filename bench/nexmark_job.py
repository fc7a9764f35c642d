"""One run of a Nexmark query in a process of its own: on Spark this module, on Flink a script for its SQL client.

A run that is started again with the same folder goes on from its checkpoint.
"""

from __future__ import annotations

import sys
from pathlib import Path

from bench import kafka_flink
from bench.kafka_job import read, session, write
from bench.nexmark_events import KINDS
from bench.nexmark_queries import (
    LATE,
    QUERIES,
    SPARK_EVENTS,
    Query,
    flink_source,
    flink_target,
    flink_views,
    spark_schema,
    spark_view,
)


def spark_command(way: str, name: str, servers: str, source: str, target: str, batch: int, folder: Path) -> list[str]:
    """Of one run of this module."""
    return [sys.executable, "-m", "bench.nexmark_job", way, name, servers, source, target, str(batch), str(folder)]


def spark_run(way: str, query: Query, servers: str, source: str, target: str, batch: int, folder: Path) -> None:
    """Topic -> views -> the query -> topic, as JSON."""
    spark = session("bench-nexmark")
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    rows = read(spark, way, servers, source, batch, folder.name)
    parsed = rows.selectExpr(f"from_json(CAST(value AS STRING), '{spark_schema()}') AS event").select("event.*")
    parsed.selectExpr(*SPARK_EVENTS).withWatermark("rowtime", LATE).createOrReplaceTempView("events")
    for kind in KINDS:
        spark.sql(spark_view(kind)).createOrReplaceTempView(kind)
    write(spark.sql(query.spark).selectExpr("to_json(struct(*)) AS value"), way, servers, target, folder)


def flink_command(
    query: Query, servers: str, source: str, target: str, folder: Path, checkpoint_ms: int, *, bounded: bool = True
) -> tuple[list[str], dict[str, str]]:
    """(command, environment) of a run of Flink's SQL client."""
    json = {"value.format": "json"}
    lines = [
        *kafka_flink.settings(_checkpoints(folder, checkpoint_ms)),
        kafka_flink.table("source", flink_source(), {**kafka_flink.reading(servers, source, bounded=bounded), **json}),
        *flink_views(),
        kafka_flink.table("target", flink_target(query), {**kafka_flink.writing(servers, target), **json}),
        f"INSERT INTO target {query.flink};",
    ]
    command, environment = kafka_flink.command(folder, "\n".join(lines) + "\n")
    return command, {**environment, "TZ": "UTC"}


def _checkpoints(folder: Path, checkpoint_ms: int) -> dict[str, str]:
    """Where they are, that they stay when the job is gone, and from which one it goes on."""
    place = folder / "checkpoints"
    told = {
        "table.local-time-zone": "UTC",
        "execution.checkpointing.interval": f"{checkpoint_ms} ms",
        "execution.checkpointing.dir": f"file://{place}",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
    }
    newest = newest_checkpoint(place)
    return told if newest is None else {**told, "execution.state-recovery.path": f"file://{newest}"}


def newest_checkpoint(place: Path) -> Path | None:
    """The last one that is complete, which it is once its metadata is there."""
    found = [path.parent for path in place.glob("*/chk-*/_metadata")]
    # Numbers begin again with each start; times of two that follow each other at once may be equal.
    return max(found, key=lambda path: ((path / "_metadata").stat().st_mtime, int(path.name[4:])), default=None)


def main(arguments: list[str]) -> None:
    way, name, servers, source, target, batch, folder = arguments
    spark_run(way, QUERIES[name], servers, source, target, int(batch), Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
