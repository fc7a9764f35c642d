"""Kafka without a broker: what a client is told, what is refused, and what is left behind."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.kafka import marks, start, target
from holdfast.connectors.kafka.arrow import check_schema
from holdfast.connectors.kafka.client import admin, client_config
from holdfast.connectors.kafka.rdkafka import ProduceError, TransactionalProducer
from holdfast.connectors.kafka.two_phase import TwoPhase
from holdfast.core.naming import Task
from holdfast.errors import ConfigError, HoldfastError, SourceError

NOWHERE = "127.0.0.1:1"


def _threads() -> int:
    return sum(1 for _ in Path("/proc/self/task").iterdir())


class _Failure:
    def code(self) -> int:
        return 88

    def str(self) -> str:
        return "unstable offset commit"


def _answering(*partitions: Any) -> Any:
    """An admin client whose groups hold just these partitions."""
    answer = SimpleNamespace(result=lambda: SimpleNamespace(topic_partitions=list(partitions)))
    return SimpleNamespace(list_consumer_group_offsets=lambda asked, **_: {asked[0].group_id: answer})


def _partition(topic: str, offset: int, error: Any = None) -> Any:
    return SimpleNamespace(topic=topic, partition=0, offset=offset, metadata=None, error=error)


def test_options_only_javas_client_knows_do_not_reach_librdkafka() -> None:
    """They go to Spark's source as they are; an admin client made with one would raise."""
    options = {"kafka.fetch.max.wait.ms": "500", "kafka.ssl.truststore.location": "/t", "kafka.client.id": "me"}
    config = client_config(NOWHERE, options)
    assert config == {"client.id": "me", "bootstrap.servers": NOWHERE, "log_level": 0}
    admin(config)


def test_k7_a_group_offset_that_cannot_be_read_is_no_missing_one() -> None:
    """With fallback='latest' every row since the group's offset would be skipped in silence."""
    broken = _partition("orders", -1001, _Failure())
    with pytest.raises(SourceError, match=r"group 'g' for orders\[0\] cannot be read: unstable offset commit"):
        start._group_offsets(_answering(broken), {}, "g", {"orders": [0]})
    strange = _partition("elsewhere", -1001, _Failure())
    found = start._group_offsets(_answering(strange, _partition("orders", 7)), {}, "g", {"orders": [0]})
    assert found == {"orders": {0: 7}}


def test_a_mark_that_cannot_be_read_is_no_lost_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marks, "admin", lambda _: _answering(_partition("orders", -1001, _Failure())))
    with pytest.raises(HoldfastError, match="cannot read the mark of group 'm': unstable offset commit"):
        marks.read({}, ["m"])
    monkeypatch.setattr(marks, "admin", lambda _: _answering(_partition("orders", 5)))
    assert marks.read({}, ["m"]) == {"m": [marks.Mark("orders", 5, "")]}


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
