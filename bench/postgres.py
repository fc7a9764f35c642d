"""Rows per second into PostgreSQL: PostgresSink, exactly-once, against two ways that are at-least-once.

COPY is the fastest that these tasks could be: the same rows from the same plan by the same encoder and COPY, each task
committed by itself, with no decision, ledger or staging. JDBC is Spark's own writer in a foreachBatch, with
`reWriteBatchedInserts` and a large `batchsize`. All ways read the same source (two partitions) in the same SparkSession
and write the same four columns into the same server, which runs with its defaults (fsync on). They run in turns, each
into an empty table; the first batches of each turn are not counted. `ledger` is what a user gets who asks for nothing
else: rows wait in the checkpoint location. stage="server", for tables that do not allow that, is told beside it.

Every run is kept in the JSON file, and the text says the median of the last three and how many of them all missed a
bar.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from tests.servers.postgres import PASSWORD, USER, PostgresServer, execute

import holdfast as hf
from bench.overhead import Clock, wait_for
from bench.report import RESULTS, Bar, Report
from holdfast.checkpoint.ports import SubtaskReport
from holdfast.connectors.postgres.catalog import find_table
from holdfast.connectors.postgres.names import TableName
from holdfast.connectors.postgres.server import Server
from holdfast.connectors.postgres.table import Upsert
from holdfast.spark.checkpoint_files import quick_files
from holdfast.spark.jars import Coordinate, fetch_jars
from holdfast.spark.partitions import PlanReader, each_partition
from holdfast.spark.private import arrow_schema
from holdfast.spark.tasks import spare_collector

DRIVER = (Coordinate("org.postgresql", "postgresql", "42.7.7"),)
JDBC, COPY = "JDBC, at-least-once", "COPY, at-least-once"
#: Spark's JDBC writer with its default settings; no bar is set by it.
PLAIN_JDBC = "JDBC as it comes"
LEDGER, STAGED, TWO_PHASE = "ledger", "ledger, stage=server", "two-phase"
SINKS = {LEDGER: {"mode": "ledger"}, STAGED: {"mode": "ledger", "stage": "server"}, TWO_PHASE: {"mode": "two-phase"}}
#: what, of what, at least how many times as fast
BARS = ((LEDGER, COPY, 0.75), (LEDGER, JDBC, 2.0), (TWO_PHASE, COPY, 0.9))
#: ... what is told beside it, and judged by nobody: the server writes these rows twice
TOLD = ((STAGED, COPY), (STAGED, JDBC))
#: What earlier runs called the same, when plain `ledger` was stage="server" and the log had to be asked for.
OLD_NAMES = {LEDGER: "ledger, stage=log", STAGED: "ledger"}
#: whole runs whose median counts
WHOLE = 3
COLUMNS = "id bigint, name text, amount double precision, at timestamptz"


def source(spark: SparkSession, rows: int) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("numPartitions", 2).option("rowsPerBatch", rows)
    return reader.load().selectExpr(
        "value AS id", "concat('name ', value) AS name", "value / 7 AS amount", "timestamp AS at"
    )


def jdbc(frame: DataFrame, server: PostgresServer, batchsize: int | None, location: Path) -> DataStreamWriter:
    """Spark's own writer; without a `batchsize` as it comes."""
    url = f"jdbc:postgresql://127.0.0.1:{server.port}/postgres"
    options = {"url": url, "dbtable": "target", "user": USER, "password": PASSWORD, "driver": "org.postgresql.Driver"}
    if batchsize is not None:
        options |= {"url": f"{url}?reWriteBatchedInserts=true", "batchsize": str(batchsize)}

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.write.format("jdbc").options(**options).mode("append").save()

    return frame.writeStream.option("checkpointLocation", str(location)).foreachBatch(write)


def copy(spark: SparkSession, frame: DataFrame, server: PostgresServer, location: Path) -> DataStreamWriter:
    """What holdfast's tasks do, without what makes it exactly-once."""
    endpoint = Server(server.dsn(), 60.0)
    rows = PlanReader(spark)
    with endpoint.connect() as connection:
        target, *_ = find_table(connection, "copy", TableName(None, "target"), arrow_schema(frame), Upsert())

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[str]:
        session = endpoint.session(plain=True)
        count = size = 0
        for batch in batches:
            session.ingest("public", "target", target.to_wire(batch))
            count, size = count + batch.num_rows, size + batch.nbytes
        session.execute("COMMIT")
        session.keep()
        spare_collector()
        yield f"{count} {size}"

    def write(batch: DataFrame, batch_id: int) -> None:
        rows.batches.limit(batch.sparkSession)
        found = each_partition(batch, rows.plan(batch, batch_id), task)
        # Without this its tasks would get a thousand rows at a time for ever, and holdfast's get up to twenty thousand.
        rows.batches.learn([SubtaskReport(0, *map(int, told.split()), ()) for told in found])

    return frame.writeStream.option("checkpointLocation", str(location)).foreachBatch(write)


def through_holdfast(frame: DataFrame, server: PostgresServer, way: str, location: Path) -> DataStreamWriter:
    # A table that was emptied is no concern of the ledger: a turn is a pipeline of its own.
    sink = hf.PostgresSink(server.dsn(), "target", **SINKS[way])
    return hf.write_stream(frame, sink, name=f"bench-{location.name}", checkpoint_location=str(location))


def turn(make: Callable[[], DataStreamWriter], count: int, skip: int) -> list[float]:
    """One query from start to stop: milliseconds of the counted batches, whole trigger."""
    clock = Clock(skip + count)
    # All ways have Spark's own checkpoint files written as holdfast has them written.
    with clock.watching(), quick_files(SparkSession.builder.getOrCreate(), "file:/"):
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
) -> tuple[dict[str, list[float]], dict[str, list[tuple[float, float]]]]:
    """Rows per second of every counted batch, the ways in turns, and CPU seconds per million rows of every turn.

    The first turn of each way only warms up.
    """
    samples: dict[str, list[float]] = {way: [] for way in (JDBC, PLAIN_JDBC, COPY, *SINKS)}
    cpu: dict[str, list[tuple[float, float]]] = {way: [] for way in samples}
    for number in range(options.rounds + 1):
        for way in samples:
            execute(server.dsn(), "DROP TABLE IF EXISTS target")
            execute(server.dsn(), f"CREATE TABLE target ({COLUMNS})")
            execute(server.dsn(), "CHECKPOINT")
            location = folder / f"{''.join(filter(str.isalnum, way))}-{number}"
            frame = source(spark, options.rows)

            def make(way: str = way, location: Path = location, frame: DataFrame = frame) -> DataStreamWriter:
                if way in (JDBC, PLAIN_JDBC):
                    return jdbc(frame, server, options.batchsize if way == JDBC else None, location)
                if way == COPY:
                    return copy(spark, frame, server, location)
                return through_holdfast(frame, server, way, location)

            before = cpu_seconds(server)
            found = turn(make, options.count, options.skip)
            spent = [after - start for start, after in zip(before, cpu_seconds(server), strict=True)]
            millions = check(server, options) / 1e6
            if number:
                samples[way] += [options.rows / (ms / 1000) for ms in found]
                cpu[way].append((spent[0] / millions, spent[1] / millions))
            print(f"turn {number}, {way}: {', '.join(f'{ms:.0f}' for ms in found)} ms", flush=True)
    return samples, cpu


def cpu_seconds(server: PostgresServer) -> tuple[float, float]:
    """CPU time so far: of Spark and its Python workers, and of the server. It hardly depends on who else is busy."""
    found: dict[int, tuple[int, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # Its own, and that of its children that have ended.
        found[int(stat.parent.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"))

    def tree(root: int, without: int = 0) -> float:
        children = [pid for pid, (parent, _) in found.items() if parent == root and pid != without]
        return found[root][1] + sum(tree(child) for child in children)

    return tree(os.getpid(), server.pid), tree(server.pid)


def check(server: PostgresServer, options: argparse.Namespace) -> int:
    """A way that loses rows is fast."""
    ((rows, different),) = execute(server.dsn(), "SELECT count(*), count(DISTINCT id) FROM target")
    assert rows == different >= (options.count + options.skip) * options.rows, (rows, different)
    return int(rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=500_000, help="rows a batch (default 500,000)")
    parser.add_argument("--rounds", type=int, default=2, help="turns of each way (default 2)")
    parser.add_argument("--count", type=int, default=4, help="counted batches a turn (default 4)")
    parser.add_argument("--skip", type=int, default=1, help="batches a turn that are not counted (default 1)")
    parser.add_argument("--batchsize", type=int, default=10_000, help="of the JDBC writer (default 10,000)")
    options = parser.parse_args(arguments)
    jars = ",".join(str(jar) for jar in fetch_jars(DRIVER))
    spark = hf.session("postgres", conf={"spark.log.level": "ERROR", "spark.jars": jars})
    server = PostgresServer()
    server.start()
    try:
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
            samples, cpu = measure(spark, server, Path(folder), options)
    finally:
        server.close()
        spark.stop()
    report = Report("postgres", ("median", "rows/s", "of COPY", "of JDBC", "CPU s per million rows: Spark", "server"))
    speed = {way: statistics.median(found) for way, found in samples.items()}
    for way in samples:
        seconds = [f"{statistics.median(turn[i] for turn in cpu[way]):.1f}" for i in (0, 1)]
        ratios = [f"{speed[way] / speed[base]:.2f}" for base in (COPY, JDBC)]
        report.rows.append((way, f"{speed[way]:,.0f}", *ratios, *seconds))
    for way, base, least in BARS:
        what = f"{way} of {base.split(',')[0]}"
        report.bars.append(Bar(what, speed[way] / speed[base], least, "times", floor=True))
    report.details = {"rows": options.rows, "batchsize": options.batchsize, "samples": samples, "cpu": cpu}
    code = report.finish()
    print(*over_all(), sep="\n")
    return code


def over_all() -> list[str]:
    """Of each ratio: every run that is kept, the median of the last three, and how many missed the bar, if any."""
    runs = json.loads((RESULTS / "postgres.json").read_text())["runs"]
    lines = []
    for way, base, *least in (*BARS, *TOLD):
        what = f"{way} of {base.split(',')[0]}"
        found = [ratio for run in runs if (ratio := ratio_of(run["rows"], way, base)) is not None]
        middle, shown = statistics.median(found[-WHOLE:]), ", ".join(f"{value:.2f}" for value in found)
        missed = f"; {sum(value < least[0] for value in found)} of {len(found)} missed" if least else "; no bar"
        lines.append(f"{what}: {middle:.2f} in the middle of the last {WHOLE}{missed} ({shown})")
    return lines


def ratio_of(rows: Sequence[Sequence[str]], way: str, base: str) -> float | None:
    """What a table says; None when it has no such way."""
    speed = {row[0]: float(row[1].replace(",", "")) for row in rows}
    if STAGED not in speed:
        way = OLD_NAMES.get(way, way)
    return speed[way] / speed[base] if way in speed else None


if __name__ == "__main__":
    sys.exit(main())
