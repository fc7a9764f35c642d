"""What a checkpoint costs with much keyed state, when little of it changes: `hf.session(state="rocksdb")`.

The same query, a count by key, runs over the same number of changes a batch, once with a million keys of which 1 %
change, once with 10,000 keys that all change; and once with 10,000 keys of which 1 % change, which is a batch of 100
rows. They take turns; each turn is a run of its own, and its first batches, which load the state, are not counted.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from bench.report import Bar, Report
from bench.sinks import Nowhere

LARGE, SMALL, SHARE = 1_000_000, 10_000, 100
#: how much dearer a checkpoint may be
FACTOR = 2.0
BATCH, COMMIT = "micro-batch", "state commit"


@dataclass
class Way:
    """One query with its input."""

    name: str
    folder: Path
    keys: int
    changes: int
    files: int = 0
    samples: list[dict[str, float]] = field(default_factory=list)
    state: dict[str, int] = field(default_factory=dict)

    def add(self, keys: np.ndarray) -> None:
        """One more batch of input; Spark takes files in the order of their times."""
        self.folder.joinpath("in").mkdir(parents=True, exist_ok=True)
        path = self.folder / "in" / f"{self.files:05d}.parquet"
        pq.write_table(pa.table({"key": keys.astype("int64"), "amount": np.ones(len(keys))}), path)
        os.utime(path, (1_700_000_000 + self.files,) * 2)
        self.files += 1

    def turn(self, spark: SparkSession, count: int, skip: int) -> None:
        """Some more batches of changes in a run of its own; with no count, the first one, with every key."""
        if self.files == 0:
            self.add(np.arange(self.keys))
        for _ in range(count):
            self.add(np.random.default_rng(self.files).choice(self.keys, self.changes, replace=False))
        rows = spark.readStream.schema("key long, amount double").option("maxFilesPerTrigger", 1)
        sums = rows.parquet(str(self.folder / "in")).groupBy("key").agg(f.count("*").alias("n"), f.sum("amount"))
        writer = hf.write_stream(sums, Nowhere(), name=self.name, checkpoint_location=self.folder / "ck")
        query = writer.outputMode("update").trigger(availableNow=True).start()
        query.awaitTermination()
        for progress in query.recentProgress[skip:] if count else ():
            (operator,) = progress["stateOperators"]
            if (operator["numRowsTotal"], progress["numInputRows"]) != (self.keys, self.changes):
                raise RuntimeError(f"{self.name}: not the batch it should be: {progress}")
            self.samples.append(
                {
                    BATCH: float(progress["durationMs"]["triggerExecution"]),
                    # Of all tasks together.
                    COMMIT: float(operator["commitTimeMs"]),
                }
            )
            self.state = {"rows": operator["numRowsTotal"], "bytes": operator["customMetrics"]["rocksdbSstFileSize"]}

    def median(self, what: str) -> float:
        """Milliseconds."""
        return statistics.median(sample[what] for sample in self.samples)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", type=int, default=LARGE, help=f"keys of the large state (default {LARGE:,})")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default 3)")
    parser.add_argument("--count", type=int, default=14, help="batches a turn (default 14)")
    parser.add_argument("--skip", type=int, default=3, help="batches a turn that are not counted (default 3)")
    options = parser.parse_args(arguments)
    spark = hf.session("state", state="rocksdb", conf={"spark.log.level": "ERROR", "spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        changes = options.large // SHARE
        few, many, large = ways = (
            Way("few", Path(folder, "few"), SMALL, SMALL // SHARE),
            Way("many", Path(folder, "many"), SMALL, changes),
            Way("large", Path(folder, "large"), options.large, changes),
        )
        for number in range(options.rounds + 1):
            for way in ways:
                way.turn(spark, options.count if number else 0, options.skip)
        spark.stop()
    report = Report("state", ("keys", "change a batch", f"{BATCH}, ms", f"{COMMIT}, ms", "state"))
    for way in ways:
        size = f"{way.state['bytes'] / 1e6:.1f} MB"
        cells = (f"{way.median(what):.0f}" for what in (BATCH, COMMIT))
        report.rows.append((f"{way.keys:,}", f"{way.changes:,}", *cells, size))
    for small, what in ((many, f"{changes:,} changes"), (few, "1 % changes")):
        bar = Bar(
            f"{options.large:,} keys against {SMALL:,}, {what}",
            large.median(BATCH) / small.median(BATCH),
            FACTOR,
            "times",
        )
        report.bars.append(bar)
    report.details = {"samples": {way.name: way.samples for way in ways}}
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
