"""How much memory the Python workers take while one large micro-batch goes through a write-ahead sink.

Ten million rows of three columns (a number, a time, a text; about 40 bytes) are sealed in the log by two tasks and then
delivered from it. The resident set of every Python process under this one's JVM is sampled from /proc; the kernel's own
high-water mark of each process settles what happened between two samples.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

import holdfast as hf
from bench.report import Bar, Report
from bench.sinks import Counted

ALLOWED_MB = 400
WRITE, DELIVER = "writing", "delivering"


def children() -> dict[int, list[int]]:
    """Every process by its parent."""
    found: dict[int, list[int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # it ended just now
            continue
        found.setdefault(parent, []).append(int(path.parent.name))
    return found


def python_workers(root: int) -> list[int]:
    """The Python processes below this one: Spark's worker daemon and the workers it forks."""
    tree = children()
    queue, below = [root], []
    while queue:
        found = tree.get(queue.pop(), [])
        queue += found
        below += found
    return [pid for pid in below if "python" in executable(pid)]


def executable(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/exe").readlink().name
    except OSError:
        return ""


def memory_of(pid: int) -> tuple[float, float]:
    """(resident now, highest so far) in MB; zeros when the process is gone."""
    try:
        lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        now, high = (int(lines[key].split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))
    except (OSError, KeyError):
        return 0.0, 0.0
    return now, high


class Sampler(threading.Thread):
    """Watches the workers; `phase` says what they are doing."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.phase = WRITE
        #: phase -> pid -> highest resident set sampled
        self.sampled: dict[str, dict[int, float]] = {WRITE: {}, DELIVER: {}}
        self.high: dict[int, float] = {}
        self.count = 0
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(0.02):
            phase = self.sampled[self.phase]
            for pid in python_workers(os.getpid()):
                now, high = memory_of(pid)
                phase[pid] = max(phase.get(pid, 0.0), now)
                self.high[pid] = max(self.high.get(pid, 0.0), high)
            self.count += 1

    def stop(self) -> None:
        self._over.set()
        self.join()


class Watched(Counted):
    """Tells the sampler, on the driver, when the delivery begins, and how long it took."""

    sampler: Sampler | None = None
    #: seconds of the delivery, once it is over
    took: float | None = None

    def __getstate__(self) -> dict[str, object]:
        return {key: value for key, value in self.__dict__.items() if key != "sampler"}

    def commit(self, checkpoint_id: int, committables: object, tasks: hf.Tasks) -> hf.Outcome | None:
        assert self.sampler is not None
        self.sampler.phase = DELIVER
        began = time.perf_counter()
        outcome = super().commit(checkpoint_id, committables, tasks)
        self.took = time.perf_counter() - began
        return outcome


def run(rows: int, folder: Path) -> tuple[Sampler, dict[str, float]]:
    """One batch of so many rows through the sink; the sampler and how long each phase took."""
    spark = hf.session("memory", conf={"spark.log.level": "ERROR"})
    reader = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows).option("numPartitions", 2)
    frame = reader.load().selectExpr("value", "timestamp", "concat('row number ', value) AS text")
    delivered = folder / "delivered"
    delivered.mkdir()
    sink = Watched(delivered, hf.FileCheckpointCommitter(str(folder / "committer")))
    sink.sampler = sampler = Sampler()
    location = str(folder / "checkpoint")
    writer = hf.write_stream(frame, sink, name="memory", checkpoint_location=location)
    sampler.start()
    query = writer.trigger(processingTime="1 hour").start()  # one batch at once, the next far away
    try:
        # The batch does not wait for a sink that may lag, so its end is not the end of the delivery.
        while sink.took is None and query.isActive:
            time.sleep(0.1)
    finally:
        sampler.stop()
        query.stop()
    if query.exception() is not None:
        raise query.exception()
    (checkpoint,) = hf.checkpoints(location)
    arrived = sum(int(path.read_text()) for path in delivered.iterdir())
    assert checkpoint.rows == arrived == rows, f"{arrived} of {rows} rows arrived"
    spark.stop()
    assert sink.took is not None
    return sampler, {WRITE: checkpoint.durations["tasks"], DELIVER: sink.took}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows in the one batch (default 10,000,000)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        sampler, durations = run(options.rows, Path(folder))
    report = Report("memory", ("phase", "largest worker, MB", "seconds"))
    for phase in (WRITE, DELIVER):
        largest = max(sampler.sampled[phase].values())
        report.rows.append((phase, f"{largest:.0f}", f"{durations[phase]:.1f}"))
    peak = max(sampler.high.values())
    report.rows.append(("whole run (kernel's mark)", f"{peak:.0f}", ""))
    report.bars.append(Bar("peak memory of a Python worker", peak, ALLOWED_MB, "MB"))
    report.details = {
        "rows": options.rows,
        "samples": sampler.count,
        "sampled_mb": sampler.sampled,
        "high_mb": sampler.high,
        "durations": durations,
    }
    print(f"{options.rows:,} rows arrived; {sampler.count} samples of {len(sampler.high)} Python processes")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
