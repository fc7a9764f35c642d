"""The loop of one sink: order, retries, giving up, and what it leaves for the operator (T6, D4, D9, D10, rule 13)."""

from __future__ import annotations

import copy
import errno
import json
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.delivery import LONGEST_REST
from holdfast.checkpoint.storage import LocalStorage
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.core.model import Outcome
from holdfast.core.retry import Retry
from holdfast.errors import CommitError, FencedError, LostError, RowError, SinkError
from tests.unit.inprocess import Endpoint, Engine, PreparingSink, SendingSink

DOWN = ConnectionError("the endpoint is down")
PATIENT = Retry(for_=100, first_wait=1, longest_wait=8)


@pytest.fixture
def other() -> Endpoint:
    return Endpoint()


@pytest.fixture
def marks(tmp_path: Path) -> FileCheckpointCommitter:
    return FileCheckpointCommitter(str(tmp_path / "marks"))


def finding(engine: Engine, name: str) -> dict[str, Any]:
    return json.loads(engine.storage.read(f"lost/{name}.json"))["record"]


class Overlapping(PreparingSink):
    overlaps = True


# -- retries ----------------------------------------------------------------------------------------------------------


def test_a_transient_failure_is_retried_for_as_long_as_retry_says_then_told_on_disk_too(
    location: str, endpoint: Endpoint
) -> None:
    engine = Engine(location, PreparingSink(endpoint), retry=PATIENT)
    endpoint.fail("commit", *[DOWN] * 50)
    began = engine.now
    with pytest.raises(
        CommitError, match=r"checkpoint 0 .*'prepared'.* attempts over 103 s.*endpoint is down"
    ) as caught:
        engine.run(0, [1, 2])
    assert engine.waits == [1, 2, 4, *[8] * 12]
    assert engine.now - began == 103, "not less than asked for, and at most one wait more"
    assert isinstance(caught.value.__cause__, SinkError)
    assert caught.value.__cause__.__cause__ is DOWN
    told = finding(engine, "0.prepared")
    assert (told["checkpoint_id"], told["sink"], told["error"], told["action"]) == (
        0,
        "prepared",
        "CommitError",
        "restart",
    )
    assert told["problem"] == str(caught.value)
    assert [(piece["subtask"], piece["rows"]) for piece in told["lost"]] == [(0, 2)]
    assert not told["certain"], "nothing says that rows are gone"
    endpoint.failures.clear()
    engine.restart()
    assert endpoint.rows == [1, 2]


def test_a_permanent_failure_stops_at_once_and_is_told_on_disk(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint), retry=PATIENT)
    endpoint.fail("commit", RowError("column 'at': year 10000 is too late for it"))
    with pytest.raises(RowError, match="year 10000"):
        engine.run(0, [1])
    assert engine.waits == []
    told = finding(engine, "0.prepared")
    assert (told["error"], told["action"]) == ("RowError", "fix")
    assert "year 10000" in told["problem"]
    assert engine.coordinator.deliveries[0].standing.doing == "stopped"


def test_what_a_sink_did_not_say_is_asked_again_like_a_failure(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("commit", Outcome.RETRY, Outcome.UNKNOWN)
    engine.run(0, [1])
    assert engine.waits == pytest.approx([0.1, 0.2])
    assert endpoint.rows == [1]


def test_each_checkpoint_has_a_retry_time_of_its_own(location: str, endpoint: Endpoint) -> None:
    """A flapping endpoint: never away for long, and never one attempt for everything."""
    engine = Engine(location, PreparingSink(endpoint), retry=Retry(for_=3.5, first_wait=1, longest_wait=1))
    for number in range(3):
        endpoint.fail("commit", DOWN, DOWN, DOWN, None)
        engine.run(number, [number])
    assert endpoint.rows == [0, 1, 2]


def test_upkeep_that_fails_does_not_use_up_the_retry_time_of_a_commit(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Overlapping(endpoint), retry=Retry(for_=100, first_wait=1, longest_wait=1))
    engine.run(0, [0])
    (delivery,) = engine.coordinator.deliveries
    endpoint.fail("complete", *[DOWN] * 95)
    engine.run(1, [1])
    for _ in range(94):
        engine.tick(1.0)
    assert delivery.standing.failures == 95
    endpoint.fail("commit", *[DOWN] * 10)
    engine.run(2, [2])
    for _ in range(20):
        engine.tick(1.0)
    assert engine.coordinator.failure is None
    assert endpoint.rows == [0, 1, 2]


def test_a_sink_that_may_lag_is_tried_for_ever_and_its_standing_says_since_when(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    engine = Engine(location, SendingSink(endpoint, marks), retry=PATIENT)
    endpoint.down = DOWN
    began = engine.now
    engine.run(0, [1])
    for _ in range(100):
        engine.tick(60.0)
    (delivery,) = engine.coordinator.deliveries
    assert engine.coordinator.failure is None
    assert engine.files("lost") == []
    standing = delivery.standing
    assert standing.doing == "waiting to try commit of checkpoint 0 again"
    assert (standing.since, standing.failures) == (began, 101)
    assert "the endpoint is down" in (standing.problem or "")
    endpoint.down = None
    engine.tick()
    assert endpoint.rows == [1]
    assert (delivery.standing.doing, delivery.standing.failures, delivery.problem) == ("idle", 0, None)


def test_a_slow_failure_of_a_sink_that_may_lag_is_followed_by_a_rest_of_the_same_length(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    class Slow(SendingSink):
        def send_values(self, values: Any, checkpoint_id: int, timestamp: int) -> bool:
            engine.now += takes
            return super().send_values(values, checkpoint_id, timestamp)

    engine = Engine(location, Slow(endpoint, marks))
    endpoint.down = DOWN
    takes = 20.0
    engine.run(0, [1])
    assert engine.coordinator.deliveries[0].step() == 20.0
    takes = 500.0
    engine.tick(20.0)
    assert engine.coordinator.deliveries[0].step() == LONGEST_REST


# -- sent, but not written down (D10) ---------------------------------------------------------------------------------


class FullDisk(LocalStorage):
    full = False

    def create(self, name: str, data: bytes) -> bool:
        if self.full and name.startswith("commits/"):
            raise OSError(errno.ENOSPC, "No space left on device", name)
        return super().create(name, data)


@pytest.mark.parametrize("lagging", [False, True])
def test_d10_a_commit_record_that_cannot_be_written_is_written_again_without_a_second_commit(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint, lagging: bool
) -> None:
    storage = FullDisk(location)
    sink: Any = SendingSink(endpoint, marks) if lagging else PreparingSink(endpoint)
    method = "send" if lagging else "commit"
    engine = Engine(location, sink, storage=storage, retry=PATIENT)
    storage.full = True
    (delivery,) = engine.coordinator.deliveries

    def has_space_again(seconds: float) -> None:
        storage.full = storage.full and delivery.standing.failures < 4
        engine._sleep(seconds)

    engine.coordinator._loops.sleep = has_space_again  # type: ignore[method-assign]
    engine.run(0, [1])
    while engine.pending:
        storage.full = delivery.standing.failures < 4
        engine.tick(60.0)
    assert delivery.outcomes == {0: Outcome.COMMITTED}
    assert endpoint.called(method) == [(0,)]
    assert endpoint.rows == [1]
    assert engine.files("commits") == [f"commits/0.{sink.name}.json"]
    engine.run(1, [2])
    assert endpoint.called(method) == [(0,), (1,)]


def test_d10_a_commit_record_that_can_never_be_written_ends_the_query_with_that_reason(
    location: str, endpoint: Endpoint
) -> None:
    storage = FullDisk(location)
    engine = Engine(location, PreparingSink(endpoint), storage=storage)
    storage.full = True
    with pytest.raises(CommitError, match="No space left on device"):
        engine.run(0, [1])
    assert endpoint.called("commit") == [(0,)]
    storage.full = False
    engine.restart()
    assert endpoint.rows == [1]


# -- fences, sweeps, notifications ------------------------------------------------------------------------------------


def test_a_fenced_loop_writes_no_finding_and_touches_no_endpoint(location: str, endpoint: Endpoint) -> None:
    """The checkpoint is another driver's business now: a finding would tell its operator nonsense."""
    engine = Engine(location, PreparingSink(endpoint), retry=PATIENT)

    def taken_over(seconds: float) -> None:
        copy.copy(engine).start(PreparingSink(endpoint))
        engine._sleep(seconds)

    engine.coordinator._loops.sleep = taken_over  # type: ignore[method-assign]
    endpoint.fail("commit", DOWN)
    with pytest.raises(FencedError):
        engine.run(0, [1])
    assert endpoint.called("commit") == [(0,), (0,)], "the second is its successor's"
    assert endpoint.rows == [1]
    assert engine.files("lost") == []


def test_d9_a_sweep_that_fails_at_a_batchs_start_is_logged_and_the_batch_goes_on(
    location: str, endpoint: Endpoint, other: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(location, PreparingSink(endpoint, "a"), PreparingSink(other, "b"))
    other.calls.clear()
    endpoint.fail("recover", DOWN)
    with caplog.at_level(logging.WARNING, "holdfast"):
        engine.run(0, [1])
    assert "sweep of sink a failed, it is tried again: sink 'a': sweep failed: ConnectionError" in caplog.text
    assert other.calls[0][0] == "recover", "the others are swept all the same"
    assert endpoint.rows == other.rows == [1]


def test_a_sweep_that_fails_for_good_stops_the_batch_before_its_tasks(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("recover", RowError("it cannot be undone"))
    with pytest.raises(RowError, match="cannot be undone"):
        engine.run(0, [1])
    assert endpoint.called("begin") == []


def test_d9_a_start_retries_its_sweep_and_gives_up_after_the_deadline(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint), retry=Retry(for_=3, first_wait=1, longest_wait=1))
    endpoint.fail("recover", DOWN, DOWN)
    engine.restart()
    assert engine.waits == [1, 1]
    endpoint.fail("recover", *[DOWN] * 4)
    with pytest.raises(SinkError, match="sink 'prepared': sweep failed: ConnectionError: the endpoint is down"):
        engine.restart()
    assert engine.waits == [1, 1, 1, 1, 1]
    endpoint.fail("recover", RowError("never"))
    with pytest.raises(RowError, match="never"):
        engine.restart()
    assert len(engine.waits) == 5, "at once"


def test_d9_sweeps_of_a_quiet_query_may_fail_for_as_long_as_they_like(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    engine.run(0, [1])
    endpoint.prepared["late"] = [9]
    endpoint.fail("recover", *[DOWN] * 50)
    for _ in range(50):
        engine.tick(60.0)
    assert engine.coordinator.failure is None
    assert "late" in endpoint.prepared
    engine.tick(60.0)
    assert endpoint.prepared == {}
    endpoint.fail("recover", RowError("never"))
    engine.tick(60.0)
    with pytest.raises(RowError, match="never"):
        engine.run(1, [2])


def test_a_checkpoint_that_a_loop_committed_before_the_batch_looked_is_notified_too(
    location: str, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loops also wake up by themselves."""
    engine = Engine(location, PreparingSink(endpoint))
    decide = engine.log.decide

    def decided(*arguments: Any, **options: Any) -> Any:
        result = decide(*arguments, **options)
        engine.coordinator.deliveries[0].step()
        assert endpoint.rows == [1]
        return result

    with monkeypatch.context() as patch:
        patch.setattr(engine.log, "decide", decided)
        engine.run(0, [1])
    assert endpoint.called("complete") == [(0,)]


# -- sinks that overlap -----------------------------------------------------------------------------------------------


def test_an_overlapping_sink_is_at_most_one_checkpoint_behind(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Overlapping(endpoint))
    endpoint.fail("commit", DOWN)
    engine.run(0, [0])
    assert engine.pending == [0], "the batch did not wait"
    seen: list[list[int]] = []
    endpoint.fail("commit", None, DOWN)
    engine.run(1, [1], on_task=lambda _: seen.append(engine.pending))
    assert seen == [[0]], "the tasks of 1 ran while 0 was not committed"
    assert engine.pending == [1], "but the batch did wait for 0"
    engine.run(2, [2])
    engine.coordinator.drain(10.0)
    assert endpoint.rows == [0, 1, 2]


def test_an_overlapping_sinks_failure_fails_the_next_batch(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Overlapping(endpoint))
    endpoint.fail("commit", *[DOWN] * 20)
    engine.run(0, [0])
    with pytest.raises(CommitError, match="checkpoint 0 is decided, but sink 'prepared' did not commit it"):
        engine.run(1, [1])
    assert engine.log.last_decided == 1, "decided meanwhile; both are kept"
    with pytest.raises(CommitError, match="checkpoint 0"):
        engine.run(2, [2])
    assert engine.log.last_decided == 1
    endpoint.failures.clear()
    engine.restart()
    assert endpoint.rows == [0, 1]


@pytest.mark.parametrize("by_timer", [False, True])
def test_what_an_overlapping_sink_lost_stops_the_query_and_is_told(
    location: str, endpoint: Endpoint, by_timer: bool
) -> None:
    engine = Engine(location, Overlapping(endpoint))
    endpoint.fail("commit", DOWN, LostError("its transaction is gone"))
    engine.run(0, [0])
    if by_timer:
        engine.tick()
        engine.tick()
        assert isinstance(engine.coordinator.failure, LostError)
    else:
        engine.run(1, [1])
    last = engine.log.last_decided
    with pytest.raises(LostError, match=r"its transaction is gone.*holdfast resolve .* 0 --produce-anyway"):
        engine.run(2, [2])
    assert engine.log.last_decided == last
    assert finding(engine, "0.prepared")["error"] == "LostError"
