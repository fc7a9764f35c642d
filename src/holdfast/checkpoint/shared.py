"""Whether driver and executors share the storage a sink needs both to see: proved at the start, before any decision.

A path such as /data exists on every machine and is another folder on each. Tasks would write rows that the driver never
finds, and the first sign of it would come after the decision. So the driver leaves a word in each folder, tasks on the
executors read it and leave theirs, and the driver reads that.
"""

from __future__ import annotations

import socket
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.ports import Tasks
from holdfast.checkpoint.storage import open_storage
from holdfast.errors import ConfigError, HoldfastError, StorageError

#: As the temporary files of a store: no reader lists it, and what a killed driver leaves is tidied up.
_PREFIX = ".tmp-shared-"
#: seconds a network file system gets to show a new file
PATIENCE = 2.0


@dataclass(frozen=True)
class Place:
    """A folder, and the sinks that need it."""

    path: str
    sinks: tuple[str, ...]


@dataclass(frozen=True)
class Seen:
    """What one task found: where it ran, and for each place what is wrong there, or None."""

    host: str
    number: int
    problems: tuple[str | None, ...]


def places_of(sinks: Iterable[Any], location: str) -> list[Place]:
    """The folders that sinks say driver and tasks both use; `location` is that of the checkpoint log."""
    found: dict[str, list[str]] = {}
    for sink in sinks:
        for path in sink.shared_paths(location):
            found.setdefault(path, []).append(sink.name)
    return [Place(path, tuple(names)) for path, names in found.items()]


def check_shared(places: Sequence[Place], tasks: Tasks, count: int) -> None:
    """Let `count` tasks look at each place; ConfigError with path and host when one does not see what the driver does.

    Only executors that are there at the start can be asked.
    """
    if not places:
        return
    with Proof(places, count) as proof:
        proof.check(tasks.map(proof.look, range(count)))


class Proof:
    """The driver's word in each place, from `with` to its end; tasks answer it."""

    def __init__(self, places: Sequence[Place], count: int = 0) -> None:
        self._places, self._name = places, f"{_PREFIX}{uuid.uuid4().hex}"
        self._stores = [open_storage(place.path) for place in places]
        self._answers = {f"{self._name}-{number}" for number in range(count)}
        #: what a task calls with its number
        self.look = Look(tuple(place.path for place in places), self._name)

    def __enter__(self) -> Proof:
        try:
            for store in self._stores:
                store.create(self._name, self._name.encode())
        except BaseException:
            self._tidy()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._tidy()

    def check(self, found: Sequence[Seen]) -> None:
        """ConfigError when a task did not see the driver's word, or the driver does not see the task's."""
        here = socket.gethostname()
        self._answers |= {_answer(self._name, seen) for seen in found}
        for seen in found:
            for place, store, problem in zip(self._places, self._stores, seen.problems, strict=True):
                if problem is None and not _there(store, _answer(self._name, seen)):
                    problem = f"the driver on {here} does not see what a task on {seen.host} wrote there"
                if problem is not None:
                    raise _not_shared(place, problem)

    def _tidy(self) -> None:
        for store in self._stores:
            for left in (self._name, *self._answers):
                with suppress(StorageError):  # it is hidden, and tidied up later; what was found is what counts
                    store.delete(left)


@dataclass(frozen=True)
class Look:
    """Runs in a task: read what the driver wrote, and write an answer."""

    paths: tuple[str, ...]
    name: str

    def __call__(self, number: int) -> Seen:
        """In the task of this number."""
        host = socket.gethostname()
        return Seen(host, number, tuple(self._problem(path, host, number) for path in self.paths))

    def _problem(self, path: str, host: str, number: int) -> str | None:
        try:
            store = open_storage(path)
            if not _there(store, self.name):
                return f"a task on {host} does not see what the driver wrote there"
            store.create(f"{self.name}-{number}", self.name.encode())
        except HoldfastError as error:
            return f"a task on {host} cannot use it ({error})"
        return None


def _answer(name: str, seen: Seen) -> str:
    return f"{name}-{seen.number}"


def _there(store: Any, name: str) -> bool:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            store.read(name)
        except FileNotFoundError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
        else:
            return True


def _not_shared(place: Place, problem: str) -> ConfigError:
    names = " and ".join(repr(name) for name in place.sinks)
    return ConfigError(
        f"{place.path} is not shared by driver and executors, and sink {names} needs it to be: {problem}. Use storage "
        "that all machines reach by this path or URL: an object store (s3://...), or a file system that is mounted on "
        "each of them. Nothing was decided"
    )
