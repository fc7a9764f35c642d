"""What runs in executors, and how its answers come back."""

from __future__ import annotations

import functools
import gc
import json
import pickle
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import pyarrow as pa
from pyspark import SparkContext, TaskContext
from pyspark.sql import DataFrame

from holdfast.checkpoint.ports import Run, SubtaskReport
from holdfast.core.model import CheckpointId, Committable
from holdfast.core.repair import Replayed
from holdfast.errors import HoldfastError
from holdfast.sinks.subtask import digest_partition, make_task, write_subtask
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark.partitions import PartitionFunction, Query, each_partition

Item = TypeVar("Item")
Result = TypeVar("Result")


class SparkBatch:
    """One micro-batch, as the coordinator wants it."""

    def __init__(self, frame: DataFrame, batch_id: int, query: Query) -> None:
        self._frame, self._batch_id, self._query = frame, batch_id, query

    def write(
        self,
        run: Run,
        sinks: Sequence[TwoPhaseCommitSink],
        checkpoint_id: CheckpointId,
        timestamp: int,
        *,
        only: Collection[int] | None = None,
        repair: int = 0,
    ) -> list[SubtaskReport]:
        """One Spark job, one pass over the rows for all sinks; one small JSON message a task comes back."""

        def write_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[str]:
            context = TaskContext.get()
            assert context is not None
            subtask, attempt = context.partitionId(), context.taskAttemptId()
            if only is not None and subtask not in only:
                for _ in batches:  # a stateful query that is not drained is bricked
                    pass
                return
            tasks = [make_task(run, sink.name, checkpoint_id, subtask, attempt, timestamp, repair) for sink in sinks]
            report = write_subtask(sinks, tasks, batches)
            spare_collector()
            yield json.dumps(asdict(report))

        self._query.batches.limit(self._frame.sparkSession)
        reports = sorted(map(_parse, self._each(write_partition)), key=lambda report: report.subtask)
        self._query.batches.learn(reports)
        return reports

    def digests(self) -> list[Replayed]:
        """See holdfast.checkpoint.ports.Batch."""

        def digest(batches: Iterator[pa.RecordBatch]) -> Iterator[str]:
            context = TaskContext.get()
            assert context is not None
            found = digest_partition(context.partitionId(), batches)
            if found is not None:
                yield json.dumps(asdict(found))

        return sorted((Replayed(**json.loads(text)) for text in self._each(digest)), key=lambda r: r.subtask)

    def _each(self, function: PartitionFunction) -> list[str]:
        """Both ways of reading the rows split them alike: what feeds the frame is the plan."""
        return each_partition(self._frame, self._query.plan(self._frame, self._batch_id), function)

    def drain(self) -> None:
        """Run the batch into nothing."""
        self._frame.write.format("noop").mode("overwrite").save()


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


def _parse(text: str) -> SubtaskReport:
    body = json.loads(text)
    committables = tuple(Committable(**c) for c in body.pop("committables"))
    return SubtaskReport(**body, committables=committables)


class SparkTasks:
    """Runs functions on the executors, one task an item."""

    def __init__(self, context: SparkContext) -> None:
        self._context = context

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """See holdfast.checkpoint.ports.Tasks."""
        if not items:
            return []
        answers = self._context.parallelize(items, len(items)).map(_Guarded(function)).collect()
        failures = [error for kind, error in answers if kind == "error"]
        if failures:
            raise failures[0]
        return [result for _, result in answers]


class _Guarded:
    """Brings an exception back as itself: its type tells the driver whether trying again can help."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, item: Any) -> tuple[str, Any]:
        try:
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
