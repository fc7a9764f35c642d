"""Orders about a file sink, whose operator state speaks of rows that are given up (D4)."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from holdfast.connectors.files.rolling import Rolling
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.sqlite import SqliteSink
from holdfast.errors import LostError, RowError
from tests.unit.inprocess import Engine
from tests.unit.test_file_sink import ids
from tests.unit.test_orders import ids_of, resolved, run


class BrokenFiles(FileSink):
    """One checkpoint cannot be committed."""

    broken: int | None = None

    def _act(self, tasks: Any, checkpoint_id: int) -> None:
        if checkpoint_id == self.broken:
            raise RowError("cannot be encoded")
        super()._act(tasks, checkpoint_id)


def stuck(tmp_path: Path, age: str, at: int) -> Engine:
    sink = BrokenFiles(str(tmp_path / "out"), rolling=Rolling(age=age), name="files")
    sink.broken = at
    engine = Engine(tmp_path / "holdfast", sink)
    for number in range(at):
        engine.run(number, [10 * number])
    with pytest.raises(RowError):
        engine.run(at, [1, 2], [3])
        engine.run(at + 1, [99])  # a sink that overlaps fails the batch after it
    return engine


@pytest.mark.parametrize("age", ["0s", "1h"], ids=["rolled at once", "rolled later"])
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize("way", ["--give-up", "--mark-delivered"])
def test_rows_that_are_struck_become_no_file(tmp_path, age, at, way) -> None:
    engine = stuck(tmp_path, age, at)
    report = resolved(tmp_path, at, way)["report"]
    assert report["carried_out"] is False and report["rows"] == 3
    engine.restart()
    assert not engine.pending
    engine.committed = at
    engine.run(at + 1, [4])
    engine.restart()
    engine.run(at + 2, [5])
    engine.coordinator.finish(1.0)
    assert ids(tmp_path / "out") == [*([0] if at else []), 4, 5]
    if way == "--give-up":
        assert sorted(ids_of(tmp_path, at, "files")) == [1, 2, 3]
    else:
        [told] = json.loads(run("resolve", tmp_path, "--reports", "--json").stdout)["reports"]
        assert told["rows_claimed_delivered"] == 3 and told["carried_out"] is True


def test_a_part_that_somebody_deleted_is_given_up_and_the_rest_is_delivered(tmp_path) -> None:
    engine = stuck(tmp_path, "0s", 1)
    sorted((tmp_path / "out").rglob("*.arrow"))[-1].unlink()
    engine.sinks[0].broken = None
    engine.committed = 1
    with pytest.raises(LostError):
        engine.restart()
    [found] = json.loads(run("resolve", tmp_path, "--json").stdout)["stuck"]
    assert (found["subtasks"], found["rows"], found["certain"]) == ([1], 1, True), "only the lost one"
    resolved(tmp_path, 1, "--give-up")
    engine.restart()
    engine.run(2, [4])
    assert not engine.pending and ids(tmp_path / "out") == [0, 1, 2, 4]


class BrokenSqlite(SqliteSink):
    """Cannot be committed while it is broken."""

    broken = True

    def commit(self, *arguments: Any) -> Any:
        if self.broken:
            raise RowError("cannot be written")
        return super().commit(*arguments)


def test_rows_that_a_staged_sink_gave_up_are_kept_and_sent_again(tmp_path) -> None:
    path = tmp_path / "shop.db"
    sink = BrokenSqlite(str(path), table="rows", name="db")
    engine = Engine(tmp_path / "holdfast", sink)
    with pytest.raises(RowError):
        engine.run(0, [1, 2], [3])
        engine.run(1, [99])
    report = resolved(tmp_path, 0, "--give-up")["report"]
    assert report["carried_out"] is True and sorted(ids_of(tmp_path, 0, "db")) == [1, 2, 3]
    sink.broken = False
    assert run("resolve", tmp_path, "--send-again", 0, "--sink", "db", "--yes").exit_code == 0
    engine.restart()
    engine.committed = 0
    engine.run(1, [4])
    engine.run(2, [5])
    engine.restart()
    assert not engine.pending and engine.files("again") == []
    with sqlite3.connect(path) as connection:
        assert sorted(connection.execute("SELECT id FROM rows")) == [(1,), (2,), (3,), (4,), (5,)]
    connection.close()
