"""Kafka, write-ahead mode: rows are sealed in the log, then published with their mark in one transaction (P6)."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.connectors.kafka.client.denied import denied
from holdfast.connectors.kafka.client.offsets import GroupOffset
from holdfast.connectors.kafka.client.retention import in_words
from holdfast.connectors.kafka.client.transactions import TransactionClient
from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer
from holdfast.connectors.kafka.producer.refusal import ProduceError
from holdfast.connectors.kafka.sink import ids, marks
from holdfast.connectors.kafka.sink.rows import check_rows
from holdfast.connectors.kafka.sink.target import RowWriter, Target
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Outcome
from holdfast.errors import LostError, RowError
from holdfast.sinks import wal
from holdfast.sinks.write_ahead import StagedSink

logger = logging.getLogger("holdfast")
#: Producers a worker process keeps from batch to batch.
_KEPT = 16
#: Seconds to wait for the mark with one of those: it may have lost sight of brokers that were restarted meanwhile.
_PATIENCE = 5.0
#: Log files are published together until they have this many bytes: below it a transaction costs more than its rows.
#: What is decided and not published relies on it, so another value needs another name for the publishers.
MAX_TRANSACTION_BYTES = 512 * 1024


class WriteAhead(StagedSink):
    """No transaction stays open between processes, so none can time out before its commit."""

    name = "kafka-write-ahead"
    may_lag = True

    def __init__(self, target: Target) -> None:
        self.name = target.sink
        self._target = target

    def write(self, txn: wal.LogWriter, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink; what could never be published is refused before it is sealed."""
        check_rows(batch, self._target)
        super().write(txn, batch)

    def pre_commit(self, txn: wal.LogWriter) -> Mapping[str, Any] | None:
        """See TwoPhaseCommitSink; with all that says where the rows go, should the options change meanwhile (16)."""
        partitioner = self._target.config.get("partitioner")
        meant = {"topic": self._target.topic, "partitioner": partitioner, "lineage": self.run.lineage}
        return {**txn.seal(), "version": 2, **meant}

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink."""
        super().open(run)
        self._swept = False

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """See TwoPhaseCommitSink; the first time also ends what killed workers were publishing."""
        super().recover(pipeline, generation, decided)
        if self._swept:
            return
        run = self.run
        everyone = ids.sink_prefixes(run.pipeline, self.name)[1]
        with TransactionClient(self._target.settings, owner=self._target.owner) as client:
            # No one may come back to that id for long, and meanwhile it holds consumers back. Its rows are in the log;
            # whoever still publishes them finds its transaction ended, and does it again.
            wide = run.take_over or run.set_aside
            left = client.ongoing(everyone if wide else f"{everyone}{run.lineage[:12]}-")
            if not run.take_over:
                known = tuple(f"{everyone}{lineage[:12]}-" for lineage in (run.lineage, *run.set_aside))
                left = [transaction for transaction in left if transaction.ref.transactional_id.startswith(known)]
            codes = client.end([transaction.ref for transaction in left], commit=False)
        for transaction, code in zip(left, codes, strict=True):
            name = transaction.ref.transactional_id
            refused = denied(code, "abort a transaction", self._target.settings, transactional_id=name)
            if refused is not None:
                raise refused
        self._swept = True

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Publish every subtask's rows, the small ones together, in one transaction with their mark."""
        answers = tasks.map(_Publish(self._target, self.run, checkpoint_id), together(committables))
        self.forget_when_complete(checkpoint_id, committables)
        return Outcome.COMMITTED if Outcome.COMMITTED in answers else Outcome.ALREADY_COMMITTED


def together(committables: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """The files of each transaction; the first one's subtask gives it its publisher.

    The same for the same files whenever it is asked, also when an operator has resolved some of these transactions: one
    begins where the one before it is full, whatever came earlier. A retry so meets the transaction that it repeats.
    """
    groups: list[list[Mapping[str, Any]]] = []
    room = 0
    for handle in sorted(committables, key=lambda c: c["subtask"]):
        if room <= 0:
            groups.append([])
            room = MAX_TRANSACTION_BYTES
        groups[-1].append(handle)
        room -= handle["bytes"]
    return groups


@dataclass
class _Publisher:
    """A producer that owns its transactional id, and what the mark said when it last looked."""

    producer: TransactionalProducer
    #: checkpoints below this one are published
    published: CheckpointId


#: By transactional id and brokers. Another worker that initialises the same id fences the producer here; that shows
#: when it is used next, and a new one is made, which reads the mark again.
_PUBLISHERS: OrderedDict[tuple[str, str], _Publisher] = OrderedDict()


@dataclass(frozen=True)
class _Publish:
    """Runs in a task: some log files, one transaction."""

    target: Target
    run: Run
    checkpoint_id: CheckpointId

    def __call__(self, handles: Sequence[Mapping[str, Any]]) -> Outcome:
        # The publisher of whoever sealed them, also after a take-over: its mark knows whether they were published.
        lineage = handles[0].get("lineage", self.run.lineage)
        publisher_id = ids.publisher(self.run.pipeline, self.target.sink, lineage, handles[0]["subtask"])
        key = (publisher_id, self.target.servers)
        with faults.point("commit.subtask"):
            publisher = _PUBLISHERS.pop(key, None)
            if publisher is not None:
                # Still ours if the transaction goes through: whoever initialises the id in between fences it.
                try:
                    return self._publish(key, publisher, handles, patience=_PATIENCE)
                except ProduceError as error:
                    logger.info(
                        "transactional id %s is initialised again, another worker has taken it or the brokers were "
                        "away: %s",
                        publisher_id,
                        error,
                    )
            return self._publish(key, self._initialise(publisher_id, handles), handles)

    def _initialise(self, publisher_id: str, handles: Sequence[Mapping[str, Any]]) -> _Publisher:
        """Rule 9: own the id, which ends what it had open and fences all others, and only then read the mark."""
        producer = _as_sealed(self.target, handles[0]).producer(publisher_id)
        try:
            producer.initialise()
            group = ids.mark_group(publisher_id, handles[0].get("lineage", self.run.lineage))
            # Stable: what our predecessor committed counts, and its mark may be on its way. It cannot wait for long:
            # nobody else writes this group, and whatever the publisher had open is ended by now.
            found = self._read(group)
            if not found and time.time() - handles[0]["timestamp"] / 1000 > self.target.marks_last:
                self._check_remembered(handles)
        except BaseException:
            producer.drop()
            raise
        return _Publisher(producer, max((mark.offset for mark in found), default=0))

    def _check_remembered(self, handles: Sequence[Mapping[str, Any]]) -> None:
        """Brokers that remember a mark of this sink, of whatever publisher, have not forgotten those of this one."""
        # Not stable: all publishers write this group, and one that a killed worker left open would hold up all others.
        # Its value does not matter here, only that there is one; what is open can only make it newer.
        if self._read(ids.ledger_group(self.run.pipeline, self.target.sink), stable=False):
            return
        which = ", ".join(str(handle["subtask"]) for handle in handles)
        raise LostError(
            f"sink {self.target.sink!r}: rows of checkpoint {self.checkpoint_id} (subtasks {which}) were sealed more "
            f"than {in_words(self.target.marks_last)} ago, and brokers forget by then (offsets.retention.minutes) what "
            "was published: only you can find out, by looking for "
            "the rows",
            handles,
            certain=False,
        )

    def _read(self, group: str, *, stable: bool = True) -> list[GroupOffset]:
        return marks.read(self.target.settings, [group], stable=stable, owner=self.target.owner)[group]

    def _publish(
        self,
        key: tuple[str, str],
        publisher: _Publisher,
        handles: Sequence[Mapping[str, Any]],
        *,
        patience: float | None = None,
    ) -> Outcome:
        outcome = Outcome.ALREADY_COMMITTED
        try:
            if publisher.published <= self.checkpoint_id:
                self._send(key[0], publisher.producer, handles, patience)
                publisher.published = self.checkpoint_id + 1
                outcome = Outcome.COMMITTED
        except BaseException:
            # What it had open is ended by whoever initialises the id next; whether it was committed, the mark tells.
            publisher.producer.drop()
            raise
        _PUBLISHERS[key] = publisher
        while len(_PUBLISHERS) > _KEPT:
            _PUBLISHERS.popitem(last=False)[1].producer.drop()
        return outcome

    def _send(
        self,
        publisher_id: str,
        producer: TransactionalProducer,
        handles: Sequence[Mapping[str, Any]],
        patience: float | None,
    ) -> None:
        run, mark = self.run, self.checkpoint_id + 1
        files = [(_as_sealed(self.target, handle), wal.read_log(run.location, handle)) for handle in handles]
        producer.begin()
        topic = None
        try:
            for target, batches in files:
                writer = RowWriter(target, producer)
                for batch in batches:
                    writer.write(batch)
                topic = topic or writer.first_topic
            assert topic is not None
            own = ids.mark_group(publisher_id, handles[0].get("lineage", run.lineage))
            for group in (own, ids.ledger_group(run.pipeline, self.target.sink)):
                producer.mark(topic, group, mark, run.lineage, timeout=patience)
            producer.flush()
        except RowError:
            # Nobody publishes these again before somebody acts, and the open transaction would hold consumers back.
            producer.abort()
            raise
        with faults.point("commit.mark"):
            producer.commit()


def _as_sealed(target: Target, handle: Mapping[str, Any]) -> Target:
    """Where these rows were meant to go when they were sealed; version 1 did not say, so it is where they go now."""
    if handle["version"] < 2:
        return target
    return replace(target, topic=handle["topic"], config={**target.config, "partitioner": handle["partitioner"]})
