"""A query with state, in a process of its own: words counted into SQLite, until somebody kills it."""

from __future__ import annotations

import sys
from pathlib import Path

import holdfast as hf
from tests.integration.helpers import read_files
from tests.spark_conf import FAST

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
STATE = {
    "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    # The one that state of the other version cannot be read with.
    "spark.sql.streaming.stateStore.checkpointFormatVersion": "1",
}


def counts(spark, folder: Path, location: str, name: str = "words", database: str = "words.db"):
    """The writer of the query over `folder/in`."""
    words = read_files(spark, folder / "in").groupBy("word").count()
    sink = hf.SqliteSink(folder / database, "words", mode="upsert", key=["word"])
    return hf.write_stream(words, sink, name=name, checkpoint_location=location).outputMode("update")


if __name__ == "__main__":
    root = Path(sys.argv[1])
    session = hf.session("savepoint", conf={**FAST, **STATE, "spark.master": "local[2]"})
    counts(session, root, str(root / "ck")).trigger(processingTime="100 milliseconds").start().awaitTermination()
