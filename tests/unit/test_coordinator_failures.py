"""The driver's loop when sinks, storage or another driver fail it (T2, T6, S6)."""

from __future__ import annotations

import pytest

from holdfast.checkpoint.storage import LocalStorage
from holdfast.core.model import Outcome
from holdfast.errors import ConfigError, FencedError, LostError, RowError, SinkError
from tests.unit.inprocess import Endpoint, Engine, PreparingSink


@pytest.fixture
def other() -> Endpoint:
    return Endpoint()


def test_an_outcome_that_is_none_of_ours_is_the_authors_error(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("commit", True)
    with pytest.raises(ConfigError, match=r"sink 'prepared': commit must return an Outcome or None, not True"):
        engine.run(0, [1])
    engine.restart()
    assert endpoint.rows == [1]


def test_a_lost_transaction_is_loud_and_its_decision_stays(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("commit", Outcome.LOST)
    with pytest.raises(LostError, match=r"'prepared'.*checkpoint 0 is gone \(3 rows in 2 subtasks.*holdfast resolve"):
        engine.run(0, [1, 2], [3])
    assert engine.waits == []
    assert engine.files("decisions") == ["decisions/0.0.json"]


def test_a_driver_fenced_before_its_decision_undoes_its_own_work_only(location: str, endpoint: Endpoint) -> None:
    zombie = Engine(location, PreparingSink(endpoint))

    def take_over(_: int) -> None:
        Engine(location, PreparingSink(endpoint))

    with pytest.raises(FencedError, match="taken over by another driver"):
        zombie.run(0, [1], on_task=take_over)
    assert zombie.log.last_decided is None
    assert endpoint.called("aborted") == [(0,)]
    assert endpoint.rows == []


class _Unanswered(LocalStorage):
    """Loses the answer of every decision, and cannot be read afterwards."""

    broken = False

    def create(self, name: str, data: bytes) -> bool:
        result = super().create(name, data)
        if name.startswith("decisions/") and self.broken:
            raise TimeoutError("no answer")
        return result

    def read(self, name: str) -> bytes:
        if self.broken and name.startswith("decisions/"):
            raise TimeoutError("no answer")
        return super().read(name)


def test_t2_when_nobody_knows_whether_it_is_decided_nothing_is_cleaned_up(location: str, endpoint: Endpoint) -> None:
    storage = _Unanswered(location)
    engine = Engine(location, PreparingSink(endpoint), storage=storage)
    storage.broken = True
    with pytest.raises(TimeoutError):
        engine.run(0, [1, 2])
    assert len(endpoint.prepared) == 1, "it may be decided: undoing it would lose its rows"
    assert endpoint.called("aborted") == []
    storage.broken = False
    engine.restart()
    assert endpoint.rows == [1, 2]


def test_t8_one_sink_that_cannot_commit_does_not_keep_the_others_from_it(
    location: str, endpoint: Endpoint, other: Endpoint
) -> None:
    engine = Engine(location, PreparingSink(endpoint, "a"), PreparingSink(other, "b"))
    endpoint.fail("commit", RowError("a row that is never taken"))
    with pytest.raises(RowError, match="never taken"):
        engine.run(0, [1, 2])
    assert other.rows == [1, 2], "it is decided: what b prepared must not time out behind a"
    engine.restart()
    assert endpoint.rows == other.rows == [1, 2]


def test_every_sink_is_closed_even_if_one_fails_to(location: str, endpoint: Endpoint, other: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint, "a"), PreparingSink(other, "b"))
    other.fail("close", RuntimeError("b does not close"))
    with pytest.raises(SinkError, match="sink 'b': close failed: RuntimeError: b does not close"):
        engine.coordinator.close(0.0)
    engine.coordinator.close(0.0)
    assert endpoint.called("close") == other.called("close") == [()]


def test_a_start_that_fails_closes_what_it_opened_and_says_why(
    location: str, endpoint: Endpoint, other: Endpoint
) -> None:
    other.fail("open", *[ConnectionError("b is down")] * 3)
    endpoint.fail("close", RuntimeError("and a does not close"))
    with pytest.raises(SinkError, match="sink 'b': start failed: ConnectionError: b is down") as caught:
        Engine(location, PreparingSink(endpoint, "a"), PreparingSink(other, "b"))
    assert endpoint.called("close") == [()]
    assert "and a does not close" in caught.value.__notes__[0]
    assert isinstance(caught.value.__cause__, ConnectionError)
