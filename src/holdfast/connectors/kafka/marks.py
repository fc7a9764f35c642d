"""Marks: offsets of consumer groups that are written inside a transaction, so Kafka itself knows what was committed.

Two kinds. Each transactional id has a group of its own, and its mark says which transaction of it was committed last.
Each sink of a pipeline has one, the ledger, which says how far it has got and from which checkpoint location (rule 10).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.kafka.client import admin
from holdfast.connectors.kafka.target import Target
from holdfast.core.model import CheckpointId
from holdfast.errors import ConfigError, HoldfastError

TIMEOUT = 30.0
_FORBIDDEN = 30
#: the coordinator of the group is loading, moving, or not elected yet
_NOT_YET = (14, 15, 16)


@dataclass(frozen=True)
class Mark:
    """One offset: of which topic (it is of partition 0), how far, and the note beside it."""

    topic: str
    offset: int
    note: str


def read(settings: Mapping[str, Any], groups: Iterable[str], *, stable: bool = True) -> dict[str, list[Mark]]:
    """{group: its marks}; empty for a group nobody has written.

    With `stable` this waits while a transaction that holds a mark is open: end what is open first.
    """
    from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

    client, deadline = admin(settings), time.monotonic() + TIMEOUT
    found: dict[str, list[Mark]] = {}
    wanted = set(groups)
    while wanted:
        asked = {
            group: client.list_consumer_group_offsets(
                [ConsumerGroupTopicPartitions(group)], require_stable=stable, request_timeout=TIMEOUT
            )[group]
            for group in wanted
        }
        for group, future in asked.items():
            try:
                partitions = future.result().topic_partitions or ()
            except KafkaException as error:
                if error.args[0].code() in _NOT_YET and time.monotonic() < deadline:
                    continue
                raise _unreadable(group, error.args[0]) from error
            for partition in partitions:
                if partition.error is not None:  # no answer is not "no mark": that would be a lost transaction
                    raise _unreadable(group, partition.error)
            found[group] = [Mark(p.topic, p.offset, p.metadata or "") for p in partitions if p.offset >= 0]
        wanted -= found.keys()
        if wanted:
            time.sleep(0.1)
    return found


def ledger(marks: Iterable[Mark]) -> dict[str, CheckpointId]:
    """{lineage: last committed checkpoint}, for `check_ledger`."""
    found: dict[str, CheckpointId] = {}
    for mark in marks:
        found[mark.note] = max(found.get(mark.note, -1), mark.offset - 1)
    return found


def take_over(target: Target, group: str, lineage: str) -> None:
    """Let this lineage own the ledger, with nothing marked as delivered."""
    found = read(target.settings, [group], stable=False)[group]
    if not found:
        return
    producer = target.producer(f"{group}-{lineage}")
    try:
        producer.initialise()
        producer.begin()
        for mark in found:
            producer.mark(mark.topic, group, 0, lineage)
        producer.commit()
    finally:
        producer.drop()


def _unreadable(group: str, error: Any) -> HoldfastError:
    if error.code() == _FORBIDDEN:
        return ConfigError(
            f"no permission to read the group {group!r}: grant READ and DESCRIBE on groups that begin so"
        )
    return HoldfastError(f"Kafka cannot read the mark of group {group!r}: {error.str()}; try again")
