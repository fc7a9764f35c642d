"""What the guarantee rests on after the tasks have run, one sentence each; `make mutants` breaks each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.ports import Committed
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.core import faults
from holdfast.core.model import RecordKind
from holdfast.core.recovery import complete_through
from holdfast.core.retry import Retry
from holdfast.errors import (
    CommitError,
    ConfigError,
    FencedError,
    RestoredEndpointError,
    RowError,
    StorageError,
    UndeliveredError,
)
from holdfast.sinks.ledger import check_ledger
from holdfast.testing.local import armed
from tests.unit.inprocess import Endpoint, Engine, InProcessBatch, PreparingSink, SendingSink

DOWN = ConnectionError("the endpoint is down")


class Lagging(PreparingSink):
    may_lag = True


class Overlapping(PreparingSink):
    overlaps = True


class Forgetful(PreparingSink):
    """An endpoint that drops what was prepared, so often."""

    drops = 1

    def still_prepared(self, committables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        self.endpoint.call("still_prepared", len(committables))
        self.drops -= 1
        return [] if self.drops >= 0 else committables


@pytest.fixture
def other() -> Endpoint:
    return Endpoint()


def test_a_loop_of_a_fenced_driver_touches_no_endpoint(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Lagging(endpoint))
    endpoint.fail("commit", DOWN)
    engine.run(0, [1])
    paused = engine.coordinator
    endpoint.fail("commit", DOWN)
    engine.restart(Lagging(endpoint))
    asked = len(endpoint.called("commit"))
    engine.now += 60
    paused.tick()
    assert len(endpoint.called("commit")) == asked
    assert isinstance(paused.failure, FencedError)


def test_a_sink_commits_its_checkpoints_in_order(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Lagging(endpoint))
    endpoint.fail("commit", *[DOWN] * 3)
    for number in range(3):
        engine.run(number, [number])
    for _ in range(5):
        engine.tick()
    assert endpoint.rows == [0, 1, 2]


def test_a_batch_waits_for_a_sink_that_may_not_lag(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("commit", DOWN)
    engine.run(0, [1])
    assert endpoint.rows == [1], "it returned before the rows were there"
    endpoint.fail("commit", *[DOWN] * 50)
    with pytest.raises(CommitError):
        engine.run(1, [2])
    assert engine.committed == 0


def test_a_sink_that_overlaps_is_one_checkpoint_behind_at_most(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Overlapping(endpoint), retry=Retry(for_=1000, first_wait=1, longest_wait=1))
    endpoint.fail("commit", *[DOWN] * 5)
    engine.run(0, [0])
    assert endpoint.rows == [], "the batch waited for it"
    engine.run(1, [1])
    assert endpoint.rows[:1] == [0], "two checkpoints behind"


def test_work_that_an_endpoint_dropped_before_the_decision_is_not_decided(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Forgetful(endpoint, timeout=10))
    batch = InProcessBatch([1, 2], on_task=lambda subtask: engine._sleep(9))
    engine.planned = 0
    engine.coordinator.run(0, batch)
    assert batch.writes == 2, "decided what was gone"
    assert endpoint.called("still_prepared") == [(1,), (1,)] and endpoint.rows == [1, 2]
    engine.run(1, [3])
    assert len(endpoint.called("still_prepared")) == 2, "asked although it could not be gone: a round trip for nothing"


class OtherNameInTasks(PreparingSink):
    """As a class of a script that is made anew in a worker can have."""

    def begin(self, task: Any) -> str:
        self.name = "another"
        return super().begin(task)


def test_rows_prepared_for_a_sink_that_nobody_commits_are_not_decided(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, OtherNameInTasks(endpoint), PreparingSink(Endpoint(), "same"))
    engine.sinks[0].name = "prepared"
    batch = InProcessBatch([1])
    write = batch.write

    def renamed(*arguments: Any, **options: Any) -> Any:
        reports = write(*arguments, **options)
        engine.sinks[0].name = "prepared"
        return reports

    batch.write = renamed  # type: ignore[method-assign]
    engine.planned = 0
    with pytest.raises(ConfigError, match=r"for sink 'another', but this pipeline's sinks are prepared, same"):
        engine.coordinator.run(0, batch)
    assert engine.log.last_decided is None


def test_why_a_decided_checkpoint_cannot_be_committed_is_kept_on_disk(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("commit", RowError("this row does not go there"))
    with pytest.raises(RowError):
        engine.run(0, [1])
    assert engine.waits == [], "what cannot help was tried again"
    assert engine.files("lost") == ["lost/0.prepared.json"]
    assert b"this row does not go there" in engine.storage.read("lost/0.prepared.json")


def test_a_failure_that_a_loop_meets_fails_the_next_batch(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Lagging(endpoint))
    endpoint.fail("commit", DOWN, RowError("this row does not go there"))
    engine.run(0, [1])
    engine.tick()
    assert isinstance(engine.coordinator.failure, RowError)
    with pytest.raises(RowError):
        engine.run(1, [2])
    assert 1 not in engine.log.facts.decided


def test_a_sink_that_may_lag_is_tried_for_ever_and_another_is_not(
    location: str, endpoint: Endpoint, other: Endpoint
) -> None:
    engine = Engine(location, Lagging(endpoint), PreparingSink(other, "prompt"))
    endpoint.fail("commit", *[DOWN] * 40)
    for number in range(3):
        engine.run(number, [number])
        engine.tick()
    assert other.rows == [0, 1, 2] and engine.coordinator.failure is None
    other.fail("commit", *[DOWN] * 40)
    with pytest.raises(CommitError, match="'prompt'"):
        engine.run(3, [3])


def test_a_bounded_run_leaves_nothing_behind_or_says_so(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Lagging(endpoint), bounded=True, drain_timeout=30.0)
    endpoint.fail("commit", DOWN)
    engine.run(0, [1])
    assert endpoint.rows == [1], "the last batch may be over, and nobody would deliver it"
    endpoint.fail("commit", *[DOWN] * 400)
    with pytest.raises(UndeliveredError, match="'prepared': checkpoint 1, 1 rows"):
        engine.run(1, [2])
    endpoint.failures.clear()
    engine.restart()
    engine.run(1, [2])
    assert endpoint.rows == [1, 2]


def test_a_commit_whose_record_cannot_be_written_is_not_sent_again(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    with armed("commit.record=error"):
        engine.run(0, [1])
    assert endpoint.called("commit") == [(0,)], "sent again for a record"
    assert engine.pending == []


def test_a_sink_is_told_of_a_checkpoint_only_when_every_sink_has_committed_it(
    location: str, endpoint: Endpoint, other: Endpoint
) -> None:
    engine = Engine(location, Lagging(endpoint), PreparingSink(other, "prompt"))
    endpoint.fail("commit", DOWN)
    engine.run(0, [1])
    assert endpoint.called("complete") == other.called("complete") == []
    engine.tick()
    engine.tick()
    assert endpoint.called("complete") == other.called("complete") == [(0,)]


def test_rule_6_group_offsets_wait_for_the_sink_that_lags(location: str, endpoint: Endpoint, other: Endpoint) -> None:
    engine = Engine(location, Lagging(endpoint), PreparingSink(other, "prompt"))
    endpoint.fail("commit", DOWN)
    engine.run(0, [1])
    assert complete_through(engine.log.facts) == -1
    engine.tick()
    assert complete_through(engine.log.facts) == 0


def test_rule_15_a_ledger_behind_the_commit_records_is_refused(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    for number in range(3):
        engine.run(number, [number])
    run = engine.restart()
    assert run.committed == {"prepared": Committed(2, run.committed["prepared"].at, {0: 2})}
    check_ledger(run, "the ledger", {run.lineage: 2}, sink="prepared")
    for ledger in ({run.lineage: 1}, {}):
        with pytest.raises(RestoredEndpointError, match="accept-restored"):
            check_ledger(run, "the ledger", ledger, sink="prepared")
    # An operator has accepted that it lacks them.
    order = {"prepared": {"how": "accept-restored", "through": 2}}
    engine.log.decide(2, ["prepared"], (), timestamp=1, state={}, kind=RecordKind.REPAIR, resolution=order)
    assert engine.restart().committed == {}
    engine.run(3, [3])
    assert engine.restart().committed["prepared"].checkpoint_id == 3


def test_a_take_over_gives_the_location_a_new_lineage_and_still_delivers_what_is_decided(
    location: str, endpoint: Endpoint, tmp_path: Path
) -> None:
    marks = FileCheckpointCommitter(str(tmp_path / "marks"))
    first = Engine(tmp_path / "first" / "holdfast", SendingSink(endpoint, marks))
    first.run(0, [1])
    engine = Engine(location, PreparingSink(Endpoint(), "sending"))
    engine.coordinator.close(0.0)
    before = engine.log.lineage
    run = engine.restart(SendingSink(endpoint, marks), take_over=True)
    assert run.take_over and run.lineage not in (first.log.lineage, before, "")
    engine.run(0, [2])
    assert endpoint.rows == [1, 2]


# -- a full disk -----------------------------------------------------------------------------------------------------


def test_a_disk_that_is_full_at_any_write_of_the_log_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write of two checkpoints fails in turn, before and after it is done; then there is room again."""
    for mode in ("error", "lost"):
        number, fired = 0, True
        while fired:
            number += 1
            fired = _full_at(number, mode, tmp_path / f"{mode}-{number}", monkeypatch)
        assert number > 10, "hardly a write was tried"


def _full_at(number: int, mode: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether there was a write of this number."""
    endpoint, sending = Endpoint(), Endpoint()
    marks = FileCheckpointCommitter(str(folder / "marks"))
    folder.mkdir()

    def sinks() -> tuple[PreparingSink, SendingSink]:
        return PreparingSink(endpoint), SendingSink(sending, marks)

    engine = Engine(folder / "checkpoint", *sinks())
    monkeypatch.setattr(faults, "_hits", type(faults._hits)())
    monkeypatch.setenv(faults.VARIABLE, f"log.write={mode}@{number}")
    monkeypatch.setenv(faults.ONCE, str(folder))
    try:
        engine.restart(*sinks())
        engine.run(0, [1, 2])
        engine.run(1, [3])
    except StorageError as error:
        assert "log.write" in str(error)
    engine.coordinator.close(0.0)
    fired = (folder / "log.write").exists()
    monkeypatch.delenv(faults.VARIABLE)
    engine.restart(*sinks())
    for checkpoint, rows in enumerate(([1, 2], [3])):
        if engine.committed is None or checkpoint > engine.committed:
            engine.run(checkpoint, rows)
    engine.tick()
    assert sorted(endpoint.rows) == [1, 2, 3] and sorted(sending.rows) == [1, 2, 3], f"write {number}, {mode}"
    assert endpoint.prepared == {} and engine.pending == [], f"write {number}, {mode}"
    return fired


def test_the_end_of_a_run_tells_sinks_of_what_is_complete(location: str, endpoint: Endpoint, tmp_path: Path) -> None:
    """A backlog that the last seconds of a run delivered leaves no file of the log behind."""
    marks = FileCheckpointCommitter(str(tmp_path / "marks"))
    engine = Engine(location, SendingSink(endpoint, marks), PreparingSink(Endpoint(), "prompt"))
    endpoint.down = False
    for number in range(3):
        engine.run(number, [number])
    endpoint.down = None
    engine.now += 60
    assert engine.coordinator.drain(10) and engine.coordinator.tell(10)
    assert endpoint.called("complete") == [(0,), (1,), (2,)] and engine.files("wal") == []
