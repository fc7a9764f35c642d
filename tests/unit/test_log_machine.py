"""The real CheckpointLog under drivers that start, decide, die, lose answers and wake up, at every storage call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from holdfast.checkpoint import log as log_module
from holdfast.checkpoint.log import CheckpointLog
from holdfast.core.model import Committable, RecordKind, fold
from holdfast.core.recovery import OwedCommit, plan_recovery
from holdfast.errors import FencedError, RecordError
from tests.unit.model.memory import Killed, Memory, SerialPool, View

SINKS = ("a", "b")
#: how the n-th storage call from now goes wrong, and whether before or after it was performed
calls = st.integers(0, 2) | st.integers(0, 12)
faults = st.none() | st.tuples(st.sampled_from(["pause", "kill", "lose"]), calls, st.booleans())
steps = ["start", "decide", "commit", "prune"]
#: what the others do during a pause; most races need a successor that has come to its own decision
others = st.just(["start", "decide"]) | st.lists(st.sampled_from(steps), max_size=5)
which = st.integers(0, 3)


class LogMachine(RuleBasedStateMachine):
    """Drivers on one location. A driver that failed is never used again, as a failed query is not."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory()
        self.drivers: list[CheckpointLog] = []
        self.busy: list[CheckpointLog] = []
        self.serial = 0
        #: committables that the endpoint dropped
        self.lost: set[int] = set()

    @initialize()
    def first_driver(self) -> None:
        self.start(None, [])

    # -- what drivers do --------------------------------------------------------------------------------------------

    @rule(fault=faults, meanwhile=others)
    def start(self, fault: tuple[str, int, bool] | None, meanwhile: list[str]) -> None:
        view = View(self.memory)
        driver = CheckpointLog(view, "pipeline", retain=1)
        if self.perform(driver, driver.start, fault, meanwhile):
            self.drivers.append(driver)

    @precondition(lambda self: self.drivers)
    @rule(number=which, fault=faults, meanwhile=others)
    def decide(self, number: int, fault: tuple[str, int, bool] | None, meanwhile: list[str]) -> None:
        """The batch after the last this driver knows of; Spark gives it no other."""
        if (driver := self.pick(number)) is None:
            return
        n = 0 if driver.last_decided is None else driver.last_decided + 1
        self.write(driver, n, RecordKind.DECISION, fault, meanwhile)

    @precondition(lambda self: self.drivers)
    @rule(number=which, fault=faults, meanwhile=others)
    def repair(self, number: int, fault: tuple[str, int, bool] | None, meanwhile: list[str]) -> None:
        """Replace what the endpoint lost. What is committed is never lost, and what is lost is never committed."""
        driver = self.pick(number)
        if driver is None or not (missing := plan_recovery(driver.facts)):
            return
        n = missing[0].checkpoint_id
        done = self.memory.commits(self.memory.created)
        lost = [c for c in driver.facts.decided[n].committables if (n, c.sink) not in done]
        if lost:
            self.lost |= {c.data["serial"] for c in lost}
            self.write(driver, n, RecordKind.REPAIR, fault, meanwhile, [c.sink for c in lost])

    @precondition(lambda self: self.drivers)
    @rule(number=which, fault=faults, meanwhile=others)
    def commit(self, number: int, fault: tuple[str, int, bool] | None, meanwhile: list[str]) -> None:
        """Record the first commit that is owed, fenced or not: a paused driver may wake up here."""
        driver = self.pick(number)
        if driver is not None and (missing := plan_recovery(driver.facts)):
            self.commit_one(driver, missing[0], fault, meanwhile)

    def commit_one(
        self, driver: CheckpointLog, action: OwedCommit, fault: tuple[str, int, bool] | None, meanwhile: list[str]
    ) -> None:
        serials = {c.data["serial"] for c in driver.facts.decided[action.checkpoint_id].of(action.sink)}
        if not serials & self.lost:
            self.perform(driver, lambda: driver.record_commit(*_pair(action), {}), fault, meanwhile)

    @precondition(lambda self: self.drivers)
    @rule(number=which, fault=faults, meanwhile=others)
    def prune(self, number: int, fault: tuple[str, int, bool] | None, meanwhile: list[str]) -> None:
        if (driver := self.pick(number)) is not None:
            self.perform(driver, driver.prune, fault, meanwhile)

    # -- how they do it ---------------------------------------------------------------------------------------------

    def pick(self, number: int) -> CheckpointLog | None:
        """One of the newest drivers that is not in the middle of something."""
        free = [d for d in self.drivers if not any(d is b for b in self.busy)]
        return free[-1 - number % len(free)] if free else None

    def write(
        self,
        driver: CheckpointLog,
        n: int,
        kind: RecordKind,
        fault: tuple[str, int, bool] | None,
        meanwhile: list[str],
        sinks: Sequence[str] = SINKS,
    ) -> None:
        work = []
        for sink in sinks:
            self.serial += 1
            work.append(Committable(sink, 0, {"serial": self.serial}))
        self.perform(driver, lambda: driver.decide(n, SINKS, work, timestamp=0, state={}, kind=kind), fault, meanwhile)

    def perform(self, driver, action, fault, meanwhile) -> bool:  # type: ignore[no-untyped-def]
        """Whether the driver lives on."""

        def others_go_on() -> None:
            for name in meanwhile:
                getattr(self, name)(*((None, []) if name == "start" else (0, None, [])))

        driver.storage.arm(fault, others_go_on)
        self.busy.append(driver)
        try:
            action()
        except (Killed, FencedError) as error:
            died = error
        except OSError as error:
            assert str(error) == "no answer"
            died = error
        except RecordError as error:
            # Pruned by another driver between the listing and the reading; the message says to start again.
            assert "vanished" in str(error)
            assert fault is not None
            assert fault[0] == "pause"
            died = error
        else:
            driver.storage.arm(None, lambda: None)
            return True
        finally:
            self.busy.pop()
        self.drivers = [d for d in self.drivers if d is not driver]
        assert died is not None
        return False

    # -- what holds at any moment -----------------------------------------------------------------------------------

    @invariant()
    def a_checkpoint_is_decided_once(self) -> None:
        decided = [r.checkpoint_id for r in self.memory.decisions_ever if r.kind is RecordKind.DECISION]
        assert len(decided) == len(set(decided))

    @invariant()
    def checkpoints_are_decided_without_gaps(self) -> None:
        decided = [r.checkpoint_id for r in self.memory.decisions_ever if r.kind is RecordKind.DECISION]
        assert decided == list(range(len(decided)))

    @invariant()
    def a_fenced_generation_writes_nothing_more(self) -> None:
        fenced = set()
        for record in self.memory.slots(self.memory.created):
            assert record.slot.generation not in fenced
            if record.kind is RecordKind.ABORT:
                fenced.add(record.slot.generation)

    @invariant()
    def slots_are_filled_without_gaps(self) -> None:
        filled: dict[int, int] = {}
        for record in self.memory.slots(self.memory.created):
            assert record.slot.index == filled.get(record.slot.generation, 0)
            filled[record.slot.generation] = record.slot.index + 1

    @invariant()
    def commits_are_recorded_for_decided_checkpoints_only(self) -> None:
        decided = {r.checkpoint_id for r in self.memory.decisions_ever}
        assert {n for n, _ in self.memory.commits(self.memory.created)} <= decided

    @invariant()
    def abort_slots_and_generations_stay_for_ever(self) -> None:
        for name in self.memory.created:
            if name.startswith("generations/"):
                assert name in self.memory.files
        for record in self.memory.slots(self.memory.created):
            if record.kind is RecordKind.ABORT:
                assert f"decisions/{record.slot.generation}.{record.slot.index}.json" in self.memory.files

    @invariant()
    def a_reader_sees_all_that_is_owed_and_the_newest_decision(self) -> None:
        """Loading never fails, whatever died where; and what it leads to is exactly what was promised."""
        reader = CheckpointLog(View(self.memory), "pipeline")
        reader.load()
        ever, done = fold(self.memory.decisions_ever), self.memory.commits(self.memory.created)
        owed = [OwedCommit(n, s) for n in ever for s in SINKS if (n, s) not in done]
        assert plan_recovery(reader.facts) == owed
        for action in owed:
            assert reader.facts.decided[action.checkpoint_id] == ever[action.checkpoint_id]
        assert reader.last_decided == max(ever, default=None)

    def teardown(self) -> None:
        """A driver that starts at the end finds everything in order, and can go on."""
        self.start(None, [])
        driver = self.drivers[-1]
        while missing := plan_recovery(driver.facts):
            self.repair(0, None, [])
            self.commit_one(driver, missing[0], None, [])
        driver.prune()
        self.decide(0, None, [])
        assert driver is self.drivers[-1]
        self.a_checkpoint_is_decided_once()
        self.a_reader_sees_all_that_is_owed_and_the_newest_decision()


def _pair(action: OwedCommit) -> tuple[int, str]:
    return action.checkpoint_id, action.sink


@pytest.fixture(autouse=True)
def _repeatable(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(log_module, "ThreadPoolExecutor", SerialPool)
    yield


@pytest.mark.usefixtures("_repeatable")
class TestLogMachine(LogMachine.TestCase):
    settings = settings(max_examples=150, stateful_step_count=30, deadline=None)


def test_a_fence_is_never_put_behind_the_owner_when_a_repair_of_an_old_checkpoint_was_pruned() -> None:
    """Found by the machine: the repair was its generation's last slot, and a successor counted from the one before."""
    machine = LogMachine()
    machine.first_driver()
    machine.decide(0, None, [])
    machine.decide(0, None, [])
    machine.repair(0, None, [])
    for _ in range(2 * len(SINKS)):
        machine.commit(0, None, [])
    machine.prune(0, None, [])
    machine.decide(0, ("pause", 1, False), ["start"])
    machine.a_fenced_generation_writes_nothing_more()
    assert [d.generation for d in machine.drivers] == [1]


def test_what_is_complete_is_pruned_all_the_same() -> None:
    machine = LogMachine()
    machine.first_driver()
    for _ in range(3):
        machine.decide(0, None, [])
        for _ in SINKS:
            machine.commit(0, None, [])
    machine.start(None, [])
    machine.decide(0, None, [])
    machine.prune(0, None, [])
    assert sorted(name for name in machine.memory.files if name.startswith("decisions/")) == [
        "decisions/0.3.json",
        "decisions/1.0.json",
    ]
    assert not machine.memory.names("commits")
