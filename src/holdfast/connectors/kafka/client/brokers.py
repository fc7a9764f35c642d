"""How brokers and topics are set up: read from them, nothing is changed and nothing is made on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.kafka.client.denied import denied
from holdfast.connectors.kafka.client.wire import Connection, NotYetError

_TOPIC, _BROKER = 2, 4
_UNKNOWN, _INVALID = 3, 17


@dataclass(frozen=True)
class TopicSetup:
    """A topic, as far as the client may know it."""

    name: str
    partitions: int
    #: of the partition that has the fewest: copies, and those that are up to date now
    replicas: int
    in_sync: int
    #: None when this client has no right to DESCRIBE_CONFIGS
    min_in_sync: int | None = None
    unclean_elections: bool | None = None


async def settings_of_brokers(connection: Connection, keys: Sequence[str]) -> list[dict[str, str]]:
    """What each broker that is alive was started with, of these settings; none from one that does not tell us."""
    from kafka.protocol.admin.configs import DescribeConfigsRequest

    found = []
    for node in await connection.brokers("__consumer_offsets"):
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_BROKER, resource_name=str(node), configuration_keys=list(keys)
        )
        # Only the broker itself can tell what it was started with.
        for result in (await connection.send(DescribeConfigsRequest([resource], max_version=4), node)).results:
            if not result.error_code:  # a missing right (DESCRIBE_CONFIGS on the cluster) is no fault
                found.append({entry.name: entry.value for entry in result.configs if entry.value is not None})
    return found


def broker_settings(settings: Mapping[str, Any], keys: Sequence[str], *, owner: str = "") -> list[dict[str, str]]:
    """The same in a connection of its own."""
    with Connection(settings, owner=owner) as connection:
        return connection.run(lambda: settings_of_brokers(connection, keys))


def topic_setups(settings: Mapping[str, Any], names: Sequence[str], *, owner: str = "") -> dict[str, TopicSetup]:
    """{name: how it is set up}; those that are not there, or may not be seen, are left out."""
    with Connection(settings, owner=owner) as connection:
        return connection.run(lambda: _topics(connection, settings, names))


async def _topics(connection: Connection, settings: Mapping[str, Any], names: Sequence[str]) -> dict[str, TopicSetup]:
    from kafka.protocol.admin.configs import DescribeConfigsRequest
    from kafka.protocol.metadata import MetadataRequest

    wanted = [MetadataRequest.MetadataRequestTopic(name=name) for name in names]
    answer = await connection.send(MetadataRequest(topics=wanted, allow_auto_topic_creation=False, max_version=9))
    there = []
    for topic in answer.topics:
        if topic.error_code in (_UNKNOWN, _INVALID) or denied(topic.error_code, "", settings) is not None:
            continue
        if topic.error_code:
            raise NotYetError(f"topic {topic.name!r} is not ready (error {topic.error_code})")
        there.append(topic)
    if not there:
        return {}
    resources = [
        DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_TOPIC,
            resource_name=topic.name,
            configuration_keys=["min.insync.replicas", "unclean.leader.election.enable"],
        )
        for topic in there
    ]
    told: dict[str, dict[str, str]] = {}
    for result in (await connection.send(DescribeConfigsRequest(resources, max_version=4))).results:
        if not result.error_code:
            told[result.resource_name] = {entry.name: entry.value for entry in result.configs}
    return {topic.name: _setup(topic, told.get(topic.name)) for topic in there}


def _setup(topic: Any, told: Mapping[str, str] | None) -> TopicSetup:
    return TopicSetup(
        topic.name,
        len(topic.partitions),
        min(len(p.replica_nodes) for p in topic.partitions),
        min(len(p.isr_nodes) for p in topic.partitions),
        None if told is None else int(told.get("min.insync.replicas") or 1),
        None if told is None else told.get("unclean.leader.election.enable") == "true",
    )
