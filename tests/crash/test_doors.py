"""Spark's own doors, with real drivers: `format("holdfast")`, a Spark Connect server, `spark-pipelines run`; killed."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow.dataset
import pyspark
import pytest

from holdfast.core import faults
from holdfast.spark import class_archive
from tests.crash import door_scenarios
from tests.crash.door_work import BucketDoor, DoorWork, beside, door_work, end_all
from tests.crash.harness import ROOT, _source, status
from tests.crash.processes import end, state_of, wait_for
from tests.crash.scenarios import crash_then_restart, zombie
from tests.servers.s3_stores import KEY, SECRET, Moto

SPARK = Path(pyspark.__file__).parent
EXAMPLE = ROOT / "examples" / "pipelines"


@pytest.mark.contract("T2")
def test_t2_driver_and_process_killed_between_decision_and_commit(tmp_path: Path) -> None:
    work = DoorWork(tmp_path / "work", "sqlite")
    driver = work.start("decision=stop-after@2")
    try:
        wait_for(lambda: work.fired() or driver.poll() is not None, "the second decision")
        assert driver.poll() is None, work.log()
        wait_for(lambda: [state_of(pid) for pid in beside(driver.pid)] == ["T"], "the pause")
        assert len(work.records("decision")) == 2 and not work.is_complete(1)
    finally:
        end_all(driver)
    work.run_clean()
    work.assert_clean()
    assert status(work).returncode == 0


@pytest.mark.contract("T2")
def test_a_driver_that_was_paused_finds_itself_fenced(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The process is paused before its decision, and Spark waits for it; the next driver goes on; then it wakes up."""
    with door_work(tmp_path / "work", "sqlite", request.getfixturevalue) as work:
        zombie("decision=stop@2")(work)


@pytest.mark.contract("T2")
def test_with_the_checkpoint_in_a_bucket(tmp_path: Path, moto: Moto, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark's part with Spark's settings, ours with the driver's environment: a data source is told nothing else."""
    told = {"ACCESS_KEY_ID": KEY, "SECRET_ACCESS_KEY": SECRET, "ENDPOINT_URL": moto.endpoint, "REGION": "us-east-1"}
    for name, value in told.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    work = BucketDoor(tmp_path / "work", "sqlite", moto)
    try:
        crash_then_restart("decision=kill-after@2")(work)
    finally:
        work.end_left()


def test_every_point_is_tried_with_each_sink_behind_the_door() -> None:
    tried = {(case.point, case.sink) for case in door_scenarios.CASES}
    together = f"{door_scenarios.DOOR}-stores"
    alone = [sink for sink in door_scenarios.SINKS if sink != together]
    each = {(point, sink) for point in door_scenarios.POINTS for sink in alone}
    # Four stores under one decision: each of them has a column of its own.
    stores = {(point, together) for point in (1, 2, 3, 5, 6, 8, 9, 11, 13)}
    # A server that is killed and restarted.
    served = [sink for sink in alone if any(name in sink for name in ("kafka", "postgres", "cassandra"))]
    assert tried == each | stores | {(14, sink) for sink in [*served, together]}
    assert len({case.id for case in door_scenarios.CASES}) == len(door_scenarios.CASES)


@contextmanager
def connect_server(folder: Path, **more: str) -> Iterator[str]:
    """A Spark Connect server of its own process, as `start-connect-server.sh` starts it; killed at the end."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf = {
        "spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2",
        "spark.connect.grpc.binding.address": "127.0.0.1", "spark.connect.grpc.binding.port": port,
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1",
    }  # fmt: skip
    command = [SPARK / "bin" / "spark-submit", "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    settings = [word for key, value in conf.items() for word in ("--conf", f"{key}={value}")]
    log = folder / "log"
    with log.open("wb") as file:
        server = subprocess.Popen(
            [*command, *settings, next((SPARK / "jars").glob("spark-connect_*.jar"))],
            cwd=ROOT, env=environment(**more), stdout=file, stderr=file, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(lambda: _listens(port) or server.poll() is not None, "the server")
        assert server.poll() is None, log.read_text(errors="replace")[-6000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        end_all(server)


def _listens(port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def environment(**more: str) -> dict[str, str]:
    env = {
        **os.environ,
        "PYTHONPATH": f"{_source()}:{ROOT}",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(SPARK),
        # As hf.session has it, which is not asked here.
        "SPARK_SUBMIT_OPTS": f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} {class_archive.options({})}".strip(),
    }
    return {**env, "SPARK_LOCAL_IP": "127.0.0.1", **more}


@pytest.mark.contract("T2")
def test_t2_a_spark_connect_server_killed_after_a_decision_and_started_again(tmp_path: Path) -> None:
    """By hf.write_stream until it is killed; then by the format, which goes on with the same pipeline."""
    work = DoorWork(tmp_path / "work", "sqlite")
    once = tmp_path / "once"
    once.mkdir()
    with connect_server(tmp_path, **{faults.VARIABLE: "decision=stop-after@2", faults.ONCE: str(once)}) as remote:
        client = work.start(remote=remote, through="write_stream")
        try:
            wait_for(lambda: (once / "decision").exists() or client.poll() is not None, "the second decision")
            assert client.poll() is None, work.log() + said(tmp_path)
            wait_for(lambda: len(work.records("decision")) == 2, "its record")
            assert not work.is_complete(1)
        finally:
            end(client)  # it would look for the server for minutes; the query is the server's, and goes on without it
    with connect_server(tmp_path) as remote:
        assert work.run(remote=remote, through="format") == 0, work.log() + said(tmp_path)
        work.assert_clean()
        assert status(work).returncode == 0
        own_sink_with_dead_letters(tmp_path / "own", remote)


def own_sink_with_dead_letters(folder: Path, remote: str) -> None:
    """A class that only the client has, in a query that sets rows aside; and again, with more rows."""
    (folder / "in").mkdir(parents=True)
    for run in range(2):
        numbers = range(run * 20, run * 20 + 20)
        (folder / "in" / f"{run}.json").write_text("".join(f'{{"id": {n if n % 5 else -n - 1}}}\n' for n in numbers))
        said = subprocess.run(
            [sys.executable, "-m", "tests.crash.connect_job", remote, folder], cwd=ROOT, env=environment(),
            capture_output=True, text=True, timeout=280, check=False,
        )  # fmt: skip
        assert said.returncode == 0, said.stderr[-6000:]
    assert sorted(rows(folder, "out.db")) == [n for n in range(40) if n % 5]
    with closing(sqlite3.connect(folder / "out.db")) as database:
        dead = [json.loads(row)["id"] for (row,) in database.execute("SELECT content FROM dead")]
    assert sorted(dead) == sorted(-n - 1 for n in range(40) if n % 5 == 0)


def test_a_declarative_pipeline_killed_in_the_middle_and_run_again(tmp_path: Path) -> None:
    project = tmp_path / "shop"
    shutil.copytree(EXAMPLE, project)
    spec = project / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///data/shop", f"file://{project}"))
    (project / "in").mkdir()
    for number in range(3):
        lines = [json.dumps({"id": i, "word": "oak", "amount": i / 2}) for i in range(number * 50, number * 50 + 50)]
        (project / "in" / f"{number}.json").write_text("\n".join(lines))
    once = tmp_path / "once"
    once.mkdir()
    killed = pipelines(project, **{faults.VARIABLE: "decision=stop-after@2", faults.ONCE: str(once)})
    try:
        wait_for(lambda: (once / "decision").exists() or killed.poll() is not None, "the second decision", 280)
        assert killed.poll() is None, said(project)
    finally:
        end_all(killed)
    assert 0 < len(rows(project)) < 150
    run(project)
    assert sorted(rows(project)) == sorted(archived(project)) == list(range(150)), said(project)
    # A full refresh is the user's order to deliver everything again, under another checkpoint location: a take-over.
    run(project, "--full-refresh-all")
    assert sorted(rows(project)) == sorted(archived(project)) == sorted([*range(150), *range(150)]), said(project)


def pipelines(project: Path, *arguments: str, **more: str) -> subprocess.Popen[bytes]:
    with (project / "log").open("ab") as log:
        return subprocess.Popen(
            [SPARK / "bin" / "spark-pipelines", "run", *arguments], cwd=project, env=environment(**more), stdout=log,
            stderr=log, start_new_session=True,
        )  # fmt: skip


def run(project: Path, *arguments: str) -> None:
    process = pipelines(project, *arguments)
    try:
        assert process.wait(280) == 0, said(project)
        deadline = time.monotonic() + 60
        while beside(process.pid) and time.monotonic() < deadline:  # it completes the last files
            time.sleep(0.1)
    finally:
        end_all(process)


def said(project: Path) -> str:
    return (project / "log").read_text(errors="replace")[-6000:]


def rows(project: Path, name: str = "shop.db") -> list[int]:
    with closing(sqlite3.connect(project / name)) as database:
        return [row[0] for row in database.execute("SELECT id FROM orders")]


def archived(project: Path) -> list[int]:
    table = pyarrow.dataset.dataset(project / "archive", format="parquet").to_table()
    return [int(number) for number in table.column("id").to_pylist()]
