"""Driver and executors must share the folders that sinks need both to see: proved at the start."""

from __future__ import annotations

import pickle
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint import shared
from holdfast.checkpoint.ports import LoopTasks
from holdfast.checkpoint.shared import Place, check_shared, places_of
from holdfast.errors import ConfigError

_IN_TASK = (
    "import pickle, sys; function, items = pickle.load(sys.stdin.buffer); "
    "sys.stdout.buffer.write(pickle.dumps([function(item) for item in items]))"
)


class Elsewhere:
    """Tasks in a process that has another folder mounted at a path, as another machine would."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        script = 'mount -t tmpfs none "$0" && exec "$@"'
        command = ["unshare", "-rm", "sh", "-c", script, str(self.path), sys.executable, "-c", _IN_TASK]
        data = pickle.dumps((function, list(items)))
        done = subprocess.run(command, input=data, capture_output=True, timeout=60, check=True)
        return list(pickle.loads(done.stdout))


class DriverIsBlind(LoopTasks):
    """What tasks write is gone before the driver looks: a mount that only executors have."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        answers = super().map(function, items)
        for file in self.path.glob(".tmp-shared-*-*"):
            file.unlink()
        return answers


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared, "PATIENCE", 0.0)


def test_a_folder_that_both_see_is_shared_and_left_as_it_was(tmp_path: Path) -> None:
    check_shared([Place(str(tmp_path), ("a",)), Place(str(tmp_path / "new"), ("a", "b"))], LoopTasks(), 3)
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]


def test_a_task_that_sees_another_folder_is_named_with_path_and_host(tmp_path: Path) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    here.mkdir()
    other.mkdir()
    with pytest.raises(ConfigError) as caught:
        check_shared([Place(str(other), ("fine",)), Place(str(here), ("orders",))], Elsewhere(here), 1)
    assert str(caught.value).startswith(f"{here} is not shared by driver and executors, and sink 'orders' needs it")
    assert f"a task on {socket.gethostname()} does not see what the driver wrote there" in str(caught.value)
    assert "Nothing was decided" in str(caught.value)
    assert not list(tmp_path.rglob(".tmp-*"))


def test_a_driver_that_does_not_see_what_tasks_write_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"the driver on {socket.gethostname()} does not see what a task on"):
        check_shared([Place(str(tmp_path), ("orders",))], DriverIsBlind(tmp_path), 2)


def test_a_task_that_may_not_write_there_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class ReadOnly(LoopTasks):
        def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
            def refuse(*args: Any) -> None:
                raise OSError(30, "Read-only file system")

            with monkeypatch.context() as patch:
                patch.setattr("holdfast.checkpoint.storage.os.link", refuse)
                return super().map(function, items)

    with pytest.raises(ConfigError, match=r"cannot use it .*Read-only file system"):
        check_shared([Place(str(tmp_path), ("orders",))], ReadOnly(), 1)


def test_what_each_sink_needs(tmp_path: Path) -> None:
    log = str(tmp_path / "ck" / "holdfast")

    file = hf.FileCheckpointCommitter(tmp_path / "marks")
    sql = hf.SqlCheckpointCommitter(tmp_path / "db" / "marks.db")
    cases: list[tuple[Any, list[str]]] = [
        (hf.FileSink(tmp_path / "out"), [str(tmp_path / "out")]),
        (hf.SqliteSink(tmp_path / "db" / "out.db", "orders"), [log, str(tmp_path / "db")]),
        (hf.StdoutSink(), list(hf.StdoutSink().shared_paths(log))),
        (hf.KafkaSink("localhost:9092", "orders"), []),
        (hf.KafkaSink("localhost:9092", "orders", mode="write-ahead"), [log]),
    ]
    for sink, paths in cases:
        assert [place.path for place in places_of([sink], log)] == paths, sink
    assert list(file.shared_paths()) == [str(tmp_path / "marks")]
    assert list(sql.shared_paths()) == [str(tmp_path / "db")]
    assert list(hf.SqlCheckpointCommitter("postgresql://localhost/shop").shared_paths()) == []


def test_a_place_that_two_sinks_need_is_looked_at_once(tmp_path: Path) -> None:
    sinks = [hf.SqliteSink(tmp_path / "a.db", "a"), hf.SqliteSink(tmp_path / "a.db", "b")]
    assert places_of(sinks, "/log") == [
        Place("/log", ("sqlite-a", "sqlite-b")),
        Place(str(tmp_path), ("sqlite-a", "sqlite-b")),
    ]


def test_a_write_ahead_sink_shares_the_log_and_its_marks(tmp_path: Path) -> None:
    class Sends(hf.WriteAheadSink):
        def send_values(self, values: Any, checkpoint_id: int, timestamp: int) -> bool:
            return True

    sink = Sends(committer=hf.FileCheckpointCommitter(tmp_path / "marks"))
    assert [place.path for place in places_of([sink], "/log")] == ["/log", str(tmp_path / "marks")]
