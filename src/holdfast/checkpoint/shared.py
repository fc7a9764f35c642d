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
    name, here = f"{_PREFIX}{uuid.uuid4().hex}", socket.gethostname()
    stores = [open_storage(place.path) for place in places]
    try:
        for store in stores:
            store.create(name, name.encode())
        for seen in tasks.map(_Look([place.path for place in places], name), range(count)):
            for place, store, problem in zip(places, stores, seen.problems, strict=True):
                if problem is None and not _there(store, _answer(name, seen)):
                    problem = f"the driver on {here} does not see what a task on {seen.host} wrote there"
                if problem is not None:
                    raise _not_shared(place, problem)
    finally:
        for store in stores:
            for left in (name, *(f"{name}-{number}" for number in range(count))):
                with suppress(StorageError):  # it is hidden, and tidied up later; what was found is what counts
                    store.delete(left)


@dataclass(frozen=True)
class _Look:
    """Runs in a task: read what the driver wrote, and write an answer."""

    paths: Sequence[str]
    name: str

    def __call__(self, number: int) -> Seen:
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
