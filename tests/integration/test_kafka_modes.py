"""KafkaSink's other ways: write-ahead, at-least-once, none; headers; repair on Spark (P1, P2, P5, P6)."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import errors
from holdfast.checkpoint.ports import LoopTasks, Run
from holdfast.connectors.kafka.client.transactions import TransactionClient, TransactionRef
from holdfast.connectors.kafka.producer.rdkafka import TransactionalProducer
from holdfast.connectors.kafka.sink import ids, write_ahead
from holdfast.core.model import Outcome
from holdfast.sinks.subtask import make_task, write_subtask
from holdfast.testing import exercise_sink
from holdfast.testing.local import Died, LocalBatch, LocalQuery, armed
from tests.integration.helpers import add_file, read_files
from tests.integration.test_kafka_sink import consume
from tests.servers.kafka import KafkaBroker

Make = Callable[..., str]
SCHEMA = pa.schema([("key", pa.binary()), ("value", pa.binary())])


@pytest.mark.usefixtures("each_way")
@pytest.mark.contract("P6")
def test_write_ahead_mode_passes_the_contract_suite(kafka: KafkaBroker, topic: Make) -> None:
    """W1-W8, T1-T8, P6."""
    current = {"topic": topic("contract", 1)}

    def reset() -> None:
        current["topic"] = topic("contract", 1)

    def leftovers() -> list[str]:
        with TransactionClient({"bootstrap.servers": kafka.bootstrap}) as client:
            return [t.ref.transactional_id for t in client.ongoing("hfw1-")]

    report = exercise_sink(
        lambda: hf.KafkaSink(kafka.bootstrap, current["topic"], mode="write-ahead", name="kafka"),
        lambda: [{"key": r["key"], "value": r["value"]} for r in consume(kafka, current["topic"])],
        schema=SCHEMA,
        make_row=lambda n: {"key": f"k{n}".encode(), "value": None if n % 5 == 0 else f"é{n}".encode()},
        key="key",
        reset=reset,
        leftovers=leftovers,
    )
    assert len(report.passed) > 15, report


class Local:
    """A sink driven by hand: one run, tasks in this process."""

    def __init__(self, sink: hf.KafkaSink, folder: Path, **run: Any) -> None:
        self.sink = sink
        options = {"pipeline": f"p{uuid.uuid4().hex[:8]}", "lineage": uuid.uuid4().hex, "generation": 0, **run}
        (folder / "wal").mkdir(parents=True, exist_ok=True)
        self.run = Run(location=str(folder), **options)
        sink.open(self.run)
        self.attempts = 0

    def write(self, checkpoint_id: int, batch: pa.RecordBatch, subtask: int = 0) -> list[Any]:
        self.attempts += 1
        now = int(time.time() * 1000)
        task = make_task(self.run, self.sink.name, checkpoint_id, subtask, self.attempts, now)
        return [c.data for c in write_subtask([self.sink], [task], [batch]).committables]


def rows(*values: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"key": v.encode(), "value": v.encode()} for v in values], SCHEMA)


@pytest.mark.contract("P6")
class TestWriteAhead:
    def test_producers_are_kept_and_one_that_was_fenced_is_made_anew(self, kafka, topic, tmp_path, caplog) -> None:
        name = topic("publishers", 1)
        local = Local(hf.KafkaSink(kafka.bootstrap, name, mode="write-ahead"), tmp_path)
        key = (ids.publisher(local.run.pipeline, local.sink.name, local.run.lineage, 0), kafka.bootstrap)
        assert local.sink.commit(0, local.write(0, rows("a")), LoopTasks()) is Outcome.COMMITTED
        first = write_ahead._PUBLISHERS[key].producer
        assert local.sink.commit(1, local.write(1, rows("b")), LoopTasks()) is Outcome.COMMITTED
        assert write_ahead._PUBLISHERS[key].producer is first
        sealed = local.write(2, rows("c"))
        # Another worker, of this driver or of a paused one, publishes the same file: its producer fences ours.
        mine = write_ahead._PUBLISHERS.pop(key)
        assert local.sink.commit(2, sealed, LoopTasks()) is Outcome.COMMITTED
        write_ahead._PUBLISHERS.pop(key).producer.drop()
        write_ahead._PUBLISHERS[key] = mine
        assert local.sink.commit(2, sealed, LoopTasks()) is Outcome.ALREADY_COMMITTED
        assert [r["value"] for r in consume(kafka, name)] == [b"a", b"b", b"c"]

    def test_rule_9_what_another_worker_publishes_until_ours_owns_the_id_is_seen_by_it(
        self, kafka, topic, tmp_path, monkeypatch
    ) -> None:
        """A mark that was read before the id is owned says nothing: its older owner can still commit."""
        name = topic("order", 1)
        local = Local(hf.KafkaSink(kafka.bootstrap, name, mode="write-ahead"), tmp_path)
        sealed = local.write(0, rows("a"))
        initialise = TransactionalProducer.initialise
        producers: list[TransactionalProducer] = []
        others: list[Outcome] = []

        def late(producer: TransactionalProducer) -> None:
            producers.append(producer)
            if producer is producers[0]:  # before it does so, another worker comes and goes
                others.append(local.sink.commit(0, sealed, LoopTasks()))
            initialise(producer)

        monkeypatch.setattr(TransactionalProducer, "initialise", late)
        assert local.sink.commit(0, sealed, LoopTasks()) is Outcome.ALREADY_COMMITTED
        assert others == [Outcome.COMMITTED]
        producers[1].drop()
        assert [r["value"] for r in consume(kafka, name)] == [b"a"]

    def test_small_files_share_a_transaction_and_a_damaged_one_holds_it_back(self, kafka, topic, tmp_path) -> None:
        name = topic("together", 1)
        local = Local(hf.KafkaSink(kafka.bootstrap, name, mode="write-ahead"), tmp_path)
        sealed = [*local.write(0, rows("a"), subtask=2), *local.write(0, rows("b"), subtask=5)]
        file = tmp_path / sealed[1]["handle"]
        intact = file.read_bytes()
        file.write_bytes(intact[:-1])
        with pytest.raises(errors.RecordError, match="damaged"):
            local.sink.commit(0, sealed, LoopTasks())
        file.write_bytes(intact)
        assert local.sink.commit(0, sealed, LoopTasks()) is Outcome.COMMITTED
        used = [ids.parse_publisher(publisher) for publisher, _ in write_ahead._PUBLISHERS]
        assert [publisher.subtask for publisher in used if publisher.pipeline == local.run.pipeline] == [2]
        assert [r["value"] for r in consume(kafka, name)] == [b"a", b"b"]
        assert local.sink.commit(0, sealed, LoopTasks()) is Outcome.ALREADY_COMMITTED

    def test_a_commit_whose_answer_was_lost_is_not_sent_again(self, kafka, topic, tmp_path) -> None:
        name = topic("lost", 1)
        local = Local(hf.KafkaSink(kafka.bootstrap, name, mode="write-ahead"), tmp_path)
        sealed = local.write(0, rows("a", "b"))
        with armed("commit.mark=lost"), pytest.raises(errors.InjectedFault):
            local.sink.commit(0, sealed, LoopTasks())
        assert local.sink.commit(0, sealed, LoopTasks()) is Outcome.ALREADY_COMMITTED
        assert len(consume(kafka, name)) == 2


@pytest.mark.contract("P1")
class TestPlain:
    @pytest.mark.parametrize("delivery", ["at-least-once", "none"])
    def test_rows_arrive_without_a_transaction(self, kafka, topic, tmp_path, delivery) -> None:
        name = topic("plain", 2)
        local = Local(hf.KafkaSink(kafka.bootstrap, name, delivery=delivery), tmp_path)
        assert local.write(0, rows(*map(str, range(100)))) == []
        deadline = time.monotonic() + 60
        while delivery == "none" and len(consume(kafka, name)) < 100:
            assert time.monotonic() < deadline, "a living worker sends its rows in the end"
        assert len(consume(kafka, name)) == 100

    def test_the_pipelines_delivery_is_the_default(self, kafka, topic, tmp_path) -> None:
        local = Local(hf.KafkaSink(kafka.bootstrap, topic("plain", 1)), tmp_path, delivery="at-least-once")
        assert local.write(0, rows("a")) == []
        chosen = Local(hf.KafkaSink(kafka.bootstrap, topic("chosen", 1), delivery="exactly-once"), tmp_path)
        prepared = chosen.write(0, rows("a"))
        assert chosen.sink.commit(0, prepared, LoopTasks()) is Outcome.COMMITTED
        chosen.sink.close()

    def test_p1_none_waits_for_nobody_and_only_tells_what_did_not_arrive(self, kafka, topic, tmp_path, caplog) -> None:
        """A row that the brokers refuse fails an at-least-once task, and is lost here: that is what `none` says."""
        name = topic("none", 1, **{"max.message.bytes": "2000"})
        local = Local(hf.KafkaSink(kafka.bootstrap, name, delivery="none"), tmp_path)
        assert local.write(0, rows("x" * 5000)) == []
        deadline = time.monotonic() + 60
        checkpoint_id = 0
        while "rows did not reach the brokers" not in caplog.text:
            assert time.monotonic() < deadline
            checkpoint_id += 1
            assert local.write(checkpoint_id, rows("y")) == []
            time.sleep(0.1)
        assert {r["value"] for r in consume(kafka, name)} <= {b"y"}

    def test_at_least_once_fails_the_task_when_a_row_does_not_arrive(self, kafka, topic, tmp_path) -> None:
        config = {"message.max.bytes": 1000}
        local = Local(hf.KafkaSink(kafka.bootstrap, topic("big", 1), delivery="at-least-once", config=config), tmp_path)
        with pytest.raises(errors.HoldfastError, match=r"too large|refused"):
            local.write(0, rows("x" * 5000))


@pytest.mark.parametrize(("delivery", "times"), [("at-least-once", 2), ("exactly-once", 1)])
def test_s2_a_crash_before_the_decision_doubles_rows_at_least_once_and_loses_none(
    kafka: KafkaBroker, topic: Make, tmp_path: Path, delivery: str, times: int
) -> None:
    """The same crash in both modes: the tasks have written, the driver dies, the batch runs again."""
    name = topic("modes", 1)
    query = LocalQuery(str(tmp_path), f"s2-{uuid.uuid4().hex[:6]}", SCHEMA)
    partitions = [[rows("a", "b")], [rows("c")]]
    with armed("decision=error", died=True) as fired, pytest.raises(Died):
        query.start([hf.KafkaSink(kafka.bootstrap, name, delivery=delivery)]).run(0, LocalBatch(partitions))
    assert fired == {"decision": True}
    again = query.start([hf.KafkaSink(kafka.bootstrap, name, delivery=delivery)])
    again.run(0, LocalBatch(partitions))
    again.close()
    found = sorted(r["value"] for r in consume(kafka, name))
    assert found == sorted([b"a", b"b", b"c"] * times)


@pytest.mark.contract("P2")
@pytest.mark.parametrize("mode", ["two-phase", "write-ahead"])
def test_headers_topics_partitions_and_nulls(kafka: KafkaBroker, topic: Make, tmp_path: Path, mode: str) -> None:
    """P2: columns as in Spark's own sink."""
    from confluent_kafka import Consumer, TopicPartition

    one, two = topic("one", 3), topic("two", 3)
    header = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
    schema = pa.schema(
        [
            ("key", pa.string()),
            ("value", pa.string()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("headers", header),
        ]
    )
    given = [
        (None, "a", one, 2, [("h", b"1"), ("h", None), ("é", b"")]),
        ("k", None, one, 0, None),
        ("", "", two, None, []),
    ]
    lines = [
        {"key": k, "value": v, "topic": t, "partition": p, "headers": h and [{"key": n, "value": x} for n, x in h]}
        for k, v, t, p, h in given
    ]
    local = Local(hf.KafkaSink(kafka.bootstrap, mode=mode, name="h"), tmp_path)
    local.sink.commit(0, local.write(0, pa.RecordBatch.from_pylist(lines, schema)), LoopTasks())
    local.sink.close()
    consumer = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": uuid.uuid4().hex, "isolation.level": "read_committed"}
    )
    try:
        consumer.assign([TopicPartition(t, n, 0) for t in (one, two) for n in range(3)])
        found = {}
        while len(found) < 3:
            message = consumer.poll(20)
            assert message is not None and message.error() is None
            found[message.key(), message.value()] = message
    finally:
        consumer.close()
    first, second, third = found[None, b"a"], found[b"k", None], found[b"", b""]
    assert (first.topic(), first.partition(), first.headers()) == (one, 2, [("h", b"1"), ("h", None), ("é", b"")])
    assert (second.topic(), second.partition(), second.headers()) == (one, 0, None)
    assert (third.topic(), third.headers()) == (two, None)


@pytest.mark.contract("P5")
@pytest.mark.spark
class TestRepairOnSpark:
    """P5 with real timeouts: transaction.timeout.ms of eight seconds, siblings committed or not."""

    def start(self, spark: Any, kafka: KafkaBroker, topic: str, folder: Path, *, partitions: int, value: str) -> Any:
        frame = (
            read_files(spark, folder / "in").repartition(partitions, "id").selectExpr("cast(id as string) key", value)
        )
        sink = hf.KafkaSink(kafka.bootstrap, topic, config={"transaction.timeout.ms": 8000}, name="k")
        writer = hf.write_stream(frame, sink, name=topic, checkpoint_location=str(folder / "c"))
        return writer.trigger(availableNow=True).start()

    def decide_and_time_out(self, spark: Any, kafka: KafkaBroker, topic: str, folder: Path, *, commit: int) -> None:
        """A decided checkpoint of three transactions, `commit` of which are committed before the rest time out."""
        add_file(folder / "in", 0, range(100))

        def dead(*_: Any) -> None:
            raise ConnectionError("this driver commits nothing any more")

        # What is decided is committed by the sink's own loop, also while the batch fails: as if the driver had died.
        gone = patch.object(hf.KafkaSink, "commit", dead)
        with gone, armed("decision=lost"), pytest.raises(Exception, match="fault decision"):
            self.start(spark, kafka, topic, folder, partitions=3, value="word value").awaitTermination()
        record = json.loads((folder / "c" / "holdfast" / "decisions" / "0.0.json").read_text())["record"]
        data = [c["data"] for c in record["committables"]]
        assert len(data) == 3
        refs = [TransactionRef(d["transactional_id"], d["producer_id"], d["epoch"]) for d in data]
        with TransactionClient({"bootstrap.servers": kafka.bootstrap}) as client:
            assert client.end(refs[:commit], commit=True) == [0] * commit
            deadline = time.monotonic() + 60
            while client.ongoing("hfk1-"):
                assert time.monotonic() < deadline
                time.sleep(0.2)

    @pytest.mark.parametrize("commit", [1, 0])
    def test_only_the_lost_rows_are_produced_again(self, spark, kafka, topic, tmp_path, commit) -> None:
        name = topic("repair", 2)
        self.decide_and_time_out(spark, kafka, name, tmp_path, commit=commit)
        before = consume(kafka, name)
        assert len(before) < 100
        # With nothing committed even another number of partitions is recognised, as a whole.
        self.start(spark, kafka, name, tmp_path, partitions=3 if commit else 2, value="word value").awaitTermination()
        found = sorted(int(r["key"]) for r in consume(kafka, name))
        assert found == list(range(100))
        stats = hf.checkpoints(str(tmp_path / "c"))[0]
        assert stats.status == "complete" and stats.repaired["k"]["rows"] == 100 - len(before)

    def test_a_replay_that_differs_stops_with_the_ways_out(self, spark, kafka, topic, tmp_path) -> None:
        name = topic("differs", 2)
        self.decide_and_time_out(spark, kafka, name, tmp_path, commit=1)
        before = consume(kafka, name)
        query = self.start(spark, kafka, name, tmp_path, partitions=3, value="upper(word) value")
        with pytest.raises(
            Exception, match=r"checkpoint 0.*subtask.*not in it.*holdfast resolve .* 0 --produce-anyway"
        ):
            query.awaitTermination()
        assert sorted(map(str, consume(kafka, name))) == sorted(map(str, before))
        with TransactionClient({"bootstrap.servers": kafka.bootstrap}) as client:
            assert client.ongoing("hfk1-") == []
