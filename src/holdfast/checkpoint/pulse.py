"""What a driver says of itself while it lives, in `runs/<generation>.json`: `holdfast status` reads it.

Nothing is decided by it. It is written every few seconds, so that one that is old says that its driver is gone, also
when that ran on another machine.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from holdfast.checkpoint import records
from holdfast.checkpoint.delivery import Delivery
from holdfast.checkpoint.log import CheckpointLog
from holdfast.errors import HoldfastError, RestoredEndpointError

#: seconds between two beats, and how many runs are kept
EVERY, KEPT = 5.0, 50
RUNNING, ENDED, FAILED = "running", "ended", "failed"
#: in the file of a generation that no query claimed, but a command of holdfast
COMMAND = "command"


class Pulse:
    """The beats of one run."""

    def __init__(self, log: CheckpointLog, *, clock: Callable[[], float] = time.time) -> None:
        self._log, self._clock = log, clock
        self._started = int(clock() * 1000)
        self._last = float("-inf")
        self._over = False

    def beat(self, deliveries: Sequence[Delivery], *, now: bool = False) -> None:
        """Say that this driver lives, and what each sink's loop is about; only when it is time to, or `now`."""
        if not self._over and (now or self._clock() >= self._last + EVERY):
            self._write(RUNNING, deliveries, None)

    def end(self, deliveries: Sequence[Delivery], error: BaseException | None) -> None:
        """The last beat: how it ended."""
        if not self._over:
            self._over = True
            self._write(ENDED if error is None else FAILED, deliveries, error)

    def _write(self, state: str, deliveries: Sequence[Delivery], error: BaseException | None) -> None:
        self._last = self._clock()
        sinks = {d.sink.name: {**asdict(d.standing), "may_lag": d.sink.may_lag} for d in deliveries}
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
