"""A task's connection and its one transaction: rows of plain types by psycopg's COPY, others by ADBC's."""

from __future__ import annotations

import atexit
import os
import select
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any

import pyarrow as pa

from holdfast.connectors.postgres.names import quote
from holdfast.connectors.postgres.rows import HEADER, TRAILER, encode

#: A kind of session, a process, and a server.
Key = tuple[str, int, str]
#: Connections that tasks have left, at most one for each key, the oldest first.
_idle: dict[Key, Any] = {}
#: More servers than this are not remembered.
_MOST_IDLE = 4


class Session(ABC):
    """Begins its transaction when it is made. `error` is what it raises."""

    def __init__(self, connection: Any, begin: Sequence[str], error: type[Exception], key: Key) -> None:
        self._connection, self.error, self._key = connection, error, key
        try:
            for statement in begin:
                self.execute(statement)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def execute(self, statement: str) -> None:
        """One statement."""

    @abstractmethod
    def ingest(self, schema: str, table: str, batch: pa.RecordBatch, *, own: bool = False) -> None:
        """Append rows to a table by binary COPY, straight from Arrow; columns are matched by name.

        `own`: this transaction created the table. What is wrong with a row may be told by the next statement only.
        """

    def keep(self) -> None:
        """The transaction is over: leave the connection to the next task."""
        if self._key not in _idle:
            _idle[self._key], self._connection = self._connection, None
            _forget(_MOST_IDLE)
        self.close()

    def close(self) -> None:
        """End the connection; what is not committed or prepared is rolled back by the server."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _forget(most: int) -> None:
    while len(_idle) > most:
        key = next(iter(_idle))
        connection = _idle.pop(key)
        if key[1] == os.getpid():  # else it is the parent's, which goes on with it
            connection.close()


atexit.register(_forget, 0)


def left(key: Key) -> Any | None:
    """The connection that an earlier task left; the server may have closed it since."""
    return _idle.pop(key, None)


class _BrokenOff(Exception):
    """What psycopg is told of a COPY whose task has failed."""


class CopySession(Session):
    """By psycopg. All rows of a task are one COPY, which ends with the next statement."""

    def __init__(self, connection: Any, begin: Sequence[str], error: type[Exception], key: Key) -> None:
        self._open = ExitStack()
        self._copy: Any = None
        super().__init__(connection, ["; ".join(begin)], error, key)

    def execute(self, statement: str) -> None:
        """See Session."""
        if self._copy is not None:
            self._copy.write(TRAILER)
            self._copy = None
            self._open.close()
        self._connection.execute(statement)

    def ingest(self, schema: str, table: str, batch: pa.RecordBatch, *, own: bool = False) -> None:
        """See Session. Rows of an own table are frozen: who moves them need not ask whether they are committed."""
        if self._copy is None:
            columns = ", ".join(map(quote, batch.schema.names))
            options = "FORMAT binary, FREEZE" if own else "FORMAT binary"
            into = f"COPY {quote(schema)}.{quote(table)} ({columns}) FROM STDIN WITH ({options})"
            cursor = self._open.enter_context(self._connection.cursor())
            self._copy = self._open.enter_context(cursor.copy(into))
            self._copy.write(HEADER)
        for part in encode(batch):
            self._send()
            self._copy.write(part)

    def _send(self) -> None:
        """Wait until the server has taken what was written: libpq would keep any amount of it in memory."""
        server = self._connection.pgconn
        while server.flush():
            ready = select.poll()
            ready.register(server.socket, select.POLLIN | select.POLLOUT)
            if any(event & ~select.POLLOUT for _, event in ready.poll()):
                server.consume_input()

    def close(self) -> None:
        """See Session. A COPY that has not ended goes with the connection: a slow server is not waited for."""
        super().close()
        if self._copy is not None:
            self._copy = None
            with suppress(self.error):  # there is no connection any more
                self._open.__exit__(_BrokenOff, _BrokenOff(), None)


class AdbcSession(Session):
    """By ADBC, which knows every type. Each batch is a COPY."""

    def execute(self, statement: str) -> None:
        """See Session."""
        self._run(lambda s: s.set_sql_query(statement))

    def ingest(self, schema: str, table: str, batch: pa.RecordBatch, *, own: bool = False) -> None:
        """See Session."""
        options = {
            "adbc.ingest.target_table": table,
            "adbc.ingest.target_db_schema": schema,
            "adbc.ingest.mode": "adbc.ingest.mode.append",
        }

        def prepare(statement: Any) -> None:
            statement.set_options(**options)
            statement.bind(batch)

        self._run(prepare)

    def _run(self, prepare: Callable[[Any], None]) -> None:
        import adbc_driver_manager

        statement = adbc_driver_manager.AdbcStatement(self._connection)
        try:
            prepare(statement)
            statement.execute_update()
        finally:
            statement.close()
