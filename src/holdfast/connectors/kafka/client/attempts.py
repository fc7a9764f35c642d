"""Rights that are tried: the requests a query will send, each with something that cannot be done even with the right.

A broker looks at rights first. So "there is no such partition" or "no such producer" says that the right is there, and
nothing was changed: no transaction begins, no offset is stored, nothing is left to remove.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from holdfast.connectors.kafka.client.denied import DENIED, denied
from holdfast.connectors.kafka.client.wire import GROUP, MOVING, TRANSACTION, Connection, NotYetError
from holdfast.errors import ConfigError

#: no topic has it
_NO_PARTITION = 2**31 - 1
#: who never registered
_NOBODY, _NO_EPOCH = 2**62, 0


def may_write(
    connection: Connection, settings: Mapping[str, Any], transactional_id: str, topic: str
) -> ConfigError | None:
    """What is missing to write into a topic under a transactional id."""

    async def run() -> int:
        from kafka.protocol.producer.transaction import AddPartitionsToTxnRequest

        topics = [AddPartitionsToTxnRequest.AddPartitionsToTxnTopic(name=topic, partitions=[_NO_PARTITION])]
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=transactional_id,
            v3_and_below_producer_id=_NOBODY,
            v3_and_below_producer_epoch=_NO_EPOCH,
            v3_and_below_topics=topics,
            max_version=3,
        )
        node = (await connection.coordinators(TRANSACTION, [transactional_id]))[transactional_id]
        answer = await connection.send(request, node)
        results = [r for t in answer.results_by_topic_v3_and_below for r in t.results_by_partition]
        return _code([r.partition_error_code for r in results])

    return _told(connection, run, "write into a topic", settings, "Write", topic=topic, name=transactional_id)


def may_mark(
    connection: Connection, settings: Mapping[str, Any], transactional_id: str, group: str
) -> ConfigError | None:
    """What is missing to store an offset of a group in a transaction."""

    async def run() -> int:
        from kafka.protocol.producer.transaction import AddOffsetsToTxnRequest

        request = AddOffsetsToTxnRequest(
            transactional_id=transactional_id, producer_id=_NOBODY, producer_epoch=_NO_EPOCH, group_id=group
        )
        node = (await connection.coordinators(TRANSACTION, [transactional_id]))[transactional_id]
        return _code([(await connection.send(request, node)).error_code])

    return _told(connection, run, "store a mark in a group", settings, "", group=group, name=transactional_id)


def may_commit_offsets(connection: Connection, settings: Mapping[str, Any], group: str) -> ConfigError | None:
    """What is missing to commit offsets of a group."""

    async def run() -> int:
        from kafka.protocol.consumer.group import OffsetCommitRequest

        kinds = OffsetCommitRequest.OffsetCommitRequestTopic
        partition = kinds.OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")
        topics = [kinds(name=f"holdfast-check-{uuid.uuid4().hex}", partitions=[partition])]
        request = OffsetCommitRequest(group_id=group, topics=topics, max_version=8)
        node = (await connection.coordinators(GROUP, [group]))[group]
        answer = await connection.send(request, node)
        code = _code([p.error_code for t in answer.topics for p in t.partitions])
        # A topic that is not there may not be seen either, which says nothing of the group.
        return code if code == 30 else 0

    return _told(connection, run, "commit offsets of a group", settings, "Read", group=group)


def _code(codes: list[int]) -> int:
    """The first refusal; a coordinator that moves is asked again."""
    if any(code in MOVING for code in codes):
        raise NotYetError("a coordinator is moving or loading; try again")
    return next((code for code in codes if code in DENIED), 0)


def _told(
    connection: Connection,
    run: Any,
    what: str,
    settings: Mapping[str, Any],
    rights: str,
    *,
    topic: str | None = None,
    group: str | None = None,
    name: str | None = None,
) -> ConfigError | None:
    try:
        code = connection.run(run)
    except ConfigError as error:  # to find the coordinator takes the right to see the id or group
        return error
    given = rights if code != 53 else ""
    return denied(code, what, settings, rights=given, topic=topic, group=group, transactional_id=name)
