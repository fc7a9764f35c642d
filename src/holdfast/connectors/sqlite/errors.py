"""SQLite's failures in words: which sink, which file, what to do."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.errors import ConfigError, HoldfastError, SinkError

_REMEDIES = {
    "SQLITE_BUSY": "Another process holds a lock on it: end that one's transaction. It is tried again",
    "SQLITE_LOCKED": "Another connection holds a lock on a table of it. It is tried again",
    "SQLITE_FULL": "The disk is full: make room there. Nothing is lost",
    "SQLITE_READONLY": "It is read-only: change its permissions and those of its folder, or mount the disk for writing",
    "SQLITE_CANTOPEN": "It is not there or may not be opened: see that the file and its folder are there and writable",
    "SQLITE_PERM": "This user may not use it: change the permissions of the file and its folder",
    "SQLITE_IOERR": "The disk failed or is full: see the system's log",
    "SQLITE_CORRUPT": "The file is damaged: look at it with `PRAGMA integrity_check`, and restore it from a copy",
}
_ELSE = "See that the table and the table holdfast_ledger are there and unlocked, then start the query again"


@contextmanager
def told(sink: str, path: str) -> Iterator[None]:
    """Raise SinkError, or ConfigError when the file is none of SQLite's, for what SQLite reports."""
    try:
        yield
    except sqlite3.Error as error:
        raise sqlite_error(sink, path, error) from error


def sqlite_error(sink: str, path: str, error: sqlite3.Error) -> HoldfastError:
    """An error of SQLite as ours."""
    name = getattr(error, "sqlite_errorname", None) or ""
    if name == "SQLITE_NOTADB":
        return ConfigError(
            f"sink {sink!r}: {path} is not an SQLite database: give the sink the path of one, or of none"
        )
    remedy = next((text for start, text in _REMEDIES.items() if name.startswith(start)), _ELSE)
    return SinkError(f"sink {sink!r}: {path}: {error}. {remedy}")
