"""The checkpoint log: lineage, generations, slots, commit records (design: "On disk", rules 1, 5, 10)."""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.log import RETAIN, CheckpointLog
from holdfast.checkpoint.storage import LocalStorage
from holdfast.core.model import RecordKind
from holdfast.errors import ConfigError, FencedError
from tests.unit.inprocess import complete, decide, snapshot, started

# -- lineage and generations ------------------------------------------------------------------------------------------


def test_the_lineage_is_made_once_and_kept(location: str, tmp_path: Path) -> None:
    first, second = started(location), started(location)
    assert len(first.lineage) == 32
    assert second.lineage == first.lineage
    assert started(str(tmp_path / "other")).lineage != first.lineage


def test_a_location_of_another_pipeline_is_refused_with_both_names(location: str) -> None:
    started(location)
    before = snapshot(location)
    with pytest.raises(ConfigError, match=r"belongs to pipeline 'orders', not 'bills'.*use that name, or give"):
        started(location, "bills")
    assert snapshot(location) == before


def test_retain_is_a_hundred_and_at_least_one(location: str) -> None:
    assert RETAIN == 100
    with pytest.raises(ConfigError, match="retain must be at least 1, not 0"):
        CheckpointLog(LocalStorage(location), "orders", retain=0)


def _claim(location: str, barrier: Any, results: Any) -> None:
    log = CheckpointLog(LocalStorage(location), "orders")
    barrier.wait()
    log.start()
    results.put(log.generation)


def test_racing_drivers_claim_different_generations(location: str) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(6), context.SimpleQueue()
    racers = [context.Process(target=_claim, args=(location, barrier, results)) for _ in range(6)]
    for racer in racers:
        racer.start()
    claimed = sorted(results.get() for _ in racers)
    for racer in racers:
        racer.join()
    assert claimed == list(range(6))


# -- the fence --------------------------------------------------------------------------------------------------------


def test_a_new_driver_fills_the_next_slot_of_every_older_generation(location: str) -> None:
    """Rule 1: slots without gaps, one abort for each generation, and none twice."""
    first = started(location)
    decide(first, 0)
    decide(first, 1)
    started(location)
    started(location)
    assert LocalStorage(location).names("decisions") == ["0.0.json", "0.1.json", "0.2.json", "1.0.json"]
    started(location)
    storage = LocalStorage(location)
    kinds = [json.loads(storage.read(f"decisions/{name}"))["record"]["kind"] for name in storage.names("decisions")]
    assert kinds == [RecordKind.DECISION, RecordKind.DECISION, RecordKind.ABORT, RecordKind.ABORT, RecordKind.ABORT]


def test_a_zombie_may_not_decide_and_is_told_who_took_over(location: str) -> None:
    zombie, other = started(location), started(location)
    with pytest.raises(FencedError) as caught:
        decide(zombie, 0)
    message = str(caught.value)
    assert f"generation {other.generation}, process {os.getpid()} on {socket.gethostname()}" in message
    assert "Nothing is lost. Stop one of the two; each live query needs a checkpoint location of its own" in message
    decide(other, 0)
    assert other.last_decided == 0


def test_a_driver_that_looked_before_the_takeover_is_stopped_by_the_slot(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It passed its own check, then slept; only the filled slot can tell it."""
    zombie = started(location)
    other = started(location)
    monkeypatch.setattr(zombie, "ensure_not_fenced", lambda: None)
    with pytest.raises(FencedError, match="generation 1"):
        decide(zombie, 0)
    assert other.last_decided is None
    other.load()
    assert other.last_decided is None


def test_a_decision_made_while_the_fence_is_put_up_counts(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The successor finds the slot taken, reads it, and goes one further."""
    first = started(location)
    second = CheckpointLog(LocalStorage(location), "orders")
    real = second._fill_with_abort

    def late(slot: Any) -> None:
        monkeypatch.setattr(first, "ensure_not_fenced", lambda: None)
        decide(first, 7)
        real(slot)

    monkeypatch.setattr(second, "_fill_with_abort", late)
    second.start()
    assert second.last_decided == 7
    with pytest.raises(FencedError):
        decide(first, 8)


# -- answers that get lost --------------------------------------------------------------------------------------------


class Flaky(LocalStorage):
    """A store whose next creates fail as told: before or after the write, and perhaps unreadable for a while."""

    plan: list[Callable[[str, Callable[[], bool]], bool]]

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.plan = []
        self.unreadable = False

    def create(self, name: str, data: bytes) -> bool:
        if self.plan:
            return self.plan.pop(0)(name, lambda: super(Flaky, self).create(name, data))
        return super().create(name, data)

    def read(self, name: str) -> bytes:
        if self.unreadable and name.startswith("decisions/"):
            raise OSError("the store is away")
        return super().read(name)


def _written_then_error(_: str, create: Callable[[], bool]) -> bool:
    create()
    raise TimeoutError("no answer")


def _written_then_exists(_: str, create: Callable[[], bool]) -> bool:
    create()
    return False


def _not_written(_: str, create: Callable[[], bool]) -> bool:
    raise TimeoutError("no answer")


@pytest.mark.parametrize("lost", [_written_then_error, _written_then_exists])
def test_an_own_record_counts_although_its_answer_was_lost(location: str, lost: Any) -> None:
    """A client that retried by itself is told "exists": its own nonce says that it was the one."""
    storage = Flaky(location)
    log = CheckpointLog(storage, "orders")
    log.start()
    storage.plan = [lost]
    decide(log, 0)
    storage.plan = [lost]
    log.record_commit(0, "a", {})
    decide(log, 1)
    assert storage.names("decisions") == ["0.0.json", "0.1.json"]
    assert log.facts.commits[0] == {"a": 0}


def test_a_write_that_did_not_happen_goes_up_and_can_be_repeated(location: str) -> None:
    storage = Flaky(location)
    log = CheckpointLog(storage, "orders")
    log.start()
    storage.plan = [_not_written]
    with pytest.raises(TimeoutError):
        decide(log, 0)
    assert log.last_decided is None
    decide(log, 0)
    assert storage.names("decisions") == ["0.0.json"]


def test_an_outcome_nobody_can_read_goes_up(location: str) -> None:
    storage = Flaky(location)
    log = CheckpointLog(storage, "orders")
    log.start()
    storage.plan, storage.unreadable = [_written_then_error], True
    with pytest.raises(OSError, match="away"):
        decide(log, 0)
    storage.unreadable = False
    assert started(location).last_decided == 0, "the restart reads what became of it"


# -- reading back, pruning --------------------------------------------------------------------------------------------


def test_a_restart_reads_what_was_decided_and_committed(location: str) -> None:
    log = started(location)
    complete(log, 0)
    decide(log, 1)
    log.record_commit(1, "b", {})
    again = started(location)
    assert again.facts.decided == log.facts.decided
    assert again.facts.commits == {0: {"a": 0, "b": 0}, 1: {"b": 0}}
    assert again.facts.decided[1].state == {"a": {"n": 1}}
    assert again.facts.decided[1].of("a")[0].data == {"v": 1}


def test_pruning_keeps_the_newest_and_forgets_what_is_complete(location: str) -> None:
    log = started(location, retain=3)
    for checkpoint_id in range(8):
        complete(log, checkpoint_id)
        log.prune()
    storage = LocalStorage(location)
    assert storage.names("decisions") == ["0.5.json", "0.6.json", "0.7.json"]
    assert {name.split(".")[0] for name in storage.names("commits")} == {"5", "6", "7"}
    assert started(location).last_decided == 7


def test_pruning_never_forgets_what_is_not_complete_nor_aborts(location: str) -> None:
    """Rule 5: the aborts are the fence. A lagging checkpoint and all after it stay."""
    for _ in range(3):
        started(location)
    log = started(location, retain=1)
    complete(log, 0)
    decide(log, 1)
    log.record_commit(1, "a", {})
    for checkpoint_id in range(2, 6):
        complete(log, checkpoint_id)
        log.prune()
    kept = started(location)
    assert sorted(kept.facts.decided) == [1, 2, 3, 4, 5]
    names = LocalStorage(location).names("decisions")
    assert [name for name in names if not name.startswith("3.")] == ["0.0.json", "1.0.json", "2.0.json"]


def test_a_kill_in_the_middle_of_pruning_leaves_nothing_owed(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commit records go last: a decision without them would be delivered again."""
    for survived in range(6):
        folder = f"{location}-{survived}"
        log = started(folder, retain=1)
        for checkpoint_id in range(3):
            complete(log, checkpoint_id)
        real, left = log.storage.delete, [survived]

        def delete(name: str, real: Any = real, left: list[int] = left) -> None:
            if not left[0]:
                raise InterruptedError
            left[0] -= 1
            real(name)

        monkeypatch.setattr(log.storage, "delete", delete)
        with pytest.raises(InterruptedError):
            log.prune()
        again = started(folder, retain=1)
        assert all(set(again.facts.commits[c]) == {"a", "b"} for c in again.facts.decided)
        again.prune()
        assert {name.split(".")[0] for name in LocalStorage(folder).names("commits")} == {"2"}
