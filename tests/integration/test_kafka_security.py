"""Kafka with SASL/SCRAM, TLS and ACLs: both clients and Spark, with just the documented rights.

Each test uses a user or names of its own, so that rights granted by one do not help another.
"""

from __future__ import annotations

import contextlib
import logging
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connectors.kafka.client.settings import admin
from holdfast.connectors.kafka.client.transactions import TransactionClient, TransactionRef
from holdfast.connectors.kafka.producer.library import MESSAGE
from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer
from holdfast.connectors.kafka.sink import marks
from holdfast.connectors.kafka.sink.options import KafkaSink
from holdfast.errors import ConfigError, HoldfastError, SourceError
from tests.integration.helpers import add_file, read_files
from tests.integration.test_kafka_sink import consume
from tests.integration.test_kafka_source import committed, eventually
from tests.servers.kafka_secured import SecuredBroker

USERS = {
    name: f"pa55-of-{name}-{uuid.uuid4().hex[:8]}"
    for name in ("alice", "bob", "carol", "dave", "erin", "frank", "nobody")
}
DOCS = Path(__file__).parents[2] / "docs" / "howto" / "secure-kafka.md"
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    broker = SecuredBroker(tmp_path_factory.mktemp("secured"), USERS)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def topic(broker: SecuredBroker) -> Callable[[str], str]:
    def make(name: str) -> str:
        client = AdminClient({"bootstrap.servers": broker.bootstrap})
        client.create_topics([NewTopic(name, 2, 1)])[name].result(60)
        return name

    return make


def commands(user: str, *, pipeline: str, sink: str, target: str, source: str, group: str) -> list[str]:
    """The command lines of docs/howto/secure-kafka.md, for other names."""
    found = re.findall(r"^kafka-acls.sh .*$", DOCS.read_text(), re.M)
    assert len(found) == 5
    names = [
        ("User:alice", f"User:{user}"),
        ("-orders-totals", f"-{pipeline}-{sink}"),
        ("--topic totals", f"--topic {target}"),
        ("--topic orders", f"--topic {source}"),
        ("--group orders", f"--group {group}"),
    ]
    for old, new in names:
        assert any(old in line for line in found), old
        found = [line.replace(old, new) for line in found]
    return found


def allow(broker: SecuredBroker, user: str, operation: str, kind: str, name: str, pattern: str = "LITERAL") -> None:
    """As kafka-acls would, without starting a JVM."""
    right = AclBinding(
        ResourceType[kind],
        name,
        ResourcePatternType[pattern],
        f"User:{user}",
        "*",
        AclOperation[operation],
        AclPermissionType.ALLOW,
    )
    client = AdminClient({"bootstrap.servers": broker.bootstrap})
    client.create_acls([right])[right].result(60)
    assert eventually(lambda: len(client.describe_acls(_same(right)).result(60)) == 1)


def _same(right: AclBinding) -> AclBindingFilter:
    return AclBindingFilter(
        right.restype,
        right.name,
        right.resource_pattern_type,
        right.principal,
        right.host,
        right.operation,
        right.permission_type,
    )


def java_options(broker: SecuredBroker, user: str, password: str | None = None) -> dict[str, str]:
    return {
        "kafka.security.protocol": "SASL_SSL",
        "kafka.sasl.mechanism": "SCRAM-SHA-512",
        "kafka.sasl.jaas.config": f'{LOGIN} required username="{user}" password="{password or broker.users[user]}";',
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.location": str(broker.authority.ca),
    }


def mutual_tls(broker: SecuredBroker, user: str) -> dict[str, Any]:
    certificate, key = broker.authority.issue(user, broker.users[user])
    return {
        "bootstrap.servers": broker.address("SSL"),
        "security.protocol": "SSL",
        "ssl.ca.pem": broker.authority.ca.read_text(),
        "ssl.certificate.pem": certificate.read_text(),
        "ssl.key.pem": key.read_text(),
        "ssl.key.password": broker.users[user],
    }


def prepare(config: dict[str, Any], name: str, topic: str) -> TransactionRef:
    """A prepared transaction of a task that is gone, with its mark."""
    producer = TransactionalProducer({**config, "transactional.id": name}, timeout=30)
    try:
        producer.initialise()
        ref = TransactionRef(name, *producer.identity())
        producer.begin()
        value = np.frombuffer(b"row", "u1")
        message = np.zeros(1, MESSAGE)
        message["payload"], message["len"], message["partition"] = value.ctypes.data, 3, -1
        producer.produce(topic, message, partitioned=False)
        producer.mark(topic, f"{name}-mark", 1, "note")
        producer.flush()
        return ref
    finally:
        producer.drop()


class TestBothClients:
    """Rows and marks through librdkafka, EndTxn through kafka-python, with one set of settings."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _rights(cls, broker: SecuredBroker, topic: Callable[[str], str]) -> None:
        topic("clients")
        allow(broker, "alice", "READ", "TOPIC", "clients")
        allow(broker, "alice", "WRITE", "TOPIC", "clients")
        allow(broker, "alice", "WRITE", "TRANSACTIONAL_ID", "hfk1-c-c-", "PREFIXED")
        allow(broker, "alice", "READ", "GROUP", "hfk1-c-c-", "PREFIXED")

    def check(self, broker: SecuredBroker, config: dict[str, Any]) -> None:
        before = len(consume(broker, "clients"))
        name = f"hfk1-c-c-{uuid.uuid4().hex}"
        ref = prepare(config, name, "clients")
        with TransactionClient(config) as client:
            assert [found.ref for found in client.ongoing("hfk1-c-c-")] == [ref]
            assert client.end([ref], commit=True) == [0]
        assert eventually(lambda: len(consume(broker, "clients")) == before + 1)
        assert [mark.offset for mark in marks.read(config, [f"{name}-mark"])[f"{name}-mark"]] == [1]

    @pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
    def test_sasl_ssl(self, broker: SecuredBroker, mechanism: str) -> None:
        self.check(broker, {**broker.scram("alice", mechanism), "bootstrap.servers": broker.address("SASL_SSL")})

    def test_sasl_plaintext(self, broker: SecuredBroker) -> None:
        config = {**broker.scram("alice"), "security.protocol": "sasl_plaintext"}
        self.check(broker, {**config, "bootstrap.servers": broker.address("SASL_PLAINTEXT")})

    def test_mutual_tls_with_texts_and_an_encrypted_key(self, broker: SecuredBroker) -> None:
        self.check(broker, mutual_tls(broker, "alice"))

    def test_mutual_tls_with_files(self, broker: SecuredBroker) -> None:
        certificate, key = broker.authority.issue("alice")
        files = {"ssl.certificate.location": str(certificate), "ssl.key.location": str(key)}
        config = {"security.protocol": "SSL", "bootstrap.servers": broker.address("SSL"), **files}
        self.check(broker, {**config, "ssl.ca.location": str(broker.authority.ca)})


class TestNotLetIn:
    """Both clients say so within seconds, name the user, and never show the password."""

    @pytest.mark.parametrize("make", [admin, TransactionClient])
    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({"sasl.password": "wr0ng-0ne"}, "as 'alice'.*nvalid credentials"),
            ({"sasl.username": "stranger"}, "as 'stranger'.*nvalid credentials"),
            ({"ssl.ca.location": None}, "ertificate verify failed|CERTIFICATE_VERIFY_FAILED"),
            ({"security.protocol": "SSL", "port": "SSL"}, "bad certificate"),
        ],
    )
    def test_at_once(self, broker: SecuredBroker, make: Any, changes: dict[str, Any], text: str) -> None:
        port = changes.get("port", "SASL_SSL")
        config = {**broker.scram("alice"), "bootstrap.servers": broker.address(port), "log_level": 0, **changes}
        config = {key: value for key, value in config.items() if value is not None and key != "port"}
        began = time.monotonic()
        with pytest.raises(ConfigError, match=text) as caught:
            make(config)
        assert time.monotonic() - began < 25
        assert str(config.get("sasl.password")) not in str(caught.value)

    def test_by_a_broker_that_drops_the_first_connection(self, broker: SecuredBroker) -> None:
        """As a busy one does: every broker is down then, and why shows when the client comes again."""
        host, _, port = broker.address("SASL_SSL").rpartition(":")
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=drop_one_then_forward, args=(server, (host, int(port))), daemon=True).start()
            config = {**broker.scram("alice"), "bootstrap.servers": f"127.0.0.1:{server.getsockname()[1]}"}
            with pytest.raises(ConfigError, match="ertificate verify failed"):
                admin({key: value for key, value in {**config, "log_level": 0}.items() if key != "ssl.ca.location"})

    def test_read_kafka(self, broker: SecuredBroker, spark: SparkSession) -> None:
        began = time.monotonic()
        with pytest.raises(ConfigError, match="does not let this client in as 'alice'") as caught:
            hf.read_kafka(
                spark,
                bootstrap_servers=broker.address("SASL_SSL"),
                topics=["any"],
                group_id="g",
                options=java_options(broker, "alice", "wr0ng-0ne"),
            )
        assert time.monotonic() - began < 25
        assert "wr0ng-0ne" not in str(caught.value)

    def test_the_password_is_not_in_the_debug_log(
        self, broker: SecuredBroker, caplog: pytest.LogCaptureFixture
    ) -> None:
        """PLAIN sends it as it is."""
        config = {**broker.scram("alice", "PLAIN"), "bootstrap.servers": broker.address("SASL_SSL")}
        with caplog.at_level(logging.DEBUG), TransactionClient(config) as client:
            client.ongoing("hfk1-")
        assert len(caplog.records) > 5
        assert USERS["alice"] not in "".join(record.getMessage() for record in caplog.records)


def drop_one_then_forward(server: socket.socket, to: tuple[str, int]) -> None:
    """Close the first connection; pass on what the others say."""
    server.accept()[0].close()
    with contextlib.suppress(OSError):  # the test closes the server
        while True:
            client = server.accept()[0]
            broker = socket.create_connection(to)
            for source, target in ((client, broker), (broker, client)):
                threading.Thread(target=forward, args=(source, target), daemon=True).start()


def forward(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError), source, target:
        while data := source.recv(65536):
            target.sendall(data)


def no_password(user: str, folder: Path) -> None:
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 5
    for path in files:
        assert USERS[user].encode() not in path.read_bytes(), path


@pytest.mark.spark
class TestJustTheDocumentedRights:
    """P2, K4: the rights of that page and no other. Rows once, offsets committed, no password in any file."""

    def test_kafka_to_kafka(
        self, broker: SecuredBroker, topic: Callable[[str], str], spark: SparkSession, tmp_path: Path
    ) -> None:
        source, target = topic("in-bob"), topic("out-bob")
        for line in commands("bob", pipeline="p_bob", sink="totals", target=target, source=source, group="group-bob"):
            broker.acls(line)

        def run() -> None:
            producer = Producer({"bootstrap.servers": broker.bootstrap})
            for n in range(20):
                producer.produce(source, value=str(n), partition=n % 2)
            assert producer.flush(30) == 0
            rows = hf.read_kafka(
                spark,
                bootstrap_servers=broker.address("SASL_SSL"),
                topics=[source],
                group_id="group-bob",
                options=java_options(broker, "bob"),
            )
            sink = KafkaSink(broker.address("SASL_SSL"), target, name="totals", config=broker.scram("bob"))
            location = str(tmp_path / "checkpoint")
            writer = hf.write_stream(rows.select("value"), sink, name="p_bob", checkpoint_location=location)
            query = writer.trigger(availableNow=True).start()
            query.awaitTermination()
            assert USERS["bob"] not in repr(query) + repr(sink)

        run()
        run()
        assert eventually(lambda: len(consume(broker, target)) == 40)
        assert sorted(int(row["value"]) for row in consume(broker, target)) == sorted([*range(20), *range(20)])
        assert eventually(lambda: committed(broker, "group-bob", source) == [20, 20])
        no_password("bob", tmp_path)

    def test_write_ahead(
        self, broker: SecuredBroker, topic: Callable[[str], str], spark: SparkSession, tmp_path: Path
    ) -> None:
        target = topic("out-carol")
        for line in commands("carol", pipeline="p_carol", sink="totals", target=target, source="-", group="-")[:3]:
            broker.acls(line)
        for number in range(2):
            add_file(tmp_path / "in", number, range(5 * number, 5 * number + 5))
            rows = read_files(spark, tmp_path / "in").selectExpr("cast(id as string) value")
            servers, config = broker.address("SASL_SSL"), broker.scram("carol")
            sink = KafkaSink(servers, target, mode="write-ahead", name="totals", config=config)
            location = str(tmp_path / "checkpoint")
            writer = hf.write_stream(rows, sink, name="p_carol", checkpoint_location=location)
            writer.trigger(availableNow=True).start().awaitTermination()
        assert eventually(lambda: len(consume(broker, target)) == 10)
        assert sorted(int(row["value"]) for row in consume(broker, target)) == list(range(10))
        no_password("carol", tmp_path)

    def test_at_least_once_needs_only_the_topic(
        self, broker: SecuredBroker, topic: Callable[[str], str], spark: SparkSession, tmp_path: Path
    ) -> None:
        target = topic("out-frank")
        allow(broker, "frank", "WRITE", "TOPIC", target)
        add_file(tmp_path / "in", 0, range(5))
        rows = read_files(spark, tmp_path / "in").selectExpr("cast(id as string) value")
        sink = KafkaSink(broker.address("SASL_SSL"), target, delivery="at-least-once", config=broker.scram("frank"))
        writer = hf.write_stream(rows, sink, name="p_frank", checkpoint_location=str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()
        assert len(consume(broker, target)) == 5


def test_the_driver_may_not_end_or_see_a_strangers_transaction(broker: SecuredBroker) -> None:
    config = {**broker.scram("nobody"), "bootstrap.servers": broker.address("SASL_SSL")}
    text = "User:nobody has no right to WRITE on transactional id 'hfk1-p-s-x-0'.*--transactional-id hfk1-p-s- "
    with TransactionClient(config) as client:
        with pytest.raises(ConfigError, match=text):
            client.end([TransactionRef("hfk1-p-s-x-0", 1, 0)], commit=True)
        with pytest.raises(ConfigError, match=text):
            client.describe(["hfk1-p-s-x-0"])


@pytest.mark.spark
class TestDenied:
    """Each missing right stops the query at once with an error that names it; granted one by one, the query runs."""

    def test_the_sinks(
        self, broker: SecuredBroker, topic: Callable[[str], str], spark: SparkSession, tmp_path: Path
    ) -> None:
        target = topic("denied")
        add_file(tmp_path / "in", 0, range(5))

        def run() -> str:
            """The error's text, empty when it ran."""
            # Rows that are still waiting when a mark is refused are dropped, and must not be told as the reason.
            config = {**broker.scram("dave"), "log_level": 0, "linger.ms": 1000}
            sink = KafkaSink(broker.address("SASL_SSL"), target, name="totals", config=config)
            rows = read_files(spark, tmp_path / "in").selectExpr("cast(id as string) value")
            writer = hf.write_stream(rows, sink, name="p_dave", checkpoint_location=str(tmp_path / "checkpoint"))
            began = time.monotonic()
            try:
                writer.trigger(availableNow=True).start().awaitTermination()
            except (HoldfastError, StreamingQueryException) as error:
                assert time.monotonic() - began < 30
                assert USERS["dave"] not in str(error)
                return str(error)
            return ""

        ids = ("hfk1-p_dave-totals-", "PREFIXED")
        steps = [
            ("topic 'denied'", ("WRITE", "TOPIC", "denied")),
            ("group 'hfl1-p_dave-totals'", ("READ", "GROUP", "hfl1-p_dave-totals")),
            (f"WRITE on transactional id '{ids[0]}", ("WRITE", "TRANSACTIONAL_ID", *ids)),
            (f"READ on group '{ids[0]}", ("READ", "GROUP", *ids)),
            ("READ on topic 'denied'", ("READ", "TOPIC", "denied")),
        ]
        for text, grant in steps:
            error = run()
            assert text in error, (text, error)
            allow(broker, "dave", *grant)
        assert run() == ""
        assert eventually(lambda: len(consume(broker, target)) == 5)

    @pytest.mark.contract("K7")
    def test_the_sources(
        self,
        broker: SecuredBroker,
        topic: Callable[[str], str],
        spark: SparkSession,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        source = topic("denied-source")

        def run() -> None:
            rows = hf.read_kafka(
                spark,
                bootstrap_servers=broker.address("SASL_SSL"),
                topics=[source],
                group_id="group-erin",
                options=java_options(broker, "erin"),
            )
            sink = hf.SqliteSink(str(tmp_path / "out.db"), "rows")
            location = str(tmp_path / "checkpoint")
            writer = hf.write_stream(rows.select("value"), sink, name="p_erin", checkpoint_location=location)
            writer.trigger(availableNow=True).start().awaitTermination()

        steps = [
            ("topic denied-source does not exist, or this user may not", ("DESCRIBE", "TOPIC", source)),
            ("User:erin has no right to READ on topic 'denied-source'", ("READ", "TOPIC", source)),
            ("User:erin has no right to DESCRIBE on group 'group-erin'", ("DESCRIBE", "GROUP", "group-erin")),
        ]
        for text, grant in steps:
            with pytest.raises(SourceError, match=text):
                run()
            allow(broker, "erin", *grant)
        producer = Producer({"bootstrap.servers": broker.bootstrap})
        producer.produce(source, value="1", partition=0)
        assert producer.flush(30) == 0
        with caplog.at_level(logging.WARNING, "holdfast"):
            run()
        assert "User:erin has no right to READ on group 'group-erin'" in caplog.text
        assert USERS["erin"] not in caplog.text
