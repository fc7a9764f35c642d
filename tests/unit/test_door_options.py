"""The options of `format("holdfast")`: in lower case, as text, read with the tables of job files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

import holdfast as hf
from holdfast.checkpoint.lineage import open_lineage
from holdfast.checkpoint.storage import open_storage
from holdfast.doors.location import checkpoint_location
from holdfast.doors.options import read_options
from holdfast.errors import ConfigError
from holdfast.spark.connect_writer import ConnectWriter

SQLITE = {"sink": "sqlite", "path": "/tmp/out.db", "table": "orders"}


def read(**options: str) -> Any:
    return read_options({"name": "door", "checkpointlocation": "/tmp/cp", **options})


def test_names_are_the_same_in_any_spelling_and_values_get_their_types() -> None:
    plan = read(
        sink="kafka", bootstrapservers="localhost:9092", topic="out", **{"config.linger.ms": "20"}, max_pending="7",
        draintimeout="5s", historyretain="3", retry='{"for_": "2m"}', takeover="true", queryname="ignored",
    )  # fmt: skip
    (sink,) = plan.sinks
    assert isinstance(sink, hf.KafkaSink) and sink.max_pending == 7
    assert (
        plan.settings["drain_timeout"] == 5.0 and plan.settings["retry"].seconds == 120 and plan.settings["take_over"]
    )
    assert (plan.name, plan.location, plan.history_retain) == ("door", "file:///tmp/cp", 3)


def test_lists_nested_options_and_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DSN", "postgresql://u:hunter2@localhost/shop")
    plan = read(sink="postgres", dsn="${SHOP_DSN}", table="t")
    assert "hunter2" not in repr(plan) + repr(plan.sinks)
    assert read(**SQLITE, mode="upsert", key="a, b").sinks[0].table.key == ("a", "b")
    plan = read(sink="files", path=str(tmp_path), **{"rolling.size": "1MB"}, format="json")
    assert isinstance(plan.sinks[0], hf.FileSink)
    two = json.dumps([{"sqlite": {"path": "/tmp/a.db", "table": "a"}}, {"stdout": {}}])
    assert [type(sink) for sink in read(sinks=two).sinks] == [hf.SqliteSink, hf.StdoutSink]


def test_a_job_file_gives_sinks_name_and_dead_letters(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: totals\ncheckpoint_location: /elsewhere\nsource: {rate: {}}\n"
        "sinks:\n  - sqlite: {path: /tmp/a.db, table: a}\n  - sqlite: {path: /tmp/a.db, table: b}\n"
        "dead_letters: {sink: {sqlite: {path: /tmp/a.db, table: bad}}}\n"
    )
    plan = read_options({"job": str(job), "checkpointlocation": "/tmp/cp"})
    assert (plan.name, plan.location, len(plan.sinks)) == ("totals", "file:///tmp/cp", 2)
    assert plan.dead_letters is not None and plan.dead_letters.sink.name == "sqlite-bad"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "give one of the options sink"),
        ({**SQLITE, "job": "x.yaml"}, "not sink and job"),
        ({"sink": "sqlight"}, "did you mean 'sqlite'"),
        ({**SQLITE, "tabel": "x"}, "has no option 'tabel'; did you mean 'table'"),
        ({**SQLITE, "takeover": "yes"}, "must be true or false"),
        ({**SQLITE, "mode": "upset"}, "mode"),
        ({"sinks": "[", }, "not a JSON list"),
        ({"sinks": '{"sqlite": {}}'}, "must be a JSON list"),
        ({"sinks": '[{"sqlite": {"path": "/tmp/a", "table": "a"}, "where": "x > 1"}]'}, "hf.write_stream"),
        ({"sink": "kafka", "bootstrap_servers": "h:1", "topic": "t", "value": "body"}, "hf.write_stream"),
        ({"job": "/nowhere/job.yaml"}, "cannot be read"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        read(**options)
    assert told in str(error.value)


def test_the_location_has_one_spelling_and_must_be_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spelled = ("file:/a/b", "file:///a/b/", "/a/b")
    assert {checkpoint_location({"checkpointlocation": text}) for text in spelled} == {"file:///a/b"}
    monkeypatch.chdir(tmp_path)
    assert checkpoint_location({"checkpointlocation": "c"}) == f"file://{tmp_path}/c"
    assert checkpoint_location({"checkpointlocation": "s3a://b/c/"}) == "s3a://b/c"
    with pytest.raises(ConfigError, match="checkpointLocation is missing"):
        read_options({"name": "x", **SQLITE})
    with pytest.raises(ConfigError, match="name"):
        read_options({"checkpointlocation": "/tmp/cp", **SQLITE})


def test_a_full_refresh_of_a_declarative_pipeline_is_a_take_over(tmp_path: Path) -> None:
    flows = tmp_path / "_checkpoints" / "orders"
    open_lineage(open_storage(str(flows / "0" / "holdfast")), "door")

    def taking(location: Path, name: str = "door") -> bool:
        return bool(read_options({"name": name, "checkpointlocation": str(location), **SQLITE}).settings["take_over"])

    assert taking(flows / "1") and not taking(flows / "0") and not taking(flows / "1", "another")
    assert not taking(tmp_path / "elsewhere" / "1"), "only where Spark's pipelines number their locations"
    (flows / "1" / "commits").mkdir(parents=True)
    (flows / "1" / "commits" / "0").touch()
    assert not taking(flows / "1"), "once it is under way it needs no order any more"


@pytest.mark.parametrize(("commit_offsets", "told"), [(None, 1), (True, 1), (False, 0)])
def test_over_connect_read_kafka_says_that_the_group_does_not_follow(monkeypatch, caplog, commit_offsets, told) -> None:
    class Connect:
        """A session without a JVM, as its class says, and its reader."""

        __module__ = "pyspark.sql.connect.session"

        @property
        def readStream(self) -> Connect:
            return self

        def format(self, *args: object, **options: object) -> Connect:
            return self

        options = option = load = format

    monkeypatch.setattr("holdfast.spark.kafka.starting_offsets", lambda *args: {})
    hf.read_kafka(Connect(), bootstrap_servers="h:1", topics=["t"], group_id="totals", commit_offsets=commit_offsets)
    said = [record for record in caplog.records if "consumer group 'totals' are not committed" in record.getMessage()]
    assert len(said) == told


def test_over_connect_a_start_says_that_what_was_left_waits_for_rows(monkeypatch, caplog) -> None:
    monkeypatch.setattr(DataStreamWriter, "start", lambda self, **given: given)
    assert object.__new__(ConnectWriter).start(queryName="q") == {"queryName": "q"}
    (said,) = caplog.records
    assert said.levelname == "WARNING", "what Python shows unless it is told otherwise"
    assert "waits until rows come, and `holdfast status` shows it" in said.getMessage()
