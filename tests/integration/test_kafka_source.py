"""read_kafka against a real broker: start modes, offset commits, refusals (K1-K7)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast import errors
from holdfast.connectors.kafka.source.group import CommitMode, commit_mode
from holdfast.spark.private import streaming_sources
from tests.integration.helpers import ids
from tests.servers.kafka import KafkaBroker

pytestmark = pytest.mark.spark
Make = Callable[..., str]


def produce(broker: KafkaBroker, topic: str, numbers: range, *, partitions: int = 2, timestamp: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for n in numbers:
        extra = {"timestamp": timestamp} if timestamp else {}
        producer.produce(topic, value=str(n), partition=n % partitions, **extra)
    assert producer.flush(30) == 0


def committed(broker: KafkaBroker, group: str, topic: str, partitions: int = 2) -> list[int]:
    """As any stock tool would read them; -1001 where there is none."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    try:
        answer = consumer.committed([TopicPartition(topic, n) for n in range(partitions)], timeout=60)
        return [partition.offset for partition in answer]
    finally:
        consumer.close()


def read(spark: SparkSession, broker: KafkaBroker, topic: str, **options) -> DataFrame:  # type: ignore[no-untyped-def]
    given = {"topics": [topic], "group_id": f"g-{topic}", **options}
    frame = hf.read_kafka(spark, bootstrap_servers=broker.bootstrap, **given)
    return frame.selectExpr("cast(cast(value as string) as long) id")


def run(frame: DataFrame, folder: Path, sink: hf.TwoPhaseCommitSink | None = None, name: str = "source") -> list[int]:
    sink = sink or hf.SqliteSink(str(folder / "out.db"), "orders")
    writer = hf.write_stream(frame, sink, name=name, checkpoint_location=str(folder / "checkpoint"))
    writer.trigger(availableNow=True).start().awaitTermination()
    return ids(folder / "out.db")


def eventually(check: Callable[[], bool], seconds: float = 60) -> bool:
    deadline = time.monotonic() + seconds
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


@pytest.mark.contract("K1")
class TestStartModes:
    """K1."""

    def test_earliest_and_latest(self, spark, kafka, topic: Make, tmp_path) -> None:
        name = topic()
        produce(kafka, name, range(10))
        assert run(read(spark, kafka, name, start=hf.StartFrom.latest()), tmp_path) == []
        produce(kafka, name, range(10, 14))
        assert run(read(spark, kafka, name), tmp_path) == [10, 11, 12, 13]
        other = tmp_path / "other"
        other.mkdir()
        assert run(read(spark, kafka, name, start=hf.StartFrom.earliest()), other, name="e") == list(range(14))

    def test_timestamp(self, spark, kafka, topic: Make, tmp_path) -> None:
        name = topic()
        now = int(time.time() * 1000)
        produce(kafka, name, range(6), timestamp=now - 60_000)
        produce(kafka, name, range(6, 9), timestamp=now - 1_000)
        frame = read(spark, kafka, name, start=hf.StartFrom.timestamp(now - 30_000))
        assert run(frame, tmp_path) == [6, 7, 8]

    def test_specific_offsets_with_a_fallback_for_the_rest(self, spark, kafka, topic: Make, tmp_path) -> None:
        name = topic()
        produce(kafka, name, range(10))
        start = hf.StartFrom.specific_offsets({name: {0: 3}}, fallback="latest")
        assert run(read(spark, kafka, name, start=start), tmp_path) == [6, 8]

    @pytest.mark.contract("K5")
    def test_group_offsets_go_on_where_another_query_stopped(self, spark, kafka, topic: Make, tmp_path) -> None:
        """Two queries one after the other read each row once; K5: stock tools see the next offset to read."""
        name = topic()
        produce(kafka, name, range(10))
        first, second = tmp_path / "a", tmp_path / "b"
        first.mkdir(), second.mkdir()
        assert run(read(spark, kafka, name), first, name="a") == list(range(10))
        assert eventually(lambda: committed(kafka, f"g-{name}", name) == [5, 5])
        produce(kafka, name, range(10, 16))
        assert run(read(spark, kafka, name), second, name="b") == list(range(10, 16))

    def test_a_group_without_offsets_and_no_fallback_is_an_error(self, spark, kafka, topic: Make, tmp_path) -> None:
        name = topic()
        frame = read(spark, kafka, name, start=hf.StartFrom.group_offsets(fallback="error"))
        with pytest.raises(errors.SourceError, match=rf"has no offset for {name}\[0\].*name a fallback"):
            run(frame, tmp_path)

    @pytest.mark.contract("K2")
    def test_a_checkpoint_beats_the_start_mode_and_says_so(self, spark, kafka, topic: Make, tmp_path, caplog) -> None:
        """K2; even a start that could not be resolved any more does not matter then."""
        name = topic()
        produce(kafka, name, range(4))
        run(read(spark, kafka, name, start=hf.StartFrom.earliest()), tmp_path)
        produce(kafka, name, range(4, 8))
        caplog.set_level(logging.INFO, "holdfast")
        start = hf.StartFrom.specific_offsets({name: {0: 999, 1: 999}})
        assert run(read(spark, kafka, name, start=start), tmp_path) == list(range(8))
        assert "start mode specific_offsets is ignored" in caplog.text


class TestOffsetCommits:
    """K3, K4."""

    def test_k3_the_table_has_two_modes_and_the_consumers_own_commits_are_refused(self, spark) -> None:
        assert [commit_mode(given) for given in (None, True, False)] == [
            CommitMode.ON_CHECKPOINTS,
            CommitMode.ON_CHECKPOINTS,
            CommitMode.DISABLED,
        ]
        for option in ("kafka.enable.auto.commit", "kafka.auto.commit.interval.ms", "Kafka.Enable.Auto.Commit"):
            with pytest.raises(errors.ConfigError, match=f"{option} is set by read_kafka"):
                hf.read_kafka(
                    spark, bootstrap_servers="127.0.0.1:1", topics=["t"], group_id="g", options={option: "true"}
                )

    @pytest.mark.contract("K3")
    def test_switched_off_commits_nothing(self, spark, kafka, topic: Make, tmp_path) -> None:
        name = topic()
        produce(kafka, name, range(4))
        assert run(read(spark, kafka, name, commit_offsets=False), tmp_path) == list(range(4))
        time.sleep(1)
        assert committed(kafka, f"g-{name}", name) == [-1001, -1001]

    @pytest.mark.contract("K4")
    def test_a_lagging_sink_holds_the_group_back_and_then_it_catches_up(
        self, spark, kafka, topic: Make, tmp_path
    ) -> None:
        """Rule 6: Spark has committed the batch, the write-ahead sink has not delivered it."""
        from tests.integration.test_write_stream import Recorder

        name = topic()
        produce(kafka, name, range(8))
        (tmp_path / "down").touch()
        recorder = Recorder(tmp_path)
        writer = hf.write_stream(
            read(spark, kafka, name), recorder, name="lag", checkpoint_location=str(tmp_path / "checkpoint")
        )
        query = writer.trigger(processingTime="200 milliseconds").start()
        try:
            query.processAllAvailable()
            assert eventually(lambda: (tmp_path / "checkpoint" / "commits" / "0").exists())
            time.sleep(3)
            assert committed(kafka, f"g-{name}", name) == [-1001, -1001]
            (tmp_path / "down").unlink()
            assert eventually(lambda: committed(kafka, f"g-{name}", name) == [4, 4])
            assert recorder.sent() == list(range(8))
        finally:
            query.stop()


def test_the_consumers_settings_are_the_users(spark, kafka, topic: Make) -> None:
    name = topic("settings")
    for given, expected in (({}, "10000"), ({"kafka.max.poll.records": "7"}, "7")):
        (source,) = streaming_sources(read(spark, kafka, name, options=given))
        assert source["kafka.max.poll.records"] == expected


class TestTopics:
    """K6, K7."""

    @pytest.mark.contract("K6")
    def test_patterns_and_new_partitions(self, spark, kafka, topic: Make, tmp_path) -> None:
        prefix = f"p{time.monotonic_ns()}"
        one, two = topic(prefix), topic(prefix)
        produce(kafka, one, range(4))
        produce(kafka, two, range(4, 8))
        options = {"topics": None, "pattern": f"{prefix}.*", "start": hf.StartFrom.earliest()}
        assert run(read(spark, kafka, one, **options), tmp_path) == list(range(8))
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_partitions([NewPartitions(one, 4)])[one].result(60)
        assert eventually(lambda: len(admin.list_topics(one, timeout=60).topics[one].partitions) == 4)
        produce(kafka, one, range(8, 16), partitions=4)
        assert run(read(spark, kafka, one, **options), tmp_path) == list(range(16))

    def test_k6_new_topics_that_fit_the_pattern_and_new_partitions_are_read_while_the_query_runs(
        self, spark, kafka, topic: Make, tmp_path
    ) -> None:
        prefix = f"q{time.monotonic_ns()}"
        one = topic(prefix)
        produce(kafka, one, range(4))
        options = {"topics": None, "pattern": f"{prefix}.*", "start": hf.StartFrom.earliest()}
        writer = hf.write_stream(
            read(spark, kafka, one, **options),
            hf.SqliteSink(str(tmp_path / "out.db"), "orders"),
            name=prefix,
            checkpoint_location=str(tmp_path / "checkpoint"),
        )
        query = writer.trigger(processingTime="200 milliseconds").start()
        try:
            query.processAllAvailable()
            two = topic(prefix)
            produce(kafka, two, range(4, 8))
            assert eventually(lambda: ids(tmp_path / "out.db") == list(range(8)))
            assert eventually(lambda: committed(kafka, f"g-{one}", two) == [2, 2]), "the group knows it too"
            admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
            admin.create_partitions([NewPartitions(one, 4)])[one].result(60)
            assert eventually(lambda: len(admin.list_topics(one, timeout=60).topics[one].partitions) == 4)
            produce(kafka, one, range(8, 16), partitions=4)
            assert eventually(lambda: ids(tmp_path / "out.db") == list(range(16)))
        finally:
            query.stop()

    @pytest.mark.contract("K7")
    def test_a_missing_topic_is_named(self, spark, kafka, tmp_path) -> None:
        with pytest.raises(errors.SourceError, match=r"topic nowhere does not exist.*create it"):
            run(read(spark, kafka, "nowhere"), tmp_path)

    @pytest.mark.contract("K7")
    def test_expired_offsets_are_an_error_that_counts_the_rows(self, spark, kafka, topic: Make, tmp_path) -> None:
        name = topic(partitions=1)
        produce(kafka, name, range(6), partitions=1)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        future = admin.delete_records([TopicPartition(name, 0, 4)])
        assert next(iter(future.values())).result(60).low_watermark == 4
        start = hf.StartFrom.specific_offsets({name: {0: 1}})
        with pytest.raises(errors.SourceError, match=r"oldest row there is 4: 3 rows have expired"):
            run(read(spark, kafka, name, start=start), tmp_path)
        with pytest.raises(errors.SourceError, match="ends at 6"):
            run(read(spark, kafka, name, start=hf.StartFrom.specific_offsets({name: {0: 9}})), tmp_path)
        assert run(read(spark, kafka, name, start=hf.StartFrom.specific_offsets({name: {0: 4}})), tmp_path) == [4, 5]

    def test_k7_rows_that_expired_after_the_last_checkpoint_are_an_error_and_no_gap(
        self, spark, kafka, topic: Make, tmp_path, caplog
    ) -> None:
        name = topic(partitions=1)
        produce(kafka, name, range(6), partitions=1)
        assert run(read(spark, kafka, name), tmp_path) == list(range(6))
        produce(kafka, name, range(6, 10), partitions=1)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        future = admin.delete_records([TopicPartition(name, 0, 8)])
        assert next(iter(future.values())).result(60).low_watermark == 8
        with pytest.raises(errors.SourceError, match=r"checkpoint 0 stands at offset 6.*2 rows have expired") as it:
            run(read(spark, kafka, name), tmp_path)
        assert "failOnDataLoss" in str(it.value) and it.value.action
        assert ids(tmp_path / "out.db") == list(range(6))
        frame = read(spark, kafka, name, options={"failOnDataLoss": "false"})
        assert run(frame, tmp_path) == [*range(6), 8, 9]
        assert "2 rows have expired unread" in caplog.text

    @pytest.mark.contract("K6")
    def test_read_committed_is_the_default(self, spark, kafka, topic: Make, tmp_path) -> None:
        name = topic(partitions=1)
        producer = Producer({"bootstrap.servers": kafka.bootstrap, "transactional.id": f"x-{name}"})
        producer.init_transactions(30)
        for keep, numbers in ((False, range(3)), (True, range(3, 6))):
            producer.begin_transaction()
            for n in numbers:
                producer.produce(name, value=str(n), partition=0)
            producer.commit_transaction(30) if keep else producer.abort_transaction(30)
        assert run(read(spark, kafka, name), tmp_path) == [3, 4, 5]

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"topics": ["t"], "pattern": "t.*"}, "one of the two"),
            ({"topics": []}, "one of the two"),
            ({"options": {"startingOffsets": "latest"}}, "set by read_kafka"),
            ({"bootstrap_servers": "nohost"}, "host:port"),
        ],
    )
    def test_bad_options(self, spark, options, message) -> None:
        given = {"bootstrap_servers": "127.0.0.1:1", "topics": ["t"], "group_id": "g", **options}
        with pytest.raises(errors.ConfigError, match=message):
            hf.read_kafka(spark, **given)

    def test_bad_starts(self) -> None:
        for bad in (
            lambda: hf.StartFrom.group_offsets(fallback="nowhere"),
            lambda: hf.StartFrom.timestamp(-1),
            lambda: hf.StartFrom.specific_offsets({}),
            lambda: hf.StartFrom.specific_offsets({"t": {0: -5}}),
        ):
            with pytest.raises(errors.ConfigError):
                bad()
