"""A sink whose table or folder is a pattern over columns, its half that runs in tasks: each name gets its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from holdfast.core.naming import Task
from holdfast.errors import RowError
from holdfast.sinks.pattern import places
from holdfast.sinks.two_phase import TwoPhaseCommitSink

_COPIED = (
    "name",
    "may_lag",
    "overlaps",
    "transaction_timeout",
    "max_pending",
    "max_pending_bytes",
    "own_columns",
    "delete_when",
)


@dataclass
class Writing:
    """What one task writes: a transaction for each name."""

    task: Task
    begun: dict[str, tuple[TwoPhaseCommitSink, Any]] = field(default_factory=dict)
    unknown: set[str] = field(default_factory=set)


class FanTasks(TwoPhaseCommitSink):
    """What tasks need of a fan: the sinks of all names that are known, and the template that makes them."""

    name = "fan"
    fans_out = False

    def __init__(self, template: TwoPhaseCommitSink) -> None:
        for attribute in _COPIED:
            setattr(self, attribute, getattr(template, attribute))
        assert template.pattern is not None
        self.template, self.pattern, self._pattern = template, template.pattern, template.pattern
        self.max_targets = template.max_targets
        #: target -> its sink, open; never changed, but replaced by a larger one
        self._sinks: dict[str, TwoPhaseCommitSink] = {}
        #: target -> why no sink can be had for it
        self._refused: dict[str, str] = {}

    @property
    def address(self) -> str:
        """See TwoPhaseCommitSink."""
        return self.template.address

    def shared_paths(self, location: str) -> Sequence[str]:
        """See TwoPhaseCommitSink."""
        return self.template.shared_paths(location)

    def begin(self, task: Task) -> Writing:
        """See TwoPhaseCommitSink; a name's own transaction begins with its first row."""
        return Writing(task)

    def write(self, txn: Writing, batch: pa.RecordBatch) -> None:
        """Give each name its rows. What makes no name, or one too many, is refused here, by row."""
        try:
            encoded = self._pattern.names(batch, lambda name: self._wrong(txn, name))
        except RowError as error:
            raise RowError(
                f"sink {self.name!r}: {error}", rows=error.rows, column=error.column, reason=error.reason
            ) from None
        for target, numbers in places(encoded):
            sink = self._sinks.get(target)
            if sink is None:
                txn.unknown.add(target)
                continue
            if target not in txn.begun:
                txn.begun[target] = (sink, sink.begin(replace(txn.task, sink=sink.name)))
            rows = batch if len(numbers) == batch.num_rows else batch.take(numbers)
            try:
                sink.write(txn.begun[target][1], rows)
            except RowError as error:
                mine = [numbers[n].as_py() for n in error.rows if 0 <= n < len(numbers)]
                raise RowError(str(error), rows=mine, column=error.column, reason=error.reason) from error

    def _wrong(self, txn: Writing, target: str) -> str | None:
        """Why rows cannot go to this name, None when they can or when the driver has yet to find out."""
        if target in self._sinks or target in txn.unknown:
            return None
        if target in self._refused:
            return self._refused[target]
        if len(self._sinks) + len(txn.unknown) >= self.max_targets:
            return self._too_many
        return self.template.wrong_target(target)

    def pre_commit(self, txn: Writing) -> Mapping[str, Any] | None:
        """What each name's sink prepared; or, when names were new, only these: the driver opens them."""
        if txn.unknown:
            self.abort(txn)
            return {"version": 1, "new": sorted(txn.unknown)}
        prepared = [
            {"target": target, "data": data}
            for target, (sink, begun) in sorted(txn.begun.items())
            if (data := sink.pre_commit(begun)) is not None
        ]
        return {"version": 1, "targets": prepared} if prepared else None

    def abort(self, txn: Writing) -> None:
        """See TwoPhaseCommitSink."""
        errors = []
        while txn.begun:
            _, (sink, begun) = txn.begun.popitem()
            try:
                sink.abort(begun)
            except Exception as error:  # noqa: BLE001  raised below, when all had their turn
                errors.append(error)
        if errors:
            raise errors[0]

    @property
    def parts(self) -> list[Any]:
        """The sinks of all names that are known."""
        return list(self._sinks.values())

    @property
    def _too_many(self) -> str:
        return f"would be one more than max_targets={self.max_targets}: raise it, or make fewer names in the query"
