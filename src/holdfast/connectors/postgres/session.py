"""A task's connection and its one transaction: rows of plain types by psycopg's COPY, others by ADBC's."""

from __future__ import annotations

import select
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeVar

import pyarrow as pa

from holdfast.committers import watch
from holdfast.connectors.postgres.guard import Guard, HungError
from holdfast.connectors.postgres.names import quote
from holdfast.connectors.postgres.pool import Key, pool
from holdfast.connectors.postgres.rows import HEADER, TRAILER, encode

Result = TypeVar("Result")


class Session(ABC):
    """Begins its transaction when it is made. `error` is what it raises."""

    def __init__(self, connection: Any, begin: Sequence[str], error: type[Exception], key: Key, guard: Guard) -> None:
        self._connection, self.error, self._key, self._guard = connection, error, key, guard
        try:
            for statement in begin:
                self.execute(statement)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def execute(self, statement: str) -> None:
        """One statement. HungError when the server does not answer."""

    @abstractmethod
    def ingest(self, schema: str, table: str, batch: pa.RecordBatch) -> None:
        """Append rows to a table by binary COPY, straight from Arrow; columns are matched by name.

        What is wrong with a row may be told by the next statement only.
        """

    def keep(self) -> None:
        """The transaction is over: leave the connection to whoever comes next."""
        if self._connection is not None:
            pool.give(self._key, self._connection)
            self._connection = None

    def close(self) -> None:
        """End the connection; what is not committed or prepared is rolled back by the server."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


class _BrokenOff(Exception):
    """What psycopg is told of a COPY whose task has failed."""


class CopySession(Session):
    """By psycopg. All rows of a task are one COPY, which ends with the next statement."""

    def __init__(self, connection: Any, begin: Sequence[str], error: type[Exception], key: Key, guard: Guard) -> None:
        self._open = ExitStack()
        self._copy: Any = None
        super().__init__(connection, ["; ".join(begin)], error, key, guard)

    def execute(self, statement: str) -> None:
        """See Session."""
        # While rows are copied the server waits for us; now we wait for it.
        with self._guard.watching(self._connection):
            if self._copy is not None:
                self._copy.write(TRAILER)
                self._copy = None
                self._open.close()
            self._connection.execute(statement)

    def ingest(self, schema: str, table: str, batch: pa.RecordBatch) -> None:
        """See Session."""
        if self._copy is None:
            columns = ", ".join(map(quote, batch.schema.names))
            into = f"COPY {quote(schema)}.{quote(table)} ({columns}) FROM STDIN WITH (FORMAT binary)"
            with self._guard.watching(self._connection):
                cursor = self._open.enter_context(self._connection.cursor())
                self._copy = self._open.enter_context(cursor.copy(into))
            self._copy.write(HEADER)
        for part in encode(batch):
            self._send()
            self._copy.write(part)

    def _send(self) -> None:
        """Wait until the server has taken what was written: libpq would keep any amount of it in memory."""
        server, looks = self._connection.pgconn, None
        while server.flush():
            ready = select.poll()
            ready.register(server.socket, select.POLLIN | select.POLLOUT)
            events = ready.poll(watch.EVERY * 1000)
            if any(event & ~select.POLLOUT for _, event in events):
                server.consume_input()
            if not events:
                looks = looks or self._guard.looks(server.backend_pid)
                if (why := looks.judge()) is not None:
                    raise HungError(why)

    def close(self) -> None:
        """See Session. A COPY that has not ended goes with the connection: a slow server is not waited for."""
        super().close()
        if self._copy is not None:
            self._copy = None
            with suppress(self.error):  # there is no connection any more
                self._open.__exit__(_BrokenOff, _BrokenOff(), None)


class AdbcSession(Session):
    """By ADBC, which knows every type. Each batch is a COPY."""

    def __init__(self, connection: Any, begin: Sequence[str], error: type[Exception], key: Key, guard: Guard) -> None:
        self._process: int | None = None
        super().__init__(connection, begin, error, key, guard)
        self._process = self._ask("SELECT pg_backend_pid()")

    def execute(self, statement: str) -> None:
        """See Session."""
        self._run(lambda s: s.set_sql_query(statement))

    def ingest(self, schema: str, table: str, batch: pa.RecordBatch) -> None:
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

        def run(connection: Any) -> None:
            statement = adbc_driver_manager.AdbcStatement(connection)
            try:
                prepare(statement)
                statement.execute_update()
            finally:
                statement.close()

        self._guarded(run)

    def _ask(self, query: str) -> int:
        import adbc_driver_manager

        def run(connection: Any) -> int:
            statement = adbc_driver_manager.AdbcStatement(connection)
            try:
                statement.set_sql_query(query)
                stream, _ = statement.execute_query()
                with pa.RecordBatchReader._import_from_c(stream.address) as reader:
                    return int(reader.read_all().column(0)[0].as_py())
            finally:
                statement.close()

        return self._guarded(run)

    def _guarded(self, run: Callable[[Any], Result]) -> Result:
        """ADBC waits where nobody can cut it off: when the server is given up, the connection is left to its thread."""
        connection = self._connection
        try:
            return self._guard.beside(lambda: run(connection), self._process, connection.close)
        except HungError:
            self._connection = None
            raise
