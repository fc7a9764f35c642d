"""An engine whose checkpoint is on disk, in Spark's files: what savepoints copy and rewinds edit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from holdfast.checkpoint.history import engine_position, log_location
from holdfast.checkpoint.ports import Run
from holdfast.checkpoint.pulse import Pulse
from holdfast.checkpoint.storage import open_storage
from tests.unit.inprocess import Engine, InProcessBatch


class SavedEngine(Engine):
    """One partition of one topic; a batch of n rows moves its offset by n. State is one file for each version."""

    def __init__(self, checkpoint: str | Path, *sinks: Any, stateful: bool = False, **options: Any) -> None:
        self.checkpoint, self.stateful = str(checkpoint), stateful
        self.spark = open_storage(self.checkpoint)
        super().__init__(log_location(self.checkpoint), *sinks, **options)

    def start(self, *sinks: Any, **options: Any) -> Run:
        self.planned, self.committed = engine_position(self.checkpoint)
        run = super().start(*sinks, location=self.checkpoint, **options)
        self.pulse = Pulse(self.log)
        self.pulse.beat(self.coordinator.deliveries, now=True)
        return run

    def plan(self, checkpoint_id: int, rows: int) -> None:
        if not self.spark.names(""):
            self.spark.replace("metadata", json.dumps({"id": "one"}).encode())
            self.spark.replace("sources/0/0", b'v1\n{"orders":{"0":0}}')
        end = self.end(checkpoint_id - 1) + rows
        told = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": checkpoint_id})
        if f"{checkpoint_id}" not in self.spark.names("offsets"):
            lines = ["v1", told, json.dumps({"orders": {"0": end}}, separators=(",", ":"))]
            self.spark.replace(f"offsets/{checkpoint_id}", "\n".join(lines).encode())

    def end(self, checkpoint_id: int) -> int:
        if checkpoint_id < 0:
            return 0
        return int(json.loads(self.spark.read(f"offsets/{checkpoint_id}").splitlines()[2])["orders"]["0"])

    def run(self, checkpoint_id: int, *partitions: Sequence[Any], **options: Any) -> InProcessBatch:
        self.plan(checkpoint_id, sum(map(len, partitions)))
        batch = super().run(checkpoint_id, *partitions, **options)
        if self.stateful:
            self.spark.replace(f"state/0/0/{checkpoint_id + 1}.delta", b"state")
        self.spark.replace(f"commits/{checkpoint_id}", b"v1\n{}")
        return batch

    def stop(self) -> None:
        """The query ends well: its sinks are done, and its driver says so."""
        self.settle()
        self.coordinator.finish(0.0)
        self.coordinator.close(0.0)
        self.pulse.end(self.coordinator.deliveries, None)
