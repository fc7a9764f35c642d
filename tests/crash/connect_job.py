"""A client of Spark Connect whose sink nobody else knows, with dead letters: `python -m tests.crash.connect_job ...`.

Arguments: the server, the folder with input in `in`. The class of the sink is that of this very script: the server
gets it with the query.
"""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import RowError


class NoNegatives(hf.SqliteSink):
    """SQLite, which takes no number below zero."""

    def write(self, txn: Any, batch: pa.RecordBatch) -> None:
        """See SqliteSink."""
        bad = [row for row, number in enumerate(batch.column("id").to_pylist()) if number < 0]
        if bad:
            raise RowError(f"sink {self.name!r}: numbers below zero", rows=bad, column="id", reason="below zero")
        super().write(txn, batch)


def main() -> None:
    """Run the query over all input there is."""
    remote, folder = sys.argv[1:]
    spark = SparkSession.builder.remote(remote).getOrCreate()
    query = hf.write_stream(
        spark.readStream.schema("id long").option("maxFilesPerTrigger", 1).json(f"{folder}/in"),
        NoNegatives(f"{folder}/out.db", "orders"),
        name="own-sink",
        checkpoint_location=f"{folder}/checkpoint",
        dead_letters=hf.DeadLetters(hf.SqliteSink(f"{folder}/out.db", "dead", name="letters"), max_ratio=None),
    ).trigger(availableNow=True)
    query.start().awaitTermination()


if __name__ == "__main__":
    main()
