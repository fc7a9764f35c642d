"""Sinks that cost nothing, so that what is left is holdfast."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf


class Nowhere(hf.TwoPhaseCommitSink):
    """Two-phase: counts rows and forgets them."""

    def begin(self, task: hf.Task) -> list[int]:
        return [0]

    def write(self, txn: list[int], batch: pa.RecordBatch) -> None:
        txn[0] += batch.num_rows

    def pre_commit(self, txn: list[int]) -> dict[str, Any]:
        return {"rows": txn[0]}

    def abort(self, txn: list[int]) -> None:
        pass

    def commit(self, checkpoint_id: int, committables: Any, tasks: hf.Tasks) -> None:
        pass

    def recover(self, pipeline: str, generation: int, decided: Any) -> None:
        pass


class Drained(hf.WriteAheadSink):
    """Write-ahead: reads the rows back and forgets them."""

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: int, timestamp: int) -> bool:
        for _ in values:
            pass
        return True


class Counted(hf.WriteAheadSink):
    """Write-ahead: counts the rows of each delivery into a file of a folder."""

    def __init__(self, folder: Path, committer: hf.CheckpointCommitter) -> None:
        super().__init__(committer=committer)
        self.folder = folder

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: int, timestamp: int) -> bool:
        rows = sum(batch.num_rows for batch in values)
        (self.folder / f"{checkpoint_id}-{hf.current_task().subtask}").write_text(str(rows))
        return True
