"""Rows per second into PostgreSQL: PostgresSink, exactly-once, against Spark's own JDBC writer, at-least-once.

All ways read the same source (two partitions) in the same SparkSession and write the same four columns into the same
server, which runs with its defaults (fsync on). JDBC is called in a foreachBatch, with `reWriteBatchedInserts` and a
large `batchsize`. The ways run in turns, each into an empty table; the first batches of each turn are not counted.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from tests.servers.postgres import PASSWORD, USER, PostgresServer, execute

import holdfast as hf
from bench.overhead import Clock, wait_for
from bench.report import Bar, Report
from holdfast.spark.jars import Coordinate, resolve

DRIVER = (Coordinate("org.postgresql", "postgresql", "42.7.7"),)
JDBC, LEDGER, TWO_PHASE = "JDBC, at-least-once", "ledger", "two-phase"
BARS = {LEDGER: 1.5, TWO_PHASE: 2.0}
COLUMNS = "id bigint, name text, amount double precision, at timestamptz"


def source(spark: SparkSession, rows: int) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("numPartitions", 2).option("rowsPerBatch", rows)
    return reader.load().selectExpr(
        "value AS id", "concat('name ', value) AS name", "value / 7 AS amount", "timestamp AS at"
    )


def jdbc(frame: DataFrame, server: PostgresServer, batchsize: int, location: Path) -> DataStreamWriter:
    url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres?reWriteBatchedInserts=true"
    options = {"url": url, "dbtable": "target", "user": USER, "password": PASSWORD, "driver": "org.postgresql.Driver"}

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("jdbc").options(**options, batchsize=batchsize).mode("append").save()

    return frame.writeStream.option("checkpointLocation", str(location)).foreachBatch(write)


def through_holdfast(frame: DataFrame, server: PostgresServer, mode: str, location: Path) -> DataStreamWriter:
    # A table that was emptied is no concern of the ledger: a turn is a pipeline of its own.
    sink = hf.PostgresSink(server.dsn(), "target", mode=mode)
    return hf.write_stream(frame, sink, name=f"bench-{location.name}", checkpoint_location=str(location))


def turn(make: Callable[[], DataStreamWriter], count: int, skip: int) -> list[float]:
    """One query from start to stop: milliseconds of the counted batches, whole trigger."""
    clock = Clock(skip + count)
    with clock.watching():
        query: StreamingQuery = make().trigger(processingTime="0 seconds").start()
    try:
        wait_for(query, lambda: len(clock.calls) > clock.enough)
        ids = sorted(clock.calls)[skip:-1]
        wait_for(query, lambda: query.lastProgress["batchId"] >= ids[-1])
        progress = {p["batchId"]: p["durationMs"]["triggerExecution"] for p in query.recentProgress}
    finally:
        threading.Timer(0.2, clock.stopping.set).start()
        query.stop()
    return [float(progress[i]) for i in ids]


def measure(
    spark: SparkSession, server: PostgresServer, folder: Path, options: argparse.Namespace
) -> dict[str, list[float]]:
    """Rows per second of every counted batch, the ways in turns; the first turn of each only warms up."""
    samples: dict[str, list[float]] = {JDBC: [], LEDGER: [], TWO_PHASE: []}
    for number in range(options.rounds + 1):
        for way in samples:
            execute(server.dsn(), "DROP TABLE IF EXISTS target")
            execute(server.dsn(), f"CREATE TABLE target ({COLUMNS})")
            execute(server.dsn(), "CHECKPOINT")
            location = folder / f"{way.split(',')[0]}-{number}"
            frame = source(spark, options.rows)

            def make(way: str = way, location: Path = location, frame: DataFrame = frame) -> DataStreamWriter:
                if way == JDBC:
                    return jdbc(frame, server, options.batchsize, location)
                return through_holdfast(frame, server, way, location)

            found = turn(make, options.count, options.skip)
            check(server, options)
            if number:
                samples[way] += [options.rows / (ms / 1000) for ms in found]
            print(f"turn {number}, {way}: {', '.join(f'{ms:.0f}' for ms in found)} ms", flush=True)
    return samples


def check(server: PostgresServer, options: argparse.Namespace) -> None:
    """A way that loses rows is fast."""
    ((rows, different),) = execute(server.dsn(), "SELECT count(*), count(DISTINCT id) FROM target")
    assert rows == different >= (options.count + options.skip) * options.rows, (rows, different)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows a batch (default 500,000)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each way (default 3)")
    parser.add_argument("--count", type=int, default=3, help="counted batches a turn (default 3)")
    parser.add_argument("--skip", type=int, default=1, help="batches a turn that are not counted (default 1)")
    parser.add_argument("--batchsize", type=int, default=10_000, help="of the JDBC writer (default 10,000)")
    options = parser.parse_args(arguments)
    jars = ",".join(str(jar) for jar in resolve(DRIVER))
    spark = hf.session("postgres", conf={"spark.log.level": "ERROR", "spark.jars": jars})
    server = PostgresServer()
    server.start()
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            samples = measure(spark, server, Path(folder), options)
    finally:
        server.close()
        spark.stop()
    report = Report("postgres", ("rows per second, median", "rows/s", "of JDBC"))
    base = statistics.median(samples[JDBC])
    for way, found in samples.items():
        speed = statistics.median(found)
        report.rows.append((way, f"{speed:,.0f}", f"{speed / base:.2f}"))
        if way in BARS:
            report.bars.append(Bar(f"{way} against JDBC", speed / base, BARS[way], "times", floor=True))
    report.details = {"rows": options.rows, "batchsize": options.batchsize, "samples": samples}
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
