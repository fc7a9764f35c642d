"""Sinks for the simulated endpoints; what can be real in them is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.committers.base import CheckpointCommitter
from holdfast.core.model import Committable, Outcome
from holdfast.core.naming import Task, parse_job_id, parse_token
from holdfast.core.recovery import Leftover, may_undo
from holdfast.errors import LostError, RowError
from holdfast.sinks import wal
from holdfast.sinks.ledger import check_ledger
from holdfast.sinks.subtask import current_task
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.sinks.write_ahead import StagedSink, WriteAheadSink

from .endpoints import Ledgered, Marked, Transactions

#: a row that no endpoint takes
POISON = 666


def ids(batch: pa.RecordBatch) -> list[int]:
    return batch.column("id").to_pylist()


class TransactionSink(TwoPhaseCommitSink):
    """Two-phase, repairable, with transactions that expire."""

    name = "tx"
    repairable = True
    #: what the ledger must know of, as commit records say
    expects: str | None = "tx"
    transaction_timeout = Transactions.timeout

    def __init__(self, endpoint: Transactions, table: str = "a") -> None:
        self.endpoint, self.table = endpoint, table
        self.run: Run | None = None
        self.state: Any = None
        self._snapshots: dict[int, Any] = {}

    def open(self, run: Run) -> None:
        ledger = self.endpoint.call("ledger", lambda: dict(self.endpoint.ledger), write=False, faults=("fail",))
        if run.take_over:
            for other in [lineage for lineage in ledger if lineage != run.lineage]:
                self.endpoint.call("forget", lambda o=other: self.endpoint.ledger.pop(o, None))
                ledger.pop(other)
        check_ledger(run, "tx", self.known(ledger, run), sink=self.expects)
        self.run = run

    def known(self, ledger: Mapping[str, int], run: Run) -> Mapping[str, int]:
        return ledger

    def named(self, task: Task) -> str:
        return task.token

    def begin(self, task: Task) -> list[Any]:
        name = self.named(task)
        return [name, self.endpoint.begin(name), task.lineage]

    def write(self, txn: list[Any], batch: pa.RecordBatch) -> None:
        txn += ids(batch)

    def pre_commit(self, txn: list[Any]) -> dict[str, Any]:
        name, epoch, lineage, *rows = txn
        self.endpoint.flush(name, epoch, rows)
        return {"version": 1, "name": name, "epoch": epoch, "lineage": lineage, "table": self.table}

    def abort(self, txn: list[Any]) -> None:
        self.endpoint.abort(txn[0], txn[1])

    def target(self, committable: Mapping[str, Any]) -> str:
        return str(committable["table"])

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]], tasks: Tasks) -> Outcome | None:
        gone, answers = [], []
        for c in committables:
            answers.append(self.endpoint.end(c["name"], c["epoch"], self.target(c), c["lineage"], checkpoint_id))
            if answers[-1] == "gone":
                gone.append(c)
        if gone:
            raise LostError(f"{len(gone)} transactions of checkpoint {checkpoint_id} are gone", gone)
        self.state = self._snapshots.pop(checkpoint_id, self.state)
        return Outcome.COMMITTED if "committed" in answers else Outcome.ALREADY_COMMITTED

    def recover(self, pipeline: str, generation: int, decided: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        assert self.run is not None
        kept = [Committable(self.name, 0, (c["name"], c["epoch"])) for cs in decided.values() for c in cs]
        for name, epoch in self.endpoint.list_open():
            task = parse_token(name)
            if task is None or task.pipeline != pipeline or task.sink != self.name:
                continue
            foreign = task.lineage != self.run.lineage
            theirs = foreign and self.run.takes_from(task.lineage)
            by = -1 if theirs else task.generation
            if (not foreign or theirs) and self.may_undo(Leftover(by, (name, epoch)), generation, kept):
                self.endpoint.abort(name, epoch)

    def may_undo(self, found: Leftover, generation: int, kept: Sequence[Committable]) -> bool:
        return may_undo(found, generation, kept)

    def still_prepared(self, committables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        there = self.endpoint.list_open()
        return [c for c in committables if (c["name"], c["epoch"]) in there]

    # operator state, with something that comes due without rows (checkpoint/maintenance.py)

    def initialize_state(self, state: Any) -> None:
        self.state = state or {"checkpoint": -1, "plan": 0}

    def snapshot_state(self, checkpoint_id: int) -> Any:
        self._snapshots[checkpoint_id] = {"checkpoint": checkpoint_id, "plan": self.state["plan"]}
        return self._snapshots[checkpoint_id]

    def revise_state(self, now: float, *, last: bool) -> Any:
        if not last or self.state["checkpoint"] < 0:
            return None
        return {**self.state, "plan": self.state["plan"] + 1}

    def act_on_state(self, tasks: Tasks) -> None:
        plan = self.state["plan"]
        if plan:
            self.endpoint.act(plan)


class PublishStep(StrEnum):
    """The steps of publishing a sealed checkpoint to an endpoint that holds the mark itself.

    Of this sink: the shipped ones have the same order in their code, where tests with real servers see to it.
    """

    INITIALISE = "initialise the writer, which fences every older writer of that name"
    READ_MARK = "read the mark"
    SEND = "send the rows and the mark in one transaction"


#: Rule 9: the mark is read after older writers are fenced, else two drivers read the same mark and both send.
PUBLISH: tuple[PublishStep, ...] = (PublishStep.INITIALISE, PublishStep.READ_MARK, PublishStep.SEND)


class LedgerSink(StagedSink):
    """Write-ahead; the endpoint holds the mark, so that rows are sent once whatever happens. May lag."""

    name = "wa"
    may_lag = True
    expects: str | None = "wa"
    publish: Sequence[PublishStep] = PUBLISH

    def __init__(self, endpoint: Ledgered) -> None:
        self.endpoint = endpoint
        #: the newest checkpoint that this run knows to be there
        self.sent = -1

    def open(self, run: Run) -> None:
        super().open(run)
        ledger = self.endpoint.call("ledger", lambda: dict(self.endpoint.ledger), write=False, faults=("fail",))
        if run.take_over:
            for other in [lineage for lineage in ledger if lineage != run.lineage]:
                self.endpoint.call("forget", lambda o=other: self.endpoint.ledger.pop(o, None))
                ledger.pop(other)
        check_ledger(run, "wa", self.known(ledger, run), sink=self.expects)
        self.sent = ledger.get(self.lineage(run), -1)

    def expected(self) -> int:
        """What must still be there when more is sent (15): it can come back as an older copy at any time."""
        return self.sent

    def known(self, ledger: Mapping[str, int], run: Run) -> Mapping[str, int]:
        return ledger

    def lineage(self, run: Run) -> str:
        return run.lineage

    def write(self, txn: wal.LogWriter, batch: pa.RecordBatch) -> None:
        self.check(ids(batch))
        super().write(txn, batch)

    def check(self, rows: Sequence[int]) -> None:
        if POISON in rows:
            raise RowError(f"sink {self.name!r}, column id: {POISON} cannot be taken by any endpoint")

    def encode(self, rows: Sequence[int]) -> None:
        """Nothing is left to be encoded: the task has proved that it can be."""

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]], tasks: Tasks) -> Outcome | None:
        run, known = self.run, self.expected()

        def deliver(handle: Mapping[str, Any]) -> Outcome:
            return self._publish(run, checkpoint_id, handle, known)

        for handle in sorted(committables, key=lambda c: c["subtask"]):
            (answer,) = tasks.map(deliver, [handle])
            if not answer.done:
                return answer
        self.sent = max(self.sent, checkpoint_id)
        self.forget_when_complete(checkpoint_id, committables)
        return Outcome.COMMITTED

    def _publish(self, run: Run, checkpoint_id: int, handle: Mapping[str, Any], known: int) -> Outcome:
        epoch, publisher, lineage = -1, handle["subtask"], self.lineage(run)
        # At once, as a reader that has the file open keeps its rows when another driver removes it.
        rows = [row for batch in wal.read_log(run.location, handle) for row in ids(batch)]
        for step in self.publish:
            if step is PublishStep.INITIALISE:
                epoch = self.endpoint.initialise(publisher)
            elif step is PublishStep.READ_MARK:
                if self.endpoint.read_mark(lineage, publisher) >= checkpoint_id:
                    return Outcome.ALREADY_COMMITTED
            else:
                self.encode(rows)
                if not self.endpoint.send(epoch, lineage, publisher, checkpoint_id, rows, known=known):
                    return Outcome.RETRY
        return Outcome.COMMITTED


class OverlappingSink(LedgerSink):
    """As `ledger` sinks of databases: commits beside the tasks of the next checkpoint, never further behind."""

    name = "wa"
    may_lag = False
    overlaps = True


class MemoryCommitter(CheckpointCommitter):
    """A committer beside its endpoint, not in the endpoint's transaction."""

    def __init__(self, endpoint: Marked) -> None:
        self.endpoint = endpoint

    def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
        key = (self.job_id, self.operator_id, subtask)

        def effect() -> None:
            self.endpoint.marks[key] = max(checkpoint_id, self.endpoint.marks.get(key, -1))

        self.endpoint.call(f"mark {checkpoint_id}/{subtask}", effect)

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: int) -> bool:
        key = (self.job_id, self.operator_id, subtask)
        known = self.endpoint.call(
            f"ask {checkpoint_id}/{subtask}", lambda: self.endpoint.marks.get(key, -1), write=False, faults=("fail",)
        )
        return bool(known >= checkpoint_id)

    def progress(self) -> Mapping[str, int]:
        found: dict[str, int] = {}
        for (job, _, _), checkpoint_id in self.endpoint.marks.items():
            pipeline, lineage = parse_job_id(job) or ("", "")
            if pipeline == self._pipeline():
                found[lineage] = max(checkpoint_id, found.get(lineage, -1))
        return found

    def take_over(self) -> None:
        for key in [key for key in self.endpoint.marks if key[0] != self.job_id]:
            del self.endpoint.marks[key]


class SendingSink(WriteAheadSink):
    """The real write-ahead sink with a committer beside the endpoint: at-least-once, and W9 says when."""

    name = "wa"

    def __init__(self, endpoint: Marked) -> None:
        super().__init__(committer=MemoryCommitter(endpoint))
        self.endpoint = endpoint

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: int, timestamp: int) -> bool:
        rows = [row for batch in values for row in ids(batch)]
        self.endpoint.send(checkpoint_id, current_task().subtask, rows)
        return True


def without_generation(task: Task) -> Task:
    """What a name would be that says too little."""
    return replace(task, generation=0, attempt=0)
