"""What one task writes: a part for each bucket, a new one when it is large enough."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.files import formats
from holdfast.connectors.files.buckets import Buckets, grouped
from holdfast.connectors.files.pack import Pack
from holdfast.connectors.files.parts import Folder, PartWriter
from holdfast.connectors.files.proof import Proof
from holdfast.connectors.files.sidecar import put_parts
from holdfast.core.naming import Task

#: buckets of a task that have files of their own; the rows of all others share one (see pack.py)
OPEN = 16


class TaskFiles:
    """The hidden files of one task attempt."""

    def __init__(
        self, folder: Folder, task: Task, buckets: Buckets, form: str, limit: int | None, readers: Sequence[str] = ()
    ) -> None:
        self._folder, self._task, self._buckets, self._limit = folder, task, buckets, limit
        self._format = form
        self._proof = Proof(task.sink, form, buckets, folder.storage.longest, readers)
        self._own: set[str] = set()
        self._open: dict[str, PartWriter] = {}
        self._pack: Pack | None = None
        self._sealed: list[dict[str, Any]] = []
        self._list: str | None = None
        self._schema: pa.Schema | None = None
        self._fingerprint = ""

    def put_list(self) -> dict[str, Any]:
        """Make all of it durable; what the committable says of it. A sweep can tell the owner of the list, too."""
        t = self._task
        name = f"parts/{t.lineage}/{t.checkpoint_id}-{t.generation}-{t.subtask}-{t.attempt}-{uuid.uuid4().hex}.json"
        found = put_parts(self._folder, name, self.seal())
        self._list = found.get("list")
        return found

    @property
    def columns(self) -> list[list[Any]]:
        """Names and types of what is in the files."""
        return [] if self._schema is None else formats.describe(self._schema)

    def write(self, batch: pa.RecordBatch) -> None:
        """Put rows into the parts of their buckets; those that could not become a file are refused (rule 11)."""
        self._proof.check_rows(batch)
        encoded, rows = self._buckets.assign(batch, self._task.timestamp)
        if self._schema is None:
            formats.check_types(self._task.sink, self._format, rows.schema)
            self._schema = formats.normal(rows.schema)
            self._fingerprint = formats.fingerprint(self._schema)
        rows = rows.cast(self._schema)
        folders = [""] if encoded is None else encoded.dictionary.to_pylist()
        own = [self._has_file(folder) for folder in folders]
        if encoded is not None and not all(own):
            alone = pa.array(own).take(encoded.indices)
            rest = pc.invert(alone)
            self._packed(encoded.filter(rest).dictionary_decode(), rows.filter(rest))
            if not any(own):
                return
            encoded, rows = encoded.filter(alone).dictionary_decode().dictionary_encode(), rows.filter(alone)
        for bucket, those in grouped(encoded, rows):
            writer = self._writer(bucket)
            writer.write(those)
            if self._limit is not None and writer.bytes >= self._limit:
                self._seal(bucket)

    def seal(self) -> list[dict[str, Any]]:
        """Make all of it durable."""
        for bucket in list(self._open):
            self._seal(bucket)
        if self._pack is not None:
            pack, self._pack = self._pack, None
            self._sealed += pack.seal()
        return self._sealed

    def discard(self) -> None:
        """Remove all of it, sealed or not."""
        while self._open:
            self._open.popitem()[1].discard()
        if self._pack is not None:
            self._pack.discard()
        self._folder.delete_parts({part["file"] for part in self._sealed} | ({self._list} if self._list else set()))

    def _has_file(self, bucket: str) -> bool:
        """Whether a bucket has files of its own: the first ones have, the many that may follow share one."""
        self._proof.check_bucket(bucket)
        if len(self._own) < OPEN:
            self._own.add(bucket)
        return bucket in self._own

    def _packed(self, paths: pa.Array, rows: pa.RecordBatch) -> None:
        if self._pack is None:
            assert self._schema is not None
            self._pack = Pack(self._folder, self._task, self._schema, self._fingerprint)
        self._pack.add(paths, rows)

    def _writer(self, bucket: str) -> PartWriter:
        writer = self._open.get(bucket)
        if writer is None:
            assert self._schema is not None
            writer = self._open[bucket] = PartWriter(self._folder, self._task, bucket, self._schema, self._fingerprint)
        return writer

    def _seal(self, bucket: str) -> None:
        self._sealed.append(self._open.pop(bucket).seal())
