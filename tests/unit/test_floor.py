"""The floor: a start after thousands costs what one after ten costs, and is as safe (rules 1 and 5)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import records, slots
from holdfast.checkpoint.history import checkpoints
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.reader import LogReader
from holdfast.checkpoint.slots import SHARD, Slots
from holdfast.checkpoint.storage import LocalStorage, open_storage
from holdfast.core.model import RecordKind
from holdfast.errors import FencedError, RecordError
from tests.unit.inprocess import complete, decide, started


class Counting(LocalStorage):
    """Counts what a start asks for, and how many names it is given."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.calls: Counter[str] = Counter()

    def create(self, name: str, data: bytes) -> bool:
        self.calls["create"] += 1
        return super().create(name, data)

    def read(self, name: str) -> bytes:
        self.calls["read"] += 1
        return super().read(name)

    def names(self, folder: str) -> list[str]:
        found = super().names(folder)
        self.calls["list"] += 1
        self.calls["names"] += len(found)
        return found

    def tidy(self, folder: str) -> None:
        self.calls["names"] += len(super().names(folder))
        super().tidy(folder)


def cost(location: str) -> Counter[str]:
    storage = Counting(location)
    CheckpointLog(storage, "orders").start()
    return storage.calls


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Without fsync: these tests make hundreds of starts, and none of them cuts the power."""
    monkeypatch.setattr("holdfast.checkpoint.storage.os.fsync", lambda fd: None)
    yield


def test_a_start_after_many_asks_for_no_more_than_one_after_ten(location: str, quick: None) -> None:
    log = started(location)
    for number in range(3):
        complete(log, number)
    for _ in range(9):
        started(location)
    few = cost(location)
    for _ in range(2 * SHARD + 30):
        started(location)
    many = cost(location)
    assert many["read"] <= few["read"] + 2
    assert many["create"] == few["create"]
    assert many["list"] <= few["list"] + 3, "of two folders, since the old one has live decisions"
    assert many["names"] <= few["names"] + 5 * SHARD
    log = started(location)
    assert sorted(log.facts.decided) == [0, 1, 2]
    aborts = [r.slot.generation for r in log._records.values() if r.kind is RecordKind.ABORT]
    assert aborts == [0, log.generation - 1], "of the one with decisions, and of the last start"


def test_abort_slots_stay_for_ever(location: str, quick: None) -> None:
    zombies = [started(location) for _ in range(SHARD + 5)]
    last = started(location)
    for zombie in (zombies[0], zombies[SHARD - 1], zombies[SHARD], zombies[-1]):
        zombie.ensure_not_fenced = lambda: None  # type: ignore[method-assign]  it looked before the others came
        with pytest.raises(FencedError, match=f"generation {last.generation}, process"):
            decide(zombie, 0)
    decide(last, 0)


def test_a_hundred_generations_share_a_folder(location: str, quick: None) -> None:
    for _ in range(SHARD + 1):
        last = started(location)
    decide(last, 0)
    assert last.generation == SHARD
    assert LocalStorage(location).names(f"decisions/{SHARD}") == [f"{SHARD}.0.json"]
    again = started(location)
    assert again.last_decided == 0
    reader = LogReader(str(Path(location).parent))
    assert Slots(reader.storage).newest() == SHARD + 1


def test_only_the_newest_floor_is_kept(location: str) -> None:
    for _ in range(5):
        started(location)
    assert LocalStorage(location).names("floors") == ["4.json"]


def test_a_paused_driver_that_writes_its_floor_late_moves_nothing_back(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(location)
    paused = CheckpointLog(LocalStorage(location), "orders")
    real = paused._slots.raise_floor

    def late(*args: Any) -> None:
        newer = started(location)
        complete(newer, 0)
        decide(newer, 1)
        real(*args)

    monkeypatch.setattr(paused._slots, "raise_floor", late)
    paused.start()
    assert LocalStorage(location).names("floors") == ["1.json", "2.json"]
    log = started(location)
    assert (log.generation, log.last_decided) == (3, 1)
    assert LocalStorage(location).names("floors") == ["3.json"]


def test_a_start_that_died_before_its_floor_is_fenced_by_the_next(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started(location)
    for _ in range(3):
        dying = CheckpointLog(LocalStorage(location), "orders")
        monkeypatch.setattr(dying, "_fence", lambda: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            dying.start()
    log = started(location)
    assert log.generation == 4
    assert LocalStorage(location).names("decisions") == ["0.0.json", "1.0.json", "2.0.json", "3.0.json"]


@pytest.mark.parametrize("how", ["damaged", "missing", "of another"])
def test_without_a_floor_that_can_be_trusted_all_slots_are_read(
    location: str, how: str, quick: None, caplog: pytest.LogCaptureFixture
) -> None:
    log = started(location)
    decide(log, 0)
    for _ in range(SHARD + 3):
        log = started(location)
    decide(log, 1)
    path = Path(location) / "floors" / f"{log.generation}.json"
    if how == "damaged":
        path.write_bytes(path.read_bytes()[:-9] + b"x" * 9)
    elif how == "missing":
        path.unlink()
    else:
        body = {"generation": 7, "live": {}}
        path.write_bytes(records.encode("floor", records.new_nonce(), body))
    after = started(location)
    assert sorted(after.facts.decided) == [0, 1]
    assert after.generation == log.generation + 1
    assert (how == "missing") or str(path) in caplog.text
    assert LocalStorage(location).names("floors") == [f"{after.generation}.json"]
    assert json.loads(Path(location, "floors", f"{after.generation}.json").read_bytes())["record"]["live"] == {
        "0": "decisions",
        str(log.generation): f"decisions/{SHARD}",
    }


def test_a_floor_whose_generation_is_gone_is_refused(location: str) -> None:
    for _ in range(3):
        started(location)
    Path(location, "generations", "2").unlink()
    with pytest.raises(RecordError, match=r"generations/2 is damaged: it is missing, although it wrote floors/2.json"):
        started(location)


def test_a_location_of_an_earlier_holdfast_is_read_and_fenced(location: str, quick: None) -> None:
    """It had no floors, no folders, and its claims did not say where their slots are."""
    storage = LocalStorage(location)
    log = started(location)
    complete(log, 0)
    for number in range(1, SHARD + 20):
        claim = {"host": "there", "pid": 1, "started": 0}
        storage.create(f"generations/{number}", records.encode("generation", records.new_nonce(), claim))
        data = storage.read("decisions/0.0.json").replace(b'"checkpoint_id":0', b'"checkpoint_id":1')
        if number < SHARD + 18:
            body = {"checkpoint_id": None, "sinks": [], "committables": [], "timestamp": 0, "state": {}}
            storage.create(f"decisions/{number}.0.json", records.encode("abort", records.new_nonce(), body))
    body = json.loads(data.partition(b'"record":')[2][:-2])
    kept = {k: v for k, v in body.items() if k not in ("version", "kind", "nonce")}
    storage.create(f"decisions/{SHARD + 18}.0.json", records.encode("decision", records.new_nonce(), kept))
    storage.delete("floors/0.json")
    new = started(location)
    assert new.last_decided == 1
    assert f"{SHARD + 18}.1.json" in storage.names("decisions"), "where its driver would write"
    assert f"{SHARD + 19}.0.json" in storage.names("decisions")
    assert started(location).last_decided == 1


def test_statistics_and_status_find_the_newest_driver(location: str, quick: None) -> None:
    for _ in range(SHARD + 2):
        started(location)
    root = str(Path(location).parent)
    assert checkpoints(root) == []
    owner = LogReader(root).owner()
    assert owner is not None
    assert owner.generation == SHARD + 1


def test_on_an_object_store_each_folder_is_listed_alone(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """There a folder is a prefix of names: those of the folders below it are not its own."""
    monkeypatch.setattr(slots, "SHARD", 2)
    location = f"s3://{bucket}/ck/holdfast"

    def start() -> CheckpointLog:
        log = CheckpointLog(open_storage(location), "orders")
        log.start()
        return log

    zombie = start()
    decide(zombie, 0)
    for _ in range(4):
        last = start()
    decide(last, 1)
    storage = open_storage(location)
    assert storage.names("decisions") == ["0.0.json", "0.1.json", "1.0.json"]
    assert [storage.names(f"decisions/{n}") for n in (2, 4)] == [["2.0.json", "3.0.json"], ["4.0.json"]]
    again = start()
    assert (again.generation, sorted(again.facts.decided)) == (5, [0, 1])
    storage.delete("floors/5.json")
    assert sorted(start().facts.decided) == [0, 1], "made anew from all folders"
