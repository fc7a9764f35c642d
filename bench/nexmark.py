"""Nexmark, exactly once from Kafka into Kafka: holdfast against Spark's own sink (told alike, as it comes) and Flink.

The events fill one topic once; every query reads it and writes JSON into a topic of its own. Published runs of Nexmark
write nowhere; here holdfast and Flink write exactly once, and Spark's own sink at least once. Every run is a process of
its own, the ways take turns, and the outputs of all ways must be equal, row by row. Events a second are the slope of
what is visible between 30 and 95 per cent of the events, as a read-committed consumer sees it. Then each query is
killed (SIGKILL) when half of its rows are visible and started again from its checkpoint: rows that were lost or
doubled, and the seconds from the second start to the first new row.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

from bench import kafka_flink, nexmark_events, processes
from bench.kafka_job import ALIKE_SPARK
from bench.kafka_measure import Usage, measure
from bench.kafka_report import FLINK, NAMES
from bench.kafka_topics import Curve, RowCurve, Topics
from bench.nexmark_job import flink_command, spark_command
from bench.nexmark_output import Audit, Progress, audit, parse
from bench.nexmark_plot import plot
from bench.nexmark_queries import QUERIES
from bench.nexmark_report import KILLED, WAYS, Found, Killed, report
from holdfast.testing.servers.kafka import KafkaBroker

_HALF, _DEADLINE = 0.5, 600.0


class Bench:
    """The broker, the events, and what was found so far."""

    def __init__(self, folder: Path, broker: KafkaBroker, options: argparse.Namespace) -> None:
        self.folder, self.topics, self.options = folder, Topics(broker.bootstrap), options
        self._broker = broker.pid
        self.source = self.topics.make("events")
        self.topics.fill(self.source, nexmark_events.batches(options.events, options.rate))
        self.found: dict[str, dict[str, Found]] = {name: {} for name in options.queries}
        self._references: dict[str, pa.Table] = {}
        self._runs = 0

    def run(self, name: str, way: str) -> None:
        """All events once."""
        query, target, log = QUERIES[name], self.topics.make("out"), self._next()
        curve, begin = (RowCurve if query.few else Curve)(self.topics, target), time.time()
        curve.start()
        process = self._start(name, way, target, log)
        usage = Usage(process.pid, self._broker)
        usage.start()
        told = processes.wait(process, log, f"{name} on {NAMES[way]}")
        points, samples = curve.finish(), usage.finish()
        table = self._output(name, target)
        reference = self._references.setdefault(name, table)
        if not (result := audit(reference, table)).equal:
            raise RuntimeError(
                f"{name}: the output of {NAMES[way]} is not that of the first way: {result}\n{told[-4000:]}"
            )
        progress = Progress(query, reference, self.options.events, self.options.rate)
        run = measure(progress.points(points), samples, self.options.events, begin)
        self._of(name, way).measured.runs.append(run)
        self._say(name, way, f"{run}, {table.num_rows} rows, equal")

    def kill(self, name: str, way: str) -> None:
        """Killed when half of the rows are visible, and started again."""
        target, log, wanted = self.topics.make("out"), self._next(), self._references[name]
        curve = RowCurve(self.topics, target)
        curve.start()
        process = self._start(name, way, target, log, bounded=False)
        self._wait(curve, process, int(wanted.num_rows * _HALF), f"{name} on {NAMES[way]}, to be killed")
        processes.kill(process)
        # What was on its way when it died is not a new row.
        time.sleep(1.0)
        before, again = curve.rows, time.time()
        if before >= wanted.num_rows:
            raise RuntimeError(f"{name} on {NAMES[way]}: all rows were visible when it was killed: give it more events")
        self._end(self._start(name, way, target, log, bounded=False), way, curve, wanted.num_rows, log)
        points = curve.finish()
        first = next((at - again for at, rows in points if rows > before), None)
        if first is None:
            raise RuntimeError(f"{name} on {NAMES[way]}: no row came after the kill, of {before} before it")
        result = audit(wanted, self._output(name, target))
        self._of(name, way).kills.append(Killed(before, round(first, 2), result.lost, result.doubled))
        self._say(name, way, f"killed after {before} rows, goes on after {first:.1f} s, {result}")
        if result.strange or (way != ALIKE_SPARK and result != Audit(0, 0, 0)):
            raise RuntimeError(f"{name} on {NAMES[way]}: after a kill the output is not the same: {result}")

    def _end(self, process: subprocess.Popen[str], way: str, curve: RowCurve, rows: int, log: Path) -> None:
        """Wait until a run that was started again has ended, or has nothing more to do.

        Flink's bounded Kafka source that went on from a checkpoint neither ends nor closes the last windows. So it is
        not bounded here, and ended when all rows are visible and checkpoints had time to bring doubled ones.
        """
        if way == FLINK:
            self._wait(curve, process, rows, f"{NAMES[way]}, started again")
            time.sleep(3.0 + 3 * self.options.checkpoint_ms / 1000)
            processes.kill(process)
        else:
            processes.wait(process, log, f"{NAMES[way]}, started again")

    def _wait(self, curve: RowCurve, process: subprocess.Popen[str], rows: int, what: str) -> None:
        """Until so many rows are visible, while the run goes on."""
        deadline = time.monotonic() + _DEADLINE
        while curve.rows < rows:
            if process.poll() is not None or time.monotonic() > deadline:
                processes.kill(process)
                raise RuntimeError(f"{what}: {curve.rows} of {rows} rows were visible when it ended or was given up")
            time.sleep(0.02)

    def _output(self, name: str, target: str) -> pa.Table:
        table = parse(QUERIES[name], self.topics.values(target))
        self.topics.delete(target)
        return table

    def _start(self, name: str, way: str, target: str, log: Path, *, bounded: bool = True) -> subprocess.Popen[str]:
        told, folder = self.options, log.with_suffix("")
        topics = self.topics.bootstrap, self.source, target
        if way == FLINK:
            command, environment = flink_command(QUERIES[name], *topics, folder, told.checkpoint_ms, bounded=bounded)
        else:
            command, environment = spark_command(way, name, *topics, told.batch, folder), dict(os.environ)
        return processes.start(command, environment, log)

    def _next(self) -> Path:
        """The log of another run; its folder has the same name."""
        self._runs += 1
        return self.folder / f"run-{self._runs}.log"

    def _of(self, name: str, way: str) -> Found:
        return self.found[name].setdefault(way, Found())

    def _say(self, name: str, way: str, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {name} {NAMES[way]}: {text}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", type=int, default=3_000_000, help="events of a run (default 3 million)")
    parser.add_argument("--rate", type=int, default=2_000, help="events a second of their own time (default 2,000)")
    parser.add_argument("--batch", type=int, default=150_000, help="events of a micro-batch (default 150,000)")
    parser.add_argument(
        "--checkpoint-ms",
        type=int,
        default=kafka_flink.CHECKPOINT_MS,
        help="between Flink's checkpoints (default 1500)",
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each query and way (default 3)")
    parser.add_argument("--only", nargs="+", choices=WAYS, default=WAYS, help="these ways only")
    parser.add_argument("--queries", nargs="+", choices=list(QUERIES), default=list(QUERIES), help="these queries only")
    parser.add_argument("--no-kill", action="store_true", help="leave the kills out")
    options = parser.parse_args(arguments)
    nexmark_events.check(options.events)
    if FLINK in options.only:
        kafka_flink.jars()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        broker = KafkaBroker(Path(folder) / "broker")
        broker.start()
        try:
            bench = Bench(Path(folder), broker, options)
            for _ in range(options.rounds):
                for name in options.queries:
                    for way in options.only:
                        bench.run(name, way)
            for name in () if options.no_kill else options.queries:
                for way in (way for way in options.only if way in KILLED):
                    bench.kill(name, way)
        finally:
            broker.stop()
    made = report(bench.found, options)
    code = made.finish()
    print(f"plotted in {plot(bench.found, whole=not made.options)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
