"""What one task writes: a part for each bucket, a new one when it is large enough."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from holdfast.connectors.files import formats
from holdfast.connectors.files.buckets import Buckets
from holdfast.connectors.files.parts import Folder, PartWriter
from holdfast.connectors.files.proof import Proof
from holdfast.core.naming import Task

#: files a task has open at once; with more buckets than that it closes the one it has not used for longest
OPEN = 64


class TaskFiles:
    """The hidden files of one task attempt."""

    def __init__(self, folder: Folder, task: Task, buckets: Buckets, form: str, limit: int | None) -> None:
        self._folder, self._task, self._buckets, self._limit = folder, task, buckets, limit
        self._format = form
        self._proof = Proof(task.sink, form, buckets, folder.storage.longest)
        #: in the order of their last use
        self._open: dict[str, PartWriter] = {}
        self._sealed: list[dict[str, Any]] = []
        self._schema: pa.Schema | None = None
        self._fingerprint = ""

    @property
    def columns(self) -> list[list[Any]]:
        """Names and types of what is in the files."""
        return [] if self._schema is None else formats.describe(self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Put rows into the parts of their buckets; those that could not become a file are refused (rule 11)."""
        self._proof.check_rows(batch)
        for bucket, rows in self._buckets.split(batch, self._task.timestamp):
            if self._schema is None:
                formats.check_types(self._task.sink, self._format, rows.schema)
                self._schema = formats.normal(rows.schema)
                self._fingerprint = formats.fingerprint(self._schema)
            self._proof.check_bucket(bucket)
            writer = self._writer(bucket)
            writer.write(rows.cast(self._schema))
            if self._limit is not None and writer.bytes >= self._limit:
                self._seal(bucket)

    def seal(self) -> list[dict[str, Any]]:
        """Make all of it durable."""
        for bucket in list(self._open):
            self._seal(bucket)
        return self._sealed

    def discard(self) -> None:
        """Remove all of it, sealed or not."""
        while self._open:
            self._open.popitem()[1].discard()
        self._folder.delete_parts(part["file"] for part in self._sealed)

    def _writer(self, bucket: str) -> PartWriter:
        writer = self._open.pop(bucket, None)
        if writer is None:
            if len(self._open) >= OPEN:
                self._seal(next(iter(self._open)))
            assert self._schema is not None
            writer = PartWriter(self._folder, self._task, bucket, self._schema, self._fingerprint)
        self._open[bucket] = writer
        return writer

    def _seal(self, bucket: str) -> None:
        self._sealed.append(self._open.pop(bucket).seal())
