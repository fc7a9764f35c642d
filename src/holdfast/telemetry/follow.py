"""Follows the queries of this process from start to end, beside them: a thread of its own reads their files.

A receiver that is slow or away costs no query anything; what it misses is not told again.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from holdfast.checkpoint.history import CheckpointStats
from holdfast.core.hiding import hide_text
from holdfast.errors import HoldfastError
from holdfast.spark.running import RunningQuery, announce
from holdfast.telemetry.newly import Newly

logger = logging.getLogger("holdfast")
#: seconds between two looks at a query's files, and how long the end of the process waits for the last one
EVERY, LAST_LOOK = 1.0, 10.0


class Told(Protocol):
    """Tells some other system of one query run. What its receiver does wrong, it raises as `Unreachable`."""

    def started(self) -> None:
        """The run is about to start."""

    def checkpoint(self, stats: CheckpointStats) -> None:
        """A checkpoint is over: complete or aborted."""

    def ended(self, failure: HoldfastError | None) -> None:
        """The run has ended, with this failure or well."""


class UnreachableError(Exception):
    """The receiver did not take what it was told."""


class Follower:
    """Follows every query until it is closed; closing waits a moment for what is still to be told."""

    def __init__(self, what: str, tell: Callable[[RunningQuery], Told], *, close: Callable[[], None]) -> None:
        """`tell` makes what tells of one run; `close` is called last, once."""
        self._what, self._tell, self._last = what, tell, close
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._closing = threading.Lock()
        self._closed = False
        self._complained = False
        self._forget = announce(self._started)
        atexit.register(self.close)

    def _started(self, query: RunningQuery) -> None:
        newly = Newly(query.location)  # now, so that the first checkpoint is not taken for an old one
        name = f"holdfast-{self._what}-{query.pipeline}"
        thread = threading.Thread(target=self._follow, args=(query, newly), name=name, daemon=True)
        self._threads = [t for t in self._threads if t.is_alive()] + [thread]
        thread.start()

    def _follow(self, query: RunningQuery, newly: Newly) -> None:
        told = self._tell(query)
        self._try(told.started)
        while True:
            over = query.over or self._stop.is_set()  # before the look, so that the last one sees all
            try:
                for stats in newly.look():
                    self._try(lambda s=stats: told.checkpoint(s))  # type: ignore[misc]
            except HoldfastError as error:
                logger.info("%s: the history at %s cannot be read just now: %s", self._what, query.location, error)
            if over:
                break
            self._stop.wait(EVERY)
        if query.over:
            self._try(lambda: told.ended(query.failure))

    def _try(self, tell: Callable[[], None]) -> None:
        try:
            tell()
        except UnreachableError as error:
            level = logging.INFO if self._complained else logging.WARNING
            self._complained = True
            logger.log(level, "%s could not be told, and is not told again: %s", self._what, hide_text(str(error)))
        else:
            self._complained = False

    def close(self) -> None:
        """Tell what is left, and no more after that."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            self._forget()
            atexit.unregister(self.close)
            # A query that has ended is followed to its end; one that goes on is told of up to here.
            deadline = time.monotonic() + LAST_LOOK
            self._stop.set()
            for thread in self._threads:
                thread.join(max(0.0, deadline - time.monotonic()))
            self._last()
