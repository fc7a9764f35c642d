"""Telling the consumer group how far the pipeline has got (K3, K4, K5)."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.connectors.kafka.client.denied import denied
from holdfast.connectors.kafka.client.settings import admin
from holdfast.core import faults
from holdfast.core.model import CheckpointId

logger = logging.getLogger("holdfast")
TIMEOUT = 15.0


class CommitMode(StrEnum):
    """When offsets reach the group."""

    DISABLED = "disabled"
    ON_CHECKPOINTS = "on_checkpoints"


def commit_mode(commit_offsets: bool | None) -> CommitMode:
    """The table of K3. Flink's third mode, periodic, is for queries without checkpoints: Spark has none of these."""
    return CommitMode.DISABLED if commit_offsets is False else CommitMode.ON_CHECKPOINTS


@dataclass(frozen=True)
class KafkaSource:
    """A Kafka source found in a query's plan, as `read_kafka` marked it."""

    index: int
    servers: str
    group: str
    config: Mapping[str, Any]

    def __repr__(self) -> str:
        """No config: it may hold passwords."""
        return f"KafkaSource({self.servers}, group={self.group!r})"


class GroupOffsets:
    """Commits the offsets of complete checkpoints to the group; lags, never leads, and never fails the query."""

    def __init__(self, source: KafkaSource) -> None:
        self._source = source
        self._client: Any = None
        self._done: CheckpointId = -1

    def commit(self, checkpoint_id: CheckpointId, lines: list[str]) -> bool:
        """Commit the offsets of one checkpoint (the lines of Spark's `offsets/N`); False to be tried again later."""
        if checkpoint_id <= self._done:
            return True
        # Spark writes the end of a batch, exclusive: just what Kafka calls the next offset to read (K5).
        ends = json.loads(lines[self._source.index])
        with faults.point("offsets"):
            kept = self._client is not None
            # A client can lose sight of a coordinator that was restarted, for good (librdkafka issue 5511).
            done = self._commit(ends, last=not kept) or (kept and self._client is None and self._commit(ends))
        if done:
            self._done = checkpoint_id
        return done

    def _commit(self, ends: Mapping[str, Mapping[str, int]], *, last: bool = True) -> bool:
        """One attempt; a client that got no answer is not used again. Tells of a failure if it is the `last`."""
        from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException, TopicPartition

        partitions = [TopicPartition(t, int(n), o) for t, numbers in ends.items() for n, o in numbers.items()]
        request = [ConsumerGroupTopicPartitions(self._source.group, partitions)]
        if self._client is None:
            self._client = admin(self._source.config)
        try:
            answer = self._client.alter_consumer_group_offsets(request, request_timeout=TIMEOUT)
            failed = [p for p in answer[self._source.group].result().topic_partitions if p.error is not None]
        except KafkaException as error:
            self._client = None
            if last:
                self._warn(error.args[0])
            return False
        if failed:
            self._warn(failed[0].error, topic=failed[0].topic)
        return not failed

    def _warn(self, error: Any, topic: str | None = None) -> None:
        source = self._source
        refused = denied(error.code(), "commit offsets", source.config, rights="Read", group=source.group, topic=topic)
        logger.warning("offsets of %s not committed, trying again later: %s", source, refused or error.str())
