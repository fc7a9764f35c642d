"""Where the server is, and the connections to it. No error of a driver leaves: each names the sink and the address."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.committers import libpq
from holdfast.connectors.postgres import trouble
from holdfast.connectors.postgres.client import Client
from holdfast.connectors.postgres.guard import Guard, HungError
from holdfast.connectors.postgres.pool import Key, pool
from holdfast.connectors.postgres.session import AdbcSession, CopySession, Session
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
        # Rows that a server does not take for so long count as not acknowledged, and it may have to wait for a lock.
        patient = max(int(given["tcp_user_timeout"]), round((lock_timeout + 30) * 1000))
        self._conninfo = libpq.conninfo({**given, "client_encoding": "UTF8", "tcp_user_timeout": str(patient)})
        self.sink = sink
        self.lock_timeout = lock_timeout
        self.address = libpq.address(given)
        self._guard = Guard(self._conninfo, lock_timeout, drivers()[0].Error)
        self._lease: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_lease": None}

    def __str__(self) -> str:
        return self.address

    def __repr__(self) -> str:
        return f"Server({self.address})"

    # -- connections ------------------------------------------------------------------------------------------------

    def keep_connections(self) -> None:
        """From now on, until `close`."""
        if self._lease is None or not self._lease.alive:
            self._lease = pool.lease(self._conninfo, self)

    def close(self) -> None:
        """Others may go on with what was kept; the last one closes it."""
        if self._lease is not None:
            self._lease()

    @contextmanager
    def connect(self, table: object = "", *, starting: bool = False) -> Iterator[Client]:
        """A connection for one thread; after an error it is closed.

        Errors of the driver that the block does not handle become holdfast's, and a server that hangs is one. At a
        start, a server that does not let us in is not asked again.
        """
        psycopg, _, _ = drivers()
        key = ("psycopg", self._conninfo)
        connection = self._kept(key)
        if connection is None:
            connection = self._patiently(self._new_connection, psycopg.OperationalError, starting=starting)
        try:
            with self._guard.watching(connection):
                yield Client(connection, self.begin())
        except psycopg.Error as error:
            connection.close()
            raise self.blame(table, error) from error
        except HungError as error:
            connection.close()
            raise self.hung(error) from error
        except BaseException:
            connection.close()
            raise
        if self._lease is not None and self._lease.alive:
            pool.give(key, connection)
        else:
            connection.close()

    def hung(self, error: HungError) -> HoldfastError:
        """Holdfast's error for a server that was given up."""
        return trouble.unreachable(self.sink, self.address, str(error))

    def _kept(self, key: Key) -> Any | None:
        """A connection that somebody has left, if it is still one."""
        psycopg, _, _ = drivers()
        while (connection := pool.take(key)) is not None:
            try:
                if not connection.closed:
                    with self._guard.watching(connection):
                        connection.execute("SELECT 1")
                    return connection
            except (psycopg.Error, HungError):
                pass  # the server closed it, by a restart perhaps: the next one tells whether it is there
            connection.close()
        return None

    def blame(self, table: object, error: Exception, about: str = "") -> HoldfastError:
        """Holdfast's error for one of the server's, outside of a commit."""
        return trouble.blame(self.sink, self.address, table or "of its own", error, about)

    def session(self, *, plain: bool) -> Session:
        """A task's connection, in a transaction; `plain` when every column is of a type that needs no ADBC."""
        psycopg, manager, _ = drivers()
        kind: type[Session] = CopySession if plain else AdbcSession
        error: type[Exception] = psycopg.Error if plain else manager.Error
        key = ("psycopg" if plain else "ADBC", self._conninfo)

        def begin(connection: Any) -> Session:
            return kind(connection, self.begin(), error, key, self._guard)

        while (kept := pool.take(key)) is not None:
            try:
                return begin(kept)
            except (error, HungError):
                pass  # the server closed it, by a restart perhaps: the next one tells whether it is there
        new = self._new_connection if plain else self._new_adbc_connection
        return self._patiently(lambda: begin(new()), error)

    def _new_connection(self) -> Any:
        # Nothing is prepared: behind a pooler, the next statement may meet another of the server's processes.
        return drivers()[0].connect(self._conninfo, autocommit=True, prepare_threshold=None)

    def _new_adbc_connection(self) -> Any:
        """ADBC reads the catalog when it connects, and waits for that where nobody can cut it off."""
        made: list[Any] = []

        def connect() -> Any:
            made.append(self.adbc_connection())
            return made[0]

        def close() -> None:
            for connection in made:
                connection.close()

        return self._guard.beside(connect, None, close)

    def adbc_connection(self) -> Any:
        """A connection that speaks Arrow."""
        _, manager, postgresql = drivers()
        key = (os.getpid(), self._conninfo)
        if key not in _databases:
            _databases[key] = postgresql.connect(self._conninfo)
        return manager.AdbcConnection(_databases[key])

    def _patiently(self, connect: Callable[[], Result], error: type[Exception], *, starting: bool = False) -> Result:
        give_up = time.monotonic() + (0.0 if starting else PATIENCE)
        wait = 0.1
        while True:
            try:
                return connect()
            except HungError as problem:
                raise self.hung(problem) from None
            except error as problem:
                why = f"cannot connect: {trouble.said(problem)}"
                if starting and trouble.refuses_us(problem):
                    raise ConfigError(f"sink {self.sink!r} ({self.address}): {why}. Correct the dsn") from None
                if time.monotonic() + wait > give_up:
                    raise trouble.unreachable(self.sink, self.address, why) from None
                time.sleep(wait)
                wait = min(2.0, 2 * wait)

    # -- transactions -------------------------------------------------------------------------------------------------

    def begin(self) -> tuple[str, str]:
        """Begin a transaction that neither waits for ever nor reads an old snapshot, whatever the role's defaults.

        A role or server with synchronous_commit=off would acknowledge what a crash then takes back. A timeout that is
        meant for people would end a task that waits for rows, or a large commit, again and again. Nothing is set for
        longer than the transaction: behind a pooler, the next one on this connection may be somebody else's.
        """
        offs = "".join(
            f"CASE WHEN current_setting('{name}', true) <> '0' THEN set_config('{name}', '0', true) END, "
            for name in ("statement_timeout", "transaction_timeout", "idle_in_transaction_session_timeout")
        )
        return (
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE",
            f"SELECT {offs}set_config('lock_timeout', '{round(self.lock_timeout * 1000)}', true), "
            "CASE WHEN current_setting('synchronous_commit') = 'off' "
            "THEN set_config('synchronous_commit', 'on', true) END",
        )
