"""A query of the contract suite whose batches go through `format("holdfast")`, with Spark's part played by hand.

The run is that of the process beside the driver (`DoorRun`), tasks are those that Spark would start (`carry_out`), and
whatever crosses a process there is copied or becomes text here. Only the clock and the delivery loops are the suite's
own, as in every check: nobody waits, and a driver can die in any of its steps.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from unittest import mock

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema

from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.log import HISTORY_RETAIN
from holdfast.checkpoint.loops import Inline
from holdfast.core.retry import Retry
from holdfast.doors import orders
from holdfast.doors import run as runs
from holdfast.doors.handed import HandedBatch
from holdfast.doors.options import Plan
from holdfast.doors.orders import Answer, TaskOrder, carry_out, reports_of
from holdfast.doors.run import DoorRun
from holdfast.errors import EngineError
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark.private import pickled
from holdfast.testing.local import Clock, LocalBatch, LocalQuery, LocalRun, _broken
from tests.unit.door_spark import Context


class DoorQuery(LocalQuery):
    """See LocalQuery; what Spark writes down is in files, where a data source looks for it."""

    def start(self, sinks: Sequence[TwoPhaseCommitSink]) -> LocalRun:
        """The first batch of a run, as far as it goes without rows: it claims, fences and recovers."""
        for part in ("offsets", "commits"):
            Path(self.folder, part).mkdir(exist_ok=True)
        clock = Clock()
        settings = {"retry": Retry(for_="10s", first_wait="1s", longest_wait="5s"), "drain_timeout": 60.0}
        plan = Plan(self.pipeline, self.folder, list(sinks), None, HISTORY_RETAIN, settings)
        # Spark plans a batch before it calls a data source: so there is always one more than it has committed.
        self.plan(0 if self.committed is None else self.committed + 1)
        made = partial(Coordinator, clock=clock, loops=Inline(clock.skip))
        schema = from_arrow_schema(self.schema).json()
        with mock.patch.object(runs, "read_options", lambda _: plan), mock.patch.object(runs, "Coordinator", made):
            return DoorLocalRun(self, DoorRun({}, schema), clock)

    def plan(self, batch: int) -> None:
        """As Spark does before it calls anybody."""
        Path(self.folder, "offsets", str(batch)).touch()

    def commit(self, batch: int) -> None:
        """As Spark does when a data source has committed."""
        Path(self.folder, "commits", str(batch)).touch()
        self.committed = max(batch, -1 if self.committed is None else self.committed)


class DoorLocalRun(LocalRun):
    """See LocalRun."""

    def __init__(self, query: DoorQuery, door: DoorRun, clock: Clock) -> None:
        coordinator = door._coordinator
        info = coordinator.run_info
        assert info is not None
        super().__init__(query, coordinator, list(coordinator._sinks), info, clock)
        self._query, self._door = query, door

    def run(self, checkpoint_id: int, batch: LocalBatch) -> None:
        """One micro-batch: planned, its tasks, and what Spark does with their answers."""
        self._query.plan(checkpoint_id)
        order = self._door.begin()
        assert isinstance(self._door._batch, HandedBatch) and self._door._batch.checkpoint_id == checkpoint_id
        try:
            answers = self._tasks(order, batch)
        except Exception as error:
            self._door.abort(EngineError("Spark has given up this batch: a task failed"))
            self._door.close(error)
            raise
        self._door.commit(checkpoint_id, answers)
        self._query.commit(checkpoint_id)

    def _tasks(self, order: TaskOrder, batch: LocalBatch) -> list[Answer]:
        if order.sinks is None:
            batch.drained += 1
        else:
            batch.written += 1
        answers = []
        for subtask, rows in enumerate(batch.partitions):
            if order.sinks is not None and subtask in batch._retried:
                batch.forgotten += reports_of([self._task(order, subtask, rows)])[0].committables
            answers.append(self._task(order, subtask, _broken(iter(rows)) if subtask == batch._failing else rows))
        if batch._prepared is not None and order.sinks is not None:
            batch._prepared(reports_of(answers))
        return answers

    def _task(self, order: TaskOrder, subtask: int, rows: Iterable[pa.RecordBatch]) -> Answer:
        context = Context(order.checkpoint_id, subtask)
        with mock.patch.object(orders.TaskContext, "get", lambda: context):
            copy: TaskOrder = pickle.loads(pickled(order))
            return Answer.parse(carry_out(copy, rows).text())

    def close(self) -> None:
        """The driver ends, and the process beside it with it."""
        self._door.close(None, finish=True)
