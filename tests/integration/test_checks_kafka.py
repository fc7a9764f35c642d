"""The findings of `holdfast check` about Kafka, provoked on real brokers (R2)."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.storage import open_storage
from holdfast.connectors.kafka.client import wire
from holdfast.connectors.kafka.sink import ids
from holdfast.pipeline.checks.examine import findings
from holdfast.pipeline.checks.registry import Level
from holdfast.pipeline.checks.situation import Situation
from tests.integration.checking import MESSAGES, deliver, found, one, situation
from tests.integration.test_kafka_security import allow, java_options
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_secured import SecuredBroker

OK, WARNING, FATAL = Level.OK, Level.WARNING, Level.FATAL


@pytest.fixture
def query(tmp_path: Path, kafka: KafkaBroker) -> Callable[..., Situation]:
    def make(topic: str, location: str = "checkpoint", schema: pa.Schema = MESSAGES, **options: Any) -> Situation:
        servers = options.pop("servers", kafka.bootstrap)
        more = {"retry": options.pop("retry")} if "retry" in options else {}
        sink = hf.KafkaSink(servers, topic, name="out", **options)
        return situation(tmp_path / location, sink, schema=schema, **more)

    return make


def ends(kafka: KafkaBroker, topic: str) -> dict[int, int]:
    """The next offset of each partition: control records count too."""
    from confluent_kafka import TopicPartition
    from confluent_kafka.admin import OffsetSpec

    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    wanted = {TopicPartition(topic, n): OffsetSpec.latest() for n in range(2)}
    return {p.partition: f.result(60).offset for p, f in client.list_offsets(wanted).items()}


@pytest.mark.contract("R2")
def test_a_good_topic_is_found_good_and_nothing_is_changed(query, kafka: KafkaBroker, topic) -> None:
    name = topic("good")
    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    before = {g.group_id for g in client.list_consumer_groups().result(60).valid}
    said = {f.check: f.level for f in findings(query(name), only="kafka")}
    # one broker: the only thing a test broker cannot have
    assert {check for check, level in said.items() if level is not OK} == {"kafka-replication"}
    assert ends(kafka, name) == {0: 0, 1: 0}
    assert {g.group_id for g in client.list_consumer_groups().result(60).valid} == before


@pytest.mark.contract("R2")
def test_kafka_reach(query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "PATIENCE", 1.0)
    writer = query("t", servers="127.0.0.1:1")
    said = one(writer, "kafka-reach", FATAL, "did not answer", "bootstrap_servers")
    assert said.action == "restart"
    assert [f.check for f in findings(writer, only="kafka")] == ["kafka-reach"]  # nothing else is asked of it


def test_no_answer(query, kafka: KafkaBroker, topic, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that hangs holds nobody up for longer than the time that was given."""
    hang = threading.Event()
    monkeypatch.setattr("holdfast.pipeline.checks.kafka.topic_setups", lambda *_, **__: hang.wait(60) and {})
    (late,) = findings(query(topic("slow")), only="kafka-topic", patience=2.0)
    hang.set()
    assert (late.check, late.level, late.action) == ("no-answer", FATAL, "restart")
    assert "kafka-topic" in late.text


def test_kafka_topic_and_columns(query, kafka: KafkaBroker, topic) -> None:
    name = f"none-{uuid.uuid4().hex[:6]}"
    one(query(name), "kafka-topic", FATAL, name, "Create the topic")
    assert name not in AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=60).topics
    one(query(topic(), schema=pa.schema([("id", pa.int64())])), "kafka-columns", FATAL, "value", "to_json")


@pytest.mark.contract("R2")
def test_kafka_transaction_timeout(query, topic, tmp_path: Path) -> None:
    name = topic()
    one(query(name), "kafka-transaction-timeout", OK)
    long = query(name, config={"transaction.timeout.ms": 3_600_000})
    one(long, "kafka-transaction-timeout", FATAL, "transaction.max.timeout.ms=900000")
    short = {"transaction.timeout.ms": 60_000}
    one(query(name, config=short), "kafka-transaction-timeout", WARNING, "tried again for 300 s", "retry.for_")
    stats = {"checkpoint_id": 0, "status": "complete", "generation": 0, "durations": {"tasks": 40.0}}
    storage = open_storage(log_location(str(tmp_path / "checkpoint")))
    storage.create("history/0.0.jsonl", (json.dumps(stats) + "\n").encode())
    retry = hf.Retry(for_="30s")
    one(query(name, config=short, retry=retry), "kafka-transaction-timeout", WARNING, "took 40 s", "60 s")


@pytest.mark.contract("R2")
def test_kafka_id_prefix_and_ledger(query, kafka: KafkaBroker, topic, tmp_path: Path) -> None:
    """Another checkpoint location of the same name: first it only has a transaction open, then it has delivered."""
    name = topic()
    one(query(name), "kafka-id-prefix", OK)
    other = str(ids.KafkaId("orders", "out", "0123456789ab", 1, 0, 1))
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": other})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"not yet")
    producer.flush(30)
    one(query(name), "kafka-id-prefix", FATAL, "transactions open", "another name")
    producer.abort_transaction(30)
    one(query(name), "kafka-id-prefix", OK)
    deliver(tmp_path / "first", hf.KafkaSink(kafka.bootstrap, name, name="out"), schema=MESSAGES)
    one(query(name, "first"), "kafka-ledger", OK)
    one(query(name, "second"), "kafka-ledger", FATAL, "another checkpoint location")


def test_kafka_unclean_election(query, topic) -> None:
    name = topic(**{"unclean.leader.election.enable": "true"})
    one(query(name), "kafka-unclean-election", WARNING, name, "unclean.leader.election.enable=false")
    one(query(topic()), "kafka-unclean-election", OK)


def test_kafka_replication(query, topic) -> None:
    said = found(query(topic()), "kafka-replication")
    assert {f.level for f in said} == {WARNING} and any("one replica" in f.text for f in said)
    short = topic(**{"min.insync.replicas": "2"})
    fatal = [f for f in found(query(short), "kafka-replication") if f.level is FATAL]
    assert len(fatal) == 1 and "min.insync.replicas=2" in fatal[0].text


def source(frame: Any, folder: Path) -> Situation:
    rows = frame.selectExpr("string(value) AS value")
    writer = hf.write_stream(
        rows, hf.SqliteSink(folder / "out.db", "t"), name="orders", checkpoint_location=folder / "checkpoint"
    )
    return Situation.of(writer)  # type: ignore[arg-type]


@pytest.mark.spark
def test_kafka_source_that_cannot_start(spark: SparkSession, kafka: KafkaBroker, tmp_path: Path) -> None:
    frame = hf.read_kafka(
        spark, bootstrap_servers=kafka.bootstrap, topics=["no-such-topic"], group_id="g", start=hf.StartFrom.earliest()
    )
    one(source(frame, tmp_path), "kafka-source", FATAL, "no-such-topic")


# -- rights, and settings that only another broker has ----------------------------------------------------------------

USERS = {name: f"pa55-{uuid.uuid4().hex[:8]}" for name in ("alice", "bob")}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"), USERS)
    with broker._properties.open("a") as file:
        file.write("offsets.retention.minutes=60\n")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def guarded(secured: SecuredBroker) -> str:
    client, name = AdminClient({"bootstrap.servers": secured.bootstrap}), f"t-{uuid.uuid4().hex[:6]}"
    client.create_topics([NewTopic(name, 2, 1)])[name].result(60)
    return name


def test_kafka_offsets_retention(query, secured: SecuredBroker, guarded: str) -> None:
    writer = query(guarded, servers=secured.bootstrap)
    one(writer, "kafka-offsets-retention", WARNING, "51.4 minutes", "offsets.retention.minutes")


@pytest.mark.contract("R2")
def test_kafka_rights_are_tried_one_by_one(query, secured: SecuredBroker, guarded: str, tmp_path: Path) -> None:
    """Each right that is granted makes the next missing one the finding; with all of them rows arrive."""
    config = secured.scram("alice")

    def writer() -> Situation:
        return query(guarded, servers=secured.address("SASL_SSL"), config=config)

    def missing() -> str:
        return " ".join(f.text for f in found(writer(), "kafka-rights") if f.level is FATAL)

    allow(secured, "alice", "DESCRIBE", "TOPIC", guarded)
    allow(secured, "alice", "DESCRIBE", "TRANSACTIONAL_ID", "hfk1-orders-out-", "PREFIXED")
    assert "WRITE on transactional id" in missing()
    allow(secured, "alice", "WRITE", "TRANSACTIONAL_ID", "hfk1-orders-out-", "PREFIXED")
    assert "WRITE on topic" in missing() and "READ on group" in missing()
    allow(secured, "alice", "WRITE", "TOPIC", guarded)
    assert "WRITE on topic" not in missing() and "READ on group" in missing()
    allow(secured, "alice", "READ", "GROUP", "hfk1-orders-out-", "PREFIXED")
    assert "hfl1-orders-out" in missing()
    allow(secured, "alice", "READ", "GROUP", "hfl1-orders-out")
    assert "no right to READ on topic" in missing()
    allow(secured, "alice", "READ", "TOPIC", guarded)
    assert missing() == ""
    assert ends(secured, guarded) == {0: 0, 1: 0}
    servers = secured.address("SASL_SSL")
    deliver(tmp_path / "checkpoint", hf.KafkaSink(servers, guarded, name="out", config=config), schema=MESSAGES)
    assert sum(ends(secured, guarded).values()) > 0


@pytest.mark.spark
@pytest.mark.contract("R2")
def test_kafka_source_group(spark: SparkSession, secured: SecuredBroker, guarded: str, tmp_path: Path) -> None:
    allow(secured, "bob", "READ", "TOPIC", guarded)
    allow(secured, "bob", "DESCRIBE", "GROUP", "lookers")

    def writer() -> Situation:
        frame = hf.read_kafka(
            spark,
            bootstrap_servers=secured.address("SASL_SSL"),
            topics=[guarded],
            group_id="lookers",
            options=java_options(secured, "bob"),
        )
        return source(frame, tmp_path)

    one(writer(), "kafka-source-group", WARNING, "READ on group 'lookers'", "commit_offsets")
    allow(secured, "bob", "READ", "GROUP", "lookers")
    one(writer(), "kafka-source-group", OK)
    one(writer(), "kafka-source", OK)
