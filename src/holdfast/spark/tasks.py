"""What runs in executors, and how its answers come back."""

from __future__ import annotations

import functools
import gc
import json
import pickle
import re
import sys
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.sql import DataFrame

from holdfast.checkpoint import hadoop
from holdfast.checkpoint.bad_rows import Letters
from holdfast.checkpoint.ports import Run, SubtaskReport
from holdfast.core.model import CheckpointId
from holdfast.core.passes import Attempt, place
from holdfast.core.repair import Replayed
from holdfast.errors import EngineError, HoldfastError
from holdfast.sinks.selection import WHOLE, Selections
from holdfast.sinks.subtask import digest_partition, make_task, write_subtask
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark.failures import QueryFailedError, asking_spark, interrupted, marked, reason, restored
from holdfast.spark.partitions import PartitionFunction, PlanReader, each_partition

Item = TypeVar("Item")
Result = TypeVar("Result")
#: What Arrow's and Java's memory say of a batch that does not fit.
_TOO_LARGE = re.compile(r"OversizedAllocation|OutOfMemory|Memory required for vector|exceeds max|Required buffer size")


class SparkBatch:
    """One micro-batch, as the coordinator wants it."""

    def __init__(
        self, frame: DataFrame, batch_id: int, query: PlanReader, selections: Selections, letters: Letters | None
    ) -> None:
        self._frame, self._batch_id, self._query = frame, batch_id, query
        self._selections, self._letters = selections, letters

    @asking_spark()
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
        """One Spark job, one pass over the rows for all sinks; one small JSON message a task comes back."""
        selections, letters = self._selections, self._letters
        # A repair never has the names of the work it repairs: a part of that may be committed.
        number = self._query.passes.begin(repair=repair > 0)

        def write_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[str]:
            context = TaskContext.get()
            assert context is not None
            subtask, attempt = context.partitionId(), context.taskAttemptId()
            if only is not None and subtask not in only:
                for _ in batches:  # a stateful query that is not drained is bricked
                    pass
                return
            counted = (context.stageId(), context.attemptNumber(), attempt)
            where = place(number, Attempt(*counted[1:]))
            tasks = [
                make_task(run, sink.name, checkpoint_id, subtask, attempt, timestamp, repair, where) for sink in sinks
            ]
            with marked():
                report = write_subtask(sinks, tasks, batches, selections, letters, careful=careful)
            spare_collector()
            yield json.dumps([counted, asdict(report)])

        self._query.batches.limit(self._frame.sparkSession)
        found: list[Any] | None = None
        # A repair compares partitions with what is recorded, one by one if it can: it has them as the source has.
        gather = repair == 0 and all(sink.gathers for sink in sinks)
        try:
            found = [json.loads(text) for text in self._each(write_partition, gather=gather)]
        finally:
            self._query.ended(number, None if found is None else [counted for counted, _ in found])
        reports = sorted((SubtaskReport.parse(body) for _, body in found), key=lambda report: report.subtask)
        self._query.batches.learn(reports)
        return reports

    @asking_spark()
    def digests(self, sink: str) -> list[Replayed]:
        """See holdfast.checkpoint.ports.Batch."""
        selection = self._selections.get(sink, WHOLE)

        def digest(batches: Iterator[pa.RecordBatch]) -> Iterator[str]:
            context = TaskContext.get()
            assert context is not None
            found = digest_partition(context.partitionId(), batches, selection)
            if found is not None:
                yield json.dumps(asdict(found))

        return sorted((Replayed(**json.loads(text)) for text in self._each(digest)), key=lambda r: r.subtask)

    def _each(self, function: PartitionFunction, *, gather: bool = False) -> list[str]:
        """Both ways of reading the rows split them alike: what feeds the frame is the plan.

        With `gather` a batch of few rows is not split at all.
        """
        function = _knowing_stores(function)
        plan = self._query.plan(self._frame, self._batch_id)
        try:
            with restored(), asking_spark():
                together = gather and plan is not None and self._query.has_few_rows(plan)
                return each_partition(self._frame, plan, function, together=together)
        except HoldfastError:
            raise
        except Exception as error:
            if plan is not None and _TOO_LARGE.search(str(error)):
                self._query.batches.too_large()
                why = f"a batch of rows was too large to be made ({reason(error)}): they come in smaller ones now"
                raise EngineError(why, again=True) from error
            if interrupted(error):
                raise
            raise QueryFailedError(
                f"Spark could not run the batch: {reason(error)}. Nothing of it was decided; mend the query, or start "
                "it again if the reason is gone"
            ) from error

    @asking_spark()
    def drain(self) -> None:
        """Run the batch into nothing."""
        self._frame.write.format("noop").mode("overwrite").save()


def _knowing_stores(function: PartitionFunction) -> PartitionFunction:
    """Tasks reach object stores as the driver does."""
    settings = hadoop.given()

    def knowing(batches: Iterator[pa.RecordBatch]) -> Iterator[str]:
        hadoop.use(settings)
        yield from function(batches)

    return knowing


def spare_collector() -> None:
    """At the end of a task: the collector passes over what this worker process has imported so far.

    PySpark collects garbage after every task of a worker it keeps, and going through some 700 modules took 45 ms of
    every task, more than all else in a small one.
    """
    _freeze(len(sys.modules))


@functools.cache
def _freeze(modules: int) -> None:
    """Once for this many modules: the first tasks import more than one alone needs."""
    gc.collect()
    gc.freeze()


class SparkTasks:
    """Runs functions on the executors, one task an item; each sink's under a job group of its own."""

    #: jobs of sinks that are under way, in all queries of this process
    _busy = 0
    _counting = threading.Lock()

    def __init__(self, context: SparkContext, group: str | None = None) -> None:
        self._context, self._group = context, group

    def of_sink(self, sink: str) -> SparkTasks:
        """For one sink's delivery."""
        return SparkTasks(self._context, f"holdfast-{uuid.uuid4().hex}-{sink}")

    def cancel(self) -> None:
        """End what runs: Spark kills the Python worker of a task that hangs in its endpoint."""
        if self._group is not None:
            self._context.cancelJobGroup(self._group)

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """See holdfast.checkpoint.ports.Tasks."""
        if not items:
            return []
        if self._group is None:
            return self._map(function, items)
        with SparkTasks._counting:
            SparkTasks._busy += 1
            crowded = SparkTasks._busy >= self._context.defaultParallelism
        try:
            # An endpoint that hangs holds a core of a local Spark for as long; the last one is for the stream.
            if crowded and (self._context.master or "").startswith("local"):
                return [function(item) for item in items]
            self._context.setJobGroup(self._group, "holdfast delivers", interruptOnCancel=True)
            return self._map(function, items)
        finally:
            with SparkTasks._counting:
                SparkTasks._busy -= 1

    def beside(self, function: Callable[[Item], Result], item: Item) -> Result:
        """See holdfast.checkpoint.ports.HasBeside: a local Spark has as many slots as cores, and all are the stream's.

        There the driver is where the executors are, so its thread does as well.
        """
        if (self._context.master or "").startswith("local"):
            return function(item)
        return self.map(function, [item])[0]

    def _map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        with asking_spark():  # and not around what the function raised, which may be an endpoint that hung up
            answers = self._context.parallelize(items, len(items)).map(_Guarded(function)).collect()
        failures = [error for kind, error in answers if kind == "error"]
        if failures:
            raise failures[0]
        return [result for _, result in answers]


class _Guarded:
    """Brings an exception back as itself: its type tells the driver whether trying again can help."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function, self._stores = function, hadoop.given()

    def __call__(self, item: Any) -> tuple[str, Any]:
        try:
            hadoop.use(self._stores)
            result = self._function(item)
            spare_collector()
            return "result", result
        except Exception as error:  # noqa: BLE001  raised on the driver
            return "error", _portable(error)


def _portable(error: Exception) -> Exception:
    try:
        copy = pickle.loads(pickle.dumps(error))  # noqa: S301  our own bytes, to see whether they survive
        if isinstance(copy, type(error)):
            return copy
    except Exception as problem:  # noqa: BLE001  some exceptions cannot be pickled: say so and go on with the text
        return HoldfastError(f"{type(error).__name__}: {error} (its type could not be sent: {problem})")
    return HoldfastError(f"{type(error).__name__}: {error}")
