"""The checkpoint log: lineage, generations, decision slots, commit records (design: "On disk").

One object serves one query run. It claims a generation, fences the older ones, and from then on is the only writer of
its own slots; every write is a create-if-absent, so a paused or forgotten driver can at worst be told no.

The batch and every sink's delivery loop share it: a lock is held for a write of the log and for nothing else, and what
is read is replaced as a whole, never changed under a reader.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

from holdfast.checkpoint import records
from holdfast.checkpoint.lineage import Lineage, open_lineage
from holdfast.checkpoint.ports import Committed
from holdfast.checkpoint.slots import SHARD, Slots, claim_name, folder_for
from holdfast.checkpoint.storage import Storage
from holdfast.core import fence
from holdfast.core.model import CheckpointId, Committable, Decided, Record, RecordKind, Slot, fold
from holdfast.core.naming import escape
from holdfast.core.recovery import Facts
from holdfast.errors import ConfigError, FencedError, RecordError, UnsafeStorageError

#: complete checkpoints that are kept, and those whose statistics are
RETAIN, HISTORY_RETAIN = 100, 100_000
#: an operator's order: the endpoint was restored, and what it lacks up to `through` is not expected of it
ACCEPT_RESTORED, THROUGH = "accept-restored", "through"


class _VanishedError(RecordError):
    """Pruned by another driver between the listing and the reading."""


class CheckpointLog:
    """The durable memory of one pipeline, at `<checkpoint_location>/holdfast`."""

    def __init__(
        self, storage: Storage, pipeline: str, *, retain: int = RETAIN, history_retain: int = HISTORY_RETAIN
    ) -> None:
        if retain < 1:
            raise ConfigError(f"retain must be at least 1, not {retain}")
        self.history_retain = history_retain
        self.storage = storage
        self.pipeline = pipeline
        self.generation = -1
        self._retain = retain
        self._records: dict[Slot, Record] = {}
        self._decided: dict[CheckpointId, Decided] = {}
        #: checkpoint -> sink -> the generation that recorded its commit
        self._commits: dict[CheckpointId, dict[str, int]] = {}
        self._next = Slot(-1, 0)
        self._writing = threading.RLock()
        self._identity = Lineage(pipeline)
        self._slots = Slots(storage)
        #: the store did not say whether the last record was written: only a new start can tell what is decided
        self.in_doubt = False

    # -- starting ---------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Claim a generation, fence all older ones, and only then read what is decided (rule 1)."""
        self._identity = open_lineage(self.storage, self.pipeline)
        # Damage is found before anything is written, and before a driver that is at work is fenced for nothing.
        with suppress(_VanishedError):
            self.load()
        self.generation = self._claim()
        self._next = Slot(self.generation, 0)
        self._fence()
        self.load()
        # Only now: below it nobody looks for an open slot, or for a decision, ever again.
        kept = {r.slot.generation for r in self._records.values() if r.kind is not RecordKind.ABORT}
        self._slots.raise_floor(self.generation, sorted(g for g in kept if g < self.generation))
        self._tidy()

    def _tidy(self) -> None:
        """Remove what killed writers left; from folders that grow with each start, at every hundredth."""
        rarely = ("generations", "history") if self.generation % SHARD == 0 else ()
        for folder in ("", "commits", "floors", self._slots.folder(self.generation), *rarely):
            self.storage.tidy(folder)

    def replace_lineage(self, others: Collection[str] = ()) -> None:
        """Give this location a new lineage: what a take-over does, so that the ledgers of `others` are set aside."""
        self._identity = self._identity.taken_over(self.generation, others).write(self.storage)

    def finish_take_over(self) -> None:
        """What the take-over sets aside is swept: the next start need not do it again."""
        if self.taking_over:
            self._identity = replace(self._identity, taking_over=False).write(self.storage)

    @property
    def lineage(self) -> str:
        """The uuid of this location."""
        return self._identity.uuid

    @property
    def set_aside(self) -> tuple[str, ...]:
        """Lineages whose name this location has taken: what their tasks prepare is undone here."""
        return self._identity.set_aside

    @property
    def taking_over(self) -> bool:
        """A take-over has begun, and what it sets aside may not be swept yet."""
        return self._identity.taking_over

    def _claim(self) -> int:
        owner = {"host": socket.gethostname(), "pid": os.getpid(), "started": int(time.time() * 1000)}
        while True:
            number = fence.next_generation(self._slots.open())
            name, nonce = claim_name(number), records.new_nonce()
            if not self._create(name, "generation", nonce, {**owner, "slots": folder_for(number)}):
                continue
            if self.storage.create(name, b"a store that accepts this overwrites decisions"):
                self.storage.delete(name)
                raise UnsafeStorageError(
                    f"{self.storage.url} does not honour 'create only if absent' (it overwrote {name}): no decision "
                    "would be safe there. Use local disk, S3 with conditional writes, or another store that has them"
                )
            return number

    def _fence(self) -> None:
        generations, slots = self._slots.open(), self._slots.list()
        last = {s.generation: s for s in sorted(slots)}
        aborted = [g for g, s in last.items() if self._read(s).kind is RecordKind.ABORT]
        for slot in fence.slots_to_fence(self.generation, generations, slots, aborted):
            self._fill_with_abort(slot)

    def _fill_with_abort(self, slot: Slot) -> None:
        """Fill the slot, or find it just decided and go one further; the owner stops at its first filled slot."""
        body = records.record_to_body(Record(slot, RecordKind.ABORT)) | {"by_generation": self.generation}
        while not self._create(self._slots.name(slot), RecordKind.ABORT, records.new_nonce(), body):
            if self._read(slot).kind is RecordKind.ABORT:
                return
            slot = slot.next()

    def load(self) -> None:
        """Read every slot and commit record; a damaged one is an error, never skipped."""
        # Commits first: an older driver may be pruning, which removes a slot and then its commits. In the other order a
        # slot read earlier would stand without its commits, as if it were still owed.
        names = self.storage.names("commits")
        slots = self._slots.list()
        commits: dict[CheckpointId, dict[str, int]] = {}
        with ThreadPoolExecutor(max_workers=16) as pool:
            self._records = {record.slot: record for record in pool.map(self._read, slots)}
            for commit in pool.map(self._read_commit, names):
                commits.setdefault(commit[0], {})[commit[1]] = commit[2]
        self._commits = commits
        self._decided = fold(self._records.values())

    # -- reading ----------------------------------------------------------------------------------------------------

    @property
    def facts(self) -> Facts:
        """What is decided and what is committed, as this run knows it."""
        commits = self._commits  # first: what is pruned in between is then missing in both
        return Facts(self._decided, commits)

    @property
    def last_decided(self) -> CheckpointId | None:
        """The newest decided checkpoint; it is never pruned."""
        return max(self._decided, default=None)

    def committed(self) -> dict[str, Committed]:
        """For each sink the newest checkpoint with rows of it that is committed, in this lineage (rule 15).

        What an operator has accepted as missing in a restored endpoint is not expected there any more.
        """
        found: dict[str, Committed] = {}
        accepted: dict[str, CheckpointId] = {}
        for decided in self._decided.values():
            for sink, order in decided.resolution.items():
                accepted[sink] = max(accepted.get(sink, -1), order.get(THROUGH, -1))
        for number, decided in self._decided.items():  # in order
            for sink, generation in self._commits.get(number, {}).items():
                mine = decided.of(sink)
                if generation >= self._identity.since and mine and number > accepted.get(sink, -1):
                    before = found[sink].subtasks if sink in found else {}
                    subtasks = {**before, **dict.fromkeys(map(_writer, mine), number)}
                    found[sink] = Committed(number, decided.timestamp, subtasks)
        return found

    def repairs(self, checkpoint_id: CheckpointId) -> int:
        """How many repairs of this checkpoint are recorded."""
        kinds = [r.kind for r in tuple(self._records.values()) if r.checkpoint_id == checkpoint_id]
        return kinds.count(RecordKind.REPAIR)

    def generations(self) -> range:
        """Every generation ever claimed."""
        return range(self._slots.newest() + 1)

    def ensure_not_fenced(self) -> None:
        """Raise when a newer generation exists. They are claimed one by one, so it is enough to look for the next."""
        successor = self.generation + 1
        claimed = [self.generation, *([successor] if self._find(claim_name(successor)) is not None else [])]
        if not fence.may_decide(self.generation, claimed):
            raise self._fenced(successor)

    # -- writing ----------------------------------------------------------------------------------------------------

    def decide(
        self,
        checkpoint_id: CheckpointId,
        sinks: Sequence[str],
        committables: Sequence[Committable],
        *,
        timestamp: int,
        state: Mapping[str, Any],
        kind: RecordKind = RecordKind.DECISION,
        resolution: Mapping[str, Any] | None = None,
    ) -> Decided:
        """Fill this generation's next slot; the point of no return. FencedError if a successor filled it first."""
        with self._writing:
            content = (tuple(sinks), tuple(committables), timestamp, state, resolution or {})
            return self._fill(Record(self._next, kind, checkpoint_id, *content))

    def _fill(self, record: Record) -> Decided:
        self.ensure_not_fenced()
        kind, checkpoint_id = record.kind, record.checkpoint_id
        assert checkpoint_id is not None
        body = records.record_to_body(record)
        self.in_doubt = True
        created = self._create(self._slots.name(self._next), kind, records.new_nonce(), body)
        if not created:
            newest = self._slots.newest()
            if newest == self.generation:
                where = self._where(self._slots.name(self._next))
                raise RecordError(f"{where} was written by this driver, but the store did not say so: start again")
            raise self._fenced(newest)
        self.in_doubt = False
        self._records[self._next] = record
        self._next = self._next.next()
        about = fold([r for r in self._records.values() if r.checkpoint_id == checkpoint_id])
        self._decided = {**self._decided, **about}
        return self._decided[checkpoint_id]

    def amend_state(self, sink: str, state: Any) -> None:
        """Replace one sink's operator state between two checkpoints, fenced as a decision is."""
        last = self.last_decided
        if last is None:
            raise ConfigError(f"sink {sink!r} has operator state to save, but no checkpoint is decided yet")
        known = self._decided[last]
        self.decide(last, known.sinks, (), timestamp=known.timestamp, state={sink: state}, kind=RecordKind.STATE)

    def record_commit(self, checkpoint_id: CheckpointId, sink: str, statistics: Mapping[str, Any]) -> None:
        """Remember that this sink has committed; another driver may have recorded it already."""
        body = {"checkpoint_id": checkpoint_id, "sink": sink, "generation": self.generation, **statistics}
        with self._writing:
            self._create(commit_name(checkpoint_id, sink), "commit", records.new_nonce(), body)
            known = self._commits.get(checkpoint_id, {})
            self._commits = {**self._commits, checkpoint_id: {**known, sink: self.generation}}

    def names_after(self, checkpoint_id: CheckpointId) -> list[str]:
        """The files that say what was decided and committed after a checkpoint; abort slots, the fence, say nothing."""
        slots = sorted(r.slot for r in self._records.values() if (r.checkpoint_id or 0) > checkpoint_id)
        commits = [(number, sink) for number, sinks in sorted(self._commits.items()) for sink in sinks]
        later = [commit_name(number, sink) for number, sink in commits if number > checkpoint_id]
        return [*(self._slots.name(slot) for slot in slots), *later]

    def find_commit(self, checkpoint_id: CheckpointId, sink: str) -> bool:
        """Whether another driver has recorded this commit since the log was read; it is then known here, too."""
        file = _commit_file(checkpoint_id, sink)
        if self._find(f"commits/{file}") is None:
            return False
        _, _, generation = self._read_commit(file)
        with self._writing:
            known = self._commits.get(checkpoint_id, {})
            self._commits = {**self._commits, checkpoint_id: {**known, sink: generation}}
        return True

    def prune(self) -> None:
        """Forget what is complete and older than `retain`. Commit records go last: without them a decision is owed."""
        with self._writing:
            self._prune()

    def _prune(self) -> None:
        gone, slots = fence.prunable(self._records.values(), self._commits, self._retain)
        for slot in slots:
            self.storage.delete(self._slots.name(slot))
            del self._records[slot]
        # Were the commits' removal durable and the slots' not, a power cut would leave decisions that seem owed.
        for folder in sorted({self._slots.folder(slot.generation) for slot in slots}):
            self.storage.sync(folder)
        self._decided = {k: v for k, v in self._decided.items() if k not in gone}
        first = min(self._decided, default=0)
        old, self._commits = self._commits, {k: v for k, v in self._commits.items() if k >= first}
        for checkpoint_id in old.keys() - self._commits.keys():
            for sink in old[checkpoint_id]:
                self.storage.delete(commit_name(checkpoint_id, sink))

    # -- inside -----------------------------------------------------------------------------------------------------

    def _create(self, name: str, kind: str, nonce: str, body: Mapping[str, Any]) -> bool:
        """Create a record; one that exists and carries our nonce is ours: the answer was lost, not the write."""
        data = records.encode(kind, nonce, body)
        try:
            return self.storage.create(name, data) or self.storage.read(name) == data
        except Exception:
            # The store failed to answer, not necessarily to write. What is there now tells; if it cannot, go up.
            if self._find(name) == data:
                return True
            raise

    def _find(self, name: str) -> bytes | None:
        """What is there, or None when nothing is."""
        try:
            return self.storage.read(name)
        except FileNotFoundError:
            return None

    def _read(self, slot: Slot) -> Record:
        if slot not in self._records:
            name = self._slots.name(slot)
            self._records[slot] = records.record_from_bytes(slot, self._read_file(name), self._where(name))
        return self._records[slot]

    def _read_commit(self, file: str) -> tuple[CheckpointId, str, int]:
        name = f"commits/{file}"
        body = records.decode_with(("checkpoint_id", "sink"), self._read_file(name), self._where(name), "commit")
        if file != _commit_file(body["checkpoint_id"], body["sink"]):
            raise records.damaged(self._where(name), "its name does not fit its content")
        return body["checkpoint_id"], body["sink"], int(body.get("generation", 0))

    def _read_file(self, name: str) -> bytes:
        try:
            return self.storage.read(name)
        except FileNotFoundError:
            raise _VanishedError(
                f"{self._where(name)} vanished while it was read: another driver is using this checkpoint location. "
                "Stop one of the two and start again"
            ) from None

    def _fenced(self, by: int) -> FencedError:
        path = claim_name(by)
        owner = records.decode_with(("host", "pid"), self.storage.read(path), self._where(path), "generation")
        return FencedError(
            f"checkpoint location {self.storage.url} was taken over by another driver (generation {by}, process "
            f"{owner['pid']} on {owner['host']}), so this one (generation {self.generation}) may decide nothing any "
            "more. Nothing is lost. Stop one of the two; each live query needs a checkpoint location of its own"
        )

    def _where(self, name: str) -> str:
        return f"{self.storage.url}/{name}"


def _commit_file(checkpoint_id: CheckpointId, sink: str) -> str:
    return f"{checkpoint_id}.{escape(sink)}.json"


def _writer(committable: Committable) -> int:
    """The subtask that prepared it; a repair keeps the number of what it replaces, and the work says its own."""
    data = committable.data
    return int(data.get("subtask", committable.subtask)) if isinstance(data, Mapping) else committable.subtask


def commit_name(checkpoint_id: CheckpointId, sink: str) -> str:
    """Where it is recorded that a sink has committed a checkpoint."""
    return f"commits/{_commit_file(checkpoint_id, sink)}"
