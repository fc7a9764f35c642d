"""For how long brokers keep the marks of an idle group: their setting, read and not assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.connectors.kafka.client.wire import Connection

#: Kafka's default of offsets.retention.minutes, in seconds; what a client that may not read it goes by
DEFAULT = 7 * 24 * 3600.0
#: Of it so much is sure: near the end of it a missing mark says nothing.
SURE = 6 / 7
_BROKER, _KEY = 4, "offsets.retention.minutes"


def marks_last(settings: Mapping[str, Any], *, owner: str = "") -> float:
    """Seconds for which a mark is sure to be remembered: by the broker that forgets first."""
    with Connection(settings, owner=owner) as connection:
        return SURE * min(connection.run(lambda: _read(connection)), default=DEFAULT)


async def _read(connection: Connection) -> list[float]:
    from kafka.protocol.admin.configs import DescribeConfigsRequest

    found = []
    for node in await connection.brokers("__consumer_offsets"):
        resource = DescribeConfigsRequest.DescribeConfigsResource(
            resource_type=_BROKER, resource_name=str(node), configuration_keys=[_KEY]
        )
        # Only the broker itself can tell what it was started with.
        for result in (await connection.send(DescribeConfigsRequest([resource], max_version=4), node)).results:
            if not result.error_code:  # a missing right (DESCRIBE_CONFIGS on the cluster) is no fault
                found += [60.0 * float(entry.value) for entry in result.configs if entry.name == _KEY]
    return found


def in_words(seconds: float) -> str:
    """`6 days`, `90 minutes`."""
    for unit, size in (("days", 86_400), ("hours", 3600)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 60:.3g} minutes"
