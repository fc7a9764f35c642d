"""A pack: the rows of many buckets of one task in one hidden file, a piece for each, so that buckets cost no files.

Rows are collected up to a limit, sorted by bucket and written, again and again: memory is bounded by the limit, however
many buckets there are. Each piece has its own checksum and is read by itself.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.connectors.files.parts import Folder, PartWriter
from holdfast.connectors.files.rolling import Part
from holdfast.core.naming import Task
from holdfast.errors import RecordError

#: bytes of rows that are collected before they are sorted and written
LIMIT = 32 * 2**20


class Pack:
    """Writes the pack of one task attempt."""

    def __init__(self, folder: Folder, task: Task, schema: pa.Schema, fingerprint: str) -> None:
        self._writer = PartWriter(folder, task, "", schema, fingerprint)
        # So that the schema's bytes belong to no piece.
        self._writer.write(pa.RecordBatch.from_pylist([], schema=schema))
        self.file = self._writer.file
        self._schema = schema
        self._paths: list[pa.Array] = []
        self._rows: list[pa.RecordBatch] = []
        self._size = 0
        self._pieces: list[tuple[str, int, int, int, str]] = []

    def add(self, paths: pa.Array, rows: pa.RecordBatch) -> None:
        """Rows, and the bucket of each."""
        self._paths.append(paths)
        self._rows.append(rows)
        self._size += rows.nbytes + paths.nbytes
        if self._size >= LIMIT:
            self._flush()

    def _flush(self) -> None:
        if not self._rows:
            return
        encoded = pa.concat_arrays(self._paths).dictionary_encode()
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
        table = pa.Table.from_batches(self._rows, self._schema).take(pa.array(order)).combine_chunks()
        rows = table.to_batches()
        self._paths, self._rows, self._size = [], [], 0
        if len(rows) > 1:  # text of more than 2 GB cannot be one array; a batch is far below
            raise AssertionError("a pack's rows are one batch")
        for code, bucket in enumerate(encoded.dictionary.to_pylist()):
            count = int(starts[code + 1] - starts[code])
            begin = self._writer.bytes
            digest = self._writer.write_apart(rows[0].slice(int(starts[code]), count))
            self._pieces.append((bucket, begin, self._writer.bytes - begin, count, digest))

    def seal(self) -> list[dict[str, Any]]:
        """Make it durable; the parts, one for each piece."""
        self._flush()
        whole = self._writer.seal()
        return [
            {**whole, "bucket": bucket, "offset": offset, "bytes": size, "rows": rows, "sha256": digest}
            for bucket, offset, size, rows, digest in self._pieces
        ]

    def discard(self) -> None:
        """Give it up."""
        self._writer.discard()


def read_piece(folder: Folder, part: Part) -> Iterator[pa.RecordBatch]:
    """The rows of one piece, checked. FileNotFoundError when the pack is gone."""
    with folder.storage.reader(folder.hidden(part.file)) as source:
        schema = pa.ipc.read_schema(pa.ipc.read_message(source))
        source.seek(part.offset)
        data = source.read(part.bytes)
    if len(data) != part.bytes or hashlib.sha256(data).hexdigest() != part.sha256:
        raise RecordError(
            f"{folder.url(folder.hidden(part.file))} is damaged: {part.rows} rows of bucket {part.bucket!r} wait in it "
            "and none of them was committed. Restore it from a copy of the folder; without one, remove this file: then "
            "the next start names what is lost, and how to go on"
        )
    stream = pa.BufferReader(data)
    while stream.tell() < part.bytes:
        yield pa.ipc.read_record_batch(pa.ipc.read_message(stream), schema)
