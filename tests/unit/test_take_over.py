"""A take-over that dies half way is finished by the next start: nothing of the old lineage stays prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import resolve, stuck
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import Run
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.errors import ForeignLineageError, RestoredEndpointError
from holdfast.testing.local import Died
from tests.unit.inprocess import Endpoint, Engine, PreparingSink, SendingSink


class Owned(PreparingSink):
    """An endpoint that knows whose it is; only a take-over sweeps what others prepared."""

    def open(self, run: Run) -> None:
        super().open(run)
        self.run = run
        owner = getattr(self.endpoint, "owner", None)
        if owner not in (None, run.lineage) and not run.take_over:
            raise ForeignLineageError("another location's")
        self.endpoint.owner = run.lineage  # type: ignore[attr-defined]

    def recover(self, pipeline: str, generation: int, decided: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        answer = self.endpoint.call("recover", generation, self.run.take_over)
        if answer is None and self.run.take_over:
            self.endpoint.prepared.pop("of the old lineage", None)


def test_a_take_over_that_dies_before_its_sweep_is_finished_by_the_next_start(tmp_path) -> None:
    endpoint = Endpoint()
    endpoint.owner = "the old lineage"  # type: ignore[attr-defined]
    endpoint.prepared["of the old lineage"] = [1]
    endpoint.fail("recover", Died("in the middle of the sweep"))
    with pytest.raises(Died):
        Engine(tmp_path / "new", Owned(endpoint), take_over=True)
    engine = Engine(tmp_path / "new", Owned(endpoint))
    assert endpoint.prepared == {}, "swept, although nobody asked for a take-over any more"
    engine.run(0, [7])
    assert endpoint.rows == [7]
    engine.restart(Owned(endpoint))
    assert endpoint.called("recover")[-1][1] is False, "once is enough"


# -- a second take-over -----------------------------------------------------------------------------------------------


class Marks:
    """Two locations that send to one endpoint under one name, and keep their marks in one place."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.endpoint = folder, Endpoint()

    def sink(self) -> SendingSink:
        return SendingSink(self.endpoint, FileCheckpointCommitter(str(self.folder / "marks")))

    def location(self, name: str) -> Path:
        return self.folder / name / "holdfast"

    def start(self, name: str, **options: Any) -> Engine:
        return Engine(self.location(name), self.sink(), **options)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Marks, Engine]:
    """The first location has sent checkpoint 0 and died before it recorded that; then a second took the name."""
    marks = Marks(tmp_path)
    first = marks.start("first")
    first.log.record_commit = died  # type: ignore[method-assign]
    with pytest.raises(Died):
        first.run(0, [1])
    assert marks.endpoint.rows == [1] and first.log.facts.commits == {}
    marks.start("second", take_over=True).run(0, [5])
    return marks, first


def died(*_: Any) -> None:
    raise Died("before it recorded the commit")


def test_a_second_take_over_doubles_nothing_in_silence(two: tuple[Marks, Engine]) -> None:
    marks, first = two
    lineage = first.log.lineage
    first.options["take_over"] = True
    with pytest.raises(
        ForeignLineageError, match=r"could deliver checkpoint 0 of sink 'sending' a second time"
    ) as told:
        first.restart(marks.sink())
    assert "--mark-delivered" in str(told.value) and "--send-again" in str(told.value)
    assert marks.endpoint.rows == [1, 5] and first.log.lineage == lineage, "nothing is sent, nothing set aside"
    # The way out that the error names.
    log = CheckpointLog(first.storage, "orders")
    log.load()
    who = {"by": "me", "host": "here", "at": 0}
    location = str(marks.location("first")).removesuffix("/holdfast")
    resolve.record_orders(location, "orders", stuck.choose(log), "mark-delivered", who)
    first.restart(marks.sink())
    first.run(1, [2])
    assert marks.endpoint.rows == [1, 5, 2]


def test_at_least_once_sends_them_again(two: tuple[Marks, Engine]) -> None:
    marks, first = two
    first.restart(marks.sink(), delivery="at-least-once")
    assert marks.endpoint.rows == [1, 5, 1]


def test_a_take_over_of_a_restored_endpoint_delivers_what_is_owed(tmp_path: Path) -> None:
    """Its ledger says up to where it has rows: what is owed is beyond that."""
    marks = Marks(tmp_path)
    engine = marks.start("first")
    engine.run(0, [1])
    marks.endpoint.down = ConnectionError("away")
    engine.run(1, [2])
    marks.endpoint.down = None
    for file in (tmp_path / "marks").rglob("*"):
        if file.is_file() and not file.name.startswith("."):
            file.unlink()
    with pytest.raises(RestoredEndpointError):
        engine.restart(marks.sink())
    engine.restart(marks.sink(), take_over=True)
    assert marks.endpoint.rows == [1, 2]


# -- late tasks of the other location --------------------------------------------------------------------------------


class Named(Owned):
    """Undoes what its own and set-aside lineages have prepared, by name."""

    def open(self, run: Run) -> None:
        owner = getattr(self.endpoint, "owner", None)
        if owner not in (None, run.lineage) and not run.take_over:
            raise ForeignLineageError("another location's", {owner: 0})
        super().open(run)

    def recover(self, pipeline: str, generation: int, decided: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        for name in list(self.endpoint.prepared):
            if name.startswith("late of ") and self.run.takes_from(name.removeprefix("late of ")):
                del self.endpoint.prepared[name]


def test_what_late_tasks_of_a_location_prepare_whose_name_was_taken_is_undone_by_later_runs_too(
    tmp_path: Path,
) -> None:
    endpoint = Endpoint()
    endpoint.owner = "1" * 32  # type: ignore[attr-defined]
    engine = Engine(tmp_path / "new", Named(endpoint), take_over=True)
    before = engine.log.lineage
    engine.run(0, [7])
    del engine.options["take_over"]
    engine.restart(Named(endpoint))
    assert engine.log.lineage == before and not engine.sinks[0].run.take_over
    endpoint.prepared |= {f"late of {'1' * 32}": [1], f"late of {'2' * 32}": [2]}
    engine.run(1, [8])
    assert list(endpoint.prepared) == [f"late of {'2' * 32}"], "nobody knows whose the other is"
