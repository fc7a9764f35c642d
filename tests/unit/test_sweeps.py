"""What a loop does beside committing: sweeps, notifications, and noticing that it is fenced (D9, rules 7 and 8)."""

from __future__ import annotations

import copy
import logging
from typing import Any

import pytest

from holdfast.core.retry import Retry
from holdfast.errors import FencedError, RowError, SinkError
from tests.unit.inprocess import Endpoint, Engine, PreparingSink

DOWN = ConnectionError("the endpoint is down")
PATIENT = Retry(for_=100, first_wait=1, longest_wait=8)


@pytest.fixture
def other() -> Endpoint:
    return Endpoint()


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
