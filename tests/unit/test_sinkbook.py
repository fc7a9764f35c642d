"""A sink that is added, removed or brought back: from which checkpoint on it gets rows, and which gap it has."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from tests.unit.inprocess import DAMAGES, Endpoint, Engine, PreparingSink, damage


def sinks(location: Path) -> dict[str, dict[str, Any]]:
    result = CliRunner().invoke(app, ["status", str(location), "--json"])
    return {sink["sink"]: sink for sink in json.loads(result.stdout)["sinks"]}


@pytest.fixture
def make() -> Any:
    return lambda name: PreparingSink(Endpoint(), name)


@pytest.fixture(autouse=True)
def _loud(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="holdfast")


def test_the_first_sinks_are_there_from_the_beginning(tmp_path, make, caplog) -> None:
    engine = Engine(tmp_path / "holdfast", make("a"))
    engine.run(0, [1])
    engine.restart()
    assert sinks(tmp_path)["a"]["from_checkpoint"] == 0
    assert "new in this pipeline" not in caplog.text
    assert "was added later" not in CliRunner().invoke(app, ["status", str(tmp_path)]).stdout


def test_a_sink_that_is_added_gets_rows_from_the_next_checkpoint_on(tmp_path, make, caplog) -> None:
    a, b = make("a"), make("b")
    engine = Engine(tmp_path / "holdfast", a)
    engine.run(0, [1])
    engine.run(1, [2])
    engine.restart(a, b)
    assert "sink b is new in this pipeline: it gets rows from checkpoint 2 on" in caplog.text
    engine.run(2, [3])
    assert (a.endpoint.rows, b.endpoint.rows) == ([1, 2, 3], [3])
    assert sinks(tmp_path)["b"]["from_checkpoint"] == 2
    assert "sink b: gets rows from checkpoint 2 on" in CliRunner().invoke(app, ["status", str(tmp_path)]).stdout


def test_a_sink_that_comes_back_has_a_gap(tmp_path, make, caplog) -> None:
    a, b = make("a"), make("b")
    engine = Engine(tmp_path / "holdfast", a, b)
    engine.run(0, [1])
    engine.restart(a)
    assert "sink b is no longer in the pipeline: it gets nothing from checkpoint 1 on" in caplog.text
    engine.run(1, [2])
    engine.run(2, [3])
    assert sinks(tmp_path)["b"]["removed"] == 1
    engine.restart(a, b)
    assert "it gets rows from checkpoint 3 on, and has a gap: nothing of checkpoints 1 to 2" in caplog.text
    engine.run(3, [4])
    assert b.endpoint.rows == [1, 4]
    found = sinks(tmp_path)["b"]
    assert (found["gaps"], found["removed"]) == ([[1, 2]], None)
    assert "has a gap, checkpoints 1 to 2" in CliRunner().invoke(app, ["status", str(tmp_path)]).stdout
    caplog.clear()
    engine.restart(a, b)
    assert "gap" not in caplog.text, "said once"


def test_a_start_without_it_that_decides_nothing_makes_no_gap(tmp_path, make) -> None:
    a, b = make("a"), make("b")
    engine = Engine(tmp_path / "holdfast", a, b)
    engine.run(0, [1])
    engine.restart(a)
    engine.restart(a, b)
    engine.run(1, [2])
    assert sinks(tmp_path)["b"]["gaps"] == [] and b.endpoint.rows == [1, 2]


def test_a_location_of_an_older_version_is_told_from_its_decisions(tmp_path, make, caplog) -> None:
    a, b, c = make("a"), make("b"), make("c")
    engine = Engine(tmp_path / "holdfast", a, b)
    engine.run(0, [1])
    engine.restart(a)
    engine.run(1, [2])
    (tmp_path / "holdfast" / "sinks.json").unlink()
    engine.restart(a, b, c)
    assert "sink b is back" in caplog.text and "nothing of checkpoints 1 to 1" in caplog.text
    found = sinks(tmp_path)
    assert (found["a"]["from_checkpoint"], found["b"]["gaps"], found["c"]["from_checkpoint"]) == (0, [[1, 1]], 2)


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_book_stops_no_start(tmp_path, make, caplog, how) -> None:
    engine = Engine(tmp_path / "holdfast", make("a"))
    engine.run(0, [1])
    damage(tmp_path / "holdfast" / "sinks.json", how)
    assert CliRunner().invoke(app, ["status", str(tmp_path)]).exit_code == 1
    engine.restart()
    assert "it is made anew" in caplog.text
    assert sinks(tmp_path)["a"]["from_checkpoint"] == 0
