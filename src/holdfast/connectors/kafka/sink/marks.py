"""Marks: offsets of consumer groups that are written inside a transaction, so Kafka itself knows what was committed.

Two kinds. Each transactional id has a group of its own, and its mark says which transaction of it was committed last.
Each sink of a pipeline has one, the ledger, which says how far it has got and from which checkpoint location (rule 10).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from holdfast.checkpoint.ports import Run
from holdfast.connectors.kafka.client import offsets
from holdfast.connectors.kafka.client.offsets import GroupOffset
from holdfast.connectors.kafka.client.transactions import COMMITTING, TransactionClient
from holdfast.connectors.kafka.client.wire import PATIENCE
from holdfast.connectors.kafka.sink import ids
from holdfast.connectors.kafka.sink.target import Target
from holdfast.core.model import CheckpointId
from holdfast.errors import RestoredEndpointError, SinkError
from holdfast.sinks.ledger import check_ledger, having

#: Seconds without a commit after which the ledger is looked at again: no brokers come back as an older copy faster.
QUIET = 5.0
#: {group: its marks}; with `stable` it waits while a transaction that holds a mark is open: end what is open first
read = offsets.fetch


@dataclass
class KnownToBrokers:
    """What a run has committed last, so the ledger must have it."""

    checkpoint_id: CheckpointId = -1
    #: when that was, in seconds since the epoch
    at: float = 0.0
    #: a commit has begun since, and nobody knows how it ended
    in_doubt: bool = False

    @property
    def due(self) -> bool:
        """Whether the brokers may have been away since: else to ask would cost each commit a round trip."""
        return self.checkpoint_id >= 0 and (self.in_doubt or time.time() - self.at > QUIET)


def ledger(marks: Iterable[GroupOffset]) -> dict[str, CheckpointId]:
    """{lineage: last committed checkpoint}, for `check_ledger`."""
    found: dict[str, CheckpointId] = {}
    for mark in marks:
        found[mark.note] = max(found.get(mark.note, -1), mark.offset - 1)
    return found


def check(run: Run, target: Target) -> None:
    """Refuse what another checkpoint location, or a later or earlier state of this one, has delivered (10, 15)."""
    if run.take_over:
        take_over(run, target)
        _wait_for_marks(run, target)
    compare(run, target)


def compare(run: Run, target: Target) -> None:
    """The same, and nothing is written."""
    # Whoever takes over goes on whatever is missing.
    sink = None if run.take_over else target.sink
    _judge(run, target, lambda found: check_ledger(run, _where(run, target), found, sink=sink, kept=target.marks_last))


def check_known(run: Run, target: Target, known: KnownToBrokers) -> None:
    """Refuse brokers that became an older copy while a query runs, which knows what it has committed (15)."""

    def check(found: Mapping[str, CheckpointId]) -> None:
        # Another location that took over, or commits late, is not what is asked for here.
        if set(found) <= {run.lineage}:
            here = having(run, target.sink, found, known.checkpoint_id, int(known.at * 1000))
            check_ledger(here, _where(run, target), found, sink=target.sink, kept=target.marks_last)

    _judge(run, target, check)


def _where(run: Run, target: Target) -> str:
    group = ids.ledger_group(run.pipeline, target.sink)
    return f"the ledger of sink {target.sink!r} (group {group!r} in Kafka at {target.servers})"


def _judge(run: Run, target: Target, check: Callable[[Mapping[str, CheckpointId]], None]) -> None:
    group = ids.ledger_group(run.pipeline, target.sink)

    def once() -> None:
        check(ledger(read(target.settings, [group], stable=False, owner=target.owner)[group]))

    try:
        once()
    except RestoredEndpointError:
        # Kafka says "committed" first and writes the marks a moment later. Only when none is on its way it is behind.
        _wait_for_marks(run, target)
        once()


def _wait_for_marks(run: Run, target: Target) -> None:
    deadline = time.monotonic() + PATIENCE
    prefixes = (*ids.sink_prefixes(run.pipeline, target.sink), ids.owner_id(run.pipeline, target.sink, run.lineage))
    with TransactionClient(target.settings, owner=target.owner) as client:
        while any(client.named(prefix, COMMITTING) for prefix in prefixes):
            if time.monotonic() > deadline:
                raise SinkError(
                    f"{target.owner}: Kafka at {target.servers} has been writing the marks of committed transactions "
                    f"for {PATIENCE:.0f} s: are brokers away? Trying again may help"
                )
            time.sleep(0.1)


def take_over(run: Run, target: Target, through: CheckpointId | None = None) -> None:
    """Let this lineage own the ledger, delivered `through` this checkpoint, by default what its own log knows."""
    group = ids.ledger_group(run.pipeline, target.sink)
    topics = {mark.topic for mark in read(target.settings, [group], stable=False, owner=target.owner)[group]}
    known = run.committed.get(target.sink)
    if through is None and known is not None:
        through = known.checkpoint_id
    if through is not None and target.topic is not None:
        topics.add(target.topic)
    if not topics:
        return
    producer = target.producer(ids.owner_id(run.pipeline, target.sink, run.lineage))
    try:
        producer.initialise()
        producer.begin()
        for topic in sorted(topics):
            producer.mark(topic, group, 0 if through is None else through + 1, run.lineage)
        producer.commit()
    finally:
        producer.drop()
