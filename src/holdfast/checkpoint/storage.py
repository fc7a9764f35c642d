"""Where records and write-ahead rows live: local files, or any fsspec store that creates exclusively.

All names are relative to the root and use `/`. The one promise everything rests on is `create`: of all processes that
create one name, exactly one is told True, and the content is durable before it is told.
"""

from __future__ import annotations

import errno
import io
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Protocol, cast

from holdfast.checkpoint.trouble import LocalFile, told
from holdfast.core import faults
from holdfast.errors import ConfigError, StorageError, UnsafeStorageError

_TEMPORARY = ".tmp-"
#: bytes of a path on Linux, with the NUL at its end
_PATH_MAX = 4096
#: file systems of Hadoop's that only Java reaches
_HADOOP = ("hdfs", "webhdfs", "swebhdfs", "viewfs", "wasb", "wasbs", "har")
#: seconds after which a temporary file has no writer any more
_ABANDONED = 3600.0


class Storage(Protocol):
    """What the log needs of a store."""

    url: str
    #: how many bytes a name may have
    longest: int

    def create(self, name: str, data: bytes) -> bool:
        """Write it, durably, unless it exists; False when it does."""

    def replace(self, name: str, data: bytes) -> None:
        """Write it, whether it exists or not, so that a reader sees the old or the new content, never a part."""

    def read(self, name: str) -> bytes:
        """The whole content; FileNotFoundError when there is none."""

    def delete(self, name: str) -> None:
        """Remove it; it may be gone already."""

    def sync(self, folder: str) -> None:
        """Make what was deleted in a folder durable."""

    def tidy(self, folder: str) -> None:
        """Remove what killed writers left in a folder and nobody can be writing any more."""

    def remove_folder(self, folder: str) -> None:
        """Remove a folder if it is empty; a store without folders has nothing to do."""

    def names(self, folder: str) -> list[str]:
        """The names of the files directly in a folder, sorted; none when there is no such folder."""

    def walk(self, folder: str) -> list[str]:
        """The files anywhere below a folder, as names relative to the root, sorted."""

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """Write a new file as a stream; durable when the block ends, gone when it raises."""
        yield  # type: ignore[misc]

    def reader(self, name: str) -> BinaryIO:
        """Read a file as a stream; FileNotFoundError when there is none."""

    def size(self, name: str) -> int:
        """How long a file is; FileNotFoundError when there is none."""


def open_storage(location: str) -> Storage:
    """The store for a location: a path, a `file:` URL, or a URL whose scheme fsspec knows (`s3:` and `s3a:` alike)."""
    if location.startswith("file:"):
        # Taken literally, as Hadoop's Path does: to it `%`, `#` and `?` are characters of a file name like any other.
        rest = location.removeprefix("file:")
        return LocalStorage("/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest)
    scheme, named, _ = location.lower().partition(":/")  # `hdfs:/data` is of the HDFS that Hadoop knows
    if named and scheme in _HADOOP:
        raise UnsafeStorageError(
            f"{location} is not for holdfast's own files: its Python tasks and drivers do not reach {scheme}:// as "
            "Spark's Java does. Put it on an object store that creates a name only once (s3a://bucket/..., for "
            "Spark's part and for ours), or on a file system that is mounted on every machine (file:///mnt/...)"
        )
    if "://" in location:
        from holdfast.checkpoint.object_store import ObjectStorage

        return ObjectStorage(location)
    return LocalStorage(location)


def check_below(root: object, name: str) -> None:
    """Refuse a name that would leave the root."""
    if name.startswith("/") or ".." in name.split("/"):
        raise ConfigError(f"{name!r} is not a name below {root}")


def fsync_folder(folder: str | Path) -> None:
    """Make the names in a folder durable: without it a crash of the machine can undo a link or a rename."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, durably."""
    missing = []
    with told(folder, "created"):
        while not folder.is_dir():
            missing.append(folder)
            folder = folder.parent
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            fsync_folder(path.parent)


def write_durably(path: Path, data: bytes, *, exclusive: bool) -> bool:
    """Temporary file, fsync, then link (fails if the name exists) or rename (does not), then fsync of the folder.

    A kill at any moment leaves the name absent or whole, never empty.
    """
    make_folder(path.parent)
    temporary = path.with_name(f"{_TEMPORARY}{uuid.uuid4().hex}")
    with told(path, "written"):
        try:
            return _write(temporary, path, data, exclusive=exclusive)
        finally:
            temporary.unlink(missing_ok=True)


def _write(temporary: Path, path: Path, data: bytes, *, exclusive: bool) -> bool:
    with temporary.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if exclusive:
        try:
            os.link(temporary, path)
        except FileExistsError:
            # Whoever is told False acts on what is there: its name must be durable too, and its writer may be dead.
            fsync_folder(path.parent)
            return False
        except OSError as error:
            if error.errno in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
                raise UnsafeStorageError(
                    f"{path.parent} is on a file system without hard links, which exclusive creation needs here; "
                    "put the checkpoint location on a local disk or an object store"
                ) from error
            raise
    else:
        temporary.replace(path)
    fsync_folder(path.parent)
    return True


def _open_new(path: Path) -> io.BufferedWriter:
    """Open a file that must not exist; its empty folder may be swept by another driver just before."""
    for _ in range(10):
        make_folder(path.parent)
        try:
            with told(path, "created", absent=True):
                return io.BufferedWriter(LocalFile(str(path), "xb"))
        except FileNotFoundError:
            continue
    raise StorageError(f"{path.parent} is removed again and again while {path.name} is being created")


class LocalStorage:
    """Files under one folder."""

    def __init__(self, root: str) -> None:
        self.root = Path(root).absolute()
        self.url = str(self.root)
        self.longest = _PATH_MAX - len(os.fsencode(self.root)) - 2

    def _path(self, name: str) -> Path:
        check_below(self.root, name)
        return self.root / name

    def create(self, name: str, data: bytes) -> bool:
        """See Storage."""
        with faults.point("log.write"):
            return write_durably(self._path(name), data, exclusive=True)

    def replace(self, name: str, data: bytes) -> None:
        """See Storage."""
        with faults.point("log.write"):
            write_durably(self._path(name), data, exclusive=False)

    def read(self, name: str) -> bytes:
        """See Storage."""
        path = self._path(name)
        with told(path, "read", absent=True):
            return path.read_bytes()

    def delete(self, name: str) -> None:
        """See Storage."""
        path = self._path(name)
        with told(path, "removed"):
            path.unlink(missing_ok=True)

    def sync(self, folder: str) -> None:
        """See Storage."""
        path = self._path(folder)
        with told(path, "synced"):
            fsync_folder(path)

    def tidy(self, folder: str) -> None:
        """See Storage."""
        parent = self._path(folder)
        with told(parent, "tidied"), suppress(FileNotFoundError), os.scandir(parent) as entries:
            left = [Path(entry.path) for entry in entries if entry.name.startswith(_TEMPORARY)]
            for path in left:
                with suppress(FileNotFoundError):  # another driver tidies too
                    if path.stat().st_mtime < time.time() - _ABANDONED:
                        path.unlink()

    def remove_folder(self, folder: str) -> None:
        """See Storage."""
        path = self._path(folder)
        with told(path, "removed"):
            try:
                path.rmdir()
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise

    def names(self, folder: str) -> list[str]:
        """See Storage."""
        path = self._path(folder)
        try:
            with told(path, "listed", absent=True), os.scandir(path) as entries:
                return sorted(e.name for e in entries if not e.name.startswith(_TEMPORARY) and e.is_file())
        except FileNotFoundError:
            return []

    def walk(self, folder: str) -> list[str]:
        """See Storage."""
        path = self._path(folder)
        with told(path, "listed"):
            found = [
                Path(parent, file).relative_to(self.root).as_posix()
                for parent, _, files in os.walk(path, onerror=_unless_gone)
                for file in files
                if not file.startswith(_TEMPORARY)
            ]
        return sorted(found)

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """See Storage."""
        with self.content_writer(name) as file:
            yield file
        path = self._path(name)
        with told(path, "written"):
            fsync_folder(path.parent)
            # Its folder may be another's, who was killed before its name was durable.
            fsync_folder(path.parent.parent)

    @contextmanager
    def content_writer(self, name: str) -> Iterator[BinaryIO]:
        """As `writer`, but only what is in the file is durable when the block ends, its name not yet."""
        with faults.point("log.write"):
            path = self._path(name)
        with _open_new(path) as file:
            try:
                yield cast(BinaryIO, file)
                file.flush()
                with told(path, "written"):
                    os.fsync(file.fileno())
            except BaseException:
                # What is buffered is not wanted any more, and on a full disk could not be written either.
                file.raw.close()
                path.unlink(missing_ok=True)
                raise

    def reader(self, name: str) -> BinaryIO:
        """See Storage."""
        path = self._path(name)
        with told(path, "read", absent=True):
            return cast(BinaryIO, io.BufferedReader(LocalFile(str(path), "rb")))

    def size(self, name: str) -> int:
        """See Storage."""
        path = self._path(name)
        with told(path, "read", absent=True):
            return path.stat().st_size


def _unless_gone(error: OSError) -> None:
    """Folders come and go while they are listed; any other failure must not look like an empty folder."""
    if not isinstance(error, FileNotFoundError):
        raise error
