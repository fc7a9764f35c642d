"""Who calls the steps of the delivery loops: a thread for each, or, in tests, whoever waits for them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from holdfast.checkpoint.delivery import Delivery
from holdfast.errors import CommitError

logger = logging.getLogger("holdfast")


class Loops(Protocol):
    """Runs deliveries, and lets the batch wait for them."""

    def start(self, deliveries: Sequence[Delivery], name: str) -> None:
        """Begin."""

    def wake(self) -> None:
        """Something was decided, or a chore may be due."""

    def wait(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until the condition holds; False when it does not after so many seconds, or the run was stopped."""

    def sleep(self, seconds: float) -> bool | None:
        """Wait without a condition; True when the run was stopped, so that waiting for anything is over."""

    def call(self, sink: str, do: Callable[[], None], timeout: float, over: Callable[[], bool]) -> bool:
        """Do it for a sink whose endpoint may never answer; raise what it raises.

        False when it is still under way after so many seconds, or when `over` says that nobody waits any more.
        """

    def stop(self, timeout: float) -> list[str]:
        """End; the names of sinks whose loop or call did not end in time."""


class Threads:
    """A daemon thread for each sink: one that hangs in an endpoint holds up nobody else."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._wakes: list[threading.Event] = []
        self._threads: dict[str, threading.Thread] = {}
        #: calls that somebody has waited for, and that had not returned by then
        self._left: list[tuple[str, threading.Thread]] = []

    def start(self, deliveries: Sequence[Delivery], name: str) -> None:
        """See Loops."""
        for delivery in deliveries:
            wake = threading.Event()
            self._wakes.append(wake)
            label = f"holdfast-{name}-{delivery.sink.name}"
            thread = threading.Thread(target=self._run, args=(delivery, wake), name=label, daemon=True)
            self._threads[delivery.sink.name] = thread
            thread.start()

    def _run(self, delivery: Delivery, wake: threading.Event) -> None:
        while not self._stopping.is_set():
            wake.clear()
            try:
                wait = delivery.step()
            except BaseException as error:  # else nobody would notice that this loop is dead
                delivery.failure = CommitError(f"the delivery loop of sink {delivery.sink.name!r} failed: {error!r}")
                delivery.failure.__cause__ = error
                self._tell()
                raise
            self._tell()
            if wait != 0.0:
                wake.wait(wait)

    def _tell(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def wake(self) -> None:
        """See Loops."""
        for wake in self._wakes:
            wake.set()
        self._tell()

    def wait(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """See Loops."""
        with self._changed:
            self._changed.wait_for(lambda: condition() or self._stopping.is_set(), timeout)
            return condition()

    def sleep(self, seconds: float) -> bool | None:
        """See Loops."""
        return self._stopping.wait(seconds)

    def call(self, sink: str, do: Callable[[], None], timeout: float, over: Callable[[], bool]) -> bool:
        """See Loops; in a thread of its own, since nothing ends a call that hangs."""
        done: list[BaseException | None] = []

        def run() -> None:
            try:
                do()
                done.append(None)
            except BaseException as error:  # noqa: BLE001  raised below, by whoever waits
                done.append(error)
            self._tell()

        thread = threading.Thread(target=run, name=f"holdfast-call-{sink}", daemon=True)
        thread.start()
        with self._changed:
            self._changed.wait_for(lambda: done or over(), timeout)
        if not done:
            self._left.append((sink, thread))
            return False
        if done[0] is not None:
            raise done[0]
        return True

    def stop(self, timeout: float) -> list[str]:
        """See Loops."""
        self._stopping.set()
        self.wake()
        deadline = time.monotonic() + timeout
        everyone = [*self._threads.items(), *self._left]
        for _, thread in everyone:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return list(dict.fromkeys(name for name, thread in everyone if thread.is_alive()))


class Inline:
    """Steps are made by whoever waits, one loop after the other: for tests, which then need no threads."""

    def __init__(self, sleep: Callable[[float], bool | None] = time.sleep) -> None:
        self._deliveries: Sequence[Delivery] = ()
        self.sleep = sleep

    def start(self, deliveries: Sequence[Delivery], name: str) -> None:
        """See Loops."""
        self._deliveries = deliveries
        self.wake()

    def wake(self) -> None:
        """See Loops: each loop goes on until it has nothing to do for now."""
        for delivery in self._deliveries:
            while delivery.step() == 0.0:
                pass

    def wait(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        """See Loops; sleeps to the next move that is due, and gives up when there is none."""
        slept = 0.0
        while not condition():
            waits: list[float] = []
            moved = False
            for delivery in self._deliveries:
                wait = delivery.step()
                moved = moved or wait == 0.0
                waits += [] if wait is None else [wait]
            if moved or condition():
                continue
            if not waits or (timeout is not None and slept >= timeout):
                return False
            self.sleep(min(waits))
            slept += min(waits)
        return True

    def call(self, sink: str, do: Callable[[], None], timeout: float, over: Callable[[], bool]) -> bool:
        """See Loops; whoever calls waits for as long as it takes."""
        do()
        return True

    def stop(self, timeout: float) -> list[str]:
        """See Loops."""
        self._deliveries = ()
        return []
