"""Kafka, two-phase mode: open transactions in the tasks, ended by the driver after the decision (P3, P4)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.connectors.kafka import ids, marks
from holdfast.connectors.kafka.denied import denied
from holdfast.connectors.kafka.offsets import GroupOffset
from holdfast.connectors.kafka.target import RowWriter, Target
from holdfast.connectors.kafka.transactions import ONGOING, TransactionClient, TransactionRef
from holdfast.core.model import CheckpointId, Committable, Outcome
from holdfast.core.naming import Task
from holdfast.core.recovery import Leftover, may_undo
from holdfast.errors import CommitError, ConfigError, LostError
from holdfast.sinks.two_phase import TwoPhaseCommitSink

#: Kafka's error codes that say "ask again": coordinator moving or loading, markers being written.
_RETRY = {7: "request timed out", 14: "loading", 15: "no coordinator", 16: "not coordinator", 51: "concurrent"}
_CONCURRENT = 51
#: ... and those the mark has to settle: the transaction is not open any more, committed or not.
_SETTLE = {47, 48, 49, 90}


class TwoPhase(TwoPhaseCommitSink):
    """The transactions of one sink of one query run."""

    name = "kafka-two-phase"

    def __init__(self, target: Target) -> None:
        self.name = target.sink
        self._target = target
        self._run: Run | None = None
        self._driver: TransactionClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Executors get the configuration, never the driver's connection."""
        return {**self.__dict__, "_driver": None}

    # -- in the task ------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> _Transaction:
        """See TwoPhaseCommitSink."""
        return _Transaction(self._target, task)

    def write(self, txn: _Transaction, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        txn.writer.write(batch)

    def pre_commit(self, txn: _Transaction) -> Mapping[str, Any] | None:
        """See TwoPhaseCommitSink."""
        return txn.prepare()

    def abort(self, txn: _Transaction) -> None:
        """See TwoPhaseCommitSink."""
        txn.abort()

    # -- on the driver ----------------------------------------------------------------------------------------------

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink."""
        self._run = run
        self._driver = TransactionClient(self._target.settings)
        self._driver.require_transactions()

    def close(self) -> None:
        """See TwoPhaseCommitSink."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """End every transaction; what is not open any more is settled by its mark."""
        refs = [ref_of(c) for c in committables]
        codes = self._client.end(refs, commit=True)
        for _ in range(50):
            again = [i for i, code in enumerate(codes) if code == _CONCURRENT]
            if not again:
                break
            time.sleep(0.02)
            for i, code in zip(again, self._client.end([refs[i] for i in again], commit=True), strict=True):
                codes[i] = code
        outcome = self._judge(checkpoint_id, committables, codes)
        self._end_losers(refs)
        return outcome

    def _end_losers(self, winners: Sequence[TransactionRef]) -> None:
        """Abort what attempts of this run left open beside the decided ones: it would hold consumers back."""
        own = self._running.generation % ids.GENERATIONS
        losers = [ref for ref, name in self._open() if name.generation == own and ref not in winners]
        self._abort_all(losers)

    def _judge(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], codes: Sequence[int]
    ) -> Outcome:
        for committable, code in zip(committables, codes, strict=True):
            name = committable["transactional_id"]
            refused = denied(code, "end a transaction", self._target.settings, transactional_id=name)
            if refused is not None:
                raise refused
        unsettled = [c for c, code in zip(committables, codes, strict=True) if code in _SETTLE]
        found = marks.read(self._target.settings, [c["mark"] for c in unsettled]) if unsettled else {}
        lost = [c for c in unsettled if not committed_by_mark(checkpoint_id, c, found[c["mark"]])]
        if lost:
            raise self._lost(checkpoint_id, lost, len(committables))
        if any(code in _RETRY for code in codes):
            return Outcome.RETRY
        strange = [code for code in codes if code and code not in _SETTLE]
        if strange:
            raise CommitError(f"sink {self.name!r}: Kafka answered error {strange[0]} to EndTxn")
        return Outcome.ALREADY_COMMITTED if len(unsettled) == len(codes) else Outcome.COMMITTED

    def _lost(self, checkpoint_id: CheckpointId, lost: Sequence[Mapping[str, Any]], total: int) -> LostError:
        rows = sum(c["rows"] for c in lost)
        which = (
            f"{len(lost)} of {total} transactions of checkpoint {checkpoint_id} ({rows} rows, subtasks "
            f"{', '.join(str(c['subtask']) for c in lost)})"
        )
        old = time.time() - min(c["at"] for c in lost) / 1000 > marks.LAST
        if old:
            return LostError(
                f"sink {self.name!r}: {which} were prepared more than six days ago, and brokers forget by then whether "
                "such a transaction was committed: only you can find out, by looking for the rows",
                lost,
                certain=False,
            )
        return LostError(
            f"sink {self.name!r}: Kafka dropped {which} before they were committed: they were open for longer than "
            f"transaction.timeout.ms={self._target.config['transaction.timeout.ms']}, or somebody aborted them",
            lost,
        )

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """Abort this sink's open transactions of this and older generations that no record names."""
        kept = [Committable(self.name, 0, ref_of(c)) for committables in decided.values() for c in committables]
        undecided = [
            ref
            for ref, name in self._open()
            if ids.is_own_or_older(name.generation, generation)
            and may_undo(Leftover(generation, ref), generation, kept)
        ]
        self._abort_all(undecided)

    def _abort_all(self, refs: Sequence[TransactionRef]) -> None:
        """What is busy is tried again at the next sweep; a missing right is told."""
        for ref, code in zip(refs, self._client.end(refs, commit=False), strict=True):
            refused = denied(code, "abort a transaction", self._target.settings, transactional_id=ref.transactional_id)
            if refused is not None:
                raise refused

    def _open(self) -> list[tuple[TransactionRef, ids.KafkaId]]:
        """This sink's open transactions, from this checkpoint location."""
        run = self._running
        found = self._client.ongoing(ids.prefix(run.pipeline, self.name, run.lineage))
        parsed = [(t.ref, ids.parse(t.ref.transactional_id)) for t in found]
        return [(ref, name) for ref, name in parsed if name is not None]

    @property
    def _running(self) -> Run:
        if self._run is None:
            raise ConfigError(f"sink {self.name!r} is not part of a running query")
        return self._run

    @property
    def _client(self) -> TransactionClient:
        if self._driver is None:
            raise ConfigError(f"sink {self.name!r} is not part of a running query")
        return self._driver


def ref_of(committable: Mapping[str, Any]) -> TransactionRef:
    """The transaction a committable names."""
    return TransactionRef(committable["transactional_id"], committable["producer_id"], committable["epoch"])


def committed_by_mark(
    checkpoint_id: CheckpointId, committable: Mapping[str, Any], found: Sequence[GroupOffset]
) -> bool:
    """Whether the mark is that of this very transaction, or of a later checkpoint's."""
    return any(
        mark.offset > checkpoint_id + 1 or (mark.offset == checkpoint_id + 1 and mark.note == committable["nonce"])
        for mark in found
    )


class _Transaction:
    """One task's open transaction."""

    def __init__(self, target: Target, task: Task) -> None:
        self._target, self._task = target, task
        self._id = str(ids.make(task))
        self._producer = target.producer(self._id, identified=True)
        try:
            self._producer.initialise()
            self._producer.begin()
        except BaseException:
            # Nobody else would: the task has no transaction to abort yet, and its worker process lives on.
            self._producer.drop()
            raise
        self.writer = RowWriter(target, self._producer)
        self._ref: TransactionRef
        self._prepared = False

    def prepare(self) -> dict[str, Any] | None:
        task, topic = self._task, self.writer.first_topic
        assert topic is not None
        mark, nonce = ids.mark_group(self._id, task.lineage), uuid.uuid4().hex
        self._producer.mark(topic, mark, task.checkpoint_id + 1, nonce)
        self._producer.mark(topic, ids.ledger_group(task.pipeline, task.sink), task.checkpoint_id + 1, task.lineage)
        self._producer.flush()
        self._ref = TransactionRef(self._id, *self._producer.identity())
        self._producer.drop()
        self._prepared = True
        return {
            "version": 1,
            "transactional_id": self._id,
            "producer_id": self._ref.producer_id,
            "epoch": self._ref.epoch,
            "mark": mark,
            "nonce": nonce,
            "subtask": task.subtask,
            "rows": self.writer.rows,
            "servers": self._target.servers,
            "at": int(time.time() * 1000),
        }

    def abort(self) -> None:
        if not self._prepared:
            try:
                self._ref = TransactionRef(self._id, *self._producer.identity())
                self._producer.abort()
            finally:
                self._producer.drop()
        # As the driver would. After `prepare` the producer is gone and the transaction open; before it, librdkafka can
        # leave it open too: it forgets a partition whose answer arrives in the middle of its abort, and asks for none.
        with TransactionClient(self._target.settings) as client:
            if self._prepared or any(t.state == ONGOING and t.ref == self._ref for t in client.describe([self._id])):
                client.end([self._ref], commit=False)
