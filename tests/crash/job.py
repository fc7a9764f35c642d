"""The driver that the crash tests run, kill and start again: `python -m tests.crash.job SPEC`, SPEC as JSON."""

from __future__ import annotations

import json
import os
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf
from tests.crash import late
from tests.spark_conf import FAST

SCHEMA = "id long, word string, at timestamp"


class FolderEndpoint(hf.WriteAheadSink):
    """An endpoint with idempotent sends: one file for each (checkpoint, subtask), plus a line in a journal a send."""

    name = "folder"

    def __init__(self, folder: str, **options: Any) -> None:
        super().__init__(committer=hf.FileCheckpointCommitter(f"{folder}-marks"), **options)
        self.folder = folder

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: int, timestamp: int) -> bool:
        folder = Path(self.folder)
        if (folder / "down").exists():
            return False
        task = hf.current_task()
        temporary = folder / f".{uuid.uuid4().hex}"
        with temporary.open("w") as file:
            for batch in values:
                rows = [[row["id"], row["word"], row["at"].isoformat()] for row in batch.to_pylist()]
                file.writelines(f"{json.dumps(row)}\n" for row in rows)
        temporary.rename(folder / f"{task.lineage}-{checkpoint_id}-{task.subtask}.txt")
        with (folder / "journal").open("a") as journal:
            journal.write(f"{checkpoint_id} {task.subtask}\n")
        return True


def make_sinks(kind: str, work: str) -> list[Any]:
    """The sinks of one kind of run."""
    if kind == "routes":
        from tests.crash.routes_scenarios import routes

        return routes(work)
    if kind == "sqlite":
        return [hf.SqliteSink(f"{work}/out.db", "orders"), hf.SqliteSink(f"{work}/out.db", "copy")]
    Path(work, "endpoint").mkdir(exist_ok=True)
    endpoint = FolderEndpoint(f"{work}/endpoint")
    return [endpoint] if kind == "write-ahead" else [endpoint, hf.SqliteSink(f"{work}/out.db", "orders")]


def serve(run: Callable[[dict[str, Any]], None], *, until_well: bool = False) -> None:
    """Run what is asked for, then end; with `--warm` and a pipe, run what the standard input says, line by line.

    With `until_well` a run that ends well is the last one.
    """
    if sys.argv[1] != "--warm":
        run(json.loads(sys.argv[1]))
        return
    for line in sys.stdin:
        code = b"0"
        try:
            run(json.loads(line))
            if until_well:
                return
        except Exception:  # noqa: BLE001  said as Python says it at the end of a process
            code = b"1"
            traceback.print_exc()
        sys.stdout.flush()
        os.write(int(sys.argv[2]), code)


def any_source() -> bool:
    """Whether this process may get a run with Kafka next; for some versions of Spark there is no connector."""
    return sys.argv[1] == "--warm" and "HOLDFAST_TESTS_WITHOUT_KAFKA" not in os.environ


def run(spec: dict[str, Any]) -> None:
    """Run the query over all input there is."""
    work = spec["work"]
    conf = {**FAST, "spark.master": spec.get("master", "local[2]")}
    kafka = spec["sink"].startswith("kafka")
    spark = hf.session("crash", kafka=kafka or any_source(), conf={**conf, **spec.get("conf", {})})
    spark.sparkContext.setLogLevel("ERROR")
    mode = "append"
    if kafka:
        from tests.crash import kafka_job

        frame, sinks = kafka_job.read(spark, spec), kafka_job.sinks(spec)
    else:
        source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{work}/in")
        frame = source.repartition(spec.get("partitions", 2))
        if "stores" in spec:
            from tests.crash import stores_job

            frame, sinks = frame.selectExpr(*spec.get("columns", ["*"])), stores_job.sinks(spec["stores"])
        else:
            sinks = make_sinks(spec["sink"], work)
    if spec["sink"] == "stateful":
        from pyspark.sql import functions as f

        mode = spec.get("output_mode", "update")
        windows = source.withWatermark("at", "30 seconds").groupBy(f.window("at", "60 seconds"), "word")
        counts = windows.agg(f.count("*").alias("n"), f.sum("id").alias("total"))
        frame = counts.select(f.col("window.start").cast("string").alias("start"), "word", "n", "total")
        upsert = {"mode": "upsert", "key": ["start", "word"]} if mode != "append" else {}
        sinks = [hf.SqliteSink(f"{work}/out.db", "orders", **upsert)]
    if spec.get("late"):
        sinks = late.around(sinks)
    writer = hf.write_stream(
        frame,
        sinks,
        name=spec.get("name", "crash-test"),
        checkpoint_location=spec.get("checkpoint", f"{work}/checkpoint"),
        take_over=spec.get("take_over", False),
        retry=hf.Retry(for_=spec["retry"]) if "retry" in spec else None,
        drain_timeout=spec.get("drain_timeout", 60.0),
    )
    query = writer.outputMode(mode).trigger(availableNow=True).start()
    query.awaitTermination()


if __name__ == "__main__":
    serve(run)
