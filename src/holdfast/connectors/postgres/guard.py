"""No wait for an answer of the server is without end, on the driver or in a task."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from holdfast.committers import watch
from holdfast.committers.watch import Looks, Patience, Watch

Result = TypeVar("Result")


class HungError(Exception):
    """The server was given up; the message says why."""


class Guard:
    """How one server is watched, with patience that all operations on it share. Started anew in a task."""

    def __init__(self, conninfo: str, lock_timeout: float, error: type[Exception]) -> None:
        self._conninfo, self._error = conninfo, error
        self._patience = Patience(lock_timeout)

    @contextmanager
    def watching(self, connection: Any) -> Iterator[None]:
        """While psycopg waits: the connection is cut off when the server hangs, and that is a HungError."""
        with Watch(self._conninfo, connection, self._patience) as watching:
            try:
                yield
            except self._error as error:
                if watching.why is not None:
                    raise HungError(watching.why) from error
                raise

    def looks(self, process: int) -> Looks:
        """At one of the server's processes."""
        return Looks(self._conninfo, process, self._patience)

    def beside(self, run: Callable[[], Result], process: int | None, close: Callable[[], None]) -> Result:
        """In a thread that is left behind when the server hangs. `process`: the server's, as far as it is known.

        When the server answers after all, whoever was left behind ends the connection: its transaction holds locks.
        """
        answers: list[Result] = []
        errors: list[BaseException] = []
        over, lock, given_up = threading.Event(), threading.Lock(), list[str]()

        def work() -> None:
            try:
                answers.append(run())
            except BaseException as error:  # noqa: BLE001  raised below, by whoever waits
                errors.append(error)
            with lock:
                over.set()
            if given_up:
                close()

        threading.Thread(target=work, name="holdfast-postgres", daemon=True).start()
        looks = self.looks(process or 0)
        while not over.wait(watch.EVERY):
            why = looks.judge()
            with lock:
                if why is not None and not over.is_set():
                    given_up.append(why)
                    raise HungError(why)
        if errors:
            raise errors[0]
        return answers[0]
