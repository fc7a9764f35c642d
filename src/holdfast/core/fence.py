"""Who may decide: generations and slots (rules 1 and 5), and what may be forgotten."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from holdfast.core.model import CheckpointId, Record, RecordKind, Slot


def next_generation(claimed: Collection[int]) -> int:
    """The number a starting driver tries to claim."""
    return max(claimed, default=-1) + 1


def may_decide(own: int, claimed: Collection[int]) -> bool:
    """A driver stops as soon as a newer generation has been claimed."""
    return all(generation <= own for generation in claimed)


def first_open_slot(generation: int, slots: Iterable[Slot]) -> Slot:
    """Where a generation's next record goes: after its own last one, whatever others have written."""
    last = max((s.index for s in slots if s.generation == generation), default=-1)
    return Slot(generation, last + 1)


def slots_to_fence(own: int, claimed: Collection[int], slots: Collection[Slot], aborted: Collection[int]) -> list[Slot]:
    """The open slot of every older generation that is not fenced yet.

    The caller fills each with an abort; where one turns out to be taken it reads it and, unless it is an abort, goes
    on to the next.
    """
    older = [g for g in claimed if g < own and g not in aborted]
    return [first_open_slot(g, slots) for g in sorted(older)]


def prunable(
    records: Iterable[Record],
    commits: Mapping[CheckpointId, Collection[str]],
    retain: int,
) -> tuple[list[CheckpointId], list[Slot]]:
    """Checkpoints and slots that may be forgotten: complete, all before them complete, older than `retain`.

    Abort slots are the fence and stay for ever (rule 5). The newest checkpoint of the log always stays, and so does the
    last slot of every generation: a successor counts from it, and would else fence a slot its owner is past already.
    """
    records = list(records)
    last = {slot.generation: slot for slot in sorted(r.slot for r in records)}
    known = [r for r in records if r.kind is not RecordKind.ABORT and r.checkpoint_id is not None]
    sinks: dict[CheckpointId, set[str]] = {}
    slots: dict[CheckpointId, list[Slot]] = {}
    for record in known:
        assert record.checkpoint_id is not None
        sinks.setdefault(record.checkpoint_id, set()).update(record.sinks)
        slots.setdefault(record.checkpoint_id, []).append(record.slot)
    ids = sorted(sinks)
    gone: list[CheckpointId] = []
    for checkpoint_id in ids[: max(0, len(ids) - max(1, retain))]:
        if not sinks[checkpoint_id] <= set(commits.get(checkpoint_id, ())):
            break
        if any(last[slot.generation] == slot for slot in slots[checkpoint_id]):
            break
        gone.append(checkpoint_id)
    return gone, sorted(slot for checkpoint_id in gone for slot in slots[checkpoint_id])
