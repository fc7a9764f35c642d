"""Checkpoint committers in files and in SQL (C1-C5)."""

from __future__ import annotations

import fcntl
import os
import pickle
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.committers.base import CheckpointCommitter
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.committers.sql import SqlCheckpointCommitter
from holdfast.core.naming import job_id, operator_id
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    RecordError,
    RestoredEndpointError,
    SinkError,
    StorageError,
)
from tests.unit.inprocess import Endpoint, Engine, SendingSink

LINEAGE, OTHER = "a" * 32, "b" * 32
Make = Callable[..., CheckpointCommitter]


@pytest.fixture(params=["file", "sql"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    def ready(pipeline: str = "orders", lineage: str = LINEAGE, sink: str = "target") -> CheckpointCommitter:
        made: CheckpointCommitter
        if request.param == "file":
            made = FileCheckpointCommitter(str(tmp_path / "marks"))
        else:
            made = SqlCheckpointCommitter(f"sqlite:///{tmp_path}/marks/marks.db")
        made.set_job_id(job_id(pipeline, lineage))
        made.set_operator_id(operator_id(sink))
        made.create_resource()
        made.open()
        request.addfinalizer(made.close)
        return made

    return ready


def test_c1_an_author_writes_two_methods() -> None:
    class Mine(CheckpointCommitter):
        def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None: ...

        def is_checkpoint_committed(self, subtask: int, checkpoint_id: int) -> bool:
            return False

    mine = Mine()
    mine.set_job_id("j")
    mine.set_operator_id("o")
    mine.create_resource()
    mine.open()
    assert (mine.job_id, mine.operator_id, mine.progress(), mine.address) == ("j", "o", None, "")
    mine.take_over()
    mine.close()
    with pytest.raises(TypeError, match="abstract"):
        CheckpointCommitter()  # type: ignore[abstract]


def test_c1_what_is_called_in_a_run_and_in_which_order(location: str) -> None:
    """Ids first, the resource once in a run, marks asked for before a send and written after it, all while open."""
    calls: list[Any] = []

    class Noting(CheckpointCommitter):
        def set_job_id(self, job_id: str) -> None:
            super().set_job_id(job_id)
            calls.append(("set_job_id", job_id.split("-")[0]))

        def set_operator_id(self, operator_id: str) -> None:
            super().set_operator_id(operator_id)
            calls.append(("set_operator_id", operator_id))

        def create_resource(self) -> None:
            assert self.job_id and self.operator_id
            calls.append("create_resource")

        def open(self) -> None:
            calls.append("open")

        def close(self) -> None:
            calls.append("close")

        def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
            calls.append(("commit", subtask, checkpoint_id))

        def is_checkpoint_committed(self, subtask: int, checkpoint_id: int) -> bool:
            calls.append(("committed?", subtask, checkpoint_id))
            return False

    endpoint = Endpoint()
    engine = Engine(location, SendingSink(endpoint, Noting()))
    assert calls == [("set_job_id", "orders"), ("set_operator_id", "sending"), "create_resource", "open", "close"]
    del calls[:]
    engine.run(0, [1], [2])
    engine.run(1, [3])
    wanted = [("committed?", 0, 0), ("commit", 0, 0), ("committed?", 1, 0), ("commit", 1, 0)]
    assert [call for call in calls if call not in ("open", "close")] == [
        *wanted,
        ("committed?", 0, 1),
        ("commit", 0, 1),
    ]
    opened = 0
    for call in calls:
        opened += {"open": 1, "close": -1}.get(call, 0) if isinstance(call, str) else 0
        assert isinstance(call, str) or opened == 1, "asked only while it is open"
    assert opened == 0
    engine.restart()
    assert calls.count("create_resource") == 1


def test_c4_a_thousand_checkpoints_leave_as_little_as_one(make: Make, tmp_path: Path) -> None:
    def kept() -> tuple[int, int]:
        files = [path for path in tmp_path.rglob("*") if path.is_file()]
        return len(files), sum(path.stat().st_size for path in files)

    committer = make()
    for subtask in range(3):
        committer.commit_checkpoint(subtask, 0)
    first = kept()
    for checkpoint_id in range(1, 1000):
        committer.commit_checkpoint(checkpoint_id % 3, checkpoint_id)
    files, size = kept()
    # A database has pages and a log of them that it reuses; a file of marks has the newest mark and no other.
    most = first[1] if isinstance(committer, FileCheckpointCommitter) else max(first[1], 64 * 1024)
    assert files <= first[0] and size <= most
    committer.close()
    assert kept()[0] >= 1, "close deletes nothing"


@pytest.mark.contract("C3")
def test_c2_committed_means_up_to_the_stored_checkpoint(make: Make) -> None:
    committer = make()
    assert not committer.is_checkpoint_committed(0, 0)
    committer.commit_checkpoint(0, 5)
    assert [committer.is_checkpoint_committed(0, c) for c in (0, 4, 5, 6)] == [True, True, True, False]
    assert not committer.is_checkpoint_committed(1, 0), "subtasks are told apart"


def test_rule_9_a_committer_never_moves_backwards(make: Make) -> None:
    committer = make()
    committer.commit_checkpoint(0, 5)
    committer.commit_checkpoint(0, 3)
    assert committer.is_checkpoint_committed(0, 5)
    committer.commit_checkpoint(0, 5)
    assert committer.progress() == {LINEAGE: 5}


def test_c4_close_deletes_nothing_and_an_existing_resource_is_reused(make: Make) -> None:
    first = make()
    first.commit_checkpoint(3, 7)
    first.close()
    again = make()
    assert again.is_checkpoint_committed(3, 7)
    again.create_resource()
    again.open()
    assert again.is_checkpoint_committed(3, 7)


def test_a_closed_committer_can_be_pickled_to_an_executor(make: Make) -> None:
    committer = make()
    committer.commit_checkpoint(0, 1)
    committer.close()
    copy = pickle.loads(pickle.dumps(committer))
    copy.open()
    assert copy.is_checkpoint_committed(0, 1)
    copy.commit_checkpoint(0, 2)
    copy.close()
    assert make().is_checkpoint_committed(0, 2)


def test_c5_ids_are_stable_over_restarts_and_tell_pipelines_sinks_and_lineages_apart(make: Make) -> None:
    make().commit_checkpoint(0, 9)
    assert make().is_checkpoint_committed(0, 9)
    for others in ({"pipeline": "bills"}, {"sink": "other"}, {"lineage": OTHER}, {"pipeline": "orders-x"}):
        assert not make(**others).is_checkpoint_committed(0, 9)


def test_progress_names_every_lineage_of_the_same_name_and_sink(make: Make) -> None:
    make().commit_checkpoint(0, 3)
    make().commit_checkpoint(1, 4)
    make(lineage=OTHER).commit_checkpoint(0, 8)
    make(pipeline="bills").commit_checkpoint(0, 99)
    make(sink="other").commit_checkpoint(0, 99)
    assert make().progress() == {LINEAGE: 4, OTHER: 8}


def test_a_take_over_forgets_the_other_lineages_of_this_sink_and_nothing_else(make: Make) -> None:
    make().commit_checkpoint(0, 3)
    make(lineage=OTHER).commit_checkpoint(0, 8)
    make(pipeline="bills", lineage=OTHER).commit_checkpoint(0, 5)
    make(sink="other", lineage=OTHER).commit_checkpoint(0, 6)
    make().take_over()
    assert make().progress() == {LINEAGE: 3}
    assert make(pipeline="bills").progress() == {OTHER: 5}
    assert make(sink="other").progress() == {OTHER: 6}


def test_ids_must_be_set_first(tmp_path: Path) -> None:
    for committer in (FileCheckpointCommitter(str(tmp_path)), SqlCheckpointCommitter(f"sqlite:///{tmp_path}/a.db")):
        with pytest.raises(ConfigError, match=f"{type(committer).__name__}: set_job_id was not called"):
            committer.create_resource()


# -- files ------------------------------------------------------------------------------------------------------------


def files(tmp_path: Path) -> FileCheckpointCommitter:
    committer = FileCheckpointCommitter(str(tmp_path))
    committer.set_job_id(job_id("orders", LINEAGE))
    committer.set_operator_id(operator_id("target"))
    committer.create_resource()
    return committer


def test_rule_9_a_paused_driver_that_wakes_up_does_not_set_a_mark_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has looked and found 4; while it sleeps its successor commits 6; then it goes on with its 5."""
    late, successor = files(tmp_path), files(tmp_path)
    late.commit_checkpoint(0, 4)
    real, looked, go_on = os.replace, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> None:
        if threading.current_thread() is zombie:
            looked.set()
            go_on.wait(60)
        real(*arguments)

    zombie = threading.Thread(target=late.commit_checkpoint, args=(0, 5))
    monkeypatch.setattr(os, "replace", slow)
    zombie.start()
    assert looked.wait(60)
    threading.Timer(0.1, go_on.set).start()
    successor.commit_checkpoint(0, 6)
    zombie.join()
    assert successor.progress() == {LINEAGE: 6}


def test_c2_one_file_for_each_subtask_holds_sixteen_hex_digits(tmp_path: Path) -> None:
    committer = files(tmp_path)
    for checkpoint_id in range(40):
        committer.commit_checkpoint(2, checkpoint_id)
    folder = tmp_path / f"orders-{LINEAGE}" / "target"
    assert (folder / "2").read_bytes() == b"0x0000000000000027"
    assert [path.name for path in folder.iterdir() if not path.name.startswith(".")] == ["2"]


@pytest.mark.parametrize("content", [b"", b"0x12", b"12", b"0x" + b"g" * 16, b"0x000000000000012b0"])
def test_c2_a_corrupt_file_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    committer = files(tmp_path)
    path = tmp_path / f"orders-{LINEAGE}" / "target" / "0"
    path.write_bytes(content)
    for call in (
        lambda: committer.is_checkpoint_committed(0, 1),
        lambda: committer.commit_checkpoint(0, 1),
        committer.progress,
    ):
        with pytest.raises(RecordError, match=f"{path} is damaged.*write into it the last checkpoint"):
            call()
    assert path.read_bytes() == content
    path.write_bytes(b"0x0000000000000001\n")
    assert committer.is_checkpoint_committed(0, 1)


def test_c2_a_mark_is_synced_before_it_replaces_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committer = files(tmp_path)
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(os, "replace", lambda *a: (calls.append("replace"), replace(*a))[1])
    committer.commit_checkpoint(0, 1)
    assert calls[-3:] == ["fsync", "replace", "fsync"]


def test_a_mark_held_by_a_stopped_process_is_an_error_and_not_a_hang(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = files(tmp_path)
    committer.commit_checkpoint(0, 1)
    monkeypatch.setattr("holdfast.committers.file.LOCK_WAIT", 0.2)
    folder = tmp_path / f"orders-{LINEAGE}" / "target"
    with (folder / ".lock").open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match=f"{folder}.*held by another process.*stop it"):
            committer.commit_checkpoint(0, 2)
    committer.commit_checkpoint(0, 2)
    assert committer.progress() == {LINEAGE: 2}


@pytest.mark.parametrize("base_path", ["", None, 5, "s3://bucket/marks"])
def test_the_path_of_a_file_committer_is_checked_when_it_is_made(base_path: Any) -> None:
    with pytest.raises(ConfigError, match="base_path must be "):
        FileCheckpointCommitter(base_path)


def test_files_of_others_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "not-a-lineage").mkdir()
    committer = files(tmp_path)
    committer.commit_checkpoint(0, 1)
    committer.take_over()
    assert committer.progress() == {LINEAGE: 1}
    assert (tmp_path / "notes.txt").read_text() == "mine"


# -- SQL --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (5, "url must be a URL that begins with .*, not int"),
        ("mysql://h/db", "url must begin with sqlite:/// or postgresql://.*begins with mysql"),
        ("postgresql://u:sec/ret@h:x/db", "url cannot be read: write postgresql://"),
        ("marks.db", "begins with no scheme"),
        ("sqlite:///", "url must name a file"),
        ("sqlite://host/marks.db", "url must name a file"),
        ("sqlite:////data/run#1/marks.db", "%23"),
        ("sqlite:////data/marks.db?mode=ro", "%3F"),
    ],
)
def test_the_url_of_an_sql_committer_is_checked_when_it_is_made(url: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SqlCheckpointCommitter(url)


def test_a_url_can_name_any_file(tmp_path: Path) -> None:
    committer = SqlCheckpointCommitter(f"sqlite:///{tmp_path}/run%231/a%20b.db")
    committer.set_job_id(job_id("orders", LINEAGE))
    committer.create_resource()
    assert (tmp_path / "run#1" / "a b.db").exists()


@pytest.mark.contract("C3")
def test_c4_one_row_for_each_subtask(tmp_path: Path) -> None:
    committer = SqlCheckpointCommitter(f"sqlite:///{tmp_path}/a.db")
    committer.set_job_id(job_id("orders", LINEAGE))
    committer.create_resource()
    with pytest.raises(HoldfastError, match="SqlCheckpointCommitter is not open: call open"):
        committer.commit_checkpoint(0, 1)
    committer.open()
    for checkpoint_id in range(50):
        committer.commit_checkpoint(0, checkpoint_id)
    committer.close()
    with closing(sqlite3.connect(tmp_path / "a.db")) as connection:
        assert connection.execute("SELECT subtask, checkpoint_id FROM holdfast_committer").fetchall() == [(0, 49)]


def test_rule_15_a_file_that_is_gone_or_restored_is_not_taken_for_one_that_knows(tmp_path: Path) -> None:
    path = tmp_path / "a.db"

    def ready() -> SqlCheckpointCommitter:
        made = SqlCheckpointCommitter(f"sqlite:///{path}")
        made.set_job_id(job_id("orders", LINEAGE))
        made.set_operator_id("target")
        made.create_resource()
        made.open()
        return made

    with closing(ready()) as committer:
        committer.commit_checkpoint(0, 3)
    backup = path.read_bytes()
    with closing(ready()) as committer:
        committer.commit_checkpoint(0, 7)
    path.write_bytes(backup)
    with closing(ready()) as committer:
        assert committer.progress() == {LINEAGE: 3}
        with closing(sqlite3.connect(path)) as other:
            other.execute("DROP TABLE holdfast_committer")
        with pytest.raises(RestoredEndpointError, match=rf"sink 'target' \({path}\) has lost its table"):
            committer.progress()
    path.unlink()
    with closing(ready()) as committer:
        assert committer.progress() == {}


def test_a_mark_that_sqlite_has_acknowledged_is_on_the_disk(tmp_path: Path) -> None:
    committer = SqlCheckpointCommitter(f"sqlite:///{tmp_path}/marks.db")
    committer.open()
    assert committer._connection.execute("PRAGMA synchronous").fetchone() == (2,), "FULL"
    committer.close()


def test_no_error_of_sqlite_leaves(tmp_path: Path) -> None:
    (tmp_path / "a.db").write_bytes(b"this is no database, and long enough to be one" * 100)
    committer = SqlCheckpointCommitter(f"sqlite:///{tmp_path}/a.db")
    committer.set_job_id(job_id("orders", LINEAGE))
    committer.set_operator_id("target")
    with pytest.raises(SinkError, match=rf"committer of sink 'target' \({tmp_path}/a.db\): file is not a database"):
        committer.create_resource()
    committer = SqlCheckpointCommitter(f"sqlite:///{tmp_path}/a.db/below/b.db")
    committer.set_job_id(job_id("orders", LINEAGE))
    with pytest.raises(SinkError, match=f"folder {tmp_path}/a.db/below"):
        committer.create_resource()


def test_one_committer_object_can_serve_two_sinks(location: str, tmp_path: Path) -> None:
    """Ids are set on it when a sink opens: the marks of one must not be taken for the other's."""
    committer, first, second = FileCheckpointCommitter(str(tmp_path / "marks")), Endpoint(), Endpoint()
    engine = Engine(location, SendingSink(first, committer, "a"), SendingSink(second, committer, "b"))
    engine.run(0, [1])
    engine.run(1, [2])
    assert first.rows == second.rows == [1, 2]
