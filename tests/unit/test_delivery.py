"""The loop of one sink: order, retries, giving up, and what it leaves for the operator (T6, D4, D9, D10, rule 13)."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.delivery import LONGEST_REST
from holdfast.checkpoint.storage import LocalStorage
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.core.model import Outcome
from holdfast.core.retry import Retry
from holdfast.errors import CommitError, RowError, SinkError
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


# -- the end ----------------------------------------------------------------------------------------------------------


def test_a_loop_that_is_cut_off_says_nothing_of_the_job_that_was_ended_and_begins_no_other(
    location: str, endpoint: Endpoint, marks: FileCheckpointCommitter, caplog: pytest.LogCaptureFixture
) -> None:
    engine = Engine(location, SendingSink(endpoint, marks))
    (delivery,) = engine.coordinator.deliveries
    real, sends = engine.sinks[0].commit, []

    def commit(*arguments: Any) -> Outcome | None:
        sends.append(arguments)
        delivery.cut_off()  # the run ends while this is under way, and so does the job
        raise RuntimeError("Job 45 cancelled\n\tat org.apache.spark.Scheduler")

    engine.sinks[0].commit = commit  # type: ignore[method-assign]
    engine.run(0, [1])
    engine.run(1, [2])
    assert len(sends) == 1 and delivery.failure is None and "cancelled" not in caplog.text
    engine.sinks[0].commit = real  # type: ignore[method-assign]
    engine.restart()
    assert endpoint.rows == [1, 2], "the next start delivers it"


def test_the_words_of_a_java_error_are_told_without_its_trace(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    java = "An error occurred while calling o1.collect.\n: java.io.IOException: no\n\tat a.b(C.java:1)\n\t... 9 more\n"
    endpoint.fail("commit", *[RuntimeError(java)] * 50)
    with pytest.raises(CommitError, match=r"RuntimeError: An error .*\n: java.io.IOException: no\. Nothing") as caught:
        engine.run(0, [1])
    assert "C.java" not in str(caught.value) and "9 more" not in str(caught.value)


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


def test_maintenance_that_fails_does_not_use_up_the_retry_time_of_a_commit(location: str, endpoint: Endpoint) -> None:
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
