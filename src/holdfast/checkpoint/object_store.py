"""Object stores, through fsspec."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, BinaryIO, cast

from holdfast.checkpoint.storage import check_below
from holdfast.errors import ConfigError, MissingExtraError, UnsafeStorageError

_EXTRAS = {"s3": "s3"}
_CONFLICT_WAITS = (0.1, 0.2, 0.4, 0.8)


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
            except (ValueError, NotImplementedError) as error:
                raise UnsafeStorageError(
                    f"{self.url} cannot create a file only if it is absent ({error}): no decision would be safe there. "
                    "Use local disk, S3 with conditional writes, or another store that has them"
                ) from error
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

    def sync(self, folder: str) -> None:
        """See Storage."""

    def tidy(self, folder: str) -> None:
        """See Storage; an upload that was not finished is not a file."""

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
