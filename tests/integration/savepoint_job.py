"""A query with state, in a process of its own: words counted into SQLite, until somebody kills it.

`python -m tests.integration.savepoint_job FOLDER LOCATION NAME DATABASE [--once]`; a LOCATION at `s3a://` is in the
store that the environment names.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import holdfast as hf
from holdfast.checkpoint import savepoint_orders
from tests.integration.helpers import read_files
from tests.servers import s3a
from tests.spark_conf import FAST


def counts(spark, folder: Path, location: str, name: str = "words", database: str = "words.db"):
    """The writer of the query over `folder/in`."""
    words = read_files(spark, folder / "in").groupBy("word").count()
    sink = hf.SqliteSink(folder / database, "words", mode="upsert", key=["word"])
    return hf.write_stream(words, sink, name=name, checkpoint_location=location).outputMode("update")


def main(folder: str, location: str, name: str, database: str, once: str = "") -> None:
    """Run it until it is killed, or once."""
    savepoint_orders.LOOK_FOR_ORDERS_FAR = 0.0  # the test waits for it
    far = s3a.settings(os.environ["AWS_ENDPOINT_URL"]) if location.startswith("s3a:") else {}
    session = hf.session("savepoint", state="rocksdb", conf={**FAST, **far, "spark.master": "local[2]"})
    writer = counts(session, Path(folder), location, name, database)
    writer.trigger(**({"availableNow": True} if once else {"processingTime": "100 milliseconds"}))
    writer.start().awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
