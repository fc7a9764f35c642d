"""A store in memory, and a driver's view of it that kills, loses answers or pauses the driver at a chosen call."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from holdfast.checkpoint import records
from holdfast.core.model import Record, RecordKind, Slot


class Memory:
    """What all drivers share. It remembers everything that was ever created, in order."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.created: list[str] = []
        self.contents: dict[str, bytes] = {}
        self._parsed: dict[str, Record] = {}

    def create(self, name: str, data: bytes) -> bool:
        if name in self.files:
            return False
        # A slot that is pruned must never be open again: its generation would be fenced in the past.
        assert not (name.startswith("decisions/") and name in self.contents), f"{name} was filled twice"
        self.files[name] = self.contents[name] = data
        self.created.append(name)
        return True

    def read(self, name: str) -> bytes:
        try:
            return self.files[name]
        except KeyError:
            raise FileNotFoundError(name) from None

    def delete(self, name: str) -> None:
        self.files.pop(name, None)

    def sync(self, folder: str) -> None:
        """Memory has no power cuts."""

    def names(self, folder: str) -> list[str]:
        prefix = f"{folder}/"
        return sorted(name.removeprefix(prefix) for name in self.files if name.startswith(prefix))

    def slots(self, names: Iterable[str]) -> list[Record]:
        """The decision slots among these names, in their order."""
        return [self._slot(name) for name in names if name.startswith("decisions/")]

    def _slot(self, name: str) -> Record:
        if name not in self._parsed:
            generation, index = name.removeprefix("decisions/").removesuffix(".json").split(".")
            slot = Slot(int(generation), int(index))
            self._parsed[name] = records.record_from_bytes(slot, self.contents[name], name)
        return self._parsed[name]

    def commits(self, names: Iterable[str]) -> set[tuple[int, str]]:
        """The commit records among these names, as (checkpoint, sink)."""
        found = [name.removeprefix("commits/").split(".")[:2] for name in names if name.startswith("commits/")]
        return {(int(checkpoint_id), sink) for checkpoint_id, sink in found}

    @property
    def decisions_ever(self) -> list[Record]:
        """Every decision and repair that was ever durable, in the order it became so."""
        return [r for r in self.slots(self.created) if r.kind is not RecordKind.ABORT]


class Killed(Exception):
    """The driver is gone; nothing it calls answers any more."""


def _answer(action: Callable[..., Any], arguments: tuple[Any, ...]) -> Callable[[], Any]:
    """Perform the action now; what is returned gives its result, or raises its error, later."""
    try:
        result = action(*arguments)
    except FileNotFoundError as error:
        return partial(_raise, error)
    return lambda: result


def _raise(error: Exception) -> None:
    raise error


class View:
    """One driver's way to the store."""

    url = "memory:"

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.dead = False
        self._fault: tuple[str, int, bool] | None = None
        self._pause: Callable[[], None] = lambda: None

    def arm(self, fault: tuple[str, int, bool] | None, pause: Callable[[], None]) -> None:
        """At the n-th call from now: be killed, lose the answer, or pause while others go on; before it or after."""
        self._fault, self._pause = fault, pause

    def _call(self, action: Callable[..., Any], *arguments: Any) -> Any:
        if self.dead:
            raise Killed
        if self._fault is None:
            return action(*arguments)
        how, count, after = self._fault
        if count:
            self._fault = (how, count - 1, after)
            return action(*arguments)
        self._fault = None
        # The answer of a call may be that there is no such file; a pause after it keeps that answer, too.
        answer = _answer(action, arguments) if after else None
        if how == "kill":
            self.dead = True
            raise Killed
        if how == "lose":
            raise OSError("no answer")
        self._pause()
        return (answer or _answer(action, arguments))()

    def create(self, name: str, data: bytes) -> bool:
        return self._call(self.memory.create, name, data)

    def read(self, name: str) -> bytes:
        return self._call(self.memory.read, name)

    def delete(self, name: str) -> None:
        self._call(self.memory.delete, name)

    def sync(self, folder: str) -> None:
        self._call(self.memory.sync, folder)

    def tidy(self, folder: str) -> None: ...

    def names(self, folder: str) -> list[str]:
        return self._call(self.memory.names, folder)


class SerialPool:
    """Stands in for the thread pool of the log, so that a run can be repeated exactly."""

    def __init__(self, max_workers: int) -> None: ...

    def __enter__(self) -> SerialPool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def map(self, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        return iter([function(item) for item in items])
