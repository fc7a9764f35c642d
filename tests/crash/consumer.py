"""A read-committed consumer in a process of its own: `python -m tests.crash.consumer SPEC`, SPEC as JSON.

It writes down each row when it sees it, and again and again where the source's group stands and, right after that, up
to where each topic can be read. It goes on until its standard input is closed, reads to the end, and ends.

Lines of its file: `row TIME TOPIC PARTITION OFFSET ID`, `group TIME {"PARTITION": OFFSET}`, and
`ends TIME {"TOPIC": {"PARTITION": OFFSET}}`.
"""

from __future__ import annotations

import json
import select
import sys
import time
import uuid
from pathlib import Path
from typing import Any, TextIO

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

#: seconds between two looks at the group
LOOK = 0.2
#: what a broker that comes back answers for a while: no leader, no coordinator, another leader epoch, no high watermark
_MOVING = (3, 5, 6, 9, 14, 15, 16, 74, 75, 78)
#: longer than a broker needs to come back
PATIENCE = 60.0


class Watcher:
    """What one consumer sees, as it sees it."""

    def __init__(self, spec: dict[str, Any], out: TextIO) -> None:
        self._out = out
        servers = {"bootstrap.servers": spec["servers"], "log_level": 0}
        self._servers, self._group_id = servers, spec["group"]
        self._connect()
        self._consumer = Consumer(
            {
                **servers,
                "group.id": f"watcher-{uuid.uuid4().hex}",
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                # A place that is gone would be a row that vanished.
                "auto.offset.reset": "error",
                "fetch.wait.max.ms": 50,
            }
        )
        self._source = [TopicPartition(spec["source"], n) for n in range(spec["source_partitions"])]
        self._places = [TopicPartition(topic, n, 0) for topic, count in spec["topics"].items() for n in range(count)]
        self._consumer.assign(self._places)
        self._next = {(p.topic, p.partition): 0 for p in self._places}

    def _connect(self) -> None:
        """Clients that only ask. After a broker's restart they can lose sight of coordinators for good."""
        self._admin = AdminClient(self._servers)
        # It never joins. The admin client's way to ask can end the whole process (librdkafka issue 5040).
        self._group = Consumer({**self._servers, "group.id": self._group_id, "enable.auto.commit": False})

    def run(self) -> None:
        """Until standard input is closed."""
        self._look(PATIENCE)
        self._write("ready", "")
        looked = time.monotonic()
        while not select.select([sys.stdin], [], [], 0)[0]:
            self._read(0.05)
            if time.monotonic() - looked > LOOK:
                self._look(1.0)
                looked = time.monotonic()
        self._catch_up()
        self._consumer.close()
        self._group.close()

    def _read(self, wait: float) -> None:
        now = f"{time.time():.3f}"
        for message in self._consumer.consume(2000, wait):
            if message.error():
                if _may_pass(message.error()):
                    continue
                raise KafkaException(message.error())
            place = message.topic(), message.partition()
            assert message.offset() >= self._next[place], f"{place} went back to {message.offset()}"
            self._next[place] = message.offset() + 1
            self._out.write(f"row {now} {place[0]} {place[1]} {message.offset()} {message.value().decode()}\n")
        self._out.flush()

    def _look(self, timeout: float) -> dict[str, dict[int, int]] | None:
        """The group first, the rows after it: so a group that leads is seen and one that does not is not."""
        try:
            asked = self._group.committed(self._source, timeout)
            found = {p.partition: p.offset for p in asked if p.offset >= 0}
            ends = self._ends(timeout)
        except KafkaException as error:
            if _may_pass(error.args[0]):
                self._group.close()
                self._connect()
                return None
            raise
        if any(end < 0 for partitions in ends.values() for end in partitions.values()):
            return None  # a partition is without a leader at this moment: nobody knows its end
        self._write("group", json.dumps(found))
        self._write("ends", json.dumps(ends))
        return ends

    def _ends(self, timeout: float) -> dict[str, dict[int, int]]:
        wanted = {TopicPartition(p.topic, p.partition): OffsetSpec.latest() for p in self._places}
        answers = self._admin.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=timeout
        )
        ends: dict[str, dict[int, int]] = {}
        for place, answer in answers.items():
            ends.setdefault(place.topic, {})[place.partition] = answer.result().offset
        return ends

    def _catch_up(self) -> None:
        deadline = time.monotonic() + PATIENCE
        ends = None
        while ends is None and time.monotonic() < deadline:
            ends = self._look(5.0)
        assert ends is not None, "Kafka does not answer"
        while time.monotonic() < deadline:
            self._read(0.05)
            # The place moves over control records too, which no row tells.
            places = self._consumer.position(self._places)
            if all(p.offset >= ends[p.topic][p.partition] or not ends[p.topic][p.partition] for p in places):
                return
        raise AssertionError(f"held back: at {places}, and the ends are {ends}")

    def _write(self, kind: str, text: str) -> None:
        self._out.write(f"{kind} {time.time():.3f} {text}\n")
        self._out.flush()


def _may_pass(error: Any) -> bool:
    """The broker is away or its coordinators are moving: it comes back."""
    lost = (KafkaError._AUTO_OFFSET_RESET, KafkaError._FATAL)
    return error.code() not in lost and (error.retriable() or error.code() < 0 or error.code() in _MOVING)


if __name__ == "__main__":
    SPEC = json.loads(sys.argv[1])
    with Path(SPEC["file"]).open("a") as file:
        Watcher(SPEC, file).run()
