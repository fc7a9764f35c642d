"""For how long brokers keep the marks of an idle group: their setting, read and not assumed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.connectors.kafka.client.brokers import settings_of_brokers
from holdfast.connectors.kafka.client.wire import Connection

#: Kafka's default of offsets.retention.minutes, in seconds; what a client that may not read it goes by
DEFAULT = 7 * 24 * 3600.0
#: Of it so much is sure: near the end of it a missing mark says nothing.
SURE = 6 / 7
_KEY = "offsets.retention.minutes"


def marks_last(settings: Mapping[str, Any], *, owner: str = "") -> float:
    """Seconds for which a mark is sure to be remembered: by the broker that forgets first."""
    with Connection(settings, owner=owner) as connection:
        told = connection.run(lambda: settings_of_brokers(connection, [_KEY]))
        return SURE * min((60.0 * float(found[_KEY]) for found in told if _KEY in found), default=DEFAULT)


def in_words(seconds: float) -> str:
    """`6 days`, `90 minutes`."""
    for unit, size in (("days", 86_400), ("hours", 3600)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds / 60:.3g} minutes"
