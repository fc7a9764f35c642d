"""Kafka without a broker: what a client is told, what is refused, and what is left behind."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.ports import LoopTasks
from holdfast.connectors.kafka import offsets, target
from holdfast.connectors.kafka.arrow import check_rows, check_schema
from holdfast.connectors.kafka.client import admin, client_config
from holdfast.connectors.kafka.rdkafka import ProduceError, TransactionalProducer
from holdfast.connectors.kafka.sink import KafkaSink
from holdfast.connectors.kafka.two_phase import TwoPhase
from holdfast.connectors.kafka.wire import Connection, NotYetError
from holdfast.connectors.kafka.write_ahead import WriteAhead
from holdfast.core.naming import Task
from holdfast.errors import ConfigError, HoldfastError, RowError

NOWHERE = "127.0.0.1:1"


def _threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


def _answer(*partitions: tuple[str, int, int], code: int = 0) -> Any:
    """A group's part of an answer to OffsetFetch: (topic, offset, error code)."""
    topics = [
        SimpleNamespace(
            name=topic,
            partitions=[SimpleNamespace(partition_index=0, committed_offset=offset, metadata="n\0", error_code=error)],
        )
        for topic, offset, error in partitions
    ]
    return SimpleNamespace(group_id="g", error_code=code, topics=topics)


def _connection() -> Connection:
    """One that talks to nobody."""
    connection = object.__new__(Connection)
    connection._config, connection._rights = {"bootstrap.servers": NOWHERE}, "Read"
    return connection


def test_options_only_javas_client_knows_do_not_reach_librdkafka() -> None:
    """They go to Spark's source as they are; an admin client made with one would raise."""
    options = {"kafka.fetch.max.wait.ms": "500", "kafka.ssl.truststore.location": "/t", "kafka.client.id": "me"}
    config = client_config(NOWHERE, options)
    assert config == {"client.id": "me", "bootstrap.servers": NOWHERE, "log_level": 0}
    admin(config)


def test_k7_an_offset_that_cannot_be_read_is_no_missing_one_nor_a_lost_transaction() -> None:
    """With fallback='latest' every row since the group's offset would be skipped in silence."""
    there = _answer(("orders", 7, 0), ("never", -1, 0))
    assert offsets._offsets(_connection(), there) == [offsets.GroupOffset("orders", 0, 7, "n")]
    with pytest.raises(NotYetError, match="offsets of group 'g' yet"):
        offsets._offsets(_connection(), _answer(("orders", 7, 88)))
    with pytest.raises(NotYetError):
        offsets._offsets(_connection(), _answer(code=16))
    with pytest.raises(ConfigError, match=r"no right to READ on group 'g'.*kafka-acls.sh"):
        offsets._offsets(_connection(), _answer(code=30))
    with pytest.raises(HoldfastError, match="cannot read the offsets of group 'g': error 3"):
        offsets._offsets(_connection(), _answer(("orders", -1, 3)))


def test_a_coordinator_that_moves_is_waited_for_but_not_for_ever() -> None:
    """After a broker's start groups load for a while; that is neither a missing right nor a missing offset (K7)."""
    connection, left = _connection(), [1, 2]
    connection._manager = SimpleNamespace(run=lambda function: function())

    def conversation() -> str:
        if left:
            left.pop()
            raise NotYetError("loading")
        return "here"

    assert connection.run(conversation) == "here"  # type: ignore[arg-type]
    left.append(1)
    with pytest.raises(NotYetError):
        connection.run(conversation, timeout=-1)  # type: ignore[arg-type]
    connection._net = SimpleNamespace(close=lambda: None)
    connection._manager.close = lambda: None


def test_headers_of_another_type_are_refused_and_not_dropped_in_silence() -> None:
    schema = pa.schema([("value", pa.string()), ("headers", pa.list_(pa.string()))])
    with pytest.raises(ConfigError, match="'headers' must be array<struct<key:string,value:binary>>"):
        check_schema(schema, "orders")


def test_a_task_that_cannot_begin_leaves_no_producer_in_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process serves many tasks: with the broker down each try would leave threads behind for ever."""
    made: list[TransactionalProducer] = []

    def producer(config: dict[str, Any], *, timeout: float, identified: bool) -> TransactionalProducer:
        made.append(TransactionalProducer(config, timeout=0.2, identified=identified))
        return made[-1]

    monkeypatch.setattr(target, "TransactionalProducer", producer)
    sink = TwoPhase(target.Target("kafka", NOWHERE, "orders", {"transaction.timeout.ms": 60_000}))
    before = _threads()
    for attempt in range(3):
        with pytest.raises(HoldfastError, match="initialise"):
            sink.begin(Task("p", sink.name, "a" * 32, 0, 0, 0, attempt))
    assert [p._handle for p in made] == [None] * 3
    assert _threads() <= before + 1


@pytest.mark.parametrize("identified", [True, False])
def test_only_a_producer_that_must_tell_its_identity_makes_statistics(identified: bool) -> None:
    """They would pile up in the memory of a worker while nobody polls a producer that is kept."""
    producer = TransactionalProducer(
        {"bootstrap.servers": NOWHERE, "transactional.id": "t"}, timeout=0.1, identified=identified
    )
    try:
        end = time.monotonic() + (10 if identified else 0.2)
        while not producer._latest and time.monotonic() < end:
            producer.failures()
            time.sleep(0.01)
        assert bool(producer._latest) is identified
        if identified:
            with pytest.raises(ProduceError, match="did not tell the producer id in time"):
                producer.identity()
    finally:
        producer.drop()


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"topic": None}, "no topic"),
        ({"partition": -2}, "negative partition"),
        ({"headers": [{"key": None, "value": b"x"}]}, "header without a key"),
    ],
)
def test_rows_that_could_never_be_published_are_refused_before_they_are_sealed(row: Any, problem: str) -> None:
    """After the decision they would fail every start."""
    schema = pa.schema(
        [("value", pa.string()), ("topic", pa.string()), ("partition", pa.int32()), ("headers", HEADERS)]
    )
    good = {"value": "v", "topic": "t", "partition": None, "headers": None}
    check_rows(pa.RecordBatch.from_pylist([good], schema), None)
    with pytest.raises(RowError, match=problem):
        check_rows(pa.RecordBatch.from_pylist([good, {**good, **row}], schema), None)


@pytest.mark.parametrize("mode", ["two-phase", "write-ahead"])
def test_what_the_other_mode_prepared_is_named_and_not_taken_for_its_own(mode: str) -> None:
    sink = KafkaSink(NOWHERE, "orders", mode=mode)
    place = target.Target("kafka", NOWHERE, "orders", {})
    sink._way = TwoPhase(place) if mode == "two-phase" else WriteAhead(place)
    others = {"handle": "wal/x"} if mode == "two-phase" else {"transactional_id": "hfk1-x"}
    for call in (lambda: sink.recover("p", 0, {3: [others]}), lambda: sink.commit(3, [others], LoopTasks())):
        with pytest.raises(ConfigError, match="start once more with mode="):
            call()


def test_a_topic_name_that_cannot_be_is_an_error_and_not_a_crash() -> None:
    producer = TransactionalProducer({"bootstrap.servers": NOWHERE}, timeout=1)
    try:
        with pytest.raises(RowError, match="no topic with such a name"):
            producer.partitions("x" * 600)
    finally:
        producer.drop()
