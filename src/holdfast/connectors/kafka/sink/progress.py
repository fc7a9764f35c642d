"""The progress topic: one message a checkpoint, after all of its rows, so that readers can take whole checkpoints.

A message is sent in a transaction with its mark (rule 9): the transactional id is initialised, which ends what it had
open and fences every other driver; then the mark says whether this checkpoint was told already.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run
from holdfast.checkpoint.storage import open_storage
from holdfast.connectors.kafka.client.settings import admin
from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer
from holdfast.connectors.kafka.producer.refusal import ProduceError
from holdfast.connectors.kafka.sink import ids, marks
from holdfast.connectors.kafka.sink.target import RowWriter, Target
from holdfast.connectors.kafka.source.whole import WholeCheckpoint, last_progress
from holdfast.core import faults
from holdfast.core.model import CheckpointId
from holdfast.errors import SinkError, SourceError

logger = logging.getLogger("holdfast")
#: The number of its transactional id among those of the write-ahead mode: so sweeps and `holdfast transactions` see it
PUBLISHER = 999_999_999
_TIMEOUT = 30.0
#: topic -> partition -> (first offset, the one after the last)
Ranges = dict[str, dict[int, tuple[int, int]]]


@dataclass
class Progress:
    """Tells of the checkpoints of one sink, on the driver."""

    target: Target
    run: Run
    _topic: str = ""
    _producer: TransactionalProducer | None = None
    #: checkpoints below this one are told
    _told: CheckpointId = 0
    #: topic -> partition -> where the last checkpoint that was told ended
    _ends: dict[str, dict[int, int]] = field(default_factory=dict)

    def tell(self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]]) -> None:
        """All rows of this checkpoint are committed: say so, once, where it was decided to (rule 16)."""
        with faults.point("commit.subtask", "progress"):
            topic = committables[0]["progress_topic"]
            if self._producer is not None and topic == self._topic:
                try:
                    self._tell(self._producer, checkpoint_id, committables)
                    return
                except ProduceError as error:
                    logger.info("the progress of sink %s is told by a new producer: %s", self.target.sink, error)
            self.close()
            self._tell(self._initialise(topic), checkpoint_id, committables)

    def close(self) -> None:
        """Whoever tells next looks at the mark."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.drop()

    def _initialise(self, topic: str) -> TransactionalProducer:
        """Rule 9: own the id, which ends what it had open and fences all others, and only then look how far it is."""
        publisher = ids.publisher(self.run.pipeline, self.target.sink, self.run.lineage, PUBLISHER)
        producer, group = self.target.producer(publisher), self._group
        try:
            producer.initialise()
            found = marks.read(self.target.settings, [group], stable=True, owner=self.target.owner)[group]
            told = max((mark.offset for mark in found if mark.topic == topic), default=0)
            last = self._last(topic)
            if last is not None and last.lineage == self.run.lineage:
                told = max(told, last.checkpoint_id + 1)
            if told and (last is None or (last.lineage == self.run.lineage and last.checkpoint_id + 1 < told)):
                # Without it nobody knows where this checkpoint begins, and a reader would see rows twice.
                raise self._unknown(
                    f"what topic {topic!r} said of checkpoint {told - 1}",
                    "it is held back by an open transaction of another sink, or was deleted: give that topic "
                    "cleanup.policy=compact",
                )
        except BaseException:
            producer.drop()
            raise
        ranges: Mapping[str, Mapping[int, tuple[int, int]]] = {} if last is None else last.ranges
        self._ends = {name: {n: end for n, (_, end) in numbers.items()} for name, numbers in ranges.items()}
        self._topic, self._producer, self._told = topic, producer, told
        return producer

    @property
    def _group(self) -> str:
        publisher = ids.publisher(self.run.pipeline, self.target.sink, self.run.lineage, PUBLISHER)
        return ids.mark_group(publisher, self.run.lineage)

    def _tell(
        self,
        producer: TransactionalProducer,
        checkpoint_id: CheckpointId,
        committables: Sequence[Mapping[str, Any]],
    ) -> None:
        if checkpoint_id < self._told:
            return
        try:
            ranges = self._ranges(sorted({c["topic"] for c in committables}))
            message = self._message(checkpoint_id, committables, ranges)
            producer.begin()
            RowWriter(replace(self.target, topic=self._topic), producer).write(message)
            producer.mark(self._topic, self._group, checkpoint_id + 1, self.run.lineage)
            producer.flush()
            with faults.point("commit.mark", "progress"):
                producer.commit()
        except BaseException:
            # What it had open is ended by whoever initialises the id next; whether it was committed, the mark tells.
            self.close()
            raise
        self._told = checkpoint_id + 1
        for topic, numbers in ranges.items():
            self._ends[topic] = {n: end for n, (_, end) in numbers.items()}

    def _ranges(self, topics: Sequence[str]) -> Ranges:
        """From where the last checkpoint ended to where everything is that this one wrote.

        The next checkpoint's rows are written after this message, so none of them is among these. Control records, and
        rows of attempts that were aborted, are; a reader of committed rows does not see them.
        """
        from confluent_kafka.admin import OffsetSpec

        ends = self._offsets(topics, OffsetSpec.latest())
        new = [t for t in topics if any(n not in self._ends.get(t, {}) for n in ends[t])]
        begin = self._offsets(new, OffsetSpec.earliest()) if new else {}
        return {
            topic: {
                n: (self._ends[topic][n] if n in self._ends.get(topic, {}) else begin[topic][n], end)
                for n, end in numbers.items()
            }
            for topic, numbers in ends.items()
        }

    def _message(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], ranges: Ranges
    ) -> pa.RecordBatch:
        told = {
            "version": 1,
            "pipeline": self.run.pipeline,
            "sink": self.target.sink,
            "lineage": self.run.lineage,
            "checkpoint_id": checkpoint_id,
            "rows": sum(int(c["rows"]) for c in committables),
            "watermark_ms": watermark(self.run.location, checkpoint_id),
            "ranges": {topic: {str(n): list(of) for n, of in numbers.items()} for topic, numbers in ranges.items()},
        }
        key = json.dumps([self.run.pipeline, self.target.sink])
        return pa.RecordBatch.from_pydict({"key": [key], "value": [json.dumps(told)]})

    def _offsets(self, topics: Sequence[str], which: Any) -> dict[str, dict[int, int]]:
        """Where each partition begins or ends, rows of open transactions included."""
        from confluent_kafka import IsolationLevel, KafkaException, TopicPartition

        client = admin(_plain(self.target.settings))
        found: dict[str, dict[int, int]] = {topic: {} for topic in topics}
        try:
            known = client.list_topics(timeout=_TIMEOUT).topics
            asked = {TopicPartition(topic, n): which for topic in topics for n in known[topic].partitions}
            level = IsolationLevel.READ_UNCOMMITTED
            for place, future in client.list_offsets(asked, isolation_level=level, request_timeout=_TIMEOUT).items():
                found[place.topic][place.partition] = future.result().offset
        except (KafkaException, KeyError) as error:
            raise self._unknown(f"where {', '.join(topics)} begins and ends", error) from error
        return found

    def _last(self, topic: str) -> WholeCheckpoint | None:
        """What the last message of this sink says, whoever sent it."""
        try:
            return last_progress(_plain(self.target.settings), topic, self.run.pipeline, self.target.sink)
        except SourceError as error:
            raise self._unknown(f"the last message of {topic!r}", error) from error

    def _unknown(self, what: str, why: object) -> SinkError:
        return SinkError(
            f"{self.target.owner}: Kafka at {self.target.servers} does not tell {what}: {why}. Check that the brokers "
            "run and that the sink may read its topics; it is tried again"
        )


def watermark(location: str, checkpoint_id: CheckpointId) -> int | None:
    """The event-time watermark of a batch, as Spark's own log has it; None without one."""
    try:
        lines = open_storage(location.removesuffix("/holdfast")).read(f"offsets/{checkpoint_id}").decode().splitlines()
        found = int(json.loads(lines[1]).get("batchWatermarkMs", 0))
    except (FileNotFoundError, IndexError, ValueError):
        return None
    return found or None


def _plain(settings: Mapping[str, Any]) -> dict[str, Any]:
    """For a client that is no producer."""
    ours = ("transaction", "batch.", "linger", "partitioner", "compression", "acks", "queue.buffering", "enable.idem",
            "message.send", "message.timeout", "delivery", "sticky", "retries", "retry.backoff", "max.in.flight",
            "request.required", "request.timeout", "enable.gapless")  # fmt: skip
    return {"log_level": 0, **{key: value for key, value in settings.items() if not key.startswith(ours)}}
