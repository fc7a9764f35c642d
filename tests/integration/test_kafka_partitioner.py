"""Rows lie where Kafka's own producers would have put them, in the order of the rows (P2)."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.connectors.kafka.producer.arrow import to_messages
from holdfast.connectors.kafka.producer.partitioner import LONGEST_KEY
from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer
from tests.servers.kafka import KafkaBroker, free_port
from tests.servers.kafka_proxy import NotLeaderProxy

Make = Callable[..., str]
PARTITIONS = 7


def some_keys() -> list[bytes]:
    """Every length from 0 to 40 and some longer ones, each a few times."""
    random = np.random.default_rng(7)
    lengths = [*range(41), 63, 64, 65, 1000, LONGEST_KEY] * 5
    random.shuffle(lengths)
    return [random.bytes(length) for length in lengths]


def placed(
    broker: KafkaBroker, topic: str, rows: int, partitions: int = PARTITIONS
) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """(key, value) of the committed rows by partition, in order."""
    reader = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": topic, "isolation.level": "read_committed", "log_level": 0}
    )
    reader.assign([TopicPartition(topic, i, 0) for i in range(partitions)])
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    for already in range(rows):
        message = reader.poll(30)
        assert message is not None, f"{already} of {rows} rows came"
        assert message.error() is None
        found.setdefault(message.partition(), []).append((message.key(), message.value()))
    assert reader.poll(0.5) is None, "no row twice"
    reader.close()
    return found


def write(broker: KafkaBroker, topic: str, batches: list[pa.RecordBatch], partitioner: str) -> None:
    config = {"bootstrap.servers": broker.bootstrap, "transactional.id": topic, "partitioner": partitioner}
    # A queue of ten rows, so that most calls are refused in part and tried again.
    producer = TransactionalProducer({**config, "queue.buffering.max.messages": 10}, timeout=30, identified=False)
    producer.initialise()
    producer.begin()
    for batch in batches:
        messages, partitioned, alive = to_messages(batch, PARTITIONS, partitioner)
        producer.produce(topic, messages, partitioned=partitioned)
        del alive
    producer.flush()
    producer.commit()
    producer.drop()


@pytest.mark.contract("P2")
@pytest.mark.parametrize("partitioner", ["murmur2_random", "consistent_random", "fnv1a"])
def test_keys_lie_where_librdkafka_puts_them(kafka: KafkaBroker, topic: Make, partitioner: str) -> None:
    keys = some_keys()
    ours, theirs = topic("ours", PARTITIONS), topic("theirs", PARTITIONS)
    values = [b"%d" % i for i in range(len(keys))]
    whole = pa.record_batch({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
    write(kafka, ours, [whole.slice(0, 100), whole.slice(100)], partitioner)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "partitioner": partitioner, "log_level": 0})
    for key, value in zip(keys, values, strict=True):
        producer.produce(theirs, value, key)
    producer.flush(30)
    mine, reference = placed(kafka, ours, len(keys)), placed(kafka, theirs, len(keys))
    # Some partitioners place an empty key at random.
    for found in (mine, reference):
        for rows in found.values():
            rows[:] = [row for row in rows if row[0] or partitioner == "murmur2_random"]
    assert mine == reference


def test_rows_without_a_key_stay_together_and_partitions_given_by_hand_win(kafka: KafkaBroker, topic: Make) -> None:
    name = topic("mixed", PARTITIONS)
    batch = pa.record_batch(
        {
            "key": pa.array([None, b"k", None, b"k", b"k", None], pa.binary()),
            "value": pa.array([b"0", b"1", b"2", b"3", b"4", b"5"], pa.binary()),
            "partition": pa.array([None, None, 6, 6, None, None], pa.int32()),
        }
    )
    write(kafka, name, [batch], "murmur2_random")
    found = placed(kafka, name, 6)
    assert {(None, b"2"), (b"k", b"3")} <= set(found[6])
    free = [[value for key, value in rows if key is None and value != b"2"] for rows in found.values()]
    assert sorted(filter(None, free)) == [[b"0", b"5"]]
    keyed = [[value for key, value in rows if key == b"k" and value != b"3"] for rows in found.values()]
    assert sorted(filter(None, keyed)) == [[b"1", b"4"]]


@pytest.fixture(scope="module")
def not_leader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[KafkaBroker, NotLeaderProxy]]:
    """A broker that clients reach through a proxy only: it refuses the first rows of each partition."""
    ports = free_port(), free_port()
    proxy = NotLeaderProxy(ports[0])
    # The default is what clients are told to connect to: the proxy.
    advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
    broker = KafkaBroker(tmp_path_factory.mktemp("not-leader"), ports=ports, **advertised)
    broker.start()
    yield broker, proxy
    broker.stop()
    proxy.stop()


@pytest.mark.contract("P1")
@pytest.mark.parametrize("way", ["murmur2_random", "consistent_random", "headers", "by hand", "second transaction"])
def test_the_first_rows_are_refused_while_the_next_are_on_their_way(
    not_leader: tuple[KafkaBroker, NotLeaderProxy], way: str
) -> None:
    """The broker takes the next ones as the first, and librdkafka counted the refused ones as arrived: rows lost."""
    broker, proxy = not_leader
    proxy.refused.clear()
    name = f"refused-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.create_topics([NewTopic(name, 2, 1)])[name].result(30)
    partitioner = way if way.endswith("random") else "murmur2_random"
    config = {"bootstrap.servers": broker.bootstrap, "transactional.id": name, "partitioner": partitioner}
    producer = TransactionalProducer({**config, "linger.ms": 0}, timeout=30, identified=False)
    producer.initialise()
    producer.begin()
    if way == "second transaction":
        producer.commit()
        producer.begin()
    for number in range(4):
        values = pa.array([b"%d" % i for i in range(10 * number, 10 * number + 10)])
        columns = {"key": values, "value": values}
        if way == "by hand":
            columns["partition"] = pa.array([0, 1] * 5, pa.int32())
        messages, partitioned, alive = to_messages(pa.record_batch(columns), 2, partitioner)
        if way == "headers":
            header = pa.array([[{"key": "k", "value": b"v"}]] * 10)
            producer.produce_with_headers(name, messages, header)
        else:
            producer.produce(name, messages, partitioned=partitioned)
        del alive
        time.sleep(0.05)  # so that the rows of each round have a request of their own
    producer.flush()
    producer.commit()
    producer.drop()
    assert sorted(proxy.refused) == [0, 1]
    found = placed(broker, name, 40, partitions=2)
    numbers = {partition: [int(value or b"") for _, value in rows] for partition, rows in found.items()}
    assert sorted(itertools.chain(*numbers.values())) == list(range(40))
    assert all(rows == sorted(rows) for rows in numbers.values())
