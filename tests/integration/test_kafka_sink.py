"""KafkaSink in two-phase mode against a real broker (P2-P4, P7, P8)."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

import holdfast as hf
from holdfast import errors
from holdfast.checkpoint.ports import Run
from holdfast.connectors.kafka.client.offsets import GroupOffset
from holdfast.connectors.kafka.client.transactions import COMMITTING, TransactionClient, TransactionRef
from holdfast.connectors.kafka.producer.library import MESSAGE
from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer
from holdfast.connectors.kafka.sink import ids, marks
from holdfast.connectors.kafka.sink.options import KafkaSink
from holdfast.sinks.subtask import make_task
from holdfast.testing import exercise_sink
from tests.integration.helpers import add_file, read_files
from tests.servers.kafka import KafkaBroker

Make = Callable[..., str]


def consume(broker: KafkaBroker, topic: str, *, isolation: str = "read_committed") -> list[dict[str, Any]]:
    """Every row up to the end, as a consumer of this isolation sees it."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    numbers = admin.list_topics(topic, timeout=60).topics[topic].partitions
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": uuid.uuid4().hex,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 20,
            "auto.offset.reset": "earliest",
        }
    )
    try:
        consumer.assign([TopicPartition(topic, n, 0) for n in numbers])
        rows, ended = [], set()
        while len(ended) < len(numbers):
            message = consumer.poll(10)
            assert message is not None, "the consumer is held back"
            if message.error():
                ended.add(message.partition())
            else:
                rows.append({"key": message.key(), "value": message.value(), "partition": message.partition()})
        return rows
    finally:
        consumer.close()


def late_sink(kafka: Any, topic: str, pipeline: str) -> tuple[KafkaSink, list[bool]]:
    """One whose first commit waits until its transactions have timed out, and a list that grows with its commits."""
    paused: list[bool] = []
    settings = {"bootstrap.servers": kafka.bootstrap}  # not the broker: a sink travels to the tasks

    class Late(KafkaSink):
        def commit(self, checkpoint_id, committables, tasks):  # type: ignore[no-untyped-def]
            with TransactionClient(settings) as client:
                while not paused and client.ongoing(f"hfk1-{ids.escape(pipeline)}-"):
                    time.sleep(0.5)
            paused.append(True)
            return super().commit(checkpoint_id, committables, tasks)

    return Late(kafka.bootstrap, topic, config={"transaction.timeout.ms": 8000}, name="k"), paused


@pytest.mark.usefixtures("each_way")
@pytest.mark.contract("P3")
def test_the_contract_suite(kafka: KafkaBroker, topic: Make) -> None:
    """T1-T8 without Spark, every transaction left by a check included."""
    current = {"topic": topic("contract", 1)}

    def row(n: int) -> dict[str, Any]:
        return {"key": f"k{n}".encode(), "value": None if n % 5 == 0 else f"é{n}".encode()}

    def reset() -> None:
        current["topic"] = topic("contract", 1)

    def leftovers() -> list[str]:
        with TransactionClient({"bootstrap.servers": kafka.bootstrap}) as client:
            return [t.ref.transactional_id for t in client.ongoing("hfk1-")]

    def read_rows() -> list[dict[str, Any]]:
        # Kafka answers when it has decided how a transaction ends; what readers go by, it writes a moment later.
        deadline = time.monotonic() + 20
        with TransactionClient({"bootstrap.servers": kafka.bootstrap}) as client:
            while any(client.named("hfk1-", state) for state in (COMMITTING, "PrepareAbort")):
                assert time.monotonic() < deadline, "transactions do not end"
        return [{"key": r["key"], "value": r["value"]} for r in consume(kafka, current["topic"])]

    report = exercise_sink(
        lambda: KafkaSink(kafka.bootstrap, current["topic"], name="kafka"),
        read_rows,
        schema=pa.schema([("key", pa.binary()), ("value", pa.binary())]),
        make_row=row,
        key="key",
        reset=reset,
        leftovers=leftovers,
    )
    assert len(report.passed) > 15, report


class OneTransaction:
    """A prepared transaction of a task that is gone."""

    def __init__(self, broker: KafkaBroker, topic: str, *, timeout_ms: int = 60_000, name: str = "") -> None:
        self.id = name or f"one-{uuid.uuid4().hex}"
        self.config = {"bootstrap.servers": broker.bootstrap, "transaction.timeout.ms": timeout_ms}
        self.topic, self.group = topic, f"{self.id}-mark"
        producer = TransactionalProducer({**self.config, "transactional.id": self.id}, timeout=30)
        producer.initialise()
        self.ref = TransactionRef(self.id, *producer.identity())
        producer.begin()
        value = np.frombuffer(b"row", "u1")
        message = np.zeros(1, MESSAGE)
        message["payload"], message["len"], message["partition"] = value.ctypes.data, 3, -1
        producer.produce(topic, message, partitioned=False)
        producer.mark(topic, self.group, 1, "a note")
        producer.flush()
        producer.drop()


def test_a_producer_knows_who_it_is_by_the_log_of_the_library(kafka: KafkaBroker) -> None:
    """Right after it is initialised: its statistics come once a second, and a small task does not wait for them."""
    name = f"who-{uuid.uuid4().hex}"
    producers = [
        TransactionalProducer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name}, timeout=30)
        for _ in range(2)
    ]
    try:
        epochs = []
        for producer in producers:
            producer.initialise()
            producer.failures()
            assert producer._identity is not None
            assert producer._identity._told == producer.identity()
            with TransactionClient({"bootstrap.servers": kafka.bootstrap}) as client:
                assert [t.ref for t in client.describe([name])] == [TransactionRef(name, *producer.identity())]
            epochs.append(producer.identity()[1])
        assert epochs[0] < epochs[1]
    finally:
        for producer in producers:
            producer.drop()


@pytest.mark.contract("P3")
class TestEndTxn:
    """The table of facts.md, version 5: what each answer means is what the sink's commit rests on."""

    @pytest.fixture
    def client(self, kafka: KafkaBroker) -> Iterator[TransactionClient]:
        with TransactionClient({"bootstrap.servers": kafka.bootstrap}) as client:
            yield client

    def end(self, client: TransactionClient, ref: TransactionRef, *, commit: bool = True) -> int:
        code = client.end([ref], commit=commit)[0]
        deadline = time.monotonic() + 60
        while code == 51 and time.monotonic() < deadline:
            time.sleep(0.05)
            code = client.end([ref], commit=commit)[0]
        return code

    def marked(self, one: OneTransaction) -> list[GroupOffset]:
        return marks.read(one.config, [one.group])[one.group]

    def test_open_then_repeated(self, kafka, topic, client) -> None:
        one = OneTransaction(kafka, topic())
        assert self.end(client, one.ref) == 0
        assert self.end(client, one.ref) == 0
        assert self.marked(one) == [GroupOffset(one.topic, 0, 1, "a note")]
        assert len(consume(kafka, one.topic)) == 1

    def test_aborted_before(self, kafka, topic, client) -> None:
        one = OneTransaction(kafka, topic())
        assert self.end(client, one.ref, commit=False) == 0
        assert self.end(client, one.ref) == 48
        assert self.marked(one) == []
        assert consume(kafka, one.topic) == []

    def test_timed_out_and_swept(self, kafka, topic, client) -> None:
        one = OneTransaction(kafka, topic(), timeout_ms=1000)
        deadline = time.monotonic() + 60
        while client.ongoing(one.id) and time.monotonic() < deadline:
            time.sleep(0.5)
        assert self.end(client, one.ref) == 48
        assert self.marked(one) == []

    @pytest.mark.parametrize("committed", [True, False])
    def test_initialised_again_since(self, kafka, topic, client, committed) -> None:
        one = OneTransaction(kafka, topic())
        if committed:
            assert self.end(client, one.ref) == 0
        OneTransaction(kafka, one.topic, name=one.id)
        assert self.end(client, one.ref) == 90
        again = client.ongoing(one.id)[0].ref
        assert self.end(client, again, commit=False) == 0
        assert len(self.marked(one)) == committed

    def test_wrong_epoch_wrong_producer_unknown_id(self, kafka, topic, client) -> None:
        one = OneTransaction(kafka, topic())
        assert self.end(client, TransactionRef(one.id, one.ref.producer_id, one.ref.epoch + 7)) == 90
        assert self.end(client, TransactionRef(one.id, one.ref.producer_id + 999, one.ref.epoch)) == 49
        assert self.end(client, TransactionRef("never-seen", one.ref.producer_id, one.ref.epoch)) == 49
        assert self.end(client, one.ref, commit=False) == 0

    def test_no_rows_and_no_mark(self, kafka, client) -> None:
        name = f"empty-{uuid.uuid4().hex}"
        producer = TransactionalProducer({"bootstrap.servers": kafka.bootstrap, "transactional.id": name}, timeout=30)
        producer.initialise()
        ref = TransactionRef(name, *producer.identity())
        producer.begin()
        producer.drop()
        assert self.end(client, ref) == 48


def test_an_abort_that_librdkafka_forgets_is_done_all_the_same(
    kafka: KafkaBroker, topic: Make, tmp_path: Path, monkeypatch
) -> None:
    """An answer to AddPartitionsToTxn in the middle of its abort, and it sends no EndTxn: seen 2 times in 300."""
    sink = KafkaSink(kafka.bootstrap, topic("forgotten", 1), name="kafka")
    run = Run(f"pipe-{uuid.uuid4().hex[:8]}", "a" * 16, 1, str(tmp_path))
    sink.open(run)
    txn = sink.begin(make_task(run, sink.name, 0, 0, 0, 0))
    sink.write(txn, pa.record_batch({"value": [b"a row"]}))
    txn._producer.flush()
    with TransactionClient({"bootstrap.servers": kafka.bootstrap}) as client:
        assert [t.ref.transactional_id for t in client.ongoing(txn._id)] == [txn._id]
        monkeypatch.setattr(TransactionalProducer, "abort", lambda self: None)
        sink.abort(txn)
        assert client.ongoing(txn._id) == []
    sink.close()


@pytest.mark.contract("T8")
@pytest.mark.spark
def test_kafka_and_sqlite_with_one_decision_on_spark(spark, kafka, topic: Make, tmp_path: Path) -> None:
    """T8, P2: keys land where Kafka's default partitioner puts them; nothing stays open."""
    name = topic("out", 4)
    for number in range(2):
        add_file(tmp_path / "in", number, range(number * 500, number * 500 + 500))
    frame = read_files(spark, tmp_path / "in").repartition(3)
    rows = frame.selectExpr("cast(id as string) key", "to_json(struct(*)) value")
    sinks = [KafkaSink(kafka.bootstrap, name), hf.SqliteSink(str(tmp_path / "out.db"), "orders")]
    writer = hf.write_stream(rows, sinks, name="both", checkpoint_location=str(tmp_path / "c"))
    writer.trigger(availableNow=True).start().awaitTermination()
    found = consume(kafka, name)
    assert sorted(int(r["key"]) for r in found) == list(range(1000))
    assert sorted(int(k) for (k,) in _keys(tmp_path / "out.db")) == list(range(1000))
    with TransactionClient({"bootstrap.servers": kafka.bootstrap}) as client:
        assert client.ongoing("hfk1-both-") == []
    assert {r["partition"] for r in found} == {0, 1, 2, 3}


def _keys(database: Path) -> list[tuple[Any, ...]]:
    from tests.integration.helpers import select

    return select(database, "SELECT key FROM orders")


@pytest.mark.contract("P5")
@pytest.mark.spark
def test_a_transaction_that_times_out_while_the_query_runs_is_produced_again(
    spark, kafka, topic: Make, tmp_path: Path
) -> None:
    """P5 without a restart: the driver was paused between decision and commit, and the batch is still at hand."""
    name = topic("late", 1)
    add_file(tmp_path / "in", 0, range(10))
    frame = read_files(spark, tmp_path / "in").selectExpr("cast(id as string) value")
    sink, paused = late_sink(kafka, name, name)
    writer = hf.write_stream(frame, sink, name=name, checkpoint_location=str(tmp_path / "c"))
    writer.trigger(availableNow=True).start().awaitTermination()
    assert len(paused) == 2
    assert sorted(int(row["value"]) for row in consume(kafka, name)) == list(range(10))
    assert hf.checkpoints(str(tmp_path / "c"))[0].repaired == {"k": {"rows": 10, "subtasks": 1}}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"key": pa.string()}, "value must be there"),
        ({"value": pa.string(), "colour": pa.string()}, "takes the columns"),
        ({"value": pa.int64()}, "string or binary"),
        ({"value": pa.string(), "partition": pa.string()}, "must be an int"),
    ],
)
def test_columns_are_checked_before_the_first_row(columns, message) -> None:
    from holdfast.connectors.kafka.producer.arrow import check_schema

    with pytest.raises(errors.ConfigError, match=message):
        check_schema(pa.schema(list(columns.items())), "topic")
    with pytest.raises(errors.ConfigError, match="a column named topic"):
        check_schema(pa.schema([("value", pa.string())]), None)


def test_transactional_ids_parse_back_and_generations_form_a_ring() -> None:
    one = ids.KafkaId("my-pipe", "kafka-out.1", "0123456789ab", 15, 3, 2)
    assert ids.parse(str(one)) == one
    assert ids.parse("hfk1-a-b-1-2") is None and ids.parse("other") is None
    assert ids.is_own_or_older(3, 3) and ids.is_own_or_older(255, 256 + 2) and not ids.is_own_or_older(4, 3)
