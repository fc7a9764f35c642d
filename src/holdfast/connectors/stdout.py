"""Rows on standard output, for trying things out."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import LoopTasks, Tasks
from holdfast.committers.base import CheckpointCommitter
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import check_name
from holdfast.sinks.write_ahead import WriteAheadSink


class StdoutSink(WriteAheadSink):
    """At-least-once: what a terminal has shown cannot be taken back, and a crash while printing prints again.

    Needs nothing. A write-ahead sink that prints on the driver, one JSON object a row; meant for small streams.
    """

    def __init__(self, *, name: str = "stdout", max_pending: int | None = 1000) -> None:
        super().__init__(committer=_NoMarks(), max_pending=max_pending)
        self.name = check_name("name", name)

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: CheckpointId, timestamp: int) -> bool:
        """Print the rows."""
        for batch in values:
            lines = (json.dumps(row, default=str, ensure_ascii=False) for row in batch.to_pylist())
            sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
        return True

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Deliver here and not in a task: an executor's standard output is a log file nobody watches."""
        return super().commit(checkpoint_id, committables, LoopTasks())


class _NoMarks(CheckpointCommitter):
    """Standard output keeps no marks; the log's own commit records are all there is."""

    def commit_checkpoint(self, subtask: int, checkpoint_id: CheckpointId) -> None:
        """Nothing to remember."""

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: CheckpointId) -> bool:
        """Never known."""
        return False
