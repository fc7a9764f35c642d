"""What the files of a checkpoint location say, read without claiming a generation: the query may run or be dead."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.checkpoint import records
from holdfast.checkpoint.delivery import totals
from holdfast.checkpoint.history import CheckpointStats, checkpoints, engine_position, log_location
from holdfast.checkpoint.log import CheckpointLog, slot_name
from holdfast.checkpoint.resolve import Finding, Standing, read_finding, report_of
from holdfast.checkpoint.storage import open_storage
from holdfast.core.model import CheckpointId, fold
from holdfast.core.recovery import complete_through, owed
from holdfast.errors import ConfigError, RecordError

Value = TypeVar("Value")


@dataclass(frozen=True)
class Owner:
    """The driver that claimed the newest generation."""

    generation: int
    host: str
    pid: int
    #: milliseconds since the epoch
    started: int
    #: whether a process of that number lives here; None when it ran on another host
    alive: bool | None


@dataclass(frozen=True)
class PendingSink:
    """What is decided and not yet committed by one sink."""

    sink: str
    checkpoints: int
    rows: int
    bytes: int
    #: when the oldest of them began, in milliseconds since the epoch
    oldest: int


@dataclass(frozen=True)
class Damage:
    """A record that cannot be trusted."""

    path: str
    problem: str


@dataclass(frozen=True)
class Status:
    """A checkpoint location at one moment."""

    location: str
    pipeline: str | None
    lineage: str | None
    owner: Owner | None
    last_decided: CheckpointId | None
    #: it and all before it are committed by every sink
    last_complete: CheckpointId | None
    #: Spark's own checkpoint
    planned: CheckpointId | None
    committed: CheckpointId | None
    pending: tuple[PendingSink, ...]
    last_checkpoint: CheckpointStats | None
    #: lost by an endpoint and not repairable: the query stops there until an operator decides
    stuck: tuple[Finding, ...]
    #: the reports of what operators decided, oldest checkpoint first
    resolutions: tuple[Mapping[str, Any], ...]
    damaged: tuple[Damage, ...]

    @property
    def healthy(self) -> bool:
        """Whether every record can be trusted; pending checkpoints are no fault, and stuck ones are listed."""
        return not self.damaged


def read_status(checkpoint_location: str) -> Status:
    """Read the files of a checkpoint location; ConfigError when holdfast has never used it."""
    require_used(checkpoint_location)
    log = LogReader(checkpoint_location)
    lineage, owner = log.identity(), log.owner()
    log.load()
    stats = log.guarded("history", lambda: checkpoints(checkpoint_location, last=20)) or []
    finished = [entry for entry in stats if entry.durations]
    planned, committed = engine_position(checkpoint_location)
    return Status(
        location=checkpoint_location,
        pipeline=lineage.get("pipeline"),
        lineage=lineage.get("lineage"),
        owner=owner,
        last_decided=log.last_decided,
        last_complete=complete_through(log.facts),
        planned=planned,
        committed=committed,
        pending=log.pending(),
        last_checkpoint=finished[-1] if finished else None,
        stuck=log.stuck(),
        resolutions=log.resolutions(),
        damaged=tuple(log.damaged),
    )


def require_used(checkpoint_location: str) -> None:
    """Raise ConfigError unless holdfast has used this location."""
    storage = open_storage(log_location(checkpoint_location))
    if any(storage.names(folder) for folder in ("", "generations", "decisions")):
        return
    hint = ""
    if open_storage(checkpoint_location).names("generations"):
        hint = f"; did you mean {checkpoint_location.rstrip('/').removesuffix('/holdfast')}?"
    raise ConfigError(f"{checkpoint_location} is not a checkpoint location of holdfast: there is no log in it{hint}")


class LogReader(CheckpointLog):
    """A log that is only read, and that collects what is damaged instead of stopping at it."""

    def __init__(self, checkpoint_location: str) -> None:
        super().__init__(open_storage(log_location(checkpoint_location)), "")
        self.damaged: list[Damage] = []

    def identity(self) -> dict[str, Any]:
        """The pipeline's name and the lineage of this location; empty when they are damaged."""
        return self.record("lineage.json", "lineage") or {}

    def guarded(self, name: str, read: Callable[[], Value]) -> Value | None:
        """What `read` returns; when the record is damaged, note it and return None."""
        try:
            return read()
        except RecordError as error:
            self.damaged.append(Damage(self._where(name), str(error)))
            return None

    def record(self, name: str, kind: str) -> dict[str, Any] | None:
        """The body of a record, or None when it is missing or damaged; both are noted."""
        return self.guarded(name, lambda: records.decode(self._content(name), self._where(name), kind))

    def owner(self) -> Owner | None:
        """Who claimed the newest generation."""
        newest = max(self.generations(), default=None)
        body = None if newest is None else self.record(f"generations/{newest}", "generation")
        if newest is None or body is None:
            return None
        host, pid = str(body["host"]), int(body["pid"])
        alive = _lives(pid) if host == socket.gethostname() else None
        return Owner(newest, host, pid, int(body["started"]), alive)

    def load(self) -> None:
        """Read slots, then commits; forget what a live query pruned meanwhile, which deletes slots first."""
        slots = self.guarded("decisions", self._list_slots) or []
        for slot in slots:
            self._note_unless_gone(slot_name(slot), lambda s=slot: self._read(s))  # type: ignore[misc]
        for name in self.storage.names("commits"):
            commit = self._note_unless_gone(f"commits/{name}", lambda n=name: self._read_commit(n))  # type: ignore[misc]
            if commit is not None:
                self._commits.setdefault(commit[0], {})[commit[1]] = commit[2]
        left = set(self.storage.names("decisions"))
        self._decided = fold(r for r in self._records.values() if slot_name(r.slot).partition("/")[2] in left)

    def pending(self) -> tuple[PendingSink, ...]:
        """What each sink still owes."""
        sinks = dict.fromkeys(sink for decided in self._decided.values() for sink in decided.sinks)
        found = []
        for sink in sinks:
            waiting = owed(self.facts, sink)
            if waiting:
                sums = totals(tuple(c for committables in waiting.values() for c in committables))
                oldest = min(self._decided[checkpoint_id].timestamp for checkpoint_id in waiting)
                found.append(PendingSink(sink, len(waiting), sums["rows"], sums["bytes"], oldest))
        return tuple(found)

    def stuck(self) -> tuple[Finding, ...]:
        """What a query found lost and could not repair, and nobody has decided about since."""
        found = []
        for file in self.storage.names("lost"):
            finding = self.guarded(f"lost/{file}", lambda f=file: read_finding(self.storage, f, self.facts))  # type: ignore[misc]
            if finding is not None and finding[1] is Standing.STUCK:
                found.append(finding[0])
        return tuple(sorted(found, key=lambda f: (f.checkpoint_id, f.sink)))

    def resolutions(self) -> tuple[Mapping[str, Any], ...]:
        """The reports of operators' orders; one whose report is not written yet is told from the log."""
        found: dict[tuple[int, str], Mapping[str, Any]] = {
            (number, sink): report_of(number, sink, order)
            for number, decided in self._decided.items()
            for sink, order in decided.resolution.items()
        }
        for file in self.storage.names("reports"):
            body = self.record(f"reports/{file}", "report")
            if body is not None:
                report = {key: value for key, value in body.items() if key not in ("kind", "version", "nonce")}
                found[report["checkpoint_id"], report["sink"]] = report
        return tuple(found[key] for key in sorted(found))

    def _content(self, name: str) -> bytes:
        try:
            return self.storage.read(name)
        except FileNotFoundError:
            raise records.damaged(self._where(name), "it is missing") from None

    def _note_unless_gone(self, name: str, read: Callable[[], Value]) -> Value | None:
        try:
            return read()
        except RecordError as error:
            folder, _, file = name.partition("/")
            if file in self.storage.names(folder):
                self.damaged.append(Damage(self._where(name), str(error)))
            return None


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
