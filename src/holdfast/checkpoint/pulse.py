"""What a driver says of itself while it lives, in `runs/<generation>.json`: `holdfast status` reads it.

Nothing is decided by it. It is written every few seconds, so that one that is old says that its driver is gone, also
when that ran on another machine.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any, Protocol

from holdfast.checkpoint import records
from holdfast.checkpoint.delivery import Standing
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import Sink
from holdfast.errors import HoldfastError, RestoredEndpointError, StorageError

logger = logging.getLogger("holdfast")
#: seconds between two beats, and how many runs are kept
EVERY, KEPT = 5.0, 50
STARTING, RUNNING, ENDED, FAILED = "starting", "running", "ended", "failed"
#: in the file of a generation that no query claimed, but a command of holdfast
COMMAND = "command"


class AtWork(Protocol):
    """A sink's delivery loop, or a sink that a start is busy with."""

    @property
    def sink(self) -> Sink:
        """Which one."""

    @property
    def standing(self) -> Standing:
        """What it does, and since when."""


class Pulse:
    """The beats of one run."""

    def __init__(self, log: CheckpointLog, *, clock: Callable[[], float] = time.time) -> None:
        self._log, self._clock = log, clock
        self._started = int(clock() * 1000)
        self._last = float("-inf")
        self._over = False
        #: beats come from the start's own thread, too, and none of these may follow a later one
        self._lock = threading.Lock()

    def beat(self, sinks: Sequence[AtWork], *, now: bool = False) -> None:
        """Say that this driver lives, and what each sink's loop is about; only when it is time to, or `now`."""
        with self._lock:
            if not self._over and (now or self._clock() >= self._last + EVERY):
                self._write(RUNNING, sinks, None)

    def end(self, sinks: Sequence[AtWork], error: BaseException | None) -> None:
        """The last beat: how it ended."""
        with self._lock:
            if not self._over:
                self._over = True
                self._write(ENDED if error is None else FAILED, sinks, error)

    @contextmanager
    def starting(self, at_work: Callable[[], Sequence[AtWork]]) -> Iterator[None]:
        """Beat while the block starts the query, which may hang in an endpoint."""
        over = threading.Event()

        def beat() -> None:
            while not over.wait(EVERY):
                with self._lock:
                    if not over.is_set() and self._log.generation >= 0:
                        try:
                            self._write(STARTING, at_work(), None)
                        except StorageError as error:
                            logger.warning("the query's sign of life could not be written: %s", error)

        threading.Thread(target=beat, name=f"holdfast-{self._log.pipeline}-starting", daemon=True).start()
        try:
            yield
        finally:
            over.set()

    def _write(self, state: str, at_work: Sequence[AtWork], error: BaseException | None) -> None:
        self._last = self._clock()
        sinks = {one.sink.name: {**asdict(one.standing), "may_lag": one.sink.may_lag} for one in at_work}
        body: dict[str, Any] = {
            "generation": self._log.generation,
            "state": state,
            "started": self._started,
            "at": int(self._last * 1000),
            "every": EVERY,
            "sinks": sinks,
            "error": None if error is None else told(error),
        }
        name = f"runs/{self._log.generation}.json"
        self._log.storage.replace(name, records.encode("run", records.new_nonce(), body))

    def prune(self) -> None:
        """Forget runs of long ago."""
        numbers = sorted(int(n.removesuffix(".json")) for n in self._log.storage.names("runs") if n[:1].isdigit())
        for number in numbers[:-KEPT]:
            self._log.storage.delete(f"runs/{number}.json")


def told(error: BaseException) -> Mapping[str, Any]:
    """An error as data."""
    action = error.action if isinstance(error, HoldfastError) else "restart"
    data: dict[str, Any] = {"type": type(error).__name__, "message": str(error)[:4000], "action": action}
    if isinstance(error, RestoredEndpointError):
        data["behind"] = list(error.behind)
    return data
