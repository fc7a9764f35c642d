"""Topics of the Kafka benchmark: what is in them, when it became visible, and whether all of it did."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from holdfast.connectors.kafka.producer.arrow import to_messages
from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer

PARTITIONS, KEY, VALUE = 4, 16, 100
#: Rows in one Arrow batch, as Spark hands them to Python.
CHUNK = 10_000
#: What producers are told, in names that Java's client and librdkafka share: librdkafka's defaults, and so holdfast's.
#: Those of Java's 3.9 client, with which Spark's own sink comes, differ: it sends 16 kB at once and does not wait.
ALIKE = {
    "acks": "all",
    "enable.idempotence": "true",
    "compression.type": "none",
    "linger.ms": "5",
    "batch.size": "1000000",
    "max.in.flight.requests.per.connection": "5",
}
#: What `read_kafka` tells Spark's source, which by itself hands out 500 rows at a time.
ALIKE_READER = {"kafka.max.poll.records": "10000"}


def some_rows(rows: int, seed: int = 0) -> Iterator[pa.RecordBatch]:
    """Rows of 16-byte keys and 100-byte values, all different and not compressible."""
    random = np.random.default_rng(seed)
    for start in range(0, rows, CHUNK):
        count = min(CHUNK, rows - start)
        yield pa.record_batch({"key": _column(random, count, KEY), "value": _column(random, count, VALUE)})


def _column(random: np.random.Generator, count: int, width: int) -> pa.Array:
    data = random.integers(0, 256, count * width, "u1").tobytes()
    return pa.FixedSizeBinaryArray.from_buffers(pa.binary(width), count, [None, pa.py_buffer(data)]).cast(pa.binary())


class Topics:
    """Makes, fills, reads and deletes topics on one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self._admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})

    def make(self, prefix: str) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self._admin.create_topics([NewTopic(name, PARTITIONS, 1)])[name].result(30)
        deadline = time.monotonic() + 30
        while len(self._admin.list_topics(name, timeout=10).topics[name].partitions) != PARTITIONS:
            assert time.monotonic() < deadline, f"topic {name} did not appear"
            time.sleep(0.05)
        return name

    def delete(self, name: str) -> None:
        self._admin.delete_topics([name])[name].result(30)

    def fill(self, name: str, batches: Iterable[pa.RecordBatch]) -> None:
        """Without transactions: their markers would take offsets, and make the last batch a small one."""
        producer = TransactionalProducer({"bootstrap.servers": self.bootstrap, **ALIKE}, timeout=120)
        partitions = producer.partitions(name)
        for batch in batches:
            messages, partitioned, alive = to_messages(batch, partitions)
            producer.produce(name, messages, partitioned=partitioned)
            del alive
        producer.flush()
        producer.drop()

    def ends(self, name: str) -> int:
        """The sum of the offsets up to which a read-committed consumer can read."""
        asked = {TopicPartition(name, i): OffsetSpec.latest() for i in range(PARTITIONS)}
        answers = self._admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=30)
        return sum(max(0, future.result().offset) for future in answers.values())

    def consumer(self, name: str) -> Consumer:
        """Reads the whole topic, read committed."""
        reader = Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": f"bench-{name}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 100,
                "log_level": 0,
            }
        )
        reader.assign([TopicPartition(name, i, 0) for i in range(PARTITIONS)])
        return reader

    def count(self, name: str) -> int:
        """How many rows a read-committed consumer finds."""
        return sum(1 for _ in self.values(name))

    def values(self, name: str) -> Iterator[bytes]:
        """All that a read-committed consumer finds until the ends of now."""
        reader, ended = self.consumer(name), set()
        while len(ended) < PARTITIONS:
            for message in reader.consume(10_000, 1.0):
                error = message.error()
                if error is None:
                    yield message.value()
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(message.partition())
                else:
                    raise RuntimeError(f"reading {name}: {error.str()}")
        reader.close()


class Curve(threading.Thread):
    """When how many rows were visible, as (seconds since the epoch, rows); read until it is told to stop."""

    def __init__(self, topics: Topics, name: str) -> None:
        super().__init__(daemon=True)
        self._topics, self._name = topics, name
        self._finished = threading.Event()
        self.points: list[tuple[float, int]] = []

    def run(self) -> None:
        """By offsets: a reader of millions of rows would take part of the machine."""
        while not self._finished.wait(0.1):
            rows = self.visible()
            if rows != (self.points[-1][1] if self.points else 0):
                self.points.append((time.time(), rows))

    def visible(self) -> int:
        """How many rows are visible now; the ends of transactions are counted with them."""
        return self._topics.ends(self._name)

    def finish(self) -> list[tuple[float, int]]:
        time.sleep(0.5)
        self._finished.set()
        self.join()
        assert self.points, f"nothing became visible in {self._name}"
        return self.points


class RowCurve(Curve):
    """Row by row: for few rows, of which the ends of transactions would be a part, and where some are aborted."""

    def __init__(self, topics: Topics, name: str) -> None:
        super().__init__(topics, name)
        self._reader, self.rows = topics.consumer(name), 0

    def visible(self) -> int:
        for message in self._reader.consume(100_000, 0.02):
            error = message.error()
            if error is None:
                self.rows += 1
            elif error.code() != KafkaError._PARTITION_EOF:
                raise RuntimeError(f"reading {self._name}: {error.str()}")
        return self.rows

    def finish(self) -> list[tuple[float, int]]:
        points = super().finish()
        self._reader.close()
        return points
