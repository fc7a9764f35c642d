"""The protocol with one of its rules (design.md) switched off, in each way the rule can be missed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from holdfast.core import fence, recovery, repair
from holdfast.core.model import RecordKind, Slot
from holdfast.core.recovery import LedgerVerdict, Moment, PublishStep, Step

from .kernel import KERNEL, token

# Rule 1: fence first.


def fences_nothing(*_: object) -> list[Slot]:
    """Older generations are not fenced."""
    return []


def always(*_: object) -> bool:
    """Newer generations stop nobody."""
    return True


def next_listed_slot(own: Slot, listed: list[Slot]) -> Slot:
    """Count the own slots by what is listed, a successor's abort among them."""
    return fence.first_open_slot(own.generation, listed)


NO_FENCE_AT_ALL = replace(KERNEL, slots_to_fence=fences_nothing, may_decide=always)
NO_ABORT_SLOTS = replace(KERNEL, slots_to_fence=fences_nothing)
READ_BEFORE_FENCE = replace(KERNEL, steps=KERNEL.with_steps({Moment.START: (Step.SWEEP, Step.DELIVER, Step.FENCE)}))
SLOTS_FROM_LISTING = replace(KERNEL, own_slot=next_listed_slot)

# Rules 2 and 3: names carry generation and attempt; only own and older generations' work is touched.


def undo_any_generation(found: recovery.Leftover, _own: int, decided: Any) -> bool:
    """Whatever this driver's records do not name is undone, whoever prepared it."""
    return all(found.data != c.data for c in decided)


def without_generation(_generation: int, checkpoint_id: int, subtask: int, attempt: int) -> str:
    """A name that two drivers share."""
    return token(0, checkpoint_id, subtask, attempt)


def without_attempt(generation: int, checkpoint_id: int, subtask: int, _attempt: int) -> str:
    """A name that two attempts share."""
    return token(generation, checkpoint_id, subtask, 0)


def name_only(data: Any) -> Any:
    """A commit that names the transaction but not its producer."""
    return data[0]


UNDO_ANY_GENERATION = replace(KERNEL, may_undo=undo_any_generation)
NAMES_WITHOUT_GENERATION = replace(KERNEL, name=without_generation)
NAMES_WITHOUT_ATTEMPT = replace(KERNEL, name=without_attempt)
COMMIT_BY_NAME = replace(KERNEL, name=without_attempt, identity=name_only)

# Rule 4: repair by content, and record it.


def match_by_index(lost: Any, replay: Any, kept: Any = ()) -> repair.RepairPlan:
    """Subtask 0 of the replay is taken for the lost subtask 0."""
    there = {r.subtask for r in replay}
    matches = tuple((c, c.subtask) for c in lost if c.subtask in there)
    return repair.RepairPlan(matches, ())


def only_decisions(kind: str) -> bool:
    """A repair is made, but the log never hears of it."""
    return kind == RecordKind.DECISION


MATCH_BY_INDEX = replace(KERNEL, plan_repair=match_by_index)
NO_REPAIR_RECORD = replace(KERNEL, is_written=only_decisions)

# Rule 5: abort slots are kept.


def prune_aborts_too(records: Any, commits: Any, retain: int) -> tuple[list[int], list[Slot]]:
    """With complete checkpoints, the fences go."""
    records = list(records)
    gone, slots = fence.prunable(records, commits, retain)
    return gone, [*slots, *(r.slot for r in records if gone and r.kind is RecordKind.ABORT)]


PRUNE_ABORTS = replace(KERNEL, prunable=prune_aborts_too)

# Rule 6: group offsets wait for what lags.


def newest_decided(facts: recovery.Facts) -> int | None:
    """What Spark has committed is taken for delivered."""
    return max(facts.decided, default=None)


OFFSETS_DO_NOT_WAIT = replace(KERNEL, complete_through=newest_decided)

# Rule 7: delivery at the start and on a timer.

NO_TIMER = replace(KERNEL, steps=KERNEL.with_steps({Moment.TIMER: ()}))
ONLY_BATCHES_DELIVER = replace(
    KERNEL, steps=KERNEL.with_steps({Moment.TIMER: (), Moment.START: (Step.FENCE, Step.SWEEP)})
)

# Rule 8: every batch start sweeps.

SWEEP_AT_START_ONLY = replace(KERNEL, steps=KERNEL.with_steps({Moment.BATCH: (Step.DELIVER,)}))

# Rule 9: initialise, then read the mark.

MARK_BEFORE_INITIALISE = replace(KERNEL, publish=(PublishStep.READ_MARK, PublishStep.INITIALISE, PublishStep.SEND))

# Rule 10: ledgers carry the lineage.


def any_ledger_is_ours(*_: object) -> LedgerVerdict:
    """The ledger is not looked at before it is believed."""
    return LedgerVerdict.OURS


def ledger_without_lineage(ledger: Any, lineage: str, last_decided: int | None) -> LedgerVerdict:
    """Ahead is noticed, but whose ledger it is is not."""
    return recovery.judge_ledger({lineage: max(ledger.values())} if ledger else {}, lineage, last_decided)


def any_mark(ledger: Any, _lineage: str) -> int:
    """A mark is believed, whoever made it."""
    return max(ledger.values(), default=-1)


NO_LEDGER_CHECK = replace(KERNEL, judge_ledger=any_ledger_is_ours)
LEDGER_WITHOUT_LINEAGE = replace(KERNEL, judge_ledger=ledger_without_lineage, own_mark=any_mark)
