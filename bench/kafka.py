"""Kafka to Kafka: holdfast's sink against Spark's own (at-least-once), Flink's (exactly-once) and bare librdkafka.

Four partitions, rows of 16-byte keys and 100-byte values, one broker for all. Every run is a process of its own; the
ways take turns, and a round has one run of each. `steady` is the median time of a micro-batch after the first ones of a
run and before the one that meets the end of the topic; `whole` is from the start of the process until a read-committed
consumer could see the last row; `latency` is that of small micro-batches, from Spark's trigger until a consumer in
another process had all rows. Spark's own runs twice: with the settings that its source and sink come with, which is
what the bars judge, as holdfast's `read_kafka` and `KafkaSink` run with theirs; and told the same as holdfast tells
Spark's source and librdkafka (`ALIKE`).
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.servers.kafka import KafkaBroker

from bench import kafka_flink
from bench.kafka_job import ALIKE_SPARK, RAW, SPARK, TWO_PHASE, WRITE_AHEAD
from bench.kafka_plot import plot
from bench.kafka_topics import ALIKE, Curve, Topics
from bench.report import RESULTS, Bar, Report

FLINK = "flink"
NAMES = {
    SPARK: "Spark's own, at-least-once",
    ALIKE_SPARK: "Spark's own, told alike",
    TWO_PHASE: "holdfast, two-phase",
    WRITE_AHEAD: "holdfast, write-ahead",
    FLINK: "Flink, exactly-once",
    RAW: "librdkafka from memory",
}
SMALL = 1000
FLOORS = {TWO_PHASE: 1.0, WRITE_AHEAD: 0.6}
FACTOR, EXTRA_MS = 1.5, 150.0
MOONSHOT = 1.2
#: Batches of a run that are not steady: Java compiles, Python starts and imports.
WARM_UP = 2


@dataclass
class Measured:
    """What the runs of one way gave."""

    steady: list[float] = field(default_factory=list)  # seconds a batch
    first: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)  # of the whole run, without the broker
    latency: list[float] = field(default_factory=list)  # milliseconds
    curves: list[list[tuple[float, int]]] = field(default_factory=list)


class Bench:
    """The broker, the input, and the runs so far."""

    def __init__(self, folder: Path, topics: Topics, options: argparse.Namespace) -> None:
        self.folder, self.topics, self.options = folder, topics, options
        self.source, self.small = topics.make("in"), topics.make("small")
        topics.fill(self.source, options.rows)
        topics.fill(self.small, SMALL * options.small)
        self.measured: dict[str, Measured] = {}
        self._runs = 0

    def run(self, way: str) -> None:
        """All rows once, in large batches."""
        batches, cpu, curve, begin = self._process(
            way, self.source, self.options.rows, self.options.batch, rowwise=False
        )
        found = self.measured.setdefault(way, Measured())
        found.cpu.append(cpu)
        found.whole.append(curve[-1][0] - begin)
        found.curves.append([(at - begin, rows) for at, rows in curve])
        seconds = [b["durationMs"]["triggerExecution"] / 1000 for b in batches]
        if seconds:
            found.first.append(seconds[0])
            # Spark shares a batch out among partitions and rounds down: all are a few rows short, the last far more. In
            # the last full one, before it, each task meets the end of its partition and waits there, whatever the sink:
            # Kafka's consumer asks for rows that are not there yet (fetch.max.wait.ms) before it can ask anything else.
            full = [(s, b["numInputRows"]) for s, b in zip(seconds, batches, strict=True)]
            full = [s * self.options.batch / rows for s, rows in full if rows > self.options.batch / 2]
            found.steady += full[WARM_UP:-1] or full[-1:]
        self._say(way, f"whole {found.whole[-1]:.1f} s, batches {' '.join(f'{s:.2f}' for s in seconds)}")

    def run_small(self, way: str) -> None:
        """Batches of 1,000 rows, one after the other."""
        rows = SMALL * self.options.small
        batches, _, curve, _ = self._process(way, self.small, rows, SMALL, rowwise=True)
        found, seen = [], 0
        for batch in batches:
            seen += batch["numInputRows"]
            visible = next(at for at, rows in curve if rows >= seen)
            trigger = datetime.datetime.fromisoformat(batch["timestamp"]).timestamp()
            found.append((visible - trigger) * 1000)
        steady = found[min(5, len(found) - 1) :]
        self.measured.setdefault(way, Measured()).latency += steady
        self._say(way, f"{SMALL} rows visible after {statistics.median(steady):.0f} ms")

    def _process(
        self, way: str, source: str, rows: int, batch: int, *, rowwise: bool
    ) -> tuple[list[dict[str, Any]], float, list[tuple[float, int]], float]:
        """Run one way to its end; its batches, CPU seconds, the curve of visible rows, and when it was started."""
        self._runs += 1
        target, folder = self.topics.make("out"), self.folder / f"run-{self._runs}"
        servers = self.topics.bootstrap
        if way == FLINK:
            command, environment = kafka_flink.command(folder, servers, source, target)
        else:
            job = [way, servers, source, target, str(rows), str(batch), str(folder)]
            command, environment = [sys.executable, "-m", "bench.kafka_job", *job], dict(os.environ)
        curve = Curve(self.topics, target, rowwise=rowwise)
        curve.start()
        begin, before = time.time(), _children()
        # In a session of its own and without a terminal, for which Flink's client would ask.
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
            start_new_session=True,
        )
        spent = _children() - before
        if done.returncode:
            raise RuntimeError(f"{NAMES[way]} failed:\n{(done.stdout + done.stderr)[-4000:]}")
        points = curve.finish()
        count = self.topics.count(target)
        if count != rows and not (way in (SPARK, ALIKE_SPARK) and count > rows):
            raise RuntimeError(f"{NAMES[way]}: {count} rows of {rows} are visible:\n{done.stdout[-4000:]}")
        self.topics.delete(target)
        if way == FLINK:
            return [], spent, points, begin
        told = json.loads(done.stdout.strip().splitlines()[-1])
        return told["batches"], told["cpu"], points, begin

    def _say(self, way: str, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {NAMES[way]}: {text}", flush=True)


def _children() -> float:
    """CPU seconds of the processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def report(measured: dict[str, Measured], options: argparse.Namespace) -> Report:
    heads = ("batch s", "rows/s", "ratio", "to alike", "first s", "whole s", "CPU s", "latency ms")
    made = Report("kafka", ("median of all rounds", *heads))
    for way, found in measured.items():
        steady = statistics.median(found.steady) if found.steady else None
        made.rows.append(
            (
                NAMES[way],
                f"{steady:.2f}" if steady else "",
                f"{options.batch / steady:,.0f}" if steady else "",
                *(f"{r:.2f}" if (r := ratio(measured, way, to)) else "" for to in (SPARK, ALIKE_SPARK)),
                f"{statistics.median(found.first):.2f}" if found.first else "",
                f"{statistics.median(found.whole):.1f}" if found.whole else "",
                f"{statistics.median(found.cpu):.1f}" if found.cpu else "",
                f"{statistics.median(found.latency):.0f}" if found.latency else "",
            )
        )
    made.bars = list(bars(measured))
    made.details = {
        "rows": options.rows,
        "batch": options.batch,
        "producers": ALIKE,
        "flink": {"version": kafka_flink.VERSION, "checkpoint_ms": kafka_flink.CHECKPOINT_MS},
        "measured": {way: vars(found) for way, found in measured.items()},
    }
    return made


def ratio(measured: dict[str, Measured], way: str, to: str) -> float | None:
    """How many times the steady throughput of another way; None unless both were run."""
    mine, other = (measured[w].steady if w in measured else [] for w in (way, to))
    return statistics.median(other) / statistics.median(mine) if mine and other else None


def bars(measured: dict[str, Measured]) -> list[Bar]:
    """Judged only where both sides were run."""
    found, spark = [], measured.get(SPARK)
    for way, floor in FLOORS.items():
        mine = measured.get(way)
        if mine is None or spark is None:
            continue
        if (times := ratio(measured, way, SPARK)) is not None:
            found.append(Bar(f"throughput of {NAMES[way]}, to Spark's own", times, floor, "times", floor=True))
        if mine.latency and spark.latency:
            allowed = FACTOR * statistics.median(spark.latency) + EXTRA_MS
            rule = f"{FACTOR} times Spark's own plus {EXTRA_MS:.0f} ms"
            found.append(Bar(f"latency of {NAMES[way]}", statistics.median(mine.latency), allowed, "ms", rule=rule))
    return found


def moonshots(measured: dict[str, Measured]) -> list[str]:
    """Wished for, not judged."""
    lines, mine = [], measured.get(TWO_PHASE)
    if (times := ratio(measured, TWO_PHASE, SPARK)) is not None:
        lines.append(f"moonshot: {times:.2f} times Spark's own, wished for {MOONSHOT}")
    if mine is not None and mine.whole and (flink := measured.get(FLINK)) is not None and flink.whole:
        times = statistics.median(mine.whole) / statistics.median(flink.whole)
        lines.append(f"moonshot: the whole run takes {times:.2f} times Flink's, wished for 1")
    return lines


def main(arguments: list[str] | None = None) -> int:
    ways = list(NAMES)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of a run (default 4 million)")
    parser.add_argument("--batch", type=int, default=500_000, help="rows of a micro-batch (default 500,000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way (default 3)")
    parser.add_argument(
        "--small", type=int, default=45, help="micro-batches of 1,000 rows a round (default 45; 0: none)"
    )
    parser.add_argument("--only", nargs="+", choices=ways, default=ways, help="these ways only")
    options = parser.parse_args(arguments)
    if FLINK in options.only:
        kafka_flink.jars()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        broker = KafkaBroker(Path(folder) / "broker")
        broker.start()
        try:
            bench = Bench(Path(folder), Topics(broker.bootstrap), options)
            for _ in range(options.rounds):
                for way in options.only:
                    bench.run(way)
                for way in options.only:
                    if options.small and way in (SPARK, *FLOORS):
                        bench.run_small(way)
        finally:
            broker.stop()
    made = report(bench.measured, options)
    code = made.finish()
    for line in moonshots(bench.measured):
        print(line)
    print(f"plotted in {plot(bench.measured, NAMES, options.batch).relative_to(RESULTS.parent.parent)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
