"""Kafka, two-phase mode: open transactions in the tasks, ended by the driver after the decision (P3, P4)."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.connectors.kafka.client.denied import denied
from holdfast.connectors.kafka.client.offsets import GroupOffset
from holdfast.connectors.kafka.client.retention import in_words
from holdfast.connectors.kafka.client.transactions import ONGOING, TransactionClient, TransactionRef
from holdfast.connectors.kafka.sink import ids, marks
from holdfast.connectors.kafka.sink.prepared import OpenedTransaction
from holdfast.connectors.kafka.sink.target import Target
from holdfast.core.model import CheckpointId, Committable, Outcome
from holdfast.core.naming import Task
from holdfast.core.recovery import Leftover, may_undo
from holdfast.errors import CommitError, ConfigError, LostError, SinkError
from holdfast.sinks.two_phase import TwoPhaseCommitSink

logger = logging.getLogger("holdfast")
#: Kafka's error codes that say "ask again": coordinator moving or loading, markers being written.
_RETRY = {7: "request timed out", 14: "loading", 15: "no coordinator", 16: "not coordinator", 51: "concurrent"}
_CONCURRENT = 51
#: ... and those the mark has to settle: the transaction is not open any more, committed or not.
_SETTLE = {47, 48, 49, 90}


class TwoPhase(TwoPhaseCommitSink):
    """The transactions of one sink of one query run."""

    name = "kafka-two-phase"

    def __init__(self, target: Target, *, writes: bool = True) -> None:
        """One that does not write only ends what an earlier run of the sink, in this mode, has left."""
        self.name = target.sink
        self._target, self._writes = target, writes
        self._run: Run | None = None
        self._driver: TransactionClient | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Executors get the configuration, never the driver's connection."""
        return {**self.__dict__, "_driver": None}

    # -- in the task ------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> OpenedTransaction:
        """See TwoPhaseCommitSink."""
        return OpenedTransaction(self._target, task)

    def write(self, txn: OpenedTransaction, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        txn.writer.write(batch)

    def pre_commit(self, txn: OpenedTransaction) -> Mapping[str, Any] | None:
        """See TwoPhaseCommitSink."""
        return txn.prepare()

    def abort(self, txn: OpenedTransaction) -> None:
        """See TwoPhaseCommitSink."""
        txn.abort()

    # -- on the driver ----------------------------------------------------------------------------------------------

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink."""
        self.close()
        # Once all that others have left is undone, who comes later, by a take-over of their own, is left alone.
        self._run, self._sweeps_all = run, run.take_over
        self._driver = TransactionClient(self._target.settings, owner=self._target.owner)
        if self._writes:
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
        if outcome.done:
            self._own_ledger(checkpoint_id, refs)
            self._end_losers(refs)
        return outcome

    def _own_ledger(self, checkpoint_id: CheckpointId, ended: Sequence[TransactionRef]) -> None:
        """What another checkpoint location prepared has put that one's name into the ledger: put ours back."""
        run = self._running
        names = [ids.parse(ref.transactional_id) for ref in ended]
        if any(name is not None and name.lineage != run.lineage[:12] for name in names):
            marks.take_over(run, self._target, checkpoint_id)

    def _end_losers(self, winners: Sequence[TransactionRef]) -> None:
        """Abort what attempts of this run left open beside the decided ones: it would hold consumers back."""
        run = self._running
        own = (run.lineage[:12], run.generation % ids.GENERATIONS)
        try:
            self._abort_all(
                [ref for ref, name in self._open() if (name.lineage, name.generation) == own and ref not in winners]
            )
        except SinkError as error:
            # The checkpoint is committed; the sweep before the next one does it.
            logger.info("open transactions beside those of the checkpoint are left to the next sweep: %s", error)

    def _judge(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], codes: Sequence[int]
    ) -> Outcome:
        for committable, code in zip(committables, codes, strict=True):
            name = committable["transactional_id"]
            refused = denied(code, "end a transaction", self._target.settings, transactional_id=name)
            if refused is not None:
                raise refused
        unsettled = [c for c, code in zip(committables, codes, strict=True) if code in _SETTLE]
        groups = [c["mark"] for c in unsettled]
        found = marks.read(self._target.settings, groups, owner=self._target.owner) if unsettled else {}
        lost = [c for c in unsettled if not committed_by_mark(checkpoint_id, c, found[c["mark"]])]
        if lost:
            raise self._lost(checkpoint_id, lost, len(committables))
        if any(code in _RETRY for code in codes):
            return Outcome.RETRY
        strange = [code for code in codes if code and code not in _SETTLE]
        if strange:
            raise CommitError(
                f"sink {self.name!r}: Kafka at {self._target.servers} answered error {strange[0]} to EndTxn; trying "
                "again may help, the checkpoint stays decided"
            )
        return Outcome.ALREADY_COMMITTED if len(unsettled) == len(codes) else Outcome.COMMITTED

    def _lost(self, checkpoint_id: CheckpointId, lost: Sequence[Mapping[str, Any]], total: int) -> LostError:
        rows = sum(c["rows"] for c in lost)
        which = (
            f"{len(lost)} of {total} transactions of checkpoint {checkpoint_id} ({rows} rows, subtasks "
            f"{', '.join(str(c['subtask']) for c in lost)})"
        )
        old = time.time() - min(c["at"] for c in lost) / 1000 > self._target.marks_last
        if old:
            return LostError(
                f"sink {self.name!r}: {which} were prepared more than {in_words(self._target.marks_last)} ago, and "
                "brokers forget by then (offsets.retention.minutes) whether such a transaction was committed: only you "
                "can find out, by looking for the rows",
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
        """Abort this sink's open transactions of this and older generations that no record names.

        After a take-over also those of other checkpoint locations: what they prepared would hold consumers back.
        """
        kept = [Committable(self.name, 0, ref_of(c)) for committables in decided.values() for c in committables]
        own = self._running.lineage[:12]
        undecided = [
            ref
            for ref, name in self._open()
            if (name.lineage != own or ids.is_own_or_older(name.generation, generation))
            and may_undo(Leftover(generation, ref), generation, kept)
        ]
        self._abort_all(undecided)
        self._sweeps_all = False

    def still_prepared(self, committables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """See TwoPhaseCommitSink: open, and by the same producer and epoch; another is another task's (rule 14)."""
        described = self._client.describe([c["transactional_id"] for c in committables])
        held = {transaction.ref for transaction in described if transaction.state == ONGOING}
        return [c for c in committables if ref_of(c) in held]

    def _abort_all(self, refs: Sequence[TransactionRef]) -> None:
        """What is busy is tried again at the next sweep; a missing right is told."""
        for ref, code in zip(refs, self._client.end(refs, commit=False), strict=True):
            refused = denied(code, "abort a transaction", self._target.settings, transactional_id=ref.transactional_id)
            if refused is not None:
                raise refused

    def _open(self) -> list[tuple[TransactionRef, ids.KafkaId]]:
        """This sink's open transactions, from this checkpoint location; after a take-over from all of them."""
        run = replace(self._running, take_over=self._sweeps_all)
        everyone, _ = ids.sink_prefixes(run.pipeline, self.name)
        wide = run.take_over or run.set_aside
        found = self._client.ongoing(everyone if wide else ids.prefix(run.pipeline, self.name, run.lineage))
        parsed = [(t.ref, ids.parse(t.ref.transactional_id)) for t in found]
        own = run.lineage[:12]
        return [(r, name) for r, name in parsed if name and (name.lineage == own or run.takes_from(name.lineage))]

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
