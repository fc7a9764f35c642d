"""FileSink under any sequence of batches, timers, crashes, restarts, flushes, zombies: each row once, none vanishes."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.connectors.files import rolling
from holdfast.connectors.files.flush import flush
from holdfast.connectors.files.rolling import Rolling
from holdfast.connectors.files.sink import FileSink
from holdfast.core.retry import Retry
from holdfast.errors import CommitError, FencedError, InjectedFault
from holdfast.testing.local import armed
from tests.unit.inprocess import SCHEMA, Engine
from tests.unit.test_file_sink import Clock

FAULTS = [
    f"{point}={mode}{count}"
    for point in (
        "task.write",
        "task.prepared",
        "decision",
        "commit.sink",
        "commit.subtask",
        "commit.mark",
        "commit.record",
    )
    for mode in ("error", "lost")
    for count in ("", "@2")
]
ROLLINGS = [Rolling(age="0s"), Rolling(size=1500, age="60s", inactivity="30s"), Rolling(size=None, age="1h"), Rolling()]
Died = (InjectedFault, CommitError)


def two_buckets(ids: list[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([{"id": i, "name": f"n{i % 2}"} for i in ids], schema=SCHEMA)


class Files(RuleBasedStateMachine):
    """A driver at a time that counts, and perhaps a zombie."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-files-", dir="/dev/shm"))
        self.out = self.folder / "out"
        self.clock = Clock()
        self.fan_in, rolling.FAN_IN = rolling.FAN_IN, 3
        self.engine = Engine(self.folder / "ck", self.sink(Rolling()), clock=self.clock, retain=2, retry=Retry(for_=0))
        self.zombies: list[Engine] = []
        self.batches: list[list[list[int]]] = []
        self.next_id = 0
        self.seen: set[int] = set()
        self.alive = True
        self.runs = 0

    def sink(self, policy: Rolling) -> FileSink:
        return FileSink(str(self.out), bucket_by="name", rolling=policy)

    def teardown(self) -> None:
        try:
            self.zombies_wake_up()
            if not self.alive:
                self.restart(Rolling(), False, True)
            self.catch_up()
            self.engine.coordinator.finish(0.0)
            sent = sorted(i for batch in self.batches for part in batch for i in part)
            assert self.visible() == sent
            assert list(self.out.rglob("*.arrow")) == []
            assert list(self.out.rglob("*.tmp")) == []
        finally:
            rolling.FAN_IN = self.fan_in
            shutil.rmtree(self.folder)

    def visible(self) -> list[int]:
        if not self.out.exists():
            return []
        table = pa.dataset.dataset(self.out, format="parquet", schema=pa.schema([("id", pa.int64())])).to_table()
        return sorted(table["id"].to_pylist())

    def catch_up(self) -> None:
        """What Spark does: run again what it has not committed."""
        engine = self.engine
        for number in range(-1 if engine.committed is None else engine.committed, len(self.batches)):
            if number >= 0 and (engine.committed is None or number > engine.committed):
                self.run(number)

    def run(self, number: int) -> None:
        self.runs += 1
        rows = [i for part in self.batches[number] for i in part]
        count = len(self.batches[number]) + self.runs % 2  # a replay may split the rows otherwise
        self.engine.run(number, *([two_buckets(rows[part::count])] for part in range(count)))

    # -- what happens ---------------------------------------------------------------------------------------------

    @precondition(lambda self: self.alive)
    @rule(sizes=st.lists(st.integers(0, 3), min_size=1, max_size=3))
    def batch(self, sizes: list[int]) -> None:
        self.plan(sizes)
        self.catch_up()

    def plan(self, sizes: list[int]) -> None:
        parts = []
        for size in sizes:
            parts.append(list(range(self.next_id, self.next_id + size)))
            self.next_id += size
        self.batches.append(parts)

    @precondition(lambda self: self.alive)
    @rule(sizes=st.lists(st.integers(0, 3), min_size=1, max_size=3), fault=st.sampled_from(FAULTS))
    def batch_dies(self, sizes: list[int], fault: str) -> None:
        self.plan(sizes)
        try:
            with armed(fault):
                self.catch_up()
        except Died:
            self.alive = False

    @precondition(lambda self: self.alive)
    @rule(seconds=st.sampled_from([1, 31, 61, 3601]))
    def time_passes(self, seconds: int) -> None:
        self.clock.now += seconds
        self.engine.tick()
        assert self.engine.coordinator.failure is None

    @precondition(lambda self: self.alive)
    @rule(
        fault=st.sampled_from(
            ["commit.subtask=error", "commit.subtask=lost@2", "commit.mark=error", "commit.mark=lost"]
        )
    )
    def end_dies(self, fault: str) -> None:
        try:
            with armed(fault):
                self.engine.coordinator.finish(0.0)
        except Died:
            pass
        self.alive = False

    @rule(policy=st.sampled_from(ROLLINGS), paused=st.booleans(), patient=st.booleans())
    def restart(self, policy: Rolling, paused: bool, patient: bool) -> None:
        """One that is not patient dies of the first failure, as a kill would do it."""
        if paused and len(self.zombies) < 2:
            self.zombies.append(_copy(self.engine))
        self.engine.restart(self.sink(policy), retry=Retry(for_=0.25 if patient else 0))
        self.alive = True

    @rule(fault=st.sampled_from(["recovery=error", "commit.subtask=error", "commit.subtask=lost", "commit.mark=lost"]))
    def restart_dies(self, fault: str) -> None:
        try:
            with armed(fault):
                self.engine.restart(self.sink(Rolling(age="0s")))
            self.alive = True
        except Died:
            self.alive = False

    @rule(fault=st.sampled_from(["", "commit.subtask=error", "commit.subtask=lost", "commit.mark=error"]))
    def flush(self, fault: str) -> None:
        """Fences whoever runs."""
        try:
            with armed(fault):
                if flush(self.engine.storage, "orders", self.engine.log.lineage):
                    self.alive = False
        except Died:
            self.alive = False

    @rule()
    def zombies_wake_up(self) -> None:
        """Each tries all it can: to finish its plan, to sweep, to plan, to run a batch."""
        for zombie in self.zombies:
            (sink,) = zombie.sinks
            sink.act_on_state(zombie.coordinator._tasks)
            sink.recover("orders", zombie.log.generation, {})
            failed = zombie.coordinator.failure
            try:
                zombie.coordinator.finish(0.0)
                zombie.run(len(self.batches), [10**9])
            except FencedError:
                continue
            except Died as error:
                assert error is failed, "one that had failed before says that again"
                continue
            raise AssertionError("a zombie decided")
        self.zombies.clear()

    @invariant()
    def each_row_once_and_none_vanishes(self) -> None:
        rows = self.visible()
        assert len(rows) == len(set(rows))
        assert self.seen <= set(rows)
        self.seen = set(rows)
        sent = {i for batch in self.batches for part in batch for i in part}
        assert self.seen <= sent


def _copy(engine: Engine) -> Engine:
    zombie = object.__new__(Engine)
    zombie.__dict__.update(engine.__dict__)
    return zombie


TestFiles = Files.TestCase
TestFiles.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)
