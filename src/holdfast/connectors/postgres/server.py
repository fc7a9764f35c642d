"""Where the server is, and the connections to it. No error of a driver leaves: each names the sink and the address."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, TypeVar

from holdfast.committers import libpq
from holdfast.committers.watch import Patience, Watch
from holdfast.connectors.postgres import trouble
from holdfast.connectors.postgres.pool import Pool
from holdfast.connectors.postgres.session import AdbcSession, CopySession, Session, left
from holdfast.errors import ConfigError, HoldfastError, MissingExtraError

Result = TypeVar("Result")
#: Seconds for which an operation keeps trying to connect; the kernel tries the operation again for minutes.
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
    """Where the database is. Travels to the executors, without its connections; never shows its password."""

    def __init__(self, dsn: str, lock_timeout: float, sink: str = "postgres") -> None:
        drivers()
        given = libpq.read_dsn("dsn", dsn)
        self._conninfo = libpq.conninfo({**given, "client_encoding": "UTF8"})
        # Rows that a server does not take for so long count as not acknowledged, and it may have to wait for a lock.
        patient = max(int(given["tcp_user_timeout"]), round((lock_timeout + 30) * 1000))
        self._task_conninfo = libpq.conninfo({**given, "client_encoding": "UTF8", "tcp_user_timeout": str(patient)})
        self.sink = sink
        self.lock_timeout_ms = round(lock_timeout * 1000)
        self.address = libpq.address(given)
        self._pool = Pool()
        self._patience = Patience(lock_timeout)

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        return f"Server({self.address})"

    # -- the driver's connections -----------------------------------------------------------------------------------

    def keep_connections(self) -> None:
        """From now on, until `close`."""
        self._pool.keeps = True

    @contextmanager
    def connect(self, table: object = "", *, starting: bool = False) -> Iterator[Any]:
        """A connection in autocommit mode, for one thread; after an error it is closed.

        Errors of the driver that the block does not handle become holdfast's, and a server that hangs is one. At a
        start, a server that does not let us in is not asked again.
        """
        psycopg, _, _ = drivers()
        with ExitStack() as stack:
            found = self._reuse(stack)
            if found is None:
                connection = self._connect(starting=starting)
                watch = stack.enter_context(Watch(self._conninfo, connection, self._patience))
            else:
                connection, watch = found
            try:
                yield connection
            except psycopg.Error as error:
                connection.close()
                if watch.why is not None:
                    raise trouble.unreachable(self.sink, self.address, watch.why) from error
                raise self.blame(table, error) from error
            except BaseException:
                connection.close()
                raise
        self._pool.give(connection)

    def close(self) -> None:
        """Close what was kept, and keep nothing more."""
        self._pool.close()

    def blame(self, table: object, error: Exception, about: str = "") -> HoldfastError:
        """Holdfast's error for one of the server's, outside of a commit."""
        return trouble.blame(self.sink, self.address, table or "of its own", error, about)

    def _reuse(self, stack: ExitStack) -> tuple[Any, Watch] | None:
        """A kept connection, if it is still one, and its watch."""
        psycopg, _, _ = drivers()
        connection = self._pool.take()
        if connection is None or connection.closed:
            return None
        try:
            watch = stack.enter_context(Watch(self._conninfo, connection, self._patience))
            return self._prepared(connection), watch
        except psycopg.Error:  # the server closed it, or it hung: the next one tells whether it is there
            stack.close()
            connection.close()
            return None

    def _connect(self, *, starting: bool) -> Any:
        psycopg, _, _ = drivers()
        connect = lambda: self._prepared(self._new_connection(self._conninfo))  # noqa: E731
        return self._patiently(connect, psycopg.OperationalError, starting=starting)

    def _prepared(self, connection: Any) -> Any:
        try:
            connection.execute(f"SET lock_timeout = {self.lock_timeout_ms}")
        except BaseException:
            connection.close()
            raise
        return connection

    # -- a task's -----------------------------------------------------------------------------------------------------

    def session(self, *, plain: bool) -> Session:
        """A task's connection, in a transaction; `plain` when every column is of a type that needs no ADBC."""
        psycopg, manager, _ = drivers()
        kind: type[Session] = CopySession if plain else AdbcSession
        error: type[Exception] = psycopg.Error if plain else manager.Error
        key = (kind.__name__, os.getpid(), self._task_conninfo)

        def begin(connection: Any) -> Session:
            return kind(connection, self.begin(), error, key)

        kept = left(key)
        if kept is not None:
            try:
                return begin(kept)
            except error:
                pass  # the server closed it, by a restart perhaps: the next one tells whether it is there
        new = partial(self._new_connection, self._task_conninfo) if plain else self.adbc_connection
        return self._patiently(lambda: begin(new()), error)

    def _new_connection(self, conninfo: str) -> Any:
        # Nothing is prepared: behind a pooler, the next statement may meet another of the server's processes.
        return drivers()[0].connect(conninfo, autocommit=True, prepare_threshold=None)

    def adbc_connection(self) -> Any:
        """A connection that speaks Arrow."""
        _, manager, postgresql = drivers()
        key = (os.getpid(), self._task_conninfo)
        if key not in _databases:
            _databases[key] = postgresql.connect(self._task_conninfo)
        return manager.AdbcConnection(_databases[key])

    def _patiently(self, connect: Callable[[], Result], error: type[Exception], *, starting: bool = False) -> Result:
        give_up = time.monotonic() + (0.0 if starting else PATIENCE)
        wait = 0.1
        while True:
            try:
                return connect()
            except error as problem:
                why = f"cannot connect: {trouble.said(problem)}"
                if starting and trouble.refuses_us(problem):
                    raise ConfigError(f"sink {self.sink!r} ({self.address}): {why}. Correct the dsn") from None
                if time.monotonic() + wait > give_up:
                    raise trouble.unreachable(self.sink, self.address, why) from None
                time.sleep(wait)
                wait = min(2.0, 2 * wait)

    # -- transactions -------------------------------------------------------------------------------------------------

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
