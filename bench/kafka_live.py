"""Latency of the Kafka benchmark: rows come at a fixed rate with their time in them, and a consumer looks at it."""

from __future__ import annotations

import struct
import threading
import time

import numpy as np
import pyarrow as pa

from bench.kafka_measure import Live
from bench.kafka_topics import ALIKE, KEY, VALUE, Topics
from holdfast.connectors.kafka.producer.arrow import to_messages
from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer

#: rows a second, and seconds: rows of the first ones are not counted, nor is anything before rows flow at all
RATE, WARM_UP, COUNTED = 5_000, 6.0, 15.0
_TICK, _DEADLINE = 0.01, 180.0


class Reader(threading.Thread):
    """Reads all that becomes visible, and how old each row is then."""

    def __init__(self, topics: Topics, name: str) -> None:
        super().__init__(daemon=True)
        self._consumer = topics.consumer(name)
        self._finished = threading.Event()
        #: (nanoseconds at which a row was made, seconds until it was here)
        self.seen: list[tuple[int, float]] = []

    def run(self) -> None:
        while not self._finished.is_set():
            for message in self._consumer.consume(1000, 0.01):
                if message.error() is None:
                    made = struct.unpack_from("<q", message.value())[0]
                    self.seen.append((made, (time.time_ns() - made) / 1e9))
        self._consumer.close()

    def wait(self, rows: int) -> None:
        """Until so many rows are visible."""
        deadline = time.monotonic() + _DEADLINE
        while len(self.seen) < rows:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{len(self.seen)} of {rows} rows are visible after {_DEADLINE:.0f} s")
            time.sleep(0.05)

    def finish(self) -> None:
        self._finished.set()
        self.join()


def stamped(rows: int, seed: int) -> pa.RecordBatch:
    """Rows of the benchmark's sizes, whose values begin with the time."""
    random = np.random.default_rng(seed)
    keys = random.integers(0, 256, (rows, KEY), "u1")
    values = random.integers(0, 256, (rows, VALUE), "u1")
    values[:, :8] = np.frombuffer(struct.pack("<q", time.time_ns()), "u1")
    columns = {name: pa.array([row.tobytes() for row in data]) for name, data in (("key", keys), ("value", values))}
    return pa.record_batch(columns)


def feed(topics: Topics, source: str, reader: Reader) -> Live:
    """A few rows until they flow, then the fixed rate; what a consumer saw of it."""
    producer = TransactionalProducer({"bootstrap.servers": topics.bootstrap, **ALIKE}, timeout=120)
    partitions, sent = producer.partitions(source), 0

    def send(rows: int) -> None:
        nonlocal sent
        messages, partitioned, alive = to_messages(stamped(rows, sent), partitions)
        producer.produce(source, messages, partitioned=partitioned)
        del alive
        sent += rows

    send(100)
    reader.wait(sent)
    begin, counted_from = time.monotonic(), time.time_ns() + int(WARM_UP * 1e9)
    before = sent
    while (passed := time.monotonic() - begin) < WARM_UP + COUNTED:
        due = int(passed * RATE) - (sent - before)
        if due > 0:
            send(due)
        time.sleep(_TICK)
    producer.flush()
    producer.drop()
    reader.wait(sent)
    return judge(reader.seen, counted_from)


def judge(seen: list[tuple[int, float]], counted_from: int) -> Live:
    """Of the rows that were made from then on."""
    ages = np.array([seconds * 1000 for made, seconds in seen if made >= counted_from])
    p50, p99 = (round(float(np.percentile(ages, part)), 1) for part in (50, 99))
    return Live(len(ages), p50, p99, round(float(ages.max()), 1))
