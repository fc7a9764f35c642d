"""Noticing a PostgreSQL server that does not answer any more, while one that works for hours is left alone.

The network alone does not tell: the host of a stopped or stalled process still acknowledges every packet. And a limit
for statements would end a large commit that is going well. So, while an answer is waited for, a second connection looks
now and then what the first one's process is doing. Where nobody answers there, or nothing has changed for too long, the
first one is cut off, and whoever waits for it gets the error of a broken connection.
"""

from __future__ import annotations

import os
import select
import socket
import threading
import time
from contextlib import closing, suppress
from types import TracebackType
from typing import Any

from holdfast.committers.libpq import load_psycopg

#: Seconds between two looks, and without a change after which the server is given up.
EVERY, QUIET = 8.0, 16.0
#: What QUIET grows to, doubled each time that only a lack of change was seen: it may have been a long sort.
LONGEST_QUIET = 600.0
#: Seconds a look may take, of which half for the connection.
_LOOK = 10
#: Behind a pooler the process is not the one that the connection was told of; the log still shows that work is done.
_SIGN = """
SELECT pg_current_wal_insert_lsn(), state, wait_event_type, wait_event, state_change, query_start, backend_xid
FROM (SELECT 1) AS one LEFT JOIN pg_stat_activity ON pid = """


class Patience:
    """How long no change is no reason; shared by all operations on one server, and started anew in a task."""

    def __init__(self, lock_timeout: float = 0.0) -> None:
        self.quiet = QUIET
        #: seconds a process may wait for a lock, which looks like no change
        self.lock_timeout = lock_timeout


class Looks:
    """What was seen of one process so far."""

    def __init__(self, conninfo: str, process: int, patience: Patience) -> None:
        self._conninfo, self._process, self._patience = conninfo, process, patience
        self._seen: tuple[bytes | None, ...] | None = None
        self._since = time.monotonic()

    def judge(self) -> str | None:
        """Look once more: why the server is to be given up, or None."""
        sign = _sign(self._conninfo, self._process)
        if sign is None:
            return "the server does not answer any more"
        now = time.monotonic()
        if sign != self._seen:
            self._seen, self._since = sign, now
            return None
        quiet = self._patience.quiet + (self._patience.lock_timeout if b"Lock" in sign else 0.0)
        if now - self._since < quiet:
            return None
        self._patience.quiet = min(LONGEST_QUIET, 2 * self._patience.quiet)
        return f"the server's process {self._process} has done nothing for {now - self._since:.0f} s"


class Watch:
    """Watches one connection for the length of a block; `why` says that and why it was cut off."""

    def __init__(self, conninfo: str, connection: Any, patience: Patience) -> None:
        self._conninfo, self._patience = conninfo, patience
        self._process: int = connection.info.backend_pid
        # One's own name for the socket: by the time it is cut off, its number may be another file's.
        self._socket = socket.socket(fileno=os.dup(connection.pgconn.socket))
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._look, name="holdfast-postgres-watch", daemon=True)
        self.why: str | None = None

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        with self._lock:
            self._socket.close()

    def _look(self) -> None:
        looks = Looks(self._conninfo, self._process, self._patience)
        while not self._over.wait(EVERY):
            why = looks.judge()
            if why is not None:
                self._cut_off(why)
                return

    def _cut_off(self, why: str) -> None:
        with self._lock:
            if not self._over.is_set():
                self.why = why
                with suppress(OSError):  # it may be broken already
                    self._socket.shutdown(socket.SHUT_RDWR)


def _sign(conninfo: str, process: int) -> tuple[bytes | None, ...] | None:
    """What the process is doing, None when nobody answers; anything new for an answer without news."""
    psycopg = load_psycopg()
    limited = psycopg.conninfo.make_conninfo(conninfo, connect_timeout=_LOOK // 2)
    try:
        with closing(psycopg.connect(limited, autocommit=True)) as connection:
            return _answer(connection.pgconn, f"{_SIGN}{process}")
    except psycopg.errors.ConnectionTimeout:
        return None
    except psycopg.Error:
        return (os.urandom(8),)  # refused or cut off by somebody who is there; the watched one will hear of it


def _answer(server: Any, statement: str) -> tuple[bytes | None, ...] | None:
    deadline = time.monotonic() + _LOOK / 2
    server.send_query(statement.encode())
    server.flush()
    while server.is_busy():
        ready = select.poll()
        ready.register(server.socket, select.POLLIN)
        if not ready.poll(max(0.0, deadline - time.monotonic()) * 1000):
            return None
        server.consume_input()
    result = server.get_result()
    if result is None or result.nfields == 0:
        return (os.urandom(8),)  # an error: a standby has no position to write at
    return tuple(result.get_value(0, column) for column in range(result.nfields))
