"""librdkafka's transactional producer, called directly.

So rows go from Arrow buffers into it without a Python object a row.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from ctypes import POINTER, c_int
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.connectors.kafka.client.denied import TRANSACTIONAL_ID, denied
from holdfast.connectors.kafka.client.security import without_secrets
from holdfast.connectors.kafka.producer import headers, identity
from holdfast.connectors.kafka.producer.library import (
    DELIVERY,
    PARTITION_UA,
    Metadata,
    TopicPartition,
    library,
)
from holdfast.connectors.kafka.producer.partitioner import MURMUR2_RANDOM
from holdfast.connectors.kafka.producer.refusal import ProduceError, refusal
from holdfast.errors import ConfigError, HoldfastError, RowError

_QUEUE_FULL, _TIMED_OUT = -184, -185
#: librdkafka's "not in this state": of a transaction that has failed already; and seconds for the rows to tell why
_STATE, _TELL = -172, 1.0
#: rows that were dropped since their transaction had failed: not the reason, but what came of it
_PURGED = (-151, -152)
#: Kafka's codes of a topic that is just being made: unknown, without a leader
_NO_LEADER = 5
_NOT_YET = (3, _NO_LEADER)
_COPY, _PARTITION = 0x2, 0x8
#: How long to wait for what librdkafka will tell, and when its queue is full: it tells of errors only.
_TOLD_MS, _FULL_MS = 10, 10
#: How long a wait for the rows sleeps at a time: nothing wakes it when they have arrived. So a short wait looks often.
_LEAST_MS, _MOST_MS = 1, 10
#: Seconds more than its timeout that a call gets before it is given up.
_GRACE = 2.0
#: Producers that were given up, and what their last call still uses.
_GIVEN_UP: list[tuple[Any, ...]] = []


class TransactionalProducer:
    """One transactional producer. Dropping it leaves an open transaction open: that is the point."""

    def __init__(
        self,
        config: Mapping[str, Any],
        *,
        timeout: float,
        identified: bool = True,
        waits: bool = True,
        owner: str = "this client",
    ) -> None:
        """Only an `identified` one can tell its `identity`; the others are spared the log and statistics it comes from.

        One that never `waits` may lose rows without an error (see `_in_turn`).
        """
        self._where = f"{owner}: Kafka at {config.get('bootstrap.servers')}"
        self._lib = library()
        self._config = config
        self._timeout = int(timeout * 1000)
        self._failed = 0
        self._first_failure = 0
        self._identity = identity.Identity() if identified else None
        #: a call of the library has not come back and never may
        self._stuck = False
        self._topics: dict[str, int] = {}
        self._seen: set[str] = set()
        #: by topic, the partitions whose broker knows this producer by now
        self._opened: dict[str, set[int]] = {}
        self._waits = waits
        #: Where librdkafka places the rows, nobody can see to it that a partition's first request is alone.
        self._one_request = waits and config.get("partitioner", MURMUR2_RANDOM) != MURMUR2_RANDOM
        # The callback must live as long as the producer.
        self._on_delivery = DELIVERY(self._delivered)
        told = identity.SETTINGS if identified else {"statistics.interval.ms": 0}
        alone = {"max.in.flight.requests.per.connection": 1} if self._one_request else {}
        self._handle: int | None = self._new({**_DEFAULTS, **config, **_FIXED, **alone, **told})

    def _new(self, config: Mapping[str, Any]) -> int:
        lib, problem = self._lib, ctypes.create_string_buffer(512)
        conf = lib.rd_kafka_conf_new()
        for key, value in config.items():
            text = str(value).lower() if isinstance(value, bool) else str(value)
            if lib.rd_kafka_conf_set(conf, key.encode(), text.encode(), problem, len(problem)) != 0:
                lib.rd_kafka_conf_destroy(conf)
                # Only the key: the value may be a password.
                raise ConfigError(f"config: librdkafka does not take {key!r} or its value")
        lib.rd_kafka_conf_set_dr_msg_cb(conf, self._on_delivery)
        if self._identity is not None:
            self._identity.listen(lib, conf)
        handle = lib.rd_kafka_new(0, conf, problem, len(problem))
        if not handle:
            lib.rd_kafka_conf_destroy(conf)
            raise ConfigError(f"config: {without_secrets(problem.value.decode(errors='replace'), config)}")
        if self._identity is not None:
            lib.rd_kafka_set_log_queue(handle, None)  # that of all callbacks: they come when it is polled
        return int(handle)

    def _delivered(self, _rk: int, message: int, _opaque: int) -> None:
        """Called for failed rows only (`delivery.report.only.error`)."""
        self._failed += 1
        self._first_failure = self._first_failure or ctypes.cast(message, POINTER(c_int))[0]

    # -- transactions -----------------------------------------------------------------------------------------------

    def initialise(self) -> None:
        """Own the transactional id: ends whatever it had open, and fences every older producer of that id."""
        self._check(self._lib.rd_kafka_init_transactions(self._handle, self._timeout), "initialise")

    def begin(self) -> None:
        """Begin a transaction."""
        self._opened.clear()
        self._check(self._lib.rd_kafka_begin_transaction(self._handle), "begin")

    def identity(self) -> tuple[int, int]:
        """(producer id, epoch) after `initialise`; it need not wait."""
        assert self._identity is not None
        deadline = time.monotonic() + self._timeout / 1000
        while True:
            self._lib.rd_kafka_poll(self._handle, 0)
            if self._identity.known is not None:
                return self._identity.known
            if time.monotonic() > deadline:
                raise ProduceError(f"{self._where}: librdkafka did not tell the producer id in time; try again")
            self._lib.rd_kafka_poll(self._handle, _TOLD_MS)

    def produce(self, topic: str, messages: np.ndarray, *, partitioned: bool) -> None:
        """Queue a batch of MESSAGE; waits while the queue is full. The buffers are copied before it returns.

        With Kafka's default partitioner, the rows have partitions, and those of one partition lie together.
        """
        for part in self._in_turn(topic, messages):
            self._produce(topic, part, partitioned=partitioned)

    def _produce(self, topic: str, messages: np.ndarray, *, partitioned: bool) -> None:
        flags = _COPY | (_PARTITION if partitioned else 0)
        rkt = self._topic(topic)
        while len(messages):
            address = messages.ctypes.data
            self._lib.rd_kafka_produce_batch(rkt, PARTITION_UA, flags, address, len(messages))
            failed = messages[messages["err"] != 0]
            refused = failed[failed["err"] != _QUEUE_FULL]
            if len(refused):
                raise self._error(int(refused[0]["err"]), f"{len(refused)} rows for topic {topic!r} were refused")
            messages = np.ascontiguousarray(failed)
            messages["err"] = 0
            self._lib.rd_kafka_poll(self._handle, _FULL_MS if len(messages) else 0)

    def produce_with_headers(self, topic: str, messages: np.ndarray, column: Any) -> None:
        """Queue rows one by one, each with its headers; `private` of a message is its row in the column."""
        for part in self._in_turn(topic, messages):
            self._produce_with_headers(topic, part, column)

    def _produce_with_headers(self, topic: str, messages: np.ndarray, column: Any) -> None:
        lib = self._lib
        lines = headers.to_arguments(self._topic(topic), messages)
        for line, row in zip(lines, messages["private"].tolist(), strict=True):
            made = headers.make(lib, column[row].as_py())
            line["first"][5] = made
            error = lib.rd_kafka_produceva(self._handle, line.ctypes.data, len(line))
            while error and lib.rd_kafka_error_code(error) == _QUEUE_FULL:
                lib.rd_kafka_error_destroy(error)
                lib.rd_kafka_poll(self._handle, _FULL_MS)
                error = lib.rd_kafka_produceva(self._handle, line.ctypes.data, len(line))
            if error:  # else they belong to the library now
                lib.rd_kafka_headers_destroy(made)
            self._check(error, f"take a row for topic {topic!r} into")
        lib.rd_kafka_poll(self._handle, 0)

    def _in_turn(self, topic: str, messages: np.ndarray) -> Iterator[np.ndarray]:
        """The first row of each partition that has none of this transaction yet; when those arrived, the others.

        A broker takes any sequence number as the first one of a producer that it does not know. So, with two requests
        on their way, it can refuse the first (it is not the partition's leader yet) and take the second; and librdkafka
        then counts the rows of the first as arrived. Nothing tells of that loss, so the second is not sent before.
        """
        if topic not in self._seen:
            # Rows that wait without a partition break the transaction, if they name one.
            self.partitions(topic)
        first = self._openers(topic, messages["partition"])
        if len(first):
            yield messages[first]
            self._arrive()
            messages = np.delete(messages, first)
        yield messages

    def _openers(self, topic: str, partition: npt.NDArray[np.int32]) -> list[int]:
        if not self._waits or self._one_request or not len(partition):
            return []
        opened = self._opened.setdefault(topic, set())
        starts = np.flatnonzero(partition[1:] != partition[:-1]) + 1
        # The last one wins in a dictionary, and the first one is meant.
        first = {int(partition[start]): int(start) for start in (*starts[::-1], 0)}
        first = {number: start for number, start in first.items() if number not in opened}
        opened.update(first)
        return list(first.values())

    def partitions(self, topic: str) -> int:
        """How many partitions a topic has; RowError when it is not there or may not be seen.

        A topic that was made a moment ago is not known to every broker yet: it is waited for.
        """
        deadline = time.monotonic() + min(5.0, self._timeout / 1000)
        while True:
            count, code = self._look_up(topic)
            if not code:
                self._seen.add(topic)
                return count
            if code not in _NOT_YET or time.monotonic() > deadline:
                told = self._lib.rd_kafka_err2str(code).decode()
                if code == _NO_LEADER:
                    raise ProduceError(f"{self._where} has no leader for topic {topic!r} ({told}): are brokers away?")
                raise RowError(
                    f"{self._where}: topic {topic!r} cannot be written: {told}. Create it, or grant DESCRIBE and WRITE "
                    "on it"
                )
            time.sleep(0.1)

    def _look_up(self, topic: str) -> tuple[int, int]:
        """(partitions, error code) of a topic."""
        found = POINTER(Metadata)()
        code = self._lib.rd_kafka_metadata(
            self._handle, 0, self._topic(topic), ctypes.byref(found), min(self._timeout, 30_000)
        )
        if code:
            raise self._error(code, f"the partitions of topic {topic!r} cannot be read")
        try:
            entry = found.contents.topics[0]
            return int(entry.partition_cnt), int(entry.err)
        finally:
            self._lib.rd_kafka_metadata_destroy(found)

    def failures(self) -> int:
        """How many rows have failed since the last look."""
        self._lib.rd_kafka_poll(self._handle, 0)
        failed, self._failed = self._failed, 0
        return failed

    def mark(self, topic: str, group: str, offset: int, note: str, *, timeout: float | None = None) -> None:
        """Put an offset of a group and a note into the transaction: visible with the rows, or not at all."""
        lib, text = self._lib, ctypes.create_string_buffer(note.encode())
        limit = self._timeout if timeout is None else int(timeout * 1000)
        offsets = lib.rd_kafka_topic_partition_list_new(1)
        metadata = lib.rd_kafka_consumer_group_metadata_new(group.encode())
        entry = ctypes.cast(
            lib.rd_kafka_topic_partition_list_add(offsets, topic.encode(), 0), POINTER(TopicPartition)
        ).contents
        try:
            # With its final NUL: confluent-kafka reads notes as C strings, and would read on beyond one without.
            entry.offset, entry.metadata, entry.metadata_size = offset, ctypes.addressof(text), len(text)
            error = self._bounded(
                limit, lambda: lib.rd_kafka_send_offsets_to_transaction(self._handle, offsets, metadata, limit), text
            )
            self._check(error, "add the mark to", rights="Read", topic=topic, group=group)
        finally:
            if not self._stuck:  # else the call still uses them
                # The text is Python's; the library would free it with the list.
                entry.metadata, entry.metadata_size = None, 0
                lib.rd_kafka_consumer_group_metadata_destroy(metadata)
                lib.rd_kafka_topic_partition_list_destroy(offsets)

    def _bounded(self, limit_ms: int, call: Callable[[], int | None], *alive: Any) -> int | None:
        """The answer of a call that may never come back, whatever timeout it is given.

        When a group's coordinator went away, librdkafka waits for it without end (its issues 5456 and 5511). Then this
        producer is given up: it keeps its thread, and nothing waits for it any more.
        """
        answers: list[int | None] = []
        thread = threading.Thread(target=lambda: answers.append(call()), daemon=True, name="holdfast-mark")
        thread.start()
        thread.join(limit_ms / 1000 + _GRACE)
        if answers:
            return answers[0]
        self._stuck = True
        _GIVEN_UP.append((self, *alive))
        self._lib.rd_kafka_purge(self._handle, 0x1 | 0x2)
        raise ProduceError(
            f"{self._where}: the client did not add the mark to the transaction in {limit_ms / 1000:.0f} s: the "
            "coordinator of the mark's group is away, or the client has lost sight of it; trying again may help"
        )

    def flush(self) -> None:
        """Wait until every row is on the broker; one that is not fails the task."""
        self._arrive()
        # A producer that is kept may be forgotten by a broker, before it writes again.
        self._opened.clear()

    def _arrive(self) -> None:
        """Wait until the rows queued so far are on the broker."""
        began = time.monotonic()
        deadline = began + 2 * self._timeout / 1000
        step, code = _LEAST_MS, _TIMED_OUT
        while code == _TIMED_OUT and time.monotonic() < deadline:
            code = self._lib.rd_kafka_flush(self._handle, step)
            step = max(_LEAST_MS, min(_MOST_MS, int(100 * (time.monotonic() - began))))
        if code:
            raise self._error(code, f"{self._lib.rd_kafka_outq_len(self._handle)} rows are still not on the broker")
        self._lib.rd_kafka_poll(self._handle, 0)
        if self._failed:
            raise self._error(self._first_failure, f"{self._failed} rows did not reach the broker")

    def commit(self) -> None:
        """Commit from the process that opened it: write-ahead mode."""
        self._check(self._lib.rd_kafka_commit_transaction(self._handle, self._timeout), "commit")

    def abort(self) -> None:
        """Abort what is open and forget queued rows."""
        if self._stuck:
            return  # the driver's sweep ends it
        self._lib.rd_kafka_purge(self._handle, 0x1 | 0x2)
        self._check(self._lib.rd_kafka_abort_transaction(self._handle, self._timeout), "abort")

    def drop(self) -> None:
        """Free the producer; an open transaction stays open."""
        if self._handle is None or self._stuck:
            return
        for rkt in self._topics.values():
            self._lib.rd_kafka_topic_destroy(rkt)
        self._lib.rd_kafka_destroy(self._handle)
        self._handle = None

    def _topic(self, name: str) -> int:
        if name not in self._topics:
            topic = self._lib.rd_kafka_topic_new(self._handle, name.encode(), None)
            if not topic:
                raise RowError(f"Kafka has no topic with such a name: {name[:100]!r}")
            self._topics[name] = topic
        return self._topics[name]

    def _check(self, error: int | None, what: str, **resource: str) -> None:
        if not error:
            return
        code = self._lib.rd_kafka_error_code(error)
        text = self._lib.rd_kafka_error_string(error).decode(errors="replace")
        self._lib.rd_kafka_error_destroy(error)
        if self._row_failed(code) and self._first_failure not in _PURGED:
            # A row that a broker refused ends the transaction: tell that, and not what it did to the next call.
            raise self._error(self._first_failure, f"{self._failed} rows did not reach the broker")
        raise self._denied(code, f"{what} the transaction", **resource) or refusal(
            code, f"{self._where} refused to {what} the transaction: {without_secrets(text, self._config)}"
        )

    def _row_failed(self, code: int) -> bool:
        deadline = time.monotonic() + (_TELL if code == _STATE else 0)
        self._lib.rd_kafka_poll(self._handle, 0)
        while not self._failed and time.monotonic() < deadline:
            self._lib.rd_kafka_poll(self._handle, _FULL_MS)
        return self._failed > 0

    def _denied(self, code: int, what: str, **resource: str) -> ConfigError | None:
        rights = "Write" if code == TRANSACTIONAL_ID else resource.pop("rights", "Read Write")
        resource.setdefault("topic", ", ".join(self._topics))
        name = str(self._config.get("transactional.id"))
        return denied(code, what, self._config, rights=rights, transactional_id=name, **resource)

    def _error(self, code: int, what: str) -> HoldfastError:
        return self._denied(code, f"take rows ({what})") or refusal(
            code, f"{self._where}: {what}: {self._lib.rd_kafka_err2str(code).decode()}"
        )


#: A transaction is a row of small requests: with Nagle's algorithm one of them can wait 40 ms for an acknowledgement.
#: A broker that was restarted is found again within a second, not ten.
_DEFAULTS = {"socket.nagle.disable": True, "reconnect.backoff.max.ms": 1000}
#: What the protocol needs, whatever the user configures.
_FIXED = {
    "enable.idempotence": True,
    "delivery.report.only.error": True,
    "enable.sparse.connections": False,
    "log_level": 0,
}
