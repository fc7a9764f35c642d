"""A committer in one small SQL table (C3)."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Protocol
from urllib.parse import unquote, urlsplit

from holdfast.committers import libpq
from holdfast.committers.base import CheckpointCommitter
from holdfast.committers.postgres_client import Client, begin, connect
from holdfast.committers.watch import Patience, Watch
from holdfast.core.model import CheckpointId
from holdfast.core.naming import parse_job_id, unescape
from holdfast.core.options import Rule, checked
from holdfast.core.paths import path_text
from holdfast.errors import ConfigError, HoldfastError, RestoredEndpointError, SinkError

_CREATE = """
CREATE TABLE IF NOT EXISTS holdfast_committer (
    job_id TEXT NOT NULL, operator_id TEXT NOT NULL, subtask INTEGER NOT NULL, checkpoint_id BIGINT NOT NULL,
    PRIMARY KEY (job_id, operator_id, subtask)
)"""
_COMMIT = """
INSERT INTO holdfast_committer (job_id, operator_id, subtask, checkpoint_id) VALUES (?, ?, ?, ?)
ON CONFLICT (job_id, operator_id, subtask) DO UPDATE SET checkpoint_id = excluded.checkpoint_id
WHERE excluded.checkpoint_id > holdfast_committer.checkpoint_id"""
_READ = "SELECT checkpoint_id FROM holdfast_committer WHERE job_id = ? AND operator_id = ? AND subtask = ?"
_PROGRESS = "SELECT job_id, max(checkpoint_id) FROM holdfast_committer WHERE operator_id = ? GROUP BY job_id"

#: Seconds to wait for another process that writes the same file or row.
_LOCKED = 20.0
_URL = Rule(
    "a URL that begins with sqlite:/// or postgresql://, or the path of an SQLite file",
    lambda value: isinstance(value, str | os.PathLike),
    secret=True,
)
_FORGET = "DELETE FROM holdfast_committer WHERE job_id = ? AND operator_id = ?"


class _Database(Protocol):
    """Where the table is; holds no connection."""

    @property
    def address(self) -> str:
        """Where it is, for messages."""

    @property
    def error(self) -> type[Exception]:
        """What its driver raises."""

    def is_no_table(self, error: Exception) -> bool:
        """Whether it says that the table is not there."""

    def watched(self, connection: Any) -> AbstractContextManager[Any]:
        """While this lasts, a server that does not answer any more is an error."""

    def connect(self) -> Any:
        """A connection."""

    def ask(self, connection: Any, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        """One statement with `?` for each value, kept once it is acknowledged; its rows."""

    def prepare(self) -> None:
        """Make what has to be there before the table can be created."""

    def create(self, connection: Any, statement: str) -> None:
        """Create the table."""


@dataclass(frozen=True)
class _Sqlite:
    path: str
    error: type[Exception] = sqlite3.Error

    @property
    def address(self) -> str:
        return self.path

    def is_no_table(self, error: Exception) -> bool:
        return str(error).startswith("no such table")

    def watched(self, connection: Any) -> AbstractContextManager[Any]:
        return nullcontext()

    def connect(self) -> Any:
        connection = sqlite3.connect(self.path, timeout=_LOCKED, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous=FULL")
        except BaseException:
            connection.close()
            raise
        return connection

    def ask(self, connection: Any, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = connection.execute(statement, values).fetchall()
        return rows

    def prepare(self) -> None:
        folder = Path(self.path).parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SinkError(f"the folder {folder} for the committer's database cannot be made: {error}") from error

    def create(self, connection: Any, statement: str) -> None:
        connection.execute(statement)


class _Postgres:
    def __init__(self, url: str) -> None:
        given = libpq.read_dsn("url", url)
        self._conninfo, self.address = libpq.conninfo(given), libpq.address(given)
        self._patience = Patience(_LOCKED)

    @property
    def error(self) -> type[Exception]:
        found: type[Exception] = libpq.load_psycopg().Error
        return found

    def is_no_table(self, error: Exception) -> bool:
        return getattr(error, "sqlstate", None) == "42P01"

    def watched(self, connection: Any) -> AbstractContextManager[Any]:
        return Watch(self._conninfo, connection, self._patience)

    def connect(self) -> Any:
        return connect(self._conninfo)

    def ask(self, connection: Any, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        cursor = self._client(connection).execute(statement.replace("?", "%s"), values)
        rows: list[tuple[Any, ...]] = cursor.fetchall() if cursor.description else []
        return rows

    def prepare(self) -> None:
        pass

    def create(self, connection: Any, statement: str) -> None:
        client = self._client(connection)
        if client.execute("SELECT to_regclass('holdfast_committer')").fetchone()[0] is None:
            # Two sinks that start at once would both try, and one would fail.
            client.together("SELECT pg_advisory_xact_lock(hashtext('holdfast_committer'))", statement)

    def _client(self, connection: Any) -> Client:
        return Client(connection, begin(_LOCKED))


def _database(url: str | os.PathLike[str]) -> _Database:
    if isinstance(url, os.PathLike):
        return _Sqlite(str(Path(path_text("url", url)).absolute()))
    scheme, _, _ = url.partition("://")
    if scheme in ("postgresql", "postgres"):
        return _Postgres(url)
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        raise ConfigError(
            f"url must begin with sqlite:/// or postgresql://, and this one begins with {parts.scheme or 'no scheme'}"
        )
    path = unquote(parts.path.removeprefix("/"))
    if parts.query or parts.fragment:
        raise ConfigError("url must name a file and nothing more: write ? as %3F and # as %23")
    if not path or parts.netloc:
        raise ConfigError("url must name a file: sqlite:///relative/path.db or sqlite:////absolute/path.db")
    return _Sqlite(str(Path(path).absolute()))


class SqlCheckpointCommitter(CheckpointCommitter):
    """One row for each subtask in the table `holdfast_committer` of a database, by URL.

    `sqlite:///path/to/file.db` (or that file as a `pathlib.Path`), or `postgresql://user:password@host/database`. Needs
    a database every executor reaches.
    """

    @checked
    def __init__(self, url: Annotated[str | os.PathLike[str], _URL]) -> None:
        self._database = _database(url)
        self.extras = () if isinstance(self._database, _Sqlite) else ("postgres",)
        self._connection: Any = None

    def shared_paths(self) -> Sequence[str]:
        """See CheckpointCommitter; the folder of an SQLite file."""
        return (str(Path(self._database.path).parent),) if isinstance(self._database, _Sqlite) else ()

    def create_resource(self) -> None:
        """Create the table; an existing one is used."""
        self._pipeline()
        self._database.prepare()
        self.open()
        try:
            with self._asking():
                self._database.create(self._open_connection, _CREATE)
        finally:
            self.close()

    def open(self) -> None:
        """See CheckpointCommitter."""
        if self._connection is None:
            with self._explained():
                self._connection = self._database.connect()

    def close(self) -> None:
        """See CheckpointCommitter."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def commit_checkpoint(self, subtask: int, checkpoint_id: CheckpointId) -> None:
        """See CheckpointCommitter."""
        self._execute(_COMMIT, self.job_id, self.operator_id, subtask, checkpoint_id)

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: CheckpointId) -> bool:
        """See CheckpointCommitter."""
        rows = self._execute(_READ, self.job_id, self.operator_id, subtask)
        return bool(rows) and checkpoint_id <= rows[0][0]

    def progress(self) -> Mapping[str, CheckpointId]:
        """See CheckpointCommitter. Empty means that nothing was committed, or that the table was made anew."""
        return {lineage: checkpoint for lineage, (_, checkpoint) in self._lineages().items()}

    def take_over(self) -> None:
        """See CheckpointCommitter."""
        for job, _ in self._lineages().values():
            if job != self.job_id:
                self._execute(_FORGET, job, self.operator_id)

    def _lineages(self) -> dict[str, tuple[str, CheckpointId]]:
        """{lineage: (job id, last checkpoint)} of every pipeline of this name."""
        pipeline = self._pipeline()
        found = {}
        for text, checkpoint in self._execute(_PROGRESS, self.operator_id):
            job = parse_job_id(text)
            if job is not None and job[0] == pipeline:
                found[job[1]] = (text, checkpoint)
        return found

    def _execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        with self._asking():
            return self._database.ask(self._open_connection, statement, values)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        with self._explained(), self._database.watched(self._open_connection):
            yield

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """No error of a driver leaves."""
        try:
            yield
        except self._database.error as error:
            sink = f"the committer of sink {unescape(self.operator_id)!r} ({self._database.address})"
            if self._database.is_no_table(error):
                raise RestoredEndpointError(
                    f"{sink} has lost its table holdfast_committer, and with it which checkpoints were delivered: "
                    "bring it back from the newest backup, or start the query again and see what it says"
                ) from error
            said = str(error).strip().partition("\n")[0]
            raise SinkError(
                f"{sink}: {said}. Check that the database is up, that this process may write to it, and that its disk "
                "has room"
            ) from error

    @property
    def _open_connection(self) -> Any:
        if self._connection is None:
            raise HoldfastError(f"{type(self).__name__} is not open: call open() first")
        return self._connection
