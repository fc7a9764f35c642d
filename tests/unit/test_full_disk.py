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
from holdfast.connectors.sqlite import SqliteSink
from holdfast.errors import HoldfastError, StorageError
from holdfast.testing.audit import audit
from tests.unit.inprocess import Engine
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


def _failed(action: Any) -> bool:
    try:
        action()
    except HoldfastError as error:
        assert "The disk is full" in str(error), error
        return True
    return False
