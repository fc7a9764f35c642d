"""Object stores, through fsspec."""

from __future__ import annotations

import errno
import io
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import lru_cache
from typing import Any, BinaryIO, cast

from holdfast.checkpoint import s3a, uploads
from holdfast.checkpoint.storage import check_below
from holdfast.checkpoint.trouble import told
from holdfast.errors import ConfigError, MissingExtraError, UnsafeStorageError

_EXTRAS = {"s3": "s3"}
#: bytes of an object's name, without the bucket: S3's limit, and Google's and Azure's
_LONGEST_KEY = 1024
_CONFLICT_WAITS = (0.1, 0.2, 0.4, 0.8)


@lru_cache(maxsize=8)
def _file_system(scheme: str, hadoop: bool, *_key: object) -> Any:
    import fsspec

    options = s3a.client_options() if hadoop else {}
    # Not from fsspec's own cache of clients: that one does not know the environment, and keeps an old endpoint.
    return fsspec.filesystem(scheme, use_listings_cache=False, skip_instance_cache=True, **options)


def _open_file_system(scheme: str, *, hadoop: bool) -> Any:
    """One client a process: making one costs hundreds of milliseconds, and every task opens the store several times.

    Never shared with a forked child, and made anew when the environment points elsewhere.
    """
    environment = sorted((k, v) for k, v in os.environ.items() if k.startswith("AWS_"))
    spark = sorted(s3a.given().items()) if hadoop else []
    return _file_system(scheme, hadoop, os.getpid(), *environment, *spark)


class ObjectStorage:
    """A bucket, through fsspec, with the exclusive creation the store itself offers (S3: `If-None-Match: *`)."""

    def __init__(self, location: str) -> None:
        scheme, _, rest = location.partition("://")
        hadoop = scheme == "s3a"
        scheme = {"s3a": "s3", "s3n": "s3"}.get(scheme, scheme)
        try:
            self._fs = _open_file_system(scheme, hadoop=hadoop)
        except ImportError as error:
            extra = _EXTRAS.get(scheme)
            remedy = f"pip install 'holdfast[{extra}]'" if extra else str(error)
            raise MissingExtraError(f"checkpoint location {location!r} needs more packages: {remedy}") from error
        except ValueError as error:
            raise ConfigError(f"checkpoint location {location!r}: {error}") from error
        self._root = rest.rstrip("/")
        # What is opened again by this, in tasks and by sinks, must come to the same credentials.
        self.url = f"{'s3a' if hadoop else scheme}://{self._root}"
        self.longest = _LONGEST_KEY - len(f"{self._root.partition('/')[2]}/".lstrip("/").encode())

    def _path(self, name: str) -> str:
        check_below(self.url, name)
        return f"{self._root}/{name}"

    def _told(self, name: str, doing: str, *, absent: bool = False) -> AbstractContextManager[None]:
        return told(f"{self.url}/{name}", doing, absent=absent)

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
        found = (e["name"].rsplit("/", 1)[1] for e in entries if e["type"] == "file")
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
        with self._told(name, "written"), uploads.begin(self._fs, self._path(name), pieces) as file:
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
            if not self._fs.exists(self._path(source)):
                return False
            self._fs.cp_file(self._path(source), self._path(name))
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
