"""Starts that would skip or double rows in silence are refused, with the ways out (rule 10, fault 12, S2)."""

from __future__ import annotations

import copy
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.again import order_again
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.reports import GIVE_UP
from holdfast.checkpoint.resolve import record_orders
from holdfast.checkpoint.stuck import choose
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.committers.sql import SqlCheckpointCommitter
from holdfast.connectors.sqlite import SqliteSink
from holdfast.errors import (
    CommitError,
    ConfigError,
    ForeignLineageError,
    LineageError,
    SinkError,
    StaleCheckpointError,
)
from holdfast.testing.audit import audit
from tests.unit.inprocess import Endpoint, Engine, PreparingSink, SendingSink

WAYS_OUT = "Restore the whole checkpoint location, or start a new one under a new pipeline name"


class Target:
    """A sink's endpoint with a ledger or marks, and a way to read its rows."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind, self.folder, self.endpoint = kind, folder, Endpoint()

    def sink(self) -> Any:
        if self.kind == "sqlite":
            return SqliteSink(str(self.folder / "out.db"), "rows", name="target")
        if self.kind == "file":
            return SendingSink(self.endpoint, FileCheckpointCommitter(str(self.folder / "marks")), "target")
        return SendingSink(self.endpoint, SqlCheckpointCommitter(f"sqlite:///{self.folder}/marks.db"), "target")

    def rows(self) -> list[int]:
        if self.kind != "sqlite":
            return self.endpoint.rows
        with closing(sqlite3.connect(self.folder / "out.db")) as connection:
            return [row[0] for row in connection.execute("SELECT id FROM rows ORDER BY rowid")]


@pytest.fixture(params=["sqlite", "file", "sql"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    return Target(request.param, tmp_path)


def ran(location: str, target: Target, checkpoints: int) -> Engine:
    engine = Engine(location, target.sink())
    for checkpoint_id in range(checkpoints):
        engine.run(checkpoint_id, [checkpoint_id])
    return engine


# -- Spark's checkpoint and the log are not of the same moment --------------------------------------------------------


@pytest.mark.parametrize(
    ("planned", "committed", "found"), [(None, None, "no batches"), (1, 1, "batches up to 1"), (0, None, "up to 0")]
)
def test_an_old_or_deleted_spark_checkpoint_beside_the_log_is_refused(
    location: str, target: Target, planned: int | None, committed: int | None, found: str
) -> None:
    engine = ran(location, target, 3)
    engine.planned, engine.committed = planned, committed
    with pytest.raises(StaleCheckpointError, match=f"decided checkpoints up to 2, but Spark's.*{found}.*{WAYS_OUT}"):
        engine.restart()
    engine.planned = engine.committed = 2
    engine.restart()
    engine.run(3, [3])
    assert audit(range(4), target.rows()).ok


def test_an_old_log_beside_sparks_checkpoint_is_refused(location: str, target: Target, tmp_path: Path) -> None:
    engine = ran(location, target, 1)
    shutil.copytree(location, tmp_path / "copy")
    engine.run(1, [1])
    shutil.move(location, tmp_path / "newest")
    shutil.copytree(tmp_path / "copy", location)
    with pytest.raises(StaleCheckpointError, match=f"committed batches up to 1, but the log.*ends at 0.*{WAYS_OUT}"):
        engine.restart()
    shutil.rmtree(location)
    shutil.move(tmp_path / "newest", location)
    engine.restart()
    engine.run(2, [2])
    assert audit(range(3), target.rows()).ok


def test_a_deleted_log_beside_sparks_checkpoint_is_refused(location: str, endpoint: Endpoint, tmp_path: Path) -> None:
    """Its undelivered rows are gone with it, and Spark will not bring them again."""
    engine = Engine(location, PreparingSink(endpoint))
    engine.run(0, [0])
    shutil.move(location, tmp_path / "moved")
    with pytest.raises(StaleCheckpointError, match=r"committed batches up to 0, but the log.*is empty.*take_over=True"):
        engine.restart()
    engine.restart(take_over=True)
    engine.run(1, [1])
    assert audit([0, 1], endpoint.rows).ok


def test_a_batch_that_is_decided_and_forgotten_is_refused(location: str, target: Target) -> None:
    engine = Engine(location, target.sink(), retain=1)
    for checkpoint_id in range(3):
        engine.run(checkpoint_id, [checkpoint_id])
    with pytest.raises(StaleCheckpointError, match=r"asks for checkpoint 0, but 2 is decided already.*Restore"):
        engine.run(0, [0])
    engine.run(3, [3])
    assert audit(range(4), target.rows()).ok


def test_a_first_batch_that_was_planned_but_never_decided_is_no_reason_to_refuse(
    location: str, endpoint: Endpoint
) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("write", RuntimeError())
    with pytest.raises(SinkError):
        engine.run(0, [0])
    engine.restart()
    engine.run(0, [0])
    assert endpoint.rows == [0]


# -- sinks that come and go -------------------------------------------------------------------------------------------


def test_a_sink_that_is_still_owed_rows_cannot_be_removed(location: str, endpoint: Endpoint) -> None:
    other = Endpoint()
    engine = Engine(location, PreparingSink(endpoint, "a"), PreparingSink(other, "b"))
    other.fail("commit", *[ConnectionError()] * 3)
    with pytest.raises(CommitError):
        engine.run(0, [1])
    with pytest.raises(ConfigError, match=r"checkpoint 0 .*owes its rows to sink 'b'.*\(a\): start once more"):
        engine.restart(PreparingSink(endpoint, "a"))
    engine.restart(PreparingSink(endpoint, "a"), PreparingSink(other, "b"))
    engine.restart(PreparingSink(endpoint, "a"))
    engine.run(1, [2])
    assert (endpoint.rows, other.rows) == ([1, 2], [1])


def test_a_sink_can_be_added_and_takes_part_from_then_on(location: str, endpoint: Endpoint) -> None:
    other = Endpoint()
    engine = Engine(location, PreparingSink(endpoint, "a"))
    engine.run(0, [1])
    engine.restart(PreparingSink(endpoint, "a"), PreparingSink(other, "b"))
    engine.run(1, [2])
    assert (endpoint.rows, other.rows) == ([1, 2], [2])
    assert engine.pending == []


# -- ledgers and marks of another lineage, or ahead -------------------------------------------------------------------


def test_another_checkpoint_location_of_the_same_name_is_refused(location: str, target: Target, tmp_path: Path) -> None:
    first = ran(location, target, 3)
    with pytest.raises(ForeignLineageError) as caught:
        Engine(str(tmp_path / "second"), target.sink())
    message = str(caught.value)
    assert "sink 'target'" in message
    assert "a pipeline named 'orders' up to checkpoint 2" in message
    assert "give this pipeline a new name, or pass take_over=True" in message
    other = Engine(str(tmp_path / "third"), target.sink(), pipeline="a new name")
    other.run(0, [100])
    first.restart()
    first.run(3, [3])
    assert audit([0, 1, 2, 3, 100], target.rows()).ok


def test_a_ledger_ahead_of_an_old_checkpoint_is_refused(location: str, target: Target, tmp_path: Path) -> None:
    engine = ran(location, target, 1)
    shutil.copytree(location, tmp_path / "copy")
    engine.run(1, [1])
    engine.run(2, [2])
    old = copy.copy(engine)
    shutil.move(location, tmp_path / "newest")
    shutil.copytree(tmp_path / "copy", location)
    # Spark's part is as old as the log, so only the endpoint can tell
    old.planned = old.committed = 0
    with pytest.raises(StaleCheckpointError, match=r"up to checkpoint 2, but.*knows checkpoints up to 0.*take_over"):
        old.start(target.sink())
    shutil.rmtree(location)
    shutil.move(tmp_path / "newest", location)
    engine.start(target.sink())
    engine.run(3, [3])
    assert audit(range(4), target.rows()).ok


def _by_take_over(location: str, target: Target) -> Engine:
    return Engine(location, target.sink(), take_over=True)


def _by_at_least_once(location: str, target: Target) -> Engine:
    return Engine(location, target.sink(), delivery="at-least-once")


@pytest.mark.parametrize("start", [_by_take_over, _by_at_least_once], ids=["take_over", "S2 at-least-once"])
def test_a_take_over_owns_the_name_and_the_other_location_is_refused(
    location: str, target: Target, tmp_path: Path, start: Callable[[str, Target], Engine]
) -> None:
    first = ran(location, target, 3)
    second = start(str(tmp_path / "second"), target)
    second.run(0, [10])
    second.run(1, [11])
    assert audit([0, 1, 2, 10, 11], target.rows()).ok
    with pytest.raises(LineageError):
        first.restart()
    second.restart(target.sink(), take_over=False, delivery="exactly-once")
    second.run(2, [12])
    assert audit([0, 1, 2, 10, 11, 12], target.rows()).ok


def test_s2_at_least_once_goes_on_from_an_old_copy_and_loses_nothing(
    location: str, target: Target, tmp_path: Path
) -> None:
    """Where exactly-once refuses: what came after the copy is delivered again."""
    engine = ran(location, target, 1)
    shutil.copytree(location, tmp_path / "copy")
    engine.run(1, [1])
    shutil.rmtree(location)
    shutil.move(tmp_path / "copy", location)
    engine.planned = engine.committed = 0
    engine.start(target.sink(), delivery="at-least-once")
    engine.run(1, [1])
    engine.run(2, [2])
    report = audit(range(3), target.rows())
    assert report.nothing_lost
    assert report.doubled == (1,)


def test_a_take_over_loses_no_row_that_is_decided_and_not_delivered(
    location: str, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first location dies between decision and commit; the second takes the name; the first takes it back."""
    first = ran(location, target, 2)
    with monkeypatch.context() as patch:
        patch.setattr(type(first.sinks[0]), "commit", _die)
        with pytest.raises(KeyboardInterrupt):
            first.run(2, [2])
    second = Engine(str(tmp_path / "second"), target.sink(), take_over=True)
    second.run(0, [10])
    with pytest.raises(ForeignLineageError, match="could deliver checkpoint 2 of sink 'target' a second time"):
        first.restart(target.sink(), take_over=True)
    assert first.pending == [2], "nobody but the operator can know whether it was delivered"
    log = CheckpointLog(first.storage, "orders")
    log.load()
    (report,) = record_orders(location.removesuffix("/holdfast"), "orders", choose(log), GIVE_UP, WHO)
    order_again(first.storage, report, WHO)
    first.restart(target.sink(), take_over=True)
    first.run(2, [2])
    first.run(3, [3])
    assert audit([0, 1, 2, 3, 10], target.rows()).ok


WHO = {"by": "me", "host": "here", "at": 0}


def _die(*_: Any) -> None:
    raise KeyboardInterrupt


def test_a_live_pipeline_whose_name_was_taken_over_stops_at_its_next_commit(location: str, tmp_path: Path) -> None:
    """The ledger is read in the transaction that writes the rows, so a zombie of another location adds nothing."""
    target = Target("sqlite", tmp_path)
    first = ran(location, target, 2)
    second = Engine(str(tmp_path / "second"), target.sink(), take_over=True)
    second.run(0, [10])
    with pytest.raises(ForeignLineageError):
        first.run(2, [2])
    assert audit([0, 1, 10], target.rows()).ok
