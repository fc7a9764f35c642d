"""Where a Kafka sink writes, and how rows get into a producer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from holdfast.connectors.kafka.client.retention import DEFAULT, SURE
from holdfast.connectors.kafka.client.topics import Topic, look_up
from holdfast.connectors.kafka.producer.arrow import by_topic, to_messages
from holdfast.connectors.kafka.producer.headers import check
from holdfast.connectors.kafka.producer.partitioner import Turns
from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer
from holdfast.errors import ConfigError

#: librdkafka's default of batch.size
BATCH_SIZE = 1_000_000


@dataclass(frozen=True)
class Target:
    """The brokers, the topic, and the user's settings in librdkafka's words; no connection, so it can be pickled."""

    sink: str
    servers: str
    topic: str | None
    config: Mapping[str, Any] = field(repr=False)
    #: what the driver knows about topics
    known: Mapping[str, Topic] = field(default_factory=dict, repr=False, compare=False)
    #: seconds for which the brokers are sure to remember a mark
    marks_last: float = SURE * DEFAULT

    def as_it_is(self) -> Target:
        """With what the brokers say about the sink's own topic; one that is not there is an error now, not later.

        Brokers that make topics on demand make it now. Topics that rows name are looked up when such rows come.
        """
        if self.topic is None:
            return self
        known = look_up(self.settings, [self.topic], owner=self.owner)
        if self.topic not in known:
            raise ConfigError(
                f"{self.owner}: topic {self.topic!r} is not in Kafka at {self.servers}, or may not be seen: create it, "
                "or grant DESCRIBE and WRITE on it"
            )
        config, limit = self.config, known[self.topic].limit
        if limit is not None and limit < int(config.get("batch.size", BATCH_SIZE)):
            # librdkafka does not split a batch that the topic finds too large: rows that fit would be refused with it.
            config = {**config, "batch.size": limit}
        return replace(self, known=known, config=config)

    @property
    def settings(self) -> dict[str, Any]:
        """For any client of these brokers."""
        return {**self.config, "bootstrap.servers": self.servers}

    @property
    def owner(self) -> str:
        """For errors."""
        return f"sink {self.sink!r}"

    @property
    def timeout(self) -> float:
        """Seconds for one call of a task; rows get twice as long to reach the brokers."""
        return 30.0

    def producer(
        self, transactional_id: str | None = None, *, identified: bool = False, waits: bool = True
    ) -> TransactionalProducer:
        """A producer of its own."""
        settings = self.settings
        if transactional_id is None:
            settings.pop("transaction.timeout.ms", None)
        else:
            settings["transactional.id"] = transactional_id
        return TransactionalProducer(
            settings, timeout=self.timeout, identified=identified, waits=waits, owner=self.owner
        )


class RowWriter:
    """Puts Arrow batches into a producer, and remembers how many rows and the first topic."""

    def __init__(self, target: Target, producer: TransactionalProducer) -> None:
        self._target, self._producer = target, producer
        self.rows = 0
        self.first_topic: str | None = None
        self._counts: dict[str, int] = {}
        self._turns = Turns()

    def write(self, batch: pa.RecordBatch) -> None:
        """Queue all rows of a batch; they are copied."""
        for topic, rows in by_topic(batch, self._target.topic):
            self.first_topic = self.first_topic or topic
            if topic not in self._counts:
                self._counts[topic] = self._producer.partitions(topic)
            partitioner = self._target.config["partitioner"]
            messages, partitioned, alive = to_messages(rows, self._counts[topic], partitioner, self._turns)
            if "headers" in rows.schema.names and rows.column("headers").null_count < rows.num_rows:
                check(rows.column("headers"), f"{self._target.owner}: ")
                self._producer.produce_with_headers(topic, messages, rows.column("headers"))
            else:
                self._producer.produce(topic, messages, partitioned=partitioned)
            del alive
            self.rows += rows.num_rows
