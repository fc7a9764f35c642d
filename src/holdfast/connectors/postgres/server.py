"""Where the server is, and the connections to it.

One is kept for the next operation of the same process, and tried before it is used.
"""

from __future__ import annotations

import os
import re
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.committers import libpq
from holdfast.connectors.postgres.session import AdbcSession, CopySession, Session, left
from holdfast.errors import ConfigError, HoldfastError, MissingExtraError, RowError

Result = TypeVar("Result")
#: Seconds for which a running query keeps trying to connect: a server that restarts is back by then.
PATIENCE = 10.0
#: One resolver of types for each server and process: to make it, ADBC reads the catalog. It holds no connection.
_databases: dict[tuple[int, str], Any] = {}


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
        #: whether a connection is kept; not in tasks, nor when the query is over
        self.keeps = False
        #: closes the kept connection with this object, if nobody did before
        self._kept: weakref.finalize[[Any, int], Server] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "keeps": False, "_kept": None}

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
        if self.keeps and self._kept is None and not connection.closed:
            self._kept = weakref.finalize(self, _close, connection, os.getpid())
        else:
            connection.close()

    def close(self) -> None:
        """Close what was kept, and keep nothing more."""
        self.keeps = False
        kept, self._kept = self._kept, None
        if kept is not None:
            kept()

    def _reuse(self) -> Any | None:
        """The kept connection, if it is still one."""
        kept, self._kept = self._kept, None
        found = None if kept is None else kept.detach()
        if found is None or found[2][1] != os.getpid():
            return None
        try:
            return self._prepared(found[2][0])
        except drivers()[0].OperationalError:
            return None

    def _connect(self, patience: float) -> Any:
        psycopg, _, _ = drivers()
        return self._patiently(lambda: self._prepared(self._new_connection()), psycopg.OperationalError, patience)

    def _prepared(self, connection: Any) -> Any:
        try:
            connection.execute(f"SET lock_timeout = {self.lock_timeout_ms}")
        except BaseException:
            connection.close()
            raise
        return connection

    def session(self, *, plain: bool) -> Session:
        """A task's connection, in a transaction; `plain` when every column is of a type that needs no ADBC."""
        psycopg, manager, _ = drivers()
        kind: type[Session] = CopySession if plain else AdbcSession
        error: type[Exception] = psycopg.Error if plain else manager.Error
        key = (kind.__name__, os.getpid(), self._conninfo)

        def begin(connection: Any) -> Session:
            return kind(connection, self.begin(), error, key)

        kept = left(key)
        if kept is not None:
            try:
                return begin(kept)
            except error:
                pass  # the server closed it, by a restart perhaps: the next one tells whether it is there
        connect = self._new_connection if plain else self._adbc_connection
        return self._patiently(lambda: begin(connect()), error, PATIENCE)

    def _new_connection(self) -> Any:
        # Nothing is prepared: behind a pooler, the next statement may meet another of the server's processes.
        return drivers()[0].connect(self._conninfo, autocommit=True, prepare_threshold=None)

    def _adbc_connection(self) -> Any:
        _, manager, postgresql = drivers()
        key = (os.getpid(), self._conninfo)
        if key not in _databases:
            _databases[key] = postgresql.connect(self._conninfo)
        return manager.AdbcConnection(_databases[key])

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

        A role or server with synchronous_commit=off would acknowledge what a crash then takes back. With a
        statement_timeout, a task's COPY would fail for waiting for rows, again and again.
        """
        return (
            "BEGIN ISOLATION LEVEL READ COMMITTED",
            f"SELECT set_config('lock_timeout', '{self.lock_timeout_ms}', true), "
            "set_config('idle_in_transaction_session_timeout', '0', true), "
            "set_config('statement_timeout', '0', true), "
            "CASE WHEN current_setting('synchronous_commit') = 'off' "
            "THEN set_config('synchronous_commit', 'on', true) END",
        )


def _close(connection: Any, process: int) -> None:
    if process == os.getpid():  # else it is the parent's, which goes on with it
        connection.close()


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
