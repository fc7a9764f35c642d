"""A work folder whose source and sinks are Kafka topics, watched all the time by a consumer in another process."""

from __future__ import annotations

import bisect
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.connectors.kafka.client.transactions import TransactionClient, TransactionRef
from holdfast.core.naming import escape
from holdfast.spark.partitions import FEW_ROWS
from holdfast.testing.audit import AuditReport, audit
from tests.crash.harness import ROOT, Work
from tests.crash.processes import Driver, wait_for
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_cluster import KafkaCluster

#: Rows of each partition of the source: 20,000, and a quarter of each makes a checkpoint.
SOURCE = (8000, 6000, 6000)
CHECKPOINTS = 4
OUT_PARTITIONS = 3
#: of a transactional id at its coordinator, as Kafka calls them
STATES = (
    "Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort", "PrepareEpochFence",
)  # fmt: skip
#: The modes a kind of work writes in, one topic each.
MODES = {
    "kafka": ("two-phase",),
    "kafka-write-ahead": ("write-ahead",),
    "kafka-both": ("two-phase", "write-ahead"),
    "kafka-three": ("two-phase", "write-ahead"),
    "kafka-few": ("two-phase", "write-ahead"),
}
#: What Spark is told for a kind of work: there, one task writes a whole checkpoint.
CONF = {"kafka-few": {FEW_ROWS: str(sum(SOURCE))}}


def row_id(partition: int, offset: int) -> int:
    """The id of a row tells where in the source it is."""
    return partition * 100_000 + offset


class KafkaWork(Work):
    """One test's pipeline from Kafka to Kafka."""

    checkpoints = CHECKPOINTS

    def __init__(self, folder: Path, sink: str, broker: KafkaBroker | KafkaCluster) -> None:
        self._servers = broker
        self.name = f"crash-{uuid.uuid4().hex[:8]}"
        self.group = f"{self.name}-group"
        self.out = {mode: f"{self.name}-{mode}" for mode in MODES[sink]}
        self.shared_conf = CONF.get(sink, {})
        super().__init__(folder, sink)
        self.seen = folder / "seen"
        self._watcher = self._watch()

    def make_input(self) -> None:
        """A source topic for all tests of a broker, which they only read; the topics to write to."""
        admin = AdminClient(self._settings)
        self.source = f"source-{len(SOURCE)}"
        copies = 1 if isinstance(self._servers, KafkaBroker) else len(self._servers.brokers)
        topics = [NewTopic(topic, OUT_PARTITIONS, copies) for topic in self.out.values()]
        known = self.source in admin.list_topics(timeout=60).topics
        if not known:
            topics.append(NewTopic(self.source, len(SOURCE), copies))
        for answer in admin.create_topics(topics).values():
            answer.result(60)
        if not known:
            self._fill()

    def _fill(self) -> None:
        producer = Producer({**self._settings, "enable.idempotence": True})
        for partition, rows in enumerate(SOURCE):
            for offset in range(rows):
                text = str(row_id(partition, offset))
                producer.produce(self.source, text, text, partition)
            assert producer.flush(60) == 0

    @property
    def broker(self) -> KafkaBroker:
        """The one there is."""
        assert isinstance(self._servers, KafkaBroker)
        return self._servers

    @property
    def cluster(self) -> KafkaCluster:
        """The three there are."""
        assert isinstance(self._servers, KafkaCluster)
        return self._servers

    @property
    def _settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self._servers.bootstrap, "log_level": 0}

    def start(self, fault: str = "", **spec: Any) -> Driver:
        """See Work."""
        given = {
            "name": self.name,
            "servers": self._servers.bootstrap,
            "source": self.source,
            "group": self.group,
            "out": self.out,
            "per_checkpoint": sum(SOURCE) // CHECKPOINTS,
            "conf": {**self.shared_conf, **spec.pop("conf", {})},
        }
        return super().start(fault, **given, **spec)

    # -- the concurrent consumer ------------------------------------------------------------------------------------

    def _watch(self) -> subprocess.Popen[bytes]:
        topics = dict.fromkeys(self.out.values(), OUT_PARTITIONS)
        spec = {
            "servers": self._servers.bootstrap,
            "group": self.group,
            "source": self.source,
            "source_partitions": len(SOURCE),
            "topics": topics,
            "file": str(self.seen),
        }
        command = [sys.executable, "-m", "tests.crash.consumer", json.dumps(spec)]
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        with (self.folder / "consumer.log").open("wb") as log:
            watcher = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=log, stderr=log)
        wait_for(
            lambda: watcher.poll() is not None or (self.seen.exists() and "ready" in self.seen.read_text()),
            "the consumer is ready",
        )
        assert watcher.poll() is None, (self.folder / "consumer.log").read_text()
        return watcher

    def close(self) -> None:
        """Let the consumer read to the end, and end it."""
        watcher = self._watcher
        if watcher.stdin is not None and not watcher.stdin.closed:
            watcher.stdin.close()
        try:
            watcher.wait(90)
        finally:
            if watcher.poll() is None:
                watcher.kill()
                watcher.wait()

    # -- transactions -----------------------------------------------------------------------------------------------

    def open_transactions(self) -> list[str]:
        """Ids of this pipeline that have a transaction open."""
        with TransactionClient(self._settings) as client:
            name = escape(self.name)
            found = [t for prefix in ("hfk1", "hfw1") for t in client.ongoing(f"{prefix}-{name}-")]
        return [t.ref.transactional_id for t in found]

    def transactional_ids(self) -> list[str]:
        """Every id of this pipeline that the broker keeps, whatever became of its last transaction."""
        with TransactionClient(self._settings) as client:
            return sorted({name for state in STATES for name in client.named(f"hfk1-{escape(self.name)}-", state)})

    def wait_until_swept(self) -> None:
        """Until the broker has given up all transactions of this pipeline that are past their timeout."""
        wait_for(lambda: not self.open_transactions(), "the broker has swept the transactions")

    def last_decided(self) -> int:
        """The newest checkpoint with a decision."""
        return max(int(record["checkpoint_id"]) for record in self.records("decision"))

    def rows_decided(self, checkpoint_id: int) -> int:
        """The rows of a checkpoint, as decided for the two-phase sink."""
        record = next(r for r in self.records("decision") if r["checkpoint_id"] == checkpoint_id)
        return sum(c["rows"] for c in record["committables"] if c["sink"] == "two-phase")

    def commit_one(self, checkpoint_id: int, subtask: int = 0) -> int:
        """End one decided transaction as the driver would; its rows."""
        record = next(r for r in self.records("decision") if r["checkpoint_id"] == checkpoint_id)
        one = [c for c in record["committables"] if c["sink"] == "two-phase"][subtask]
        data = one["data"]
        ref = TransactionRef(data["transactional_id"], data["producer_id"], data["epoch"])
        with TransactionClient(self._settings) as client:
            assert client.end([ref], commit=True) == [0]
        return int(one["rows"])

    # -- the audit --------------------------------------------------------------------------------------------------

    def sent(self) -> list[int]:
        """See Work."""
        return [row_id(partition, offset) for partition, rows in enumerate(SOURCE) for offset in range(rows)]

    def audits(self) -> list[AuditReport]:
        """See Work."""
        return [audit(self.sent(), self.content(topic).values()) for topic in self.out.values()]

    def rows_sent(self) -> list[Any]:
        """See Work."""
        return list(self.sent())

    def held(self) -> list[Counter[Any]]:
        """See Work."""
        return [Counter(self.content(topic).values()) for topic in self.out.values()]

    def copy_endpoint(self) -> Callable[[], None]:
        """See Work; of the broker's disk. The consumer would see rows vanish when it comes back, so it ends here."""
        self.close()
        data = self.broker.folder / "data"
        copy = self.broker.folder / f"copy-{self.name}"
        self.broker.stop()
        shutil.copytree(data, copy)
        self.broker.start()

        def bring_back() -> None:
            self.broker.stop()
            shutil.rmtree(data)
            copy.rename(data)
            self.broker.start()

        return bring_back

    def content(self, topic: str) -> dict[tuple[int, int], int]:
        """{(partition, offset): id} as a new read-committed consumer finds it."""
        consumer = Consumer(
            {
                **self._settings,
                "group.id": uuid.uuid4().hex,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 20,
                "auto.offset.reset": "earliest",
            }
        )
        found: dict[tuple[int, int], int] = {}
        ended: set[int] = set()
        deadline = time.monotonic() + 60
        try:
            consumer.assign([TopicPartition(topic, n, 0) for n in range(OUT_PARTITIONS)])
            while len(ended) < OUT_PARTITIONS:
                assert time.monotonic() < deadline, f"a consumer of {topic} is held back"
                for message in consumer.consume(2000, 1):
                    if message.error():
                        ended.add(message.partition())
                    else:
                        # Key and value are the same text; one without the other would be half a row.
                        assert message.key() == message.value(), f"{message.key()!r} {message.value()!r}"
                        found[message.partition(), message.offset()] = int(message.value())
        finally:
            consumer.close()
        return found

    def lag(self) -> dict[int, int]:
        """How far the source's group is behind, by partition."""
        consumer = Consumer({**self._settings, "group.id": self.group, "enable.auto.commit": False})
        try:
            asked = consumer.committed([TopicPartition(self.source, n) for n in range(len(SOURCE))], 60)
        finally:
            consumer.close()
        found = {p.partition: p.offset for p in asked}
        return {partition: rows - max(0, found.get(partition, 0)) for partition, rows in enumerate(SOURCE)}

    def assert_clean(self, *, repairs: int | None = 0, resent: int = 0) -> None:
        """Every row once in every topic, at all times; nothing open, pending or left behind; the group at the end."""
        self.assert_fired()
        self.assert_log_clean()
        if repairs is not None:
            assert len(self.records("repair")) == repairs, self.records("repair")
        assert self.open_transactions() == []
        if FEW_ROWS in self.shared_conf:
            assert 1 in {len(r["committables"]) // len(self.out) for r in self.records("decision")}, "no task was alone"
        for report in self.audits():
            assert report.ok, f"{report}\n{self.log()}"
        assert not any(self.lag().values()), f"the group is behind: {self.lag()}\n{self.log()}"
        self.close()
        assert self._watcher.returncode == 0, (self.folder / "consumer.log").read_text()
        self._assert_what_was_seen()

    def _assert_what_was_seen(self) -> None:
        """What the consumer saw is what is there, each id once, in order; and the group never led (K4)."""
        lines = [line.split(" ", 2) for line in self.seen.read_text().splitlines()]
        for topic in self.out.values():
            seen: dict[tuple[int, int], int] = {}
            for kind, _, text in lines:
                if kind == "row" and text.startswith(f"{topic} "):
                    partition, offset, number = (int(part) for part in text.split(" ")[1:])
                    assert (partition, offset) not in seen, f"{topic} {partition}/{offset} was seen twice"
                    seen[partition, offset] = number
            there = self.content(topic)
            vanished = {place: number for place, number in seen.items() if there.get(place) != number}
            assert not vanished, f"rows of {topic} that were seen and are not there: {list(vanished.items())[:5]}"
            assert seen == there, f"{len(there) - len(seen)} rows of {topic} were never seen"
            doubled = [number for number, count in Counter(seen.values()).items() if count > 1]
            assert not doubled, f"ids seen twice in {topic}: {doubled[:5]}"
            self._assert_group_never_led(lines, topic, seen)

    def _assert_group_never_led(self, lines: list[list[str]], topic: str, seen: dict[tuple[int, int], int]) -> None:
        """At each look, every row below the group's offsets could be read in this topic right after."""
        where = {number: place for place, number in seen.items()}
        # For each source partition and each partition of the topic: how far one must be able to read for all rows
        # up to an offset of the source; it only grows.
        needed: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for source, rows in enumerate(SOURCE):
            for offset in range(rows):
                partition, at = where[row_id(source, offset)]
                list_ = needed.setdefault((source, partition), [])
                if not list_ or at > list_[-1][1]:
                    list_.append((offset, at))
        looks = 0
        group: dict[str, int] = {}
        for kind, when, text in lines:
            if kind == "group":
                group = json.loads(text)
            if kind != "ends":
                continue
            looks += 1
            ends = json.loads(text)[topic]
            for source, committed in group.items():
                for partition in range(OUT_PARTITIONS):
                    steps = needed.get((int(source), partition), [])
                    step = bisect.bisect_left(steps, (committed, -1)) - 1
                    assert step < 0 or steps[step][1] < ends[str(partition)], (
                        f"at {when} the group stood at {committed} of partition {source}, but row {steps[step]} could "
                        f"not be read in {topic}/{partition}, which ended at {ends[str(partition)]}"
                    )
        assert looks > 3, "the consumer hardly looked"
