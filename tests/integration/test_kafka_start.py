"""KafkaSink on a real broker: what a start asks of it, long answers, repairs as decided (rule 16), P8 and T7."""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, TopicPartition

import holdfast as hf
from holdfast import errors
from holdfast.checkpoint.ports import LoopTasks
from holdfast.connectors.kafka.client import offsets
from holdfast.connectors.kafka.client.retention import SURE, in_words, marks_last
from holdfast.connectors.kafka.client.transactions import TransactionClient
from holdfast.connectors.kafka.sink.two_phase import ref_of
from holdfast.sinks.subtask import make_task, write_subtask
from holdfast.testing.local import LocalBatch, LocalQuery
from tests.integration.test_kafka_modes import SCHEMA, Local, consume, rows
from tests.servers.kafka import KafkaBroker

Topic = Callable[..., str]


@pytest.mark.parametrize("options", [{}, {"mode": "write-ahead"}, {"delivery": "at-least-once"}], ids=str)
def test_a_missing_topic_is_noticed_at_the_start(kafka: KafkaBroker, tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigError, match=rf"sink 'out': topic 'nowhere' is not in Kafka at {kafka.bootstrap}"):
        Local(hf.KafkaSink(kafka.bootstrap, "nowhere", name="out", **options), tmp_path)


def test_marks_last_as_long_as_the_brokers_say(kafka: KafkaBroker, tmp_path: Path) -> None:
    assert in_words(marks_last({"bootstrap.servers": kafka.bootstrap})) == "6 days"
    short = KafkaBroker(tmp_path, **{"offsets.retention.minutes": "70"})
    short.start()
    try:
        found = marks_last({"bootstrap.servers": short.bootstrap})
    finally:
        short.stop(kill=True)
    assert found == SURE * 70 * 60
    assert in_words(found) == "60 minutes"


def test_a_transaction_in_doubt_for_longer_than_marks_last_is_not_called_lost(
    kafka: KafkaBroker, topic: Topic, tmp_path: Path
) -> None:
    local = Local(hf.KafkaSink(kafka.bootstrap, topic("old", 1)), tmp_path)
    (prepared,) = local.write(0, rows("a"))
    way = local.sink._way
    local.sink.recover(local.run.pipeline, 0, {})  # aborted, by anyone
    way._target = replace(way._target, marks_last=3600.0)
    for age, certain in ((1800, True), (3700, False)):
        with pytest.raises(errors.LostError) as caught:
            local.sink.commit(0, [{**prepared, "at": prepared["at"] - age * 1000}], LoopTasks())
        assert caught.value.certain is certain
    assert "more than 60 minutes ago" in str(caught.value)


def test_rule_16_a_repair_goes_where_the_decision_said(kafka: KafkaBroker, topic: Topic, tmp_path: Path) -> None:
    meant, now = topic("meant", 1), topic("now", 1)
    before = Local(hf.KafkaSink(kafka.bootstrap, meant, name="out"), tmp_path)
    lost = before.write(0, rows("a", "b"))
    before.sink.recover(before.run.pipeline, 0, {})
    sink = hf.KafkaSink(kafka.bootstrap, now, mode="write-ahead", name="out")
    sink.open(replace(before.run, generation=1))
    with pytest.raises(errors.LostError):
        sink.commit(0, lost, LoopTasks())
    task = make_task(replace(before.run, generation=1), "out", 0, 0, 1, lost[0]["at"], 1)
    again = [c.data for c in write_subtask([sink.as_decided(lost)], [task], [rows("a", "b")]).committables]
    assert (again[0]["topic"], again[0]["partitioner"]) == (meant, "murmur2_random")
    sink.commit(0, again, LoopTasks())
    sink.close()
    assert [row["value"] for row in consume(kafka, meant)] == [b"a", b"b"]
    assert consume(kafka, now) == []
    assert sink.as_decided([{**lost[0], "version": 1}]) is sink


def test_p8_a_partition_shows_all_of_a_subtasks_rows_of_a_checkpoint_or_none(
    kafka: KafkaBroker, topic: Topic, tmp_path: Path
) -> None:
    """Two subtasks write to the same two partitions; one is committed, then the other; a reader looks each time."""
    name = topic("whole", 2)
    local = Local(hf.KafkaSink(kafka.bootstrap, name), tmp_path)

    def part(subtask: int) -> pa.RecordBatch:
        values = [{"key": f"{n}".encode(), "value": f"{subtask}-{n}".encode()} for n in range(40)]
        return pa.RecordBatch.from_pylist(values, SCHEMA)

    def seen() -> dict[tuple[int, bytes], int]:
        counts: dict[tuple[int, bytes], int] = {}
        for row in consume(kafka, name):
            place = (row["partition"], row["value"][:1])
            counts[place] = counts.get(place, 0) + 1
        return counts

    first, second = local.write(0, part(0), 0), local.write(0, part(1), 1)
    assert seen() == {}, "both are prepared"
    with TransactionClient({"bootstrap.servers": kafka.bootstrap}) as client:
        client.end([ref_of(first[0])], commit=True)  # as a driver that dies between two of them
    half = seen()
    assert sum(half.values()) == 40
    assert {subtask for _, subtask in half} == {b"0"}, "the first one's rows, all of them, and none of the second's"
    local.sink.commit(0, [*first, *second], LoopTasks())
    ended = seen()
    assert sum(ended.values()) == 80
    assert {place: n for place, n in ended.items() if place in half} == half, "nothing is added to what was seen"
    local.sink.close()


def test_p8_at_no_moment_of_a_commit_is_a_part_of_a_subtask_to_be_read(
    kafka: KafkaBroker, topic: Topic, tmp_path: Path
) -> None:
    """A reader asks all the time up to where it may read; Kafka writes its markers partition by partition meanwhile."""
    name, checkpoints = topic("moments", 3), 15
    local = Local(hf.KafkaSink(kafka.bootstrap, name), tmp_path)
    looks: set[tuple[int, int]] = set()
    over = threading.Event()

    def watch() -> None:
        settings = {"bootstrap.servers": kafka.bootstrap, "group.id": uuid.uuid4().hex}
        reader = Consumer({**settings, "isolation.level": "read_committed"})
        while not over.is_set():
            looks.update((n, reader.get_watermark_offsets(TopicPartition(name, n), 10)[1]) for n in range(3))
        reader.close()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for number in range(checkpoints):
            parts = [rows(*(f"{number}.{subtask}.{n}" for n in range(30))) for subtask in range(2)]
            made = [one for subtask, part in enumerate(parts) for one in local.write(number, part, subtask)]
            local.sink.commit(number, made, LoopTasks())
    finally:
        over.set()
        watcher.join()
    local.sink.close()
    places: dict[tuple[int, str], list[int]] = {}
    for partition, offset, value in _placed(kafka, name):
        places.setdefault((partition, value.rpartition(".")[0]), []).append(offset)
    assert sum(map(len, places.values())) == checkpoints * 2 * 30
    assert len(looks) > 3 * checkpoints / 2, "the reader hardly looked"
    for (partition, subtask), found in places.items():
        for _, end in (look for look in looks if look[0] == partition):
            below = sum(offset < end for offset in found)
            assert below in (0, len(found)), f"{below} of {len(found)} rows of {subtask} could be read below {end}"


def _placed(kafka: KafkaBroker, name: str) -> list[tuple[int, int, str]]:
    """Partition, offset and value of every committed row."""
    reader = Consumer(
        {"bootstrap.servers": kafka.bootstrap, "group.id": uuid.uuid4().hex, "enable.partition.eof": True,
         "isolation.level": "read_committed"}
    )  # fmt: skip
    reader.assign([TopicPartition(name, n, 0) for n in range(3)])
    found, ended = [], 0
    while ended < 3:
        for message in reader.consume(500, 10):
            ended += message.error() is not None
            if not message.error():
                found.append((message.partition(), message.offset(), message.value().decode()))
    reader.close()
    return found


def test_t7_a_transaction_past_80_percent_of_its_timeout_is_warned_of(
    kafka: KafkaBroker, topic: Topic, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink = hf.KafkaSink(kafka.bootstrap, topic("slow", 1), config={"transaction.timeout.ms": 60_000}, name="out")
    run = LocalQuery(str(tmp_path / "checkpoint"), f"p{uuid.uuid4().hex[:8]}", SCHEMA).start([sink])
    with caplog.at_level(logging.WARNING, "holdfast"):
        run.run(0, LocalBatch([[rows("a")]], prepared=lambda _: run._clock.skip(40.0)))
        assert "80 %" not in caplog.text
        run.run(1, LocalBatch([[rows("b")]], prepared=lambda _: run._clock.skip(50.0)))
    run.close()
    assert "transactions of sink out have been open for 50" in caplog.text
    assert "over 80 % of the endpoint's timeout of 60.0 s" in caplog.text


def test_an_answer_of_more_than_a_megabyte_is_read(kafka: KafkaBroker, topic: Topic) -> None:
    name, note = topic("many", 10), "n" * 4000
    groups = [f"g{uuid.uuid4().hex}" for _ in range(30)]  # one request asks for all of them
    for group in groups:
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": group})
        consumer.commit(offsets=[TopicPartition(name, n, 7, metadata=note) for n in range(10)], asynchronous=False)
        consumer.close()
    found = offsets.fetch({"bootstrap.servers": kafka.bootstrap}, groups)
    assert [sum(len(mark.note) for mark in found[group]) for group in groups] == [10 * 4000] * 30
