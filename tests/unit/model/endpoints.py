"""Endpoints: they outlive every process, and each call is a point of the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import RestoredEndpointError

from .scheduler import Scheduler

CALL_FAULTS = ("crash", "lose", "fail")


class Endpoint:
    """Rows that a read-committed reader sees, in order, and who has put them there."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.name, self.scheduler = name, scheduler
        self.visible: list[tuple[str, int]] = []
        #: lineage -> the last checkpoint that it knows to be committed
        self.ledger: dict[str, int] = {}
        self.problems: list[str] = []

    def call(
        self, what: str, effect: Callable[[], Any], *, write: bool = True, faults: tuple[str, ...] = CALL_FAULTS
    ) -> Any:
        """An access by the current actor."""
        touched = (self.name,)
        return self.scheduler.point(f"{self.name}.{what}", effect, touched, write=write, faults=faults)

    def rows(self, table: str) -> list[int]:
        """What a reader of a table sees."""
        return [row for where, row in self.visible if where == table]

    def mark(self, lineage: str, checkpoint_id: int) -> None:
        """Remember, for the check at a start."""
        self.ledger[lineage] = max(checkpoint_id, self.ledger.get(lineage, -1))


@dataclass
class Transaction:
    """Open until it is ended, aborted, initialised again, or too old."""

    name: str
    epoch: int
    begun: float
    rows: list[int] = field(default_factory=list)


class Transactions(Endpoint):
    """Transactions that survive their process, but not their timeout: as Kafka's do."""

    timeout = 60.0

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        super().__init__(name, scheduler)
        self.open: dict[str, Transaction] = {}
        self.committed: set[tuple[str, int]] = set()
        self._epochs: dict[str, int] = {}
        #: whether a record promises this transaction
        self.promised: Callable[[str, int], bool] = lambda name, epoch: False
        self.acted = 0
        #: whether a driver runs, so that nothing decided needs to wait
        self.watched: Callable[[], bool] = lambda: True
        #: those that were dropped for their age although a record promised them
        self.expired: list[str] = []
        scheduler.on_time.append(self._expire)

    def _expire(self) -> None:
        for transaction in [t for t in self.open.values() if self.scheduler.now > t.begun + self.timeout]:
            del self.open[transaction.name]
            if self.watched() and self.promised(transaction.name, transaction.epoch):
                self.expired.append(transaction.name)

    def _faults(self) -> tuple[str, ...]:
        return (*CALL_FAULTS, "time") if self.open else CALL_FAULTS

    def begin(self, name: str) -> int:
        """Initialise this name, which aborts what is open under it."""

        def effect() -> int:
            self._drop(name, None)
            epoch = self._epochs[name] = self._epochs.get(name, -1) + 1
            self.open[name] = Transaction(name, epoch, self.scheduler.now)
            return epoch

        return int(self.call(f"begin {short(name)}", effect, faults=self._faults()))

    def flush(self, name: str, epoch: int, rows: list[int]) -> None:
        """Put rows in; an error when the transaction is gone."""

        def effect() -> None:
            found = self.open.get(name)
            if found is None or found.epoch != epoch:
                raise OSError(f"{name} is not open")
            found.rows = list(rows)

        self.call(f"flush {short(name)}", effect, faults=self._faults())

    def end(self, name: str, epoch: int, table: str, lineage: str, checkpoint_id: int) -> str:
        """Commit: `committed`, `already` or `gone`."""

        def effect() -> str:
            if (name, epoch) in self.committed:
                return "already"
            found = self.open.get(name)
            if found is None or found.epoch != epoch:
                return "gone"
            del self.open[name]
            self.committed.add((name, epoch))
            self.visible += [(table, row) for row in found.rows]
            self.mark(lineage, checkpoint_id)
            return "committed"

        return str(self.call(f"commit {short(name)}", effect, faults=self._faults()))

    def abort(self, name: str, epoch: int | None) -> None:
        """Drop what is open under this name, and this epoch if one is given."""
        self.call(f"abort {short(name)}", lambda: self._drop(name, epoch))

    def _drop(self, name: str, epoch: int | None) -> None:
        found = self.open.get(name)
        if found is None or epoch not in (None, found.epoch):
            return
        if self.promised(name, found.epoch):
            self.problems.append(f"decided transaction {name} was aborted by {self.scheduler.current.name}")
        del self.open[name]

    def act(self, plan: int) -> None:
        """What a state record planned; repeatable."""

        def effect() -> None:
            self.acted = max(self.acted, plan)

        self.call(f"act {plan}", effect)

    def list_open(self) -> list[tuple[str, int]]:
        """Names and epochs of what is open."""
        faults = ("fail", "time") if self.open else ("fail",)
        return list(
            self.call("list", lambda: [(t.name, t.epoch) for t in self.open.values()], write=False, faults=faults)
        )


class Ledgered(Endpoint):
    """Takes rows and their mark in one transaction; a writer that was initialised again elsewhere is fenced."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        super().__init__(name, scheduler)
        self._epochs: dict[int, int] = {}
        self._marks: dict[tuple[str, int], int] = {}
        #: (checkpoint, row) of everything that was sent
        self.sends: list[tuple[int, int]] = []
        #: whether nothing can be sent
        self.down: Callable[[], bool] = lambda: False
        #: seconds that the next sends take
        self.slow: list[float] = []

    def initialise(self, publisher: int) -> int:
        """The epoch with which to send; older ones are refused from now on."""

        def effect() -> int:
            self._epochs[publisher] = self._epochs.get(publisher, -1) + 1
            return self._epochs[publisher]

        return int(self.call(f"initialise {publisher}", effect))

    def read_mark(self, lineage: str, publisher: int) -> int:
        """The last checkpoint of this publisher that was sent."""
        return int(
            self.call(
                f"mark {publisher}", lambda: self._marks.get((lineage, publisher), -1), write=False, faults=("fail",)
            )
        )

    def send(
        self, epoch: int, lineage: str, publisher: int, checkpoint_id: int, rows: list[int], *, known: int
    ) -> bool:
        """Rows and mark; False for a writer that is fenced. An endpoint without the mark `known` is an older copy."""
        if self.slow:
            self.scheduler.sleep(self.slow.pop(0))

        def effect() -> bool:
            if self.down():
                raise OSError("wa is down")
            if self._epochs[publisher] != epoch:
                return False
            if self.ledger.get(lineage, -1) < known:
                raise RestoredEndpointError(f"wa has lost checkpoint {known}")
            self.visible += [("sent", row) for row in rows]
            self.sends += [(checkpoint_id, row) for row in rows]
            self._marks[lineage, publisher] = checkpoint_id
            self.mark(lineage, checkpoint_id)
            return True

        return bool(self.call(f"send {checkpoint_id}/{publisher}", effect))

    def snapshot(self) -> Callable[[], None]:
        """A backup: calling it restores the endpoint to what it is now."""
        kept = (list(self.visible), dict(self.ledger), dict(self._marks))

        def restore() -> None:
            self.visible, self.ledger, self._marks = (kept[0][:], dict(kept[1]), dict(kept[2]))

        return restore


class Marked(Endpoint):
    """Takes rows; the mark is a committer's, in another call (W9)."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        super().__init__(name, scheduler)
        #: job id, operator, subtask -> the last checkpoint that was delivered
        self.marks: dict[tuple[str, str, int], int] = {}

    def send(self, checkpoint_id: int, subtask: int, rows: list[int]) -> None:
        """Rows alone."""
        self.call(f"send {checkpoint_id}/{subtask}", lambda: self.visible.extend(("sent", row) for row in rows))


def short(name: str) -> str:
    """A token without what is the same in all of them."""
    parts = name.split("-")
    return "-".join(parts[4:]) if len(parts) == 8 else name
