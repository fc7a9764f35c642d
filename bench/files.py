"""What many buckets cost a FileSink, and how large its decision records become.

Batches of rows without Spark, every bucket in every Arrow batch (the worst order): time of the tasks and of the whole
checkpoint, size of the decision record and of the state beside it, peak memory. Two partitions whose files are all
completed; two whose rows wait, 200 MB a task, which is six times what a pack collects before it writes; 200 partitions.
Then checkpoints of a fast trigger whose rows wait for their file: the largest record among them.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
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
EACH, LATER = hf.Rolling(age="0s"), hf.Rolling(size="1GB", age="10h", inactivity=None)
#: what a record may have, and of each subtask where there are many
RECORD_KB, SUBTASK_KB = 64.0, 0.6
#: what the tasks of 40,000 rows in 300 buckets may take, what memory may grow by
TASK_SECONDS, MEMORY_MB = 2.0, 400.0


@dataclass(frozen=True)
class Case:
    """One checkpoint."""

    buckets: int
    rows: int
    partitions: int = 2
    #: of a row's text
    width: int = 18
    rolling: hf.Rolling = EACH

    def __str__(self) -> str:
        told = [f"{self.buckets:,} buckets", f"{self.rows:,} rows"]
        told += [f"{self.partitions} subtasks"] if self.partitions != 2 else []
        told += [f"{self.rows * self.width // self.partitions // 10**6} MB a task"] if self.width > 18 else []
        return ", ".join(told + ([] if self.rolling != LATER else ["waiting"]))


class Batch(LocalBatch):
    """A micro-batch without an engine, which measures its tasks."""

    def __init__(self, partitions: Sequence[Sequence[pa.RecordBatch]]) -> None:
        super().__init__(partitions, copied=False)
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


class Partition(Sequence[pa.RecordBatch]):
    """The rows of one task, made when they are asked for: what is measured is the sink's memory."""

    def __init__(self, case: Case, number: int) -> None:
        self._case, self._number = case, number
        self._share = case.rows // case.partitions
        self._step = min(10_000, max(1, 4_000_000 // case.width))

    def __len__(self) -> int:
        return -(-self._share // self._step)

    def __getitem__(self, index: Any) -> Any:
        if index >= len(self):
            raise IndexError(index)
        start = self._number * self._share
        ids = range(start + index * self._step, start + min((index + 1) * self._step, self._share))
        text = ("some text of a row" * (self._case.width // 18 + 1))[: self._case.width]
        columns = [list(ids), [f"b{i * 7919 % self._case.buckets}" for i in ids], [text] * len(ids)]
        arrays = [pa.array(values, field.type) for values, field in zip(columns, SCHEMA, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def batch_of(case: Case) -> Batch:
    return Batch([Partition(case, number) for number in range(case.partitions)])


def peak(*, forget: bool = False) -> float:
    """Megabytes of memory this process has had at most; from now on, after `forget`."""
    if forget:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def measure(case: Case, folder: Path, report: Report) -> float:
    """Run one, and return the size of its record."""
    batch, driver = batch_of(case), Driver(folder, case.rolling)
    before, start = peak(forget=True), time.perf_counter()
    driver.run(0, batch)
    whole, grown = time.perf_counter() - start, peak() - before
    made = sum("_holdfast" not in path.parts for path in (folder / "out").rglob("*.parquet"))
    if case.rolling != LATER and made != min(case.buckets, case.rows):
        raise SystemExit(f"{made} files for {case.buckets} buckets")
    size = driver.largest("checkpoint/holdfast/decisions/*")
    state = driver.largest("out/_holdfast/*/*/state/*/*")
    line = (batch.seconds, whole, size, state, grown)
    report.rows.append((str(case), *(f"{value:.1f}" for value in line)))
    if case.buckets == 300 and case.rolling != LATER:
        report.bars.append(Bar(f"tasks of {case}", batch.seconds, TASK_SECONDS, "s"))
    if case.partitions > 2:
        allowed = SUBTASK_KB * case.partitions
        report.bars.append(Bar(f"record of {case}", size, allowed, "kB", rule=f"{SUBTASK_KB} kB a subtask"))
        return 0.0
    report.bars.append(Bar(f"memory for {case}", grown, MEMORY_MB, "MB"))
    return size


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--buckets", type=int, nargs="+", default=[300, 10_000], help="default 300 10000")
    parser.add_argument("--checkpoints", type=int, default=300, help="of the fast trigger (default 300)")
    options = parser.parse_args(arguments)
    report = Report("files", ("a batch of", "tasks s", "whole s", "record kB", "state kB", "memory +MB"))
    cases = [
        *(Case(buckets, 40_000 if buckets <= 300 else 20 * buckets) for buckets in options.buckets),
        Case(max(options.buckets), 40_000, width=10_000, rolling=LATER),
        Case(16, 40_000, partitions=200, rolling=LATER),
    ]
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        record = max(measure(case, Path(folder, str(n)), report) for n, case in enumerate(cases))
        driver = Driver(Path(folder, "fast"), LATER)
        for number in range(options.checkpoints):
            driver.run(number, batch_of(Case(10, 20)))
        waiting = driver.largest("checkpoint/holdfast/decisions/*")
        report.rows.append(
            (f"10 buckets, {options.checkpoints} checkpoints, waiting", "", "", f"{waiting:.1f}", "", "")
        )
        report.bars.append(Bar("the largest record of few subtasks", max(record, waiting), RECORD_KB, "kB"))
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
