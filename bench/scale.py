"""What a checkpoint costs the driver as it gets wider: subtasks, sinks, a slow store, a backlog, requests to a store.

The real coordinator, log and Kafka sink against a real broker, without Spark: tasks run here, in threads, and their
time is taken off. What is left is what the one driver does for each checkpoint: asking whether all is still prepared,
deciding, ending the transactions, recording. What a long history costs is measured by `make bench-history`.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
from confluent_kafka.admin import AdminClient, NewTopic

import holdfast as hf
from bench.backlog import Away
from bench.history import SlowStorage, milliseconds
from bench.report import ROOT, Bar, Report
from bench.scale_plot import plot
from bench.sinks import Drained, Nowhere
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import EnginePosition, LoopTasks, SubtaskReport
from holdfast.checkpoint.storage import LocalStorage, Storage, open_storage
from holdfast.testing.local import LocalBatch
from holdfast.testing.servers.kafka import KafkaBroker

ROWS = pa.RecordBatch.from_pydict({"value": ["x"] * 10})
PICTURE = ROOT / "docs" / "images" / "scale.png"
#: what the issue asks for: seconds for a thousand transactions; milliseconds that one more may cost
MOST_S, SLOPE_MS = 2.0, 2.0
#: subtasks of each sink where sinks are counted
BESIDE = 16
_PARTITIONS, _THREADS = 4, 8


class TimedBatch(LocalBatch):
    """Tasks side by side; remembers how long they took in all."""

    seconds = 0.0

    def write(self, run: Any, sinks: Any, checkpoint_id: int, timestamp: int, **rest: Any) -> list[SubtaskReport]:
        begin = time.perf_counter()
        with ThreadPoolExecutor(_THREADS) as pool:
            asked = [
                pool.submit(self._task, run, sinks, checkpoint_id, number, timestamp, rest.get("repair", 0))
                for number in range(len(self.partitions))
            ]
            reports = [one.result() for one in asked]
        self.seconds += time.perf_counter() - begin
        return reports


class Pipeline:
    """A checkpoint location with a driver."""

    def __init__(self, folder: Path, sinks: Sequence[Any], store: Callable[[str], Storage] = open_storage) -> None:
        self.storage = store(log_location(str(folder)))
        schema = {sink.name: ROWS.schema for sink in sinks}
        self.coordinator = Coordinator(CheckpointLog(self.storage, "scale"), list(sinks), LoopTasks())
        self.coordinator.start(lambda: EnginePosition(None, None), schema)
        self.done = 0

    def run(self, subtasks: int) -> float:
        """One checkpoint; milliseconds of the driver."""
        batch = TimedBatch([[ROWS]] * subtasks, copied=False)
        whole, _ = milliseconds(lambda: self.coordinator.run(self.done, batch))
        self.done += 1
        return whole - batch.seconds * 1000


def kafka_sinks(broker: KafkaBroker, folder: Path, count: int) -> list[Any]:
    """Two-phase sinks, each with a topic of its own."""
    names = [f"{folder.name}-{number}" for number in range(count)]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for made in admin.create_topics([NewTopic(name, _PARTITIONS, 1) for name in names]).values():
        made.result(30)
    return [hf.KafkaSink(broker.bootstrap, name, name=name) for name in names]


def widths(
    broker: KafkaBroker, folder: Path, shapes: Sequence[tuple[int, int]], rounds: int, store: Callable[[str], Storage]
) -> dict[tuple[int, int], list[float]]:
    """Milliseconds of the driver for each (sinks, subtasks); the first checkpoint of each is not counted."""
    found: dict[tuple[int, int], list[float]] = {}
    for sinks, subtasks in shapes:
        here = folder / f"{sinks}x{subtasks}-{store.__name__}".lower().replace("_", "-")
        pipeline = Pipeline(here, kafka_sinks(broker, here, sinks), store)
        found[sinks, subtasks] = [pipeline.run(subtasks) for _ in range(rounds + 1)][1:]
        pipeline.coordinator.close(60.0)
        told = " ".join(f"{ms:.0f}" for ms in found[sinks, subtasks])
        print(
            f"{time.strftime('%H:%M:%S')} {sinks} sinks, {subtasks} subtasks, {store.__name__}: {told} ms", flush=True
        )
    return found


class Counting(LocalStorage):
    """Counts what a store would be asked."""

    asked: ClassVar[Counter[str]] = Counter()

    def create(self, name: str, data: bytes) -> bool:
        self.asked["put"] += 1
        return super().create(name, data)

    def replace(self, name: str, data: bytes) -> None:
        self.asked["put"] += 1
        super().replace(name, data)

    def read(self, name: str) -> bytes:
        self.asked["get"] += 1
        return super().read(name)

    def delete(self, name: str) -> None:
        self.asked["delete"] += 1
        super().delete(name)

    def names(self, folder: str) -> list[str]:
        found = super().names(folder)
        self.asked["list"] += 1 + len(found) // 1000
        return found


def requests(folder: Path, sinks: Sequence[Any], checkpoints: int) -> dict[str, float]:
    """Requests to the store of the log, by kind, for one checkpoint of a pipeline that runs."""
    pipeline = Pipeline(folder, sinks, Counting)
    for _ in range(20):
        pipeline.run(2)
    pipeline.coordinator.drain(60.0)
    Counting.asked.clear()
    for _ in range(checkpoints):
        pipeline.run(2)
    pipeline.coordinator.drain(60.0)
    found = {kind: count / checkpoints for kind, count in Counting.asked.items()}
    pipeline.coordinator.close(60.0)
    return found


def backlog(folder: Path, pending: int) -> tuple[float, float]:
    """(milliseconds of a start, checkpoints a second afterwards) with so many of them undelivered."""
    folder.mkdir()
    flag = folder / "away"
    flag.touch()
    sink = Away(folder, 0)
    sink.max_pending = pending + 10
    before = Pipeline(folder / "c", [sink])
    for _ in range(pending):
        before.run(1)
    before.coordinator.close(5.0)
    flag.unlink()
    log = CheckpointLog(open_storage(log_location(str(folder / "c"))), "scale")
    again = Away(folder, 0)
    again.max_pending = pending + 10
    coordinator = Coordinator(log, [again], LoopTasks())
    last = pending - 1
    begin = time.perf_counter()
    coordinator.start(lambda: EnginePosition(last, last), {again.name: ROWS.schema})
    start = time.perf_counter() - begin
    assert coordinator.drain(600.0), "the backlog was not delivered in ten minutes"
    rate = pending / (time.perf_counter() - begin)
    coordinator.close(60.0)
    return start * 1000, rate


def slope(found: dict[tuple[int, int], list[float]]) -> float:
    """Milliseconds for one more transaction, between the two widest of one sink."""
    points = sorted((n, statistics.median(ms)) for (sinks, n), ms in found.items() if sinks == 1)
    (small, a), (large, b) = points[-2:]
    return (b - a) / (large - small)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--subtasks", type=int, nargs="+", default=[1, 10, 100, 400, 1000], help="of one sink")
    parser.add_argument("--sinks", type=int, nargs="+", default=[1, 2, 4, 8], help=f"with {BESIDE} subtasks each")
    parser.add_argument("--rounds", type=int, default=3, help="counted checkpoints of each (default 3)")
    parser.add_argument("--pending", type=int, default=1000, help="checkpoints of backlog (default 1,000)")
    options = parser.parse_args(arguments)
    shapes = [(1, n) for n in options.subtasks] + [(n, BESIDE) for n in options.sinks]
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        folder = Path(name)
        broker = KafkaBroker(folder / "broker")
        broker.start()
        try:
            quick = widths(broker, folder, shapes, options.rounds, open_storage)
            slow = widths(broker, folder, [(1, n) for n in options.subtasks], options.rounds, SlowStorage)
        finally:
            broker.stop()
        asked = {
            "requests a checkpoint, one two-phase sink": requests(folder / "two", [Nowhere()], 100),
            "requests a checkpoint, one write-ahead sink": requests(
                folder / "ahead", [Drained(committer=hf.FileCheckpointCommitter(str(folder / "marks")))], 100
            ),
        }
        start, rate = backlog(folder / "backlog", options.pending)
    made = Report("scale", ("driver, median", "local disk", "store of 20 ms"))
    for shape in shapes:
        ms = f"{statistics.median(slow[shape]):.0f} ms" if shape in slow else ""
        what = f"{shape[0]} sink{'s'[: shape[0] > 1]}, {shape[1]:,} subtask{'s'[: shape[1] > 1]} each"
        made.rows.append((what, f"{statistics.median(quick[shape]):.0f} ms", ms))
    for what, kinds in asked.items():
        made.rows.append((what, ", ".join(f"{count:.1f} {kind}" for kind, count in sorted(kinds.items())), ""))
    made.rows.append((f"start with a backlog of {options.pending:,} checkpoints", f"{start:.0f} ms", ""))
    made.rows.append((f"delivery of {options.pending:,} checkpoints", f"{rate:.0f}/s", ""))
    widest = max(options.subtasks)
    bound = MOST_S * widest / 1000
    made.bars = [
        Bar(f"driver, {widest:,} Kafka transactions", statistics.median(quick[1, widest]) / 1000, bound, "s"),
        Bar("driver, one more Kafka transaction", slope(quick), SLOPE_MS, "ms"),
    ]
    made.rounds = {
        "local disk": {f"{a}x{b}": ms for (a, b), ms in quick.items()},
        "store of 20 ms": {f"{a}x{b}": ms for (a, b), ms in slow.items()},
        "requests": asked,
        "backlog": {"start_ms": start, "checkpoints_per_s": rate},
    }
    plot(quick, slow, BESIDE, PICTURE)
    return made.finish()


if __name__ == "__main__":
    sys.exit(main())
