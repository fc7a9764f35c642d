"""`holdfast flush`: it needs the checkpoint location only, and leaves a query that runs alone (F6)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.checkpoint import runs
from holdfast.cli.app import app
from holdfast.connectors.files.rolling import Rolling
from holdfast.connectors.files.sink import FileSink
from holdfast.errors import FencedError
from tests.unit.inprocess import Engine, damage
from tests.unit.test_file_sink import ids


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path / "ck" / "holdfast", FileSink(str(tmp_path / "out"), rolling=Rolling(age="1h")))


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process that ran the query is gone; really it is this one."""
    monkeypatch.setattr(runs, "lives", lambda _: False)


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["flush", *map(str, arguments)])


def test_it_completes_what_waits_and_says_so(engine: Engine, tmp_path: Path, ended: None) -> None:
    engine.run(0, [1, 2], [3])
    done = run(tmp_path / "ck")
    assert done.exit_code == 0
    assert "files-out" in done.output
    assert ids(tmp_path / "out") == [1, 2, 3]
    generations = sorted((tmp_path / "ck/holdfast/generations").iterdir())
    assert run(tmp_path / "ck").output.strip() == "nothing waits: every decided row is in a committed file"
    assert sorted((tmp_path / "ck/holdfast/generations").iterdir()) == generations, "nobody is fenced for nothing"


def test_json(engine: Engine, tmp_path: Path, ended: None) -> None:
    engine.run(0, [1, 2], [3])
    document = json.loads(run(tmp_path / "ck", "--json").output)
    (sink,) = document["sinks"]
    assert sink == {"sink": "files-out", "path": str(tmp_path / "out"), "files": 1, "rows": 3}


def test_a_query_that_runs_is_left_alone_unless_told_otherwise(engine: Engine, tmp_path: Path) -> None:
    engine.run(0, [1])
    refused = run(tmp_path / "ck")
    assert refused.exit_code == 1
    assert f"seems to run in process {os.getpid()}" in refused.stderr
    assert "--fence" in refused.stderr
    assert ids(tmp_path / "out") == []
    assert run(tmp_path / "ck", "--fence").exit_code == 0
    assert ids(tmp_path / "out") == [1]
    with pytest.raises(FencedError):
        engine.run(1, [2])
    engine.restart(FileSink(str(tmp_path / "out"), rolling=Rolling(age="0s")))
    engine.run(1, [2])
    assert ids(tmp_path / "out") == [1, 2]


def test_a_damaged_record_is_an_error_and_nothing_is_touched(engine: Engine, tmp_path: Path, ended: None) -> None:
    engine.run(0, [1])
    damage(tmp_path / "ck/holdfast/decisions/0.0.json", "truncated")
    failed = run(tmp_path / "ck")
    assert failed.exit_code == 1
    assert "decisions/0.0.json is damaged" in failed.stderr
    assert ids(tmp_path / "out") == []


def test_a_location_that_holdfast_never_used_is_wrong_use(tmp_path: Path) -> None:
    assert run(tmp_path / "nothing").exit_code == 3
