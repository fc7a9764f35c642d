"""What holdfast adds to a micro-batch: one two-phase sink that writes nowhere, against a bare foreachBatch.

Both queries read the same source (1,000 rows a batch, one partition) in the same SparkSession and send the rows through
one mapInArrow whose single message is collected. The bare one does no more than that; holdfast's also decides, commits
and records. They run in turns, and the first batches after each start are not counted. Beside them, and judged by no
bar: the bare one with Spark's checkpoint files written as Spark comes, not as holdfast has them written.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

import holdfast as hf
from bench.report import Bar, Report
from bench.sinks import Nowhere
from holdfast.checkpoint.history import INTERRUPTED
from holdfast.spark.checkpoint_files import quick_files

ROWS = 1000
FACTOR, EXTRA_MS = 1.2, 20.0
#: milliseconds of a trigger on two cores, whatever a bare one takes
MOST_MS = 100.0
TRIGGER, CALL = "trigger", "foreachBatch"
DEFAULT, BARE, HOLDFAST = "bare, as Spark comes", "bare", "holdfast"
Sample = dict[str, float]


def source(spark: SparkSession) -> DataFrame:
    reader = spark.readStream.format("rate-micro-batch").option("numPartitions", 1)
    return reader.option("rowsPerBatch", ROWS).load()


def drain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pydict({"report": [str(rows)]})


def bare(spark: SparkSession, location: Path, *, alike: bool = True) -> StreamingQuery:
    def run(frame: DataFrame, batch_id: int) -> None:
        (answer,) = frame.mapInArrow(drain, "report string").collect()
        assert int(answer[0]) == ROWS

    writer = source(spark).writeStream.option("checkpointLocation", str(location)).foreachBatch(run)
    # Spark's own checkpoint files as holdfast has them written, so that both sides are told the same.
    with quick_files(spark, f"file:{location}") if alike else nullcontext():
        return writer.trigger(processingTime="0 seconds").start()


def through_holdfast(spark: SparkSession, location: Path) -> StreamingQuery:
    writer = hf.write_stream(source(spark), Nowhere(), name="overhead", checkpoint_location=str(location))
    return writer.trigger(processingTime="0 seconds").start()


class Clock:
    """The time of each call of a foreachBatch function, in milliseconds; holds the query still once there are enough.

    A query that is stopped in the middle of a batch fills the screen with Spark's stack traces.
    """

    def __init__(self, calls: int) -> None:
        self.calls: dict[int, float] = {}
        self.enough = calls
        self.stopping = threading.Event()

    def timed(self, function: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
        def run(frame: DataFrame, batch_id: int) -> None:
            begin = time.perf_counter()
            function(frame, batch_id)
            self.calls[batch_id] = (time.perf_counter() - begin) * 1000
            if len(self.calls) > self.enough:
                self.stopping.wait()

        return run

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Time whatever function Spark is handed meanwhile: both ways end in Spark's own foreachBatch."""
        original = DataStreamWriter.foreachBatch
        with patch.object(
            DataStreamWriter, "foreachBatch", lambda writer, function: original(writer, self.timed(function))
        ):
            yield


def round_of(start: Callable[[], StreamingQuery], clock: Clock, skip: int) -> list[Sample]:
    """Start the query, let it run, stop it: the times of its batches after the first `skip`."""
    with clock.watching():
        query = start()
    try:
        wait_for(query, lambda: len(clock.calls) > clock.enough)
        ids = sorted(clock.calls)[skip:-1]
        wait_for(query, lambda: query.lastProgress["batchId"] >= ids[-1])
        progress = {p["batchId"]: p for p in query.recentProgress}
    finally:
        threading.Timer(0.2, clock.stopping.set).start()
        query.stop()
    assert all(progress[i]["numInputRows"] == ROWS for i in ids)
    return [{TRIGGER: progress[i]["durationMs"]["triggerExecution"], CALL: clock.calls[i]} for i in ids]


def wait_for(query: StreamingQuery, condition: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        if not query.isActive:
            raise query.exception() or RuntimeError("the query ended")
        if time.monotonic() > end:
            raise TimeoutError(f"the query made too little progress: {query.status}, {query.lastProgress}")
        time.sleep(0.05)


def measure(spark: SparkSession, folder: Path, rounds: int, count: int, skip: int) -> dict[str, list[Sample]]:
    """All ways in turns, A B C A B C; the first round of each only warms up."""
    ways = {DEFAULT: partial(bare, alike=False), BARE: bare, HOLDFAST: through_holdfast}
    samples: dict[str, list[Sample]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, start in ways.items():
            clock = Clock(skip + count)
            found = round_of(partial(start, spark, folder / name), clock, skip)
            if number:
                samples[name] += found
    return samples


def phases(location: Path, skip: int) -> dict[str, float]:
    """Median milliseconds of each phase, from holdfast's own statistics."""
    checkpoints = hf.checkpoints(str(location))
    # Spark may have planned one more when the last turn was stopped; nobody began it.
    if checkpoints[-1].status == INTERRUPTED and not checkpoints[-1].durations:
        checkpoints.pop()
    odd = [c for c in checkpoints if c.rows != ROWS or c.status != "complete"]
    assert not odd, f"all checkpoints should be complete, with {ROWS} rows: {odd}"
    found = [c.durations for c in checkpoints[skip:]]
    return {name: round(1000 * statistics.median(d[name] for d in found), 2) for name in ("tasks", "decide", "commit")}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="turns of each way (default 10)")
    parser.add_argument("--count", type=int, default=12, help="counted batches a turn (default 12)")
    parser.add_argument("--skip", type=int, default=3, help="batches a turn that are not counted (default 3)")
    options = parser.parse_args(arguments)
    spark = hf.session("overhead", conf={"spark.log.level": "ERROR"})
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        samples = measure(spark, Path(folder), options.rounds, options.count, options.skip)
        inside = phases(Path(folder) / HOLDFAST, options.skip)
    spark.stop()
    report = Report("overhead", ("milliseconds, median", DEFAULT, BARE, HOLDFAST, "difference to bare", "ratio"))
    for what in (TRIGGER, CALL):
        default, a, b = (
            statistics.median(sample[what] for sample in samples[name]) for name in (DEFAULT, BARE, HOLDFAST)
        )
        report.rows.append((what, f"{default:.1f}", f"{a:.1f}", f"{b:.1f}", f"{b - a:+.1f}", f"{b / a:.2f}"))
        if what == TRIGGER:
            rule = f"{FACTOR} times bare plus {EXTRA_MS:.0f} ms"
            report.bars.append(Bar(f"a micro-batch of {ROWS:,} rows", b, FACTOR * a + EXTRA_MS, "ms", rule=rule))
            report.bars.append(Bar(f"a trigger of {ROWS:,} rows", b, MOST_MS, "ms"))
    report.details = {"batches": len(samples[BARE]), "holdfast_phases_ms": inside, "samples": samples}
    print(f"{len(samples[BARE])} batches each; holdfast's own phases, median ms: {inside}")
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
