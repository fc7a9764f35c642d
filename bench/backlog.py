"""What a backlog costs those who have none: four write-ahead sinks whose endpoints are away, beside a two-phase sink.

The same pipeline runs twice in turns: with endpoints that take everything, and with endpoints that have been away for
25 checkpoints each, so that 100 deliveries are pending. Measured is what the two-phase sink sees: the time from the end
of its tasks to its commit (decide and commit in holdfast's own history), and the whole micro-batch.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf
from bench.overhead import source, wait_for
from bench.report import Bar, Report
from bench.sinks import Nowhere

SINKS, PENDING = 4, 25
#: the ratio and the milliseconds that a backlog may cost
FACTOR, EXTRA_MS = 1.2, 5.0


class Away(hf.WriteAheadSink):
    """Takes nothing while the file `away` is there, and says so at once."""

    def __init__(self, folder: Path, number: int) -> None:
        super().__init__(committer=hf.FileCheckpointCommitter(str(folder / "marks")))
        self.flag, self.name = str(folder / "away"), f"away-{number}"

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: int, timestamp: int) -> bool:
        if Path(self.flag).exists():
            raise ConnectionError("away")
        return sum(batch.num_rows for batch in values) > 0


def round_of(spark: SparkSession, folder: Path, *, away: bool, count: int) -> list[dict[str, float]]:
    """The phases of `count` checkpoints after the first 25, in milliseconds."""
    folder.mkdir()
    if away:
        (folder / "away").touch()
    location = folder / "checkpoint"
    sinks = [Nowhere(), *(Away(folder, n) for n in range(SINKS))]
    writer = hf.write_stream(source(spark), sinks, name="backlog", checkpoint_location=str(location))
    query = writer.trigger(processingTime="0 seconds").start()
    wait_for(query, lambda: (query.lastProgress or {"batchId": -1})["batchId"] >= PENDING + count)
    progress = {p["batchId"]: p["durationMs"]["triggerExecution"] for p in query.recentProgress}
    query.stop(now=True)
    found = []
    for c in hf.checkpoints(str(location)):
        if c.checkpoint_id in progress and PENDING <= c.checkpoint_id < PENDING + count:
            decided = 1000 * (c.durations["decide"] + c.durations["commit"])
            found.append({"decide and commit": decided, "micro-batch": float(progress[c.checkpoint_id])})
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (default 3)")
    parser.add_argument("--count", type=int, default=30, help="counted checkpoints a turn (default 30)")
    options = parser.parse_args(arguments)
    spark = hf.session("backlog", conf={"spark.log.level": "ERROR"})
    samples: dict[bool, list[dict[str, float]]] = {False: [], True: []}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        for number in range(options.rounds + 1):
            for away in (False, True):
                found = round_of(spark, Path(folder, f"{number}-{away}"), away=away, count=options.count)
                if number:  # the first only warms up
                    samples[away] += found
                time.sleep(1.0)
        spark.stop()
    report = Report("backlog", ("milliseconds, median", "no backlog", "backlog of 100", "ratio"))
    for what in ("decide and commit", "micro-batch"):
        without, with_it = (statistics.median(s[what] for s in samples[away]) for away in (False, True))
        report.rows.append((what, f"{without:.1f}", f"{with_it:.1f}", f"{with_it / without:.2f}"))
        if what == "decide and commit":
            rule = f"{FACTOR} times without plus {EXTRA_MS:.0f} ms"
            report.bars.append(Bar(f"{what} beside a backlog", with_it, FACTOR * without + EXTRA_MS, "ms", rule=rule))
    report.details = {"checkpoints": len(samples[True]), "samples": {str(k): v for k, v in samples.items()}}
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
