"""The transactional Kafka sink, two-phase mode (P3, P4)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.connectors.kafka import ids
from holdfast.connectors.kafka.arrow import by_topic, check_schema, to_messages
from holdfast.connectors.kafka.client import admin, check_servers
from holdfast.connectors.kafka.rdkafka import TransactionalProducer
from holdfast.connectors.kafka.transactions import TransactionClient, TransactionRef
from holdfast.core.model import CheckpointId, Committable, Outcome
from holdfast.core.naming import Task, check_name
from holdfast.core.recovery import Leftover, may_undo
from holdfast.errors import CommitError, ConfigError, LostError, RowError
from holdfast.sinks.two_phase import TwoPhaseCommitSink

#: Kafka's error codes that say "ask again": coordinator moving or loading, markers being written.
_RETRY = {7: "request timed out", 14: "loading", 15: "no coordinator", 16: "not coordinator", 51: "concurrent"}
#: ... and those the mark has to settle: the transaction is not open any more, committed or not.
_SETTLE = {47, 48, 49, 90}
_FORBIDDEN = 53
_RESERVED = ("transactional.id", "bootstrap.servers", "enable.idempotence")


class KafkaSink(TwoPhaseCommitSink):
    """Exactly-once into Kafka: each task's rows are one transaction, which the driver ends after the decision.

    Needs a broker of version 4 or newer, and a `transaction.timeout.ms` (default 15 minutes, the brokers' limit) longer
    than a batch and any outage between decision and commit. Read-committed consumers see the rows of a subtask whole.
    The columns are those of Spark's own sink: value, and optionally key, topic, partition.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str | None = None,
        *,
        config: Mapping[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        self.servers = check_servers(bootstrap_servers)
        if topic is not None and (not isinstance(topic, str) or not topic):
            raise ConfigError(f"topic must be a name, not {topic!r}")
        for key in config or ():
            if key in _RESERVED:
                raise ConfigError(f"config: {key} is set by the sink")
        self.topic = topic
        self.config = {"transaction.timeout.ms": 900_000, "partitioner": "murmur2_random", **(config or {})}
        self.transaction_timeout = int(self.config["transaction.timeout.ms"]) / 1000
        self.name = check_name("name", name or f"kafka-{topic or 'rows'}"[:100])
        self._run: Run | None = None
        self._driver: TransactionClient | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """For any client of this sink's brokers."""
        return {**self.config, "bootstrap.servers": self.servers}

    def __getstate__(self) -> dict[str, Any]:
        """Executors get the configuration, never the driver's connection."""
        return {**self.__dict__, "_driver": None}

    # -- in the task ------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> _Transaction:
        """See TwoPhaseCommitSink."""
        return _Transaction(self, task)

    def write(self, txn: _Transaction, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        txn.write(batch)

    def pre_commit(self, txn: _Transaction) -> Mapping[str, Any] | None:
        """See TwoPhaseCommitSink."""
        return txn.prepare()

    def abort(self, txn: _Transaction) -> None:
        """See TwoPhaseCommitSink."""
        txn.abort()

    # -- on the driver ----------------------------------------------------------------------------------------------

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink."""
        if run.schema is not None:
            check_schema(run.schema, self.topic)
        self._run = run
        self._driver = TransactionClient(self.settings)

    def close(self) -> None:
        """See TwoPhaseCommitSink."""
        if self._driver is not None:
            self._driver.close()
            self._driver = None

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """End every transaction; what is not open any more is settled by its mark."""
        client = self._client
        refs = [_ref(c) for c in committables]
        codes = client.end(refs, commit=True)
        for _ in range(50):
            again = [i for i, code in enumerate(codes) if code == 51]
            if not again:
                break
            time.sleep(0.02)
            for i, code in zip(again, client.end([refs[i] for i in again], commit=True), strict=True):
                codes[i] = code
        outcome = self._judge(checkpoint_id, committables, codes)
        self._end_losers(refs)
        return outcome

    def _judge(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], codes: Sequence[int]
    ) -> Outcome:
        if any(code == _FORBIDDEN for code in codes):
            raise ConfigError(f"sink {self.name!r}: no permission for its transactional ids: grant WRITE and DESCRIBE")
        unsettled = [c for c, code in zip(committables, codes, strict=True) if code in _SETTLE]
        marks = self._client.marks([c["mark"] for c in unsettled]) if unsettled else {}
        lost = [c for c in unsettled if marks.get(c["mark"], 0) <= checkpoint_id]
        if lost:
            raise LostError(
                f"sink {self.name!r}: Kafka dropped {len(lost)} of {len(committables)} transactions of checkpoint "
                f"{checkpoint_id} ({sum(c['rows'] for c in lost)} rows, subtasks "
                f"{', '.join(str(c['subtask']) for c in lost)}) before they were committed: they were open for longer "
                f"than transaction.timeout.ms={self.config['transaction.timeout.ms']}. The decision is kept; see "
                "docs/operations.md for the ways out"
            )
        if any(code in _RETRY for code in codes):
            return Outcome.RETRY
        strange = [code for code in codes if code and code not in _SETTLE]
        if strange:
            raise CommitError(f"sink {self.name!r}: Kafka answered error {strange[0]} to EndTxn")
        return Outcome.ALREADY_COMMITTED if len(unsettled) == len(codes) else Outcome.COMMITTED

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """Abort this sink's open transactions of this and older generations that no record names."""
        kept = [Committable(self.name, 0, _ref(c)) for committables in decided.values() for c in committables]
        undecided = [
            ref
            for ref, found in self._open()
            if ids.is_own_or_older(found.generation, generation)
            and may_undo(Leftover(generation, ref), generation, kept)
        ]
        self._client.end(undecided, commit=False)

    def _end_losers(self, winners: Sequence[TransactionRef]) -> None:
        """Abort what attempts of this run left open beside the decided ones: it would hold consumers back."""
        own = self._running.generation % ids.GENERATIONS
        losers = [ref for ref, found in self._open() if found.generation == own and ref not in winners]
        self._client.end(losers, commit=False)

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


def _ref(committable: Mapping[str, Any]) -> TransactionRef:
    return TransactionRef(committable["transactional_id"], committable["producer_id"], committable["epoch"])


class _Transaction:
    """One task's open transaction."""

    def __init__(self, sink: KafkaSink, task: Task) -> None:
        self._sink, self._task = sink, task
        self._id = str(ids.make(task))
        config = {**sink.settings, "transactional.id": self._id}
        self._producer = TransactionalProducer(config, timeout=60)
        try:
            self._producer_id, self._epoch = self._producer.begin()
        except BaseException:
            # Nobody else would: the task has no transaction to abort yet, and its worker process lives on.
            self._producer.drop()
            raise
        self._rows = 0
        self._first_topic: str | None = None
        self._counts: dict[str, int] = {}
        self._prepared = False

    def write(self, batch: pa.RecordBatch) -> None:
        for topic, rows in by_topic(batch, self._sink.topic):
            self._first_topic = self._first_topic or topic
            messages, partitioned, alive = to_messages(rows, self._partitions(topic))
            self._producer.produce(topic, messages, partitioned=partitioned)
            del alive
            self._rows += rows.num_rows

    def _partitions(self, topic: str) -> int:
        """How many partitions a topic has; asked once a task, and only where rows name theirs or the topic is new."""
        if topic not in self._counts:
            found = admin(self._sink.settings).list_topics(topic, timeout=30)
            if found.topics[topic].error is not None:
                raise RowError(
                    f"sink {self._sink.name!r}: topic {topic!r} cannot be written: {found.topics[topic].error.str()}. "
                    "Create it, or grant DESCRIBE and WRITE on it"
                )
            self._counts[topic] = len(found.topics[topic].partitions)
        return self._counts[topic]

    def prepare(self) -> dict[str, Any] | None:
        assert self._first_topic is not None
        mark = ids.mark_group(self._id, self._task.lineage)
        self._producer.mark(self._first_topic, mark, self._task.checkpoint_id + 1)
        self._producer.flush()
        self._producer.drop()
        self._prepared = True
        return {
            "version": 1,
            "transactional_id": self._id,
            "producer_id": self._producer_id,
            "epoch": self._epoch,
            "mark": mark,
            "subtask": self._task.subtask,
            "rows": self._rows,
        }

    def abort(self) -> None:
        if self._prepared:
            # The producer is gone and the transaction open: end it as the driver would.
            with TransactionClient(self._sink.settings) as client:
                client.end([TransactionRef(self._id, self._producer_id, self._epoch)], commit=False)
            return
        try:
            self._producer.abort()
        finally:
            self._producer.drop()
