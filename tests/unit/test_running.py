"""What the timer and the batches do at the same time, without Spark."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.checkpoint.history import SEGMENT, History, checkpoints
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.storage import LocalStorage
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.connectors.files.sink import FileSink
from holdfast.core.recovery import plan_recovery
from holdfast.core.retry import Retry
from holdfast.errors import CommitError, EngineError, InjectedFault, RecordError
from holdfast.spark import kafka, running
from holdfast.spark.kafka import KafkaProgress
from holdfast.spark.query import HoldfastQuery
from holdfast.spark.running import RunningQuery
from holdfast.testing.local import armed
from tests.unit.inprocess import Endpoint, Engine, PreparingSink, SendingSink, complete, started


def _progress(storage: Any, *groups: Any) -> KafkaProgress:
    progress = object.__new__(KafkaProgress)
    progress._sources, progress._storage, progress._groups = [], storage, list(groups)
    progress._lock = threading.Lock()
    return progress


def _spark_checkpoint(tmp_path: Path, last: int) -> LocalStorage:
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / str(last)).write_text('v1\n{}\n{"orders":{"0":7}}\n')
    return LocalStorage(str(tmp_path))


def test_k4_a_store_that_fails_neither_fails_the_query_nor_ends_the_timer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(LocalStorage):
        def read(self, name: str) -> bytes:
            raise OSError("the store does not answer")

    _spark_checkpoint(tmp_path, 3)
    _progress(Broken(str(tmp_path)), object()).commit(3, str(tmp_path))
    assert "trying again later: OSError: the store does not answer" in caplog.text


def test_group_offsets_are_committed_by_one_thread_at_a_time(tmp_path: Path) -> None:
    """Else the timer's older offsets could arrive after the batch's newer ones."""
    calls: list[int] = []
    progress: KafkaProgress

    class Group:
        def commit(self, checkpoint_id: int, lines: list[str]) -> bool:
            calls.append(checkpoint_id)
            if len(calls) == 1:
                other = threading.Thread(target=progress.commit, args=(3, str(tmp_path)))
                other.start()
                other.join()
            return True

    progress = _progress(_spark_checkpoint(tmp_path, 3), Group())
    progress.commit(3, str(tmp_path))
    assert calls == [3]
    progress.commit(3, str(tmp_path))
    assert calls == [3, 3], "and it is free again"


def test_when_the_query_has_ended_the_group_is_told_though_an_older_attempt_is_under_way_and_the_next_fails(
    tmp_path: Path,
) -> None:
    """A broker that restarts answers late, and then that it is not ready: nobody else would try again."""
    calls: list[str] = []
    progress: KafkaProgress
    others: list[threading.Thread] = []

    class Group:
        def commit(self, checkpoint_id: int, lines: list[str]) -> bool:
            calls.append(threading.current_thread().name)
            if len(calls) == 1:
                last = threading.Thread(
                    target=progress.commit, args=(3, str(tmp_path)), kwargs={"last": True}, name="last"
                )
                last.start()
                others.append(last)
                last.join(0.2)
            return len(calls) == 3

    progress = _progress(_spark_checkpoint(tmp_path, 3), Group())
    progress.commit(3, str(tmp_path))
    others[0].join(60)
    assert calls[1:] == ["last", "last"]


def test_the_last_attempt_at_the_group_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka, "LAST_TRIES", 0.1)
    calls: list[int] = []

    class Group:
        def commit(self, checkpoint_id: int, lines: list[str]) -> bool:
            calls.append(checkpoint_id)
            return False

    _progress(_spark_checkpoint(tmp_path, 3), Group()).commit(3, str(tmp_path), last=True)
    assert calls == [3, 3]


def test_the_query_tells_what_failed_between_two_batches() -> None:
    """The timer stops the query; to Spark that is a clean stop, and exception() would answer None."""
    nothing = SimpleNamespace(isDefined=lambda: False, isEmpty=lambda: True)
    query = HoldfastQuery(SimpleNamespace(exception=lambda: nothing))  # type: ignore[arg-type]
    assert query.exception() is None
    query.running = RunningQuery("/nowhere", [])
    assert query.exception() is None
    query.running.failure = RecordError("file x is damaged")
    assert "RecordError: file x is damaged" in str(query.exception())


def test_f6_last_files_that_cannot_be_completed_are_told_to_whoever_waits_for_the_end(
    location: str, tmp_path: Path
) -> None:
    """A job that reads the folder next would miss rows, and believe that it has them all."""
    engine = Engine(location, FileSink(str(tmp_path / "out")))
    engine.run(0, [1])
    nothing = SimpleNamespace(isDefined=lambda: False, isEmpty=lambda: True)
    ended: Any = SimpleNamespace(
        exception=lambda: nothing, isActive=lambda: False, awaitTermination=lambda: None, recentProgress=list
    )
    query = HoldfastQuery(ended)
    query.running = known = RunningQuery(location, engine.sinks)
    known._query, known.coordinator = query, engine.coordinator
    with armed("commit.subtask=error"), pytest.raises(InjectedFault):
        query.awaitTermination()
    assert "InjectedFault" in str(query.exception())


def test_history_of_two_threads_loses_no_line_at_the_end_of_a_segment(tmp_path: Path) -> None:
    class Slow(LocalStorage):
        def replace(self, name: str, data: bytes) -> None:
            if data.count(b"\n") == SEGMENT and not others:
                others.append(threading.Thread(target=history.add, args=(SEGMENT, {"status": "complete"})))
                others[0].start()
                others[0].join(0.3)
            super().replace(name, data)

    others: list[threading.Thread] = []
    history = History(Slow(str(tmp_path / "holdfast")), 0)
    for number in range(SEGMENT):
        history.add(number, {"status": "complete"})
    others[0].join()
    assert [entry.checkpoint_id for entry in checkpoints(str(tmp_path))] == list(range(SEGMENT + 1))


def test_a_checkpoint_pruned_while_a_successor_reads_the_log_is_not_owed_again(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The successor has its slot from the first reading; its commits are gone when it lists them the second time."""
    old = started(location, retain=1)
    for checkpoint_id in range(3):
        complete(old, checkpoint_id)
    storage = LocalStorage(location)
    names, looks = storage.names, []

    def listing(folder: str) -> list[str]:
        found = names(folder)
        if successor.generation == 1 and folder in ("decisions", "commits"):
            looks.append(folder)
            if len(looks) == 2:  # the first is the fence's
                old.prune()
        return found

    monkeypatch.setattr(storage, "names", listing)
    successor = CheckpointLog(storage, "orders")
    with pytest.raises(RecordError, match="vanished"):
        successor.start()
    again = started(location)
    assert sorted(again.facts.decided) == [2]
    assert plan_recovery(again.facts) == []


def test_tasks_do_not_carry_what_the_driver_has_delivered(location: str, tmp_path: Path) -> None:
    endpoint = Endpoint()
    sink = SendingSink(endpoint, FileCheckpointCommitter(str(tmp_path / "marks")))
    Engine(location, sink)
    sink.forget_when_complete(0, [{"handle": "x"}])
    assert pickle.loads(pickle.dumps(sink))._delivered._handles == {}
    assert sink._delivered._handles == {0: [{"handle": "x"}]}


def _ended_query(engine: Engine) -> HoldfastQuery:
    nothing = SimpleNamespace(isDefined=lambda: False, isEmpty=lambda: True)
    ended: Any = SimpleNamespace(
        exception=lambda: nothing,
        isActive=lambda: False,
        awaitTermination=lambda: None,
        processAllAvailable=lambda: None,
        recentProgress=list,
    )
    query = HoldfastQuery(ended)
    query.running = RunningQuery(engine.location, engine.sinks)
    query.running._query, query.running.coordinator = query, engine.coordinator
    return query


def test_d7_an_end_that_fails_in_any_way_is_no_good_end(location: str, endpoint: Endpoint) -> None:
    """A raw error used to end the thread that closes the query, and the query had ended well for everybody."""
    engine = Engine(location, PreparingSink(endpoint))
    query = _ended_query(engine)

    def closing(*_: Any, **__: Any) -> list[str]:
        raise OSError("the disk is gone")

    engine.coordinator.close = closing  # type: ignore[method-assign]
    with pytest.raises(EngineError, match="the end of the query failed: OSError: the disk is gone"):
        query.awaitTermination()


def test_sinks_are_closed_although_what_comes_before_failed(location: str, endpoint: Endpoint) -> None:
    engine = Engine(location, PreparingSink(endpoint))
    query = _ended_query(engine)

    def finishing(*_: Any) -> list[str]:
        raise RecordError("file x is damaged")

    engine.coordinator.finish = finishing  # type: ignore[method-assign]
    with pytest.raises(RecordError, match="file x is damaged"):
        query.awaitTermination()
    assert endpoint.called("close") == [()]


def test_process_all_available_does_not_return_as_if_a_failed_delivery_had_worked(
    location: str, endpoint: Endpoint
) -> None:
    class Overlapping(PreparingSink):
        overlaps = True

    engine = Engine(location, Overlapping(endpoint), retry=Retry(for_=0.01))
    endpoint.fail("commit", *[ConnectionError("away")] * 9)
    engine.run(0, [1])
    query = _ended_query(engine)
    with pytest.raises(CommitError, match="checkpoint 0 is decided, but sink 'prepared' did not commit it"):
        query.processAllAvailable()


@pytest.mark.parametrize("active", [True, False])
def test_who_begins_to_watch_is_told_of_queries_that_run_and_not_of_those_that_have_ended(
    monkeypatch: pytest.MonkeyPatch, active: bool
) -> None:
    query, heard = RunningQuery("file:/somewhere", []), list[RunningQuery]()
    query._query = SimpleNamespace(isActive=active)  # type: ignore[assignment]
    query.announce()
    monkeypatch.setattr(running, "_live", {query.location: query})
    running.announce(heard.append)()
    assert heard == [query] * active
