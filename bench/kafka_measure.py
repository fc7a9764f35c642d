"""What a run of the Kafka benchmark is judged by: the slope of visible rows, and CPU seconds by who used them."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

#: Between these parts of its rows a run is steady: Java has compiled, and nobody waits at the end of a topic.
LOW, HIGH = 0.30, 0.95
JVM, WORKERS, DRIVER, BROKER = GROUPS = ("jvm", "workers", "driver", "broker")
_TICKS = os.sysconf("SC_CLK_TCK")
Points = Sequence[tuple[float, int]]
Sample = tuple[float, dict[str, float]]


@dataclass
class Run:
    """One run over all rows; times are seconds since the process was started."""

    rows: int
    first: float
    whole: float
    steady: float  # rows a second
    cpu: dict[str, float] = field(default_factory=dict)  # seconds a million rows, while steady


@dataclass
class Live:
    """One run in which rows came at a fixed rate: milliseconds from a row's own time until a consumer had it."""

    rows: int
    p50: float
    p99: float
    worst: float


@dataclass
class Measured:
    """The rounds of one way."""

    runs: list[Run] = field(default_factory=list)
    live: list[Live] = field(default_factory=list)
    curves: list[list[tuple[float, int]]] = field(default_factory=list)

    def median(self, name: str) -> float | None:
        """Of one figure, over all rounds; None when there were none."""
        found = [getattr(one, name) for one in (*self.runs, *self.live) if hasattr(one, name)]
        return statistics.median(found) if found else None

    def cpu(self, *groups: str) -> float | None:
        """CPU seconds a million rows of these together, the median of all rounds."""
        found = [sum(run.cpu.get(group, 0.0) for group in groups) for run in self.runs if run.cpu]
        return statistics.median(found) if found else None

    def rounds(self) -> dict[str, Any]:
        """Every round, for the file that is kept."""
        return {"runs": [asdict(run) for run in self.runs], "live": [asdict(live) for live in self.live]}


def window(points: Points, rows: int) -> tuple[tuple[float, int], tuple[float, int]]:
    """The first points at which so much of the rows was visible."""
    low = next(p for p in points if p[1] >= LOW * rows)
    high = next(p for p in points if p[1] >= HIGH * rows)
    if high[0] <= low[0]:
        raise ValueError(f"of {rows} rows {LOW:.0%} and {HIGH:.0%} became visible at once: use smaller batches")
    return low, high


def measure(points: Points, usage: Sequence[Sample], rows: int, begin: float) -> Run:
    """What a curve of visible rows and the CPU seconds beside it say; all times as of `time.time()`."""
    low, high = window(points, rows)
    seen = high[1] - low[1]
    cpu = {}
    for group in GROUPS:
        spent = _at(usage, high[0], group) - _at(usage, low[0], group)
        cpu[group] = round(spent / seen * 1e6, 3)
    steady = seen / (high[0] - low[0])
    return Run(rows, round(points[0][0] - begin, 2), round(points[-1][0] - begin, 2), round(steady), cpu)


def _at(usage: Sequence[Sample], moment: float, group: str) -> float:
    """CPU seconds of a group at a moment, between two samples in proportion."""
    before: Sample | None = None
    for sample in usage:
        value = sample[1].get(group, 0.0)
        if sample[0] >= moment:
            if before is None:
                return value
            part = (moment - before[0]) / (sample[0] - before[0])
            return before[1].get(group, 0.0) * (1 - part) + value * part
        before = sample
    return 0.0 if before is None else before[1].get(group, 0.0)


class Usage(threading.Thread):
    """CPU seconds of a run's processes and of the broker, every half second."""

    def __init__(self, root: int, broker: int) -> None:
        super().__init__(daemon=True)
        self._root, self._broker = root, broker
        self._finished = threading.Event()
        self.samples: list[Sample] = []

    def run(self) -> None:
        while True:
            self.samples.append((time.time(), cpu_of(self._root, self._broker)))
            if self._finished.wait(0.5):
                return

    def finish(self) -> list[Sample]:
        self._finished.set()
        self.join()
        return self.samples


def cpu_of(root: int, broker: int) -> dict[str, float]:
    """Java below `root` or itself is the JVM, Python below Java a worker, the root else the driver."""
    parents: dict[int, int] = {}
    used: dict[int, tuple[str, float]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        name, fields = text[text.index("(") + 1 : text.rindex(")")], text.rpartition(")")[2].split()
        parents[int(stat.parent.name)] = int(fields[1])
        # its own, and of children that have ended
        used[int(stat.parent.name)] = name, sum(map(int, fields[11:15])) / _TICKS
    total = dict.fromkeys(GROUPS, 0.0)
    for pid, (name, seconds) in used.items():
        above = _above(pid, parents)
        if pid == broker:
            total[BROKER] += seconds
        elif pid == root or root in above:
            java = any(used[p][0].startswith("java") for p in above if p in used)
            group = JVM if name.startswith("java") else WORKERS if java else DRIVER
            total[group] += seconds
    return total


def _above(pid: int, parents: dict[int, int]) -> list[int]:
    found = []
    while (pid := parents.get(pid, 0)) > 1:
        found.append(pid)
    return found
