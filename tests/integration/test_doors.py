"""`format("holdfast")` on real Spark: the same log, the same rules, the same commands afterwards."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.storage import open_storage
from holdfast.cli.app import app
from tests.crash.processes import wait_for
from tests.integration.helpers import add_file, ids, read_files, select
from tests.integration.test_kafka_sink import consume

pytestmark = pytest.mark.spark
OWN = "tests.integration.door_sinks"


def start(frame: Any, folder: Path, **options: str) -> Any:
    """Through the door, all there is."""
    writer = frame.writeStream.format("holdfast").option("checkpointLocation", str(folder / "checkpoint"))
    return writer.options(name="door", **options).trigger(availableNow=True).start()


def run(frame: Any, folder: Path, **options: str) -> None:
    start(frame, folder, **options).awaitTermination()


def own(kind: str, folder: Path, **more: Any) -> str:
    """The option `sinks` with one of this folder's sinks."""
    return json.dumps([{"python": {"class": f"{OWN}.{kind}", "options": {"folder": str(folder), **more}}}])


def decided(folder: Path) -> list[int]:
    """The checkpoints, in the order of their decisions."""
    files = sorted((folder / "checkpoint/holdfast/decisions").glob("*.json"))
    found = [json.loads(file.read_text())["record"] for file in files]
    return [record["checkpoint_id"] for record in found if record["kind"] == "decision"]


def test_rows_arrive_once_and_the_commands_know_the_pipeline(spark: SparkSession, tmp_path: Path) -> None:
    for n in range(2):
        add_file(tmp_path / "in", n, range(n * 100, n * 100 + 100))
    options = {"sink": "sqlite", "path": str(tmp_path / "out.db"), "TABLE": "orders"}
    run(read_files(spark, tmp_path / "in").repartition(2), tmp_path, **options)
    assert ids(tmp_path / "out.db") == list(range(200))
    add_file(tmp_path / "in", 2, range(200, 300))
    run(read_files(spark, tmp_path / "in").repartition(2), tmp_path, **options)
    assert ids(tmp_path / "out.db") == list(range(300))
    assert decided(tmp_path) == [0, 1, 2]
    location = str(tmp_path / "checkpoint")
    assert CliRunner().invoke(app, ["status", location]).exit_code == 0
    told = json.loads(CliRunner().invoke(app, ["history", location, "--json"]).stdout)
    assert [c["rows"] for c in (told["checkpoints"] if isinstance(told, dict) else told)] == [100] * 3
    # The query stopped well, and Spark goes on with it in the same driver: the same run, so the same generation.
    assert hf.checkpoints(location)[0].generation == hf.checkpoints(location)[-1].generation
    # Points in time are what they were.
    assert select(tmp_path / "out.db", "SELECT at FROM orders WHERE id = 7")[0][0].startswith("2024-01-01 00:00:07")


def test_write_stream_goes_on_where_the_door_ended_and_the_other_way_round(spark, tmp_path) -> None:
    add_file(tmp_path / "in", 0, range(10))
    sinks = json.dumps([{"sqlite": {"path": str(tmp_path / "out.db"), "table": "orders"}}])
    run(read_files(spark, tmp_path / "in"), tmp_path, sinks=sinks)
    add_file(tmp_path / "in", 1, range(10, 20))
    sink = hf.SqliteSink(str(tmp_path / "out.db"), "orders")
    writer = hf.write_stream(
        read_files(spark, tmp_path / "in"), sink, name="door", checkpoint_location=tmp_path / "checkpoint"
    )
    writer.trigger(availableNow=True).start().awaitTermination()
    add_file(tmp_path / "in", 2, range(20, 30))
    # The same pipeline from a job file, whose source, steps and location are not used.
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: door\ncheckpoint_location: /nowhere\nsource: {rate: {}}\n"
        f"sinks:\n  - sqlite: {{path: {tmp_path}/out.db, table: orders}}\ndrain_timeout: 30s\n"
    )
    run(read_files(spark, tmp_path / "in"), tmp_path, job=str(job))
    assert ids(tmp_path / "out.db") == list(range(30)) and decided(tmp_path) == [0, 1, 2]


@pytest.mark.contract("T3")
def test_t2_killed_between_decision_and_commit_the_replay_writes_nothing(spark, tmp_path) -> None:
    """The process beside the driver dies with a decision it has not carried out: Spark replays the batch."""
    add_file(tmp_path / "in", 0, range(50))
    (tmp_path / "hold").touch()
    query = start(read_files(spark, tmp_path / "in").repartition(3), tmp_path, sinks=own("Held", tmp_path))
    wait_for((tmp_path / "held").exists, "the commit")
    assert decided(tmp_path) == [0] and not (tmp_path / "checkpoint/commits/0").exists()
    os.kill(int((tmp_path / "held").read_text()), signal.SIGKILL)
    with pytest.raises(StreamingQueryException, match="process beside the driver has ended"):
        query.awaitTermination()
    (tmp_path / "hold").unlink()
    add_file(tmp_path / "in", 1, range(50, 60))
    run(read_files(spark, tmp_path / "in").repartition(5), tmp_path, sinks=own("Held", tmp_path))
    assert ids(tmp_path / "out.db") == list(range(60)) and decided(tmp_path) == [0, 1]
    left = open_storage(str(tmp_path / "checkpoint/holdfast")).walk("wal")
    assert not [name for name in left if name.endswith(".arrow")]


def test_what_a_failed_batch_prepared_is_undone_and_the_error_names_the_reason(spark, tmp_path) -> None:
    add_file(tmp_path / "in", 0, range(20))
    (tmp_path / "fail").touch()
    query = start(read_files(spark, tmp_path / "in"), tmp_path, sinks=own("Fails", tmp_path))
    with pytest.raises(StreamingQueryException, match="the task breaks after it has prepared"):
        query.awaitTermination()
    storage = open_storage(str(tmp_path / "checkpoint/holdfast"))
    assert decided(tmp_path) == []
    wait_for(lambda: not [n for n in storage.walk("wal") if n.endswith(".arrow")], "what the task prepared is undone")
    (tmp_path / "fail").unlink()
    run(read_files(spark, tmp_path / "in"), tmp_path, sinks=own("Fails", tmp_path))
    assert ids(tmp_path / "out.db") == list(range(20)) and decided(tmp_path) == [0]


def test_no_sink_lags_behind_a_batch_and_what_is_left_is_an_error(spark, tmp_path) -> None:
    """Spark tells a data source neither of the trigger nor of the end, so each batch may be the last one (D8)."""
    add_file(tmp_path / "in", 0, range(5))
    (tmp_path / "down").touch()
    options = {"sinks": own("Lags", tmp_path), "drainTimeout": "1s"}
    query = start(read_files(spark, tmp_path / "in"), tmp_path, **options)
    with pytest.raises(StreamingQueryException, match="UndeliveredError"):
        query.awaitTermination()
    assert decided(tmp_path) == [0]
    assert CliRunner().invoke(app, ["status", str(tmp_path / "checkpoint")]).exit_code != 0
    (tmp_path / "down").unlink()
    run(read_files(spark, tmp_path / "in"), tmp_path, **options)
    assert sorted(map(int, (tmp_path / "sent").read_text().split())) == list(range(5)) and decided(tmp_path) == [0]


def test_kafka_in_two_phases_and_files_under_one_decision(spark, tmp_path, kafka, topic) -> None:
    name = topic("door", partitions=2)
    for n in range(2):
        add_file(tmp_path / "in", n, range(n * 30, n * 30 + 30))
    sinks = [
        {"kafka": {"bootstrap_servers": kafka.bootstrap, "topic": name}},
        {"files": {"path": str(tmp_path / "out"), "format": "json"}},
    ]
    frame = read_files(spark, tmp_path / "in").selectExpr("string(id) AS key", "word AS value").repartition(2)
    run(frame, tmp_path, sinks=json.dumps(sinks))
    assert sorted(int(row["key"]) for row in consume(kafka, name)) == list(range(60))
    assert (
        decided(tmp_path) == [0, 1] and CliRunner().invoke(app, ["status", str(tmp_path / "checkpoint")]).exit_code == 0
    )


def test_what_cannot_be_had_is_refused_with_a_sentence(spark, tmp_path) -> None:
    add_file(tmp_path / "in", 0, range(5))
    frame = read_files(spark, tmp_path / "in")
    sqlite = {"sink": "sqlite", "path": str(tmp_path / "out.db"), "table": "orders"}
    for options, told in (
        ({**sqlite, "tabel": "x"}, "sink sqlite has no option 'tabel'; did you mean 'table'"),
        ({**sqlite, "deleteWhen": "id = 1", "mode": "upsert", "key": "id"}, "use hf.write_stream"),
    ):
        with pytest.raises(StreamingQueryException, match=told):
            run(frame, tmp_path, **options)
    # The first is ours. The second is Spark's own: we are never asked, and docs/spark-doors.md explains it.
    for mode, told in (
        ("complete", r"or hf\.write_stream, which takes update and complete too"),
        ("update", "holdfast does not support Update mode"),
    ):
        writer = frame.groupBy("word").count().writeStream.format("holdfast").outputMode(mode)
        query = writer.options(name="door", checkpointLocation=str(tmp_path / mode), **sqlite).start()
        with pytest.raises(StreamingQueryException, match=told):
            query.awaitTermination()
    assert not (tmp_path / "out.db").exists()
