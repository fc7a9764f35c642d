"""Locks for actors, in place of those of threads."""

from __future__ import annotations

from collections.abc import Callable

from .scheduler import Actor, Scheduler


class Lock:
    """A lock for actors."""

    def __init__(self, scheduler: Callable[[], Scheduler], *, again: bool = False) -> None:
        self._scheduler, self._again = scheduler, again
        self._owner: Actor | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """As threading's."""
        scheduler = self._scheduler()
        me = scheduler.current
        if self._owner is not None and not (self._again and self._owner is me):
            if not blocking:
                return False
            if not scheduler.wait(lambda: self._owner is None, None if timeout < 0 else timeout):
                return False
        self._owner, self._depth = me, self._depth + 1
        return True

    def release(self) -> None:
        """As threading's."""
        self._depth -= 1
        if self._depth == 0:
            self._owner = None

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()
