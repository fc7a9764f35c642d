"""A query without Spark: the real log, coordinator and task code, on lists of Arrow batches.

Everything that crosses a process in production crosses a pickle here: sinks go to "tasks" as copies, answers come back
as JSON. Task attempt numbers begin at 0 in every run, as they do in a restarted Spark application.
"""

from __future__ import annotations

import itertools
import json
import os
import pickle
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import TypeVar

import cloudpickle
import pyarrow as pa

from holdfast.checkpoint.bad_rows import Letters
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.loops import Inline
from holdfast.checkpoint.ports import EnginePosition, Run, SubtaskReport
from holdfast.checkpoint.storage import LocalStorage
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Committable
from holdfast.core.repair import Replayed
from holdfast.core.retry import Retry
from holdfast.sinks.fan import fanned
from holdfast.sinks.selection import WHOLE, Selections
from holdfast.sinks.subtask import digest_partition, make_task, write_subtask
from holdfast.sinks.two_phase import TwoPhaseCommitSink

Item = TypeVar("Item")
Result = TypeVar("Result")
Partitions = Sequence[Sequence[pa.RecordBatch]]


class TaskFailed(Exception):
    """A task was told to fail."""


class Died(BaseException):
    """A driver was told to die: not an Exception, since nobody can catch a death."""


def pickled_copy(thing: Item) -> Item:
    """The copy that arrives in another process."""
    copy: Item = pickle.loads(cloudpickle.dumps(thing))  # noqa: S301  our own bytes
    return copy


class PickledTasks:
    """Runs functions here, one after the other, on copies, as an executor would."""

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """See holdfast.checkpoint.ports.Tasks."""
        return [pickled_copy(pickled_copy(function)(pickled_copy(item))) for item in items]


class LocalBatch:
    """One micro-batch: a list of Arrow batches for each partition.

    `failing` names a partition whose task breaks off after its first rows. `retried` names partitions whose first
    attempt prepares and is then forgotten, as when an executor dies before it can answer; what it prepared is kept in
    `forgotten`. `prepared` is called when every task has prepared and nothing is decided. `selections` are the sinks'
    own rows, `letters` says which of them take dead letters. With `copied` off sinks and answers are not copied, for
    whoever measures something else.
    """

    def __init__(
        self,
        partitions: Partitions,
        *,
        failing: int | None = None,
        retried: Collection[int] = (),
        prepared: Callable[[list[SubtaskReport]], None] | None = None,
        selections: Selections | None = None,
        letters: Letters | None = None,
        copied: bool = True,
    ) -> None:
        self.partitions = partitions
        self._copied = copied
        self.drained = 0
        self.written = 0
        self.forgotten: list[Committable] = []
        self.attempts: Iterator[int] = itertools.count()
        self._failing, self._retried, self._prepared = failing, retried, prepared
        self._selections, self._letters, self._careful = selections or {}, letters, False

    def write(
        self,
        run: Run,
        sinks: Sequence[TwoPhaseCommitSink],
        checkpoint_id: CheckpointId,
        timestamp: int,
        *,
        only: Collection[int] | None = None,
        repair: int = 0,
        careful: bool = False,
    ) -> list[SubtaskReport]:
        """See holdfast.checkpoint.ports.Batch."""
        self.written += 1
        self._careful = careful
        reports = []
        for subtask in range(len(self.partitions)) if only is None else sorted(only):
            if subtask in self._retried:
                self.forgotten += self._task(run, sinks, checkpoint_id, subtask, timestamp, repair).committables
            reports.append(self._task(run, sinks, checkpoint_id, subtask, timestamp, repair))
        if self._prepared is not None:
            self._prepared(reports)
        return reports

    def digests(self, sink: str) -> list[Replayed]:
        """See holdfast.checkpoint.ports.Batch."""
        selection = self._selections.get(sink, WHOLE)
        found = [digest_partition(n, part, selection) for n, part in enumerate(self.partitions)]
        return [replayed for replayed in found if replayed is not None]

    def drain(self) -> None:
        """See holdfast.checkpoint.ports.Batch."""
        self.drained += 1

    def _task(
        self,
        run: Run,
        sinks: Sequence[TwoPhaseCommitSink],
        checkpoint_id: CheckpointId,
        subtask: int,
        timestamp: int,
        repair: int,
    ) -> SubtaskReport:
        attempt = next(self.attempts)
        copies = [pickled_copy(sink) for sink in sinks] if self._copied else sinks
        tasks = [make_task(run, sink.name, checkpoint_id, subtask, attempt, timestamp, repair) for sink in copies]
        batches = iter(self.partitions[subtask])
        broken = _broken(batches) if subtask == self._failing else batches
        report = write_subtask(copies, tasks, broken, self._selections, self._letters, careful=self._careful)
        return SubtaskReport.parse(json.loads(json.dumps(asdict(report)))) if self._copied else report


def _broken(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from itertools.islice(batches, 1)
    raise TaskFailed("this task was told to fail after its first rows")


class Clock:
    """The time, and a way to skip some of it: nobody waits in a test."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        """Seconds since the epoch."""
        return time.time() + self._skipped

    def skip(self, seconds: float) -> None:
        """Let time pass."""
        self._skipped += seconds


class LocalQuery:
    """A pipeline and its checkpoint location, with what Spark's own checkpoint would say."""

    def __init__(self, folder: str, pipeline: str, schema: pa.Schema | None = None) -> None:
        self.folder, self.pipeline, self.schema = folder, pipeline, schema
        self.planned: CheckpointId | None = None
        self.committed: CheckpointId | None = None

    @property
    def storage(self) -> LocalStorage:
        """Where the log is."""
        return LocalStorage(f"{self.folder}/holdfast")

    def start(self, sinks: Sequence[TwoPhaseCommitSink]) -> LocalRun:
        """A new driver: it claims, fences and recovers. An older one that was not closed is a crashed or paused one."""
        log, sinks = CheckpointLog(self.storage, self.pipeline), [fanned(sink) for sink in sinks]
        clock = Clock()
        retry = Retry(for_="10s", first_wait="1s", longest_wait="5s")
        coordinator = Coordinator(log, sinks, PickledTasks(), retry=retry, clock=clock, loops=Inline(clock.skip))
        info = coordinator.start(lambda: EnginePosition(self.planned, self.committed), self.schema)
        return LocalRun(self, coordinator, sinks, info, clock)


class LocalRun:
    """One run of a query; dropping it without `close` is a crash of the driver."""

    def __init__(
        self, query: LocalQuery, coordinator: Coordinator, sinks: list[TwoPhaseCommitSink], info: Run, clock: Clock
    ) -> None:
        self.query, self.coordinator, self.sinks, self.info = query, coordinator, sinks, info
        self._clock = clock
        self._attempts = itertools.count()

    def run(self, checkpoint_id: CheckpointId, batch: LocalBatch) -> None:
        """One micro-batch, as Spark runs it: planned before, committed after."""
        query = self.query
        batch.attempts = self._attempts
        query.planned = max(checkpoint_id, -1 if query.planned is None else query.planned)
        self.coordinator.run(checkpoint_id, batch)
        query.committed = max(checkpoint_id, -1 if query.committed is None else query.committed)

    def deliver(self, ticks: int = 3) -> None:
        """Let the timer pass until nothing lags."""
        for _ in range(ticks):
            if self.coordinator.pending:
                self._clock.skip(60.0)
                self.coordinator.tick()

    def close(self) -> None:
        """The query ends."""
        self.coordinator.close(0.0)


@contextmanager
def armed(text: str, *, died: bool = False) -> Iterator[dict[str, bool]]:
    """Arm fault points in this process, `point=mode[@n]`, for the length of a block; then the dict says which fired.

    With `died` a fault is no error that can be handled or tried again, but the end of the driver.
    """
    points, fired = faults.parse(text), dict[str, bool]()
    raised = vars(faults)["InjectedFault"]
    vars(faults)["InjectedFault"] = Died if died else raised
    before = {name: os.environ.pop(name, None) for name in (faults.VARIABLE, faults.ONCE)}
    faults._hits.clear()
    os.environ[faults.VARIABLE] = text
    try:
        yield fired
    finally:
        vars(faults)["InjectedFault"] = raised
        fired.update({point: faults._hits[point] >= count for point, (_, count) in points.items()})
        faults._hits.clear()
        del os.environ[faults.VARIABLE]
        os.environ.update({name: value for name, value in before.items() if value is not None})
