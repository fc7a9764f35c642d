"""A driver that goes through `format("holdfast")`: `python -m tests.crash.door_job SPEC`, SPEC as JSON.

With `remote` it is a client of Spark Connect, and goes through `hf.write_stream` and the format in turn.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from tests.crash import kafka_job, late
from tests.crash.job import any_source, serve
from tests.spark_conf import FAST

SCHEMA = "id long, word string, at timestamp"


def made_sinks(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Those of tests.crash.job, as a job file has them."""
    if "out" in spec:
        shared = {"bootstrap_servers": spec["servers"]}
        return [{"kafka": {**shared, "topic": t, "mode": m, "name": m}} for m, t in spec["out"].items()]
    if "stores" in spec:
        # Files are completed with every checkpoint: otherwise no row would be seen before the end.
        whole = {"files": {"rolling": {"age": "0s"}}}
        return [{kind: {**options, **whole.get(kind, {})}} for kind, options in spec["stores"]]
    if spec["sink"] == "sqlite":
        return [{"sqlite": {"path": f"{spec['work']}/out.db", "table": table}} for table in ("orders", "copy")]
    folder = Path(spec["work"], "endpoint")
    folder.mkdir(exist_ok=True)
    return [{"python": {"class": "tests.crash.job.FolderEndpoint", "options": {"folder": str(folder)}}}]


def read(spark: SparkSession, spec: dict[str, Any]) -> DataFrame:
    """The input, a file or a part of the topic a batch."""
    if "out" in spec:
        return kafka_job.read(spark, spec)
    source = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{spec['work']}/in")
    return source.repartition(spec.get("partitions", 2))


def run(spec: dict[str, Any]) -> None:
    """Run the query over all input there is."""
    work, sinks = spec["work"], made_sinks(spec)
    if spec.get("late"):
        before, behind = (
            {"python": {"class": "tests.crash.late.Sleepy", "options": {"name": name}}} for name in late.NAMES
        )
        sinks = [before, *sinks, behind]
    if "remote" in spec:
        spark = SparkSession.builder.remote(spec["remote"]).getOrCreate()
    else:
        told = {**FAST, "spark.master": spec.get("master", "local[2]"), **spec.get("conf", {})}
        spark = hf.session("doors", kafka="out" in spec or any_source(), conf=told)
        spark.sparkContext.setLogLevel("ERROR")
    name = spec.get("name", "crash-test")
    frame = read(spark, spec)
    checkpoint = spec.get("checkpoint", f"{work}/checkpoint")
    if spec.get("through") == "write_stream":
        made = [hf.SqliteSink(one["sqlite"]["path"], one["sqlite"]["table"]) for one in sinks]
        writer = hf.write_stream(frame, made, name=name, checkpoint_location=checkpoint)
        try:
            writer.outputMode("update")
            raise SystemExit("update mode was not refused")
        except hf.HoldfastError as error:
            assert "classic SparkSession" in str(error), error
    else:
        writer = frame.writeStream.format("holdfast").option("checkpointLocation", checkpoint)
        writer = writer.options(name=name, sinks=json.dumps(sinks))
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    serve(run, until_well=True)  # what is beside a driver waits for its end
