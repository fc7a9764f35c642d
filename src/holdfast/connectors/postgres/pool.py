"""The driver's connections, kept from one operation to the next."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

#: A commit runs beside the tasks of the next checkpoint, and beside what the batch asks of the server.
MOST = 2


class Pool:
    """Idle connections of this process; each is handed to one thread at a time. Travels to other processes empty."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[tuple[int, Any]] = []
        #: whether connections are kept; not in tasks, nor when the query is over
        self.keeps = False
        # With the pool goes what it keeps, if nobody closed it before.
        weakref.finalize(self, _close, self._idle)

    def __reduce__(self) -> tuple[type[Pool], tuple[()]]:
        return Pool, ()

    def take(self) -> Any | None:
        """A connection, which the server may have closed since; None when there is none."""
        with self._lock:
            while self._idle:
                process, connection = self._idle.pop()
                if process == os.getpid():  # else it is the parent's, which goes on with it
                    return connection
        return None

    def give(self, connection: Any) -> None:
        """Keep it for later, or close it."""
        with self._lock:
            if self.keeps and len(self._idle) < MOST and not connection.closed:
                self._idle.append((os.getpid(), connection))
                return
        connection.close()

    def close(self) -> None:
        """Close what is kept, and keep nothing more."""
        with self._lock:
            self.keeps = False
            _close(self._idle)


def _close(idle: list[tuple[int, Any]]) -> None:
    while idle:
        process, connection = idle.pop()
        if process == os.getpid():
            connection.close()
