"""Before the decision: tasks that run again, and prepared work that is asked for once more (rule 14, D3, D9)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.history import checkpoints
from holdfast.checkpoint.prepare import COULD_BE_GONE
from holdfast.core.retry import Retry
from holdfast.errors import FencedError, NotPreparedError, RowError, SinkError
from holdfast.testing.audit import audit
from tests.unit.inprocess import Endpoint, Engine, PreparingSink

DOWN = ConnectionError("the endpoint is down")
PATIENT = Retry(for_=10, first_wait=1, longest_wait=4)


@pytest.fixture
def other() -> Endpoint:
    return Endpoint()


class Asked(PreparingSink):
    """Says how often it was asked, and forgets what it is told to."""

    def __init__(self, endpoint: Endpoint, name: str = "asked", *, timeout: float | None = None) -> None:
        super().__init__(endpoint, name, timeout=timeout)
        self.asked: list[int] = []
        #: how many pieces it has lost by the time it is asked, once for each asking
        self.gone: list[int] = []

    def still_prepared(self, committables: Sequence[Any]) -> Sequence[Any]:
        self.endpoint.call("still_prepared", len(committables))
        self.asked.append(len(committables))
        gone = self.gone.pop(0) if self.gone else 0
        for lost in committables[:gone]:
            self.endpoint.prepared.pop(lost["token"])
        return committables[gone:]


# -- tasks run again --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["begin", "write", "pre_commit", "validate", "snapshot_state"])
def test_d9_an_endpoint_that_is_away_makes_the_tasks_run_again_after_an_abort_and_a_sweep(
    location: str, endpoint: Endpoint, other: Endpoint, method: str
) -> None:
    engine = Engine(location, PreparingSink(endpoint, "a"), PreparingSink(other, "b"), retry=PATIENT)
    for each in (endpoint, other):
        each.calls.clear()
    other.fail(method, DOWN)
    seen: list[bool] = []
    batch = engine.run(0, [1], [2], on_task=lambda _: seen.append(bool(endpoint.prepared)))
    assert batch.writes == 2
    assert engine.waits == [1]
    assert seen[-2:] == [False, True], "the second run of the first task met nothing of the first run"
    names = [call[0] for call in endpoint.calls]
    again = names.index("begin", names.index("aborted"))
    assert names[0] == "recover"
    assert "recover" in names[1:again], "swept in between"
    assert endpoint.called("aborted") == other.called("aborted") == [(0,)]
    assert len(engine.files("decisions")) == 1
    assert audit([1, 2], endpoint.rows).ok
    assert audit([1, 2], other.rows).ok
    assert engine.coordinator.failure is None


def test_tasks_run_again_until_retry_is_over_and_then_the_error_goes_up(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint), retry=PATIENT)
    endpoint.fail("write", *[DOWN] * 50)
    with pytest.raises(SinkError, match="write failed: ConnectionError: the endpoint is down") as caught:
        engine.run(0, [1])
    assert engine.waits == [1, 2, 4, 4]
    assert caught.value.__cause__ is DOWN
    assert endpoint.prepared == {}
    assert engine.files("decisions") == []
    (told,) = checkpoints(str(Path(location).parent))
    assert (told.status, "the endpoint is down" in (told.error or "")) == ("aborted", True)
    endpoint.failures.clear()
    engine.restart()
    engine.run(0, [1])
    assert audit([1], endpoint.rows).ok


def test_refused_rows_are_looked_for_once_and_the_error_goes_up_without_waiting(
    location: str, endpoint: Endpoint
) -> None:
    engine = Engine(location, PreparingSink(endpoint), retry=PATIENT)
    endpoint.fail("write", *[RowError("no such day")] * 50)
    batches: list[int] = []
    with pytest.raises(RowError, match=r"no such day\. In checkpoint 0 1 of its 1 rows"):
        engine.run(0, [1], on_task=batches.append)
    assert batches == [0, 0]
    assert engine.waits == []
    assert engine.files("decisions") == []


@pytest.mark.parametrize(
    "error",
    [KeyError("a bug"), SinkError("it refuses us", again=False), FencedError("another")],
    ids=lambda error: type(error).__name__,
)
def test_what_trying_again_cannot_help_goes_up_at_once(location: str, endpoint: Endpoint, error: Exception) -> None:
    engine = Engine(location, PreparingSink(endpoint), retry=PATIENT)
    endpoint.fail("write", error)
    batches: list[int] = []
    with pytest.raises((SinkError, FencedError), match=str(error.args[0])):
        engine.run(0, [1], on_task=batches.append)
    assert batches == [0]
    assert engine.waits == []


def test_a_sinks_own_error_may_ask_for_another_run(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint), retry=PATIENT)
    endpoint.fail("pre_commit", SinkError("sink 'prepared' (shop:5432): no answer in 30 s"))
    assert engine.run(0, [1]).writes == 2
    assert audit([1], endpoint.rows).ok


def test_a_start_waits_for_an_endpoint_that_is_away(location: str, endpoint: Endpoint) -> None:
    endpoint.fail("open", DOWN, DOWN)
    engine = Engine(location, PreparingSink(endpoint), retry=PATIENT)
    assert engine.waits == [1, 2]
    engine.run(0, [1])
    assert audit([1], endpoint.rows).ok


# -- prepared is asked for again --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("timeout", "seconds", "asked"),
    [(100.0, 79.0, False), (100.0, 81.0, True), (None, COULD_BE_GONE - 1, False), (None, COULD_BE_GONE + 1, True)],
)
def test_prepared_is_asked_for_again_only_when_it_could_be_gone(
    location: str, endpoint: Endpoint, timeout: float | None, seconds: float, asked: bool
) -> None:
    """Asking costs a round trip."""

    def slow(_: int) -> None:
        engine.now += seconds / 2

    sink = Asked(endpoint, timeout=timeout)
    engine = Engine(location, sink)
    engine.run(0, [1], [2], on_task=slow)
    assert sink.asked == ([2] if asked else [])
    assert audit([1, 2], endpoint.rows).ok


def test_prepared_is_asked_for_last_of_all_and_only_where_there_is_something(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Asked(endpoint, timeout=0.0))
    endpoint.calls.clear()
    engine.run(0, [1])
    names = [call[0] for call in endpoint.calls]
    assert names[-4:] == ["snapshot_state", "still_prepared", "commit", "complete"]
    engine.run(1, [], [])
    assert len(endpoint.called("still_prepared")) == 1


def test_d3_what_is_gone_before_the_decision_is_aborted_and_run_again(
    location: str, endpoint: Endpoint, other: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Asked(endpoint, timeout=0.0)
    engine = Engine(location, sink, PreparingSink(other, "other"))
    sink.gone = [1]
    with caplog.at_level(logging.WARNING, "holdfast"):
        batch = engine.run(0, [1], [2])
    assert "checkpoint 0 is not decided, its tasks run again: sink 'asked' dropped 1 of 2 prepared" in caplog.text
    assert batch.writes == 2
    assert endpoint.called("aborted") == other.called("aborted") == [(0,)]
    assert engine.files("decisions") == ["decisions/0.0.json"]
    assert endpoint.prepared == other.prepared == {}, "nothing of the first run is left"
    assert audit([1, 2], endpoint.rows).ok
    assert audit([1, 2], other.rows).ok


def test_d3_what_is_gone_three_times_running_goes_up_and_nothing_is_decided(location: str, endpoint: Endpoint) -> None:
    sink = Asked(endpoint, timeout=0.0)
    engine = Engine(location, sink, retry=PATIENT)
    sink.gone = [1, 2, 1]
    with pytest.raises(NotPreparedError, match=r"dropped 1 of 2 .*Nothing is lost.*raise the endpoint's timeout"):
        engine.run(0, [1], [2])
    assert sink.asked == [2, 2, 2]
    assert engine.waits == [1, 2]
    assert engine.log.last_decided is None
    assert endpoint.prepared == {}
    engine.restart()
    engine.run(0, [1], [2])
    assert audit([1, 2], endpoint.rows).ok


def test_an_endpoint_that_cannot_be_asked_is_not_decided_for(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Asked(endpoint, timeout=0.0))
    endpoint.fail("still_prepared", DOWN)
    assert engine.run(0, [1]).writes == 2
    endpoint.fail("still_prepared", KeyError("a bug"))
    with pytest.raises(SinkError, match="looking for prepared work failed: KeyError"):
        engine.run(1, [2])
    assert engine.log.last_decided == 0
