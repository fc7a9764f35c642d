"""What the process beside the driver has a task do, and what the task answers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
from pyspark import TaskContext

from holdfast.checkpoint.bad_rows import Letters
from holdfast.checkpoint.ports import Run, SubtaskReport
from holdfast.checkpoint.shared import Look, Seen
from holdfast.core.model import CheckpointId
from holdfast.core.passes import Attempt, place
from holdfast.errors import EngineError
from holdfast.sinks.subtask import make_task, write_subtask
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark import private
from holdfast.spark.failures import marked
from holdfast.spark.tasks import spare_collector

#: Tasks of a data source are not told which time zone the session has, so sinks get points in time in this one.
ZONE = "UTC"
_BATCH_ID = "streaming.sql.batchId"


@dataclass(frozen=True)
class TaskOrder:
    """One micro-batch, as its tasks need it; made before they begin."""

    run: Run
    checkpoint_id: CheckpointId
    timestamp: int = 0
    #: None: the batch is decided already, its rows go nowhere
    sinks: tuple[TwoPhaseCommitSink, ...] | None = None
    letters: Letters | None = None
    careful: bool = False
    #: of the pass over the rows, see holdfast.core.passes
    number: int = 0
    #: whether this task sees what the driver sees
    look: Look | None = None

    def __repr__(self) -> str:
        return f"TaskOrder({self.run.pipeline!r}, checkpoint {self.checkpoint_id})"


@dataclass(frozen=True)
class Answer:
    """What one task did."""

    generation: int
    checkpoint_id: CheckpointId
    #: which try it was, and the number of the task
    attempt: tuple[int, int]
    report: SubtaskReport | None
    seen: Seen | None

    def text(self) -> str:
        """As a commit message carries it."""
        return json.dumps(asdict(self))

    @staticmethod
    def parse(text: str) -> Answer:
        """Read it back."""
        body: dict[str, Any] = json.loads(text)
        report, seen = body["report"], body["seen"]
        return Answer(
            body["generation"],
            body["checkpoint_id"],
            (body["attempt"][0], body["attempt"][1]),
            None if report is None else SubtaskReport.parse(report),
            None if seen is None else Seen(seen["host"], seen["number"], tuple(seen["problems"])),
        )


def carry_out(order: TaskOrder, batches: Iterable[pa.RecordBatch]) -> Answer:
    """In a task: write the partition, or only read it."""
    context = TaskContext.get()
    assert context is not None
    subtask, task, number = context.partitionId(), context.taskAttemptId(), context.attemptNumber()
    with marked():
        found = context.getLocalProperty(_BATCH_ID)
        if found != str(order.checkpoint_id):
            raise EngineError(
                f"Spark runs batch {found} with what was prepared for batch {order.checkpoint_id}: nothing is written. "
                "Start the query again; if it comes again, use hf.write_stream"
            )
        seen = None if order.look is None else order.look(subtask)
        if order.sinks is None:
            for _ in batches:  # a stateful query that is not drained is bricked
                pass
            return Answer(order.run.generation, order.checkpoint_id, (number, task), None, seen)
        where = place(order.number, Attempt(number, task))
        tasks = [
            make_task(order.run, sink.name, order.checkpoint_id, subtask, task, order.timestamp, 0, where)
            for sink in order.sinks
        ]
        report = write_subtask(order.sinks, tasks, in_zone(batches), None, order.letters, careful=order.careful)
    spare_collector()
    return Answer(order.run.generation, order.checkpoint_id, (number, task), report, seen)


def in_zone(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same points in time, told in one zone."""
    for batch in batches:
        wanted = private.in_zone(batch.schema, ZONE)
        yield batch if wanted.equals(batch.schema) else batch.cast(wanted)


def reports_of(answers: Sequence[Answer]) -> list[SubtaskReport]:
    """Those of all tasks, in order."""
    return sorted((a.report for a in answers if a.report is not None), key=lambda report: report.subtask)
