"""The rules of design.md, and how each is switched off: by a weaker sink, loop, or function of the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint import delivery, records, repair, sweeps
from holdfast.checkpoint.again import SendAgain
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.delivery import Delivery
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import Run
from holdfast.checkpoint.slots import Slots
from holdfast.checkpoint.waiting import Waiting
from holdfast.core import fence
from holdfast.core.model import Committable, RecordKind, Slot
from holdfast.core.naming import Task
from holdfast.core.recovery import STEPS, Leftover, Moment, Step
from holdfast.core.repair import RepairPlan
from holdfast.sinks import wal

from .drivers import ModelLoops
from .sinks import POISON, LedgerSink, PublishStep, SendingSink, TransactionSink, without_generation


@dataclass(frozen=True)
class Rules:
    """What a world is made with."""

    name: str = "all rules"
    transaction_sink: type[TransactionSink] = TransactionSink
    ledger_sink: type[LedgerSink] = LedgerSink
    sending_sink: type[SendingSink] = SendingSink
    loops: type[ModelLoops] = ModelLoops
    #: what is replaced in the kernel: (object, name, value)
    patches: tuple[tuple[Any, str, Any], ...] = ()


ALL = Rules()

# -- 1. fence first

NO_FENCE = Rules(
    "1: no fence",
    patches=((fence, "may_decide", lambda own, claimed: True), (fence, "slots_to_fence", lambda *facts: [])),
)
NO_ABORT_SLOTS = Rules("1: no abort slots", patches=((fence, "slots_to_fence", lambda *facts: []),))

# -- 2. names carry the generation and the attempt


class ShortNames(TransactionSink):
    """Names without generation and attempt."""

    name = "tx"

    def named(self, task: Task) -> str:
        return without_generation(task).token


class AnyGeneration(TransactionSink):
    """A sweep that does not ask whose work it finds."""

    name = "tx"

    def may_undo(self, found: Leftover, generation: int, kept: Sequence[Committable]) -> bool:
        return super().may_undo(found, found.generation, kept)


SHORT_NAMES = Rules("2: names without generation", transaction_sink=ShortNames)
SWEEP_ANY_GENERATION = Rules("2: sweep of any generation", transaction_sink=AnyGeneration)

# -- 3. files of the log


def _unnamed(found: Leftover, generation: int, decided: Sequence[Committable]) -> bool:
    return all(found.data != c.data for c in decided)


FILES_OF_ANY_GENERATION = Rules("3: log files of any generation removed", patches=((wal, "may_undo", _unnamed),))

# -- 4. repair by content


def _by_index(lost: Sequence[Committable], replay: Sequence[Any], kept: Sequence[Committable] = ()) -> RepairPlan:
    return RepairPlan(tuple((c, c.subtask) for c in lost), ())


REPAIR_BY_INDEX = Rules("4: repair by index", patches=((repair, "plan_repair", _by_index),))

# -- 5. abort slots are kept for ever

_prunable = fence.prunable


def _aborts_too(records: Any, commits: Any, retain: int) -> tuple[list[int], list[Slot]]:
    records = list(records)
    gone, slots = _prunable(records, commits, retain)
    return gone, sorted({*slots, *(r.slot for r in records if r.kind is RecordKind.ABORT)})


ABORTS_PRUNED = Rules("5: abort slots pruned", patches=((fence, "prunable", _aborts_too),))

_fence = CheckpointLog._fence


def _floor_first(log: CheckpointLog) -> None:
    log._slots.raise_floor(log.generation, [])
    _fence(log)


FLOOR_TOO_EARLY = Rules("5: floor written before the fence", patches=((CheckpointLog, "_fence", _floor_first),))

_raise_floor = Slots.raise_floor


def _forgetful(slots: Slots, generation: int, live: Any) -> None:
    _raise_floor(slots, generation, [])


FLOOR_FORGETS = Rules("5: floor forgets what is decided below it", patches=((Slots, "raise_floor", _forgetful),))

# -- 6. offsets follow completeness

OFFSETS_OF_DECIDED = Rules(
    "6: offsets of what is decided",
    patches=((Coordinator, "complete_through", property(lambda self: self._log.last_decided)),),
)

# -- 7. delivery at the start and on a timer


class BatchesOnly(ModelLoops):
    """Loops that a batch wakes, and nothing else."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._begun = False

    def start(self, deliveries: Sequence[Delivery], name: str) -> None:
        self._deliveries, self._name = deliveries, name

    def wake(self) -> None:
        if not self._begun:
            self._begun = True
            super().start(self._deliveries, self._name)
        super().wake()

    def _rest(self, waits: Sequence[float | None]) -> float | None:
        return None


NO_TIMER = Rules(
    "7: no delivery at start or on a timer", loops=BatchesOnly, patches=((Coordinator, "tick", lambda c: None),)
)

# -- 8. every batch sweeps, and the quiet query too

SWEEP_AT_START_ONLY = Rules(
    "8: sweep at the start only",
    patches=(
        (sweeps, "STEPS", {**STEPS, Moment.BATCH: (Step.DELIVER,), Moment.QUIET: (Step.DELIVER,)}),
        (sweeps, "SWEEP_EVERY", float("inf")),
    ),
)

# -- 9. initialise, then read the mark


class MarkFirst(LedgerSink):
    """Reads the mark before older writers are fenced."""

    name = "wa"
    publish = (PublishStep.READ_MARK, PublishStep.INITIALISE, PublishStep.SEND)


MARK_BEFORE_INITIALISE = Rules("9: mark read before initialising", ledger_sink=MarkFirst)

# -- 10. ledgers carry the lineage


class AnyLineage(LedgerSink):
    """A ledger that does not say whose it is."""

    name = "wa"

    def known(self, ledger: Mapping[str, int], run: Run) -> Mapping[str, int]:
        return {}

    def lineage(self, run: Run) -> str:
        return "any"


class UnjudgedTransactions(TransactionSink):
    """Has no ledger to look at."""

    name = "tx"
    expects = None

    def known(self, ledger: Mapping[str, int], run: Run) -> Mapping[str, int]:
        return {}


NO_LINEAGE = Rules("10: ledger without lineage", ledger_sink=AnyLineage, transaction_sink=UnjudgedTransactions)
AnyLineage.expects = None

# -- 11. nothing that depends on rows after the decision


class EncodesLate(LedgerSink):
    """Finds out what the endpoint cannot take when it sends."""

    name = "wa"

    def check(self, rows: Sequence[int]) -> None:
        """Not yet."""

    def encode(self, rows: Sequence[int]) -> None:
        if POISON in rows:
            super().check(rows)


ENCODED_AFTER_DECISION = Rules("11: values encoded after the decision", ledger_sink=EncodesLate)

# -- 12. a way out of every failure


def _nothing(*args: Any, **kwargs: Any) -> None:
    """Not recorded."""


NO_FINDING = Rules(
    "12: no finding recorded", patches=((delivery, "record_finding", _nothing), (repair, "record_finding", _nothing))
)

_committables = SendAgain.committables


def _never_void(sending: SendAgain) -> None:
    storage = sending._log.storage
    for file in storage.names("again"):
        name = f"again/{file}"
        sending._orders[name] = records.decode(storage.read(name), name, "again")


ORDER_NEVER_VOID = Rules(
    "12: order to send again not void by its decision", patches=((SendAgain, "load", _never_void),)
)


def _forgotten_first(sending: SendAgain, sinks: Sequence[str], batch: Sequence[Committable]) -> list[Committable]:
    found = _committables(sending, sinks, batch)
    if found:
        sending.done(sinks, -1)
    return found


ORDER_FORGOTTEN = Rules(
    "12: order to send again forgotten before its decision",
    patches=((SendAgain, "committables", _forgotten_first),),
)

# -- 13. sinks are delivered to apart


class OneLoop(ModelLoops):
    """One loop for all sinks, the one that may lag first."""

    def start(self, deliveries: Sequence[Delivery], name: str) -> None:
        self._spawn("all", 0, sorted(deliveries, key=lambda d: not d.sink.may_lag))


ONE_LOOP = Rules("13: one loop for all sinks", loops=OneLoop)

# -- 14. prepared is asked for again


class NeverAsks(TransactionSink):
    """Takes what was prepared for prepared."""

    name = "tx"

    def still_prepared(self, committables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        return committables


NOT_ASKED_AGAIN = Rules("14: not asked again before the decision", transaction_sink=NeverAsks)

# -- 15. a ledger behind the log


class AcceptsBehind(LedgerSink):
    """Does not expect its ledger to know what commit records say."""

    name = "wa"
    expects = None


class NotAskedWhileSending(LedgerSink):
    """Looks at the ledger when it starts, and never again."""

    name = "wa"

    def expected(self) -> int:
        return -1


LEDGER_BEHIND_ACCEPTED = Rules("15: ledger behind accepted", ledger_sink=AcceptsBehind)
LEDGER_SEEN_ONCE = Rules("15: ledger not looked at when more is sent", ledger_sink=NotAskedWhileSending)

# -- 16. a committable says all its commit needs


class OptionsOfToday(TransactionSink):
    """Commits to the table that is configured now."""

    name = "tx"

    def target(self, committable: Mapping[str, Any]) -> str:
        return self.table


OPTIONS_FROM_SINK = Rules("16: options taken from the sink", transaction_sink=OptionsOfToday)

# -- 17. a failure is one for everybody

FAILURE_SWALLOWED = Rules(
    "17: failure swallowed",
    patches=(
        (Waiting, "failure", property(lambda self: self.noticed)),
        (Waiting, "undelivered", lambda self: None),
    ),
)
