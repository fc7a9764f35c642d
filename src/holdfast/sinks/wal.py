"""The write-ahead log: rows of one subtask, sealed in a file that outlives the task (W2).

Files are `wal/<sink>/<checkpoint>/<generation>-<subtask>-<attempt>-<uuid>.arrow` (Arrow IPC stream). The committable
names the file, its length and its checksum; a file no record names is nobody's and is removed by its own or a later
generation only (rule 3).
"""

from __future__ import annotations

import hashlib
import logging
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, BinaryIO

import pyarrow as pa

from holdfast.checkpoint.storage import Storage, open_storage
from holdfast.core.model import CheckpointId, Committable
from holdfast.core.naming import Task, escape
from holdfast.core.recovery import Leftover, may_undo
from holdfast.errors import LostError, RecordError

logger = logging.getLogger("holdfast")
_FILE = re.compile(r"wal/[^/]+/(?:0|[1-9]\d*)/(0|[1-9]\d*)-(?:0|[1-9]\d*)-(?:0|[1-9]\d*)-[0-9a-f]{32}\.arrow")
_CHUNK = 1 << 20


class LogWriter:
    """Writes one subtask's rows; `seal` makes them durable and returns the handle."""

    def __init__(self, task: Task) -> None:
        self._task = task
        folder = f"wal/{escape(task.sink)}/{task.checkpoint_id}"
        self.path = f"{folder}/{task.generation}-{task.subtask}-{task.attempt}-{uuid.uuid4().hex}.arrow"
        self._stack = ExitStack()
        storage = open_storage(task.location)
        self._file = _Checksummed(self._stack.enter_context(storage.writer(self.path)))
        self._stream: pa.RecordBatchStreamWriter | None = None
        self._rows = 0

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        if self._stream is None:
            self._stream = pa.ipc.new_stream(pa.PythonFile(self._file, mode="w"), batch.schema)
        self._stream.write_batch(batch)
        self._rows += batch.num_rows

    def seal(self) -> dict[str, Any]:
        """Close the file durably; the handle is all a reader needs."""
        if self._stream is not None:
            self._stream.close()
        self._stack.close()
        return {
            "version": 1,
            "handle": self.path,
            "subtask": self._task.subtask,
            "timestamp": self._task.timestamp,
            "rows": self._rows,
            "bytes": self._file.length,
            "sha256": self._file.hexdigest(),
        }

    def discard(self) -> None:
        """Remove what was written, sealed or not."""
        try:
            raise _Discarded
        except _Discarded as marker:
            self._stack.__exit__(type(marker), marker, marker.__traceback__)
        discard(open_storage(self._task.location), [{"handle": self.path}])


class _Discarded(Exception):
    """Tells the storage's writer that the file is not to be kept."""


class _Checksummed:
    """A file that hashes and counts what goes through it."""

    closed = False

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self.length = 0

    def write(self, data: Any) -> int:
        self._hash.update(data)
        self._file.write(data)
        size = memoryview(data).nbytes
        self.length += size
        return size

    def flush(self) -> None:
        """The storage's writer flushes and syncs when it closes."""

    def close(self) -> None:
        """Arrow closes its end; the storage's writer closes the file."""

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def read_log(location: str, handle: Mapping[str, Any]) -> Iterator[pa.RecordBatch]:
    """The rows of a sealed handle, as a stream; checked whole here, before the first row is given out.

    LostError when the file is gone: its rows cannot be delivered, and were not.
    """
    storage = open_storage(location)
    path = f"{location}/{handle['handle']}"
    digest, length = hashlib.sha256(), 0
    try:
        with storage.reader(handle["handle"]) as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                length += len(chunk)
    except FileNotFoundError:
        raise lost(location, [handle]) from None
    if length != handle["bytes"] or digest.hexdigest() != handle["sha256"]:
        raise RecordError(
            f"write-ahead file {path} is damaged ({length} bytes, {handle['bytes']} were sealed): nothing of it was "
            "delivered. Restore it from a copy of the checkpoint location"
        )
    return _stream(storage, handle["handle"])


def is_there(storage: Storage, handle: Mapping[str, Any]) -> bool:
    """Whether the file of a handle exists with the length it was sealed with."""
    try:
        return bool(storage.size(handle["handle"]) == handle["bytes"])
    except FileNotFoundError:
        return False


@contextmanager
def naming_lost(location: str, handles: Sequence[Mapping[str, Any]]) -> Iterator[None]:
    """A LostError inside names all of these handles whose files are gone, not only the one that was met first."""
    try:
        yield
    except LostError as error:
        storage = open_storage(location)
        gone = [handle for handle in handles if not is_there(storage, handle)]
        raise (lost(location, gone) if gone else error) from error


def lost(location: str, handles: Sequence[Mapping[str, Any]]) -> LostError:
    """The error for files of the log that are gone."""
    rows, first = sum(handle["rows"] for handle in handles), f"{location}/{handles[0]['handle']}"
    more = "" if len(handles) == 1 else f" and {len(handles) - 1} more"
    return LostError(
        f"write-ahead file {first}{more} is missing: {rows} rows of {len(handles)} subtasks are decided and were not "
        "delivered. Restore it from a copy of the checkpoint location, or give these rows up with `holdfast resolve`",
        lost=[dict(handle) for handle in handles],
    )


def read_what_is_left(location: str, handles: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """The rows of handles for a report; what is missing or damaged is told in the program's log and left out."""
    for handle in handles:
        try:
            yield from read_log(location, handle)
        except (LostError, RecordError) as error:
            logger.warning("%d rows cannot be read back: %s", handle["rows"], error)


def _stream(storage: Storage, name: str) -> Iterator[pa.RecordBatch]:
    with storage.reader(name) as file, pa.ipc.open_stream(file) as stream:
        yield from stream


def discard(storage: Storage, handles: Sequence[Mapping[str, Any]]) -> None:
    """Remove the files of handles, whose rows are known to be delivered or undecided."""
    for handle in handles:
        storage.delete(handle["handle"])
    for folder in {handle["handle"].rpartition("/")[0] for handle in handles}:
        storage.remove_folder(folder)


class Delivered:
    """Files whose rows are delivered, kept until that is recorded: until then they are the only copy.

    A driver that dies in between leaves them to the next one's sweep. This is the driver's business, and grows while
    another sink lags: tasks do not carry it.
    """

    def __init__(self) -> None:
        self._handles: dict[CheckpointId, list[Mapping[str, Any]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_handles": {}}

    def add(self, checkpoint_id: CheckpointId, handles: Sequence[Mapping[str, Any]]) -> None:
        """These are delivered."""
        self._handles[checkpoint_id] = list(handles)

    def discard(self, location: str, checkpoint_id: CheckpointId) -> None:
        """And it is recorded: remove them."""
        handles = self._handles.pop(checkpoint_id, None)
        if handles:
            discard(open_storage(location), handles)


def sweep(
    storage: Storage,
    sink: str,
    generation: int,
    decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]],
) -> list[str]:
    """Remove files no record names, if they are of this or an older generation (W8, rule 3); returns their names."""
    # By path, so that a backlog of n files costs n looks a batch and not n times n.
    named = {c["handle"]: Committable(sink, 0, c["handle"]) for committables in decided.values() for c in committables}
    removed = []
    for path in storage.walk(f"wal/{escape(sink)}"):
        match = _FILE.fullmatch(path)
        same = [named[path]] if path in named else []
        if match and may_undo(Leftover(int(match[1]), path), generation, same):
            removed.append(path)
    discard(storage, [{"handle": path} for path in removed])
    return removed
