"""Where records and write-ahead rows live: local files, or any fsspec store that creates exclusively.

All names are relative to the root and use `/`. The one promise everything rests on is `create`: of all processes that
create one name, exactly one is told True, and the content is durable before it is told.
"""

from __future__ import annotations

import errno
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from holdfast.errors import ConfigError, MissingExtraError, StorageError, UnsafeStorageError

_TEMPORARY = ".tmp-"
_EXTRAS = {"s3": "s3"}
_CONFLICT_WAITS = (0.1, 0.2, 0.4, 0.8)


class Storage(Protocol):
    """What the log needs of a store."""

    url: str

    def create(self, name: str, data: bytes) -> bool:
        """Write it, durably, unless it exists; False when it does."""

    def replace(self, name: str, data: bytes) -> None:
        """Write it, whether it exists or not, so that a reader sees the old or the new content, never a part."""

    def read(self, name: str) -> bytes:
        """The whole content; FileNotFoundError when there is none."""

    def delete(self, name: str) -> None:
        """Remove it; it may be gone already."""

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
        """Read a file as a stream."""


def open_storage(location: str) -> Storage:
    """The store for a location: a path, a `file:` URL, or a URL whose scheme fsspec knows (`s3:` and `s3a:` alike)."""
    if location.startswith("file:"):
        # Taken literally, as Hadoop's Path does: to it `%`, `#` and `?` are characters of a file name like any other.
        rest = location.removeprefix("file:")
        return LocalStorage("/" + rest[2:].partition("/")[2] if rest.startswith("//") else rest)
    return ObjectStorage(location) if "://" in location else LocalStorage(location)


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
    try:
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
    finally:
        temporary.unlink(missing_ok=True)


def _open_new(path: Path) -> BinaryIO:
    """Open a file that must not exist; its empty folder may be swept by another driver just before."""
    for _ in range(10):
        make_folder(path.parent)
        try:
            return path.open("xb")
        except FileNotFoundError:
            continue
    raise StorageError(f"{path.parent} is removed again and again while {path.name} is being created")


class LocalStorage:
    """Files under one folder."""

    def __init__(self, root: str) -> None:
        self.root = Path(root).absolute()
        self.url = str(self.root)

    def _path(self, name: str) -> Path:
        check_below(self.root, name)
        return self.root / name

    def create(self, name: str, data: bytes) -> bool:
        """See Storage."""
        return write_durably(self._path(name), data, exclusive=True)

    def replace(self, name: str, data: bytes) -> None:
        """See Storage."""
        write_durably(self._path(name), data, exclusive=False)

    def read(self, name: str) -> bytes:
        """See Storage."""
        return self._path(name).read_bytes()

    def delete(self, name: str) -> None:
        """See Storage."""
        self._path(name).unlink(missing_ok=True)

    def remove_folder(self, folder: str) -> None:
        """See Storage."""
        try:
            self._path(folder).rmdir()
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise

    def names(self, folder: str) -> list[str]:
        """See Storage."""
        try:
            with os.scandir(self._path(folder)) as entries:
                return sorted(e.name for e in entries if not e.name.startswith(_TEMPORARY) and e.is_file())
        except FileNotFoundError:
            return []

    def walk(self, folder: str) -> list[str]:
        """See Storage."""
        found = [
            Path(parent, file).relative_to(self.root).as_posix()
            for parent, _, files in os.walk(self._path(folder))
            for file in files
            if not file.startswith(_TEMPORARY)
        ]
        return sorted(found)

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """See Storage."""
        path = self._path(name)
        with _open_new(path) as file:
            try:
                yield file
                file.flush()
                os.fsync(file.fileno())
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        fsync_folder(path.parent)

    def reader(self, name: str) -> BinaryIO:
        """See Storage."""
        return self._path(name).open("rb")


@lru_cache(maxsize=8)
def _file_system(scheme: str, *_key: object) -> Any:
    import fsspec

    # Not from fsspec's own cache of clients: that one does not know the environment, and keeps an old endpoint.
    return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True)


def _open_file_system(scheme: str) -> Any:
    """One client a process: making one costs hundreds of milliseconds, and every task opens the store several times.

    Never shared with a forked child, and made anew when the environment points elsewhere.
    """
    environment = sorted((k, v) for k, v in os.environ.items() if k.startswith("AWS_"))
    return _file_system(scheme, os.getpid(), *environment)


class ObjectStorage:
    """A bucket, through fsspec, with the exclusive creation the store itself offers (S3: `If-None-Match: *`)."""

    def __init__(self, location: str) -> None:
        scheme, _, rest = location.partition("://")
        scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
        try:
            self._fs = _open_file_system(scheme)
        except ImportError as error:
            extra = _EXTRAS.get(scheme)
            remedy = f"pip install 'holdfast[{extra}]'" if extra else str(error)
            raise MissingExtraError(f"checkpoint location {location!r} needs more packages: {remedy}") from error
        except ValueError as error:
            raise ConfigError(f"checkpoint location {location!r}: {error}") from error
        self._root = rest.rstrip("/")
        self.url = f"{scheme}://{self._root}"

    def _path(self, name: str) -> str:
        check_below(self.url, name)
        return f"{self._root}/{name}"

    def create(self, name: str, data: bytes) -> bool:
        """See Storage."""
        path = self._path(name)
        for wait in (*_CONFLICT_WAITS, None):
            try:
                self._fs.pipe_file(path, data, mode="create")
                break
            except FileExistsError:
                return False
            except OSError as error:
                # Some stores answer the failed precondition with EINVAL; whatever is there now tells which it was.
                if error.errno == errno.EINVAL and self._fs.exists(path):
                    return False
                # S3 answers "conflict" while another writer of this name is not done: ask again who won.
                if error.errno != errno.EBUSY or wait is None:
                    raise
                time.sleep(wait)
        return True

    def replace(self, name: str, data: bytes) -> None:
        """See Storage."""
        self._fs.pipe_file(self._path(name), data)

    def read(self, name: str) -> bytes:
        """See Storage."""
        return cast(bytes, self._fs.cat_file(self._path(name)))

    def delete(self, name: str) -> None:
        """See Storage."""
        try:
            self._fs.rm_file(self._path(name))
        except FileNotFoundError:
            return

    def remove_folder(self, folder: str) -> None:
        """See Storage."""

    def names(self, folder: str) -> list[str]:
        """See Storage."""
        try:
            entries: list[dict[str, Any]] = self._fs.ls(self._path(folder), detail=True)
        except FileNotFoundError:
            return []
        found = (e["name"].rsplit("/", 1)[1] for e in entries if e["type"] == "file")
        return sorted(filter(None, found))  # Hadoop marks a folder by an empty object whose name ends in /

    def walk(self, folder: str) -> list[str]:
        """See Storage."""
        prefix = self._fs._strip_protocol(self._root).rstrip("/") + "/"
        found = (path.removeprefix(prefix) for path in self._fs.find(self._path(folder)))
        return sorted(path for path in found if not path.endswith("/"))  # see `names`

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """See Storage."""
        file = self._fs.open(self._path(name), "wb")
        try:
            yield file
        except BaseException:
            file.discard()
            with suppress(AttributeError):  # where it can be set, it matters:
                file.closed = True  # else its finalizer would close it, and that uploads
            raise
        file.close()

    def reader(self, name: str) -> BinaryIO:
        """See Storage."""
        return cast(BinaryIO, self._fs.open(self._path(name), "rb"))
