"""Connections to the server: the driver's by psycopg, the tasks' by ADBC.

One of each is kept for the next operation of the same process, and tried before it is used.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import pyarrow as pa

from holdfast.committers import libpq
from holdfast.errors import ConfigError, HoldfastError, MissingExtraError, RowError

Result = TypeVar("Result")
#: Seconds for which a running query keeps trying to connect: a server that restarts is back by then.
PATIENCE = 10.0
#: One resolver of types for each server and process: to make it, ADBC reads the catalog. It holds no connection.
_databases: dict[tuple[int, str], Any] = {}
#: Connections that tasks of this process have left, at most one for each server, the oldest first.
_idle: dict[tuple[int, str], Any] = {}
#: More servers than this are not remembered.
_MOST_IDLE = 4


def drivers() -> tuple[Any, Any, Any]:
    """(psycopg, adbc_driver_manager, adbc_driver_postgresql), or the error that names the extra."""
    try:
        import adbc_driver_manager
        import adbc_driver_postgresql
    except ImportError as error:
        raise MissingExtraError("PostgreSQL needs more packages: pip install 'holdfast[postgres]'") from error
    return libpq.load_psycopg(), adbc_driver_manager, adbc_driver_postgresql


class Server:
    """Where the database is. Travels to the executors, without its connection; never shows its password."""

    def __init__(self, dsn: str, lock_timeout: float) -> None:
        drivers()
        given = libpq.read_dsn("dsn", dsn)
        self._conninfo = libpq.conninfo({**given, "client_encoding": "UTF8"})
        self.lock_timeout_ms = round(lock_timeout * 1000)
        host = given.get("hostaddr") or given.get("host") or "the local socket"
        self._where = f"database {given.get('dbname') or given.get('user') or 'of this user'!r} at {host}"
        self._keeps = True
        self._kept: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_keeps": False, "_kept": None}

    def __del__(self) -> None:
        # An unread dsn leaves none of the attributes.
        if self.__dict__.get("_kept") is not None:
            self.close()

    def __str__(self) -> str:
        return self._where

    def __repr__(self) -> str:
        return f"Server({self._where})"

    @contextmanager
    def connect(self, patience: float | None = None) -> Iterator[Any]:
        """The driver's connection, in autocommit mode; after an error it is closed."""
        connection = self._reuse() or self._connect(PATIENCE if patience is None else patience)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        # Another thread may have kept one in the meantime.
        if self._keeps and self._kept is None and not connection.closed:
            self._kept = connection
        else:
            connection.close()

    def close(self) -> None:
        """Close what was kept."""
        connection, self._kept = self._kept, None
        if connection is not None:
            connection.close()

    def _reuse(self) -> Any | None:
        """The kept connection, if it is still one."""
        connection, self._kept = self._kept, None
        if connection is None:
            return None
        try:
            return self._prepared(connection)
        except drivers()[0].OperationalError:
            connection.close()
            return None

    def _connect(self, patience: float) -> Any:
        psycopg, _, _ = drivers()
        return self._patiently(
            lambda: self._prepared(psycopg.connect(self._conninfo, autocommit=True)), psycopg.OperationalError, patience
        )

    def _prepared(self, connection: Any) -> Any:
        connection.execute(f"SET lock_timeout = {self.lock_timeout_ms}")
        return connection

    def session(self) -> Session:
        """A task's connection, in a transaction."""
        _, manager, _ = drivers()
        key = (os.getpid(), self._conninfo)
        kept = _idle.pop(key, None)
        if kept is not None:
            try:
                return Session(self, manager, kept, key)
            except manager.Error:
                pass  # the server closed it, by a restart perhaps: the next one tells whether it is there
        return self._patiently(
            lambda: Session(self, manager, manager.AdbcConnection(self._database()), key), manager.Error, PATIENCE
        )

    def _database(self) -> Any:
        _, _, postgresql = drivers()
        key = (os.getpid(), self._conninfo)
        if key not in _databases:
            _databases[key] = postgresql.connect(self._conninfo)
        return _databases[key]

    def _patiently(self, connect: Callable[[], Result], error: type[Exception], patience: float) -> Result:
        give_up = time.monotonic() + patience
        wait = 0.1
        while True:
            try:
                return connect()
            except error as problem:
                if time.monotonic() + wait > give_up:
                    raise HoldfastError(f"cannot connect to {self}: {said(problem)}") from None
                time.sleep(wait)
                wait = min(2.0, 2 * wait)

    def in_one_go(self, connection: Any, *statements: str) -> None:
        """One transaction in one message.

        A driver that is paused here (SIGSTOP, a long collection) holds no lock: the server has all of it or nothing.
        """
        try:
            connection.execute("; ".join([*self.begin(), *statements, "COMMIT"]))
        except BaseException:
            if not connection.closed:
                connection.rollback()
            raise

    def begin(self) -> tuple[str, str]:
        """Begin a transaction that neither waits for ever nor reads an old snapshot, whatever the role's defaults.

        A role or server with synchronous_commit=off would acknowledge what a crash then takes back.
        """
        return (
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            f"SELECT set_config('lock_timeout', '{self.lock_timeout_ms}', true), "
            "set_config('idle_in_transaction_session_timeout', '0', true), "
            "CASE WHEN current_setting('synchronous_commit') = 'off' "
            "THEN set_config('synchronous_commit', 'on', true) END",
        )


class Session:
    """One task's connection and its one transaction."""

    def __init__(self, server: Server, manager: Any, connection: Any, key: tuple[int, str]) -> None:
        self._manager, self._key = manager, key
        self._connection: Any = connection
        try:
            for statement in server.begin():
                self.execute(statement)
        except BaseException:
            self.close()
            raise

    def execute(self, statement: str) -> None:
        """One statement."""
        self._run(lambda s: s.set_sql_query(statement))

    def ingest(self, schema: str, table: str, batch: pa.RecordBatch) -> None:
        """Append rows to a table by binary COPY, straight from Arrow; columns are matched by name."""

        def prepare(statement: Any) -> None:
            statement.set_options(**_ingest_options(schema, table))
            statement.bind(batch)

        self._run(prepare)

    def _run(self, prepare: Callable[[Any], None]) -> None:
        statement = self._manager.AdbcStatement(self._connection)
        try:
            prepare(statement)
            statement.execute_update()
        finally:
            statement.close()

    def keep(self) -> None:
        """The transaction is over: leave the connection to the next task."""
        if self._key not in _idle:
            _idle[self._key], self._connection = self._connection, None
            while len(_idle) > _MOST_IDLE:
                _idle.pop(next(iter(_idle))).close()
        self.close()

    def close(self) -> None:
        """End the connection; what is not committed or prepared is rolled back by the server."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def error(self) -> type[Exception]:
        """What ADBC raises."""
        found: type[Exception] = self._manager.Error
        return found


def _ingest_options(schema: str, table: str) -> Mapping[str, str]:
    return {
        "adbc.ingest.target_table": table,
        "adbc.ingest.target_db_schema": schema,
        "adbc.ingest.mode": "adbc.ingest.mode.append",
    }


def said(error: Exception) -> str:
    """What the server said, without the drivers' wrapping."""
    text = str(error)
    _, marker, server = text.partition("ERROR:")
    text = re.sub(r"\s*SQLSTATE: \w{5}\s*$", "", server) if marker else text
    return re.sub(r"\s*\n\s*", "; ", text.strip().rstrip("."))


def state(error: Exception) -> str:
    """The five characters of the SQL standard, or none: then the connection broke."""
    return getattr(error, "sqlstate", None) or ""


def is_about_rows(error: Exception) -> bool:
    """Whether the rows are to blame (data or integrity), so that trying again cannot help."""
    return state(error)[:2] in ("21", "22", "23")


def blame(sink: str, table: object, error: Exception) -> Exception:
    """The error a task raises for one of the server's, before anything is decided."""
    if is_about_rows(error):
        return RowError(f"sink {sink!r}: a row does not go into table {table}: {said(error)}")
    if state(error) == "55P03":
        return HoldfastError(
            f"sink {sink!r}: waited for longer than lock_timeout for a lock on table {table} or on one of its rows. In "
            "two-phase mode two rows of one checkpoint with the same unique key, or a prepared transaction that "
            "nobody ends, do that: see pg_prepared_xacts, and docs/postgres.md"
        )
    if state(error) == "53200" and "prepared transactions" in str(error):
        return ConfigError(f"sink {sink!r}: {said(error)}. {RAISE_PREPARED}")
    return HoldfastError(f"sink {sink!r}, table {table}: {said(error)}")


RAISE_PREPARED = (
    "mode='two-phase' needs one prepared transaction for each partition of a batch and some to spare: ALTER SYSTEM SET "
    "max_prepared_transactions = 64, then restart the server. mode='ledger' needs no server setting"
)
