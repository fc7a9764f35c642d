"""The frozen data every other part speaks in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

CheckpointId = int


class Outcome(StrEnum):
    """What a sink answers when it is asked to commit."""

    COMMITTED = "committed"
    #: An earlier attempt had done it; its answer was lost. Counted, never an error.
    ALREADY_COMMITTED = "already_committed"
    #: The endpoint dropped the transaction. Its rows are not there and committing again cannot bring them.
    LOST = "lost"
    #: The endpoint did not say. Ask again; never clean up on this answer.
    UNKNOWN = "unknown"
    #: Nothing happened yet and the same request may succeed later.
    RETRY = "retry"

    @property
    def done(self) -> bool:
        """Whether the rows are at the endpoint, once."""
        return self in (Outcome.COMMITTED, Outcome.ALREADY_COMMITTED)


class RecordKind(StrEnum):
    """What fills a decision slot."""

    DECISION = "decision"
    REPAIR = "repair"
    #: new operator state of a sink, between two checkpoints
    STATE = "state"
    ABORT = "abort"


@dataclass(frozen=True, order=True)
class Slot:
    """The index-th place of a generation; filled once, by create-if-absent."""

    generation: int
    index: int

    def next(self) -> Slot:
        """The slot after this one, of the same generation."""
        return Slot(self.generation, self.index + 1)


@dataclass(frozen=True)
class Committable:
    """What one subtask prepared at one sink: plain data that is enough to commit it from any process.

    `data` is the sink's own; two committables are the same work only if all of it is equal (rule 2).
    `rows` and `digest` (order-free over the rows) let a lost one be matched to its replay (rule 4).
    """

    sink: str
    subtask: int
    data: Any
    rows: int = 0
    bytes: int = 0
    digest: str | None = None


@dataclass(frozen=True)
class Record:
    """The content of one decision slot."""

    slot: Slot
    kind: RecordKind
    checkpoint_id: CheckpointId | None = None
    #: Every sink of the pipeline at that time, also those without rows: complete means each of them has committed.
    sinks: tuple[str, ...] = ()
    committables: tuple[Committable, ...] = ()
    timestamp: int = 0
    state: Mapping[str, Any] = field(default_factory=dict)
    #: what an operator ordered about rows a sink lost: sink -> how, who, when
    resolution: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Decided:
    """A decided checkpoint as all its records together leave it."""

    checkpoint_id: CheckpointId
    sinks: tuple[str, ...]
    committables: tuple[Committable, ...]
    timestamp: int = 0
    state: Mapping[str, Any] = field(default_factory=dict)
    resolution: Mapping[str, Any] = field(default_factory=dict)

    def of(self, sink: str) -> tuple[Committable, ...]:
        """The committables of one sink, in subtask order."""
        return tuple(sorted((c for c in self.committables if c.sink == sink), key=lambda c: c.subtask))


@dataclass(frozen=True, order=True)
class PendingCheckpoint:
    """One subtask's sealed, undelivered rows (W3).

    Ordered by checkpoint, then subtask. The handle is where the rows are, not what they are: it takes no part in
    equality.
    """

    checkpoint_id: CheckpointId
    subtask_id: int
    timestamp: int
    handle: str = field(compare=False)


def fold(records: Iterable[Record]) -> dict[CheckpointId, Decided]:
    """Read the slots in order; of a checkpoint the latest decision counts, repairs and states replace parts of it."""
    decided: dict[CheckpointId, Decided] = {}
    for record in sorted(records, key=lambda r: r.slot):
        if record.kind is RecordKind.ABORT or record.checkpoint_id is None:
            continue
        known = decided.get(record.checkpoint_id)
        if record.kind is RecordKind.DECISION or known is None:
            decided[record.checkpoint_id] = Decided(
                record.checkpoint_id, record.sinks, record.committables, record.timestamp, record.state
            )
        elif record.kind is RecordKind.STATE:
            decided[record.checkpoint_id] = replace(known, state={**known.state, **record.state})
        else:
            new = {(c.sink, c.subtask): c for c in record.committables}
            kept = tuple(c for c in known.committables if (c.sink, c.subtask) not in new)
            # One without data stands for nothing any more: its rows are elsewhere, or given up.
            added = tuple(c for c in new.values() if c.data is not None)
            # An order to produce anyway holds for one repair; if that is lost too, the operator is asked again.
            obeyed = {c.sink for c in added if c.sink in known.resolution}
            orders = {k: {**v, "carried_out": True} if k in obeyed else v for k, v in known.resolution.items()}
            resolution = {**orders, **record.resolution}
            decided[record.checkpoint_id] = replace(known, committables=kept + added, resolution=resolution)
    return dict(sorted(decided.items()))
