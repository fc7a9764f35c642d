"""Marks that cannot be written (D10), and marks that are gone or older than what was committed (rule 15, D5)."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.log import ACCEPT_RESTORED
from holdfast.checkpoint.ports import Committed, Run
from holdfast.committers.base import CheckpointCommitter
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.committers.sql import SqlCheckpointCommitter
from holdfast.connectors.stdout import StdoutSink
from holdfast.core.model import RecordKind
from holdfast.core.naming import job_id, operator_id
from holdfast.errors import MarkError, RestoredEndpointError, StorageError, permanent
from holdfast.sinks import write_ahead
from tests.unit.inprocess import Endpoint, Engine, SendingSink

LINEAGE = "a" * 32


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(write_ahead, "MARK_WAITS", (0.0, 0.0, 0.0))


class Marks(CheckpointCommitter):
    """Marks in memory that fail as told: the number of writes that fail, and whether they wrote all the same."""

    def __init__(self, failing: int, *, written: bool = False) -> None:
        self.failing, self.written = failing, written
        self.marks: dict[int, int] = {}
        self.tries: list[int] = []
        self.opened: list[int] = []

    def open(self) -> None:
        self.opened.append(1)

    def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
        self.tries.append(checkpoint_id)
        if len(self.tries) > self.failing or self.written:
            self.marks[subtask] = checkpoint_id
        if len(self.tries) <= self.failing:
            raise OSError(28, "No space left on device")

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: int) -> bool:
        return self.marks.get(subtask, -1) >= checkpoint_id


def test_d10_a_mark_that_fails_a_few_times_is_tried_again_and_nothing_is_sent_again(
    location: str, endpoint: Endpoint
) -> None:
    marks = Marks(3)
    engine = Engine(location, SendingSink(endpoint, marks))
    before = len(marks.opened)
    engine.run(0, [1], [2])
    assert endpoint.called("send") == [(0,), (0,)], "once for each subtask"
    assert marks.tries == [0, 0, 0, 0, 0]
    assert len(marks.opened) == before + 1 + 3, "a broken connection is opened anew before each try"
    assert engine.pending == []


def test_d10_a_mark_that_cannot_be_written_stops_the_query_after_one_send(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, SendingSink(endpoint, Marks(1000)))
    with pytest.raises(MarkError) as caught:
        engine.run(0, [1], [2])
    text = str(caught.value)
    assert text.startswith(
        "sink 'sending': checkpoint 0, subtask 0 was sent, but the committer (Marks) could not write its mark: "
        "OSError: [Errno 28] No space left on device. The query stops here"
    )
    assert "free the disk" in text
    assert "once more" in text
    assert permanent(caught.value)
    assert caught.value.action == "operator"
    assert endpoint.called("send") == [(0,)]


def test_d10_it_is_sent_once_more_by_each_start_and_never_by_itself(location: str, endpoint: Endpoint) -> None:
    marks = Marks(1000)
    engine = Engine(location, SendingSink(endpoint, marks))
    with pytest.raises(MarkError):
        engine.run(0, [1])
    with pytest.raises(MarkError):
        engine.restart(SendingSink(endpoint, marks))
    assert endpoint.called("send") == [(0,), (0,)]
    marks.failing = 0
    engine.restart(SendingSink(endpoint, marks))
    assert endpoint.called("send") == [(0,), (0,), (0,)], "W9: nothing says that it was sent"
    assert engine.pending == []


def test_d10_trying_the_mark_again_ends(monkeypatch: pytest.MonkeyPatch, location: str, endpoint: Endpoint) -> None:
    """A committer whose every try takes long must not hold a delivery for minutes."""
    monkeypatch.setattr(write_ahead, "MARK_LONGEST", 0.05)

    class Slow(Marks):
        def commit_checkpoint(self, subtask: int, checkpoint_id: int) -> None:
            time.sleep(0.1)
            super().commit_checkpoint(subtask, checkpoint_id)

    marks = Slow(1000)
    with pytest.raises(MarkError):
        Engine(location, SendingSink(endpoint, marks)).run(0, [1])
    assert marks.tries == [0]


def test_d10_a_full_disk_under_a_file_committer(location: str, endpoint: Endpoint, full_disk: Path) -> None:
    """A real one: a file system of a few kilobytes without room for one more file."""
    engine = Engine(location, SendingSink(endpoint, FileCheckpointCommitter(str(full_disk / "marks"))))
    engine.run(0, [1])
    fill(full_disk)
    with pytest.raises(MarkError, match=rf"FileCheckpointCommitter at {full_disk}.*No space left.*Make the marks"):
        engine.run(1, [2])
    assert endpoint.called("send") == [(0,), (1,)]
    (full_disk / "ballast").unlink()
    engine.restart()
    assert endpoint.rows == [1, 2, 2]
    assert engine.pending == []


def test_d10_a_read_only_database_under_an_sql_committer(
    location: str, endpoint: Endpoint, read_only: Callable[[Path], None], tmp_path: Path
) -> None:
    """A real one: the folder is mounted read-only while the query runs."""
    folder = tmp_path / "database"
    folder.mkdir()
    engine = Engine(location, SendingSink(endpoint, SqlCheckpointCommitter(f"sqlite:///{folder}/marks.db")))
    engine.run(0, [1])
    read_only(folder)
    with pytest.raises(MarkError, match=r"SqlCheckpointCommitter.*readonly database.*Make the marks"):
        engine.run(1, [2])
    assert endpoint.called("send") == [(0,), (1,)]


def test_a_read_only_folder_is_an_error_that_names_it(read_only: Callable[[Path], None], tmp_path: Path) -> None:
    committer = ready(FileCheckpointCommitter(str(tmp_path / "marks")))
    committer.commit_checkpoint(0, 1)
    read_only(tmp_path / "marks")
    with pytest.raises(StorageError, match=rf"marks at {tmp_path}/marks/.* cannot be read or written: .*Read-only"):
        committer.commit_checkpoint(0, 2)
    assert committer.is_checkpoint_committed(0, 1)


# -- rule 15 ----------------------------------------------------------------------------------------------------------


def ready(committer: CheckpointCommitter, sink: str = "sending") -> CheckpointCommitter:
    committer.set_job_id(job_id("orders", LINEAGE))
    committer.set_operator_id(operator_id(sink))
    committer.create_resource()
    committer.open()
    return committer


def opened(sink: Any, location: str, committed: int | None) -> None:
    known = {} if committed is None else {sink.name: Committed(committed, 1_700_000_000_000)}
    sink.open(Run("orders", LINEAGE, 0, location, last_decided=9, committed=known))


def make_file(folder: Path) -> CheckpointCommitter:
    return FileCheckpointCommitter(str(folder / "marks"))


def make_sql(folder: Path) -> CheckpointCommitter:
    return SqlCheckpointCommitter(f"sqlite:///{folder}/marks/marks.db")


@pytest.mark.parametrize("make", [make_file, make_sql], ids=["file", "sql"])
def test_rule_15_marks_that_were_deleted_or_restored_are_refused(
    make: Callable[[Path], CheckpointCommitter], location: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    committer = ready(make(tmp_path))
    committer.commit_checkpoint(0, 3)
    committer.close()
    shutil.copytree(tmp_path / "marks", tmp_path / "backup")
    committer.open()
    committer.commit_checkpoint(1, 5)
    committer.commit_checkpoint(0, 4)
    committer.close()
    opened(SendingSink(endpoint, make(tmp_path)), location, 5)
    shutil.rmtree(tmp_path / "marks")
    shutil.copytree(tmp_path / "backup", tmp_path / "marks")
    with pytest.raises(RestoredEndpointError, match=r"of sink 'sending' knows.*up to checkpoint 3.*4 to 5") as caught:
        opened(SendingSink(endpoint, make(tmp_path)), location, 5)
    assert caught.value.behind == (4, 5)
    shutil.rmtree(tmp_path / "marks")
    for _ in range(2):  # the first start makes the folder or table anew: that does not help the second
        with pytest.raises(RestoredEndpointError, match=r"none; but checkpoints 0 to 5"):
            opened(SendingSink(endpoint, make(tmp_path)), location, 5)


@pytest.mark.parametrize("make", [make_file, make_sql], ids=["file", "sql"])
def test_rule_15_a_backup_from_the_middle_of_a_checkpoint_does_not_look_complete(
    make: Callable[[Path], CheckpointCommitter], location: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    """The newest mark of all is there, that of one subtask; those of the others are not."""

    def sink() -> SendingSink:
        return SendingSink(endpoint, make(tmp_path))

    engine = Engine(location, sink())
    engine.run(0, [1], [2], [3], [4])
    committer = ready(make(tmp_path))
    committer.set_job_id(job_id("orders", engine.log.lineage))
    # The delivery of checkpoint 1, half way: one of its subtasks is marked.
    committer.commit_checkpoint(0, 1)
    committer.close()
    shutil.copytree(tmp_path / "marks", tmp_path / "backup")
    engine.run(1, [5], [6], [], [7])
    engine.restart(sink())
    shutil.rmtree(tmp_path / "marks")
    shutil.copytree(tmp_path / "backup", tmp_path / "marks")
    why = (
        r"lacks marks of pipeline 'orders' for checkpoint 1 of subtask 1, 1 of subtask 3; .*--sink sending --accept-re"
    )
    with pytest.raises(RestoredEndpointError, match=why) as caught:
        engine.restart(sink())
    assert caught.value.behind == (1, 1)
    assert caught.value.action == "operator"
    order = {"sending": {"how": ACCEPT_RESTORED, "through": 1}}
    known = engine.log.facts.decided[1]
    engine.log.decide(1, known.sinks, (), timestamp=known.timestamp, state={}, kind=RecordKind.REPAIR, resolution=order)
    engine.restart(sink())
    engine.run(2, [8], [9])
    engine.restart(sink())


@pytest.mark.parametrize("make", [make_file, make_sql], ids=["file", "sql"])
def test_rule_15_marks_that_become_an_older_copy_while_the_query_runs_are_refused_by_the_next_delivery(
    make: Callable[[Path], CheckpointCommitter], location: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Else the next mark hides for ever what the older copy lacks."""
    engine = Engine(location, SendingSink(endpoint, make(tmp_path)))
    engine.run(0, [1], [2])
    shutil.copytree(tmp_path / "marks", tmp_path / "backup")
    engine.run(1, [3])
    engine.run(2, [4], [5])
    sent = list(endpoint.rows)
    shutil.rmtree(tmp_path / "marks")
    shutil.copytree(tmp_path / "backup", tmp_path / "marks")
    with pytest.raises(RestoredEndpointError, match=r"lacks marks of pipeline 'orders' for checkpoint 2 of subtask 0"):
        engine.run(3, [6])
    assert endpoint.rows == sent
    with pytest.raises(RestoredEndpointError, match="1 to 2 were committed"):
        engine.restart(SendingSink(endpoint, make(tmp_path)))


def test_rule_15_a_subtask_whose_last_rows_are_older_than_the_newest_checkpoint_is_asked_for_too(
    location: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Files that are copied one by one while the query runs are not of one moment."""
    engine = Engine(location, SendingSink(endpoint, make_file(tmp_path)))
    engine.run(0, [1], [2])
    engine.run(1, [3], [4])
    engine.run(2, [5], [])
    engine.run(3, [], [])
    (mark,) = (tmp_path / "marks").glob("*/sending/1")
    mark.write_text("0x0000000000000000")
    with pytest.raises(RestoredEndpointError, match="for checkpoint 1 of subtask 1; but these were committed there"):
        engine.restart(SendingSink(endpoint, make_file(tmp_path)))
    mark.unlink()
    with pytest.raises(RestoredEndpointError, match="for checkpoint 1 of subtask 1; but these were committed there"):
        engine.restart(SendingSink(endpoint, make_file(tmp_path)))
    mark.write_text("0x0000000000000001")
    engine.restart(SendingSink(endpoint, make_file(tmp_path)))


def test_rule_15_a_dropped_table_is_refused(location: str, endpoint: Endpoint, tmp_path: Path) -> None:
    committer = ready(make_sql(tmp_path))
    committer.commit_checkpoint(0, 5)
    committer.close()
    with closing(sqlite3.connect(tmp_path / "marks" / "marks.db")) as connection:
        connection.execute("DROP TABLE holdfast_committer")
    with pytest.raises(RestoredEndpointError):
        opened(SendingSink(endpoint, make_sql(tmp_path)), location, 5)


def test_rule_15_an_empty_committer_is_fine_while_nothing_was_committed(
    location: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    opened(SendingSink(endpoint, make_file(tmp_path)), location, None)


def test_rule_15_a_committer_that_cannot_tell_is_not_taken_for_an_empty_one(location: str, endpoint: Endpoint) -> None:
    opened(SendingSink(endpoint, Marks(0)), location, 5)
    opened(StdoutSink(), location, 5)

    class Telling(Marks):
        def progress(self) -> dict[str, int]:
            return {}

    with pytest.raises(RestoredEndpointError):
        opened(SendingSink(endpoint, Telling(0)), location, 5)


# -- real file systems ------------------------------------------------------------------------------------------------


def mount(*arguments: object) -> None:
    done = subprocess.run(["mount", *map(str, arguments)], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.fail(f"this machine does not let tests mount anything: {done.stderr.strip()}")


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount("-t", "tmpfs", "-o", "size=64k", "tmpfs", folder)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> None:
    with (folder / "ballast").open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(os.urandom(4096))


@pytest.fixture
def read_only() -> Iterator[Callable[[Path], None]]:
    """Makes a folder read-only for everybody, root included."""
    mounted: list[Path] = []

    def make(folder: Path) -> None:
        mount("--bind", folder, folder)
        mounted.append(folder)
        mount("-o", "remount,ro,bind", folder)

    yield make
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)
