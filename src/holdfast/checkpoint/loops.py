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

    def stop(self, timeout: float) -> list[str]:
        """End; the names of sinks whose loop did not end in time."""


class Threads:
    """A daemon thread for each sink: one that hangs in an endpoint holds up nobody else."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._wakes: list[threading.Event] = []
        self._threads: dict[str, threading.Thread] = {}

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

    def stop(self, timeout: float) -> list[str]:
        """See Loops."""
        self._stopping.set()
        self.wake()
        deadline = time.monotonic() + timeout
        for thread in self._threads.values():
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        return [name for name, thread in self._threads.items() if thread.is_alive()]


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

    def stop(self, timeout: float) -> list[str]:
        """See Loops."""
        self._deliveries = ()
        return []
