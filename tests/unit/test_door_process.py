"""The process beside the driver, for real, killed and paused at every point; this test plays the part of Spark.

tests/integration/test_doors.py and tests/crash/test_doors.py show the same with Spark itself, which takes longer.
"""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.checkpoint.status import read_status
from holdfast.core import faults
from holdfast.doors import groups, talk
from holdfast.doors import jvm as jvms
from holdfast.doors.source import Committing
from holdfast.errors import ConfigError, EngineError, FencedError, HoldfastError, UndeliveredError
from tests.crash.processes import state_of, wait_for
from tests.unit.door_spark import Spark


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spark]:
    with closing(Spark(tmp_path, monkeypatch)) as made:
        yield made


def arm(monkeypatch: pytest.MonkeyPatch, folder: Path, fault: str) -> None:
    once = folder / "once"
    once.mkdir(exist_ok=True)
    monkeypatch.setenv(faults.ONCE, str(once))
    monkeypatch.setenv(faults.VARIABLE, fault)


def test_batches_follow_each_other_in_one_generation(spark: Spark) -> None:
    spark.run(0, 1, 2)
    spark.assert_clean(3)
    assert read_status(str(spark.location)).owner.generation == 0


@pytest.mark.parametrize(
    "fault",
    [
        "decision=kill@2", "decision=kill-after@2", "decision=lost@2", "commit.sink=kill@4", "commit.sink=kill-after@3",
        "commit.record=kill@4", "commit.record=kill-after@3", "batch.return=kill@2", "batch.return=error@2",
    ],
)  # fmt: skip
def test_t2_killed_at_any_point_the_replay_ends_with_every_row_once(spark, monkeypatch, tmp_path, fault) -> None:
    arm(monkeypatch, tmp_path, fault)
    spark.run(0)
    with pytest.raises(HoldfastError):
        spark.run(1)
    monkeypatch.delenv(faults.VARIABLE)
    before = spark.decided()
    writer = spark.plan(1)
    if 1 in before:
        assert writer._order.sinks is None, "what is decided is not written again"
    spark.commit(spark.tasks(writer, 1), 1)
    spark.run(2)
    spark.assert_clean(3)


@pytest.mark.parametrize("fault", ["recovery=kill", "commit.record=kill"])
def test_killed_in_its_recovery_it_recovers_the_next_time(spark, monkeypatch, tmp_path, fault) -> None:
    arm(monkeypatch, tmp_path, "decision=kill-after")
    with pytest.raises(EngineError, match="has ended"):
        spark.run(0)
    arm(monkeypatch, tmp_path, fault)
    with pytest.raises(EngineError, match="has ended"):
        spark.run(0)
    monkeypatch.delenv(faults.VARIABLE)
    spark.run(0, 1)
    spark.assert_clean(2)


def test_a_paused_process_is_fenced_by_another_driver(spark, monkeypatch, tmp_path) -> None:
    """The zombie: driver and process stop before the decision, another driver goes on, they wake up."""
    spark.run(0)
    told = spark.tasks(spark.plan(1), 1)
    with closing(Spark(tmp_path, monkeypatch)) as other:
        other.run(1)
        (other.location / "commits" / "1").unlink()
        with pytest.raises(FencedError):
            spark.commit(told, 1)
        (other.location / "commits" / "1").touch()
        other.run(2)
        other.assert_clean(3)


def test_tasks_of_a_run_that_was_ended_decide_nothing(spark) -> None:
    """A query is stopped in the middle of its tasks and started again: what the first ones say late is refused."""
    spark.run(0)
    late = spark.tasks(spark.plan(1), 1)
    told = spark.tasks(spark.plan(1), 1)
    with pytest.raises(EngineError, match="another run of this query"):
        Committing(spark.options).commit(late, 1)
    with pytest.raises(EngineError):
        spark.commit(told, 1)
    spark.run(1)
    spark.assert_clean(2)


def test_a_task_of_another_batch_writes_nothing(spark) -> None:
    writer = spark.plan(0)
    with pytest.raises(EngineError, match="runs batch 5 with what was prepared for batch 0"):
        spark.tasks(writer, 5)


def test_with_spark_it_ends_and_what_its_last_batch_prepared_is_undone(spark) -> None:
    spark.run(0)
    spark.tasks(spark.plan(1), 1)
    assert list((spark.location / "holdfast/wal").rglob("*.arrow"))
    spark.java.kill()
    spark.java.wait()
    wait_for(lambda: not spark.place.exists(), "the process ends with its driver", 60)
    assert spark.decided() == [0] and not list((spark.location / "holdfast/wal").rglob("*.arrow"))
    assert read_status(str(spark.location)).owner.state == "failed"


def test_files_that_wait_for_more_rows_are_completed_when_spark_has_ended(tmp_path, monkeypatch) -> None:
    files = json.dumps([{"files": {"path": str(tmp_path / "out"), "format": "json"}}])
    with closing(Spark(tmp_path, monkeypatch, sinks=files)) as spark:
        spark.run(0, 1)
        assert not list((tmp_path / "out").glob("*.json*"))
    rows = [json.loads(line) for file in (tmp_path / "out").glob("*.json*") for line in file.read_text().splitlines()]
    assert sorted(row["id"] for row in rows) == list(range(20))


def test_another_schema_or_other_options_are_a_run_of_their_own(spark) -> None:
    spark.run(0)
    spark.options = {**spark.options, "draintimeout": "9s"}
    spark.run(1)
    assert read_status(str(spark.location)).owner.generation == 1
    spark.assert_clean(2)


def test_options_are_checked_before_anything_is_claimed(spark) -> None:
    spark.options["sinks"] = "[]"
    with pytest.raises(ConfigError):
        spark.plan(0)
    assert not (spark.location / "holdfast").exists()


def test_d8_a_sink_that_lags_keeps_its_batch_from_ending(tmp_path, monkeypatch) -> None:
    own = {"class": "tests.integration.door_sinks.Lags", "options": {"folder": str(tmp_path)}}
    sinks = json.dumps([{"python": own}])
    (tmp_path / "down").touch()
    with closing(Spark(tmp_path, monkeypatch, sinks=sinks, draintimeout="0.5s")) as spark:
        with pytest.raises(UndeliveredError):
            spark.run(0)
        (tmp_path / "down").unlink()
        spark.run(0)
    assert sorted(map(int, (tmp_path / "sent").read_text().split())) == list(range(10))


def test_nobody_else_may_reach_the_sockets(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(talk.tempfile, "gettempdir", lambda: str(tmp_path))
    made = talk.folder()
    assert made.stat().st_mode & 0o077 == 0
    made.chmod(0o755)
    with pytest.raises(EngineError, match="nobody else can enter"):
        talk.folder()


@pytest.mark.parametrize("module", ["pyspark.daemon", "holdfast.spark.daemon"])
def test_the_driver_is_found_above_the_process_that_forks_workers(monkeypatch, module) -> None:
    above = {40: 30, 30: 20, 20: 1}
    commands = {
        30: ["/env/bin/python3", "-m", module, "pyspark.worker", ""],
        20: ["/jre/bin/java", "-cp", "x", "-m", ""],
    }
    monkeypatch.setattr(jvms, "_parent", above.__getitem__)
    monkeypatch.setattr(jvms, "_command", commands.__getitem__)
    monkeypatch.setattr(jvms, "_started", lambda pid: f"when {pid} was")
    assert jvms.driver_of(40) == jvms.driver_of(30) == jvms.Jvm(20, "when 20 was")


def test_a_process_that_is_gone_is_not_taken_for_another_of_its_number() -> None:
    java = subprocess.Popen(["sleep", "600"])
    found = jvms.Jvm(java.pid, jvms._started(java.pid) or "")
    assert found.alive and not jvms.Jvm(java.pid, "another time").alive
    java.send_signal(signal.SIGKILL)
    wait_for(lambda: state_of(java.pid) == "Z", "a process that nobody has waited for")
    assert not found.alive
    java.wait()


def test_that_no_consumer_group_follows_is_said_once_at_the_start(spark, capfd) -> None:
    """What the process beside the driver says is in the driver's log; here it is this test's."""
    line = '{"orders":{"0":30,"1":7},"returns":{"0":-2}}'
    for batch in range(2):
        (spark.location / "offsets" / str(batch)).write_text(f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":1}}\n{line}')
        spark.run(batch)
    said = capfd.readouterr().err
    assert said.count("no consumer group gets its offsets") == 1 and "(orders, returns)" in said


@pytest.mark.parametrize("line", ["-", "7", '{"logOffset":3}', '{"shard":{"iteratorType":"x"}}', "{}", '{"a":{}}'])
def test_other_sources_are_not_taken_for_kafka(line: str) -> None:
    assert groups.kafka_topics(line) == []
