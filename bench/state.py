"""What a checkpoint costs with much state of which little changes: counts by key, a million of them against 10,000.

`hf.session(state="rocksdb")`, one SparkSession, two shuffle partitions, a sink that writes nowhere. The first batch
makes all keys, each further one changes 1 % of them; the pipelines take turns, batch by batch. The first two turns are
not counted. A third pipeline has 10,000 keys and changes as many of them as the large one does: the rows alone.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

import holdfast as hf
from bench.report import Bar, Report
from bench.sinks import Nowhere

FACTOR = 2.0
WARM = 2


class Counts:
    """One pipeline: counts by key, over files that come one by one."""

    def __init__(self, spark: SparkSession, folder: Path, name: str, keys: int, changed: int) -> None:
        self.name, self.keys, self.changed = name, keys, changed
        self._spark, self._input, self._location = spark, folder / f"{name}-in", folder / name
        self._input.mkdir()
        self._files = 0

    def batch(self) -> None:
        """One more file through the query: all keys in the first, the next few of them afterwards."""
        if self._files == 0:
            ids = range(self.keys)
        else:
            first = self._files * self.changed
            ids = [(first + n) % self.keys for n in range(self.changed)]
        hidden = self._input / f".{self._files}.tmp"
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), hidden)
        hidden.rename(self._input / f"{self._files:05d}.parquet")
        self._files += 1
        self.query.processAllAvailable()

    def start(self) -> None:
        frame = self._spark.readStream.schema("id long").parquet(str(self._input)).groupBy("id").count()
        writer = hf.write_stream(frame, Nowhere(), name=self.name, checkpoint_location=str(self._location))
        self.query = writer.outputMode("update").trigger(processingTime="10 milliseconds").start()

    def stop(self) -> None:
        self.query.stop()

    def measured(self) -> tuple[list[float], list[float], int]:
        """Seconds of each checkpoint that counts, those of its state's snapshot, and the rows of the state."""
        stats = [s for s in hf.checkpoints(str(self._location)) if s.rows == self.changed][WARM:]
        return (
            [sum(s.durations.values()) for s in stats],
            [s.state["snapshot_seconds"] for s in stats if s.state],
            max(s.state["rows"] for s in stats if s.state),
        )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of the large state (default 1,000,000)")
    parser.add_argument("--turns", type=int, default=20, help="checkpoints of each that count (default 20)")
    options = parser.parse_args(arguments)
    report = Report("state", ("state", "changed", "checkpoint ms", "snapshot ms", "rows"))
    spark = hf.session("state", state="rocksdb", conf={"spark.log.level": "ERROR"})
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        few, many = 10_000, options.keys
        pipelines = [
            Counts(spark, Path(folder), "small", few, few // 100),
            Counts(spark, Path(folder), "large", many, many // 100),
            Counts(spark, Path(folder), "same-rows", few, min(few, many // 100)),
        ]
        for pipeline in pipelines:
            pipeline.start()
        for _ in range(1 + WARM + options.turns):
            for pipeline in pipelines:
                pipeline.batch()
        for pipeline in pipelines:
            pipeline.stop()
        found = {}
        for pipeline in pipelines:
            whole, snapshots, rows = pipeline.measured()
            found[pipeline.name] = statistics.median(whole)
            report.rows.append(
                (
                    f"{pipeline.keys:,} keys",
                    f"{pipeline.changed:,}",
                    f"{statistics.median(whole) * 1000:.0f}",
                    f"{statistics.median(snapshots) * 1000:.0f}" if snapshots else "-",
                    f"{rows:,}",
                )
            )
            report.details[pipeline.name] = {"checkpoints": whole, "snapshots": snapshots}
    spark.stop()
    rule = f"{FACTOR:g} times that of 10,000 keys"
    ratio = found["large"] / found["small"]
    report.bars.append(Bar(f"a checkpoint with {many:,} keys, 1 % changed", ratio, FACTOR, "times", rule=rule))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
