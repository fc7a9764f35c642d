"""Statistics of every checkpoint, kept for as long as the checkpoint location.

Entries go to segments `history/<generation>.<n>.jsonl` of at most 100 lines, so that one more checkpoint costs the same
after a million. A later entry of a checkpoint adds to an earlier one. Nothing is decided by them. Of the newest
`history_retain` checkpoints all are kept; a segment goes when every checkpoint in it is older. A rewind adds a line of
its own: what older lines say of later checkpoints than the one it went back to is no longer shown.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.checkpoint.limited import open_limited
from holdfast.checkpoint.log import HISTORY_RETAIN
from holdfast.checkpoint.records import decode_with, record_from_bytes
from holdfast.checkpoint.runs import DEAD, newest_driver, owner_of
from holdfast.checkpoint.slots import Slots
from holdfast.checkpoint.storage import Storage, open_storage
from holdfast.core.model import Record, RecordKind
from holdfast.core.options import Limit, checked
from holdfast.core.paths import AnyPath, path_text
from holdfast.core.states import State, recorded
from holdfast.errors import RecordError

SEGMENT = 100
#: status of a batch that no driver is at any more: the next start runs it again
INTERRUPTED = "interrupted"
_SEGMENT_NAME = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.jsonl")
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class CheckpointStats:
    """What is known of one checkpoint; times in milliseconds since the epoch, durations in seconds."""

    checkpoint_id: int
    status: str
    generation: int | None = None
    started: int | None = None
    #: phase -> seconds: tasks, decide, commit, notify
    durations: Mapping[str, float] = field(default_factory=dict)
    #: what started the batch: the trigger as it was given, such as `processingTime=5 seconds`
    trigger: str | None = None
    rows: int = 0
    bytes: int = 0
    subtasks: int = 0
    #: rows and bytes of each subtask, the largest first, and of no more than a hundred
    parts: Sequence[Mapping[str, int]] = ()
    #: of the query's keyed state after this checkpoint: rows, bytes, and the seconds that its snapshot took
    state: Mapping[str, Any] = field(default_factory=dict)
    #: sink -> rows, bytes, subtasks, outcome
    sinks: Mapping[str, Any] = field(default_factory=dict)
    #: decided by an earlier run and finished by a later one
    restored: bool = False
    #: sink -> rows and subtasks that were produced again because the endpoint had dropped them
    repaired: Mapping[str, Any] = field(default_factory=dict)
    #: of the last time it ended badly
    error: str | None = None
    #: how often it ended badly; it is run again then
    failures: int = 0


_FLAG = "restored"
#: in a line of its own: the pipeline went back to this checkpoint, for this reason
_WENT_BACK = "went_back"
_NUMBERS = ("rows", "bytes", "subtasks", "subtask")
#: what a line of a segment may say
_TYPES: dict[str, Any] = {
    "checkpoint_id": int,
    "status": str,
    "generation": int | None,
    "started": int | None,
    "durations": dict,
    "trigger": str | None,
    "rows": int,
    "bytes": int,
    "subtasks": int,
    "parts": list,
    "state": dict,
    "sinks": dict,
    _FLAG: bool,
    "repaired": dict,
    "error": str | None,
}


class History:
    """The statistics one run writes."""

    def __init__(self, storage: Storage, generation: int, *, segment: int = 0, retain: int = HISTORY_RETAIN) -> None:
        self._storage = storage
        self._generation = generation
        self._segment, self._retain = segment, retain
        # Looking for old segments lists them all: each time one is full, and in every hundredth of shorter runs.
        self._look = generation % SEGMENT == 0
        self._lines: list[bytes] = []
        # Batches and the timer both add; at the end of a segment one would write the other's line nowhere.
        self._lock = threading.Lock()

    def add(self, checkpoint_id: int, entry: Mapping[str, Any]) -> None:
        """Add what is known now about a checkpoint."""
        self.add_all({checkpoint_id: entry})

    def add_all(self, entries: Mapping[int, Mapping[str, Any]]) -> None:
        """Add what is known now about some checkpoints, in one write."""
        if not entries:
            return
        checkpoint_id = max(entries)
        lines = [{"checkpoint_id": number, "generation": self._generation, **e} for number, e in entries.items()]
        texts = [json.dumps(line, separators=(",", ":"), default=str).encode() for line in lines]
        with self._lock:
            self._lines += texts
            name = f"history/{self._generation}.{self._segment}.jsonl"
            self._storage.replace(name, b"\n".join(self._lines) + b"\n")
            if len(self._lines) >= SEGMENT:
                self._segment, self._lines, self._look = self._segment + 1, [], True
            if self._look:
                self._look = False
                _forget(self._storage, checkpoint_id - self._retain)


class Merged(dict[int, dict[str, Any]]):
    """What the entries of each checkpoint say together; they are added from the newest to the oldest."""

    #: the pipeline went back to this checkpoint: what older entries say of later ones is of another life
    limit: float = math.inf


def note_rewind(storage: Storage, generation: int, to: int) -> None:
    """The pipeline goes on after this checkpoint: leave the later ones out from now on."""
    line = {"checkpoint_id": to, "generation": generation, _WENT_BACK: "rewind"}
    storage.replace(f"history/{generation}.0.jsonl", json.dumps(line, separators=(",", ":")).encode() + b"\n")


def segments(storage: Storage) -> list[str]:
    """The files of the history, the oldest first."""
    found = [match for match in map(_SEGMENT_NAME.fullmatch, storage.names("history")) if match]
    return [match[0] for match in sorted(found, key=lambda match: (int(match[1]), int(match[2])))]


def _forget(storage: Storage, through: int) -> None:
    """Remove segments, the oldest first, until one has a checkpoint after `through`."""
    if through < 0:
        return
    for segment in segments(storage):
        name = f"history/{segment}"
        try:
            if any(json.loads(line)["checkpoint_id"] > through for line in storage.read(name).splitlines()):
                return
        except FileNotFoundError:
            continue  # another driver forgets, too
        except (ValueError, KeyError, TypeError):
            return  # it is damaged, and `holdfast history` says so
        storage.delete(name)


def log_location(checkpoint_location: str) -> str:
    """Where holdfast's own files are."""
    return checkpoint_location.rstrip("/") + "/holdfast"


@checked
def checkpoints(checkpoint_location: AnyPath, *, last: Limit = None) -> list[CheckpointStats]:
    """Statistics of the checkpoints at a location, oldest first; reads files only, so the query may be dead.

    `last` limits it to the newest ones and reads no more than it must.
    """
    return read_checkpoints(path_text("checkpoint_location", checkpoint_location, "a path or URL"), last=last)


def read_checkpoints(location: str, *, last: int | None = None, largest: int | None = None) -> list[CheckpointStats]:
    """See checkpoints; a file larger than `largest` is an error."""
    storage = open_limited(log_location(location), largest)
    merged = Merged()
    for name in reversed(segments(storage)):
        merge_segment(storage, name, read_segment(storage, name), merged)
        if last is not None and len(merged) > last:
            break
    running = _running(location)
    if running is not None and running not in merged:
        slots = Slots(storage)
        merged[running] = {"checkpoint_id": running} | _under_way(storage, slots) | _decision(storage, slots, running)
    found = stats_of(merged)
    return found if last is None else found[-last:]


def read_segment(storage: Storage, name: str) -> bytes:
    """The lines of a segment."""
    try:
        return storage.read(f"history/{name}")
    except FileNotFoundError:
        return b""  # it was old enough to be forgotten just now


def merge_segment(
    storage: Storage, name: str, data: bytes, merged: Merged, *, only: Container[int] | None = None
) -> None:
    """Add what a segment says to what newer ones said, of these checkpoints or of all."""
    for line in reversed(data.splitlines()):
        try:
            read = json.loads(line)
            entry = _checked({k: v for k, v in read.items() if k in _TYPES})
        except (ValueError, AttributeError, RecursionError) as error:
            raise RecordError(
                f"{storage.url}/history/{name} is damaged ({error}); it holds statistics only: move it away"
            ) from error
        number = entry["checkpoint_id"]
        if _WENT_BACK in read:
            merged.limit = min(merged.limit, number)
        elif number <= merged.limit and (only is None or number in only):
            newer = merged.get(number, {})
            merged[number] = entry | newer | _summed(entry, newer)


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    """The entry, or ValueError: whoever shows it relies on what its fields are."""
    wrong = [k for k, v in entry.items() if not isinstance(v, _TYPES[k]) or isinstance(v, bool) != (k == _FLAG)]
    if "checkpoint_id" not in entry:
        wrong.append("checkpoint_id")
    wrong = wrong or _wrong_inside(entry)
    if wrong:
        raise ValueError(f"its field {wrong[0]!r} is missing or wrong")
    return entry


def _wrong_inside(entry: Mapping[str, Any]) -> list[str]:
    if any(not isinstance(seconds, int | float) for seconds in entry.get("durations", {}).values()):
        return ["durations"]
    told = {
        "sinks": entry.get("sinks", {}).values(),
        "parts": entry.get("parts", ()),
        "state": (entry.get("state", {}),),
    }
    return [name for name, parts in told.items() if not all(map(_counted, parts))]


def _counted(part: Any) -> bool:
    """Whether it is an object whose numbers are numbers."""
    return isinstance(part, dict) and all(isinstance(part.get(name, 0), int) for name in _NUMBERS)


def stats_of(merged: Mapping[int, Mapping[str, Any]]) -> list[CheckpointStats]:
    """What all entries of each checkpoint say together, oldest first."""
    # A line about state alone can outlive the rest: of a batch that Spark ran again, or whose segment is forgotten.
    return [CheckpointStats(**merged[key]) for key in sorted(merged) if "status" in merged[key]]


def _summed(entry: Mapping[str, Any], newer: Mapping[str, Any]) -> dict[str, Any]:
    """A checkpoint finished by a later run keeps its first start and both runs' details."""
    merged: dict[str, Any] = {}
    merged["durations"] = {**entry.get("durations", {}), **newer.get("durations", {})}
    before, since = entry.get("sinks", {}), newer.get("sinks", {})
    merged["sinks"] = {sink: {**before.get(sink, {}), **since.get(sink, {})} for sink in {**before, **since}}
    merged["failures"] = newer.get("failures", 0) + (entry.get("status") == State.ABORTED)
    if "started" in entry:
        merged["started"] = entry["started"]
    return merged


def engine_position(checkpoint_location: str) -> tuple[int | None, int | None]:
    """(last planned, last committed) batch of Spark's own checkpoint."""
    storage = open_storage(checkpoint_location)
    planned, committed = (
        max((int(name) for name in storage.names(folder) if _NUMBER.fullmatch(name)), default=None)
        for folder in ("offsets", "commits")
    )
    return planned, committed


def _under_way(storage: Storage, slots: Slots) -> dict[str, Any]:
    """Of a batch that Spark has planned and nobody has finished: whether a driver is at it, or was."""
    newest = newest_driver(storage, range(slots.newest() + 1))
    if newest is None:
        return {"status": State.RUNNING}
    generation, run = newest
    name = f"generations/{generation}"
    try:
        body = decode_with(("host", "pid", "started"), storage.read(name), name, "generation")
    except (FileNotFoundError, RecordError):
        return {"status": State.RUNNING, "generation": generation}  # `holdfast status` tells of the damage
    owner = owner_of(body, generation, run)
    if owner.alive is not False:
        return {"status": State.RUNNING, "generation": generation}
    error = None if run is None else run.error
    why = "its driver is gone without a word" if owner.state == DEAD else "the query was stopped"
    text = why if error is None else f"{error.get('type')}: {str(error.get('message')).partition(chr(10))[0][:500]}"
    return {"status": INTERRUPTED, "generation": generation, "error": text}


def _decision(storage: Storage, slots: Slots, checkpoint_id: int) -> dict[str, Any]:
    """What its record says of it, when it is decided: a driver that died right after that left no statistics of it."""
    try:
        for slot in reversed(slots.list()):
            name = slots.name(slot)
            record = record_from_bytes(slot, storage.read(name), f"{storage.url}/{name}")
            if record.checkpoint_id == checkpoint_id:
                return _decided(record)
            if record.kind == RecordKind.DECISION:
                return {}  # of an earlier one
    except (FileNotFoundError, RecordError):
        pass  # pruned just now, so it is old; or damaged, of which `holdfast status` tells
    return {}


def _decided(record: Record) -> dict[str, Any]:
    rows = Counter[str]()
    for committable in record.committables:
        rows[committable.sink] += committable.rows
    subtasks = {committable.subtask for committable in record.committables}
    return {"status": str(recorded(committed=False)), "rows": max(rows.values(), default=0), "subtasks": len(subtasks)}


def _running(checkpoint_location: str) -> int | None:
    planned, committed = engine_position(checkpoint_location)
    return planned if planned is not None and (committed is None or planned > committed) else None
