"""The backlog of write-ahead sinks: its limits, its timer, and damage to it (W5, W6, rule 7, fault 13)."""

from __future__ import annotations

import copy
import itertools
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint import story
from holdfast.checkpoint.loops import Threads
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.core.states import Event, State, advance
from holdfast.errors import BacklogFullError, CommitError, ConfigError, FencedError, LostError, RecordError
from holdfast.testing.audit import audit
from tests.unit.inprocess import DAMAGES, Endpoint, Engine, PreparingSink, SendingSink, damage

DOWN = ConnectionError("the endpoint is down")


@pytest.fixture
def marks(tmp_path: Path) -> FileCheckpointCommitter:
    return FileCheckpointCommitter(str(tmp_path / "marks"))


@pytest.mark.parametrize(
    ("limits", "option"), [({"max_pending": 2}, "max_pending=2"), ({"max_pending_bytes": 1}, "max_pending_bytes=1")]
)
def test_w6_past_its_limits_the_query_fails_and_loses_nothing(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint, limits: dict[str, int], option: str
) -> None:
    engine = Engine(location, SendingSink(endpoint, marks, **limits))
    endpoint.down = DOWN
    sent = []
    with pytest.raises(BacklogFullError) as caught:
        for checkpoint_id in range(4):
            engine.run(checkpoint_id, [checkpoint_id])
            sent.append(checkpoint_id)
    message = str(caught.value)
    assert f"'sending' has {len(sent)} undelivered checkpoints" in message
    assert f"{option}; its last failure: sink 'sending': commit of checkpoint 0 failed: " in message
    assert "ConnectionError: the endpoint is down" in message
    assert "Nothing is lost: the rows are in the log under" in message
    assert "Repair the endpoint or raise max_pending" in message
    endpoint.down = None
    engine.restart()
    engine.run(len(sent), [len(sent)])
    assert endpoint.rows == [*sent, len(sent)]


@pytest.mark.parametrize("hangs", [False, True])
def test_w6_a_full_backlog_that_is_being_delivered_is_waited_for_and_one_that_hangs_is_not(
    location: str,
    marks: FileCheckpointCommitter,
    endpoint: Endpoint,
    monkeypatch: pytest.MonkeyPatch,
    hangs: bool,
) -> None:
    leave = threading.Event()

    class Slow(SendingSink):
        def send_values(self, values: Any, checkpoint_id: int, timestamp: int) -> bool:
            leave.wait(20 if hangs else 0.3)
            return super().send_values(values, checkpoint_id, timestamp)

    engine = Engine(location, SendingSink(endpoint, marks, max_pending=2))
    endpoint.down = DOWN
    engine.run(0, [0])
    engine.run(1, [1])
    endpoint.down = None
    if hangs:
        monkeypatch.setattr("holdfast.checkpoint.waiting.BACKLOG_PATIENCE", 0.2)
    engine.restart(Slow(endpoint, marks, max_pending=2, name="sending"), loops=Threads(), clock=time.time)
    if hangs:
        with pytest.raises(BacklogFullError, match="slow or hangs"):
            engine.run(2, [2])
    else:
        engine.run(2, [2])
        assert engine.coordinator.drain(10)
        assert endpoint.rows == [0, 1, 2]
    leave.set()
    engine.coordinator.close(5.0)


@pytest.mark.parametrize("option", ["max_pending", "max_pending_bytes"])
@pytest.mark.parametrize("value", [0, -1, True, 1.5, "10"])
def test_w6_limits_are_checked_when_the_sink_is_made(
    marks: FileCheckpointCommitter, endpoint: Endpoint, option: str, value: Any
) -> None:
    with pytest.raises(ConfigError, match=f"{option} must be a whole number of at least 1, or None"):
        SendingSink(endpoint, marks, **{option: value})
    SendingSink(endpoint, marks, **{option: None})


def test_the_committer_is_checked_when_the_sink_is_made(endpoint: Endpoint) -> None:
    with pytest.raises(ConfigError, match="committer must be a CheckpointCommitter, not str"):
        SendingSink(endpoint, "marks")  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [*DAMAGES, "missing"])
def test_a_damaged_log_file_stops_even_a_sink_that_may_lag(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint, how: str
) -> None:
    engine = Engine(location, SendingSink(endpoint, marks))
    endpoint.down = DOWN
    engine.run(0, [1, 2, 3])
    path = Path(location, engine.files("wal")[0])
    good = path.read_bytes()
    damage(path, how) if how != "missing" else path.unlink()
    # A file that is gone can be given up by `holdfast resolve`; a damaged one may still be mended.
    error = LostError if how == "missing" else RecordError
    with pytest.raises(error, match=f"{path} is (damaged|missing).*estore it from a copy of the checkpoint"):
        engine.restart()
    assert endpoint.rows == []
    path.write_bytes(good)
    endpoint.down = None
    engine.restart()
    assert audit([1, 2, 3], endpoint.rows).ok


def test_rule_7_the_timer_delivers_although_no_batch_comes(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    engine = Engine(location, SendingSink(endpoint, marks))
    endpoint.fail("send", DOWN, DOWN)
    engine.run(0, [1])
    engine.tick()
    assert endpoint.rows == []
    engine.tick()
    assert endpoint.rows == [1]
    calls = len(endpoint.calls)
    engine.tick()
    assert len(endpoint.calls) == calls, "nothing lags: nothing is asked"


def test_an_error_in_the_timer_fails_the_next_batch(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    engine = Engine(location, SendingSink(endpoint, marks))
    endpoint.down = DOWN
    engine.run(0, [1])
    path = Path(location, engine.files("wal")[0])
    sealed = path.read_bytes()
    path.unlink()
    engine.tick()
    path.write_bytes(sealed)
    engine.tick()
    with pytest.raises(LostError, match="is missing"):
        engine.run(1, [2])
    endpoint.down = None
    engine.restart()
    engine.run(1, [2])
    assert audit([1, 2], endpoint.rows).ok


def test_the_timer_of_a_fenced_driver_delivers_nothing(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    zombie = Engine(location, SendingSink(endpoint, marks))
    endpoint.fail("send", DOWN)
    zombie.run(0, [1])
    away = Endpoint()
    away.fail("send", DOWN)
    successor = copy.copy(zombie)
    successor.start(SendingSink(away, marks))
    zombie.tick()
    assert endpoint.rows == []
    with pytest.raises(FencedError):
        zombie.run(1, [2])


def test_every_mix_of_outages_delivers_every_row_once_and_in_order(location: str, tmp_path: Path) -> None:
    for number, plan in enumerate(itertools.product([None, False], repeat=3)):
        endpoint = Endpoint()
        sink = SendingSink(endpoint, FileCheckpointCommitter(str(tmp_path / f"m{number}")))
        engine = Engine(f"{location}{number}", sink)
        endpoint.fail("send", *plan)
        for checkpoint_id in range(3):
            engine.run(checkpoint_id, [checkpoint_id])
        while engine.pending:
            engine.tick()
        assert endpoint.rows == [0, 1, 2]


def test_t6_a_sink_that_may_not_lag_still_fails_loudly_beside_one_that_may(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    strict = Endpoint()
    engine = Engine(location, PreparingSink(strict), SendingSink(endpoint, marks))
    strict.fail("commit", *[DOWN] * 3)
    with pytest.raises(CommitError):
        engine.run(0, [1])
    engine.restart()
    assert strict.rows == endpoint.rows == [1]


def test_the_timer_does_not_wait_for_a_batch_that_is_delivering(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    """Else a slow endpoint would have two deliveries of the same checkpoint at once, or a stuck timer."""
    entered, leave = threading.Event(), threading.Event()
    inside: list[int] = []

    class Slow(SendingSink):
        def send_values(self, values: Any, checkpoint_id: int, timestamp: int) -> bool:
            inside.append(checkpoint_id)
            entered.set()
            assert leave.wait(60)
            return super().send_values(values, checkpoint_id, timestamp)

    engine = Engine(location, Slow(endpoint, marks), loops=Threads(), clock=time.time)
    engine.run(0, [1])
    assert entered.wait(60)
    timer = threading.Thread(target=engine.coordinator.tick)
    timer.start()
    timer.join(60)
    assert not timer.is_alive()
    assert (inside, endpoint.rows) == ([0], [])
    leave.set()
    assert engine.coordinator.drain(10)
    assert (inside, endpoint.rows) == ([0], [1])
    engine.coordinator.close(5.0)


def test_an_endpoint_that_fails_slowly_is_given_a_rest(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    """A connection that times out may not slow every batch; after the rest the backlog follows in order."""
    now = [1000.0]

    class Slow(SendingSink):
        def send_values(self, values: Any, checkpoint_id: int, timestamp: int) -> bool:
            now[0] += 1
            return super().send_values(values, checkpoint_id, timestamp)

    engine = Engine(location, Slow(endpoint, marks, max_pending=3), clock=lambda: now[0])
    endpoint.down = DOWN
    for checkpoint_id in range(3):
        engine.run(checkpoint_id, [checkpoint_id])
    assert len(endpoint.called("send")) == 1
    with pytest.raises(BacklogFullError, match="the endpoint is down"):
        engine.run(3, [3])
    endpoint.down = None
    now[0] += 10
    engine.tick()
    assert endpoint.rows == [0, 1, 2]


def test_what_a_restart_finds_is_decided_and_what_waits_in_this_run_is_lagging(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves: list[tuple[State, Event]] = []

    def told(state: State, event: Event) -> State:
        moves.append((state, event))
        return advance(state, event)

    monkeypatch.setattr(story, "advance", told)
    engine = Engine(location, SendingSink(endpoint, marks))
    endpoint.down = DOWN
    engine.run(0, [0])
    endpoint.down = None
    engine.tick()
    assert (State.LAGGING, Event.COMMIT) in moves
    endpoint.down = DOWN
    engine.run(1, [1])
    endpoint.down = None
    moves.clear()
    engine.restart()
    engine.run(2, [2])
    assert endpoint.rows == [0, 1, 2]
    assert set(moves) == {(State.DECIDED, Event.COMMIT)}
