"""Object stores, through fsspec."""

from __future__ import annotations

import errno
import io
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, cast

from holdfast.checkpoint import uploads
from holdfast.checkpoint.clients import copy, open_client, place_of
from holdfast.checkpoint.storage import check_below
from holdfast.checkpoint.trouble import storage_error, told
from holdfast.errors import HoldfastError, UnsafeStorageError

#: bytes of an object's name, without the bucket: S3's limit, and Google's and Azure's
_LONGEST_KEY = 1024
_CONFLICT_WAITS = (0.1, 0.2, 0.4, 0.8)


class ObjectStorage:
    """A bucket, through fsspec, with the exclusive creation the store itself offers.

    S3 and Azure: `If-None-Match: *`; Google: `ifGenerationMatch=0`.
    """

    def __init__(self, location: str) -> None:
        place = place_of(location)
        self._fs = open_client(location, place)
        self._root, self.url = place.root, place.url
        self.longest = _LONGEST_KEY - len(f"{self._root.partition('/')[2]}/".lstrip("/").encode())

    def _path(self, name: str) -> str:
        check_below(self.url, name)
        return f"{self._root}/{name}"

    @contextmanager
    def _told(self, name: str, doing: str, *, absent: bool = False) -> Iterator[None]:
        try:
            with told(f"{self.url}/{name}", doing, absent=absent):
                yield
        except HoldfastError:
            raise
        except ValueError as error:  # gcsfs's word for a request that Google finds wrong
            raise storage_error(f"{self.url}/{name}", doing, error) from error

    def create(self, name: str, data: bytes) -> bool:
        """See Storage."""
        path = self._path(name)
        with self._told(name, "written"):
            return self._create(path, data)

    def _create(self, path: str, data: bytes) -> bool:
        for wait in (*_CONFLICT_WAITS, None):
            try:
                self._fs.pipe_file(path, data, mode="create")
                break
            except FileExistsError:
                return False
            except (ValueError, NotImplementedError) as error:
                if str(error).startswith("Bad Request"):  # of Google's, about the request and not about its condition
                    raise
                raise UnsafeStorageError(
                    f"{self.url} cannot create a file only if it is absent ({error}): no decision would be safe there. "
                    "Use local disk, S3 with conditional writes, or another store that has them (Azure's, Google's)"
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
        with self._told(name, "written"):
            self._fs.pipe_file(self._path(name), data)

    def read(self, name: str) -> bytes:
        """See Storage."""
        with self._told(name, "read", absent=True):
            return cast(bytes, self._fs.cat_file(self._path(name)))

    def delete(self, name: str) -> None:
        """See Storage."""
        with self._told(name, "removed"), suppress(FileNotFoundError):
            self._fs.rm_file(self._path(name))

    def sync(self, folder: str) -> None:
        """See Storage."""

    def tidy(self, folder: str) -> None:
        """See Storage; an upload that was not finished is not a file."""

    def remove_folder(self, folder: str) -> None:
        """See Storage."""

    def names(self, folder: str) -> list[str]:
        """See Storage."""
        entries: list[dict[str, Any]] = []
        with self._told(folder, "listed"), suppress(FileNotFoundError):
            entries = self._fs.ls(self._path(folder), detail=True)
        # adlfs lists the files of every folder whose name begins so.
        prefix = self._fs._strip_protocol(self._path(folder)).rstrip("/") + "/"
        inside = (e["name"] for e in entries if e["type"] == "file" and e["name"].startswith(prefix))
        found = (name.removeprefix(prefix) for name in inside)
        return sorted(filter(None, found))  # Hadoop marks a folder by an empty object whose name ends in /

    def walk(self, folder: str) -> list[str]:
        """See Storage."""
        prefix = self._fs._strip_protocol(self._root).rstrip("/") + "/"
        with self._told(folder, "listed"):
            found = [path.removeprefix(prefix) for path in self._fs.find(self._path(folder))]
        return sorted(path for path in found if not path.endswith("/"))  # see `names`

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        """See Storage."""
        with self._told(name, "written"):
            file = self._fs.open(self._path(name), "wb")
        try:
            yield cast(BinaryIO, _Upload(file, f"{self.url}/{name}"))
        except BaseException:
            file.discard()
            with suppress(AttributeError):  # where it can be set, it matters:
                file.closed = True  # else its finalizer would close it, and that uploads
            raise
        with self._told(name, "written"):
            file.close()

    def reader(self, name: str) -> BinaryIO:
        """See Storage."""
        with self._told(name, "read", absent=True):
            return cast(BinaryIO, _Download(self._fs.open(self._path(name), "rb"), f"{self.url}/{name}"))

    @property
    def has_uploads(self) -> bool:
        """Whether a file can be finished here without being seen."""
        return uploads.supported(self._fs)

    @contextmanager
    def upload(self, name: str) -> Iterator[tuple[BinaryIO, dict[str, Any]]]:
        """Write a file that is not seen until `finish_upload` is given what is in the dict when the block has ended."""
        pieces: dict[str, Any] = {}
        with told(f"{self.url}/{name}", "written"), uploads.begin(self._fs, self._path(name), pieces) as file:
            yield cast(BinaryIO, _Upload(file, f"{self.url}/{name}")), pieces

    def finish_upload(self, name: str, pieces: Mapping[str, Any]) -> bool:
        """Make an upload a file; False when that was done before."""
        with self._told(name, "written"):
            return uploads.complete(self._fs, self._path(name), pieces)

    def abort_upload(self, name: str, pieces: Mapping[str, Any]) -> None:
        """Give an upload up."""
        with self._told(name, "removed"):
            uploads.abort(self._fs, self._path(name), pieces)

    def move(self, source: str, name: str) -> bool:
        """Give a file another name, in two steps: without uploads there is no other way. False: it has it already."""
        with self._told(name, "written"):
            try:
                self._fs.info(self._path(source))
            except FileNotFoundError:  # and no other failure: it would look as if this was done
                return False
            copy(self._fs, self._path(source), self._path(name))
            self._fs.rm_file(self._path(source))
            return True

    def size(self, name: str) -> int:
        """See Storage."""
        with self._told(name, "read", absent=True):
            return int(self._fs.size(self._path(name)))


class _Upload:
    """A file on its way into the store, whose failures are told in words."""

    closed = False

    def __init__(self, file: Any, url: str) -> None:
        self._file, self._url = file, url

    def write(self, data: Any) -> int:
        with told(self._url, "written"):
            return int(self._file.write(data))

    def tell(self) -> int:
        return int(self._file.tell())

    def flush(self) -> None:
        """What is written goes up in large pieces, and the rest when it is closed."""


class _Download(io.RawIOBase):
    """A file on its way from the store, whose failures are told in words."""

    def __init__(self, file: Any, url: str) -> None:
        self._file, self._url = file, url

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def read(self, size: int = -1) -> bytes:
        with told(self._url, "read"):
            return cast(bytes, self._file.read(size))

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()
