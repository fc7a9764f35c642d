"""What a driver does about work it finds: decide here, do elsewhere (rules 2, 3, 6, 7, 8, 10)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from holdfast.core.model import CheckpointId, Committable, Decided


class Moment(StrEnum):
    """When the coordinator acts."""

    START = "start of a query run"
    BATCH = "start of a batch"
    FAILED = "after a failed batch"
    DECIDED = "after a decision"
    TIMER = "timer"
    #: a late task of a dead driver can hold an endpoint's readers back for as long as no batch comes
    QUIET = "timer, while no batch is under way"


class Step(StrEnum):
    """What it does then."""

    FENCE = "fence older generations"
    SWEEP = "undo undecided work of own and older generations"
    DELIVER = "commit what is decided and not complete"


#: Rule 1: fence before reading or touching anything. Rule 7: a quiet source must not hold rows back, so delivery also
#: happens at the start and on a timer. Rule 8: tasks of a dead driver can prepare late, so every batch sweeps, and so
#: does the timer now and then; but never while tasks of this driver prepare what is not decided yet.

STEPS: Mapping[Moment, tuple[Step, ...]] = {
    Moment.START: (Step.FENCE, Step.SWEEP, Step.DELIVER),
    Moment.BATCH: (Step.SWEEP, Step.DELIVER),
    Moment.FAILED: (Step.SWEEP,),
    Moment.DECIDED: (Step.DELIVER,),
    Moment.TIMER: (Step.DELIVER,),
    Moment.QUIET: (Step.SWEEP, Step.DELIVER),
}


@dataclass(frozen=True)
class Facts:
    """What the log says at one moment."""

    decided: Mapping[CheckpointId, Decided]
    #: checkpoint -> sinks that have a commit record
    commits: Mapping[CheckpointId, Collection[str]]


@dataclass(frozen=True, order=True)
class OwedCommit:
    """An action: this sink is to commit this checkpoint."""

    checkpoint_id: CheckpointId
    sink: str


def plan_recovery(facts: Facts) -> list[OwedCommit]:
    """Every commit that is still owed, in the order it is owed in: by checkpoint, then in the order of the sinks."""
    return [
        OwedCommit(checkpoint_id, sink)
        for checkpoint_id, decided in sorted(facts.decided.items())
        for sink in decided.sinks
        if sink not in facts.commits.get(checkpoint_id, ())
    ]


def owed(facts: Facts, sink: str) -> dict[CheckpointId, tuple[Committable, ...]]:
    """The committables one sink must keep: decided, and not known to be committed."""
    return {c.checkpoint_id: facts.decided[c.checkpoint_id].of(sink) for c in plan_recovery(facts) if c.sink == sink}


@dataclass(frozen=True)
class Leftover:
    """Prepared work found at an endpoint or in the log: who made it, and the whole committable it amounts to."""

    generation: int
    data: object


def may_undo(found: Leftover, own_generation: int, decided: Iterable[Committable]) -> bool:
    """Whether a driver may abort, roll back or delete this.

    Only work of its own or an older generation: a paused older driver must not touch what a newer one prepared. Only
    if no record names it, compared by the whole committable: the same id may have been used again since.
    """
    return found.generation <= own_generation and all(found.data != c.data for c in decided)


def complete_through(facts: Facts) -> CheckpointId | None:
    """The last checkpoint below which, and at which, all are complete (rule 6). What was pruned was complete."""
    missing = plan_recovery(facts)
    if not missing:
        return max(facts.decided, default=None)
    return missing[0].checkpoint_id - 1


class LedgerVerdict(StrEnum):
    """What an endpoint's ledger says about this pipeline."""

    OURS = "ours"
    FOREIGN = "written by a pipeline of the same name with another checkpoint location"
    AHEAD = "ahead of this checkpoint location"
    BEHIND = "lacks checkpoints that this location knows to be committed"


def judge_ledger(
    ledger: Mapping[str, CheckpointId],
    lineage: str,
    last_decided: CheckpointId | None,
    committed: CheckpointId | None = None,
) -> LedgerVerdict:
    """Compare a ledger {lineage: last committed checkpoint} with the log (rules 10, 15).

    A ledger of another lineage would make us skip its checkpoint numbers; one that is ahead would make us skip rows
    that an old or deleted checkpoint produces again; one that is behind what a commit record says (`committed`) belongs
    to an endpoint that was restored or made anew, and what it lacks would never be sent again.
    """
    if any(other != lineage for other in ledger):
        return LedgerVerdict.FOREIGN
    if lineage in ledger and ledger[lineage] > (-1 if last_decided is None else last_decided):
        return LedgerVerdict.AHEAD
    if committed is not None and ledger.get(lineage, -1) < committed:
        return LedgerVerdict.BEHIND
    return LedgerVerdict.OURS
