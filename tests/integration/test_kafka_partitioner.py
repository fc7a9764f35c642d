"""Rows lie where Kafka's own producers would have put them, in the order of the rows (P2)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from holdfast.connectors.kafka.producer.arrow import to_messages
from holdfast.connectors.kafka.producer.partitioner import LONGEST_KEY
from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer
from tests.servers.kafka import KafkaBroker

Make = Callable[..., str]
PARTITIONS = 7


def some_keys() -> list[bytes]:
    """Every length from 0 to 40 and some longer ones, each a few times."""
    random = np.random.default_rng(7)
    lengths = [*range(41), 63, 64, 65, 1000, LONGEST_KEY] * 5
    random.shuffle(lengths)
    return [random.bytes(length) for length in lengths]


def placed(broker: KafkaBroker, topic: str, rows: int) -> dict[int, list[tuple[bytes | None, bytes | None]]]:
    """(key, value) of the committed rows by partition, in order."""
    reader = Consumer(
        {"bootstrap.servers": broker.bootstrap, "group.id": topic, "isolation.level": "read_committed", "log_level": 0}
    )
    reader.assign([TopicPartition(topic, i, 0) for i in range(PARTITIONS)])
    found: dict[int, list[tuple[bytes | None, bytes | None]]] = {}
    for _ in range(rows):
        message = reader.poll(30)
        assert message is not None and message.error() is None
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
