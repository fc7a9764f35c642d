"""Kafka without a broker: what a client is told, what is refused, and what is left behind."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.ports import LoopTasks
from holdfast.connectors.kafka.client import offsets
from holdfast.connectors.kafka.client import topics as topics_module
from holdfast.connectors.kafka.client.settings import admin, client_config
from holdfast.connectors.kafka.client.topics import Topic
from holdfast.connectors.kafka.client.transactions import OpenTransaction, TransactionClient, TransactionRef
from holdfast.connectors.kafka.client.wire import TRANSACTION, Connection, NotYetError
from holdfast.connectors.kafka.producer import identity
from holdfast.connectors.kafka.producer.arrow import check_schema
from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer
from holdfast.connectors.kafka.producer.refusal import ProduceError, refusal
from holdfast.connectors.kafka.sink import rows as rows_module
from holdfast.connectors.kafka.sink import target
from holdfast.connectors.kafka.sink.options import KafkaSink
from holdfast.connectors.kafka.sink.rows import check_rows
from holdfast.connectors.kafka.sink.two_phase import TwoPhase
from holdfast.connectors.kafka.source import start
from holdfast.core.model import Outcome
from holdfast.core.naming import Task
from holdfast.errors import ConfigError, HoldfastError, RowError, SinkError, SourceError, permanent

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
    connection._config, connection._rights, connection._owner = {"bootstrap.servers": NOWHERE}, "Read", "sink 's'"
    connection._lock, connection._manager, connection._net = threading.RLock(), None, None
    connection._known = {}
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
    connection._manager = SimpleNamespace(run=lambda function: function(), close=lambda: None)
    connection._net = SimpleNamespace(close=lambda: None)

    def conversation() -> str:
        if left:
            left.pop()
            raise NotYetError("loading")
        return "here"

    assert connection.run(conversation) == "here"  # type: ignore[arg-type]
    left.append(1)
    with pytest.raises(SinkError, match=r"sink 's': Kafka at 127.0.0.1:1 did not answer .*loading.*check that") as told:
        connection.run(conversation, timeout=-1)  # type: ignore[arg-type]
    assert not permanent(told.value)


def test_a_coordinator_is_asked_for_once_until_it_is_not_one_any_more() -> None:
    connection, asked = _connection(), []
    connection._manager = SimpleNamespace(run=lambda function: asyncio.run(function()), close=lambda: None)
    connection._net = SimpleNamespace(close=lambda: None)
    moved: list[bool] = []

    async def send(request: Any, _node: int | None = None) -> Any:
        asked.append(list(request.coordinator_keys))
        found = [SimpleNamespace(key=k, error_code=0, node_id=7 + len(moved)) for k in request.coordinator_keys]
        return SimpleNamespace(coordinators=found)

    connection.send = send  # type: ignore[method-assign]

    async def conversation() -> dict[str, int]:
        nodes = await connection.coordinators(TRANSACTION, ["a", "b"])
        if moved == [True]:
            moved.append(False)
            raise NotYetError("not coordinator")
        return nodes

    assert connection.run(conversation) == {"a": 7, "b": 7} == connection.run(conversation)
    assert asked == [["a", "b"]]
    moved.append(True)
    assert connection.run(conversation) == {"a": 9, "b": 9}
    assert asked == [["a", "b"]] * 2
    connection.close()
    assert connection._known == {}, "new sockets may lead to other brokers"


def test_headers_of_another_type_are_refused_and_not_dropped_in_silence() -> None:
    schema = pa.schema([("value", pa.string()), ("headers", pa.list_(pa.string()))])
    with pytest.raises(ConfigError, match="'headers' must be array<struct<key:string,value:binary>>"):
        check_schema(schema, "orders")


def test_a_task_that_cannot_begin_leaves_no_producer_in_its_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process serves many tasks: with the broker down each try would leave threads behind for ever."""
    made: list[TransactionalProducer] = []

    def producer(config: dict[str, Any], *, timeout: float, **options: Any) -> TransactionalProducer:
        made.append(TransactionalProducer(config, timeout=0.2, **options))
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
def test_only_a_producer_that_must_tell_its_identity_tells_anything(identified: bool, monkeypatch) -> None:
    """Statistics and log lines would pile up in the memory of a worker while nobody polls a producer that is kept."""
    made, new = [], TransactionalProducer._new
    monkeypatch.setattr(TransactionalProducer, "_new", lambda self, config: made.append(config) or new(self, config))
    producer = TransactionalProducer(
        {"bootstrap.servers": NOWHERE, "transactional.id": "t"}, timeout=0.1, identified=identified
    )
    try:
        assert [(bool(c["statistics.interval.ms"]), bool(c["log_level"])) for c in made] == [(identified, identified)]
        if identified:
            with pytest.raises(ProduceError, match="did not tell the producer id in time"):
                producer.identity()
    finally:
        producer.drop()


class TestIdentity:
    def test_the_log_tells_it_and_each_change_of_it(self) -> None:
        found = identity.Identity()
        assert found.known is None
        found._log(0, 7, b"GETPID", b"TxnCoordinator/1: Acquiring ProducerId")
        found._log(0, 4, b"GETPID", b"Acquired invalid PID{-1,-1}: ignoring")
        assert found.known is None
        found._log(0, 7, b"GETPID", b"Acquired PID{Id:4000,Epoch:0}")
        assert found.known == (4000, 0)
        found._log(0, 7, b"GETPID", b"[thrd:main]: Acquired PID{Id:4000,Epoch:2} (previous PID{Id:4000,Epoch:1})")
        assert found.known == (4000, 2)

    def test_a_log_that_is_worded_otherwise_leaves_it_to_the_statistics(self) -> None:
        found = identity.Identity()
        for told, known in [
            (b'{"eos": {"producer_id": -1, "producer_epoch": -1}}', None),
            (b'{"eos": {"producer_id": 7, "producer_epoch": 3}}', (7, 3)),
        ]:
            text = ctypes.create_string_buffer(told)
            found._statistics(0, ctypes.addressof(text), len(told), 0)
            assert found.known == known


HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("value", pa.binary()),
        ("topic", pa.binary()),
        ("partition", pa.int32()),
        ("headers", HEADERS),
    ]
)
GOOD = {"key": "k", "value": b"v", "topic": b"t", "partition": None, "headers": None}
#: As CAST(X'6162ff' AS STRING) makes them.
NOT_UTF8 = pa.Array.from_buffers(pa.string(), 1, list(pa.array([b"ab\xff"]).buffers()))


def place(*, config: dict[str, Any] | None = None, **topics: Topic) -> target.Target:
    known = topics or {"t": Topic(4, 1_048_588)}
    return target.Target("kafka", NOWHERE, None, config or {}, known)


@pytest.fixture
def as_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Brokers that say what the driver knows already."""
    monkeypatch.setattr(rows_module, "_KNOWN", {})
    monkeypatch.setattr(rows_module, "_look_up", lambda name, where: where.known[name])


@pytest.mark.usefixtures("as_known")
@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"topic": None}, "no topic"),
        ({"topic": b"a b"}, "'topic'.*no topic with such a name: 'a b'"),
        ({"topic": b"ab\xff"}, r"no topic with such a name: 'ab\\\\xff'"),
        ({"topic": b".."}, "no topic with such a name"),
        ({"topic": b"x" * 250}, "no topic with such a name"),
        ({"partition": -2}, "negative partition"),
        ({"partition": 4}, "sink 'kafka': topic 't': column 'partition': a row names partition 4.* 0 to 3"),
        ({"headers": [{"key": None, "value": b"x"}]}, "header without a key"),
        ({"value": b"x" * 1_000_000}, "column 'value': a row of 1000001 bytes.*too large: 999964"),
        ({"key": "x" * 1_000_000}, "too large"),
        ({"headers": [{"key": "h", "value": b"x" * 999_999}]}, "too large"),
        ({"headers": [{"key": "h" * 600_000, "value": None}, {"key": "h", "value": b"x" * 600_000}]}, "too large"),
    ],
)
def test_rows_that_could_never_be_published_are_refused_before_they_are_sealed(row: Any, problem: str) -> None:
    """Rule 11: after the decision they would fail every start."""
    check_rows(pa.RecordBatch.from_pylist([GOOD], SCHEMA), place())
    with pytest.raises(RowError, match=problem):
        check_rows(pa.RecordBatch.from_pylist([GOOD, {**GOOD, **row}], SCHEMA), place())


@pytest.mark.usefixtures("as_known")
def test_the_topics_own_limit_and_the_clients_count_both_and_many_small_rows_are_not_one_large_one() -> None:
    big = pa.RecordBatch.from_pylist([{**GOOD, "value": b"x" * 5000}], SCHEMA)
    check_rows(big, place())
    check_rows(pa.RecordBatch.from_pylist([{**GOOD, "value": b"x" * 5000}] * 400, SCHEMA), place())
    for where in (place(t=Topic(4, 5000)), place(config={"message.max.bytes": 5000})):
        with pytest.raises(RowError, match="too large"):
            check_rows(big, where)
    check_rows(big, place(config={"message.max.bytes": 2_000_000}, t=Topic(4, None)))


@pytest.mark.usefixtures("as_known")
def test_a_compacted_topic_takes_no_row_without_a_key() -> None:
    compacted = place(t=Topic(4, None, compacted=True))
    check_rows(pa.RecordBatch.from_pylist([GOOD], SCHEMA), compacted)
    with pytest.raises(RowError, match=r"column 'key'.*compacted"):
        check_rows(pa.RecordBatch.from_pylist([{**GOOD, "key": None}], SCHEMA), compacted)


@pytest.mark.usefixtures("as_known")
def test_text_that_is_not_utf8_is_refused_where_kafka_wants_text_and_goes_as_it_is_where_it_wants_bytes() -> None:
    entries = pa.StructArray.from_arrays([NOT_UTF8, pa.array([b"x"])], ["key", "value"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), entries)
    good = {"value": NOT_UTF8, "topic": pa.array(["t"])}
    check_rows(pa.RecordBatch.from_pydict(good), place())
    with pytest.raises(RowError, match="'headers': a header's key is not UTF-8"):
        check_rows(pa.RecordBatch.from_pydict({**good, "headers": lists}), place())
    with pytest.raises(RowError, match="no topic with such a name"):
        check_rows(pa.RecordBatch.from_pydict({**good, "topic": NOT_UTF8}), place())


def test_a_topic_that_is_wider_than_it_was_is_looked_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_module, "_KNOWN", {})
    monkeypatch.setattr(topics_module, "look_up", lambda *_, **__: {"t": Topic(9)})
    row = pa.RecordBatch.from_pylist([{**GOOD, "partition": 8}], SCHEMA)
    check_rows(row, place())
    monkeypatch.setattr(topics_module, "look_up", lambda *_, **__: {})
    check_rows(row, place())
    with pytest.raises(RowError, match=r"topic 'other' is not in Kafka at 127.0.0.1:1.*create it"):
        check_rows(pa.RecordBatch.from_pylist([{**GOOD, "topic": b"other"}], SCHEMA), place())


@pytest.mark.parametrize(
    ("code", "kind", "remedy"),
    [
        (10, RowError, "max.message.bytes"),
        (87, RowError, "compacted"),
        (50, ConfigError, "transaction.max.timeout.ms"),
        (-169, ConfigError, "sasl"),
        (-185, SinkError, "Trying again may help"),
        (19, SinkError, "brokers run"),
    ],
)
def test_what_kafka_refuses_says_whose_fault_it_is_and_what_to_do(code: int, kind: type, remedy: str) -> None:
    error = refusal(code, "sink 's': Kafka at b:1 refused")
    assert isinstance(error, kind) and permanent(error) is (kind is not SinkError)
    assert str(error).startswith("sink 's': Kafka at b:1 refused") and remedy in str(error)


class Way(TwoPhase):
    """Remembers what it was asked."""

    def __init__(self, answer: Outcome) -> None:
        super().__init__(place())
        self.answer, self.asked = answer, []

    def commit(self, checkpoint_id: int, committables: Any, tasks: Any) -> Outcome:
        self.asked.append((checkpoint_id, list(committables)))
        return self.answer

    def recover(self, pipeline: str, generation: int, decided: Any) -> None:
        self.asked.append(decided)


@pytest.mark.parametrize("mode", ["two-phase", "write-ahead"])
def test_what_was_prepared_in_another_mode_is_committed_and_swept_in_that_mode(mode: str) -> None:
    """Rule 16."""
    sink = KafkaSink(NOWHERE, "orders", mode=mode)
    sealed, opened = {"handle": "wal/x"}, {"transactional_id": "hfk1-x"}
    ways = {"write-ahead": Way(Outcome.ALREADY_COMMITTED), "two-phase": Way(Outcome.COMMITTED)}
    sink._ways, sink._way, sink._swept = ways, ways[mode], True
    assert sink.commit(3, [sealed], LoopTasks()) is Outcome.ALREADY_COMMITTED
    assert sink.commit(4, [opened], LoopTasks()) is Outcome.COMMITTED
    assert sink.commit(5, [sealed, opened], LoopTasks()) is Outcome.COMMITTED
    ways["two-phase"].answer = Outcome.RETRY
    assert sink.commit(6, [sealed, opened], LoopTasks()) is Outcome.RETRY
    sink.recover("p", 0, {7: [sealed, opened]})
    assert ways["write-ahead"].asked == [(3, [sealed]), (5, [sealed]), (6, [sealed]), {7: [sealed]}]
    assert ways["two-phase"].asked == [(4, [opened]), (5, [opened]), (6, [opened]), {7: [opened]}]


def test_a_sink_names_its_brokers_and_no_secret() -> None:
    sink = KafkaSink(NOWHERE, "orders", config={"sasl.password": "geheim"})
    assert sink.address == NOWHERE and "geheim" not in repr(sink)


def test_a_topic_name_that_cannot_be_is_an_error_and_not_a_crash() -> None:
    producer = TransactionalProducer({"bootstrap.servers": NOWHERE}, timeout=1)
    try:
        with pytest.raises(RowError, match="no topic with such a name"):
            producer.partitions("x" * 600)
    finally:
        producer.drop()


@pytest.mark.parametrize("state", ["PrepareCommit", "PrepareAbort", "CompleteAbort", "Empty"])
def test_only_an_open_transaction_of_the_same_producer_is_still_prepared(state: str) -> None:
    """Rule 14."""
    mine = {"transactional_id": "a", "producer_id": 1, "epoch": 2}
    found = [OpenTransaction(TransactionRef("a", 1, 2), "Ongoing", 1, 1, ())]
    sink = TwoPhase(place())
    sink._driver = SimpleNamespace(describe=lambda names: [t for t in found if t.ref.transactional_id in names])
    assert sink.still_prepared([mine, {**mine, "epoch": 3}, {**mine, "transactional_id": "b"}]) == [mine]
    found[0] = replace(found[0], state=state)
    assert sink.still_prepared([mine]) == []


def test_an_answer_that_was_lost_is_asked_for_again_and_the_others_are_not() -> None:
    """One of two coordinators goes away in the middle: what the other did is not asked twice."""
    from kafka.errors import KafkaConnectionError

    client, sent = object.__new__(TransactionClient), []
    client.__dict__.update(vars(_connection()))

    async def coordinators(_kind: int, keys: list[str]) -> dict[str, int]:
        return dict.fromkeys(keys, 1)

    async def answer(name: str) -> Any:
        sent.append(name)
        if name == "b" and sent.count("b") == 1:
            raise KafkaConnectionError("socket disconnected")
        return SimpleNamespace(error_code=14 if name == "c" and sent.count("c") == 1 else 0)

    client.coordinators, client._end = coordinators, lambda ref, _nodes, *, commit: answer(ref.transactional_id)
    client._connected = lambda _deadline: SimpleNamespace(run=lambda function: asyncio.run(function()))
    assert client.end([TransactionRef(name, 1, 1) for name in "abc"], commit=True) == [0, 0, 0]
    assert sent == ["a", "b", "c", "b", "c"]


def test_d9_a_leader_that_is_new_is_asked_again_where_its_partitions_end(monkeypatch: pytest.MonkeyPatch) -> None:
    from confluent_kafka import KafkaError, KafkaException

    monkeypatch.setattr(start, "_PAUSE", 0.0)
    answers = [KafkaError.OFFSET_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, None]

    def list_offsets(asked: Any, **_: Any) -> dict[Any, Future[Any]]:
        future: Future[Any] = Future()
        code = answers.pop(0)
        if code is None:
            future.set_result(SimpleNamespace(offset=7))
        else:
            future.set_exception(KafkaException(KafkaError(code)))
        return dict.fromkeys(asked, future)

    client: Any = SimpleNamespace(list_offsets=list_offsets)
    assert list(start._ends(client, {"t": {0: 0}}, None).values()) == [7]
    answers[:] = [KafkaError.TOPIC_AUTHORIZATION_FAILED]
    with pytest.raises(SourceError, match="begin and end"):
        start._ends(client, {"t": {0: 0}}, None)
    monkeypatch.setattr(start, "TIMEOUT", 0.0)
    answers[:] = [KafkaError.OFFSET_NOT_AVAILABLE]
    with pytest.raises(SourceError, match="begin and end"):
        start._ends(client, {"t": {0: 0}}, None)
