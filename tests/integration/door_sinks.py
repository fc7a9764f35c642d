"""Sinks that the process beside the driver imports: `python: {class: tests.integration.door_sinks.Held, ...}`."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

import holdfast as hf


class Held(hf.SqliteSink):
    """SQLite, whose commit waits while the file `hold` exists, and says who waits."""

    def __init__(self, folder: str, table: str = "orders") -> None:
        super().__init__(f"{folder}/out.db", table)
        self.folder = folder

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]], tasks: Any) -> Any:
        while Path(self.folder, "hold").exists():
            Path(self.folder, "held").write_text(str(os.getpid()))
            time.sleep(0.05)
        return super().commit(checkpoint_id, committables, tasks)


class Fails(hf.SqliteSink):
    """SQLite; a task fails after it has prepared, while the file `fail` exists."""

    def __init__(self, folder: str) -> None:
        super().__init__(f"{folder}/out.db", "orders")
        self.folder = folder

    def pre_commit(self, txn: Any) -> Any:
        made = super().pre_commit(txn)
        if Path(self.folder, "fail").exists():
            raise ValueError("the task breaks after it has prepared")
        return made


class Lags(hf.WriteAheadSink):
    """Writes what it is sent into a file; says no while the file `down` exists."""

    def __init__(self, folder: str) -> None:
        super().__init__(committer=hf.FileCheckpointCommitter(f"{folder}/marks"))
        self.folder = folder

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: int, timestamp: int) -> bool:
        if Path(self.folder, "down").exists():
            return False
        numbers = [n for batch in values for n in batch.column("id").to_pylist()]
        with Path(self.folder, "sent").open("a") as file:
            file.writelines(f"{n}\n" for n in numbers)
        return True
