"""Where the server is, and the connections to it. No error of a driver leaves: each names the sink and the address."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.committers import libpq
from holdfast.committers.postgres_client import Client, begin, connect, wait_for_unsent
from holdfast.connectors.postgres import trouble
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
        self._conninfo = libpq.conninfo({**given, "client_encoding": "UTF8"})
        # Rows that a server does not take for so long count as not acknowledged, and it may have to wait for a lock.
        # It is set for each operation: in the conninfo it would keep sinks from sharing connections.
        self._unsent = max(int(given["tcp_user_timeout"]), round((lock_timeout + 30) * 1000))
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
        wait_for_unsent(connection, self._unsent)
        try:
            with self._guard.watching(connection):
                yield Client(connection, begin(self.lock_timeout))
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

        def made(connection: Any) -> Session:
            if plain:
                wait_for_unsent(connection, self._unsent)
            return kind(connection, begin(self.lock_timeout), error, key, self._guard)

        while (kept := pool.take(key)) is not None:
            try:
                return made(kept)
            except (error, HungError):
                pass  # the server closed it, by a restart perhaps: the next one tells whether it is there
        new = self._new_connection if plain else self._new_adbc_connection
        return self._patiently(lambda: made(new()), error)

    def _new_connection(self) -> Any:
        return connect(self._conninfo)

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
            # Without the limit for unsent rows: nobody can set it for each operation, and each is watched from beside.
            _databases[key] = postgresql.connect(libpq.without_limit(self._conninfo))
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
