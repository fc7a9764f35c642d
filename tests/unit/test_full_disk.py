"""A full disk under the log: told with the path, nothing lost; with room again, a restart goes on, every row once."""

from __future__ import annotations

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from holdfast.checkpoint.storage import LocalStorage
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.connectors.sqlite import SqliteSink
from holdfast.errors import HoldfastError, StorageError
from holdfast.testing.audit import audit
from holdfast.testing.local import armed
from tests.unit.inprocess import Endpoint, Engine, SendingSink
from tests.unit.test_sqlite_sink import Rig


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB; only root can mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], capture_output=True, text=True)
    if made.returncode:
        pytest.fail(f"cannot mount a small disk: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_a_full_disk_is_named_and_a_restart_with_room_goes_on(tmp_path: Path, small_disk: Path) -> None:
    rig = Rig(tmp_path)
    sink = SqliteSink(str(rig.path), "rows")
    engine = Engine(small_disk / "ck" / "holdfast", sink)
    engine.run(0, [1, 2])
    ballast = small_disk / "ballast"
    with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
        while True:
            file.write(b"x" * 1024)
    with pytest.raises(StorageError, match=r"small/ck/.* cannot be .*No space left on device.*The disk is full"):
        engine.run(1, [3], [4])
    with pytest.raises(HoldfastError, match="No space left on device"):
        engine.restart()
    ballast.unlink()
    engine.restart()
    engine.run(1, [3], [4])
    engine.run(2, [5])
    assert audit([1, 2, 3, 4, 5], [row[0] for row in rig.execute("SELECT id FROM rows")]).ok


class Filling(LocalStorage):
    """Full from the k-th write on, until there is room again."""

    room: float = float("inf")

    def _take(self, name: str) -> None:
        if self.room <= 0:
            raise StorageError(f"{self.root / name} cannot be written: {os.strerror(28)}. The disk is full")
        self.room -= 1

    def create(self, name: str, data: bytes) -> bool:
        self._take(name)
        return super().create(name, data)

    def replace(self, name: str, data: bytes) -> None:
        self._take(name)
        super().replace(name, data)

    @contextmanager
    def writer(self, name: str) -> Iterator[BinaryIO]:
        self._take(name)
        with super().writer(name) as file:
            yield file


def test_a_disk_that_fills_up_at_any_write_of_the_log_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log, history, commit records and write-ahead rows; the restart itself can fail, too."""
    for k in itertools.count():
        rig = Rig(tmp_path / str(k))
        rig.folder.mkdir()
        storage = Filling(str(rig.folder / "ck" / "holdfast"))
        monkeypatch.setattr("holdfast.sinks.wal.open_storage", lambda _, now=storage: now)
        engine = Engine(str(storage.root), SqliteSink(str(rig.path), "rows"), storage=storage)
        engine.run(0, [1, 2])
        storage.room = k
        failed = _failed(lambda: engine.run(1, [3], [4]))  # noqa: B023  called at once
        if not failed:
            assert k >= 4, "two files of rows, a decision, a commit record"
            break
        storage.room = float("inf")
        engine.restart()
        engine.run(1, [3], [4])
        engine.run(2, [5])
        ids = [row[0] for row in rig.execute("SELECT id FROM rows")]
        assert audit([1, 2, 3, 4, 5], ids).ok, f"full at write {k}"


def _failed(action: Any, why: str = "The disk is full") -> bool:
    try:
        action()
    except HoldfastError as error:
        assert why in str(error), error
        return True
    return False


class Resumed(Engine):
    """A start of a pipeline whose Spark has come so far already; the start itself may fail."""

    def __init__(self, location: str, planned: int | None, committed: int | None, *sinks: Any) -> None:
        self.so_far = planned, committed
        super().__init__(location, *sinks)

    def start(self, *sinks: Any, **options: Any) -> Any:
        self.planned, self.committed = self.so_far
        return super().start(*sinks, **options)


ROWS = {0: ([1, 2], [3]), 1: ([4], [5]), 2: ([6], [7, 8])}


def _live(folder: Path, endpoint: Endpoint, so_far: list[int | None]) -> None:
    """Start, run what is not committed yet, wait for all; `so_far` is what Spark has planned and committed."""
    committer = FileCheckpointCommitter(str(folder / "marks"))
    sinks = SqliteSink(str(folder / "out.db"), "rows"), SendingSink(endpoint, committer)
    engine = Resumed(str(folder / "ck" / "holdfast"), so_far[0], so_far[1], *sinks)
    try:
        for checkpoint_id in range(-1 if so_far[1] is None else so_far[1], len(ROWS) - 1):
            so_far[0] = checkpoint_id + 1
            engine.run(checkpoint_id + 1, *ROWS[checkpoint_id + 1])
            so_far[1] = checkpoint_id + 1
        engine.settle()
    finally:
        engine.coordinator.close(0.0)


@pytest.mark.parametrize("mode", ["error", "lost"])
def test_every_write_from_the_first_start_on_may_fail_once(tmp_path: Path, mode: str) -> None:
    """Lineage, generation, fence, rows, decisions, commit records, history: not done, or done and not said so."""
    for number in itertools.count(1):
        folder, endpoint, so_far = tmp_path / str(number), Endpoint(), [None, None]
        folder.mkdir()
        with armed(f"log.write={mode}@{number}") as fired:
            failed = _failed(lambda: _live(folder, endpoint, so_far), "log.write")  # noqa: B023  called at once
        if not fired["log.write"]:
            break
        if failed:
            _live(folder, endpoint, so_far)
        expected = [row for parts in ROWS.values() for part in parts for row in part]
        ids = [row[0] for row in Rig(folder).execute("SELECT id FROM rows")]
        assert audit(expected, ids).ok and audit(expected, endpoint.rows).ok, f"write {number}: {ids} {endpoint.rows}"
    assert number > 20, "a start and three checkpoints of two sinks write more often than that"
