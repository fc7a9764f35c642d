"""A sink whose endpoint keeps a ledger, for tests of what a start compares with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoint.ports import Run
from holdfast.core.model import Outcome
from holdfast.sinks.ledger import check_ledger
from tests.unit.inprocess import Endpoint, PreparingSink


class Ledger:
    """What an endpoint knows of deliveries: {lineage: last checkpoint}. A copy is a backup."""

    def __init__(self, marks: Mapping[str, int] | None = None) -> None:
        self.marks = dict(marks or {})

    def copy(self) -> Ledger:
        return Ledger(self.marks)


class LedgerSink(PreparingSink):
    """A sink whose endpoint keeps a ledger, which a start compares with the log."""

    def __init__(self, endpoint: Endpoint, ledger: Ledger, name: str = "ledger") -> None:
        super().__init__(endpoint, name)
        self.ledger, self.lineage = ledger, ""

    def open(self, run: Run) -> None:
        super().open(run)
        self.lineage = run.lineage
        if run.take_over:
            self.ledger.marks = {}
        check_ledger(run, f"the ledger of sink {self.name!r}", self.ledger.marks, sink=self.name)

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]], tasks: Any) -> Outcome | None:
        outcome = super().commit(checkpoint_id, committables, tasks)
        self.ledger.marks[self.lineage] = checkpoint_id
        return outcome
