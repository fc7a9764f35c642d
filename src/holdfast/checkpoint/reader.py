"""The log read without claiming a generation, by somebody who wants to know all that is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from holdfast.checkpoint import records
from holdfast.checkpoint.delivery import totals
from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.limited import open_limited
from holdfast.checkpoint.lineage import open_lineage
from holdfast.checkpoint.log import CheckpointLog, commit_name
from holdfast.checkpoint.ports import Run
from holdfast.checkpoint.reports import report_of
from holdfast.checkpoint.runs import Owner, RunInfo, newest_driver, owner_of, read_run
from holdfast.checkpoint.stuck import Finding, Standing, read_finding
from holdfast.core.model import CheckpointId, fold
from holdfast.core.recovery import complete_through, owed
from holdfast.errors import RecordError

Value = TypeVar("Value")
#: how many of the newest generations are looked at for restarts
LOOK_BACK = 50
#: the kind of a file sink's state
_FILES = "holdfast.files"


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


class LogReader(CheckpointLog):
    """A log that is only read, and that collects what is damaged instead of stopping at it."""

    def __init__(self, checkpoint_location: str, *, largest: int | None = None) -> None:
        super().__init__(open_limited(log_location(checkpoint_location), largest), "")
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

    def as_run(self, pipeline: str, *, delivery: str = "exactly-once") -> Run:
        """What sinks would be told if a query started now; of a location that nobody has used, no lineage.

        ConfigError when the location is another pipeline's.
        """
        if "lineage.json" not in self.storage.names(""):
            return Run(pipeline, "", 0, self.storage.url, delivery)
        self._identity = open_lineage(self.storage, pipeline)
        newest = max(self.generations(), default=-1)
        return Run(
            pipeline, self.lineage, newest + 1, self.storage.url, delivery, self.last_decided, self.taking_over,
            None, self.committed(),
        )  # fmt: skip

    def owner(self) -> Owner | None:
        """Who runs it, or ran it last."""
        newest = newest_driver(self.storage, self.generations())
        body = None if newest is None else self.record(f"generations/{newest[0]}", "generation")
        return None if newest is None or body is None else owner_of(body, *newest)

    def started_since(self, moment: float) -> list[tuple[int, int, RunInfo | None]]:
        """(generation, started, what it told) of the query runs that were started since, the newest first."""
        found = []
        for number in sorted(self.generations(), reverse=True)[:LOOK_BACK]:
            run = read_run(self.storage, number)
            if run is not None and run.command is not None:
                continue
            started = self._started(number) if run is None else run.started
            if started is None or started < moment * 1000:
                break
            found.append((number, started, run))
        return found

    def _started(self, generation: int) -> int | None:
        try:
            data = self.storage.read(f"generations/{generation}")
            return int(records.decode(data, "", "generation")["started"])
        except (FileNotFoundError, RecordError, KeyError):
            return None  # noted elsewhere if it is the newest

    def load(self) -> None:
        """Read slots, then commits; forget what a live query pruned meanwhile, which deletes slots first."""
        slots = self.guarded("decisions", self._slots.list) or []
        for slot in slots:
            self._note_unless_gone(self._slots.name(slot), lambda s=slot: self._read(s))  # type: ignore[misc]
        for name in self.storage.names("commits"):
            commit = self._note_unless_gone(f"commits/{name}", lambda n=name: self._read_commit(n))  # type: ignore[misc]
            if commit is not None:
                self._commits.setdefault(commit[0], {})[commit[1]] = commit[2]
        left = set(self._slots.list() if slots else ())
        self._decided = fold(r for r in self._records.values() if r.slot in left)

    def complete(self) -> tuple[CheckpointId, int | None] | None:
        """The last checkpoint at and below which all are complete, and when it became so; None when there is none."""
        number = complete_through(self.facts)
        if number is None or number < 0:
            return None
        return number, self._completed_at(number)

    def _completed_at(self, number: CheckpointId) -> int | None:
        """The newest time of its commit records; of records without one, when the checkpoint began."""
        decided = self._decided.get(number)
        if decided is None:
            return None
        times = [decided.timestamp]
        for sink in decided.sinks:
            name = commit_name(number, sink)
            body = self._note_unless_gone(name, lambda n=name: self._commit_body(n))  # type: ignore[misc]
            times.append(int((body or {}).get("at", 0)))
        return max(times)

    def _commit_body(self, name: str) -> dict[str, Any]:
        return records.decode(self._read_file(name), self._where(name), "commit")

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

    def held_back(self) -> dict[str, tuple[int, int]]:
        """Sink -> rows that are complete but in hidden files which wait for more, and since when (milliseconds)."""
        last = self.last_decided
        found = {}
        for sink, state in ({} if last is None else self._decided[last].state).items():
            parts = state.get("waiting") if isinstance(state, Mapping) and state.get("kind") == _FILES else ()
            if parts:
                found[sink] = (sum(int(p["rows"]) for p in parts), min(int(p["since"]) for p in parts))
        return found

    def folders(self) -> dict[str, str]:
        """Sink -> where it writes files: a folder, or a pattern of folders."""
        last, found = self.last_decided, {}
        for sink, state in ({} if last is None else self._decided[last].state).items():
            targets = state.get("targets") if isinstance(state, Mapping) else None
            for one in [body["state"] for body in targets.values()] if isinstance(targets, Mapping) else [state]:
                if isinstance(one, Mapping) and one.get("kind") == _FILES:
                    found[sink] = str(state.get("pattern", one["options"]["path"]))
        return found

    def stuck(self) -> tuple[Finding, ...]:
        """Why queries stopped after a decision, where nobody has decided about it since."""
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
                key = (report["checkpoint_id"], report["sink"])
                if key not in found or found[key].get("id") == report.get("id"):
                    found[key] = report
        return tuple(found[key] for key in sorted(found))

    def slots_folder(self, generation: int) -> str:
        """Where a generation has its slots."""
        return self._slots.folder(generation)

    def committed_by(self, checkpoint_id: CheckpointId) -> dict[str, int]:
        """Sink -> the generation that recorded its commit of a checkpoint."""
        return dict(self._commits.get(checkpoint_id, {}))

    def files_of(self, checkpoint_id: CheckpointId) -> list[str]:
        """The records of one checkpoint, as names below the log: its slots in order, commits, findings, reports."""
        slots = sorted(slot for slot, record in self._records.items() if record.checkpoint_id == checkpoint_id)
        found = [self._slots.name(slot) for slot in slots]
        for folder in ("commits", "lost", "reports"):
            found += [f"{folder}/{n}" for n in self.storage.names(folder) if n.startswith(f"{checkpoint_id}.")]
        return found

    def sink_names(self) -> set[str]:
        """Every sink that a kept record names."""
        return {sink for decided in self._decided.values() for sink in decided.sinks}

    def _content(self, name: str) -> bytes:
        try:
            return self.storage.read(name)
        except FileNotFoundError:
            raise records.damaged(self._where(name), "it is missing") from None

    def _note_unless_gone(self, name: str, read: Callable[[], Value]) -> Value | None:
        try:
            return read()
        except RecordError as error:
            folder, _, file = name.rpartition("/")
            if file in self.storage.names(folder):
                self.damaged.append(Damage(self._where(name), str(error)))
            return None
