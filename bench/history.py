"""Whether a long life makes a pipeline slow: starting and one more checkpoint, after 100 and after 100,000; and
starting after 10 and after 20,000 starts, on local disk and on a store that answers after 20 ms.

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
from holdfast.checkpoint.ports import EnginePosition, LoopTasks
from holdfast.checkpoint.storage import LocalStorage, Storage, open_storage
from holdfast.testing.local import LocalBatch

FACTOR = 1.5
ROWS = pa.RecordBatch.from_pydict({"value": list(range(10))})
START, RUN, LIST = "start", "one more checkpoint", "hf.checkpoints(last=10)"
AFTER, AFTER_SLOW = "start after starts", "start after starts, store of 20 ms"
LATENCY = 0.02


class Pipeline:
    """One checkpoint location and how far it has come."""

    def __init__(self, location: Path, done: int = 0) -> None:
        self.location = location
        self.done = done
        #: opens its log
        self.open: Callable[[str], Storage] = open_storage

    def start(self) -> Coordinator:
        log = CheckpointLog(self.open(log_location(str(self.location))), "history")
        committer = hf.FileCheckpointCommitter(str(self.location / "committer"))
        coordinator = Coordinator(log, [Nowhere(), Drained(committer=committer)], LoopTasks())
        last = self.done - 1 if self.done else None
        coordinator.start(lambda: EnginePosition(last, last))
        return coordinator

    def run(self, coordinator: Coordinator, count: int = 1) -> None:
        for checkpoint_id in range(self.done, self.done + count):
            coordinator.run(checkpoint_id, LocalBatch([[ROWS]], copied=False))
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


class SlowStorage(LocalStorage):
    """Local files behind a network: each answer takes 20 ms, and a listing comes in pages of a thousand, as S3's do."""

    def create(self, name: str, data: bytes) -> bool:
        time.sleep(LATENCY)
        return super().create(name, data)

    def replace(self, name: str, data: bytes) -> None:
        time.sleep(LATENCY)
        super().replace(name, data)

    def read(self, name: str) -> bytes:
        time.sleep(LATENCY)
        return super().read(name)

    def delete(self, name: str) -> None:
        time.sleep(LATENCY)
        super().delete(name)

    def names(self, folder: str) -> list[str]:
        found = super().names(folder)
        time.sleep(LATENCY * (1 + len(found) // 1000))
        return found

    def tidy(self, folder: str) -> None:
        """An object store has no temporary files."""


def restarted(location: Path, counts: Sequence[int]) -> list[Pipeline]:
    """A pipeline of ten checkpoints that was started so often since."""
    pipeline = Pipeline(location / "made")
    coordinator = pipeline.start()
    pipeline.run(coordinator, 10)
    coordinator.drain(60.0)
    coordinator.close(60.0)
    made, starts = [], 1
    for count in sorted(counts):
        for _ in range(count - starts):
            CheckpointLog(open_storage(log_location(str(pipeline.location))), "history").start()
        starts = count
        made.append(pipeline.copied_to(location / str(count)))
    return made


def in_turns(few: Pipeline, many: Pipeline, store: Callable[[str], Storage], rounds: int) -> list[tuple[float, float]]:
    """Milliseconds of a start of each, one after the other."""
    found = []
    for number in range(rounds + 2):
        pair = []
        for pipeline in (few, many):
            pipeline.open = store
            took, coordinator = milliseconds(pipeline.start)
            coordinator.close(60.0)
            pair.append(took)
        if number >= 2:  # the first ones warm up
            found.append((pair[0], pair[1]))
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--small", type=int, default=100, help="checkpoints in the short history (default 100)")
    parser.add_argument("--large", type=int, default=100_000, help="checkpoints in the long one (default 100,000)")
    parser.add_argument("--rounds", type=int, default=100, help="measurements of each (default 100)")
    parser.add_argument("--few", type=int, default=10, help="starts before the first measured one (default 10)")
    parser.add_argument("--many", type=int, default=20_000, help="... and before the second (default 20,000)")
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
        seconds, made = milliseconds(lambda: restarted(Path(fast) / "starts", [options.few, options.many]))
        print(f"made {options.many:,} starts in {seconds / 1000:.0f} s")
        few, many = (p.copied_to(Path(disk) / f"starts-{p.location.name}") for p in made)
        starts = {AFTER: in_turns(few, many, open_storage, options.rounds)}
        starts[AFTER_SLOW] = in_turns(few, many, SlowStorage, max(1, options.rounds // 10))
    report = Report(
        "history", ("milliseconds, median", f"after {options.small:,}", f"after {options.large:,}", "ratio")
    )
    for what in (START, RUN, LIST):
        a, b = (statistics.median(sample[what] for sample in samples[name]) for name in ("small", "large"))
        report.rows.append((what, f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}"))
        if what != LIST:
            report.bars.append(Bar(what, b / a, FACTOR, "times"))
    for what, pairs in starts.items():
        a, b = (statistics.median(column) for column in zip(*pairs, strict=True))
        report.rows.append((f"{what}: {options.few:,} and {options.many:,}", f"{a:.2f}", f"{b:.2f}", f"{b / a:.2f}"))
        report.bars.append(Bar(what, b / a, FACTOR, "times"))
    report.details = {"rounds": options.rounds, "samples": samples, "starts": starts}
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
