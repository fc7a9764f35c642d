"""Sinks that commit a checkpoint while the tasks of the next one run (rule 13; step 5 of the driver's loop)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.history import checkpoints
from holdfast.errors import CommitError, LostError
from tests.unit.inprocess import Endpoint, Engine, PreparingSink
from tests.unit.test_loops import eventually

DOWN = ConnectionError("the endpoint is down")


class Overlapping(PreparingSink):
    overlaps = True


def finding(engine: Engine, name: str) -> dict[str, Any]:
    return json.loads(engine.storage.read(f"lost/{name}.json"))["record"]


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


def test_the_history_says_complete_when_the_late_commit_is_done(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, Overlapping(endpoint), PreparingSink(Endpoint(), "prompt"))
    endpoint.fail("commit", DOWN)
    engine.run(0, [0])
    (told,) = checkpoints(str(Path(location).parent))
    assert told.status == "lagging"
    assert {name: about["outcome"] for name, about in told.sinks.items()} == {
        "prepared": "pending",
        "prompt": "committed",
    }
    assert engine.coordinator.drain(10.0)
    (told,) = checkpoints(str(Path(location).parent))
    assert told.status == "complete"
    assert {about["outcome"] for about in told.sinks.values()} == {"committed"}
    assert (told.rows, told.restored) == (1, False)


# -- in threads -------------------------------------------------------------------------------------------------------


class Gated(PreparingSink):
    """Commits when it is let, one at a time."""

    overlaps = True

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, "overlapping")
        self.let = threading.Semaphore(0)
        self.inside: list[int] = []

    def commit(self, checkpoint_id: int, *arguments: Any) -> Any:
        self.inside.append(checkpoint_id)
        assert self.let.acquire(timeout=60)
        return super().commit(checkpoint_id, *arguments)


def test_an_overlapping_sink_commits_while_the_tasks_of_the_next_batch_run_and_never_further_behind(
    location: str, threaded: Callable[..., Engine], endpoint: Endpoint
) -> None:
    sink = Gated(endpoint)
    engine = threaded(location, sink)
    engine.run(0, [0])
    seen: list[tuple[list[int], list[int]]] = []

    def while_tasks_run(_: int) -> None:
        eventually(lambda: bool(sink.inside))
        seen.append((list(sink.inside), list(endpoint.rows)))

    second = threading.Thread(target=engine.run, args=(1, [1]), kwargs={"on_task": while_tasks_run})
    second.start()
    eventually(lambda: engine.log.last_decided == 1)
    second.join(0.3)
    assert second.is_alive(), "it waits for 0"
    assert seen == [([0], [])]
    sink.let.release()
    second.join(60)
    assert not second.is_alive()
    assert endpoint.rows == [0]
    sink.let.release(5)
    assert engine.coordinator.drain(10)
    assert endpoint.rows == [0, 1]


def test_an_overlapping_sinks_failure_reaches_the_batch_that_waits(
    location: str, threaded: Callable[..., Engine], endpoint: Endpoint
) -> None:
    sink = Gated(endpoint)
    sink.let.release(100)
    engine = threaded(location, sink)
    endpoint.fail("commit", *[DOWN] * 200)
    engine.run(0, [0])
    with pytest.raises(CommitError, match="checkpoint 0 is decided, but sink 'overlapping' did not commit"):
        engine.run(1, [1])


def test_an_overlapping_sinks_loss_is_noticed_on_the_timer(
    location: str, threaded: Callable[..., Engine], endpoint: Endpoint
) -> None:
    sink = Gated(endpoint)
    engine = threaded(location, sink)
    endpoint.fail("commit", LostError("its transaction is gone"))
    engine.run(0, [0])
    sink.let.release()

    def failed() -> bool:
        engine.coordinator.tick()
        return isinstance(engine.coordinator.failure, LostError)

    eventually(failed)
    assert engine.files("lost") == ["lost/0.overlapping.json"]
