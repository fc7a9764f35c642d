"""Kafka to Kafka: holdfast's sink against Spark's own (at-least-once), Flink's (exactly-once) and bare librdkafka.

Four partitions, rows of 16-byte keys and 100-byte values, one broker for all. Every run is a process of its own; the
ways take turns, and a round has one run of each. Throughput is the slope of visible rows between 30 and 95 per cent of
a run, as a read-committed consumer sees them, for Flink, too; CPU seconds are those of that time, by who used them.
`first` and `whole` are from the start of the process until the first and the last row were visible. Latency is that of
rows that come at a fixed rate with their time in them, until a consumer in another process has them. Spark's own runs
twice: with the settings that its source and sink come with, and told the same as holdfast tells Spark's source and
librdkafka (`ALIKE`), which is what the bars judge.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import kafka_flink, processes
from bench.kafka_job import ALIKE_SPARK, ALL, LIVE, RAW, SPARK
from bench.kafka_live import Reader, feed
from bench.kafka_measure import Measured, Usage, measure
from bench.kafka_plot import plot
from bench.kafka_report import FLINK, NAMES, report
from bench.kafka_topics import Curve, Topics, some_rows
from bench.report import RESULTS
from holdfast.testing.servers.kafka import KafkaBroker

#: Ways that are given rows at a fixed rate: Flink's latency is that of its checkpoints, whatever it is told.
STREAMING = tuple(way for way in NAMES if way not in (FLINK, RAW))


class Bench:
    """The broker, the input, and the runs so far."""

    def __init__(self, folder: Path, broker: KafkaBroker, options: argparse.Namespace) -> None:
        self.folder, self.topics, self.options = folder, Topics(broker.bootstrap), options
        self._broker = broker.pid
        self.source = self.topics.make("in")
        self.topics.fill(self.source, some_rows(options.rows))
        self.measured: dict[str, Measured] = {}
        self._runs = 0

    def warm(self) -> None:
        """All rows once in transactions of bare librdkafka, not counted.

        The broker is one for all runs, and its Java compiles what transactions ask of it when it is asked: at first
        they cost it up to twice as much as later, and whoever came first paid for all.
        """
        target = self.topics.make("warm")
        with self._started(RAW, self.source, target, ALL) as process:
            self._ended(RAW, process)
        self.topics.delete(target)

    def run(self, way: str) -> None:
        """All rows once, in large batches."""
        rows, target = self.options.rows, self.topics.make("out")
        curve, begin = Curve(self.topics, target), time.time()
        curve.start()
        with self._started(way, self.source, target, ALL) as process:
            usage = Usage(process.pid, self._broker)
            usage.start()
            told = self._ended(way, process)
        points, samples = curve.finish(), usage.finish()
        count = self.topics.count(target)
        if count != rows and not (way in (SPARK, ALIKE_SPARK) and count > rows):
            raise RuntimeError(f"{NAMES[way]}: {count} rows of {rows} are visible:\n{told[-4000:]}")
        self.topics.delete(target)
        found = self.measured.setdefault(way, Measured())
        found.runs.append(measure(points, samples, rows, begin))
        found.curves.append([(at - begin, seen) for at, seen in points])
        self._say(way, str(found.runs[-1]))

    def run_live(self, way: str) -> None:
        """Rows at a fixed rate, in micro-batches as they come."""
        source, target = self.topics.make("live"), self.topics.make("out")
        reader = Reader(self.topics, target)
        reader.start()
        with self._started(way, source, target, LIVE) as process:
            try:
                live = feed(self.topics, source, reader)
            except BaseException:
                process.kill()
                raise
            self._ended(way, process)  # its standard input ends, and so does it
        reader.finish()
        for name in (source, target):
            self.topics.delete(name)
        self.measured.setdefault(way, Measured()).live.append(live)
        self._say(way, str(live))

    def _started(self, way: str, source: str, target: str, kind: str) -> subprocess.Popen[str]:
        self._runs += 1
        folder, servers = self.folder / f"run-{self._runs}", self.topics.bootstrap
        if way == FLINK:
            command, environment = kafka_flink.command(folder, kafka_flink.script(servers, source, target))
        else:
            sizes = [str(self.options.rows), str(self.options.batch)]
            job = [kind, way, servers, source, target, *sizes, str(folder)]
            command, environment = [sys.executable, "-m", "bench.kafka_job", *job], dict(os.environ)
        return processes.start(command, environment, self.folder / f"run-{self._runs}.log")

    def _ended(self, way: str, process: subprocess.Popen[str]) -> str:
        """Wait for a run; what it printed."""
        return processes.wait(process, self.folder / f"run-{self._runs}.log", NAMES[way])

    def _say(self, way: str, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {NAMES[way]}: {text}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    ways = list(NAMES)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=12_000_000, help="rows of a run (default 12 million)")
    parser.add_argument("--batch", type=int, default=500_000, help="rows of a micro-batch (default 500,000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each way (default 3)")
    parser.add_argument("--no-live", action="store_true", help="leave latency out")
    parser.add_argument("--no-all", action="store_true", help="leave all but latency out")
    parser.add_argument("--only", nargs="+", choices=ways, default=ways, help="these ways only")
    options = parser.parse_args(arguments)
    if FLINK in options.only and not options.no_all:
        kafka_flink.jars()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        broker = KafkaBroker(Path(folder) / "broker")
        broker.start()
        try:
            bench = Bench(Path(folder), broker, options)
            if not options.no_all:
                bench.warm()
            for _ in range(options.rounds):
                for way in () if options.no_all else options.only:
                    bench.run(way)
                for way in STREAMING:
                    if way in options.only and not options.no_live:
                        bench.run_live(way)
        finally:
            broker.stop()
    code = report(bench.measured, options).finish()
    print(f"plotted in {plot(bench.measured, NAMES).relative_to(RESULTS.parent.parent)}")
    return code


if __name__ == "__main__":
    sys.exit(main())
