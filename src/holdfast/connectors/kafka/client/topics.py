"""What the brokers say about a topic that decides which rows it takes."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.kafka.client.denied import denied
from holdfast.connectors.kafka.client.wire import Connection, NotYetError

#: Seconds that a topic which was made a moment ago may take to be known everywhere.
_NEW = 5.0
_UNKNOWN, _INVALID = 3, 17
_TOPIC = 2
_KEYS = ("max.message.bytes", "cleanup.policy")


@dataclass(frozen=True)
class Topic:
    """As far as the client may know it."""

    partitions: int
    #: bytes of a batch of rows; None when this client has no right to DESCRIBE_CONFIGS
    limit: int | None = None
    #: takes no row without a key
    compacted: bool = False


def look_up(
    settings: Mapping[str, Any], names: Sequence[str], *, owner: str = "", wait: float = _NEW
) -> dict[str, Topic]:
    """{name: topic}; those that are not there are left out. Brokers that make topics on demand make them now."""
    with Connection(settings, owner=owner) as connection:
        deadline = time.monotonic() + wait
        while True:
            found = connection.run(lambda: _look_up(connection, settings, names))
            if len(found) == len(names) or time.monotonic() > deadline:
                return found
            time.sleep(0.2)


async def _look_up(connection: Connection, settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, Topic]:
    from kafka.protocol.admin.configs import DescribeConfigsRequest
    from kafka.protocol.metadata import MetadataRequest

    wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    answer = await connection.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=True, max_version=9))
    counts: dict[str, int] = {}
    for topic in answer.topics:
        refused = denied(topic.error_code, "look up a topic", settings, rights="Write Read", topic=topic.name)
        if refused is not None:
            raise refused
        if topic.error_code in (_UNKNOWN, _INVALID):
            continue
        if topic.error_code:
            raise NotYetError(f"topic {topic.name!r} is not ready (error {topic.error_code})")
        counts[topic.name] = len(topic.partitions)
    if not counts:
        return {}
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC, resource_name=name, configuration_keys=list(_KEYS)
        )
        for name in counts
    ]
    told: dict[str, dict[str, str]] = {}
    for result in (await connection.send(DescribeConfigsRequest(resources, max_version=4))).results:
        if not result.error_code:  # a missing right is no fault: then the topic is believed to take every row
            told[result.resource_name] = {entry.name: entry.value for entry in result.configs}
    return {name: _topic(count, told.get(name, {})) for name, count in counts.items()}


def _topic(partitions: int, settings: Mapping[str, str]) -> Topic:
    limit = settings.get("max.message.bytes")
    return Topic(partitions, int(limit) if limit else None, "compact" in (settings.get("cleanup.policy") or ""))
