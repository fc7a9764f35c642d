"""The connections of this process, kept from one operation to the next: one pool for driver and tasks, and all sinks.

What a connection is for makes no difference: nothing about it is changed for longer than a transaction.
"""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import Counter
from typing import Any

#: A kind of connection, and the server it leads to.
Key = tuple[str, str]
#: Idle ones for a server: a commit runs beside the tasks of the next checkpoint, and beside what the batch asks.
MOST = 2
#: More servers than this are not remembered.
SERVERS = 4


class Pool:
    """Idle connections; each is handed to one thread at a time. None of them outlives a fork."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Key, list[Any]] = {}
        self._process = os.getpid()
        self._users: Counter[str] = Counter()

    def take(self, key: Key) -> Any | None:
        """A connection, which the server may have closed since; None when there is none."""
        with self._lock:
            self._after_a_fork()
            found = self._idle.get(key)
            return found.pop() if found else None

    def give(self, key: Key, connection: Any) -> None:
        """Keep it for later, or close it."""
        with self._lock:
            self._after_a_fork()
            kept = self._idle.pop(key, [])
            self._idle[key] = kept  # as the last one used
            gone = [connection]
            if len(kept) < MOST:
                kept.append(gone.pop())
            while len(self._idle) > SERVERS:
                gone += self._idle.pop(next(iter(self._idle)))
        for one in gone:
            one.close()

    def lease(self, server: str, user: object) -> weakref.finalize[Any, Any]:
        """Until the answer is called, or `user` is gone, somebody uses this server; after the last one nothing is kept.

        Tasks have no lease: what they leave is for the next one, until Spark ends their process.
        """
        with self._lock:
            self._users[server] += 1
        return weakref.finalize(user, self._release, server)

    def _release(self, server: str) -> None:
        with self._lock:
            self._users[server] -= 1
            gone = []
            if self._users[server] <= 0:
                del self._users[server]
                for key in [key for key in self._idle if key[1] == server]:
                    gone += self._idle.pop(key)
            self._after_a_fork()
        for one in gone:
            one.close()

    def _after_a_fork(self) -> None:
        if self._process != os.getpid():  # they are the parent's, which goes on with them
            _lost.extend(self._idle.values())
            self._idle, self._process = {}, os.getpid()

    def close(self) -> None:
        """Close what is kept."""
        with self._lock:
            self._after_a_fork()
            gone = [one for kept in self._idle.values() for one in kept]
            self._idle.clear()
        for one in gone:
            one.close()


#: A parent's connections, never touched: to collect one would close it for the parent, too.
_lost: list[Any] = []
pool = Pool()
atexit.register(pool.close)
