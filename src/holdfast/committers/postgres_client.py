"""Statements to PostgreSQL: each in a transaction of its own settings, sent as one message."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.committers.libpq import load_psycopg

Values = Sequence[Any] | Mapping[str, Any]


def connect(conninfo: str) -> Any:
    """A connection for which it makes no difference whether a pooler is in between."""
    # Nothing is prepared: behind a pooler, the next statement may meet another of the server's processes.
    return load_psycopg().connect(conninfo, autocommit=True, prepare_threshold=None)


def wait_for_unsent(connection: Any, milliseconds: int) -> None:
    """How long what was sent may stay unacknowledged before the connection counts as broken."""
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is None or connection.closed:  # no such thing here; or whoever uses it will hear of it
        return
    with socket.socket(fileno=os.dup(connection.pgconn.socket)) as wire:
        if wire.family != socket.AF_UNIX:
            wire.setsockopt(socket.IPPROTO_TCP, option, milliseconds)


def begin(lock_timeout: float) -> tuple[str, str]:
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
        f"SELECT {offs}set_config('lock_timeout', '{round(lock_timeout * 1000)}', true), "
        "CASE WHEN current_setting('synchronous_commit') = 'off' "
        "THEN set_config('synchronous_commit', 'on', true) END",
    )


class Client:
    """A connection of the driver, or of a committer.

    A whole transaction is one message: a driver that is paused here (SIGSTOP, a long collection) holds no lock, since
    the server has all of it or nothing; and a pooler that hands the server's processes out by the transaction never
    comes between two statements.
    """

    def __init__(self, connection: Any, begin: Sequence[str]) -> None:
        self._connection, self._begin = connection, tuple(begin)
        self._timeouts = True

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
        """One that no transaction may hold. A role's timeouts do not end it, where no pooler is in between."""
        if self._timeouts:
            self._forget_timeouts()
            self._timeouts = False
        self._send([statement])

    def _forget_timeouts(self) -> None:
        """Behind a pooler the setting would go to somebody else.

        That is seen by the number of the server's process, of which a pooler has its own.
        """
        mine = f"pg_backend_pid() = {self._connection.info.backend_pid}"
        # The second is new in version 17. Not from pg_settings, which is made anew for each look.
        names = "unnest(ARRAY['statement_timeout', 'transaction_timeout']) AS name"
        which = f"current_setting(name, true) <> '0' AND {mine}"
        self._send([f"SELECT set_config(name, '0', false) FROM {names} WHERE {which}"])  # noqa: S608

    def _send(self, statements: Sequence[str]) -> Any:
        try:
            return self._connection.execute("; ".join(statements))
        except BaseException:
            if not self._connection.closed:
                self._connection.rollback()
            raise
