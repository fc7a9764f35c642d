"""Write-ahead sinks under the driver's loop (W1-W9): the stream goes on, the backlog follows in order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.ports import LoopTasks
from holdfast.checkpoint.storage import LocalStorage
from holdfast.committers.base import CheckpointCommitter
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.committers.sql import SqlCheckpointCommitter
from holdfast.core.model import Outcome, PendingCheckpoint
from holdfast.errors import FencedError
from holdfast.sinks.subtask import current_task
from holdfast.sinks.write_ahead import pending
from holdfast.testing.audit import audit
from tests.unit.inprocess import Endpoint, Engine, PreparingSink, SendingSink

DOWN = ConnectionError("the endpoint is down")


@pytest.fixture(params=["file", "sql"])
def committer(request: pytest.FixtureRequest, tmp_path: Path) -> CheckpointCommitter:
    if request.param == "file":
        return FileCheckpointCommitter(str(tmp_path / "marks"))
    return SqlCheckpointCommitter(f"sqlite:///{tmp_path}/marks.db")


@pytest.fixture
def marks(tmp_path: Path) -> FileCheckpointCommitter:
    return FileCheckpointCommitter(str(tmp_path / "marks"))


def test_w1_the_author_gets_sealed_rows_the_checkpoint_and_the_task(
    location: str, committer: CheckpointCommitter, endpoint: Endpoint
) -> None:
    seen: list[Any] = []

    class Looking(SendingSink):
        def send_values(self, values: Iterator[Any], checkpoint_id: int, timestamp: int) -> bool:
            task = current_task()
            seen.append((checkpoint_id, task.checkpoint_id, task.subtask, timestamp == task.timestamp > 0))
            # W2: nothing reaches the endpoint before the checkpoint is sealed and decided
            seen.append(LocalStorage(location).names("decisions"))
            return super().send_values(values, checkpoint_id, timestamp)

    engine = Engine(location, Looking(endpoint, committer))
    engine.run(0, [1, 2, 3], [], [4])
    assert seen == [(0, 0, 0, True), ["0.0.json"], (0, 0, 2, True), ["0.0.json"]]
    assert endpoint.rows == [1, 2, 3, 4]
    assert engine.files("wal") == [], "delivered handles are discarded"


def test_w3_pending_checkpoints_are_ordered_and_equal_without_their_handles() -> None:
    made = [PendingCheckpoint(c, s, 5, f"h{c}{s}") for c, s in [(2, 0), (1, 10), (1, 2)]]
    assert [(p.checkpoint_id, p.subtask_id) for p in sorted(made)] == [(1, 2), (1, 10), (2, 0)]
    assert PendingCheckpoint(1, 2, 5, "a") == PendingCheckpoint(1, 2, 5, "b")
    assert PendingCheckpoint(1, 2, 5, "a") != PendingCheckpoint(1, 2, 6, "a")


def test_w3_a_sealed_checkpoint_is_one_pending_checkpoint_for_each_subtask_with_rows(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    """And they are delivered in their order, whatever order the record names them in."""
    order: list[tuple[int, int]] = []

    class Noting(SendingSink):
        def send_values(self, values: Iterator[Any], checkpoint_id: int, timestamp: int) -> bool:
            sent = super().send_values(values, checkpoint_id, timestamp)
            if sent is True:
                order.append((checkpoint_id, current_task().subtask))
            return sent

    engine = Engine(location, Noting(endpoint, marks))
    endpoint.down = False
    engine.run(0, [1, 2], [], [3])
    engine.run(1, [4], [5])
    decided = engine.log.facts.decided
    known = [pending(n, c.data) for n, record in decided.items() for c in reversed(record.committables)]
    assert [(p.checkpoint_id, p.subtask_id) for p in sorted(known)] == [(0, 0), (0, 2), (1, 0), (1, 1)]
    assert len(set(known)) == 4
    assert {p.timestamp for p in known} == {record.timestamp for record in decided.values()}
    assert sorted(p.handle for p in known) == sorted(engine.files("wal")), "a handle is where the rows are"
    sink = engine.sinks[0]
    handles = [c.data for c in decided[0].committables]
    endpoint.down = None
    assert sink.commit(0, list(reversed(handles)), LoopTasks()) is Outcome.COMMITTED
    assert order == [(0, 0), (0, 2)]


@pytest.mark.parametrize("refusal", [False, DOWN, "not True"], ids=["false", "raises", "another answer"])
def test_w5_w6_the_stream_goes_on_while_the_endpoint_is_down(
    location: str, committer: CheckpointCommitter, endpoint: Endpoint, refusal: Any
) -> None:
    """Delivery stops at the first failure and resumes there: the order never changes."""
    engine = Engine(location, SendingSink(endpoint, committer))
    endpoint.down = refusal
    for checkpoint_id in range(3):
        engine.run(checkpoint_id, [10 * checkpoint_id], [10 * checkpoint_id + 1])
    assert {call for (call,) in endpoint.called("send")} == {0}, "nothing after the first failure is tried"
    assert engine.pending == [0, 1, 2]
    assert endpoint.called("complete") == []
    endpoint.down = None
    engine.run(3, [30])
    assert endpoint.rows == [], "it rests after a failure, whether or not a batch comes"
    engine.now += 0.1
    engine.run(4, [40])
    assert endpoint.rows == [0, 1, 10, 11, 20, 21, 30, 40]
    assert endpoint.called("complete") == [(0,), (1,), (2,), (3,), (4,)]
    assert engine.pending == []
    assert engine.files("wal") == []


def test_w5_a_checkpoint_resumes_at_its_first_undelivered_subtask(
    location: str, committer: CheckpointCommitter, endpoint: Endpoint
) -> None:
    engine = Engine(location, SendingSink(endpoint, committer))
    endpoint.fail("send", None, DOWN)
    engine.run(0, [1], [2], [3])
    assert endpoint.rows == [1]
    engine.tick()
    assert endpoint.rows == [1, 2, 3]


def test_w5_no_subtask_overtakes_one_that_was_refused(
    location: str, committer: CheckpointCommitter, endpoint: Endpoint
) -> None:
    engine = Engine(location, SendingSink(endpoint, committer))
    endpoint.fail("send", False)
    engine.run(0, [1], [2])
    assert endpoint.rows == []
    engine.tick()
    assert endpoint.rows == [1, 2]


def test_unordered_subtasks_do_not_wait_for_each_other(
    location: str, committer: CheckpointCommitter, endpoint: Endpoint
) -> None:
    sink = SendingSink(endpoint, committer)
    sink.ordered = False
    engine = Engine(location, sink)
    endpoint.fail("send", None, False, None)
    engine.run(0, [1], [2], [3])
    assert endpoint.rows == [1, 3]
    assert engine.pending == [0]
    engine.tick()
    assert audit([1, 2, 3], endpoint.rows).ok


def test_w6_a_sink_that_may_not_lag_is_not_held_up_by_one_that_does(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    strict = Endpoint()
    engine = Engine(location, SendingSink(endpoint, marks), PreparingSink(strict))
    endpoint.down = DOWN
    engine.run(0, [1])
    engine.run(1, [2])
    assert strict.rows == [1, 2]
    assert engine.pending == [0, 1]
    assert strict.called("complete") == [], "complete means every sink"
    endpoint.down = None
    engine.tick()
    assert endpoint.rows == [1, 2]
    assert strict.called("complete") == [(0,), (1,)]


def test_w4_a_sealed_checkpoint_is_never_recomputed(
    location: str, committer: CheckpointCommitter, endpoint: Endpoint
) -> None:
    engine = Engine(location, SendingSink(endpoint, committer))
    endpoint.down = DOWN
    engine.run(0, [1, 2])
    engine.restart()
    assert engine.pending == [0]
    replay = engine.run(0, [7, 8, 9], [10])
    assert (replay.writes, replay.drained) == (0, 1)
    endpoint.down = None
    engine.tick()
    assert endpoint.rows == [1, 2]


def test_w7_a_start_delivers_the_backlog_in_order_before_new_rows(
    location: str, committer: CheckpointCommitter, endpoint: Endpoint
) -> None:
    engine = Engine(location, SendingSink(endpoint, committer))
    endpoint.down = DOWN
    for checkpoint_id in range(3):
        engine.run(checkpoint_id, [checkpoint_id])
    endpoint.down = None
    engine.restart(SendingSink(endpoint, committer))
    assert endpoint.rows == [0, 1, 2]
    assert engine.pending == []
    assert engine.files("wal") == []


def test_w7_what_the_committer_knows_is_not_sent_again(
    location: str, committer: CheckpointCommitter, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver died after the last mark and before the commit record."""
    engine = Engine(location, SendingSink(endpoint, committer))
    with monkeypatch.context() as patch:
        patch.setattr(engine.log, "record_commit", _die)
        with pytest.raises(KeyboardInterrupt):
            engine.run(0, [1], [2])
    assert len(engine.files("wal")) == 2
    engine.restart()
    assert endpoint.rows == [1, 2]
    assert engine.files("wal") == []
    assert b'"outcome":"already_committed"' in engine.storage.read("commits/0.sending.json")


def _die(*_: Any) -> None:
    raise KeyboardInterrupt


def test_w8_handles_nobody_names_are_removed_and_named_ones_never(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    engine = Engine(location, SendingSink(endpoint, marks))
    endpoint.down = DOWN
    engine.run(0, [1])
    (named,) = engine.files("wal")
    with pytest.raises(KeyboardInterrupt):
        engine.run(1, [2], [3], on_task=lambda subtask: _die() if subtask else None)
    folder, uuid = "wal/sending/1", "0" * 32
    for generation in (0, 1, 2):
        engine.storage.create(f"{folder}/{generation}-0-5-{uuid}.arrow", b"late")
    engine.storage.create("wal/sending/notes.txt", b"not ours")
    engine.restart()
    # rule 3: generation 2 is not ours to judge, it may be a newer driver's
    assert engine.files("wal") == sorted([named, f"{folder}/2-0-5-{uuid}.arrow", "wal/sending/notes.txt"])
    endpoint.down = None
    engine.tick()
    assert endpoint.rows == [1]


def test_rule_8_a_late_task_of_a_dead_driver_is_swept_by_the_next_batch(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    engine = Engine(location, SendingSink(endpoint, marks))
    engine.restart()
    engine.storage.create(f"wal/sending/0/0-0-5-{'a' * 32}.arrow", b"late")
    engine.run(0, [1])
    assert engine.files("wal") == []


def test_w9_a_crash_between_send_and_mark_sends_again(
    location: str, committer: CheckpointCommitter, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The honest part: this committer is not in the endpoint's transaction."""
    sink = SendingSink(endpoint, committer)
    engine = Engine(location, sink)
    with monkeypatch.context() as patch:
        patch.setattr(sink.committer, "commit_checkpoint", _die)
        with pytest.raises(KeyboardInterrupt):
            engine.run(0, [1])
    engine.restart(SendingSink(endpoint, committer))
    report = audit([1], endpoint.rows)
    assert report.nothing_lost
    assert report.doubled == (1,)


def test_rows_that_an_older_driver_delivered_when_it_woke_up_are_not_reported_lost(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    """Found by the model (tests/unit/model): it had sent them, recorded the commit and removed the log file."""
    endpoint.down = DOWN
    engine = Engine(location, SendingSink(endpoint, marks))
    engine.run(0, [1, 2])
    older = engine.log
    engine.restart()
    older.record_commit(0, "sending", {})
    for file in engine.files("wal"):
        engine.storage.delete(file)
    endpoint.down = None
    engine.tick()
    assert engine.coordinator.failure is None and engine.pending == [] and engine.files("lost") == []
    engine.run(1, [3])
    assert endpoint.rows == [3]


def test_a_driver_that_was_replaced_sends_nothing_any_more(
    location: str, marks: FileCheckpointCommitter, endpoint: Endpoint
) -> None:
    endpoint.down = DOWN
    engine = Engine(location, SendingSink(endpoint, marks))
    engine.run(0, [1, 2])
    older = engine.coordinator
    engine.restart(SendingSink(endpoint, marks))
    endpoint.down = None
    engine.now += 60.0
    older.tick()
    assert isinstance(older.failure, FencedError) and endpoint.rows == []
    engine.tick()
    assert endpoint.rows == [1, 2]
