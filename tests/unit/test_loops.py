"""Delivery loops in real threads: nobody waits for a sink but those who must (D2, rule 13)."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.loops import Threads
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.core.retry import Retry
from holdfast.errors import CommitError, SinkError, UndeliveredError
from tests.unit.inprocess import Endpoint, Engine, PreparingSink, SendingSink

DOWN = ConnectionError("the endpoint is down")


@pytest.fixture
def marks(tmp_path: Path) -> FileCheckpointCommitter:
    return FileCheckpointCommitter(str(tmp_path / "marks"))


@pytest.fixture
def release() -> Iterator[threading.Event]:
    """What a hanging endpoint hangs on; set after the test, so that no thread outlives it for long."""
    event = threading.Event()
    yield event
    event.set()


class Hanging(SendingSink):
    """Its endpoint takes the rows and never answers."""

    entered: threading.Event
    release: threading.Event

    def send_values(self, values: Any, checkpoint_id: int, timestamp: int) -> bool:
        self.entered.set()
        self.release.wait(60)
        return super().send_values(values, checkpoint_id, timestamp)


@pytest.fixture
def hanging(marks: FileCheckpointCommitter, release: threading.Event) -> Hanging:
    sink = Hanging(Endpoint(), marks, "hanging")
    sink.entered, sink.release = threading.Event(), release
    return sink


def eventually(condition: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def took(function: Callable[[], Any]) -> float:
    began = time.monotonic()
    function()
    return time.monotonic() - began


# -- an endpoint that hangs -------------------------------------------------------------------------------------------


def test_d2_a_hanging_endpoint_delays_no_decision_and_no_other_sink(
    location: str, threaded: Callable[..., Engine], hanging: Hanging, endpoint: Endpoint
) -> None:
    engine = threaded(location, hanging, PreparingSink(endpoint))
    engine.run(0, [0])
    assert hanging.entered.wait(60)
    for number in range(1, 6):
        assert took(lambda n=number: engine.run(n, [n])) < 20  # type: ignore[misc]
    assert endpoint.rows == list(range(6))
    assert engine.log.last_decided == 5
    assert engine.coordinator.failure is None
    engine.coordinator.tick()
    standing = engine.coordinator.deliveries[0].standing
    assert standing.doing == "committing checkpoint 0"
    assert 0 < time.time() - standing.since < 60
    assert engine.coordinator.drain(0.1, only_prompt=True)
    assert not engine.coordinator.drain(0.1)


def test_d2_the_end_of_a_run_waits_for_a_hanging_endpoint_no_longer_than_it_says(
    location: str, threaded: Callable[..., Engine], hanging: Hanging, endpoint: Endpoint
) -> None:
    """And it leaves alone the sink that is in use, names it, and closes the others."""
    closed: list[str] = []
    hanging.close = lambda: closed.append("hanging")  # type: ignore[method-assign]
    engine = threaded(location, hanging, PreparingSink(endpoint))
    engine.run(0, [1])
    assert hanging.entered.wait(60)
    coordinator = engine.coordinator
    found: list[list[str]] = []
    assert took(lambda: found.append(coordinator.finish(0.3))) < 20
    assert took(lambda: found.append(coordinator.close(0.3, sweep=True))) < 20
    assert found == [["hanging"], ["hanging"]]
    assert endpoint.called("close") == [()]
    assert closed == []
    left = coordinator.undelivered()
    assert "sink 'hanging': checkpoint 0, 1 rows; it is still at work" in str(left)


def test_d2_the_end_of_a_run_does_not_wait_twice_when_a_batch_is_under_way_too(
    location: str, threaded: Callable[..., Engine], hanging: Hanging, endpoint: Endpoint
) -> None:
    engine = threaded(location, hanging, PreparingSink(endpoint))
    engine.run(0, [1])
    assert hanging.entered.wait(60)
    entered, leave = threading.Event(), threading.Event()

    def long(_: int) -> None:
        entered.set()
        leave.wait(60)

    def batch() -> None:
        with pytest.raises(UndeliveredError):
            engine.run(1, [2], on_task=long)

    thread = threading.Thread(target=batch)
    thread.start()
    assert entered.wait(60)
    assert 4 <= took(lambda: engine.coordinator.finish(4.0)) < 7.9
    leave.set()
    thread.join(60)
    assert not thread.is_alive()


def test_d2_another_pipeline_of_the_process_starts_and_runs_meanwhile(
    location: str, threaded: Callable[..., Engine], hanging: Hanging, endpoint: Endpoint
) -> None:
    threaded(location, hanging).run(0, [1])
    assert hanging.entered.wait(60)
    other = threaded(location + "2", PreparingSink(endpoint), pipeline="bills")
    other.run(0, [2])
    assert endpoint.rows == [2]
    assert other.coordinator.close(5.0) == []


def test_d2_a_start_does_not_wait_for_a_sink_that_may_lag(
    location: str, marks: FileCheckpointCommitter, hanging: Hanging, endpoint: Endpoint
) -> None:
    down = Endpoint()
    down.down = DOWN
    engine = Engine(location, SendingSink(down, marks, "hanging"), PreparingSink(endpoint))
    engine.run(0, [0])
    engine.options.update(loops=Threads(), clock=time.time)
    assert took(lambda: engine.start(hanging, PreparingSink(endpoint))) < 20
    assert hanging.entered.wait(60)
    engine.run(1, [1])
    assert endpoint.rows == [0, 1]
    assert engine.coordinator.close(0.2) == ["hanging"]


def test_d2_a_backlog_does_not_go_before_another_sinks_commit(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a busy disk is not what is measured

    class Slow(SendingSink):
        def send_values(self, values: Any, checkpoint_id: int, timestamp: int) -> bool:
            time.sleep(0.05)
            return super().send_values(values, checkpoint_id, timestamp)

    backlog = Endpoint()
    engine = Engine(location, SendingSink(backlog, marks, "slow"), PreparingSink(endpoint))
    backlog.down = DOWN
    for number in range(60):
        engine.run(number, [number])
    assert len(engine.pending) == 60
    backlog.down = None
    engine.options.update(loops=Threads(), clock=time.time)
    engine.start(Slow(backlog, marks, "slow"), PreparingSink(endpoint))
    times = [took(lambda n=number: engine.run(n, [n])) for number in range(60, 65)]  # type: ignore[misc]
    assert len(engine.pending) > 5, "the backlog is still there: this was beside it"
    assert sorted(times)[2] < 0.5
    assert endpoint.rows == list(range(65))
    assert engine.coordinator.drain(20)
    assert backlog.rows == list(range(65)), "in order"
    engine.coordinator.close(5.0)


# -- what the batch waits for -----------------------------------------------------------------------------------------


def test_the_batch_does_not_wait_for_a_loop_that_rests_before_its_notification(
    location: str, threaded: Callable[..., Engine], endpoint: Endpoint
) -> None:
    """One sink commits long before the other; its loop has gone to sleep when the checkpoint is complete."""

    class Later(PreparingSink):
        def commit(self, *arguments: Any) -> Any:
            time.sleep(0.1)
            return super().commit(*arguments)

    other = Endpoint()
    engine = threaded(location, PreparingSink(endpoint, "a"), Later(other, "b"))
    times = [took(lambda n=number: engine.run(n, [n])) for number in range(5)]  # type: ignore[misc]
    assert endpoint.called("complete") == other.called("complete") == [(n,) for n in range(5)]
    assert sorted(times)[2] < 1.0


# -- threads come and go ----------------------------------------------------------------------------------------------


def test_stopping_ends_a_batch_that_waits_for_a_commit(
    location: str, threaded: Callable[..., Engine], endpoint: Endpoint
) -> None:
    """Else its thread would wait for ever for loops that are gone."""

    class Stuck(PreparingSink):
        def commit(self, *arguments: Any) -> Any:
            raise DOWN

    engine = threaded(location, Stuck(endpoint), retry=Retry(for_=100, first_wait=5))
    raised: list[BaseException] = []

    def batch() -> None:
        try:
            engine.run(0, [1])
        except UndeliveredError as error:
            raised.append(error)

    thread = threading.Thread(target=batch)
    thread.start()
    eventually(lambda: engine.coordinator.deliveries[0].standing.failures > 0)
    assert engine.coordinator.close(5.0) == []
    thread.join(60)
    assert not thread.is_alive()
    assert "'prepared': checkpoint 0, 1 rows" in str(raised[0])


def test_stopping_ends_a_batch_that_would_run_its_tasks_again(
    location: str, threaded: Callable[..., Engine], endpoint: Endpoint
) -> None:
    engine = threaded(location, PreparingSink(endpoint), retry=Retry(for_=100, first_wait=20, longest_wait=20))
    endpoint.fail("write", *[DOWN] * 3)
    raised: list[BaseException] = []

    def batch() -> None:
        try:
            engine.run(0, [1])
        except SinkError as error:
            raised.append(error)

    thread = threading.Thread(target=batch)
    thread.start()
    eventually(lambda: bool(endpoint.called("aborted")))
    engine.coordinator.close(5.0)
    thread.join(60)
    assert not thread.is_alive()
    assert len(raised) == 1
    assert len(endpoint.called("write")) == 1, "it does not run them in a hurry instead"


def test_a_loop_that_dies_is_a_failure_and_not_a_silence(
    location: str, threaded: Callable[..., Engine], endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    died: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda about: died.append(about.thread.name))
    engine = threaded(location, PreparingSink(endpoint))
    endpoint.fail("commit", SystemExit("somebody's exit"))
    with pytest.raises(CommitError, match=r"the delivery loop of sink 'prepared' failed: SystemExit"):
        engine.run(0, [1])
    engine.coordinator.close(5.0)
    assert died == ["holdfast-orders-prepared"]


def test_the_threads_are_named_daemons_and_end_with_the_run(
    location: str, threaded: Callable[..., Engine], endpoint: Endpoint
) -> None:
    engine = threaded(location, PreparingSink(endpoint))
    mine = [thread for thread in threading.enumerate() if thread.name == "holdfast-orders-prepared"]
    assert [thread.daemon for thread in mine] == [True]
    assert engine.coordinator.close(5.0) == []
    assert not mine[0].is_alive()
