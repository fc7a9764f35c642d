"""How far read-committed consumers get: up to the last stable offset, where the oldest open transaction begins."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.connectors.kafka.client.settings import admin

TIMEOUT = 30.0


def stable_offsets(
    settings: Mapping[str, Any], partitions: Sequence[tuple[str, int]]
) -> dict[tuple[str, int], tuple[int, int]]:
    """{partition: (last stable offset, end)}, as far as the brokers tell."""
    from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
    from confluent_kafka.admin import OffsetSpec

    if not partitions:
        return {}
    client = admin(settings)
    wanted = {TopicPartition(topic, number): OffsetSpec.latest() for topic, number in partitions}
    asked = [
        client.list_offsets(wanted, isolation_level=level, request_timeout=TIMEOUT)
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    ]
    found = {}
    for partition in wanted:
        try:
            stable, end = (answers[partition].result().offset for answers in asked)
        except KafkaException:  # deleted meanwhile, or no right to describe it: not worth failing for
            continue
        found[partition.topic, partition.partition] = (stable, end)
    return found
