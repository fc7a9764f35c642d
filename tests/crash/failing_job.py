"""Queries that fail, hang and are stopped, in a process of their own: `python -m tests.crash.failing_job SPEC`.

What the process saw goes to `seen.json` in its work folder; what it printed is the test's to look at.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

import holdfast as hf
from holdfast.errors import HoldfastError, RowError
from tests.crash.harness import holdfast
from tests.crash.job import SCHEMA, FolderEndpoint
from tests.spark_conf import FAST


class Moody(FolderEndpoint):
    """An endpoint that does what a file in its folder says: `down`, `hang`, or `broken` for an error for good."""

    name = "folder"

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: int, timestamp: int) -> bool:
        """See FolderEndpoint."""
        folder = Path(self.folder)
        if (folder / "hang").exists():
            (folder / "hanging").touch()
            time.sleep(3600)
        if (folder / "broken").exists():
            raise RowError(f"sink {self.name!r}: the endpoint takes no such rows")
        return super().send_values(values, checkpoint_id, timestamp)


class Slow(hf.SqliteSink):
    """A sink whose tasks take their time, and say when they are at it."""

    def write(self, txn: Any, batch: pa.RecordBatch) -> None:
        """See SqliteSink."""
        super().write(txn, batch)
        Path(self.table.path).with_name("writing").touch()
        time.sleep(2)


class Told(StreamingQueryListener):
    """What Spark tells listeners of the end of queries."""

    def __init__(self) -> None:
        self.ends: list[str | None] = []

    def onQueryStarted(self, event: Any) -> None:
        """See StreamingQueryListener."""

    def onQueryProgress(self, event: Any) -> None:
        """See StreamingQueryListener."""

    def onQueryIdle(self, event: Any) -> None:
        """See StreamingQueryListener."""

    def onQueryTerminated(self, event: Any) -> None:
        """See StreamingQueryListener."""
        self.ends.append(event.exception)


class Job:
    """One process's queries."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.work = Path(spec["work"])
        self.endpoint = self.work / "endpoint"
        self.endpoint.mkdir(exist_ok=True)
        self.spark: SparkSession = hf.session("failing", conf={**FAST, "spark.master": "local[2]"})
        self.spark.sparkContext.setLogLevel("ERROR")
        self.listener = Told()
        self.spark.streams.addListener(self.listener)
        self.seen: dict[str, Any] = {}

    def start(self, sinks: list[Any], name: str = "crash-test", folder: str = "checkpoint", **options: Any) -> Any:
        """A query over all input, one file a checkpoint."""
        source = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(self.work / "in"))
        writer = hf.write_stream(
            source.repartition(2), sinks, name=name, checkpoint_location=str(self.work / folder), **options
        )
        return writer.trigger(processingTime="200 milliseconds").start()

    def table(self, name: str = "orders") -> hf.SqliteSink:
        """A table of the work folder's database."""
        return hf.SqliteSink(str(self.work / "out.db"), name)

    def tell(self) -> None:
        """Leave word for the test; Spark's listeners hear of an end a moment after it."""
        deadline = time.monotonic() + 60
        while not self.listener.ends and time.monotonic() < deadline:
            time.sleep(0.1)
        self.seen["listener"] = self.listener.ends
        (self.work / "seen.json").write_text(json.dumps(self.seen))

    # -- what they go through ---------------------------------------------------------------------------------------

    def fails_between_batches(self) -> None:
        """Its source is quiet when the endpoint breaks for good; the process does what any would do about it."""
        (self.endpoint / "down").touch()
        query = self.start([Moody(str(self.endpoint)), self.table()])
        query.processAllAvailable()
        (self.endpoint / "broken").touch()
        try:
            self.spark.streams.awaitAnyTermination()
        finally:
            try:
                query.awaitTermination()
            except HoldfastError as error:
                self.seen["raised"] = {"type": type(error).__name__, "action": error.action, "text": str(error)}
            self.seen["exception"] = str(query.exception())
            self.tell()

    def hangs(self) -> None:
        """An endpoint never answers: a table beside it gets all rows, another pipeline starts, stop comes back."""
        (self.endpoint / "hang").touch()
        query = self.start([Moody(str(self.endpoint)), self.table()])
        wait((self.endpoint / "hanging").exists)
        query.processAllAvailable()
        self.seen["active"] = query.isActive
        told = holdfast("status", str(self.work / "checkpoint"))
        self.seen["status"] = {"code": told.returncode, "text": told.stdout}
        ended: dict[str, Any] = {}

        def stop() -> None:
            began = time.monotonic()
            try:
                query.stop()
            except HoldfastError as error:
                ended["error"] = f"{type(error).__name__}: {error}"
            ended["took"] = time.monotonic() - began

        stopping = threading.Thread(target=stop)
        stopping.start()
        began = time.monotonic()
        other = self.start([self.table("other")], name="other", folder="other")
        self.seen["other_started"] = time.monotonic() - began
        other.processAllAvailable()
        other.stop()
        stopping.join(120)
        self.seen["stop"] = ended
        self.tell()

    def loses_spark(self) -> None:
        """Its Java process is killed, as a system that runs out of memory does; the program starts Spark again."""
        query = self.start([Slow(str(self.work / "out.db"), "orders")])
        wait((self.work / "writing").exists)
        gateway: Any = self.spark.sparkContext._gateway
        gateway.proc.kill()
        try:
            query.awaitTermination()
        except HoldfastError as error:
            self.seen["raised"] = {"type": type(error).__name__, "action": error.action, "text": str(error)}
        self.seen["active"], self.seen["exception"] = query.isActive, str(query.exception())
        query.stop()
        told = holdfast("status", str(self.work / "checkpoint"))
        self.seen["status"] = {"code": told.returncode, "text": told.stdout}
        self.spark = hf.session("again", conf={**FAST, "spark.master": "local[2]"})
        query = self.start([self.table()])
        query.processAllAvailable()
        query.stop()
        (self.work / "seen.json").write_text(json.dumps(self.seen))

    def is_stopped(self) -> None:
        """In the middle of a batch; the second time at once."""
        for now in (False, True):
            writing = self.work / "writing"
            writing.unlink(missing_ok=True)
            query = self.start([Slow(str(self.work / "out.db"), "orders")])
            wait(writing.exists)
            print(f"STOP now={now}", flush=True)
            began = time.monotonic()
            query.stop(now=now)
            self.seen[f"took now={now}"] = time.monotonic() - began
            left = [str(path) for path in (self.work / "checkpoint" / "holdfast" / "wal").rglob("*.arrow")]
            self.seen[f"left now={now}"] = left
            self.seen[f"decided now={now}"] = len(
                list((self.work / "checkpoint" / "holdfast" / "commits").glob("*.json"))
            )
            time.sleep(2)
            print(f"STOPPED now={now}", flush=True)
        self.tell()


def wait(condition: Any, timeout: float = 120) -> None:
    """Until it holds."""
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError("waited in vain")
        time.sleep(0.05)


if __name__ == "__main__":
    SPEC = json.loads(sys.argv[1])
    getattr(Job(SPEC), SPEC["does"])()
