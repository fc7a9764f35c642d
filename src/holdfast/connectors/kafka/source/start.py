"""Where a Kafka source starts (K1, K7), resolved to one offset for each partition."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from holdfast.connectors.kafka.client import offsets
from holdfast.connectors.kafka.client.denied import check_readable
from holdfast.connectors.kafka.client.settings import admin
from holdfast.core.options import check_fields, checked, one_of, whole
from holdfast.errors import ConfigError, HoldfastError, SourceError

if TYPE_CHECKING:
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import AdminClient

FALLBACKS = ("earliest", "latest", "error")
KINDS = ("group_offsets", "earliest", "latest", "timestamp", "specific_offsets")
Fallback = Annotated[str, one_of(*FALLBACKS)]
Milliseconds = Annotated[int, whole(0, says="milliseconds since 1970")]
TIMEOUT = 30.0
Offsets = dict[str, dict[int, int]]
EARLIEST, LATEST = -2, -1
#: A partition's leader is being chosen, or is new and does not know yet how far its followers are: it soon answers.
_LEADER_MOVES = (5, 6, 74, 75, 78)
_PAUSE = 0.2


@dataclass(frozen=True)
class StartFrom:
    """Where to start when there is no checkpoint yet; made by the class methods."""

    kind: Annotated[str, one_of(*KINDS)]
    fallback: Fallback = "error"
    timestamp_ms: Milliseconds | None = None
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def group_offsets(cls, fallback: Fallback = "earliest") -> StartFrom:
        """Where the consumer group has got to; a partition it never committed uses the fallback."""
        return cls("group_offsets", fallback)

    @classmethod
    def earliest(cls) -> StartFrom:
        """The oldest row there is."""
        return cls("earliest")

    @classmethod
    def latest(cls) -> StartFrom:
        """Only rows that arrive from now on."""
        return cls("latest")

    @classmethod
    @checked
    def timestamp(cls, ms: Milliseconds) -> StartFrom:
        """The first row whose timestamp is this or later; a partition without one starts at its end."""
        return cls("timestamp", "latest", timestamp_ms=ms)

    @classmethod
    @checked
    def specific_offsets(cls, offsets: Mapping[str, Mapping[int, int]], fallback: Fallback = "error") -> StartFrom:
        """Exactly there: {topic: {partition: next offset to read}}; other partitions use the fallback."""
        for topic, partitions in offsets.items():
            if not isinstance(partitions, Mapping):
                raise ConfigError(f"specific_offsets: {topic}: {partitions!r} is not {{partition: offset}}")
            for partition, offset in partitions.items():
                if not isinstance(partition, int) or not isinstance(offset, int) or partition < 0 or offset < 0:
                    raise ConfigError(f"specific_offsets: {topic}[{partition!r}]: {offset!r} is not partition: offset")
        if not offsets:
            raise ConfigError("specific_offsets needs {topic: {partition: offset}}")
        return cls("specific_offsets", fallback, offsets=offsets)


def find_topics(client: AdminClient, topics: list[str], pattern: str | None) -> dict[str, list[int]]:
    """{topic: partitions} of what is to be read; a topic that is missing or forbidden is an error by name."""
    from confluent_kafka import KafkaException

    try:
        found = client.list_topics(timeout=TIMEOUT).topics
    except KafkaException as error:
        raise SourceError(
            f"Kafka does not answer: {error.args[0].str()}; check bootstrap_servers and security"
        ) from error
    if pattern is not None:
        names = [name for name in found if re.fullmatch(pattern, name)]
        if not names:
            raise SourceError(
                f"no topic matches pattern {pattern!r}; topics there: {', '.join(sorted(found)) or 'none'}"
            )
    else:
        names = topics
        missing = [name for name in names if name not in found]
        if missing:
            raise SourceError(
                f"topic {', '.join(missing)} does not exist, or this user may not describe it: create it, or grant "
                "DESCRIBE and READ on it"
            )
    return {name: sorted(found[name].partitions) for name in sorted(names)}


def starting_offsets(
    config: Mapping[str, Any], topics: list[str], pattern: str | None, group: str, start: StartFrom
) -> Offsets:
    """One start offset for every partition there is now, checked against what the broker still has."""
    client = admin(config)
    partitions = find_topics(client, topics, pattern)
    check_readable(client, config, list(partitions))
    if start.kind in ("earliest", "latest"):
        return _everywhere(partitions, EARLIEST if start.kind == "earliest" else LATEST)
    if start.kind == "timestamp":
        return _at_timestamp(client, partitions, start.timestamp_ms or 0)
    given = _group_offsets(config, group) if start.kind == "group_offsets" else start.offsets
    what = f"group {group!r}" if start.kind == "group_offsets" else "specific_offsets"
    strangers = [t for t in given if t not in partitions] if start.kind == "specific_offsets" else []
    if strangers:
        raise SourceError(f"specific_offsets names topic {', '.join(strangers)}, which is not read here")
    chosen = _with_fallback(partitions, given, start.fallback, what)
    _check_range(client, chosen, what, _START_WAYS)
    return chosen


def check_unread(config: Mapping[str, Any], ends: Mapping[str, Mapping[str, int]], checkpoint_id: int) -> None:
    """Whether the broker still has all that comes after a checkpoint; {topic: {partition: next offset to read}}."""
    offsets = {topic: {int(n): offset for n, offset in numbers.items()} for topic, numbers in ends.items()}
    _check_range(admin(config), offsets, f"checkpoint {checkpoint_id}", _CHECKPOINT_WAYS)


def _everywhere(partitions: Mapping[str, list[int]], offset: int) -> Offsets:
    return {topic: dict.fromkeys(numbers, offset) for topic, numbers in partitions.items()}


def _with_fallback(
    partitions: Mapping[str, list[int]], given: Mapping[str, Mapping[int, int]], fallback: str, what: str
) -> Offsets:
    chosen: Offsets = {}
    for topic, numbers in partitions.items():
        for number in numbers:
            offset = given.get(topic, {}).get(number)
            if offset is None:
                if fallback == "error":
                    raise SourceError(
                        f"{what} has no offset for {topic}[{number}]: name a fallback ('earliest' or 'latest'), or "
                        "give that partition an offset"
                    )
                offset = EARLIEST if fallback == "earliest" else LATEST
            chosen.setdefault(topic, {})[number] = offset
    return chosen


def _group_offsets(config: Mapping[str, Any], group: str) -> Offsets:
    try:
        answer = offsets.fetch(config, [group], timeout=TIMEOUT, rights="Describe")[group]
    except ConfigError as error:
        raise SourceError(str(error)) from error
    except HoldfastError as error:
        # Not "no offset": the fallback would skip or repeat rows in silence.
        raise SourceError(f"the offsets of group {group!r} cannot be read: {error}") from error
    found: Offsets = {}
    for known in answer:
        found.setdefault(known.topic, {})[known.partition] = known.offset
    return found


def _ends(client: AdminClient, offsets: Mapping[str, Mapping[int, int]], spec: Any) -> dict[TopicPartition, int]:
    from confluent_kafka import KafkaException, TopicPartition

    asked = {TopicPartition(topic, number): spec for topic, numbers in offsets.items() for number in numbers}
    until = time.monotonic() + TIMEOUT
    while True:
        answers = client.list_offsets(asked, request_timeout=TIMEOUT)
        try:
            return {partition: future.result().offset for partition, future in answers.items()}
        except KafkaException as error:
            if error.args[0].code() in _LEADER_MOVES and time.monotonic() < until:
                time.sleep(_PAUSE)
                continue
            raise SourceError(
                f"Kafka cannot tell where the partitions of {', '.join(offsets)} begin and end: "
                f"{error.args[0].str()}; check that the brokers run, and start again"
            ) from error


def _at_timestamp(client: AdminClient, partitions: Mapping[str, list[int]], timestamp: int) -> Offsets:
    from confluent_kafka.admin import OffsetSpec

    chosen = _everywhere(partitions, LATEST)
    for partition, offset in _ends(client, chosen, OffsetSpec.for_timestamp(timestamp)).items():
        if offset >= 0:
            chosen[partition.topic][partition.partition] = offset
    return chosen


class RowsExpiredError(SourceError):
    """Rows that were not read yet are gone from the topic."""


#: ways out when rows have expired, and when the topic is another one
_START_WAYS = (
    "To go on without them start with StartFrom.specific_offsets at {first}, or reset the group",
    "Start with StartFrom.earliest(), or reset the group",
)
_CHECKPOINT_WAYS = (
    "To go on without them start once with options={{'failOnDataLoss': 'false'}}",
    "Give the pipeline a new checkpoint location and name to read the new topic from its beginning",
)


def _check_range(client: AdminClient, chosen: Offsets, what: str, ways: tuple[str, str]) -> None:
    """An offset the broker no longer has, or never had, is an error: rows in between would be skipped in silence."""
    from confluent_kafka.admin import OffsetSpec

    exact = {t: {n: o for n, o in numbers.items() if o >= 0} for t, numbers in chosen.items()}
    oldest = _ends(client, exact, OffsetSpec.earliest())
    newest = _ends(client, exact, OffsetSpec.latest())
    for partition, first in oldest.items():
        offset, last = exact[partition.topic][partition.partition], newest[partition]
        name = f"{partition.topic}[{partition.partition}]"
        if offset < first:
            raise RowsExpiredError(
                f"{what} stands at offset {offset} of {name}, but the oldest row there is {first}: {first - offset} "
                f"rows have expired unread. {ways[0].format(first=first)}; and raise the topic's retention"
            )
        if offset > last:
            raise RowsExpiredError(
                f"{what} stands at offset {offset} of {name}, but the topic ends at {last}: it was deleted and made "
                f"again. {ways[1]}"
            )
