"""Statistics are kept for the newest `history_retain` checkpoints, and a reader never trips over what goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.checkpoint.history import SEGMENT, History, checkpoints
from holdfast.checkpoint.log import HISTORY_RETAIN, CheckpointLog
from holdfast.checkpoint.storage import LocalStorage
from holdfast.checkpoint.story import Story


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.checkpoint.storage.os.fsync", lambda fd: None)


def add(history: History, first: int, count: int) -> None:
    for number in range(first, first + count):
        history.add(number, {"status": "complete", "rows": 1})


def kept(tmp_path: Path) -> list[int]:
    return [entry.checkpoint_id for entry in checkpoints(str(tmp_path))]


def test_by_default_it_is_a_hundred_thousand(tmp_path: Path) -> None:
    assert HISTORY_RETAIN == 100_000
    log = CheckpointLog(LocalStorage(str(tmp_path)), "orders")
    assert log.history_retain == HISTORY_RETAIN
    assert Story(log, lambda checkpoint_id: {})._history._retain == HISTORY_RETAIN


def test_segments_older_than_that_go_when_a_new_one_begins(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "holdfast"))
    add(History(storage, 0, retain=150), 0, 3 * SEGMENT - 1)
    assert kept(tmp_path)[0] == 0
    add(History(storage, 1, retain=150), 3 * SEGMENT - 1, SEGMENT)
    assert kept(tmp_path) == list(range(2 * SEGMENT, 4 * SEGMENT - 1))
    assert storage.names("history") == ["0.2.jsonl", "1.0.jsonl"]


def test_many_short_runs_are_forgotten_too(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "holdfast"))
    for generation in range(1, 101):
        History(storage, generation, retain=10).add(generation, {"status": "complete"})
    assert kept(tmp_path) == list(range(91, 101))


def test_a_damaged_segment_is_left_to_be_seen(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path / "holdfast"))
    storage.replace("history/0.0.jsonl", b"{half\n")
    add(History(storage, 1, retain=1), 0, SEGMENT)
    assert storage.names("history") == ["0.0.jsonl", "1.0.jsonl"]


def test_a_segment_that_goes_while_it_is_read_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = LocalStorage(str(tmp_path / "holdfast"))
    add(History(storage, 0), 0, 2 * SEGMENT)
    real = LocalStorage.read

    def vanishing(self: LocalStorage, name: str) -> bytes:
        if name == "history/0.0.jsonl":
            raise FileNotFoundError(name)
        return real(self, name)

    monkeypatch.setattr(LocalStorage, "read", vanishing)
    assert kept(tmp_path) == list(range(SEGMENT, 2 * SEGMENT))
