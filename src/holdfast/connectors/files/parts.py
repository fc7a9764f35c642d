"""Parts: decided or undecided rows in hidden files, and the folder of one sink (F1).

Everything hidden is under `<path>/_holdfast/<pipeline>/<sink>/`: `parts/<lineage>/` the rows (Arrow IPC), `tmp/` files
being completed, `ledger/<lineage>/` empty files whose names say how far it got (see marks.py). A name carries the
generation that made it, so that an older driver never removes a newer one's.
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

import pyarrow as pa

from holdfast.checkpoint.storage import LocalStorage, Storage, fsync_folder, make_folder, open_storage
from holdfast.checkpoint.trouble import told
from holdfast.connectors.files.rolling import Part
from holdfast.core.model import Committable
from holdfast.core.naming import Task, escape
from holdfast.core.recovery import Leftover, may_undo
from holdfast.errors import RecordError

logger = logging.getLogger("holdfast")
HIDDEN = "_holdfast"
_PART = re.compile(r"(0|[1-9]\d*)-(0|[1-9]\d*)-(?:0|[1-9]\d*)-(?:0|[1-9]\d*)-[0-9a-f]{32}\.(?:arrow|json)")
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
        try:
            self.storage.size(name)
        except FileNotFoundError:
            return False
        return True

    def holds(self, part: Part) -> bool:
        """Whether a part is there with the length it was sealed with."""
        try:
            size = self.storage.size(self.hidden(part.file))
        except FileNotFoundError:
            return False
        if part.offset >= 0:
            return size >= part.offset + part.bytes
        return part.sha256 is None or size == part.bytes

    def delete_parts(self, files: Iterable[str]) -> None:
        """Remove hidden files that are not needed any more."""
        for file in files:
            self.storage.delete(self.hidden(file))

    def sweep(self, lineage: str, generation: int, keep: set[str]) -> None:
        """Remove parts and temporary files of this lineage and generation, or an older one, that nobody refers to."""
        for name in self._found(lineage):
            match = _generation(name)
            named = [Committable("", 0, name)] if name in keep else []
            if match is not None and may_undo(Leftover(match, name), generation, named):
                self.storage.delete(self.hidden(name))

    def set_aside(self, committed: Mapping[str, int], keep: set[str]) -> int:
        """Remove what lineages that were taken over from prepared and did not commit; how many parts are left.

        `committed` has the last committed checkpoint of each lineage: parts up to it hold rows that were decided and
        wait for their file. They are another location's, which may still want them.
        """
        left = 0
        for lineage, last in committed.items():
            for name in self._found(lineage):
                match = _PART.fullmatch(name.rpartition("/")[2])
                if name in keep or _generation(name) is None:
                    continue
                if name.startswith("tmp/") or (match is not None and int(match[1]) > last):
                    self.storage.delete(self.hidden(name))
                else:
                    left += 1
        return left

    def lineages(self) -> set[str]:
        """Everyone who has parts or temporary files here."""
        found = (name for place in ("parts", "tmp") for name in self.storage.walk(self.hidden(place)))
        return {name.removeprefix(f"{self.home}/").split("/")[1] for name in found}

    def _found(self, lineage: str) -> list[str]:
        folders = (f"parts/{lineage}", f"tmp/{lineage}")
        return [f"{folder}/{file}" for folder in folders for file in self.storage.names(self.hidden(folder))]

    @contextmanager
    def publish(self, target: str, lineage: str, generation: int) -> Iterator[BinaryIO]:
        """Write a hidden file that appears under its name as a whole: a rename, or one put of an object store."""
        name = self.hidden(target)
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
        with told(path, "written"):
            (storage.root / temporary).replace(path)
            # Also the folders above it: another may have made them and been killed before their names were durable.
            for folder in path.parents:
                fsync_folder(folder)
                if folder == storage.root:
                    break


def _generation(name: str) -> int | None:
    """Of a name of ours; None for any other."""
    folder, _, file = name.rpartition("/")
    if folder.startswith("tmp/"):
        match = _TEMPORARY.fullmatch(file)
        return None if match is None else int(match[1])
    if match := _PART.fullmatch(file):
        return int(match[2])
    return int(match[1]) if (match := _MERGED.fullmatch(file)) else None


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

    def write_apart(self, batch: pa.RecordBatch) -> str:
        """Append rows that are read by themselves; their checksum."""
        self._out.begin()
        self.write(batch)
        return self._out.piece()

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
        self._piece: Any = None
        self.length = 0

    def begin(self) -> None:
        """A piece begins that has a checksum of its own."""
        self._piece = hashlib.sha256()

    def piece(self) -> str:
        """The checksum of what was written since."""
        digest, self._piece = self._piece.hexdigest(), None
        return str(digest)

    def write(self, data: Any) -> int:
        """Pass it on."""
        size = memoryview(data).nbytes
        self._digest.update(data)
        if self._piece is not None:
            self._piece.update(data)
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
            f"{part.rows} rows wait in it and none of them was committed. Restore it from a copy of the folder; "
            "without one, remove this file: then the next start names what is lost, and how to go on"
        )


def read_part(folder: Folder, file: str) -> Iterator[pa.RecordBatch]:
    """The rows of a part, as a stream."""
    with folder.storage.reader(folder.hidden(file)) as source, pa.ipc.open_stream(source) as stream:
        yield from stream


def read_what_is_left(folder: Folder, parts: Iterable[Part]) -> Iterator[pa.RecordBatch]:
    """The rows of parts for a report; what is missing or damaged is told in the program's log and left out."""
    for part in parts:
        try:
            check_part(folder, part)
        except (FileNotFoundError, RecordError) as error:
            logger.warning("%d rows cannot be read back: %s", part.rows, error)
            continue
        yield from read_part(folder, part.file)


def read_schema(folder: Folder, file: str) -> pa.Schema:
    """The schema of a part."""
    with folder.storage.reader(folder.hidden(file)) as source, pa.ipc.open_stream(source) as stream:
        return stream.schema
