"""One stream into three routed file sinks, against three queries of their own and against three sinks without routes.

The stream reads JSON files, one a batch, and parses eight columns. Each route takes half of the rows, and they overlap.
Three queries, started together in the same session, each read all of it and filter for themselves. Without routes the
query filters, and the three sinks get the same half: as many rows as with routes. All ways run from the start of
the query to its end (`availableNow`), in turns, after a first turn that only warms up; what counts is the median. Each
turn begins with another way: Spark is a little faster from run to run, which would be the last way's luck.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from bench.report import Bar, Report

SCHEMA = (
    "id long, customer string, country string, amount double, quantity int, note string, at timestamp, paid boolean"
)
ROUTES = ("id % 2 = 0", "id % 4 < 2", "id % 4 BETWEEN 1 AND 2")
ROUTED, SEPARATE, UNROUTED = "three routes", "three queries", "three sinks, no routes"
TIMES, WITHIN = 2.0, 1.1


def make_input(folder: Path, files: int, rows: int) -> None:
    """Rows as a shop would have them."""
    folder.mkdir()
    for number in range(files):
        with (folder / f"{number:04d}.json").open("w") as file:
            for i in range(number * rows, (number + 1) * rows):
                row = {
                    "id": i, "customer": f"customer {i % 10_007}", "country": ("de", "fr", "it", "es")[i % 4],
                    "amount": i / 7, "quantity": i % 100, "note": f"a note about order {i}",
                    "at": f"2024-01-01T{i // 3600 % 24:02d}:{i // 60 % 60:02d}:{i % 60:02d}Z", "paid": i % 3 == 0,
                }  # fmt: skip
                file.write(json.dumps(row) + "\n")


def source(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder))


def sink(folder: Path, number: int) -> hf.FileSink:
    return hf.FileSink(folder / f"out-{number}", name=f"out-{number}")


def start(frame: DataFrame, sinks: Any, folder: Path, name: str) -> Any:
    writer = hf.write_stream(frame, sinks, name=name, checkpoint_location=str(folder / name))
    return writer.trigger(availableNow=True).start()


def routed(spark: SparkSession, given: Path, folder: Path) -> list[Any]:
    sinks = [hf.route(sink(folder, n), where=where) for n, where in enumerate(ROUTES)]
    return [start(source(spark, given), sinks, folder, "routed")]


def separate(spark: SparkSession, given: Path, folder: Path) -> list[Any]:
    return [
        start(source(spark, given).where(where), sink(folder, n), folder, f"separate-{n}")
        for n, where in enumerate(ROUTES)
    ]


def unrouted(spark: SparkSession, given: Path, folder: Path) -> list[Any]:
    sinks = [sink(folder, n) for n in range(len(ROUTES))]
    return [start(source(spark, given).where(ROUTES[0]), sinks, folder, "unrouted")]


WAYS: dict[str, Callable[[SparkSession, Path, Path], list[Any]]] = {
    ROUTED: routed,
    SEPARATE: separate,
    UNROUTED: unrouted,
}


def turn(way: str, spark: SparkSession, given: Path, folder: Path, expected: int) -> float:
    """Seconds from the start to the end of all queries; every sink must have its half of the rows."""
    folder.mkdir(parents=True)
    began = time.perf_counter()
    for query in WAYS[way](spark, given, folder):
        query.awaitTermination()
    took = time.perf_counter() - began
    for number in range(len(ROUTES)):
        found = ds.dataset(str(folder / f"out-{number}"), format="parquet").count_rows()
        if found != expected:
            raise SystemExit(f"{way}: sink {number} has {found:,} rows instead of {expected:,}")
    return took


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=8, help="batches of a turn (default 8)")
    parser.add_argument("--rows", type=int, default=100_000, help="of a batch (default 100000)")
    parser.add_argument("--rounds", type=int, default=6, help="turns of each way that count (default 6)")
    options = parser.parse_args(arguments)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    total = options.files * options.rows
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as made:
        folder = Path(made)
        make_input(folder / "in", options.files, options.rows)
        spark = hf.session("bench-routes", conf={"spark.master": "local[2]", "spark.ui.enabled": "false"})
        spark.sparkContext.setLogLevel("ERROR")
        for number in range(options.rounds + 1):
            ways = list(WAYS)
            for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                place = folder / f"{number}-{way.replace(' ', '-')}"
                took = turn(way, spark, folder / "in", place, total // 2)
                if number:
                    seconds[way].append(took)
                print(f"turn {number}, {way}: {took:.1f} s", flush=True)
        spark.stop()
    middle = {way: statistics.median(found) for way, found in seconds.items()}
    report = Report("routes", ("way", "seconds", "least", "most", "rows/s of the stream"))
    for way, found in seconds.items():
        cells = (f"{middle[way]:.1f}", f"{min(found):.1f}", f"{max(found):.1f}", f"{total / middle[way]:,.0f}")
        report.rows.append((way, *cells))
    report.bars = [
        Bar(
            "three routes, against three queries", middle[SEPARATE] / middle[ROUTED], TIMES, "times as fast", floor=True
        ),
        Bar("three routes, against three sinks without", middle[ROUTED] / middle[UNROUTED], WITHIN, "times as long"),
    ]
    report.details = {"seconds": seconds}
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
