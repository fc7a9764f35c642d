"""How a run ends: nothing is left behind in silence (D8, rule 17)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.committers.file import FileCheckpointCommitter
from holdfast.core.retry import Retry
from holdfast.errors import CommitError, LostError, RowError, UndeliveredError
from tests.unit.inprocess import Endpoint, Engine, PreparingSink, SendingSink

DOWN = ConnectionError("the endpoint is down")


@pytest.fixture
def marks(tmp_path: Path) -> FileCheckpointCommitter:
    return FileCheckpointCommitter(str(tmp_path / "marks"))


class Overlapping(PreparingSink):
    overlaps = True


def bounded(location: str, *sinks: Any) -> Engine:
    retry = Retry(for_=1000, first_wait=1, longest_wait=4)
    return Engine(location, *sinks, bounded=True, drain_timeout=20.0, retry=retry)


# -- bounded runs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("overlapping", [False, True])
def test_d8_each_batch_of_a_bounded_run_waits_for_sinks_that_lag(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint, overlapping: bool
) -> None:
    """Spark calls nobody after the last one, and does not say which that is."""
    sink: Any = Overlapping(endpoint) if overlapping else SendingSink(endpoint, marks)
    engine = bounded(location, sink)
    for number in range(2):
        endpoint.fail("commit" if overlapping else "send", DOWN, DOWN)
        engine.run(number, [number])
        assert engine.pending == []
        assert endpoint.rows == list(range(number + 1))
    assert engine.coordinator.undelivered() is None


def test_d8_what_is_left_after_drain_timeout_is_an_error_that_names_sink_checkpoints_and_rows(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    prompt = Endpoint()
    engine = Engine(location, SendingSink(endpoint, marks), PreparingSink(prompt))
    endpoint.down = DOWN
    engine.run(0, [0], [10])
    engine.options.update(bounded=True, drain_timeout=20.0)
    engine.restart()
    began = engine.now
    with pytest.raises(UndeliveredError) as caught:
        engine.run(1, [1])
    assert 20 <= engine.now - began < 45
    message = str(caught.value)
    assert "sink 'sending': 2 checkpoints (0 to 1), 3 rows; sink 'sending': commit of checkpoint 0 failed" in message
    assert "the endpoint is down" in message
    assert location in message
    assert "prepared'" not in message, "only who owes something is named"
    assert caught.value.action == "restart"
    assert prompt.rows == [0, 10, 1]
    endpoint.down = None
    engine.restart()
    assert engine.run(1, [1]).writes == 0, "decided: Spark's replay writes nothing"
    assert endpoint.rows == [0, 10, 1]


def test_a_replayed_batch_of_a_bounded_run_drains_too(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    engine = Engine(location, SendingSink(endpoint, marks))
    endpoint.down = DOWN
    engine.run(0, [0])
    engine.options.update(bounded=True, drain_timeout=5.0)
    engine.restart()
    with pytest.raises(UndeliveredError, match="checkpoint 0, 1 rows"):
        engine.run(0, [0])


@pytest.mark.parametrize("error", [RowError("never"), LostError("gone")], ids=["permanent", "lost"])
def test_a_bounded_run_does_not_end_well_when_its_last_checkpoint_failed_while_it_drained(
    location: str, endpoint: Endpoint, error: Exception
) -> None:
    engine = bounded(location, Overlapping(endpoint))
    endpoint.fail("commit", DOWN, error)
    with pytest.raises(type(error), match=str(error)):
        engine.run(0, [0])
    assert engine.pending == [0]


def test_a_run_without_end_does_not_drain(location: str, marks: FileCheckpointCommitter, endpoint: Endpoint) -> None:
    engine = Engine(location, SendingSink(endpoint, marks))
    endpoint.down = DOWN
    engine.run(0, [0])
    assert engine.waits == []


# -- drain, finish, close ---------------------------------------------------------------------------------------------


def test_drain_waits_for_all_or_only_for_those_that_may_not_lag(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    prompt = Endpoint()
    engine = Engine(location, SendingSink(endpoint, marks), Overlapping(prompt))
    endpoint.down = DOWN
    prompt.fail("commit", DOWN)
    engine.run(0, [0])
    assert engine.coordinator.drain(30.0, only_prompt=True)
    assert prompt.rows == [0]
    assert not engine.coordinator.drain(30.0)
    assert "'sending': checkpoint 0" in str(engine.coordinator.undelivered())
    endpoint.down = None
    assert engine.coordinator.drain(30.0)
    assert endpoint.rows == [0]
    assert engine.coordinator.undelivered() is None


def test_drain_ends_at_once_when_the_run_has_failed(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Overlapping(endpoint))
    endpoint.fail("commit", DOWN, RowError("never"))
    engine.run(0, [0])
    assert engine.coordinator.drain(30.0)
    assert isinstance(engine.coordinator.failure, RowError)


class Keeping(PreparingSink):
    """Completes what it holds back when the run is over."""

    def revise_state(self, now: float, *, last: bool) -> Any:
        return ["completed"] if last and self.state != ["completed"] else None

    def act_on_state(self, tasks: Any) -> None:
        self.endpoint.call("act", self.state)


def test_f6_finish_lets_sinks_complete_what_they_hold_back_but_not_those_that_owe(
    location: str, endpoint: Endpoint
) -> None:
    class Lagging(Keeping):
        may_lag = True

    behind = Endpoint()
    engine = Engine(location, Keeping(endpoint, "a"), Lagging(behind, "b"))
    behind.fail("commit", *[DOWN] * 100)
    engine.run(0, [0])
    for each in (endpoint, behind):
        each.calls.clear()
    assert engine.coordinator.finish(1.0) == []
    assert endpoint.called("act")[-1] == (["completed"],)
    assert behind.called("act") == [], "its state speaks of rows that are not there"
    assert engine.log.facts.decided[0].state == {"a": ["completed"]}
    assert engine.coordinator.close(1.0) == []
    assert endpoint.called("close") == behind.called("close") == [()]


def test_finish_does_nothing_after_a_failure(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Keeping(endpoint))
    endpoint.fail("commit", *[DOWN] * 3)
    with pytest.raises(CommitError):
        engine.run(0, [0])
    endpoint.calls.clear()
    engine.coordinator.finish(1.0)
    assert endpoint.calls == []


@pytest.mark.parametrize("sweep", [False, True])
def test_close_undoes_what_a_batch_that_was_cut_off_prepared_if_it_is_told_to(
    location: str, endpoint: Endpoint, sweep: bool
) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    engine.run(0, [0])
    endpoint.prepared["cut off"] = [1]
    assert engine.coordinator.close(1.0, sweep=sweep) == []
    assert ("cut off" in endpoint.prepared) is not sweep
    assert endpoint.called("close") == [()]


def test_close_keeps_what_is_decided(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("commit", *[DOWN] * 3)
    with pytest.raises(CommitError):
        engine.run(0, [0])
    engine.coordinator.close(1.0, sweep=True)
    assert len(endpoint.prepared) == 1
    engine.restart()
    assert endpoint.rows == [0]


def test_a_fenced_run_sweeps_nothing_when_it_closes(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    zombie = engine.coordinator
    engine.restart()
    endpoint.prepared["its successor's"] = [1]
    zombie.close(1.0, sweep=True)
    assert endpoint.prepared == {"its successor's": [1]}


@pytest.mark.parametrize("trouble", [DOWN, RowError("never")], ids=["away", "permanent"])
def test_a_sweep_that_fails_at_the_end_is_left_to_the_next_start(
    location: str, endpoint: Endpoint, trouble: Exception
) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.prepared["cut off"] = [1]
    endpoint.fail("recover", trouble)
    assert engine.coordinator.close(1.0, sweep=True) == []
    assert endpoint.called("close") == [()]
    engine.restart()
    assert endpoint.prepared == {}
