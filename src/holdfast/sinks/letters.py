"""Rows that a sink did not take, as dead letters: what each says, and the box in which a task collects them."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.bad_rows import SHOWN, Letters, short, too_many
from holdfast.core.model import Committable
from holdfast.core.naming import Task
from holdfast.errors import RowError
from holdfast.sinks.channel import Channel
from holdfast.sinks.digest import Digest
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.sinks.values import BAD, shown

#: What the dead letters' sink gets.
SCHEMA = pa.schema(
    [
        ("letter", pa.string()),
        ("pipeline", pa.string()),
        ("checkpoint_id", pa.int64()),
        ("at", pa.timestamp("us", "UTC")),
        ("sink", pa.string()),
        ("column", pa.string()),
        ("reason", pa.string()),
        ("content", pa.string()),
    ]
)
#: ... and a sink of messages, such as Kafka.
MESSAGES = pa.schema([("key", pa.string()), ("value", pa.string())])
#: ... and the checkpoint location, which keeps the row itself for a replay.
KEPT = SCHEMA.append(pa.field("row", pa.binary()))
#: letters of a task before they are written
_FLUSH = 1000
#: bad rows that a task counts when nobody takes them
COUNTED = 1000


class Box:
    """The dead letters of one task."""

    def __init__(self, task: Task, channels: Sequence[Channel], letters: Letters | None, *, counting: bool) -> None:
        """`channels` are those of the sinks that take letters; without any they are counted, and that is all."""
        self._task, self.channels = task, channels
        # Without dead letters a first attempt ends at the first bad row, and the second counts them.
        self._limit = letters.max_rows if letters is not None else COUNTED if counting else 0
        self._told = None if letters is None else f"max_rows={letters.max_rows}"
        self.count = 0
        #: the first few, for an error
        self.first: list[dict[str, Any]] = []
        self._letters: list[dict[str, Any]] = []
        self._digests: dict[str, Digest] = {}
        #: letters' sink -> rows and digest
        self.written: dict[str, tuple[int, str | None]] = {}

    def add(self, sink: str, rows: pa.RecordBatch, error: RowError) -> None:
        """Rows that a sink refused."""
        for index, content in enumerate(contents(rows)):
            self.count += 1
            letter = {"sink": sink, "column": error.column, "reason": error.reason, "content": content}
            if len(self.first) < SHOWN:
                self.first.append({**letter, "content": short(content), "message": str(error)})
            if self._limit is not None and self.count > self._limit:
                raise too_many(self._task.checkpoint_id, f"more than {self._limit:,} rows", self.first, self._told)
            if self.channels:
                letter["letter"] = f"{self._task.checkpoint_id}-{self._task.subtask}-{self.count}"
                self._letters.append({**letter, "row": _serialised(rows.slice(index, 1))})
        if len(self._letters) >= _FLUSH:
            self.flush()

    def flush(self) -> None:
        """Write what is there to the letters' sinks."""
        letters, self._letters = self._letters, []
        if not letters:
            return
        at = datetime.fromtimestamp(self._task.timestamp / 1000, UTC)
        common = {"pipeline": self._task.pipeline, "checkpoint_id": self._task.checkpoint_id, "at": at}
        kept = pa.RecordBatch.from_pylist([{**common, **letter} for letter in letters], schema=KEPT)
        for channel in self.channels:
            rows = as_taken(channel.sink, kept)
            self._digests.setdefault(channel.sink.name, Digest(hashed=channel.hashed)).add(rows)
            channel.write(rows)

    def prepare(self) -> list[Committable]:
        """Pre-commit each of the letters' sinks."""
        self.flush()
        found = []
        for channel in self.channels:
            committable = channel.prepare()
            if channel.rows:
                self.written[channel.sink.name] = (channel.rows, self._digests[channel.sink.name].text)
            if committable is not None:
                digest = self._digests[channel.sink.name].text if channel.sink.repairable else None
                found.append(replace(committable, digest=digest))
        return found


def as_taken(sink: TwoPhaseCommitSink, kept: pa.RecordBatch) -> pa.RecordBatch:
    """The letters as this sink takes them."""
    if getattr(sink, "keeps_rows", False):
        return kept
    rows = kept.select(SCHEMA.names)
    return messages(rows) if sink.takes_messages else rows


def messages(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Each letter as one JSON object, with the sink that refused the row as its key."""
    values = [json.dumps({**row, "at": row["at"].isoformat()}) for row in rows.to_pylist()]
    return pa.RecordBatch.from_arrays([rows.column("sink"), pa.array(values)], schema=MESSAGES)


def contents(rows: pa.RecordBatch) -> list[str]:
    """Each row as a JSON object; values that JSON has no form for are text, or {"base64": ...}."""
    columns = [[_value(column, n) for n in range(len(column))] for column in rows.columns]
    names = rows.schema.names
    return [json.dumps(dict(zip(names, values, strict=True)), default=_plain) for values in zip(*columns, strict=True)]


def _value(column: pa.Array, index: int) -> Any:
    try:
        value = column[index].as_py()
    except (*BAD, pa.ArrowNotImplementedError):
        return {"raw": shown(column, index, 1000)}  # Python has no object for it
    return _finite(value)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity, and its keys are text."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): _finite(inside) for key, inside in value.items()}
    return [_finite(inside) for inside in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _serialised(row: pa.RecordBatch) -> bytes:
    """A row with its schema, exactly as the sink was given it."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, row.schema) as stream:
        stream.write_batch(row)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def read_row(data: bytes) -> pa.RecordBatch:
    """The row of a kept letter."""
    with pa.ipc.open_stream(data) as stream:
        return stream.read_next_batch()
