"""The offsets of consumer groups.

Not by librdkafka's admin client: it ends the whole process when a group's coordinator has just moved (its issue 5040),
and reads the note beside an offset beyond its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.kafka.client.wire import GROUP, MOVING, Connection, NotYetError
from holdfast.errors import SinkError

_UNSTABLE = 88


@dataclass(frozen=True)
class GroupOffset:
    """What a group has committed for one partition, and the note beside it."""

    topic: str
    partition: int
    offset: int
    note: str


def fetch(
    settings: Mapping[str, Any],
    groups: Iterable[str],
    *,
    stable: bool = True,
    timeout: float | None = None,
    rights: str = "Read",
    owner: str = "",
) -> dict[str, list[GroupOffset]]:
    """{group: its offsets}; none for a group nobody has written. Waits while a coordinator moves.

    With `stable` this also waits while a transaction that holds an offset of the group is open. No answer is never
    taken for no offset.
    """
    wanted = list(dict.fromkeys(groups))
    if not wanted:
        return {}
    with Connection(settings, rights=rights, owner=owner) as connection:
        return connection.run(lambda: _fetch(connection, wanted, stable=stable), timeout=timeout)


async def _fetch(connection: Connection, groups: list[str], *, stable: bool) -> dict[str, list[GroupOffset]]:
    from kafka.protocol.consumer.group import OffsetFetchRequest

    nodes = await connection.coordinators(GROUP, groups)
    found: dict[str, list[GroupOffset]] = {}
    for node in sorted(set(nodes.values())):
        mine = [
            OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=None)
            for group in groups
            if nodes[group] == node
        ]
        # From version 10 on topics have ids in place of names.
        request = OffsetFetchRequest(groups=mine, require_stable=stable, min_version=8, max_version=9)
        for answer in (await connection.send(request, node)).groups:
            found[answer.group_id] = _offsets(connection, answer)
    return found


def _offsets(connection: Connection, answer: Any) -> list[GroupOffset]:
    found = []
    _check(connection, answer.group_id, answer.error_code)
    for topic in answer.topics:
        for partition in topic.partitions:
            _check(connection, answer.group_id, partition.error_code)
            if partition.committed_offset >= 0:
                note = (partition.metadata or "").rstrip("\0")
                found.append(GroupOffset(topic.name, partition.partition_index, partition.committed_offset, note))
    return found


def _check(connection: Connection, group: str, code: int) -> None:
    if not code:
        return
    if code in MOVING or code == _UNSTABLE:
        raise NotYetError(f"Kafka cannot tell the offsets of group {group!r} yet (error {code}); try again")
    raise connection.refused(GROUP, code, group) or SinkError(
        f"Kafka cannot read the offsets of group {group!r}: error {code}; try again"
    )
