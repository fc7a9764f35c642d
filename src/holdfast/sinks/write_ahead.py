"""Sinks that seal rows in a log first and deliver them when the checkpoint is decided."""

from __future__ import annotations

import copy
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Committed, Run, Tasks
from holdfast.checkpoint.storage import open_storage
from holdfast.committers.base import CheckpointCommitter
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Outcome, PendingCheckpoint
from holdfast.core.naming import Task, job_id, operator_id
from holdfast.core.options import Limit, checked
from holdfast.errors import ConfigError, MarkError
from holdfast.sinks import wal
from holdfast.sinks.ledger import check_ledger, check_subtasks
from holdfast.sinks.subtask import make_task, running
from holdfast.sinks.two_phase import TwoPhaseCommitSink

logger = logging.getLogger("holdfast")
#: Sends the rows of a handle; True when the endpoint took them.
Send = Callable[[Mapping[str, Any], Iterator[pa.RecordBatch]], bool]
#: seconds before a mark is tried again, and for how long at most
MARK_WAITS, MARK_LONGEST = (0.1, 0.5, 2.0), 20.0


class StagedSink(TwoPhaseCommitSink):
    """A sink whose tasks seal their rows in the write-ahead log; a subclass says what `commit` does with them."""

    _run: Run | None = None

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink."""
        self._run = run
        self._delivered = wal.Delivered()

    @property
    def run(self) -> Run:
        """The query run this sink is part of."""
        if self._run is None:
            raise ConfigError(f"sink {self.name!r} is not part of a running query")
        return self._run

    def shared_paths(self, location: str) -> Sequence[str]:
        """See TwoPhaseCommitSink; tasks write the write-ahead log, and the driver sweeps it."""
        return (location,)

    def begin(self, task: Task) -> wal.LogWriter:
        """See TwoPhaseCommitSink."""
        return wal.LogWriter(task)

    def write(self, txn: wal.LogWriter, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        txn.write(batch)

    def pre_commit(self, txn: wal.LogWriter) -> Mapping[str, Any] | None:
        """See TwoPhaseCommitSink."""
        return txn.seal()

    def abort(self, txn: wal.LogWriter) -> None:
        """See TwoPhaseCommitSink."""
        txn.discard()

    def still_prepared(self, committables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Those whose file is in the log, whole (rule 14)."""
        storage = open_storage(self.run.location)
        return [c for c in committables if wal.is_there(storage, c)]

    def rows_of(self, committables: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch] | None:
        """See TwoPhaseCommitSink; rows as they were sealed, of the files that are there."""
        return wal.read_what_is_left(self.run.location, committables)

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """See TwoPhaseCommitSink; the log is this location's own, so a take-over finds nothing of others here."""
        self.sweep_log(generation, decided)

    def sweep_log(self, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]) -> None:
        """Remove files of the log that are not in `decided`, of this and older generations; touches no endpoint."""
        wal.sweep(open_storage(self.run.location), self.name, generation, decided)

    def forget_when_complete(self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]]) -> None:
        """Remove these rows from the log, but only once their commit is recorded."""
        self._delivered.add(checkpoint_id, committables)

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """See TwoPhaseCommitSink."""
        self._delivered.discard(self.run.location, checkpoint_id)


class WriteAheadSink(StagedSink):
    """Exactly-once into an endpoint whose sends are idempotent, at-least-once into any other.

    Needs from the endpoint: nothing but that sending the same rows again is harmless. A crash between a send and the
    committer's mark, or a paused driver that wakes up, sends that checkpoint again (W9); the rows, their order and
    `checkpoint_id` are the same each time. The endpoint may be down: the query goes on and the log grows.

    An author writes `send_values`. Delivery is by checkpoint, then subtask; with `ordered = False` the subtasks of one
    checkpoint are delivered in parallel.
    """

    may_lag: bool = True
    ordered: bool = True
    #: subtask -> the newest checkpoint that is marked, as this run knows it
    _marked: Mapping[int, CheckpointId] = MappingProxyType({})
    #: whether the committer can tell marks that are absent from marks that were lost
    _remembers: bool = False

    @checked
    def __init__(
        self,
        *,
        committer: CheckpointCommitter,
        max_pending: Limit = 1000,
        max_pending_bytes: Limit = 10 * 1024**3,
    ) -> None:
        # A copy: ids are set on it, and one committer given to two sinks would take the one's marks for the other's.
        self.committer = copy.copy(committer)
        self.max_pending, self.max_pending_bytes = max_pending, max_pending_bytes

    def __getstate__(self) -> dict[str, Any]:
        """What is marked is the driver's business: tasks do not carry it."""
        return {**self.__dict__, "_marked": {}}

    @abstractmethod
    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: CheckpointId, timestamp: int) -> bool:
        """Send one subtask's rows; runs in a task. False or an exception: not delivered, try again later."""

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink."""
        super().open(run)
        self.committer.set_job_id(job_id(run.pipeline, run.lineage))
        self.committer.set_operator_id(operator_id(self.name))
        self.committer.create_resource()
        self.committer.open()
        try:
            if run.take_over:
                self.committer.take_over()
            self._compare(run)
        finally:
            self.committer.close()

    def compare_marks(self, run: Run) -> None:
        """Refuse marks that are another location's, or not of this moment; where there are none, none is made."""
        committer = copy.copy(self.committer)
        committer.set_job_id(job_id(run.pipeline, run.lineage or "0" * 32))
        committer.set_operator_id(operator_id(self.name))
        if not committer.made:
            check_ledger(run, self._where, {}, sink=self.name)
            return
        sink = copy.copy(self)
        sink.committer = committer
        committer.open()
        try:
            sink._compare(run)
        finally:
            committer.close()

    def _compare(self, run: Run) -> None:
        ledger = self.committer.progress()
        self._remembers, self._marked = ledger is not None, {}
        if ledger is not None:
            check_ledger(run, self._where, ledger, sink=self.name)
            if not run.take_over:
                check_subtasks(run, self._where, self.name, self.committer.is_checkpoint_committed)
                self._marked = dict(run.committed[self.name].subtasks) if self.name in run.committed else {}

    def shared_paths(self, location: str) -> Sequence[str]:
        """See TwoPhaseCommitSink; marks are written in tasks and read by the driver."""
        return (*super().shared_paths(location), *self.committer.shared_paths())

    def _groups(self, handles: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[Mapping[str, Any]]]:
        """The handles of a checkpoint as they are dealt out to tasks; those of one group are delivered in order."""
        return [handles] if self.ordered else [[handle] for handle in handles]

    def _sending(self, handles: Sequence[Mapping[str, Any]], checkpoint_id: CheckpointId) -> Send:
        """What sends the rows of one handle of a task's group; for sinks whose handles say how to send them."""
        return lambda handle, values: self.send_values(values, checkpoint_id, handle["timestamp"])

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Deliver the sealed rows of all subtasks, then forget them; RETRY when the endpoint did not take them."""
        handles = sorted(committables, key=lambda c: pending(checkpoint_id, c))
        marked = {handle["subtask"]: self._marked.get(handle["subtask"], -1) for handle in handles}
        deliver = _Deliver(self, self.run, checkpoint_id, marked)
        with wal.naming_lost(self.run.location, handles):
            answers = [answer for group in tasks.map(deliver, self._groups(handles)) for answer in group]
        if len(answers) < len(handles) or not all(answer.done for answer in answers):
            return Outcome.RETRY
        if self._remembers:
            self._marked = {**self._marked, **{s: max(last, checkpoint_id) for s, last in marked.items()}}
        self.forget_when_complete(checkpoint_id, committables)
        return Outcome.COMMITTED if Outcome.COMMITTED in answers else Outcome.ALREADY_COMMITTED

    @property
    def _where(self) -> str:
        """Whose ledger it is, for errors."""
        return f"{self._marks} of sink {self.name!r}"

    @property
    def _marks(self) -> str:
        """Where the marks are, for errors."""
        kind, address = type(self.committer).__name__, self.committer.address
        return f"the committer ({kind} at {address})" if address else f"the committer ({kind})"


@dataclass(frozen=True)
class _Deliver:
    """Runs in a task: deliver handles in order, stop at the first that is not taken (W5)."""

    sink: WriteAheadSink
    run: Run
    checkpoint_id: CheckpointId
    #: subtask -> what is marked, unless the marks are an older copy by now
    marked: Mapping[int, CheckpointId] = field(default_factory=dict)

    def __call__(self, handles: Sequence[Mapping[str, Any]]) -> list[Outcome]:
        committer = self.sink.committer
        committer.open()
        try:
            answers: list[Outcome] = []
            send = self.sink._sending(handles, self.checkpoint_id)
            for handle in handles:
                answers.append(self._deliver(committer, handle, send))
                if not answers[-1].done:
                    break
            return answers
        finally:
            committer.close()

    def _deliver(self, committer: CheckpointCommitter, handle: Mapping[str, Any], send: Send) -> Outcome:
        subtask = handle["subtask"]
        if committer.is_checkpoint_committed(subtask, self.checkpoint_id):
            return Outcome.ALREADY_COMMITTED
        self._check_marked(committer, subtask)
        run = self.run
        task = make_task(run, self.sink.name, self.checkpoint_id, subtask, time.time_ns(), handle["timestamp"])
        values = wal.read_log(run.location, handle)
        with faults.point("commit.subtask"), running(task):
            taken = send(handle, values)
        if taken is not True:
            return Outcome.RETRY
        with faults.point("commit.mark"):
            self._mark(committer, subtask)
        return Outcome.COMMITTED

    def _check_marked(self, committer: CheckpointCommitter, subtask: int) -> None:
        """Marks can become an older copy at any time, and a new mark would hide for ever what they lack (rule 15)."""
        last = self.marked.get(subtask, -1)
        if last >= 0:
            known = replace(self.run, committed={self.sink.name: Committed(last, 0, {subtask: last})})
            check_subtasks(known, self.sink._where, self.sink.name, committer.is_checkpoint_committed)

    def _mark(self, committer: CheckpointCommitter, subtask: int) -> None:
        """Write the mark, tried again by itself; a query that cannot would send these rows for ever (D10)."""
        began = time.monotonic()
        for wait in (*MARK_WAITS, None):
            try:
                committer.commit_checkpoint(subtask, self.checkpoint_id)
                return
            except Exception as error:  # noqa: BLE001  whatever a committer raises is told below
                failure = error
            if wait is None or time.monotonic() - began > MARK_LONGEST:
                break
            logger.warning("%s; trying the mark again", self._unmarked(subtask, failure))
            time.sleep(wait)
            self._reopen(committer)
        raise MarkError(
            f"{self._unmarked(subtask, failure)}. The query stops here, because it would send these rows again and "
            "again. Make the marks writable (free the disk, give the rights back, bring the database up), then start "
            "the query: it sends this checkpoint of this subtask once more, since nothing says that it was sent (W9)"
        ) from failure

    def _unmarked(self, subtask: int, why: Exception) -> str:
        return (
            f"sink {self.sink.name!r}: checkpoint {self.checkpoint_id}, subtask {subtask} was sent, but "
            f"{self.sink._marks} could not write its mark: {type(why).__name__}: {why}"
        )

    @staticmethod
    def _reopen(committer: CheckpointCommitter) -> None:
        """A connection that broke stays broken; what goes wrong here is met again, and told, by the next try."""
        with suppress(Exception):
            committer.close()
        with suppress(Exception):
            committer.open()


def pending(checkpoint_id: CheckpointId, handle: Mapping[str, Any]) -> PendingCheckpoint:
    """A committable of the log as Flink's pending checkpoint (W3)."""
    return PendingCheckpoint(checkpoint_id, handle["subtask"], handle["timestamp"], handle["handle"])
