"""Whether a long life makes a pipeline slow: starting and one more checkpoint, after 100 and after 100,000.

Both histories are made by the real coordinator, log and statistics, without Spark: tasks run in a loop, into a
two-phase and a write-ahead sink. They are made in memory (/dev/shm) when there is some, then copied to the same disk,
where both are measured in turns.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf
from bench.report import Bar, Report
from bench.sinks import Drained, Nowhere
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import EnginePosition, LoopTasks, Run, SubtaskReport
from holdfast.checkpoint.storage import open_storage
from holdfast.sinks.subtask import make_task, write_subtask

FACTOR = 1.5
ROWS = pa.RecordBatch.from_pydict({"value": list(range(10))})
START, RUN, LIST = "start", "one more checkpoint", "hf.checkpoints(last=10)"


class OnePartition:
    """A batch of ten rows in one partition."""

    def write(self, run: Run, sinks: Sequence[Any], checkpoint_id: int, timestamp: int) -> list[SubtaskReport]:
        tasks = [make_task(run, sink.name, checkpoint_id, 0, checkpoint_id, timestamp) for sink in sinks]
        return [write_subtask(sinks, tasks, [ROWS])]

    def drain(self) -> None:
        pass


class Pipeline:
    """One checkpoint location and how far it has come."""

    def __init__(self, location: Path, done: int = 0) -> None:
        self.location = location
        self.done = done

    def start(self) -> Coordinator:
        log = CheckpointLog(open_storage(log_location(str(self.location))), "history")
        committer = hf.FileCheckpointCommitter(str(self.location / "committer"))
        coordinator = Coordinator(log, [Nowhere(), Drained(committer=committer)], LoopTasks())
        last = self.done - 1 if self.done else None
        coordinator.start(lambda: EnginePosition(last, last))
        return coordinator

    def run(self, coordinator: Coordinator, count: int = 1) -> None:
        for checkpoint_id in range(self.done, self.done + count):
            coordinator.run(checkpoint_id, OnePartition())
            if checkpoint_id % 100 == 99:  # the write-ahead sink may lag, and is not measured
                coordinator.drain(60.0)
        self.done += count

    def copied_to(self, location: Path) -> Pipeline:
        shutil.copytree(self.location, location)
        return Pipeline(location, self.done)


def build(location: Path, sizes: Sequence[int]) -> list[Pipeline]:
    """One pipeline of each size; the larger is a longer life of the smaller."""
    pipeline = Pipeline(location / "made")
    coordinator = pipeline.start()
    made = []
    for size in sorted(sizes):
        pipeline.run(coordinator, size - pipeline.done)
        coordinator.drain(60.0)
        made.append(pipeline.copied_to(location / str(size)))
    coordinator.close(60.0)
    return made


def milliseconds(function: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = function()
    return (time.perf_counter() - begin) * 1000, result


def measure(pipeline: Pipeline) -> dict[str, float]:
    """One new run of the query: its start, one checkpoint, and a look at the statistics."""
    start, coordinator = milliseconds(pipeline.start)
    run, _ = milliseconds(lambda: pipeline.run(coordinator))
    coordinator.drain(60.0)
    coordinator.close(60.0)
    listing, found = milliseconds(lambda: hf.checkpoints(str(pipeline.location), last=10))
    assert [c.checkpoint_id for c in found] == list(range(pipeline.done - 10, pipeline.done))
    return {START: start, RUN: run, LIST: listing}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=100, help="checkpoints in the short history (default 100)")
    parser.add_argument("--large", type=int, default=100_000, help="checkpoints in the long one (default 100,000)")
    parser.add_argument("--rounds", type=int, default=100, help="measurements of each (default 100)")
    options = parser.parse_args(arguments)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=memory) as fast,
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as disk,
    ):
        seconds, made = milliseconds(lambda: build(Path(fast), [options.small, options.large]))
        print(f"made histories of {options.small:,} and {options.large:,} checkpoints in {seconds / 1000:.0f} s")
        small, large = (p.copied_to(Path(disk) / p.location.name) for p in made)
        samples: dict[str, list[dict[str, float]]] = {"small": [], "large": []}
        for number in range(options.rounds + 5):
            for name, pipeline in (("small", small), ("large", large)):
                sample = measure(pipeline)
                if number >= 5:  # the first ones warm up
                    samples[name].append(sample)
    report = Report(
        "history", ("milliseconds, median", f"after {options.small:,}", f"after {options.large:,}", "ratio")
    )
    for what in (START, RUN, LIST):
        a, b = (statistics.median(sample[what] for sample in samples[name]) for name in ("small", "large"))
        report.rows.append((what, f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}"))
        if what != LIST:
            report.bars.append(Bar(what, b / a, FACTOR, "times"))
    report.details = {"rounds": options.rounds, "samples": samples}
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
