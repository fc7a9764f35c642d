"""Rows on standard output, for trying things out."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import LoopTasks, Tasks
from holdfast.committers.base import CheckpointCommitter
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import check_name
from holdfast.core.options import Limit
from holdfast.sinks import wal
from holdfast.sinks.values import BAD, check_valid, first_bad, holds, is_dated, refuse
from holdfast.sinks.write_ahead import WriteAheadSink


class StdoutSink(WriteAheadSink):
    """At-least-once: what a terminal has shown cannot be taken back, and a crash while printing prints again.

    Needs nothing. A write-ahead sink that prints on the driver, one JSON object a row; meant for small streams.
    """

    def __init__(self, *, name: str = "stdout", max_pending: Limit = 1000) -> None:
        super().__init__(committer=_NoMarks(), max_pending=max_pending)
        self.name = check_name("name", name)

    @property
    def address(self) -> str:
        """See TwoPhaseCommitSink."""
        return "standard output"

    def write(self, txn: wal.LogWriter, batch: pa.RecordBatch) -> None:
        """Seal the rows; those that could not be printed are refused here, before anything is decided (rule 11)."""
        check_valid(self.name, batch)
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if holds(column.type, _is_limited):
                _check(self.name, name, column)
        super().write(txn, batch)

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: CheckpointId, timestamp: int) -> bool:
        """Print the rows."""
        for batch in values:
            # A terminal that does not speak UTF-8 is shown \\u escapes: no letter can make printing fail.
            plain = codecs.lookup(getattr(sys.stdout, "encoding", None) or "utf-8").name != "utf-8"
            lines = (json.dumps(row, default=str, ensure_ascii=plain) for row in batch.to_pylist())
            sys.stdout.write("\n".join(lines) + "\n")
        sys.stdout.flush()
        return True

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Deliver here and not in a task: an executor's standard output is a log file nobody watches."""
        return super().commit(checkpoint_id, committables, LoopTasks())


def _is_limited(kind: pa.DataType) -> bool:
    """Whether Python cannot hold every value: its years go from 1 to 9999; and a struct is a dict."""
    return is_dated(kind) or pa.types.is_duration(kind) or pa.types.is_struct(kind)


def _check(sink: str, name: str, column: pa.Array) -> None:
    try:
        column.to_pylist()
    except BAD as error:
        index = first_bad(column, lambda values: values.to_pylist())
        reason = f"Python cannot show ({error}): cast it to text, or filter it out"
        raise refuse(sink, name, column, index or 0, reason) from error


class _NoMarks(CheckpointCommitter):
    """Standard output keeps no marks; the log's own commit records are all there is."""

    def commit_checkpoint(self, subtask: int, checkpoint_id: CheckpointId) -> None:
        """Nothing to remember."""

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: CheckpointId) -> bool:
        """Never known."""
        return False
