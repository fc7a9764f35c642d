"""A driver that goes through `format("holdfast")`: `python -m tests.crash.door_job SPEC`, SPEC as JSON.

With `remote` it is a client of Spark Connect, and goes through `hf.write_stream` and the format in turn.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from pyspark.sql import SparkSession

import holdfast as hf
from tests.spark_conf import FAST

SCHEMA = "id long, word string, at timestamp"


def main() -> None:
    """Run the query over all input there is."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    work, sinks = spec["work"], [{"sqlite": {"path": f"{spec['work']}/out.db", "table": t}} for t in ("orders", "copy")]
    if "remote" in spec:
        spark = SparkSession.builder.remote(spec["remote"]).getOrCreate()
    else:
        spark = hf.session("doors", conf={**FAST, "spark.master": "local[2]"})
        spark.sparkContext.setLogLevel("ERROR")
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(f"{work}/in").repartition(2)
    location = {"name": "crash-test", "checkpoint_location": f"{work}/checkpoint"}
    if spec.get("through") == "write_stream":
        made = [hf.SqliteSink(one["sqlite"]["path"], one["sqlite"]["table"]) for one in sinks]
        writer = hf.write_stream(frame, made, **location)
        try:
            writer.outputMode("update")
            raise SystemExit("update mode was not refused")
        except hf.HoldfastError as error:
            assert "classic SparkSession" in str(error), error
    else:
        writer = frame.writeStream.format("holdfast").option("checkpointLocation", f"{work}/checkpoint")
        writer = writer.options(name="crash-test", sinks=json.dumps(sinks))
    writer.trigger(availableNow=True).start().awaitTermination()


if __name__ == "__main__":
    main()
