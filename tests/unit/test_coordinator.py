"""The driver's loop over two-phase sinks (T1-T9, S6), with an engine in this process."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.history import checkpoints
from holdfast.core.model import Outcome
from holdfast.core.retry import Retry
from holdfast.errors import CommitError, ConfigError, RowError, SinkError
from holdfast.testing.audit import audit
from tests.unit.inprocess import Endpoint, Engine, PreparingSink


@pytest.fixture
def other() -> Endpoint:
    return Endpoint()


def stored(engine: Engine, name: str) -> dict[str, Any]:
    return json.loads(engine.storage.read(name))["record"]


def test_t1_a_batch_goes_through_begin_write_pre_commit_and_commit(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.calls.clear()
    engine.run(0, [1, 2, 3], [4])
    names = [call[0] for call in endpoint.calls]
    task = ["begin", "write", "write", "pre_commit"]
    assert names == [
        "recover",
        *task,
        "begin",
        "write",
        "pre_commit",
        "validate",
        "snapshot_state",
        "commit",
        "complete",
    ]
    assert sorted(endpoint.rows) == [1, 2, 3, 4]


@pytest.mark.contract("P7")
def test_an_empty_partition_opens_no_transaction_and_an_empty_batch_is_decided(
    location: str, endpoint: Endpoint
) -> None:
    """P7; and the batch counts as a checkpoint, so that Spark and the log stay together."""
    engine = Engine(location, PreparingSink(endpoint))
    engine.run(0, [1], [], [2])
    assert endpoint.called("begin") == [(0, 0), (0, 2)]
    engine.run(1, [], [])
    assert engine.log.last_decided == 1
    assert engine.pending == []
    assert endpoint.called("complete") == [(0,), (1,)]


def test_t8_all_sinks_share_one_decision(location: str, endpoint: Endpoint, other: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint, "a"), PreparingSink(other, "b"))
    engine.run(0, [1, 2], [3])
    assert engine.files("decisions") == ["decisions/0.0.json"]
    decision = stored(engine, "decisions/0.0.json")
    assert [(c["sink"], c["subtask"]) for c in decision["committables"]] == [("a", 0), ("b", 0), ("a", 1), ("b", 1)]
    assert engine.files("commits") == ["commits/0.a.json", "commits/0.b.json"]
    assert sorted(endpoint.rows) == sorted(other.rows) == [1, 2, 3]


@pytest.mark.contract("S6")
@pytest.mark.parametrize("method", ["begin", "write", "pre_commit", "validate", "snapshot_state"])
def test_t5_a_failure_before_the_decision_aborts_all_sinks(
    location: str, endpoint: Endpoint, other: Endpoint, method: str
) -> None:
    """S6: nothing stays prepared, every sink is told once, and the next attempt starts clean."""
    engine = Engine(location, PreparingSink(endpoint, "a"), PreparingSink(other, "b"))
    other.fail(method, RuntimeError(f"{method} failed"))
    with pytest.raises(SinkError, match=f"sink 'b': .* failed: RuntimeError: {method} failed") as caught:
        engine.run(0, [1, 2], [3])
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert engine.waits == [], "it looks like a bug of the sink: running the tasks again would not help"
    assert engine.files("decisions") == []
    assert endpoint.prepared == other.prepared == {}
    assert endpoint.rows == other.rows == []
    assert endpoint.called("aborted") == other.called("aborted") == [(0,)]
    assert endpoint.called("complete") == []
    engine.restart()
    engine.run(0, [1, 2], [3])
    assert audit([1, 2, 3], endpoint.rows).ok
    assert audit([1, 2, 3], other.rows).ok


def test_t5_a_task_that_fails_takes_the_prepared_ones_with_it(location: str, endpoint: Endpoint) -> None:
    def fail_in_the_second(subtask: int) -> None:
        if subtask == 1:
            raise RuntimeError("executor lost")

    engine = Engine(location, PreparingSink(endpoint))
    with pytest.raises(RuntimeError, match="executor lost"):
        engine.run(0, [1], [2], on_task=fail_in_the_second)
    assert endpoint.prepared == {}
    assert endpoint.called("aborted") == [(0,)]
    assert checkpoints(str(Path(location).parent))[0].status == "aborted"


def test_errors_while_aborting_are_attached_and_never_hide_the_first(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("write", RuntimeError("the cause"))
    endpoint.fail("abort", RuntimeError("abort failed too"))
    endpoint.fail("aborted", RuntimeError("so did the notification"))
    with pytest.raises(SinkError, match="the cause") as caught:
        engine.run(0, [1])
    notes = "\n".join(caught.value.__notes__)
    assert "abort failed too" in notes
    assert "so did the notification" in notes


def test_a_refusal_by_validate_comes_before_the_decision_and_sees_all_subtasks(
    location: str, endpoint: Endpoint
) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("validate", RowError("two rows of one key"))
    with pytest.raises(RowError, match="two rows"):
        engine.run(0, [1], [2], [3])
    assert endpoint.called("validate") == [(0, 3)]
    assert engine.files("decisions") == []


def test_t6_a_failed_commit_is_retried_with_backoff_then_loud_and_the_restart_commits(
    location: str, endpoint: Endpoint
) -> None:
    engine = Engine(location, PreparingSink(endpoint), retry=Retry(for_=6, first_wait=1, longest_wait=3))
    endpoint.fail("commit", *[ConnectionError("refused")] * 4)
    with pytest.raises(CommitError, match=r"checkpoint 0 is decided.*'prepared'.*4 attempts.*refused.*start the query"):
        engine.run(0, [1, 2])
    assert engine.waits == [1, 2, 3]
    assert endpoint.called("aborted") == []
    assert engine.pending == [0]
    engine.restart()
    assert endpoint.rows == [1, 2], "committed at the start, before any batch"
    assert endpoint.called("complete") == [(0,)]
    replay = engine.run(0, [1, 2])
    assert (replay.writes, replay.drained) == (0, 1)
    assert audit([1, 2], endpoint.rows).ok


def test_t6_a_commit_that_works_the_second_time_is_enough(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("commit", ConnectionError("reset"), Outcome.UNKNOWN)
    engine.run(0, [1])
    assert endpoint.rows == [1]
    assert len(engine.waits) == 2


def test_t3_a_commit_done_before_is_counted_by_name(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    engine.log.record_commit = die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        engine.run(0, [1])
    assert endpoint.rows == [1]
    engine.restart()
    assert stored(engine, "commits/0.prepared.json")["outcome"] == "already_committed"
    assert endpoint.rows == [1]


def test_t4_at_start_decided_work_is_committed_and_the_rest_undone_before_rows_flow(
    location: str, endpoint: Endpoint
) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    endpoint.fail("commit", *[ConnectionError("down")] * 3)
    with pytest.raises(CommitError):
        engine.run(0, [1])
    endpoint.prepared["left over"] = [99]
    endpoint.calls.clear()
    engine.restart()
    assert endpoint.calls[:3] == [("open", 1), ("initialize_state", None), ("recover", 1, [0])]
    assert endpoint.prepared == {}
    assert endpoint.rows == [1]


def test_t7_a_transaction_near_its_timeout_is_warned_about(
    location: str, endpoint: Endpoint, caplog: pytest.LogCaptureFixture
) -> None:
    now = [1000.0]

    def slow(_: int) -> None:
        now[0] += seconds

    engine = Engine(location, PreparingSink(endpoint, timeout=10), clock=lambda: now[0])
    with caplog.at_level(logging.WARNING, "holdfast"):
        seconds = 7.9
        engine.run(0, [1], on_task=slow)
        assert caplog.messages == []
        seconds = 8.1
        engine.run(1, [2], on_task=slow)
    (message,) = caplog.messages
    assert "sink prepared have been open for 8.1 s" in message
    assert "over 80 % of the endpoint's timeout of 10.0 s: raise the timeout or make batches smaller" in message


def test_t9_operator_state_is_saved_with_the_decision_and_restored(location: str, endpoint: Endpoint) -> None:
    sink = PreparingSink(endpoint)
    engine = Engine(location, sink)
    assert endpoint.called("initialize_state") == [(None,)]
    sink.state = {"files": ["a"]}
    engine.run(0, [1])
    sink.state = {"files": ["a", "b"]}
    endpoint.fail("pre_commit", RuntimeError("task died"))
    with pytest.raises(SinkError, match="task died"):
        engine.run(1, [2])
    engine.restart(PreparingSink(endpoint))
    assert endpoint.called("initialize_state")[-1] == ({"files": ["a"]},), "the failed checkpoint's state is forgotten"


def test_t9_state_of_a_decided_checkpoint_survives_a_crash_before_its_commit(location: str, endpoint: Endpoint) -> None:
    sink = PreparingSink(endpoint)
    engine = Engine(location, sink)
    sink.state = [1, 2]
    endpoint.fail("commit", KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        engine.run(0, [1])
    engine.restart(PreparingSink(endpoint))
    assert endpoint.called("initialize_state")[-1] == ([1, 2],)


@pytest.mark.parametrize("state", [object(), {"t": (1, 2)}, {1: "a"}, float("nan")])
def test_t9_state_that_json_would_change_is_refused_before_the_decision(
    location: str, endpoint: Endpoint, state: Any
) -> None:
    sink = PreparingSink(endpoint)
    engine = Engine(location, sink)
    sink.state = state
    with pytest.raises(ConfigError, match=r"sink 'prepared': snapshot_state must return plain JSON data"):
        engine.run(0, [1])
    assert endpoint.prepared == {}
    assert endpoint.called("aborted") == [(0,)]
    assert engine.files("decisions") == []


@pytest.mark.contract("T9")
def test_notifications_come_once_each_and_in_order(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    engine.run(0, [1])
    endpoint.fail("write", RuntimeError())
    with pytest.raises(SinkError, match="RuntimeError: no reason given"):
        engine.run(1, [2])
    engine.restart()
    engine.run(1, [2])
    engine.run(1, [2])
    engine.run(2, [3])
    engine.restart()
    told = [call for call in endpoint.calls if call[0] in ("complete", "aborted")]
    assert told == [("complete", 0), ("aborted", 1), ("complete", 1), ("complete", 2)]


def test_a_replayed_batch_writes_nothing_and_is_drained(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    engine.run(0, [1])
    engine.restart()
    replay = engine.run(0, [1, 2, 3])
    assert (replay.writes, replay.drained) == (0, 1)
    assert endpoint.rows == [1]


def test_trace_8_a_late_task_is_swept_although_no_batch_comes(location: str, endpoint: Endpoint) -> None:
    """A quiet source: what a dead driver's task prepares late would hold an endpoint's readers back for ever."""
    now = [1_700_000_000.0]
    engine = Engine(location, PreparingSink(endpoint), clock=lambda: now[0])
    engine.run(0, [1])
    endpoint.prepared["late"] = [2]
    engine.tick()
    assert "late" in endpoint.prepared, "not at every tick"
    now[0] += 11
    engine.tick()
    assert not endpoint.prepared
    seen: list[bool] = []

    def while_tasks_run(_: int) -> None:
        now[0] += 11
        engine.tick()
        seen.append(True)

    engine.run(1, [3], [4], on_task=while_tasks_run)
    assert len(seen) == 2 and sorted(endpoint.rows) == [1, 3, 4], "what this driver's tasks prepare is left alone"
