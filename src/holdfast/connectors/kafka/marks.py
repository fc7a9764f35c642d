"""Marks: offsets of consumer groups that are written inside a transaction, so Kafka itself knows what was committed.

Two kinds. Each transactional id has a group of its own, and its mark says which transaction of it was committed last.
Each sink of a pipeline has one, the ledger, which says how far it has got and from which checkpoint location (rule 10).
"""

from __future__ import annotations

from collections.abc import Iterable

from holdfast.connectors.kafka import offsets
from holdfast.connectors.kafka.offsets import GroupOffset
from holdfast.connectors.kafka.target import Target
from holdfast.core.model import CheckpointId

#: Brokers forget the marks of an idle group after 7 days (offsets.retention.minutes); near that, in seconds, a missing
#: mark says nothing.
LAST = 6 * 24 * 3600.0
#: {group: its marks}; with `stable` it waits while a transaction that holds a mark is open: end what is open first
read = offsets.fetch


def ledger(marks: Iterable[GroupOffset]) -> dict[str, CheckpointId]:
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
