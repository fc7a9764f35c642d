"""The decisions the model asks for: by default the real ones of `holdfast.core`.

"Rule N off" is a Kernel in which one of them is replaced by a weaker one; production code has no switches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from holdfast.core import fence, model, recovery, repair
from holdfast.core.model import Committable, Record, RecordKind, Slot
from holdfast.core.naming import Task
from holdfast.core.recovery import Facts, Moment, PublishStep, Step

SINK = "sink"
LINEAGE = "0" * 32


@cache
def token(generation: int, checkpoint_id: int, subtask: int, attempt: int) -> str:
    """The name a task's work has at an endpoint, or in the log."""
    return Task("pipeline", SINK, LINEAGE, generation, checkpoint_id, subtask, attempt).token


def own_slot(own: Slot, _listed: list[Slot]) -> Slot:
    """Where a driver's next record goes: counted by itself from the claim on, as `CheckpointLog._next` is."""
    return own


def whole(data: Any) -> Any:
    """What a request to commit says about the work: everything (id, producer id, epoch)."""
    return data


def every_record(_kind: str) -> bool:
    """Which records a driver writes to the log before it acts on them."""
    return True


def own_mark(ledger: Mapping[str, int], lineage: str) -> int:
    """How far a ledger says this pipeline has come."""
    return ledger.get(lineage, -1)


@dataclass(frozen=True)
class Kernel:
    """Every decision the drivers of the model take."""

    next_generation: Callable[..., int] = fence.next_generation
    may_decide: Callable[..., bool] = fence.may_decide
    slots_to_fence: Callable[..., list[Slot]] = fence.slots_to_fence
    prunable: Callable[..., tuple[list[int], list[Slot]]] = fence.prunable
    own_slot: Callable[..., Slot] = own_slot
    is_written: Callable[[str], bool] = every_record
    fold: Callable[..., dict[int, model.Decided]] = model.fold
    plan_recovery: Callable[..., list[recovery.Commit]] = recovery.plan_recovery
    owed: Callable[..., dict[int, tuple[Committable, ...]]] = recovery.owed
    may_undo: Callable[..., bool] = recovery.may_undo
    complete_through: Callable[..., int | None] = recovery.complete_through
    judge_ledger: Callable[..., recovery.LedgerVerdict] = recovery.judge_ledger
    own_mark: Callable[..., int] = own_mark
    plan_repair: Callable[..., repair.RepairPlan] = repair.plan_repair
    name: Callable[..., str] = token
    identity: Callable[[Any], Any] = whole
    #: moment -> steps, as pairs so that a kernel can be a key of a cache
    steps: tuple[tuple[Moment, tuple[Step, ...]], ...] = tuple(recovery.STEPS.items())
    publish: tuple[PublishStep, ...] = recovery.PUBLISH

    def steps_at(self, moment: Moment) -> tuple[Step, ...]:
        """What happens at this moment."""
        return dict(self.steps)[moment]

    def with_steps(self, changes: Mapping[Moment, tuple[Step, ...]]) -> tuple[tuple[Moment, tuple[Step, ...]], ...]:
        """The table of steps with some of its rows replaced."""
        return tuple((dict(self.steps) | dict(changes)).items())


KERNEL = Kernel()

# A slot of the simulated log: (generation, index, kind, checkpoint, ((subtask, data, digest), ...)). Plain tuples, as
# the search hashes them millions of times; they become real records where the kernel is asked.
Entry = tuple[int, int, str, int, tuple[tuple[int, Any, str], ...]]
Entries = tuple[Entry, ...]
Commits = frozenset[tuple[int, str]]


@cache
def record(entry: Entry) -> Record:
    """An entry as the core's record."""
    generation, index, kind, checkpoint_id, work = entry
    slot = Slot(generation, index)
    if kind == RecordKind.ABORT:
        return Record(slot, RecordKind.ABORT)
    committables = tuple(Committable(SINK, subtask, data, 1, 1, digest) for subtask, data, digest in work)
    return Record(slot, RecordKind(kind), checkpoint_id, (SINK,), committables)


@cache
def facts(kernel: Kernel, entries: Entries, commits: Commits) -> Facts:
    """What a log with this content says."""
    done: dict[int, set[str]] = {}
    for checkpoint_id, sink in commits:
        done.setdefault(checkpoint_id, set()).add(sink)
    return Facts(kernel.fold([record(e) for e in entries]), done)


@cache
def plan(kernel: Kernel, entries: Entries, commits: Commits) -> tuple[recovery.Commit, ...]:
    """The commits that are owed."""
    return tuple(kernel.plan_recovery(facts(kernel, entries, commits)))


@cache
def kept(kernel: Kernel, entries: Entries, commits: Commits) -> tuple[Committable, ...]:
    """The committables a sweep must leave alone."""
    owed = kernel.owed(facts(kernel, entries, commits), SINK)
    return tuple(c for committables in owed.values() for c in committables)


@cache
def pruned(kernel: Kernel, entries: Entries, commits: Commits, retain: int) -> tuple[frozenset[int], frozenset[Slot]]:
    """Checkpoints and slots that may go."""
    known = facts(kernel, entries, commits)
    gone, slots = kernel.prunable([record(e) for e in entries], known.commits, retain)
    return frozenset(gone), frozenset(slots)
