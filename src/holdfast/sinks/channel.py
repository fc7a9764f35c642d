"""One sink in one task: its transaction, begun with its first row, and what went into it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.guard import guarded
from holdfast.core.model import Committable
from holdfast.core.naming import Task
from holdfast.errors import ConfigError, HoldfastError
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


class Channel:
    """A sink that gets no row opens no transaction and leaves no committable."""

    def __init__(self, sink: TwoPhaseCommitSink, task: Task) -> None:
        self.sink, self.task = sink, task
        self.rows = self.bytes = 0
        #: column that the sink leaves out -> its values
        self.discarded: Counter[str] = Counter()
        self._txn: Any = None
        self.begun = False

    def write(self, batch: pa.RecordBatch) -> None:
        """Write rows, at least one."""
        with running(self.task):
            if not self.begun:
                with guarded(self.sink, "begin"):
                    self._txn = self.sink.begin(self.task)
                self.begun = True
            with guarded(self.sink, "write"):
                self.sink.write(self._txn, batch.drop_columns(self.sink.discards) if self.sink.discards else batch)
        for column in self.sink.discards:
            self.discarded[column] += batch.num_rows - batch.column(column).null_count
        self.rows += batch.num_rows
        self.bytes += batch.nbytes

    def prepare(self) -> Committable | None:
        """Pre-commit; None when there is nothing to commit."""
        if not self.begun:
            return None
        with running(self.task), guarded(self.sink, "pre-commit"):
            data = self.sink.pre_commit(self._txn)
        if data is None:
            return None
        return Committable(self.sink.name, self.task.subtask, self._checked(data), self.rows, self.bytes)

    @property
    def hashed(self) -> bool:
        """Whether a digest of its rows is wanted."""
        return bool(self.sink.repairable or self.task.repair)

    def undo(self, error: BaseException | None) -> None:
        """Abort, and be as new; with an error on its way, what goes wrong is attached to it."""
        if error is not None:
            self.abort(error)
        elif self.begun:
            with running(self.task), guarded(self.sink, "abort"):
                self.sink.abort(self._txn)
        self.begun, self.rows, self.bytes, self._txn = False, 0, 0, None
        self.discarded.clear()

    def abort(self, error: BaseException) -> None:
        """Undo it; what goes wrong is attached to the error that is on its way up."""
        if not self.begun:
            return
        try:
            with running(self.task):
                self.sink.abort(self._txn)
        except Exception as problem:  # noqa: BLE001  attached to the error that is on its way up
            error.add_note(f"while sink {self.sink.name!r} aborted: {type(problem).__name__}: {problem}")

    def _checked(self, data: Any) -> dict[str, Any]:
        """Check that what the author returned comes back from a record as it went in."""
        try:
            plain = json.loads(json.dumps(data, allow_nan=False))
        except (TypeError, ValueError) as error:
            raise ConfigError(f"sink {self.sink.name!r}: pre_commit must return plain JSON data: {error}") from error
        if not isinstance(plain, dict) or plain != data:
            raise ConfigError(
                f"sink {self.sink.name!r}: pre_commit must return a dict that JSON leaves unchanged (string keys, "
                f"lists instead of tuples), not {type(data).__name__}"
            )
        return plain
