"""What is explored: worlds with all rules on, and for each rule one in which it is missed."""

from __future__ import annotations

from dataclasses import dataclass

from . import rules, world
from .explore import ONE, Bounds
from .rules import Rules
from .world import Setup

SWITCH, TIME, CRASH, LOSE, FAIL, ORPHAN = "switch", "time", "crash", "lose", "fail", "orphan"


@dataclass(frozen=True)
class Scenario:
    """A world and how far its executions go from the default, in the tests."""

    setup: Setup
    bounds: Bounds = ONE


#: With all rules on nothing is broken in these.
SOUND = {
    "two drivers, endpoint with a ledger": Scenario(Setup()),
    "two drivers, committer beside the endpoint": Scenario(Setup(write_ahead="committer")),
    "a sink that commits beside the tasks of the next": Scenario(Setup(batches=3, write_ahead="overlapping", retain=1)),
    "three checkpoints, all but one pruned": Scenario(Setup(batches=3, retain=1)),
    "lost transactions are repaired": Scenario(
        Setup(), Bounds(2, kinds=frozenset({TIME, CRASH}), at=("tx.commit", "create decisions", "create commits/0.tx"))
    ),
    "replay differs, the operator gives up": Scenario(Setup(differs=True, operator="give-up")),
    "replay differs, the operator says it is delivered": Scenario(
        Setup(differs=True, operator="mark-delivered"), Bounds(kinds=frozenset({TIME, CRASH, SWITCH}))
    ),
    "replay differs, the operator produces anyway": Scenario(
        Setup(differs=True, operator="produce-anyway"), Bounds(kinds=frozenset({TIME, CRASH, SWITCH}))
    ),
    "an operator gives up what is owed and sends it again": Scenario(
        Setup(batches=1, down=True, operator="send-again"), Bounds(kinds=frozenset({CRASH, SWITCH, LOSE}))
    ),
    "checkpoint location deleted": Scenario(Setup(between="deleted", always_second=True)),
    "checkpoint location deleted, take-over": Scenario(Setup(between="deleted", always_second=True, take_over=True)),
    "endpoint restored from a backup": Scenario(Setup(between="restored", always_second=True)),
    "endpoint restored from a backup, the operator accepts it": Scenario(
        Setup(batches=3, between="restored", always_second=True, operator="accept-restored")
    ),
    "options changed": Scenario(Setup(new_options=True), Bounds(kinds=frozenset({SWITCH, CRASH, LOSE, FAIL, ORPHAN}))),
    "a row that no endpoint takes": Scenario(Setup(poison=True)),
    "slow write-ahead endpoint": Scenario(
        Setup(slow=(100.0,)), Bounds(kinds=frozenset({SWITCH, CRASH, LOSE, FAIL, ORPHAN}))
    ),
    "write-ahead endpoint that is down": Scenario(Setup(down=True), Bounds(kinds=frozenset({CRASH, SWITCH}))),
    "tasks slower than their transactions may be": Scenario(
        Setup(differs=True), Bounds(2, kinds=frozenset({TIME}), at=("tx.begin", "tx.flush"))
    ),
}


@dataclass(frozen=True)
class Missed:
    """A rule that is off, the world that misses it, and how that shows."""

    rules: Rules
    violation: str
    scenario: Scenario


def _only(*kinds: str, deviations: int = 1, towards: tuple[str, ...] = (), at: tuple[str, ...] = ()) -> Bounds:
    return Bounds(deviations, kinds=frozenset(kinds), towards=towards, at=at)


#: one driver pauses before its sweep, the other decides and pauses before it commits, the first goes on
_BACK_AND_FORTH = _only(SWITCH, deviations=2, towards=("d1", "d2"), at=("tx.list", "tx.commit", "list wal"))

MISSED = (
    Missed(rules.NO_FENCE, world.DECIDED_TWICE, Scenario(Setup(), _only(SWITCH, towards=("d2",)))),
    Missed(rules.NO_FENCE, world.DOUBLED, Scenario(Setup(), _only(SWITCH, towards=("d2",)))),
    Missed(rules.NO_ABORT_SLOTS, world.DECIDED_TWICE, Scenario(Setup(), _only(SWITCH, towards=("d2",)))),
    Missed(rules.SHORT_NAMES, world.UNDONE, Scenario(Setup(), _BACK_AND_FORTH)),
    Missed(rules.SWEEP_ANY_GENERATION, world.UNDONE, Scenario(Setup(), _BACK_AND_FORTH)),
    Missed(rules.FILES_OF_ANY_GENERATION, world.UNDONE, Scenario(Setup(), _BACK_AND_FORTH)),
    Missed(
        rules.REPAIR_BY_INDEX,
        world.DOUBLED,
        Scenario(Setup(), _only(TIME, CRASH, deviations=2, at=("tx.commit", "create decisions"))),
    ),
    Missed(
        rules.ABORTS_PRUNED,
        world.DECIDED_TWICE,
        Scenario(Setup(batches=3, retain=1), _only(SWITCH, towards=("d2",), at=("create decisions",))),
    ),
    # The first driver pauses before its decision; the second writes the floor, then dies before its abort.
    Missed(
        rules.FLOOR_TOO_EARLY,
        world.DECIDED_TWICE,
        Scenario(Setup(), _only(SWITCH, CRASH, deviations=2, towards=("d2",), at=("create decisions",))),
    ),
    # The second driver dies too: the third finds no word of what the first has decided.
    Missed(
        rules.FLOOR_FORGETS,
        world.DECIDED_TWICE,
        Scenario(Setup(), _only(CRASH, deviations=2, at=("tx.commit", "delete floors"))),
    ),
    Missed(rules.OFFSETS_OF_DECIDED, world.LEADS, Scenario(Setup(), _only(FAIL))),
    Missed(rules.NO_TIMER, world.HELD_BACK, Scenario(Setup(), _only(FAIL, at=("wa.",)))),
    Missed(
        rules.SWEEP_AT_START_ONLY,
        world.OPEN,
        Scenario(Setup(), _only(ORPHAN, SWITCH, deviations=2, towards=("d1.task",))),
    ),
    Missed(rules.MARK_BEFORE_INITIALISE, world.DOUBLED, Scenario(Setup(), _only(SWITCH, towards=("d2",)))),
    Missed(rules.NO_LINEAGE, world.LOST, Scenario(Setup(between="deleted", always_second=True))),
    Missed(rules.ENCODED_AFTER_DECISION, world.STUCK, Scenario(Setup(poison=True))),
    Missed(rules.NO_FINDING, world.UNTOLD, Scenario(Setup(differs=True, operator="give-up"), _only(TIME, at=("tx.",)))),
    Missed(
        rules.ORDER_NEVER_VOID,
        world.STUCK,
        Scenario(Setup(down=True, operator="send-again"), _only(CRASH, at=("delete again",))),
    ),
    Missed(rules.ORDER_FORGOTTEN, world.LOST, Scenario(Setup(down=True, operator="send-again"), _only(CRASH))),
    Missed(rules.ONE_LOOP, world.EXPIRED, Scenario(Setup(slow=(100.0,)))),
    Missed(
        rules.NOT_ASKED_AGAIN,
        world.STUCK,
        Scenario(Setup(differs=True), _only(TIME, at=("tx.begin", "tx.flush"))),
    ),
    Missed(rules.LEDGER_BEHIND_ACCEPTED, world.LOST, Scenario(Setup(between="restored", always_second=True))),
    # A worker goes on after its driver died and the endpoint came back as an older copy; the next driver dies, too.
    Missed(
        rules.LEDGER_SEEN_ONCE,
        world.LOST,
        Scenario(
            Setup(batches=3, between="restored", always_second=True, operator="accept-restored"),
            _only(ORPHAN, CRASH, deviations=2, at=("read wal", "create generations")),
        ),
    ),
    Missed(rules.OPTIONS_FROM_SINK, world.MOVED, Scenario(Setup(new_options=True), _only(CRASH))),
    Missed(rules.FAILURE_SWALLOWED, world.SILENT, Scenario(Setup(down=True))),
)
