"""Savepoints of real queries: taken while one runs, which is then killed; started from, and audited (S5)."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.checkpoint.origin import Ahead
from holdfast.checkpoint.savepoint import read_savepoint
from holdfast.checkpoint.start_from import start_from
from tests.crash.harness import ROOT
from tests.crash.processes import end, wait_for
from tests.integration.helpers import add_file, ids, read_files, select
from tests.integration.savepoint_job import STATE, counts
from tests.integration.test_kafka_sink import consume

pytestmark = pytest.mark.spark


def expected(numbers: range) -> dict[str, int]:
    return dict(Counter(f"w{i % 3}" for i in numbers))


def found(database: Path) -> dict[str, int]:
    return dict(select(database, "SELECT word, count FROM words")) if database.exists() else {}


@pytest.fixture
def rocksdb(spark):
    before = {key: spark.conf.get(key, None) for key in STATE}
    for key, value in STATE.items():
        spark.conf.set(key, value)
    yield spark
    for key, value in before.items():
        spark.conf.unset(key) if value is None else spark.conf.set(key, value)


@pytest.mark.timeout(300)
@pytest.mark.contract("S5")
def test_taken_while_it_runs_then_killed_then_started_from(rocksdb, tmp_path: Path) -> None:
    """The state goes along: words that were counted before the savepoint count on, and none counts twice."""
    for n in range(3):
        add_file(tmp_path / "in", n, range(n * 10, n * 10 + 10))
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    command = [sys.executable, "-m", "tests.integration.savepoint_job", str(tmp_path)]
    with (tmp_path / "job.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log, start_new_session=True)
        try:
            wait_for(
                lambda: process.poll() is not None or _read(tmp_path / "words.db") == expected(range(30)), "the words"
            )
            assert process.poll() is None, (tmp_path / "job.log").read_text()[-3000:]
            saved = hf.savepoint(tmp_path / "ck", tmp_path / "saved", timeout="3m")
            assert process.poll() is None
        finally:
            end(process)
    assert saved.checkpoint_id == 2
    assert any(name.startswith("spark/state/0/") for name in saved.files)
    begun = start_from(saved.path, str(tmp_path / "new"))
    assert not begun.further
    for n in range(3, 5):
        add_file(tmp_path / "in", n, range(n * 10, n * 10 + 10))
    for location, name, database in ((tmp_path / "new", "words", "words.db"), (tmp_path / "copy", "copy", "copy.db")):
        if name == "copy":
            start_from(saved.path, str(location), name=name)
        counts(rocksdb, tmp_path, str(location), name, database).trigger(availableNow=True).start().awaitTermination()
    assert found(tmp_path / "words.db") == expected(range(50))
    assert found(tmp_path / "copy.db") == expected(range(50))  # only from the savepoint's state


def _read(database: Path) -> dict[str, int]:
    try:
        return found(database)
    except Exception:  # noqa: BLE001  the table is not there yet
        return {}


@pytest.fixture
def s3(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    for name, value in {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "y",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    command = [Path(sys.executable).with_name("moto_server"), "-H", "127.0.0.1", "-p", str(port)]
    with (tmp_path / "moto.log").open("wb") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:
        try:
            for _ in range(300):
                try:
                    put = urllib.request.Request(f"http://127.0.0.1:{port}/saved", method="PUT")
                    urllib.request.urlopen(put, timeout=5).close()
                    break
                except OSError:
                    time.sleep(0.1)
            else:
                pytest.fail(f"moto_server did not start: {(tmp_path / 'moto.log').read_text()}")
            yield "s3://saved/points"
        finally:
            process.terminate()


@pytest.mark.contract("S5")
def test_a_running_query_saves_itself_to_s3_and_goes_on(spark, tmp_path: Path, s3: str) -> None:
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
