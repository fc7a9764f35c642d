"""What many buckets cost a FileSink, and how large its decision records become.

One batch of rows in two partitions, every bucket in every Arrow batch (the worst order), without Spark: time of the
tasks and of the commit that completes every file, size of the decision record and of the state beside it, peak memory.
Then checkpoints of a fast trigger whose rows wait for their file: the largest record among them.
"""

from __future__ import annotations

import argparse
import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf
from bench.report import Bar, Report
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.loops import Inline
from holdfast.checkpoint.ports import EnginePosition, LoopTasks, SubtaskReport
from holdfast.checkpoint.storage import open_storage
from holdfast.testing.local import LocalBatch

SCHEMA = pa.schema([("id", pa.int64()), ("bucket", pa.string()), ("text", pa.string())])
ARROW_ROWS, PARTITIONS = 10_000, 2
#: what a record may have, what the tasks of 40,000 rows in 300 buckets may take, what memory may grow by
RECORD_KB, TASK_SECONDS, MEMORY_MB = 64.0, 2.0, 400.0


class Batch(LocalBatch):
    """A micro-batch without an engine, which measures its tasks."""

    def __init__(self, partitions: Sequence[Sequence[pa.RecordBatch]]) -> None:
        super().__init__(partitions, travels=False)
        self.seconds = 0.0

    def write(self, *args: Any, **options: Any) -> list[SubtaskReport]:
        start = time.perf_counter()
        reports = super().write(*args, **options)
        self.seconds = time.perf_counter() - start
        return reports


class Driver:
    """A coordinator with one file sink."""

    def __init__(self, folder: Path, rolling: hf.Rolling) -> None:
        self.folder = folder
        self.sink = hf.FileSink(folder / "out", bucket_by="bucket", rolling=rolling)
        log = CheckpointLog(open_storage(str(folder / "checkpoint" / "holdfast")), "bench")
        self.coordinator = Coordinator(log, [self.sink], LoopTasks(), loops=Inline(time.sleep))
        self.position = EnginePosition()
        self.coordinator.start(lambda: self.position, SCHEMA)

    def run(self, number: int, batch: Batch) -> None:
        self.position = EnginePosition(number, number - 1 if number else None)
        self.coordinator.run(number, batch)
        self.coordinator.drain(600.0)
        if self.coordinator.failure is not None:
            raise self.coordinator.failure

    def largest(self, pattern: str) -> float:
        """Kilobytes of the largest such file."""
        return max((path.stat().st_size for path in self.folder.glob(pattern)), default=0) / 1000


def rows(count: int, buckets: int) -> list[list[pa.RecordBatch]]:
    partitions: list[list[pa.RecordBatch]] = [[] for _ in range(PARTITIONS)]
    for number, start in enumerate(range(0, count, ARROW_ROWS)):
        ids = range(start, min(start + ARROW_ROWS, count))
        columns = [list(ids), [f"b{i * 7919 % buckets}" for i in ids], ["some text of a row"] * len(ids)]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
        partitions[number % PARTITIONS].append(pa.RecordBatch.from_arrays(arrays, schema=SCHEMA))
    return partitions


def memory() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buckets", type=int, nargs="+", default=[300, 10_000], help="default 300 10000")
    parser.add_argument("--checkpoints", type=int, default=300, help="of the fast trigger (default 300)")
    options = parser.parse_args(arguments)
    report = Report("files", ("buckets, rows", "tasks s", "whole s", "record kB", "state kB", "memory +MB"))
    record = 0.0
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        for buckets in options.buckets:
            count = 40_000 if buckets <= 300 else 20 * buckets
            batch = Batch(rows(count, buckets))
            driver = Driver(Path(folder, str(buckets)), hf.Rolling(age="0s"))
            before, start = memory(), time.perf_counter()
            driver.run(0, batch)
            whole, grown = time.perf_counter() - start, memory() - before
            made = sum("_holdfast" not in path.parts for path in (driver.folder / "out").rglob("*.parquet"))
            if made != min(buckets, count):
                raise SystemExit(f"{made} files for {buckets} buckets")
            size = driver.largest("checkpoint/holdfast/decisions/*")
            record = max(record, size)
            state = driver.largest("out/_holdfast/*/*/state/*/*")
            line = (f"{buckets:,}, {count:,}", batch.seconds, whole, size, state, grown)
            report.rows.append((line[0], *(f"{value:.1f}" for value in line[1:])))
            if buckets <= 300:
                report.bars.append(
                    Bar(f"tasks of {count:,} rows in {buckets} buckets", batch.seconds, TASK_SECONDS, "s")
                )
            report.bars.append(Bar(f"memory for {buckets:,} buckets", grown, MEMORY_MB, "MB"))
        driver = Driver(Path(folder, "fast"), hf.Rolling(size="1GB", age="10h", inactivity=None))
        for number in range(options.checkpoints):
            driver.run(number, Batch(rows(20, 10)))
        waiting = driver.largest("checkpoint/holdfast/decisions/*")
        report.rows.append((f"10, {options.checkpoints} checkpoints", "", "", f"{waiting:.1f}", "", ""))
        report.bars.append(Bar("the largest decision record", max(record, waiting), RECORD_KB, "kB"))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
