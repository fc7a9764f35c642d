"""Parts: decided or undecided rows in hidden files, and the folder of one sink (F1).

Everything hidden is under `<path>/_holdfast/<pipeline>/<sink>/`: `parts/<lineage>/` the rows (Arrow IPC), `tmp/` files
being completed, `ledger/<lineage>/` empty files whose names say how far it got. A name carries the generation that made
it, so that an older driver never removes a newer one's.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

import pyarrow as pa

from holdfast.checkpoint.storage import LocalStorage, Storage, fsync_folder, make_folder, open_storage
from holdfast.connectors.files.rolling import Part
from holdfast.core.model import Committable
from holdfast.core.naming import Task, escape
from holdfast.core.recovery import Leftover, may_undo
from holdfast.errors import RecordError

HIDDEN = "_holdfast"
_PART = re.compile(r"(?:0|[1-9]\d*)-(0|[1-9]\d*)-(?:0|[1-9]\d*)-(?:0|[1-9]\d*)-[0-9a-f]{32}\.arrow")
_MERGED = re.compile(r"(0|[1-9]\d*)-merged-(?:0|[1-9]\d*)\.arrow")
_TEMPORARY = re.compile(r"(0|[1-9]\d*)-[0-9a-f]{32}\.tmp")
_CHUNK = 1 << 20
IPC = pa.ipc.IpcWriteOptions(compression="lz4")


class Folder:
    """The files of one sink of one pipeline below a root."""

    def __init__(self, root: str, pipeline: str, sink: str) -> None:
        self.storage: Storage = open_storage(root)
        self.home = f"{HIDDEN}/{escape(pipeline)}/{escape(sink)}"

    def hidden(self, name: str) -> str:
        """A name of this sink's own folder, as a name below the root."""
        return f"{self.home}/{name}"

    def url(self, name: str) -> str:
        """Where that is, for messages."""
        return f"{self.storage.url}/{name}"

    def exists(self, name: str) -> bool:
        """Whether there is such a file below the root."""
        if isinstance(self.storage, LocalStorage):
            return (self.storage.root / name).exists()
        try:
            self.storage.reader(name).close()
        except FileNotFoundError:
            return False
        return True

    def delete_parts(self, files: Iterable[str]) -> None:
        """Remove hidden files that are not needed any more."""
        for file in files:
            self.storage.delete(self.hidden(file))

    def sweep(self, lineage: str, generation: int, keep: set[str]) -> None:
        """Remove parts and temporary files of this lineage and generation, or an older one, that nobody refers to."""
        prefix = f"{self.home}/"
        for folder, patterns in ((f"parts/{lineage}", (_PART, _MERGED)), (f"tmp/{lineage}", (_TEMPORARY,))):
            for file in self.storage.names(self.hidden(folder)):
                match = next(filter(None, (pattern.fullmatch(file) for pattern in patterns)), None)
                name = f"{folder}/{file}"
                named = [Committable("", 0, name)] if name in keep else []
                if match is not None and may_undo(Leftover(int(match[1]), name), generation, named):
                    self.storage.delete(prefix + name)

    @contextmanager
    def publish(self, target: str, lineage: str, generation: int, *, hidden: bool) -> Iterator[BinaryIO]:
        """Write a file that appears under its name as a whole: a rename, or one put of an object store (F4)."""
        name = self.hidden(target) if hidden else target
        if not isinstance(self.storage, LocalStorage):
            with self.storage.writer(name) as file:
                yield file
            return
        temporary = self.hidden(f"tmp/{lineage}/{generation}-{uuid.uuid4().hex}.tmp")
        try:
            with self.storage.writer(temporary) as file:
                yield file
            self._rename(self.storage, temporary, name)
        finally:
            self.storage.delete(temporary)

    def _rename(self, storage: LocalStorage, temporary: str, name: str) -> None:
        path = storage.root / name
        make_folder(path.parent)
        (storage.root / temporary).replace(path)
        # Also the folders above it: another may have made them and been killed before their names were durable.
        for folder in path.parents:
            fsync_folder(folder)
            if folder == storage.root:
                break


class PartWriter:
    """Writes rows of one bucket and schema of one task; `seal` makes them durable and returns what a record needs."""

    def __init__(self, folder: Folder, task: Task, bucket: str, schema: pa.Schema, fingerprint: str) -> None:
        name = f"{task.checkpoint_id}-{task.generation}-{task.subtask}-{task.attempt}-{uuid.uuid4().hex}.arrow"
        self.file = f"parts/{task.lineage}/{name}"
        self._task, self._bucket, self._fingerprint = task, bucket, fingerprint
        self._stack = ExitStack()
        self._out = Hashing(self._stack.enter_context(folder.storage.writer(folder.hidden(self.file))))
        self._stream = pa.ipc.new_stream(pa.PythonFile(self._out, mode="w"), schema, options=IPC)
        self._rows = 0

    @property
    def bytes(self) -> int:
        """What is written so far."""
        return self._out.length

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        self._stream.write_batch(batch)
        self._rows += batch.num_rows

    def seal(self) -> dict[str, Any]:
        """Close the file durably."""
        self._stream.close()
        self._stack.close()
        checkpoint, timestamp = self._task.checkpoint_id, self._task.timestamp
        return {
            "file": self.file,
            "bucket": self._bucket,
            "schema": self._fingerprint,
            "rows": self._rows,
            "bytes": self._out.length,
            "sha256": self._out.hexdigest(),
            "first": checkpoint,
            "last": checkpoint,
            "since": timestamp,
            "until": timestamp,
        }

    def discard(self) -> None:
        """Give up the file before it is sealed."""
        try:
            raise _Discarded
        except _Discarded as marker:
            self._stack.__exit__(type(marker), marker, marker.__traceback__)


class _Discarded(Exception):
    """Tells the storage's writer that the file is not to be kept."""


class Hashing:
    """A file that hashes and counts what is written to it."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._digest = hashlib.sha256()
        self.length = 0

    def write(self, data: Any) -> int:
        """Pass it on."""
        size = memoryview(data).nbytes
        self._digest.update(data)
        self._file.write(data)
        self.length += size
        return size

    def tell(self) -> int:
        """Where the next byte goes."""
        return self.length

    def flush(self) -> None:
        """The store's writer flushes and syncs when it closes."""

    def close(self) -> None:
        """The store's writer closes the file."""

    def hexdigest(self) -> str:
        """The checksum of all of it."""
        return self._digest.hexdigest()


def checksum(folder: Folder, file: str) -> tuple[int, str]:
    """(length, sha256) of a hidden file."""
    digest, length = hashlib.sha256(), 0
    with folder.storage.reader(folder.hidden(file)) as source:
        while chunk := source.read(_CHUNK):
            digest.update(chunk)
            length += len(chunk)
    return length, digest.hexdigest()


def check_part(folder: Folder, part: Part) -> None:
    """Raise unless a part is what was sealed. FileNotFoundError when it is gone."""
    length, digest = checksum(folder, part.file)
    if part.sha256 is not None and (length, digest) != (part.bytes, part.sha256):
        raise RecordError(
            f"{folder.url(folder.hidden(part.file))} is damaged ({length} bytes, {part.bytes} were sealed): "
            f"{part.rows} rows wait in it and none of them was committed. Restore it from a copy of the folder"
        )


def read_part(folder: Folder, file: str) -> Iterator[pa.RecordBatch]:
    """The rows of a part, as a stream."""
    with folder.storage.reader(folder.hidden(file)) as source, pa.ipc.open_stream(source) as stream:
        yield from stream


def read_schema(folder: Folder, file: str) -> pa.Schema:
    """The schema of a part."""
    with folder.storage.reader(folder.hidden(file)) as source, pa.ipc.open_stream(source) as stream:
        return stream.schema
