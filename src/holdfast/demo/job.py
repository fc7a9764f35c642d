"""The Spark driver of the demo, in a process of its own so that it can be killed: `python -m holdfast.demo.job`."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import holdfast as hf
from holdfast.demo.files import Folder
from holdfast.demo.sink import OrdersEndpoint

NAME = "demo-orders"
FILES_PER_BATCH = 4


def run(folder: Folder, port: int) -> None:
    """Stream order files into SQLite and to the endpoint until told to stop."""
    parent = os.getppid()
    spark = hf.session(
        "holdfast-demo",
        conf={
            "spark.master": "local[2]",
            "spark.driver.memory": "1g",
            # Short-lived on purpose: compile little, keep no files outside the demo's folder.
            "spark.driver.extraJavaOptions": (
                f"-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData -Djava.io.tmpdir={folder.temporary}"
            ),
            "spark.local.dir": str(folder.temporary),
            "spark.sql.warehouse.dir": str(folder.temporary / "warehouse"),
        },
    )
    spark.sparkContext.setLogLevel("WARN")
    orders = (
        spark.readStream.schema("id BIGINT, customer STRING, cents BIGINT")
        .option("maxFilesPerTrigger", FILES_PER_BATCH)
        .json(str(folder.source))
    )
    committer = hf.FileCheckpointCommitter(str(folder.root / "committer"))
    sinks = [hf.SqliteSink(str(folder.database), "orders", name="sqlite"), OrdersEndpoint(port, committer)]
    query = (
        hf.write_stream(orders, sinks, name=NAME, checkpoint_location=str(folder.checkpoint))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    # A killed supervisor cannot say stop: then the parent is another one.
    while query.isActive and not folder.stop.exists() and os.getppid() == parent:
        time.sleep(0.1)
    failure = query.exception()
    if failure is not None:
        raise failure
    query.stop()
    spark.stop()


if __name__ == "__main__":
    run(Folder(Path(sys.argv[1])), int(sys.argv[2]))
