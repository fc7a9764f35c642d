"""A store in memory that every process sees in its own way: each access is a point of the scheduler."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from holdfast.errors import StorageError

from .scheduler import Process, Scheduler

#: Statistics and signs of life: nothing is decided by them, and nothing happens there.
_QUIET = ("history/", "runs/", "sinks", "reports/")
WRITE_FAULTS = ("crash", "lose")


class Store:
    """What all processes share."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        #: every decision slot that was ever filled: one that is open again would be filled twice
        self.slots: dict[str, bytes] = {}
        self.problems: list[str] = []
        #: told before a file goes
        self.deleting: Callable[[str], None] = lambda name: None

    def delete(self, name: str) -> None:
        if name in self.files:
            self.deleting(name)
            del self.files[name]

    def create(self, name: str, data: bytes) -> bool:
        if name in self.files:
            return False
        if name.startswith("decisions/"):
            if name in self.slots:
                self.problems.append(f"{name} was filled twice")
            self.slots[name] = data
        self.files[name] = data
        return True

    def read(self, name: str) -> bytes:
        try:
            return self.files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/" if folder else ""
        found = (name.removeprefix(prefix) for name in self.files if name.startswith(prefix))
        return sorted(name for name in found if "/" not in name)

    def walk(self, folder: str) -> list[str]:
        return sorted(name for name in self.files if name.startswith(f"{folder}/"))


class View:
    """One process' way to the store; implements holdfast.checkpoint.storage.Storage."""

    url = "model:/holdfast"

    def __init__(self, store: Store, scheduler: Scheduler, process: Process) -> None:
        self._store, self._scheduler, self._process = store, scheduler, process
        self._read = ""

    def _touch(self, verb: str, name: str, effect: Callable[[], Any], *, write: bool, faults: tuple[str, ...]) -> Any:
        if name.startswith(_QUIET):
            return effect()
        folder = name.partition("/")[0]
        touched = (name, folder) if write else (name,)
        return self._scheduler.point(
            f"{verb} {name}", effect, touched, write=write, faults=faults, failure=StorageError
        )

    def create(self, name: str, data: bytes) -> bool:
        if name.startswith("generations/") and not data.startswith(b"{"):
            return self._store.create(name, data)  # the probe of an unsafe store
        return self._touch("create", name, lambda: self._store.create(name, data), write=True, faults=WRITE_FAULTS)

    def replace(self, name: str, data: bytes) -> None:
        effect = lambda: self._store.files.__setitem__(name, data)  # noqa: E731
        self._touch("replace", name, effect, write=True, faults=WRITE_FAULTS)

    def read(self, name: str) -> bytes:
        return self._touch("read", name, lambda: self._store.read(name), write=False, faults=())

    def delete(self, name: str) -> None:
        self._touch("delete", name, lambda: self._store.delete(name), write=True, faults=("crash",))

    def size(self, name: str) -> int:
        return len(self._store.read(name))

    def sync(self, folder: str) -> None:
        """Memory has no power cuts."""

    def tidy(self, folder: str) -> None:
        """Nobody leaves temporary files here."""

    def remove_folder(self, folder: str) -> None:
        """There are no folders."""

    def names(self, folder: str) -> list[str]:
        if folder in ("history", "runs", "sinks", "reports", ""):
            return self._store.names(folder)
        return self._touch("list", folder, lambda: self._store.names(folder), write=False, faults=())

    def walk(self, folder: str) -> list[str]:
        root = folder.partition("/")[0]
        return self._touch("list", root, lambda: self._store.walk(folder), write=False, faults=())

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        file = io.BytesIO()
        yield file
        data = file.getvalue()
        self._touch("create", name, lambda: self._store.create(name, data), write=True, faults=("crash", "lose"))

    def reader(self, name: str) -> BinaryIO:
        """Read twice in a row, for its checksum and for its rows: one point is enough."""
        known, self._read = self._read, name
        return io.BytesIO(self._store.read(name) if known == name else self.read(name))
