"""`read_whole_checkpoints`: rows of a topic, one whole checkpoint at a time, by the progress topic of its sink."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from holdfast.connectors.kafka.client.settings import check_servers
from holdfast.core.options import SECRETS, checked, number, text, whole
from holdfast.errors import ConfigError, MissingExtraError, SourceError

#: seconds between two looks at whether the caller's time is over
_POLL = 0.2
#: messages at the end of a progress topic in which the last one of a sink is looked for before all of it is read
_NEAR = 200
#: seconds for which a topic that was just made may be unknown to some brokers
_KNOWN = 10.0
#: librdkafka's word for the first offset there is
_BEGINNING = -2


@dataclass(frozen=True)
class WholeCheckpoint:
    """One checkpoint of a Kafka sink: what its message in the progress topic says, and its rows."""

    pipeline: str
    sink: str
    #: of the checkpoint location that wrote it; checkpoint ids count anew with another one
    lineage: str
    checkpoint_id: int
    #: how many were written
    rows: int
    #: of Spark's query when it wrote them, in milliseconds; None without one
    watermark_ms: int | None
    #: topic -> partition -> (first offset, the one after the last)
    ranges: Mapping[str, Mapping[int, tuple[int, int]]]
    #: the rows, as `confluent_kafka.Message`, by partition and offset
    messages: tuple[Any, ...] = ()


@checked
def read_whole_checkpoints(
    bootstrap_servers: str,
    progress_topic: Annotated[str, text("a name")],
    *,
    pipeline: str | None = None,
    sink: str | None = None,
    after: Annotated[int, whole(-1, says="the number of a checkpoint")] | None = None,
    timeout: Annotated[float, number("a number of seconds", lambda value: value >= 0)] | None = None,
    config: Annotated[Mapping[str, Any], SECRETS] | None = None,
) -> Iterator[WholeCheckpoint]:
    """Checkpoints of a `KafkaSink(progress_topic=...)` in their order, each with all of its rows and no others.

    `pipeline` and `sink` choose among several that share the topic. `after` is the last checkpoint that the caller has
    dealt with: it goes on behind it. `timeout`: how many seconds to wait for the next one, for ever without it.
    `config` are librdkafka's settings, for both of its consumers. A checkpoint is held in memory.
    """
    settings = {**(config or {}), "bootstrap.servers": check_servers(bootstrap_servers)}
    wanted = {"pipeline": pipeline, "sink": sink}
    return _read(settings, progress_topic, wanted, -1 if after is None else after, timeout)


def _read(
    settings: Mapping[str, Any], topic: str, wanted: Mapping[str, str | None], after: int, timeout: float | None
) -> Iterator[WholeCheckpoint]:
    progress, rows = _consumer(settings, topic), _consumer(settings, topic)
    try:
        patience = _KNOWN if timeout is None else min(_KNOWN, timeout)
        _assign(progress, {(topic, n): _BEGINNING for n in _partitions(progress, topic, patience)})
        deadline = _deadline(timeout)
        while True:
            message = progress.poll(_POLL)
            if message is None or message.error() is not None:
                _check(message)
                if deadline is not None and time.monotonic() > deadline:
                    return
                continue
            found = parse_progress(message.value())
            if found is None or found.checkpoint_id <= after:
                continue
            if any(value is not None and value != getattr(found, name) for name, value in wanted.items()):
                continue
            yield WholeCheckpoint(**{**vars(found), "messages": _messages(rows, found, timeout)})
            deadline = _deadline(timeout)
    finally:
        progress.close()
        rows.close()


def _messages(consumer: Any, checkpoint: WholeCheckpoint, timeout: float | None) -> tuple[Any, ...]:
    """Every committed row between the offsets; a partition is read when a row or its end lies beyond them."""
    places = {(t, n): of for t, numbers in checkpoint.ranges.items() for n, of in numbers.items() if of[1] > of[0]}
    _assign(consumer, {place: first for place, (first, _) in places.items()})
    found, left, deadline = [], set(places), _deadline(timeout)
    while left:
        message = consumer.poll(_POLL)
        if not _check(message):
            if deadline is not None and time.monotonic() > deadline:
                raise SourceError(
                    f"checkpoint {checkpoint.checkpoint_id} of sink {checkpoint.sink!r} is committed, and its rows in "
                    f"{', '.join(f'{t}[{n}]' for t, n in sorted(left))} cannot be read after {timeout:g} s: another "
                    "transaction is open there, or the brokers are away. Read on with after="
                    f"{checkpoint.checkpoint_id - 1}"
                )
            continue
        place = (message.topic(), message.partition())
        if place not in left or message.offset() < places[place][0]:
            continue  # of the checkpoint before
        if message.offset() >= places[place][1]:
            left.discard(place)
        elif message.error() is None:
            found.append(message)
            if message.offset() == places[place][1] - 1:
                left.discard(place)
    consumer.unassign()
    return tuple(sorted(found, key=lambda m: (m.topic(), m.partition(), m.offset())))


def parse_progress(value: bytes | None) -> WholeCheckpoint | None:
    """What a message of a progress topic says; None for any other."""
    try:
        told = json.loads(value or b"")
        if told["version"] != 1:
            raise SourceError("this progress topic is written by a newer version of holdfast: use that to read it")
        ranges = {
            topic: {int(n): (int(first), int(end)) for n, (first, end) in numbers.items()}
            for topic, numbers in told["ranges"].items()
        }
        names = ("pipeline", "sink", "lineage", "checkpoint_id", "rows", "watermark_ms")
        return WholeCheckpoint(**{name: told[name] for name in names}, ranges=ranges)
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def last_progress(settings: Mapping[str, Any], topic: str, pipeline: str, sink: str) -> WholeCheckpoint | None:
    """The last message of a sink in its progress topic, from whatever checkpoint location."""
    consumer = _consumer(settings, topic)
    try:
        ends = {(topic, n): consumer.get_watermark_offsets(_place(topic, n), timeout=30) for n in
                _partitions(consumer, topic)}  # fmt: skip
        for near in (True, False):
            starts = {place: max(low, high - _NEAR) if near else low for place, (low, high) in ends.items()}
            found = _newest(consumer, starts, pipeline, sink)
            if found is not None:
                return found
        return None
    finally:
        consumer.close()


def _newest(consumer: Any, starts: Mapping[tuple[str, int], int], pipeline: str, sink: str) -> WholeCheckpoint | None:
    _assign(consumer, starts)
    left, found, deadline = set(starts), None, time.monotonic() + 60
    while left:
        message = consumer.poll(_POLL)
        if not _check(message):
            if time.monotonic() > deadline:
                raise SourceError(f"the progress topic cannot be read to its end: {', '.join(t for t, _ in left)}")
        elif message.error() is not None:
            left.discard((message.topic(), message.partition()))
        else:
            told = parse_progress(message.value())
            if told is not None and (told.pipeline, told.sink) == (pipeline, sink):
                found = told  # one key, so one partition: the last one is the newest
    return found


def _consumer(settings: Mapping[str, Any], topic: str) -> Any:
    try:
        from confluent_kafka import Consumer, KafkaException
    except ImportError as error:
        raise MissingExtraError("Kafka needs more packages: pip install 'holdfast[kafka]'") from error
    given = {
        "group.id": f"holdfast-whole-{uuid.uuid4().hex}",
        "log_level": 0,
        **settings,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
    }
    try:
        return Consumer(given)
    except KafkaException as error:
        raise ConfigError(f"Kafka's client does not take these settings: {error.args[0].str()}") from error


def _partitions(consumer: Any, topic: str, patience: float = _KNOWN) -> list[int]:
    from confluent_kafka import KafkaException

    deadline = time.monotonic() + patience
    while True:
        try:
            found = consumer.list_topics(topic, timeout=30).topics[topic]
        except KafkaException as error:
            raise SourceError(f"topic {topic!r} cannot be looked up: {error.args[0].str()}") from error
        if found.error is None and found.partitions:
            return sorted(found.partitions)
        if time.monotonic() > deadline:
            raise SourceError(f"topic {topic!r} is not in Kafka, or may not be seen: {found.error}")
        time.sleep(_POLL)


def _assign(consumer: Any, starts: Mapping[tuple[str, int], int]) -> None:
    consumer.assign([_place(topic, number, offset) for (topic, number), offset in starts.items()])


def _place(topic: str, number: int, offset: int = -1001) -> Any:
    from confluent_kafka import TopicPartition

    return TopicPartition(topic, number, offset)


def _check(message: Any) -> bool:
    """Whether it is a row, or says that a partition is read to its end; False: wait. An error that stays goes up."""
    from confluent_kafka import KafkaError

    error = None if message is None else message.error()
    if message is None or error is None or error.code() == KafkaError._PARTITION_EOF:
        return message is not None
    if error.retriable() or error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE):
        return False
    raise SourceError(f"{message.topic()}[{message.partition()}] cannot be read: {error.str()}")


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.monotonic() + timeout
