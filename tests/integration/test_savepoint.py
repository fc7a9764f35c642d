"""Savepoints of real queries: taken while one runs, which is then killed; started from, and audited (S5)."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Producer
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.history import engine_position
from holdfast.checkpoint.origin import Ahead
from holdfast.checkpoint.savepoint import Savepoint, read_savepoint
from holdfast.checkpoint.start_from import start_from
from holdfast.cli.app import app
from tests.crash.harness import ROOT
from tests.crash.processes import end, wait_for
from tests.integration.helpers import add_file, ids, read_files, select
from tests.integration.savepoint_job import counts
from tests.integration.test_kafka_sink import consume

pytestmark = pytest.mark.spark


def expected(numbers: range) -> dict[str, int]:
    return dict(Counter(f"w{i % 3}" for i in numbers))


def found(database: Path) -> dict[str, int]:
    return dict(select(database, "SELECT word, count FROM words")) if database.exists() else {}


class Job:
    """The query of savepoint_job in a process group of its own."""

    def __init__(self, folder: Path, location: str, name: str = "words", *once: str) -> None:
        env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
        words = [str(folder), location, name, f"{name}.db", *once]
        self.log, self.database = folder / "job.log", folder / f"{name}.db"
        with self.log.open("wb") as log:
            command = [sys.executable, "-m", "tests.integration.savepoint_job", *words]
            self.process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)

    def wait(self, counted: dict[str, int]) -> None:
        wait_for(lambda: self.process.poll() is not None or _read(self.database) == counted, "the words")
        self.check()

    def check(self) -> None:
        assert self.process.poll() is None, self.log.read_text()[-3000:]


def add_files(folder: Path, first: int, last: int) -> None:
    for n in range(first, last):
        add_file(folder / "in", n, range(n * 10, n * 10 + 10))


def saved_while_it_runs(folder: Path, location: str, target: str) -> Savepoint:
    """Three files are counted; then the query is asked for a savepoint, and is killed."""
    add_files(folder, 0, 3)
    job = Job(folder, location)
    try:
        job.wait(expected(range(30)))
        saved = hf.savepoint(location, target, timeout="3m")
        job.check()
    finally:
        end(job.process)
    assert saved.checkpoint_id == 2
    assert any(name.startswith("spark/state/0/") for name in saved.files)
    assert not start_from(saved.path, f"{location}-new").further
    start_from(saved.path, f"{location}-copy", name="copy")
    add_files(folder, 3, 5)
    return saved


@pytest.mark.timeout(300)
@pytest.mark.contract("S5")
def test_taken_while_it_runs_then_killed_then_started_from(rocksdb, tmp_path: Path) -> None:
    """The state goes along: words that were counted before the savepoint count on, and none counts twice."""
    location = str(tmp_path / "ck")
    saved_while_it_runs(tmp_path, location, str(tmp_path / "saved"))
    for where, name in ((f"{location}-new", "words"), (f"{location}-copy", "copy")):
        writer = counts(rocksdb, tmp_path, where, name, f"{name}.db")
        writer.trigger(availableNow=True).start().awaitTermination()
    assert found(tmp_path / "words.db") == expected(range(50))
    assert found(tmp_path / "copy.db") == expected(range(50))  # only from the savepoint's state


@pytest.mark.timeout(400)
@pytest.mark.contract("S5")
def test_the_same_where_sparks_part_and_ours_are_on_s3(tmp_path: Path, bucket: str) -> None:
    """Spark by s3a, holdfast by s3fs: offsets, commits, state, log and savepoint are all in the bucket."""
    location = f"s3a://{bucket}/ck"
    saved_while_it_runs(tmp_path, location, f"s3a://{bucket}/saved")
    assert engine_position(f"{location}-copy") == (2, 2)
    job = Job(tmp_path, f"{location}-copy", "copy", "--once")
    try:
        assert job.process.wait(180) == 0, job.log.read_text()[-3000:]
    finally:
        end(job.process)
    assert found(tmp_path / "copy.db") == expected(range(50))  # only from the savepoint's state
    assert not (tmp_path / "ck").exists() and engine_position(f"{location}-copy")[1] == 4


def _read(database: Path) -> dict[str, int]:
    try:
        return found(database)
    except sqlite3.OperationalError:  # the table is not there yet
        return {}


@pytest.mark.contract("S5")
def test_a_rewind_takes_the_state_back_with_it(rocksdb, tmp_path: Path) -> None:
    """Counts of an upsert are right only if the state forgot what is read again, and remembers what is not."""
    location = str(tmp_path / "ck")

    def run() -> None:
        counts(rocksdb, tmp_path, location).trigger(availableNow=True).start().awaitTermination()

    add_files(tmp_path, 0, 4)
    run()
    assert [c.checkpoint_id for c in hf.checkpoints(location)] == [0, 1, 2, 3]
    told = CliRunner().invoke(app, ["rewind", location, "--to", "1"])
    assert told.exit_code == 1 and "2 checkpoints with 6 rows" in " ".join(told.stderr.split()), told.output
    told = CliRunner().invoke(app, ["rewind", location, "--to", "1", "--ahead", "redeliver", "--yes"])
    assert told.exit_code == 0, told.output
    assert [c.checkpoint_id for c in hf.checkpoints(location)] == [0, 1]
    add_files(tmp_path, 4, 5)
    run()
    run()
    assert found(tmp_path / "words.db") == expected(range(50))
    assert hf.checkpoints(location)[-1].state["rows"] == 3


@pytest.mark.contract("S5")
def test_a_kafka_query_is_set_to_other_offsets(spark, tmp_path: Path, kafka, topic) -> None:
    source = topic("rewound", 1)

    def send(numbers: range) -> None:
        producer = Producer({"bootstrap.servers": kafka.bootstrap})
        for number in numbers:
            producer.produce(source, str(number))
        assert producer.flush(30) == 0

    def run() -> list[int]:
        rows = hf.read_kafka(
            spark,
            bootstrap_servers=kafka.bootstrap,
            topics=[source],
            group_id="rewound",
            start=hf.StartFrom.earliest(),
        ).selectExpr("bigint(string(value)) AS id")
        sink = hf.SqliteSink(tmp_path / "shop.db", "orders")
        writer = hf.write_stream(rows, sink, name="rewound", checkpoint_location=tmp_path / "ck")
        writer.trigger(availableNow=True).start().awaitTermination()
        return ids(tmp_path / "shop.db")

    def rewound(*words: str) -> None:
        told = CliRunner().invoke(app, ["rewind", str(tmp_path / "ck"), "--yes", *words])
        assert told.exit_code == 0, told.output

    send(range(10))
    assert run() == list(range(10))
    rewound("--to-offsets", json.dumps({source: {"0": 7}}), "--ahead", "redeliver")
    assert run() == sorted([*range(10), 7, 8, 9])
    send(range(10, 14))
    rewound("--to-offsets", json.dumps({source: {"0": 12}}), "--leave-out")
    assert run() == sorted([*range(10), 7, 8, 9, 12, 13])


@pytest.mark.contract("S5")
def test_a_running_query_saves_itself_to_s3_and_goes_on(spark, tmp_path: Path, bucket: str) -> None:
    s3 = f"s3://{bucket}/points"

    def query(place: str):
        sink = hf.SqliteSink(tmp_path / "shop.db", "orders")
        return hf.write_stream(
            read_files(spark, tmp_path / "in"), sink, name="s3", checkpoint_location=tmp_path / place
        )

    add_file(tmp_path / "in", 0, range(5))
    running = query("ck").trigger(processingTime="100 milliseconds").start()
    running.processAllAvailable()
    saved = hf.savepoint(tmp_path / "ck", s3, name="one")
    add_file(tmp_path / "in", 1, range(5, 8))
    running.processAllAvailable()
    running.stop()
    assert ids(tmp_path / "shop.db") == list(range(8))
    with pytest.raises(hf.HoldfastError, match="1 checkpoints with 3 rows"):
        start_from(saved.path, str(tmp_path / "new"))
    start_from(saved.path, str(tmp_path / "new"), ahead=Ahead.REDELIVER)
    query("new").trigger(availableNow=True).start().awaitTermination()
    assert ids(tmp_path / "shop.db") == sorted([*range(8), *range(5, 8)])
    assert read_savepoint(f"{s3}/one").checkpoint_id == 0


@pytest.mark.contract("S5")
def test_rows_that_kafka_has_are_left_out_if_the_replay_proves_equal(spark, tmp_path: Path, kafka, topic) -> None:
    target = topic("skipped")

    def run(place: str) -> None:
        frame = read_files(spark, tmp_path / "in").selectExpr("string(id) AS value")
        sink = hf.KafkaSink(kafka.bootstrap, target)
        writer = hf.write_stream(frame, sink, name="skip", checkpoint_location=tmp_path / place)
        writer.trigger(availableNow=True).start().awaitTermination()

    add_file(tmp_path / "in", 0, range(5))
    run("ck")
    saved = hf.savepoint(tmp_path / "ck", tmp_path / "saved")
    for n in (1, 2):
        add_file(tmp_path / "in", n, range(n * 5, n * 5 + 5))
    run("ck")
    begun = start_from(saved.path, str(tmp_path / "new"), ahead=Ahead.SKIP)
    assert [(f.checkpoints, f.rows) for f in begun.further.values()] == [(2, 10)]
    add_file(tmp_path / "in", 3, range(15, 20))
    run("new")
    run("new")
    assert sorted(int(row["value"]) for row in consume(kafka, target)) == list(range(20))
