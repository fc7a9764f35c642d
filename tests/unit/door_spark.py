"""The part of Spark, played for the process beside the driver: what it writes down, and whom it calls when."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StringType, StructField, StructType

from holdfast.checkpoint.status import read_status
from holdfast.doors import jvm as jvms
from holdfast.doors import orders, talk
from holdfast.doors.source import Committing, DefaultSource, Told
from holdfast.errors import HoldfastError
from tests.crash.processes import wait_for
from tests.integration.helpers import ids

SCHEMA = StructType([StructField("id", LongType()), StructField("word", StringType())])


class Context:
    """What a task sees of Spark."""

    tasks = 0

    def __init__(self, batch: int, partition: int) -> None:
        Context.tasks += 1
        self._batch, self._partition, self._task = batch, partition, Context.tasks

    def partitionId(self) -> int:
        return self._partition

    def taskAttemptId(self) -> int:
        return self._task

    def attemptNumber(self) -> int:
        return 0

    def getLocalProperty(self, name: str) -> str:
        return str(self._batch)


class Spark:
    """A driver: its Java process is one that sleeps, its batches have ten rows each."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: str) -> None:
        self.folder, self.location, self._patch = folder, folder / "checkpoint", monkeypatch
        for part in ("offsets", "commits"):
            (self.location / part).mkdir(parents=True, exist_ok=True)
        self.java = subprocess.Popen(["sleep", "600"])
        self.jvm = jvms.Jvm(self.java.pid, jvms._started(self.java.pid) or "")
        sinks = [{"sqlite": {"path": str(folder / "out.db"), "table": table}} for table in ("orders", "copy")]
        self.options = {"name": "door", "checkpointlocation": str(self.location), "sinks": json.dumps(sinks), **options}

    def close(self) -> None:
        self.java.kill()
        self.java.wait()
        wait_for(lambda: not self.place.exists() or not alive(self.place), "the process beside it ends", 60)

    @property
    def place(self) -> Path:
        return talk.address(self.jvm, f"file://{self.location}")

    @property
    def source(self) -> DefaultSource:
        return DefaultSource(self.options)

    def plan(self, batch: int, schema: StructType = SCHEMA) -> Any:
        """As Spark does before the tasks."""
        (self.location / "offsets" / str(batch)).touch()
        self._patch.setattr(jvms, "driver_of", lambda worker: self.jvm)
        return self.source.streamWriter(schema, False)

    def tasks(self, writer: Any, batch: int) -> list[Told | None]:
        told = []
        for partition in range(2):
            self._patch.setattr(orders.TaskContext, "get", lambda n=partition: Context(batch, n))
            rows = [n for n in range(batch * 10, batch * 10 + 10) if n % 2 == partition]
            data = pa.RecordBatch.from_pydict({"id": pa.array(rows, pa.int64()), "word": [str(n) for n in rows]})
            told.append(writer.write(iter([data])))
        return told

    def commit(self, told: list[Any], batch: int) -> None:
        """As Spark does after them: abort follows a commit that raised."""
        self._patch.setattr(jvms, "driver_of", lambda worker: self.jvm)
        writer = Committing(self.options)
        try:
            writer.commit(told, batch)
        except HoldfastError:
            writer.abort(told, batch)
            raise
        (self.location / "commits" / str(batch)).touch()

    def run(self, *batches: int) -> None:
        for batch in batches:
            self.commit(self.tasks(self.plan(batch), batch), batch)

    def decided(self) -> list[int]:
        files = sorted(
            (self.location / "holdfast/decisions").glob("*.json"), key=lambda f: [*map(int, f.stem.split("."))]
        )
        found = [json.loads(file.read_text())["record"] for file in files]
        return [record["checkpoint_id"] for record in found if record["kind"] == "decision"]

    def assert_clean(self, batches: int) -> None:
        """Every row once in both tables, decided once, nothing left in the log."""
        for table in ("orders", "copy"):
            assert ids(self.folder / "out.db", table) == list(range(batches * 10))
        assert self.decided() == list(range(batches))
        wait_for(lambda: not list((self.location / "holdfast/wal").rglob("*.arrow")), "an empty log")
        assert not read_status(str(self.location)).pending


def alive(place: Path) -> bool:
    try:
        talk.ask(place, {"do": "nothing"})
    except OSError:
        return False
    except HoldfastError:
        return True
    return True
