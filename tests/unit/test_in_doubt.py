"""A store that writes a record and does not say so: what may be decided is never undone (T2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.storage import LocalStorage
from holdfast.connectors.files.sink import FileSink
from holdfast.errors import CommitError, RecordError
from tests.unit.inprocess import Endpoint, Engine, PreparingSink
from tests.unit.test_file_sink import EACH, LATER, Clock, ids


class Silent(LocalStorage):
    """While `silent`, decision slots are filled and nobody is told."""

    silent = False

    def create(self, name: str, data: bytes) -> bool:
        created = super().create(name, data)
        self._answer(name)
        return created

    def read(self, name: str) -> bytes:
        self._answer(name)
        return super().read(name)

    def _answer(self, name: str) -> None:
        if self.silent and name.startswith("decisions/"):
            raise OSError("no answer")


@pytest.fixture
def store(tmp_path: Path) -> Silent:
    return Silent(str(tmp_path / "checkpoint"))


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run_in_doubt(engine: Engine, store: Silent, clock: Clock, checkpoint_id: int, rows: list[int]) -> None:
    """A batch that is longer than the time between two sweeps of the timer, and whose decision is not answered."""

    def slowly(_: int) -> None:
        clock.now += 60

    store.silent = True
    with pytest.raises(OSError, match="no answer"):
        engine.run(checkpoint_id, rows, on_task=slowly)
    store.silent = False


def test_the_timer_does_not_sweep_what_may_be_decided(store: Silent, clock: Clock) -> None:
    """It can come before the engine has ended the query: only a new start reads whether there is a decision."""
    endpoint = Endpoint()
    engine = Engine(store.url, PreparingSink(endpoint), clock=clock, storage=store)
    engine.run(0, [1])
    run_in_doubt(engine, store, clock, 1, [2])
    engine.tick()
    engine.restart(PreparingSink(endpoint))
    engine.run(1, [2])
    assert endpoint.rows == [1, 2]


def test_nor_does_it_remove_parts_of_files(store: Silent, clock: Clock, tmp_path: Path) -> None:
    out = tmp_path / "out"
    engine = Engine(store.url, FileSink(str(out), rolling=EACH), clock=clock, storage=store)
    engine.run(0, [1])
    run_in_doubt(engine, store, clock, 1, [2])
    engine.tick()
    engine.restart(FileSink(str(out), rolling=EACH))
    engine.run(1, [2])
    assert ids(out) == [1, 2]


def test_a_slot_that_this_driver_filled_unknowingly_is_not_blamed_on_another(
    store: Silent, clock: Clock, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    engine = Engine(store.url, FileSink(str(out), rolling=LATER), clock=clock, storage=store)
    engine.run(0, [1])
    clock.now += 3600
    store.silent = True
    engine.tick()  # plans the file; the plan is recorded, the answer lost
    store.silent = False
    with pytest.raises(RecordError, match="was written by this driver"):
        engine.run(1, [2])
    engine.restart(FileSink(str(out), rolling=EACH))
    engine.run(1, [2])
    assert ids(out) == [1, 2]


def test_the_end_of_a_run_plans_nothing_without_the_rows_of_a_decided_checkpoint(clock: Clock, tmp_path: Path) -> None:
    """Another sink's commit failed before the file sink's turn: its state is still that of the checkpoint before."""
    out, endpoint = tmp_path / "out", Endpoint()

    def sinks() -> tuple[Any, ...]:
        return PreparingSink(endpoint), FileSink(str(out), rolling=LATER)

    engine = Engine(tmp_path / "checkpoint", *sinks(), clock=clock)
    engine.run(0, [1])
    endpoint.fail("commit", *[OSError("down")] * 3)
    with pytest.raises(CommitError):
        engine.run(1, [2])
    engine.coordinator.finish(0.0)
    engine.restart(*sinks())
    engine.run(1, [2])
    engine.coordinator.finish(0.0)
    assert ids(out) == [1, 2]
