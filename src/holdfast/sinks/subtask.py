"""What happens in one task: one pass over a partition, into every sink."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.guard import guarded
from holdfast.checkpoint.ports import Run, SubtaskReport
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Committable
from holdfast.core.naming import Task
from holdfast.core.repair import Replayed
from holdfast.errors import ConfigError, HoldfastError
from holdfast.sinks.digest import Digest
from holdfast.sinks.two_phase import TwoPhaseCommitSink

_current: ContextVar[Task | None] = ContextVar("holdfast_task", default=None)


def current_task() -> Task:
    """The task this code runs in; only inside `begin`, `write`, `pre_commit`, `abort` and `send_values`."""
    task = _current.get()
    if task is None:
        raise HoldfastError("current_task() works only inside a sink's task methods; on the driver there is no task")
    return task


@contextmanager
def running(task: Task) -> Iterator[None]:
    """Make `current_task()` answer with this task."""
    token = _current.set(task)
    try:
        yield
    finally:
        _current.reset(token)


def make_task(
    run: Run, sink: str, checkpoint_id: CheckpointId, subtask: int, attempt: int, timestamp: int, repair: int = 0
) -> Task:
    """The identity of one attempt at one sink."""
    return Task(
        run.pipeline,
        sink,
        run.lineage,
        run.generation,
        checkpoint_id,
        subtask,
        attempt,
        timestamp,
        run.location,
        repair,
    )


def digest_partition(subtask: int, batches: Iterable[pa.RecordBatch]) -> Replayed | None:
    """What a partition holds, None when it is empty; the rows go nowhere."""
    digest = Digest()
    for batch in batches:
        digest.add(batch)
    return Replayed(subtask, digest.rows, digest.text or "") if digest.rows else None


def write_subtask(
    sinks: Sequence[TwoPhaseCommitSink],
    tasks: Sequence[Task],
    batches: Iterable[pa.RecordBatch],
) -> SubtaskReport:
    """Write a partition to every sink and pre-commit; on any failure abort them all.

    A transaction is begun with the first rows, so that an empty partition opens none. The iterator is always drained:
    a stateful query that is not is bricked.
    """
    begun: list[tuple[TwoPhaseCommitSink, Task, Any]] = []
    rows = size = 0
    digest = Digest(hashed=any(sink.repairable for sink in sinks) or any(task.repair for task in tasks))
    try:
        for batch in batches:
            if batch.num_rows == 0:
                continue
            digest.add(batch)
            if not begun:
                for sink, task in zip(sinks, tasks, strict=True):
                    with running(task), guarded(sink, "begin"):
                        begun.append((sink, task, sink.begin(task)))
            for sink, task, txn in begun:
                with running(task), guarded(sink, "write"):
                    sink.write(txn, batch)
            rows += batch.num_rows
            size += batch.nbytes
            with faults.point("task.write"):
                pass
        committables = []
        for sink, task, txn in begun:
            with running(task), guarded(sink, "pre-commit"):
                data = sink.pre_commit(txn)
            if data is not None:
                committable = _committable(sink, task, data, rows, size)
                committables.append(replace(committable, digest=digest.text) if sink.repairable else committable)
        with faults.point("task.prepared"):
            return SubtaskReport(tasks[0].subtask, rows, size, tuple(committables), digest.text)
    except BaseException as error:
        for sink, task, txn in begun:
            try:
                with running(task):
                    sink.abort(txn)
            except Exception as problem:  # noqa: BLE001  attached to the error that is on its way up
                error.add_note(f"while sink {sink.name!r} aborted: {type(problem).__name__}: {problem}")
        raise


def _committable(sink: TwoPhaseCommitSink, task: Task, data: Any, rows: int, size: int) -> Committable:
    """Check that what the author returned comes back from a record as it went in."""
    try:
        plain = json.loads(json.dumps(data, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"sink {sink.name!r}: pre_commit must return plain JSON data: {error}") from error
    if not isinstance(plain, dict) or plain != data:
        raise ConfigError(
            f"sink {sink.name!r}: pre_commit must return a dict that JSON leaves unchanged (string keys, lists instead "
            f"of tuples), not {type(data).__name__}"
        )
    return Committable(sink.name, task.subtask, plain, rows, size)
