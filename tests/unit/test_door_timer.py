"""The process beside the driver between two batches: what comes due, what fails then, and what waited for the first."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.checkpoint.health import DOWN
from holdfast.checkpoint.status import read_status
from holdfast.doors import beside
from holdfast.errors import RestoredEndpointError, StorageError, UndeliveredError
from tests.crash.processes import wait_for
from tests.unit.door_spark import SCHEMA, Spark

WAITED = "has waited for rows until now"


@pytest.fixture
def with_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Spark]:
    sinks = [{"files": {"path": str(tmp_path / "out"), "format": "json", "rolling": {"inactivity": "1s", "age": "1h"}}}]
    return lambda: Spark(tmp_path, monkeypatch, sinks=json.dumps(sinks))


def shown(folder: Path) -> list[int]:
    """The rows in completed files."""
    files = (folder / "out").glob("*.json*")
    return sorted(json.loads(line)["id"] for file in files for line in file.read_text().splitlines())


def test_a_file_is_completed_while_spark_lives_and_no_batch_comes(tmp_path, with_files) -> None:
    """Rule 7, through the door."""
    with closing(with_files()) as spark:
        spark.run(0)
        begun = read_status(str(spark.location)).owner
        wait_for(lambda: shown(tmp_path) == list(range(10)), "the file is completed", 60)
        wait_for(lambda: read_status(str(spark.location)).owner.seen > begun.seen, "the timer's sign of life", 60)
        assert spark.java.poll() is None, "it was not the end of Spark that completed it"
        spark.run(1)
        assert read_status(str(spark.location)).owner.generation == 0, "the run went on"
    assert shown(tmp_path) == list(range(20))


def test_a_failure_between_two_batches_shows_in_status_and_fails_the_next_one(tmp_path, with_files, capfd) -> None:
    """Rule 17, through the door: decided rows that wait for their file are taken away, and come back."""
    with closing(with_files()) as spark:
        spark.run(0)
        parts = [file for file in (tmp_path / "out" / "_holdfast").rglob("*.arrow") if file.is_file()]
        assert parts and not shown(tmp_path)
        for part in parts:
            part.rename(tmp_path / part.name)
        wait_for(lambda: read_status(str(spark.location)).owner.state == "failed", "status tells before a batch", 60)
        found = read_status(str(spark.location))
        assert found.health == DOWN and found.last_error["type"] == "RestoredEndpointError"
        assert "RestoredEndpointError" in found.reasons[0]
        assert "the query fails with its next batch" in capfd.readouterr().err
        with pytest.raises(RestoredEndpointError):
            spark.plan(1)
        assert spark.decided() == [0]
        for part in parts:
            (tmp_path / part.name).rename(part)
        spark.run(1)
        assert read_status(str(spark.location)).owner.generation == 1, "the next start of the query is a new run"
    assert shown(tmp_path) == list(range(20))


def test_a_timer_that_breaks_fails_the_next_batch_and_not_the_process(tmp_path, monkeypatch) -> None:
    """Nobody but the process itself knows of such a failure: the coordinator would run the batch."""
    for name, value in (("LOOK", 0.01), ("TICK", 0.0), ("LINGER", 0.01)):
        monkeypatch.setattr(beside, name, value)
    (tmp_path / "checkpoint" / "offsets").mkdir(parents=True)
    (tmp_path / "checkpoint" / "offsets" / "0").touch()
    options = {
        "name": "door", "checkpointlocation": str(tmp_path / "checkpoint"),
        "sink": "sqlite", "path": str(tmp_path / "out.db"), "table": "orders",
    }  # fmt: skip
    made: Any = beside.Beside(SimpleNamespace(alive=True))
    asked = {"do": "begin", "options": options, "schema": SCHEMA.json()}
    assert "order" in made.answer(asked)

    def broken() -> None:
        raise StorageError("the store does not answer")

    monkeypatch.setattr(made._run._coordinator, "tick", broken)
    watching = threading.Thread(target=made.watch)
    watching.start()
    wait_for(lambda: read_status(str(tmp_path / "checkpoint")).owner.state == "failed", "status tells", 60)
    assert watching.is_alive()
    wait_for(lambda: made._noticed is not None, "the process knows", 60)
    assert "the timer of the query failed: StorageError: the store does not answer" in made.answer(asked)["error"]
    watching.join(60)
    assert made.done.is_set()


@pytest.mark.parametrize("committed", [True, False])
def test_what_write_stream_left_waits_for_rows_and_that_is_said(tmp_path, monkeypatch, capfd, committed: bool) -> None:
    """hf.write_stream lets Spark commit a batch that a sink still owes; this door leaves it to be run again at once."""
    own = {"class": "tests.integration.door_sinks.Lags", "options": {"folder": str(tmp_path)}}
    options: dict[str, Any] = {"sinks": json.dumps([{"python": own}]), "draintimeout": "0.5s"}
    (tmp_path / "down").touch()
    with closing(Spark(tmp_path, monkeypatch, **options)) as spark, pytest.raises(UndeliveredError):
        spark.run(0)
    assert WAITED not in capfd.readouterr().err
    (tmp_path / "down").unlink()
    if committed:
        (spark.location / "commits" / "0").touch()
    with closing(Spark(tmp_path, monkeypatch, **options)) as spark:
        spark.run(1 if committed else 0)
        said = capfd.readouterr().err
        assert said.count(WAITED) == int(committed)
        assert not committed or ("(1 checkpoints, the oldest is 0)" in said and "hf.write_stream" in said)
    sent = sorted(map(int, (tmp_path / "sent").read_text().split()))
    assert sent == list(range(20 if committed else 10))
