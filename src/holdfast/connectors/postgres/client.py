"""The driver's statements: each in a transaction of its own settings, sent as one message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.committers.libpq import load_psycopg

Values = Sequence[Any] | Mapping[str, Any]


class Client:
    """A connection of the driver.

    A whole transaction is one message: a driver that is paused here (SIGSTOP, a long collection) holds no lock, since
    the server has all of it or nothing; and a pooler that hands the server's processes out by the transaction never
    comes between two statements.
    """

    def __init__(self, connection: Any, begin: Sequence[str]) -> None:
        self._connection, self._begin = connection, tuple(begin)

    @property
    def info(self) -> Any:
        """Psycopg's account of the connection."""
        return self._connection.info

    def execute(self, statement: str, values: Values | None = None) -> Any:
        """One statement, and a cursor at its rows."""
        if values is not None:
            statement = load_psycopg().ClientCursor(self._connection).mogrify(statement, values)
        cursor = self._send([*self._begin, statement, "COMMIT"])
        for _ in self._begin:
            cursor.nextset()
        return cursor

    def together(self, *statements: str) -> None:
        """Several statements, all or none."""
        self._send([*self._begin, *statements, "COMMIT"])

    def undone(self, *statements: str) -> None:
        """Several statements, tried and taken back: whether they could be done."""
        self._send([*self._begin, *statements, "ROLLBACK"])

    def alone(self, statement: str) -> None:
        """One that no transaction may hold."""
        self._send([statement])

    def forget_timeout(self) -> None:
        """From now on the role's `statement_timeout` ends no statement that is sent alone.

        Only where no pooler is in between: there the setting would go to somebody else. It is seen by the number of the
        server's process, of which a pooler has its own.
        """
        mine = f"pg_backend_pid() = {self._connection.info.backend_pid}"
        self._send([f"SELECT set_config('statement_timeout', '0', false) WHERE {mine}"])

    def _send(self, statements: Sequence[str]) -> Any:
        try:
            return self._connection.execute("; ".join(statements))
        except BaseException:
            if not self._connection.closed:
                self._connection.rollback()
            raise
