"""One execution: two drivers, two sinks, perhaps an operator; and what must hold during it and after it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID
from zlib import crc32

from holdfast.checkpoint import records
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.log import THROUGH, CheckpointLog
from holdfast.core.model import Record, RecordKind, Slot, fold
from holdfast.core.naming import parse_token
from holdfast.errors import LostError

from .drivers import SEND_AGAIN, Driver, Operator
from .endpoints import Ledgered, Marked, Transactions
from .rules import Rules
from .scheduler import Process, Scheduler
from .sinks import POISON, OverlappingSink
from .store import Store, View

#: the names of violations
LOST, DOUBLED, UNDONE, DECIDED_TWICE = "lost row", "doubled row", "decided work undone", "decided twice"
OPEN, LEADS, HELD_BACK = "left open", "offsets lead", "rows held back"
STUCK, SILENT, NO_WAY_OUT, UNTOLD = "stuck for ever", "silent failure", "no way out", "no word left of a failure"
FALSE_ALARM = "false alarm"
EXPIRED, MOVED, STATE = "decided transaction expired", "row in another table", "wrong state restored"


@dataclass(frozen=True)
class Setup:
    """What is in the world; each scenario has one."""

    batches: int = 2
    #: `ledger`: the endpoint holds the mark; `committer`: somebody else does, and W9 allows resends; `overlapping`: a
    #: ledger too, and the sink may not lag but by the one checkpoint that it commits beside the next one's tasks
    write_ahead: str = "ledger"
    retain: int = 100
    #: each evaluation of a batch gives other rows: nothing can be repaired
    differs: bool = False
    #: what an operator orders about what is stuck
    operator: str | None = None
    #: later drivers write to another table
    new_options: bool = False
    #: the first batch of the first driver holds a row that no endpoint takes; later ones do not give it
    poison: bool = False
    #: seconds that sends to the write-ahead endpoint take, the first ones
    slow: tuple[float, ...] = ()
    #: before the second driver starts: `deleted` (the checkpoint location) or `restored` (the write-ahead endpoint)
    between: str | None = None
    take_over: bool = False
    #: the write-ahead endpoint takes nothing until the second driver has started
    down: bool = False
    #: the second driver starts although the first has ended well
    always_second: bool = False


class Broken(Exception):
    """A violation was seen."""

    def __init__(self, violation: str, detail: str) -> None:
        super().__init__(f"{violation}: {detail}")
        self.violation, self.detail = violation, detail


class World:
    """Everything there is in one execution."""

    def __init__(self, setup: Setup, rules: Rules, scheduler: Scheduler) -> None:
        self.setup, self.rules, self.scheduler = setup, rules, scheduler
        self.store, self.engine = Store(), Store()
        self.processes: list[Process] = []
        self.tx = Transactions("tx", scheduler)
        self.wa: Ledgered | Marked = (Marked if setup.write_ahead == "committer" else Ledgered)("wa", scheduler)
        if isinstance(self.wa, Ledgered):
            self.wa.slow = list(setup.slow)
            self.wa.down = lambda: setup.down and not self._mended()
        self.tx.promised = self.promised
        self.tx.watched = lambda: any(d.started and not d.over for d in self.drivers)
        self.store.deleting = self._deleting
        self.drivers: list[Driver] = []
        self.operator: Operator | None = None
        self.refused: list[BaseException] = []
        #: checkpoints whose rows an operator has ordered to be sent again
        self.sent_again: set[int] = set()
        #: violations seen so far, and how
        self.broken: dict[str, str] = {}
        self.evaluations = 0
        self.group = -1
        self._parsed: dict[str, Record] = {}
        self._restore: Any = None
        self._tables: dict[int, str] = {}
        self.incarnation = 0

    # -- what the world gives to the kernel

    def view(self, store: Store, process: Process) -> View:
        return View(store, self.scheduler, process)

    def open_storage(self, location: str) -> View:
        store = self.store if location.rstrip("/").endswith("/holdfast") else self.engine
        return self.view(store, self.scheduler.current.process)

    def unique(self) -> UUID:
        """An id that is the same in every replay of this execution."""
        process = self.scheduler.current.process
        process.ids += 1
        return UUID(int=(crc32(process.name.encode()) << 64) + process.ids)

    def sinks(self, driver: Driver) -> list[Any]:
        table = "b" if self.setup.new_options and driver.number > 0 else "a"
        wa: Any = {
            "ledger": self.rules.ledger_sink,
            "committer": self.rules.sending_sink,
            "overlapping": OverlappingSink,
        }[self.setup.write_ahead]
        return [self.rules.transaction_sink(self.tx, table), wa(self.wa)]

    def rows_of(self, number: int, *, mended: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
        first, second = (10 * number + 500 * self.incarnation,), (10 * number + 1 + 500 * self.incarnation,)
        return ((*first, POISON), second) if self.setup.poison and number == 0 and not mended else (first, second)

    @property
    def batches(self) -> int:
        """How many there are; what is sent again needs a decision to come."""
        if self.setup.operator != SEND_AGAIN:
            return self.setup.batches
        ordered = self.operator is not None and self.operator.over
        return self.setup.batches + (2 if self.scheduler.calm else 1 if ordered else 0)

    def _mended(self) -> bool:
        if self.setup.operator == SEND_AGAIN:
            return self.operator is None or self.operator.over or self.operator.process.dead
        return any(d.started for d in self.drivers[1:])

    # -- what happens during an execution

    def over_already(self, driver: Driver) -> bool:
        """The second driver is not needed when the first has ended well, unless it came before."""
        if driver.number != 1:
            return False
        return self.drivers[0].ended_well and not self.setup.always_second and not self.pending_rows()

    def at_start(self, driver: Driver) -> None:
        if driver.number == 1 and self.setup.between == "deleted":
            self.store.files.clear()
            self.store.slots.clear()
            self.engine.files.clear()
            self._parsed.clear()
            self.incarnation += 1
        if driver.number == 1 and self.setup.between == "restored" and self._restore is not None:
            self._restore()

    def after_batch(self) -> None:
        """A backup, between two checkpoints: a ledger of one number cannot tell that it has a part of one."""
        if self.setup.between == "restored" and self._restore is None and isinstance(self.wa, Ledgered):
            sent = self.wa.rows("sent")
            if self.delivered(0) and len(sent) == 2:
                self._restore = self.wa.snapshot()

    def fail(self, violation: str, detail: str) -> None:
        self.broken.setdefault(violation, detail)

    def advance_offsets(self, coordinator: Coordinator) -> None:
        """What holdfast.spark.kafka does for sources: the group follows what Spark and every sink have committed."""
        complete, committed = coordinator.complete_through, self.position[1]
        if complete is None or committed is None:
            return
        self.group = min(complete, committed)
        missing = [n for n in range(self.group + 1) if not self.delivered(n)]
        if missing and not (self.setup.between or self.setup.operator):
            self.fail(LEADS, f"the group is at {self.group}, but the rows of {missing} are not at every endpoint")

    @property
    def position(self) -> tuple[int | None, int | None]:
        found = [max((int(n) for n in self.engine.names(f)), default=None) for f in ("offsets", "commits")]
        return found[0], found[1]

    def has_started(self, driver: Driver, log: CheckpointLog, sinks: Sequence[Any]) -> None:
        """The start is over: its sinks were given the newest state."""
        self._tables[log.generation] = sinks[0].table
        truth = fold(self.records())
        if self.newer_than(driver) or not truth:
            return
        state = truth[max(truth)].state.get("tx")
        if state is not None and sinks[0].state != state:
            self.fail(STATE, f"{driver.process.name} was given {sinks[0].state}, and {state} is recorded")

    def undecided(self) -> set[tuple[str, int]]:
        """What is open at the endpoint and no record names."""
        return {
            (t.name, t.epoch) for t in self.tx.open.values() if self.ours(t.name) and not self.promised(t.name, t.epoch)
        }

    def ours(self, name: str) -> bool:
        """Whether the drivers of today must sweep it.

        What a deleted location left is theirs only if they took its name over.
        """
        if not self.setup.between:
            return True
        task = parse_token(name)
        runs = [d.coordinator.run_info for d in self.drivers if d.coordinator and d.coordinator.run_info]
        if task is None or any(run.takes_from(task.lineage) for run in runs):
            return True
        return task.lineage in ({run.lineage for run in runs[1:]} or {run.lineage for run in runs})

    def swept(self, driver: Driver, before: set[tuple[str, int]]) -> None:
        """A driver was quiet for longer than its sweep takes: nothing of dead ones may hold readers back."""
        if not self.newer_than(driver) and (left := before & self.undecided()):
            self.fail(OPEN, f"{driver.process.name} was quiet, and {sorted(left)} stayed open")

    def newer_than(self, driver: Driver) -> bool:
        """Whether this driver has been replaced."""
        claimed = max((int(name) for name in self.store.names("generations")), default=-1)
        return driver.log is None or claimed > driver.log.generation

    def ended(self, driver: Driver) -> None:
        """A query that ended well has delivered everything that is decided."""
        if not self.newer_than(driver) and (left := self.pending_rows()):
            self.fail(SILENT, f"{driver.process.name} ended well, but the rows of {left} are not delivered")

    def failed(self, driver: Driver, error: BaseException) -> None:
        """A query that stopped for what an endpoint lost has left word of it, for `status` and `resolve`."""
        if not isinstance(error, LostError) or self.newer_than(driver):
            return
        if not self.pending_rows() and not self.setup.operator:
            self.fail(FALSE_ALARM, f"{driver.process.name} stopped although nothing is lost: {error}")
        if not self.store.names("lost"):
            self.fail(UNTOLD, f"{driver.process.name} stopped, and nothing tells the operator why: {error}")

    # -- the truth

    def records(self) -> list[Record]:
        for name, data in self.store.slots.items():
            if name not in self._parsed:
                generation, index = name.rpartition("/")[2].removesuffix(".json").split(".")
                self._parsed[name] = records.record_from_bytes(Slot(int(generation), int(index)), data, name)
        return list(self._parsed.values())

    def promised(self, name: str, epoch: int) -> bool:
        """Whether a record names this transaction."""
        return any(
            c.sink == "tx" and (c.data["name"], c.data["epoch"]) == (name, epoch)
            for decided in fold(self.records()).values()
            for c in decided.committables
        )

    def _deleting(self, name: str) -> None:
        """A file of the log goes: its rows must be delivered, or nobody's."""
        if not name.startswith("wal/"):
            return
        for number, decided in fold(self.records()).items():
            if number <= self._accepted("wa"):
                continue  # it is not sent again
            if any(c.sink == "wa" and c.data["handle"] == name for c in decided.committables):
                handle = next(c.data for c in decided.committables if c.sink == "wa" and c.data["handle"] == name)
                rows = [r for b in _rows(self.store.files.get(name)) for r in b]
                if not set(rows) <= set(self.wa.rows("sent")):
                    self.fail(UNDONE, f"{handle['handle']} of checkpoint {number} was removed undelivered")

    def delivered(self, number: int) -> bool:
        decided = fold(self.records()).get(number)
        if decided is None:
            return False
        expected = {row for part in self.rows_of(number, mended=True) for row in part}
        seen_tx = {row % 1000 for _, row in self.tx.visible}
        seen_wa = {row % 1000 for row in self.wa.rows("sent")}
        return expected <= seen_tx and expected <= seen_wa

    def pending_rows(self) -> list[int]:
        if self.setup.operator:
            return []
        return [n for n in fold(self.records()) if not self.delivered(n)]

    # -- the end

    def check(self) -> None:
        """After the last clean restart."""
        decisions = Counter(r.checkpoint_id for r in self.records() if r.kind is RecordKind.DECISION)
        for number, count in decisions.items():
            if count > 1:
                self.fail(DECIDED_TWICE, f"checkpoint {number} has {count} decisions")
        for problem in self.store.problems:
            self.fail(DECIDED_TWICE, problem)
        for problem in self.tx.problems:
            self.fail(UNDONE, problem)
        if self.setup.slow and self.tx.expired:
            self.fail(EXPIRED, f"{self.tx.expired} expired although their endpoint always answered")
        given_up = self._given_up()
        for number in range(self.batches):
            self._check_rows(number, given_up)
        if self.setup.operator == SEND_AGAIN:
            self._check_sent_again()
        if left := [name for name in self.tx.open if self.ours(name)]:
            self.fail(OPEN, f"transactions {left} are open")
        if left := self.store.walk("wal"):
            self.fail(OPEN, f"log files {left} are left")
        plans = [d.state["tx"]["plan"] for d in list(fold(self.records()).values())[-1:]]
        if plans != [self.tx.acted]:
            self.fail(STATE, f"the state plans {plans}, and {self.tx.acted} was done")
        if self.group != self.batches - 1:
            self.fail(HELD_BACK, f"the group is at {self.group}")

    def _given_up(self) -> set[tuple[int, str]]:
        """What an operator ordered about, also when the command died before it could say so."""
        return {
            (number, sink)
            for number, decided in fold(self.records()).items()
            for sink, order in decided.resolution.items()
            if THROUGH not in order
        }

    def _accepted(self, sink: str) -> int:
        """Through which checkpoint an operator takes a restored endpoint as it is: it may lack those rows."""
        orders = [d.resolution.get(sink, {}) for d in fold(self.records()).values()]
        return max((order.get(THROUGH, -1) for order in orders), default=-1)

    def _check_rows(self, number: int, given_up: set[tuple[int, str]]) -> None:
        expected = sorted(row for part in self.rows_of(number, mended=True) for row in part)
        for sink, rows in (("tx", [r for _, r in self.tx.visible]), ("wa", self.wa.rows("sent"))):
            counts = Counter(row % 1000 for row in rows)
            for row in expected:
                if not counts[row] and (number, sink) not in given_up and number > self._accepted(sink):
                    self.fail(LOST, f"row {row} of checkpoint {number} is not at {sink}")
                if counts[row] > 1 and (number, sink) not in given_up and not self._may_double(sink):
                    self.fail(DOUBLED, f"row {row} of checkpoint {number} is {counts[row]} times at {sink}")
        if self.setup.new_options:
            decision = [r for r in self.records() if r.checkpoint_id == number and r.kind is RecordKind.DECISION]
            table = self._tables[decision[0].slot.generation]
            for row in expected:
                if row not in self.tx.rows(table):
                    self.fail(MOVED, f"row {row} was decided for table {table!r} and is not there")

    def _check_sent_again(self) -> None:
        """With their own checkpoint at most once, as ever (a zombie may still do it); and once more as ordered."""
        assert isinstance(self.wa, Ledgered)
        for number in self.sent_again:
            for row in (row for part in self.rows_of(number, mended=True) for row in part):
                again = [n for n, sent in self.wa.sends if sent == row and n != number]
                if not again:
                    self.fail(LOST, f"row {row} of checkpoint {number} was to be sent again, and was not")
                if len(again) > 1:
                    self.fail(DOUBLED, f"row {row} of checkpoint {number} was sent again with {again}")
        for (number, row), count in Counter(self.wa.sends).items():
            if count > 1:
                self.fail(DOUBLED, f"row {row} was sent {count} times with checkpoint {number}")

    def _may_double(self, sink: str) -> bool:
        """W9: a send whose mark is elsewhere is made again after a crash, a lost answer, or by a zombie."""
        if sink != "wa" or self.setup.write_ahead != "committer":
            return False
        return any(kind in line for line in self.scheduler.told for kind in ("crash", "orphan", "lose", "switch"))


def _rows(data: bytes | None) -> Iterator[list[int]]:
    import pyarrow as pa

    if data:
        with pa.ipc.open_stream(data) as stream:
            for batch in stream:
                yield batch.column("id").to_pylist()
