"""An endpoint that hangs or crawls in `open` or `recover` (D2, rule 13): who waits for it, how long, who is named."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.health import Facts, judge
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.loops import Threads
from holdfast.checkpoint.ports import EnginePosition, LoopTasks, Run
from holdfast.checkpoint.pulse import Pulse
from holdfast.checkpoint.runs import read_run
from holdfast.checkpoint.storage import open_storage
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.core.model import Outcome
from holdfast.core.naming import parse_token
from holdfast.core.recovery import Moment
from holdfast.core.retry import Retry
from holdfast.errors import HoldfastError, RowError, SinkError, UndeliveredError
from tests.unit.inprocess import Endpoint, Engine, PreparingSink, SendingSink

Threaded = Callable[..., Engine]
DEAD = "0" * 32
#: what no test waits for: far longer than any of them may take
LONG = Retry(for_="10m", first_wait=0.02)


class Gate:
    """Where `recover` hangs while it is closed."""

    def __init__(self) -> None:
        self.entered, self.open = threading.Event(), threading.Event()
        self.open.set()
        #: the generation that each call was given
        self.asked: list[int] = []

    def close(self) -> None:
        self.entered.clear()
        self.open.clear()

    def __call__(self, generation: int) -> None:
        self.asked.append(generation)
        self.entered.set()
        assert self.open.wait(60)


@pytest.fixture
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that hangs is given up after a second, and not after half a minute."""
    monkeypatch.setattr("holdfast.core.retry.ONE_CALL", 1.0)


@pytest.fixture
def gate() -> Iterator[Gate]:
    made = Gate()
    yield made
    made.open.set()


class Sending(SendingSink):
    """A user's write-ahead sink that also asks its endpoint when it sweeps."""

    gate: Gate

    def recover(self, pipeline: str, generation: int, decided: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        self.gate(generation)
        self.endpoint.call("recover", generation, sorted(decided))
        super().recover(pipeline, generation, decided)


class Careful(PreparingSink):
    """A two-phase sink that undoes work of its own and older generations, as the contract says."""

    gate: Gate

    def recover(self, pipeline: str, generation: int, decided: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        self.gate(generation)
        kept = {c["token"] for committables in decided.values() for c in committables}
        for token in [t for t in self.endpoint.prepared if t not in kept]:
            task = parse_token(token)
            if task is not None and task.generation <= generation:
                del self.endpoint.prepared[token]


class Lagging(Careful):
    """One that prepares at its endpoint and may lag."""

    may_lag = True


@pytest.fixture
def sending(tmp_path: Path, gate: Gate) -> Sending:
    sink = Sending(Endpoint(), FileCheckpointCommitter(str(tmp_path / "marks")), "sending")
    sink.gate = gate
    return sink


def careful(kind: type[Careful], gate: Gate, name: str = "careful") -> Careful:
    sink = kind(Endpoint(), name)
    sink.gate = gate
    return sink


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.01)


def in_thread(do: Callable[[], Any]) -> Callable[[], Any]:
    """Do it beside the test; what is returned waits for it and raises what it raised."""
    found: list[Any] = []

    def body() -> None:
        try:
            found.append(do())
        except Exception as error:  # noqa: BLE001  raised below
            found.append(error)

    thread = threading.Thread(target=body, daemon=True)
    thread.start()

    def result() -> Any:
        thread.join(60)
        assert not thread.is_alive(), "it hangs"
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    return result


# -- sinks that may lag -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["at the start", "between batches"])
def test_d2_a_sink_that_may_lag_and_hangs_in_recover_delays_no_start_no_decision_and_no_other_sink(
    location: str, threaded: Threaded, sending: Sending, gate: Gate, endpoint: Endpoint, when: str
) -> None:
    if when == "at the start":
        gate.close()
    engine = in_thread(lambda: threaded(location, sending, PreparingSink(endpoint), retry=LONG))()
    if when == "between batches":
        in_thread(lambda: engine.run(0, [0]))()
        engine.coordinator.drain(60)
        gate.close()
        engine.coordinator._sweeps._swept.clear()  # due
        engine.coordinator.tick()
    assert gate.entered.wait(60)
    for number in range(engine.log.last_decided or 0, 5):
        in_thread(lambda n=number: engine.run(n, [n]))()
    assert endpoint.rows == list(range(5)) and engine.log.last_decided == 4
    assert engine.coordinator.failure is None
    assert "sending" in in_thread(lambda: engine.coordinator.close(0.2))()


def test_w7_w8_what_older_runs_left_is_swept_before_anything_is_sent_and_own_work_is_not_touched(
    location: str, threaded: Threaded, sending: Sending, gate: Gate
) -> None:
    engine = threaded(location, sending, retry=LONG)
    sending.endpoint.down = ConnectionError("away")
    engine.run(0, [0])
    engine.storage.create(f"wal/sending/7/0-0-99-{DEAD}.arrow", b"half a file of a killed worker")
    engine.coordinator.close(5.0)
    sending.endpoint.down = None
    sending.endpoint.calls.clear()
    gate.close()
    engine.restart(sending, loops=Threads())
    assert gate.entered.wait(60)
    engine.run(1, [1])
    assert sending.endpoint.called("send") == [], "sent before what was left is undone"
    gate.open.set()
    assert engine.coordinator.drain(60)
    assert sending.endpoint.rows == [0, 1], "and nothing decided was undone"
    assert sending.endpoint.calls[0] == ("recover", 0, [0])
    assert set(gate.asked[1:]) == {0}, "beside tasks only work of older generations may be undone"
    eventually(lambda: engine.files("wal") == [])


def test_w8_what_a_killed_attempt_left_in_the_log_is_removed_by_the_next_batch_although_the_endpoint_hangs(
    location: str, threaded: Threaded, sending: Sending, gate: Gate
) -> None:
    gate.close()
    engine = threaded(location, sending, retry=LONG)
    assert gate.entered.wait(60)
    engine.storage.create(f"wal/sending/0/0-0-99-{DEAD}.arrow", b"half a file")
    engine.run(0, [0])
    assert f"wal/sending/0/0-0-99-{DEAD}.arrow" not in engine.files("wal") and len(engine.files("wal")) == 1


def test_d2_a_sweep_that_crawls_beside_the_tasks_undoes_nothing_they_prepare(
    location: str, threaded: Threaded, gate: Gate
) -> None:
    sink = careful(Lagging, gate)
    sink.endpoint.prepared["left by nobody known"] = [9]
    gate.close()
    engine = threaded(location, sink, retry=LONG)
    assert gate.entered.wait(60)
    at_work, go_on = threading.Event(), threading.Event()

    def task(_: int) -> None:
        at_work.set()
        assert go_on.wait(60)

    batch = in_thread(lambda: engine.run(0, [1], [2], on_task=task))
    assert at_work.wait(60)
    gate.open.set()
    go_on.set()
    batch()
    assert engine.coordinator.drain(60)
    assert sorted(sink.endpoint.rows) == [1, 2]
    assert set(gate.asked) == {-1}


def test_a_failed_batch_of_a_sink_that_may_lag_is_undone_before_its_tasks_run_again(
    location: str, threaded: Threaded, gate: Gate
) -> None:
    sink = careful(Lagging, gate)
    engine = threaded(location, sink, retry=LONG)
    failing = [ConnectionError("away")]

    def task(subtask: int) -> None:
        if subtask == 1:
            if failing:
                raise SinkError(str(failing.pop()))
            assert len(sink.endpoint.prepared) == 1, "the first attempt's work is still there"

    engine.run(0, [1], [2], on_task=task)
    assert engine.coordinator.drain(60)
    assert sorted(sink.endpoint.rows) == [1, 2]
    assert 0 in gate.asked, "of its own generation, since no task was at work"


@pytest.mark.usefixtures("short_calls")
@pytest.mark.parametrize("error", [SinkError("away"), RowError("a bad row, which a second run would look for")])
def test_tasks_do_not_run_again_beside_a_sweep_that_would_undo_their_work(
    location: str, threaded: Threaded, gate: Gate, error: HoldfastError
) -> None:
    sink = careful(Lagging, gate)
    engine = threaded(location, sink, retry=Retry(for_=0.3, first_wait=0.02))
    eventually(lambda: gate.asked == [-1])
    ran = []

    def task(subtask: int) -> None:
        gate.close()
        ran.append(subtask)
        raise error

    batch = in_thread(lambda: engine.run(0, [1], on_task=task))
    with pytest.raises(SinkError) as caught:
        batch()
    assert re.match(r"sink 'careful' has been sweeping for \d+ s without an answer", str(caught.value))
    assert engine.log.last_decided is None
    assert ran == [0]


def test_a_sweep_of_a_sink_that_may_lag_is_tried_for_ever_and_what_is_wrong_is_shown(
    location: str, threaded: Threaded, sending: Sending
) -> None:
    sending.endpoint.fail("recover", *[ConnectionError("away")] * 5)
    engine = threaded(location, sending, retry=Retry(for_=0.01, first_wait=0.01, longest_wait=0.01))
    engine.run(0, [0])
    assert engine.coordinator.drain(60)
    assert sending.endpoint.rows == [0] and len(sending.endpoint.called("recover")) >= 6


def test_status_tells_of_a_sink_that_hangs_in_its_sweep(
    location: str, threaded: Threaded, sending: Sending, gate: Gate
) -> None:
    gate.close()
    engine = threaded(location, sending, retry=LONG)
    assert gate.entered.wait(60)
    Pulse(engine.log).beat(engine.coordinator.deliveries, now=True)
    run = read_run(engine.storage, 0)
    assert run is not None and run.sinks["sending"]["doing"] == "sweeping"
    facts = Facts(location, None, None, 0, (), (), {}, run.sinks, None)
    found = judge(facts, now=time.time() + 100, max_age=None)
    assert "sink 'sending' is sweeping for 10" in found.reasons[0]


def test_status_tells_of_an_endpoint_that_is_away_while_batches_try_again(
    location: str, threaded: Threaded, endpoint: Endpoint
) -> None:
    """Nothing is owed, and nothing moves."""
    engine = threaded(location, PreparingSink(endpoint, "away"), retry=Retry(for_=0))
    endpoint.fail("recover", *[ConnectionError("nobody is there")] * 3)
    for _ in range(3):
        engine.coordinator._sweeps.perform(Moment.BATCH)
    (delivery,) = engine.coordinator.deliveries
    standing = delivery.standing
    assert (standing.doing, standing.failures) == ("waiting to sweep again", 3)
    loops = {"away": asdict(standing)}
    found = judge(Facts(location, None, None, 0, (), (), {}, loops, None), now=time.time(), max_age=None)
    assert found.state == "degraded" and "3 failures in a row: sink 'away'" in found.reasons[0]
    engine.coordinator._sweeps.perform(Moment.BATCH)
    assert delivery.standing.doing == "idle"


# -- sinks that may not lag -------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("short_calls")
def test_a_start_whose_sink_hangs_in_recover_fails_when_retry_is_over_and_names_it(
    location: str, threaded: Threaded, gate: Gate
) -> None:
    gate.close()
    sink = careful(Careful, gate)
    start = in_thread(lambda: threaded(location, sink, retry=Retry(for_=0.3)))
    with pytest.raises(SinkError, match="sink 'careful' has been sweeping for"):
        start()
    assert sink.endpoint.called("close") == [], "it is still busy"


def test_status_tells_of_a_start_whose_sink_hangs_in_recover(location: str, gate: Gate) -> None:
    gate.close()
    log = CheckpointLog(open_storage(location), "orders")
    coordinator = Coordinator(log, [careful(Careful, gate)], LoopTasks(), loops=Threads(), retry=LONG)
    start = in_thread(lambda: coordinator.start(EnginePosition))
    assert gate.entered.wait(60)
    assert [(one.sink.name, one.standing.doing) for one in coordinator.at_work] == [("careful", "sweeping")]
    gate.open.set()
    start()
    coordinator.close(5.0)


class Opening(PreparingSink):
    """One whose endpoint hangs before the first row."""

    gate: Gate
    hangs_in: str

    def open(self, run: Run) -> None:
        if self.hangs_in == "open":
            self.gate(run.generation)
        super().open(run)

    def initialize_state(self, state: Any) -> None:
        if self.hangs_in == "initialize_state":
            self.gate(0)
        super().initialize_state(state)


@pytest.mark.parametrize(("hangs_in", "doing"), [("open", "starting"), ("initialize_state", "restoring its state")])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.usefixtures("short_calls")
def test_d2_a_start_whose_sink_hangs_before_the_first_row_fails_when_retry_is_over_and_names_it(
    location: str, threaded: Threaded, gate: Gate, endpoint: Endpoint, hangs_in: str, doing: str, first: bool
) -> None:
    gate.close()
    sink, other = Opening(Endpoint(), "slow"), PreparingSink(endpoint, "other")
    sink.gate, sink.hangs_in = gate, hangs_in
    sinks = (sink, other) if first else (other, sink)
    start = in_thread(lambda: threaded(location, *sinks, retry=Retry(for_=0.3)))
    with pytest.raises(SinkError, match=f"sink 'slow' has been {doing} for .* retry=hf.Retry") as caught:
        start()
    assert caught.value.action == "restart"
    assert len(gate.asked) == 1, "it is not called again while it hangs"
    assert sink.endpoint.called("close") == [], "it is still busy"
    assert len(endpoint.called("close")) == len(endpoint.called("open")), "whoever was opened is closed"


def test_one_call_has_half_a_minute_also_where_nothing_is_tried_again(
    location: str, threaded: Threaded, gate: Gate
) -> None:
    gate.close()
    sink = Opening(Endpoint(), "slow")
    sink.gate, sink.hangs_in = gate, "open"
    start = in_thread(lambda: threaded(location, sink, retry=Retry(for_=0)))
    assert gate.entered.wait(60)
    gate.open.set()
    start().run(0, [1])
    assert sink.endpoint.rows == [1]


def test_d2_status_tells_of_a_sink_that_hangs_in_its_start(
    location: str, threaded: Threaded, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.checkpoint.pulse.EVERY", 0.02)
    gate.close()
    sink = Opening(Endpoint(), "slow")
    sink.gate, sink.hangs_in = gate, "open"
    log = CheckpointLog(open_storage(location), "orders")
    coordinator = Coordinator(log, [sink], LoopTasks(), loops=Threads(), retry=LONG)
    pulse = Pulse(log)

    def begin() -> None:
        with pulse.starting(lambda: coordinator.at_work):
            coordinator.start(EnginePosition)

    start = in_thread(begin)
    eventually(lambda: (run := read_run(log.storage, 0)) is not None and "slow" in run.sinks)
    run = read_run(log.storage, 0)
    assert run is not None and (run.state, run.sinks["slow"]["doing"]) == ("starting", "starting")
    facts = Facts(location, None, None, 0, (), (), {}, run.sinks, None)
    assert "sink 'slow' is starting for 10" in judge(facts, now=time.time() + 100).reasons[0]
    gate.open.set()
    start()
    pulse.beat(coordinator.at_work, now=True)
    time.sleep(0.1)
    run = read_run(log.storage, 0)
    assert run is not None and (run.state, run.sinks["slow"]["doing"]) == ("running", "idle")
    coordinator.close(5.0)


@pytest.mark.usefixtures("short_calls")
def test_a_batch_whose_sink_hangs_in_recover_fails_when_retry_is_over_and_names_it(
    location: str, threaded: Threaded, gate: Gate
) -> None:
    sink = careful(Careful, gate)
    engine = threaded(location, sink, retry=Retry(for_=0.3))
    gate.close()
    with pytest.raises(SinkError, match="sink 'careful' has been sweeping for"):
        in_thread(lambda: engine.run(0, [1]))()
    assert sink.endpoint.called("begin") == [], "its tasks would have been undone"
    with pytest.raises(SinkError, match="sink 'careful' has been sweeping for"):
        in_thread(lambda: engine.run(0, [1]))()
    assert len(gate.asked) == 2, "not called again while it hangs"
    assert in_thread(lambda: engine.coordinator.close(0.2, sweep=True))() == ["careful"]


@pytest.mark.usefixtures("short_calls")
def test_a_batch_waits_no_longer_than_retry_for_a_chore_that_hangs(
    location: str, threaded: Threaded, gate: Gate
) -> None:
    sink = careful(Careful, gate)
    engine = threaded(location, sink, retry=Retry(for_=0.3))
    engine.run(0, [0])
    gate.close()
    engine.coordinator._sweeps._swept.clear()
    engine.coordinator.tick()
    assert gate.entered.wait(60)
    with pytest.raises(SinkError, match="sink 'careful' has been sweeping for"):
        in_thread(lambda: engine.run(1, [1]))()


@pytest.mark.parametrize("hangs_in", ["recover", "commit"])
def test_d2_a_stop_ends_a_batch_that_waits_for_an_endpoint(
    location: str, threaded: Threaded, gate: Gate, hangs_in: str
) -> None:
    """Spark's stop waits for the batch, whatever the batch waits for."""
    sink = careful(Careful, gate)
    engine = threaded(location, sink, retry=LONG)
    if hangs_in == "commit":
        plain = sink.commit

        def commit(*arguments: Any) -> Outcome | None:
            gate(0)
            return plain(*arguments)

        sink.commit = commit  # type: ignore[method-assign]
        batch = in_thread(lambda: engine.run(0, [1], on_task=lambda _: gate.close()))
    else:
        gate.close()
        batch = in_thread(lambda: engine.run(0, [1]))
    assert gate.entered.wait(60)
    engine.coordinator.hurry()
    with pytest.raises(UndeliveredError if hangs_in == "commit" else SinkError, match="careful"):
        batch()
    assert in_thread(lambda: engine.coordinator.close(0.2, sweep=True))() == ["careful"]


@pytest.mark.parametrize("answers", [True, False])
def test_s6_a_batch_that_a_stop_cancels_is_undone_unless_the_endpoint_hangs(
    location: str, threaded: Threaded, gate: Gate, monkeypatch: pytest.MonkeyPatch, answers: bool
) -> None:
    """Every sink is told either way, and nothing is said to hang that only needs a moment."""
    monkeypatch.setattr("holdfast.checkpoint.sweeps.STOPPED", 30.0 if answers else 0.2)
    first, second = careful(Careful, gate, "first"), careful(Careful, Gate(), "second")
    engine = threaded(location, first, second, retry=LONG)

    def cancelled(subtask: int) -> None:
        if subtask == 1:
            engine.coordinator.hurry()
            gate.close()
            if answers:
                threading.Timer(0.5, gate.open.set).start()
            raise RuntimeError("Job 7 cancelled")

    with pytest.raises(
        RuntimeError if answers else SinkError, match="Job 7" if answers else "'first' has been sweeping"
    ):
        engine.run(0, [1], [2], on_task=cancelled)
    assert first.endpoint.called("aborted") == second.endpoint.called("aborted") == [(0,)]
    assert bool(first.endpoint.prepared) is not answers, "the next start undoes the rest"
    gate.open.set()


@pytest.mark.parametrize("kind", [Careful, Lagging])
def test_d2_the_end_of_a_run_waits_for_no_last_sweep_and_no_close_that_hangs(
    location: str, threaded: Threaded, gate: Gate, kind: type[Careful], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LAST_SWEEP", "LAST_CLOSE"):
        monkeypatch.setattr(f"holdfast.checkpoint.ending.{name}", 0.2)
    sink, other = careful(kind, gate), careful(Careful, Gate(), "other")
    hanging = threading.Event()
    other.close = lambda: hanging.wait(60) and None  # type: ignore[method-assign,assignment,return-value]
    engine = threaded(location, sink, other, retry=LONG)
    engine.run(0, [1])
    engine.coordinator.drain(60)
    gate.close()
    assert sorted(in_thread(lambda: engine.coordinator.close(5.0, sweep=True))()) == ["careful", "other"]
    hanging.set()
