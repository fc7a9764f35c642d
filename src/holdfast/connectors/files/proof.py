"""Proving in the task that rows will go into their file: after the decision it is too late to refuse them (rule 11)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.connectors.files import csvtext, formats, jsonlines
from holdfast.connectors.files.buckets import Buckets, TimeBucket
from holdfast.errors import ConfigError, RowError
from holdfast.sinks.values import check_valid, check_years, holds, is_dated, refuse

#: what a committed file's own name takes at most, with the slash before it
_FILE_NAME = 130
#: what a part's name takes at most below the sink's own folder
_PART_NAME = 160
_SEGMENT = 255
#: of one row, for formats that are text: as JSON a byte can become six, and Arrow's text ends at 2 GB
_LONGEST_ROW = 256 * 2**20
#: a row above it is encoded to see whether it can be: names of fields come on top of its values
_LARGE_ROW = 8 * 2**20


class Proof:
    """What the rows of one sink must keep to."""

    def __init__(self, sink: str, form: str, buckets: Buckets, longest: int, readers: Sequence[str] = ()) -> None:
        self._readers = readers
        self._sink, self._format, self._buckets, self._longest = sink, form, buckets, longest
        self._known: set[str] = set()

    def check_rows(self, batch: pa.RecordBatch) -> None:
        """Refuse values that the format or a folder's name cannot have."""
        check_valid(self._sink, batch)
        text = not formats.FORMATS[self._format].typed
        named = {b.column if isinstance(b, TimeBucket) else b for b in self._buckets.by}
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if (text or name in named) and holds(column.type, is_dated):
                what = self._format if name not in named else "the name of a folder"
                remedy = f"no reader takes it from {what}; filter such rows out, or cast the column"
                check_years(self._sink, name, column, remedy)
        if text and batch.nbytes > _LARGE_ROW:
            self._check_sizes(batch)
        inside = [name for name in batch.schema.names if name not in self._buckets.columns]
        if self._format == "csv":
            csvtext.check_rows(self._sink, batch, self._readers, inside)
        if self._format == "csv" and len(inside) == 1 and (column := batch.column(inside[0])).null_count:
            index = column.is_null().index(True).as_py()
            reason = "would be an empty line in a CSV file of one column, which readers skip: fill it in, or use json"
            raise refuse(self._sink, inside[0], column, index, reason)

    def check_bucket(self, bucket: str) -> None:
        """Refuse a folder whose files would have names too long for the store."""
        if bucket in self._known:
            return
        size = len(bucket.encode())
        longest = max(len(segment.encode()) for segment in bucket.split("/"))
        if size + _FILE_NAME > self._longest or longest > _SEGMENT:
            limit = f"{_SEGMENT}" if longest > _SEGMENT else f"{self._longest - _FILE_NAME}"
            raise RowError(
                f"sink {self._sink!r}: bucket_by: the values of a row make a folder that is too long for the store "
                f"({max(size, longest)} bytes, {limit} are allowed): {bucket[:80]!r}... Bucket by something shorter"
            )
        self._known.add(bucket)

    def _check_sizes(self, batch: pa.RecordBatch) -> None:
        for piece in formats.halves(batch, _LARGE_ROW):
            if piece.nbytes > _LARGE_ROW and not self._fits(piece):
                raise RowError(
                    f"sink {self._sink!r}: a row has {piece.nbytes} bytes, which is too long for a line of "
                    f"{self._format}: split it, or use format='parquet'"
                )

    def _fits(self, row: pa.RecordBatch) -> bool:
        if row.nbytes > _LONGEST_ROW:
            return False
        try:
            if self._format == "json":
                jsonlines.encode(row)
        except (pa.ArrowInvalid, pa.ArrowCapacityError, MemoryError):
            return False
        return True


def check_place(sink: str, home: str, longest: int, path: str) -> None:
    """Refuse a folder below which the sink's own names would be too long."""
    size = len(home.encode()) + _PART_NAME
    if size > longest:
        raise ConfigError(
            f"sink {sink!r}: path {path!r} is too long: with the names of pipeline and sink, hidden files below it "
            f"would have {size - longest} bytes more than the store allows. Choose a shorter path or shorter names"
        )
