"""P10: the progress topic, and readers that follow it: they see whole checkpoints, whatever is killed and whenever."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.connectors.kafka.sink.progress import watermark
from holdfast.core import faults
from holdfast.errors import ConfigError, SourceError
from holdfast.testing.local import Died, LocalBatch, LocalQuery, armed
from tests.integration.helpers import add_file, read_files
from tests.integration.test_kafka_sink import Make, consume
from tests.servers.kafka import KafkaBroker

SCHEMA = pa.schema([("key", pa.string()), ("value", pa.string())])
MODES = ("two-phase", "write-ahead")
#: the driver dies before its rows are committed, between them and the message, and with the message on its way or sent
CRASHES = ["commit.sink=error", "commit.subtask:progress=error", "commit.mark:progress=error",
           "commit.mark:progress=lost", "commit.subtask:progress=lost", "commit.record=error"]  # fmt: skip


def batch(checkpoint: int) -> LocalBatch:
    """Three subtasks, whose rows go to all partitions."""
    parts = [[f"{checkpoint}-{part}-{n}" for n in range(20)] for part in range(3)]
    return LocalBatch([[pa.RecordBatch.from_pydict({"key": ids, "value": ids}, schema=SCHEMA)] for ids in parts])


def ids(checkpoint: int) -> list[str]:
    return sorted(f"{checkpoint}-{part}-{n}" for part in range(3) for n in range(20))


def values(checkpoint: hf.WholeCheckpoint) -> list[str]:
    return sorted(message.value().decode() for message in checkpoint.messages)


def take(count: int, broker: KafkaBroker, topic: str, **options: Any) -> list[hf.WholeCheckpoint]:
    """The first ones, without waiting for more."""
    return list(islice(hf.read_whole_checkpoints(broker.bootstrap, topic, timeout=120, **options), count))


class Follower(threading.Thread):
    """A reader that follows the progress topic while drivers come and go."""

    def __init__(self, broker: KafkaBroker, topic: str, wanted: int) -> None:
        super().__init__(daemon=True)
        self._place, self._wanted = (broker.bootstrap, topic), wanted
        self.seen: list[tuple[int, list[str]]] = []
        self.problem: Exception | None = None

    def run(self) -> None:
        try:
            for checkpoint in hf.read_whole_checkpoints(*self._place, timeout=120):
                self.seen.append((checkpoint.checkpoint_id, values(checkpoint)))
                if len(self.seen) == self._wanted:
                    return
        except Exception as error:  # noqa: BLE001  told by the test
            self.problem = error


@pytest.mark.parametrize("mode", MODES)
def test_p10_a_reader_never_sees_a_part_of_a_checkpoint(
    kafka: KafkaBroker, topic: Make, tmp_path: Path, mode: str
) -> None:
    rows, progress = topic("rows", 2), topic("progress", 1)
    query = LocalQuery(str(tmp_path), f"p-{uuid.uuid4().hex[:6]}", SCHEMA)

    def sink() -> hf.KafkaSink:
        return hf.KafkaSink(kafka.bootstrap, rows, mode=mode, progress_topic=progress, name="rows")

    follower = Follower(kafka, progress, len(CRASHES) + 2)
    follower.start()
    run = query.start([sink()])
    run.run(0, batch(0))
    run.coordinator.drain(60.0)
    for number, crash in enumerate(CRASHES, 1):
        with armed(crash, died=True) as fired:
            try:
                run.run(number, batch(number))
                run.coordinator.drain(60.0)
            except Died:
                pass
        assert all(fired.values()), crash
        run = query.start([sink()])
        run.run(number, batch(number))
        run.coordinator.drain(60.0)
        assert run.coordinator.failure is None
    run.run(len(CRASHES) + 1, batch(len(CRASHES) + 1))
    run.coordinator.drain(60.0)
    run.close()
    follower.join(150)
    assert follower.problem is None
    assert follower.seen == [(n, ids(n)) for n in range(len(CRASHES) + 2)]
    told = [json.loads(message["value"]) for message in consume(kafka, progress)]
    assert [message["checkpoint_id"] for message in told] == list(range(len(CRASHES) + 2)), "each once"
    assert {message["rows"] for message in told} == {60}
    # One ends where the next begins, in every partition.
    for before, after in pairwise(told):
        assert {n: end for n, (_, end) in before["ranges"][rows].items()} == {
            n: first for n, (first, _) in after["ranges"][rows].items()
        }
    assert [(c.checkpoint_id, values(c)) for c in take(1, kafka, progress, after=6)] == [(7, ids(7))]


DRIVER = """
import sys, json
import holdfast as hf
from holdfast.testing.local import LocalQuery
from tests.integration.test_kafka_progress import SCHEMA, batch
servers, rows, progress, folder, name = sys.argv[1:]
query = LocalQuery(folder, name, SCHEMA)
run = query.start([hf.KafkaSink(servers, rows, progress_topic=progress, name="rows")])
run.run(0, batch(0))
"""


def test_p10_a_driver_killed_between_rows_and_message(kafka: KafkaBroker, topic: Make, tmp_path: Path) -> None:
    """By SIGKILL: all rows are committed and can be read, and a reader of whole checkpoints waits for the message."""
    rows, progress = topic("rows", 2), topic("progress", 1)
    arguments = [kafka.bootstrap, rows, progress, str(tmp_path), "killed"]

    def drive(fault: str) -> int:
        environment = {**os.environ, faults.VARIABLE: fault, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run([sys.executable, "-c", DRIVER, *arguments], env=environment, check=False, timeout=300)
        return done.returncode

    assert drive("commit.subtask:progress=kill") == -9
    assert sorted(row["value"].decode() for row in consume(kafka, rows)) == ids(0)
    assert list(hf.read_whole_checkpoints(kafka.bootstrap, progress, timeout=1)) == []
    # The start finishes it; another sink's checkpoints in the same topic are not this one's.
    query = LocalQuery(str(tmp_path), "killed", SCHEMA)
    query.planned = 0
    run = query.start([hf.KafkaSink(kafka.bootstrap, rows, progress_topic=progress, name="rows")])
    run.run(0, batch(0))
    run.close()
    other = LocalQuery(str(tmp_path / "other"), "other", SCHEMA)
    run = other.start([hf.KafkaSink(kafka.bootstrap, topic("else", 1), progress_topic=progress)])
    run.run(0, batch(5))
    run.close()
    found = take(1, kafka, progress, pipeline="killed")
    assert [(c.checkpoint_id, c.sink, c.rows, values(c)) for c in found] == [(0, "rows", 60, ids(0))]
    assert [values(c) for c in take(1, kafka, progress, pipeline="other", sink=run.sinks[0].name)] == [ids(5)]


def test_d6_a_message_goes_where_it_was_decided_to(kafka: KafkaBroker, topic: Make, tmp_path: Path) -> None:
    rows, first, second = topic("rows", 1), topic("first", 1), topic("second", 1)
    query = LocalQuery(str(tmp_path), "moved", SCHEMA)
    run = query.start([hf.KafkaSink(kafka.bootstrap, rows, progress_topic=first, name="rows")])
    with pytest.raises(Died), armed("decision=lost", died=True):
        run.run(0, batch(0))
    run = query.start([hf.KafkaSink(kafka.bootstrap, rows, progress_topic=second, name="rows")])
    run.run(0, batch(0))
    run.run(1, batch(1))
    run.close()
    assert [values(c) for c in take(1, kafka, first)] == [ids(0)]
    # The new topic does not know of the old one: its first message covers all that was there before.
    assert [values(c) for c in take(1, kafka, second)] == [sorted([*ids(0), *ids(1)])]


@pytest.mark.spark
def test_p10_the_watermark_of_a_query_is_told(
    spark: SparkSession, kafka: KafkaBroker, topic: Make, tmp_path: Path
) -> None:
    rows, progress = topic("rows", 1), topic("progress", 1)
    for number in range(3):
        add_file(tmp_path / "in", number, range(number, number + 1), minute=number * 10)
    frame = read_files(spark, tmp_path / "in").withWatermark("at", "1 minute")
    late = frame.groupBy("id").count().selectExpr("string(id) AS key", "string(count) AS value")
    sink = hf.KafkaSink(kafka.bootstrap, rows, progress_topic=progress)
    writer = hf.write_stream(late, sink, name="late", checkpoint_location=str(tmp_path / "checkpoint"))
    writer.outputMode("update").trigger(availableNow=True).start().awaitTermination()
    marks = [checkpoint.watermark_ms for checkpoint in take(3, kafka, progress)]
    assert marks[0] is None
    assert marks[1] == 1_704_067_200_000 - 60_000
    assert marks[2] == 1_704_067_200_000 + 10 * 60_000 + 1000 - 60_000


def test_no_watermark_is_none(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{"batchWatermarkMs":0}\n-')
    (tmp_path / "offsets" / "1").write_text('v1\n{"batchWatermarkMs":17}\n-')
    found = [watermark(f"{tmp_path}/holdfast", number) for number in range(3)]
    assert found == [None, 17, None]


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({"topic": "rows", "progress_topic": ""}, "progress_topic must be a name"),
        ({"progress_topic": "progress"}, "progress_topic needs topic="),
        ({"topic": "rows", "progress_topic": "rows"}, "one other topic"),
        ({"topic": "rows.{key}", "progress_topic": "p"}, "one other topic"),
        ({"topic": "rows", "progress_topic": "p", "delivery": "none"}, "needs delivery='exactly-once', not 'none'"),
    ],
)
def test_options_are_checked_when_the_sink_is_made(options: dict[str, Any], wrong: str) -> None:
    with pytest.raises(ConfigError, match=wrong):
        hf.KafkaSink("localhost:9092", **options)


def test_topics_that_are_not_there_are_named(kafka: KafkaBroker, topic: Make, tmp_path: Path) -> None:
    missing = f"missing-{uuid.uuid4().hex[:8]}"
    sink = hf.KafkaSink(kafka.bootstrap, topic("rows", 1), progress_topic=missing)
    with pytest.raises(ConfigError, match=f"topic '{missing}' is not in Kafka"):
        LocalQuery(str(tmp_path), "missing", SCHEMA).start([sink])
    with pytest.raises(SourceError, match=f"topic '{missing}' is not in Kafka"):
        list(hf.read_whole_checkpoints(kafka.bootstrap, missing, timeout=1))
    with pytest.raises(ConfigError, match="after must be the number of a checkpoint"):
        hf.read_whole_checkpoints(kafka.bootstrap, missing, after="1")  # type: ignore[arg-type]
