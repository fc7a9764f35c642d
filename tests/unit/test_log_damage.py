"""Damaged records: named with their path and a way out, never skipped, and nothing is written (fault 13)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.storage import LocalStorage
from holdfast.errors import RecordError, StorageError
from tests.unit.inprocess import DAMAGES, complete, damage, decide, snapshot, started


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["lineage.json", "decisions/0.0.json", "decisions/0.1.json", "commits/0.a.json"])
def test_a_damaged_record_stops_the_start_before_anything_is_written(location: str, name: str, how: str) -> None:
    """Fault 13: the path, a way out, and every other file as it was; with the file restored all goes on."""
    log = started(location)
    complete(log, 0)
    decide(log, 1)
    good = damage(Path(location, name), how)
    before = snapshot(location)
    with pytest.raises(RecordError) as caught:
        started(location)
    assert f"{location}/{name} is damaged" in str(caught.value)
    assert "Restore this file from a copy" in str(caught.value)
    assert snapshot(location) == before
    Path(location, name).write_bytes(good)
    assert sorted(started(location).facts.decided) == [0, 1]


@pytest.mark.parametrize("how", DAMAGES)
def test_a_damaged_generation_record_is_named_by_the_driver_that_reads_it(location: str, how: str) -> None:
    zombie = started(location)
    started(location)
    damage(Path(location, "generations/1"), how)
    before = snapshot(location)
    with pytest.raises(RecordError, match=r"generations/1 is damaged.*Restore this file"):
        decide(zombie, 0)
    assert snapshot(location) == before


def test_a_record_under_another_name_is_damage(location: str) -> None:
    log = started(location)
    complete(log, 0)
    storage = LocalStorage(location)
    storage.create("commits/5.a.json", storage.read("commits/0.a.json"))
    with pytest.raises(RecordError, match=r"commits/5.a.json is damaged: its name does not fit its content"):
        started(location)
    storage.delete("commits/5.a.json")
    storage.create("decisions/0.x.json", b"")
    with pytest.raises(RecordError, match=r"decisions/0.x.json is damaged: its name is not that of a decision slot"):
        started(location)


def test_a_record_of_another_kind_is_damage(location: str) -> None:
    started(location)
    storage = LocalStorage(location)
    storage.create("decisions/0.0.json", storage.read("lineage.json"))
    with pytest.raises(
        RecordError, match=r"decisions/0.0.json is damaged: it is not a decision or repair or state or abort"
    ):
        started(location)


def test_a_record_of_a_newer_version_asks_for_an_upgrade(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.checkpoint.records.VERSION", 2)
        decide(started(location), 0)
    with pytest.raises(RecordError, match=r"newer holdfast \(record version 2, this one reads 1\): upgrade holdfast"):
        started(location)


def test_a_body_that_is_not_json_is_refused_before_it_is_written(location: str) -> None:
    log = started(location)
    before = snapshot(location)
    with pytest.raises(StorageError, match=r"a decision record cannot be written as JSON.*made of dict, list, str"):
        log.decide(0, ["a"], [], timestamp=0, state={"a": object()})
    assert snapshot(location) == before


def test_a_record_pruned_by_a_live_driver_while_it_is_read_is_explained(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = started(location)
    complete(log, 0)
    late = CheckpointLog(LocalStorage(location), "orders")
    monkeypatch.setattr(late.storage, "names", _with_ghost(late.storage.names))
    with pytest.raises(RecordError, match=r"commits/9.a.json vanished.*another driver.*Stop one of the two"):
        late.start()


def _with_ghost(names: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    return lambda folder: [*names(folder), *(["9.a.json"] if folder == "commits" else [])]
