"""A store that fails, told in words: which path, what was wrong, what to do. No raw OSError leaves the library."""

from __future__ import annotations

import errno
import io
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.errors import StorageError

_FULL = "The disk is full: make room there, then start the query again. Nothing that was decided is lost"
_DENIED = "This user may not do that: change the owner or the permissions of the path, or run as another user"
_REMEDIES = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: "The quota is used up: raise it or make room, then start the query again",
    errno.EFBIG: "The file is too large for this file system: use another one",
    errno.EACCES: _DENIED,
    errno.EPERM: _DENIED,
    errno.EROFS: "The file system is read-only: mount it for writing, or see in the system's log why it was made so",
    errno.EIO: "The disk or its connection failed: see the system's log, repair it, then start the query again",
    errno.ESTALE: "The network file system lost the file: mount it again; better keep this on a local disk",
    errno.ENAMETOOLONG: "The name is too long for this file system: choose a shorter path or shorter names",
    errno.ENOTDIR: "A file is where a folder should be: move it away, or use another path",
    errno.EEXIST: "Something else is there, or is where a folder should be: move it away, or use another path",
    errno.EISDIR: "A folder is where a file should be: move it away, or use another path",
    errno.EMFILE: "The process has too many open files: raise its limit (ulimit -n)",
    errno.ENFILE: "The machine has too many open files: raise its limit (fs.file-max)",
    errno.ENOENT: "It is gone: somebody removed it or a folder above it while the query used it",
}
_NOBODY = (
    "No credentials were found: give them to Spark (spark.hadoop.fs...) or to this process by its environment, as "
    "docs/deploy says"
)
_AWAY = (
    "The store does not answer: see that its address (AWS_ENDPOINT_URL, the region; the name of Azure's account) is "
    "right and that this machine can reach it, then try again. Nothing that was decided is lost"
)
#: what clients of object stores raise when nobody answers, where they are loaded
_CLIENTS_AWAY = (
    ("botocore.exceptions", "ConnectionError"),
    ("botocore.exceptions", "HTTPClientError"),
    ("aiohttp", "ClientConnectionError"),
    ("azure.core.exceptions", "ServiceRequestError"),
    ("azure.core.exceptions", "ServiceResponseError"),
    ("requests.exceptions", "ConnectionError"),
    ("requests.exceptions", "Timeout"),
    ("google.auth.exceptions", "TransportError"),
)
#: what they raise when nobody told them who they are
_CLIENTS_UNKNOWN = (
    ("botocore.exceptions", "NoCredentialsError"),
    ("azure.core.exceptions", "ClientAuthenticationError"),
    ("google.auth.exceptions", "DefaultCredentialsError"),
)
#: what they raise at all, besides OSError
_CLIENTS = (
    ("botocore.exceptions", "BotoCoreError"),
    ("aiohttp", "ClientError"),
    ("azure.core.exceptions", "AzureError"),
    ("gcsfs.retry", "HttpError"),
    ("gcsfs.retry", "ChecksumError"),
    ("google.auth.exceptions", "GoogleAuthError"),
)
_NO_ANSWER = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN)
_ELSE = "See that the path is there and can be reached and written, then start the query again"


def storage_error(path: object, doing: str, error: BaseException) -> StorageError:
    """`error` as ours."""
    code = getattr(error, "errno", None)
    code = code if code is None or code > 0 else None  # a name that nobody knows has one below
    # One line: Azure's client adds the whole answer to what it has to say.
    said = (str(error).strip().splitlines() or [""])[0].rstrip(".")
    what = os.strerror(code) if code else f"{type(error).__name__}: {said}".rstrip(": ")
    if code and what not in said:  # a store's own words, such as S3's code of the error
        what = f"{what} ({said})"
    away = _is_away(error)
    remedy = _REMEDIES.get(code or 0) or _remedy(error)
    made = StorageError(f"{path} cannot be {doing}: {what}. {_AWAY if away else remedy}")
    made.reached = not away
    return made


def _is_away(error: BaseException) -> bool:
    """Whether nobody answered, rather than somebody said no."""
    if isinstance(error, ConnectionError | TimeoutError | socket.gaierror) or getattr(error, "errno", 0) in _NO_ANSWER:
        return True
    return isinstance(error, _loaded(_CLIENTS_AWAY))


def _remedy(error: BaseException) -> str:
    """By what Azure or Google said; their clients have no errno for it."""
    status = getattr(error, "status_code", None) or getattr(error, "code", None)
    if status in (401, 403) or str(error).startswith("Forbidden"):
        return _DENIED
    return _NOBODY if isinstance(error, _loaded(_CLIENTS_UNKNOWN)) else _ELSE


@contextmanager
def told(path: object, doing: str, *, absent: bool = False) -> Iterator[None]:
    """Raise StorageError for any failure of a store; with `absent`, a file that is not there stays what it is."""
    try:
        yield
    except FileNotFoundError as error:
        if absent:
            raise
        raise storage_error(path, doing, error) from error
    except store_errors() as error:
        raise storage_error(path, doing, error) from error
    except RuntimeError as error:
        # adlfs puts what went wrong with a piece of a file into one of these.
        if not isinstance(error.__cause__, store_errors()):
            raise
        raise storage_error(path, doing, error.__cause__) from error


def store_errors() -> tuple[type[Exception], ...]:
    """What stores raise: OSError, and what clients of object stores raise besides, where they are loaded."""
    return (OSError, *_loaded(_CLIENTS))


def _loaded(names: tuple[tuple[str, str], ...]) -> tuple[type[Exception], ...]:
    return tuple(getattr(sys.modules[module], name) for module, name in names if module in sys.modules)


class LocalFile(io.FileIO):
    """A local file whose failures are told in words; it is buffered by what is made around it."""

    def readinto(self, buffer: Any, /) -> int | None:
        """See io.FileIO."""
        with told(self.name, "read"):
            return super().readinto(buffer)

    def readall(self) -> bytes:
        """See io.FileIO."""
        with told(self.name, "read"):
            return super().readall()

    def write(self, data: Any, /) -> int | None:  # type: ignore[override]
        """See io.FileIO."""
        with told(self.name, "written"):
            return super().write(data)
