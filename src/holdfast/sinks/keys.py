"""Rows of one key in one checkpoint (I1): found in the write-ahead log, before anything is sent."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.sinks import wal

_HANDLE, _ROW, _VALID = "__holdfast_handle", "__holdfast_row", "__holdfast_valid"


class Normalise(Protocol):
    """The key columns of a batch as the endpoint compares them; picklable."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the key columns, under their names."""


@dataclass(frozen=True)
class FindDuplicates:
    """Runs in a task: the first key that occurs twice in a checkpoint, or None."""

    location: str
    key: tuple[str, ...]
    normalise: Normalise | None = None

    def __call__(self, handles: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
        """The key as {column: value}."""
        logs = (wal.read_log(self.location, handle) for handle in handles)
        keys = [_keys(batch, self.key, self.normalise) for log in logs for batch in log]
        counts = pa.Table.from_batches(keys).group_by(list(self.key)).aggregate([([], "count_all")])
        repeated = counts.filter(pc.greater(counts["count_all"], 1)).slice(0, 1).select(self.key).to_pylist()
        return repeated[0] if repeated else None


@dataclass(frozen=True)
class LastRows:
    """Which rows of a checkpoint's handles are the last of their key.

    The one with the largest `order_by`, which is no key column. No value is the smallest; of equal ones the last in the
    log wins, which is the same one in every attempt.
    """

    location: str
    key: tuple[str, ...]
    order_by: str
    normalise: Normalise | None = None

    def __call__(self, handles: Sequence[Mapping[str, Any]]) -> list[pa.Array]:
        """Row numbers for each handle, ascending."""
        parts = list(self._parts(handles))
        if not parts:
            return [pa.array([], pa.int64()) for _ in handles]
        table = pa.concat_tables(parts)
        order = [(name, "ascending") for name in (_VALID, self.order_by, _HANDLE, _ROW)]
        ranked = table.take(pc.sort_indices(table, sort_keys=order))
        last = ranked.group_by(list(self.key), use_threads=False).aggregate([(_HANDLE, "last"), (_ROW, "last")])
        chosen = []
        for number in range(len(handles)):
            rows = last.filter(pc.equal(last[f"{_HANDLE}_last"], number))[f"{_ROW}_last"].combine_chunks()
            chosen.append(rows.take(pc.sort_indices(rows)))
        return chosen

    def _parts(self, handles: Sequence[Mapping[str, Any]]) -> Iterator[pa.Table]:
        for number, handle in enumerate(handles):
            row = 0
            for batch in wal.read_log(self.location, handle):
                keys, count = _keys(batch, self.key, self.normalise), batch.num_rows
                yield pa.table(
                    {
                        **{name: keys.column(name) for name in self.key},
                        self.order_by: batch.column(self.order_by),
                        _VALID: batch.column(self.order_by).is_valid(),
                        _HANDLE: pa.array(np.full(count, number)),
                        _ROW: pa.array(np.arange(row, row + count)),
                    }
                )
                row += count


def only(batches: Iterator[pa.RecordBatch], rows: pa.Array) -> Iterator[pa.RecordBatch]:
    """The rows with these ascending numbers."""
    numbers, start = rows.to_numpy(), 0
    for batch in batches:
        first, last = np.searchsorted(numbers, [start, start + batch.num_rows])
        if last > first:
            yield batch.take(pa.array(numbers[first:last] - start))
        start += batch.num_rows


def _keys(batch: pa.RecordBatch, key: Sequence[str], normalise: Normalise | None) -> pa.RecordBatch:
    return batch.select(list(key)) if normalise is None else normalise(batch)
