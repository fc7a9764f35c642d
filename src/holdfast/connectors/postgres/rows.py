"""Arrow batches as the rows of PostgreSQL's binary COPY, for columns of plain types.

A row is the number of its fields, and each field its length and its bytes, all numbers big-endian; a null has length -1
and no bytes. What has the same size in every row is laid out side by side; texts and what else varies stay as they are,
and one kernel joins all pieces row by row: the data of its result is the stream. ADBC could write these rows too, but
its wheels (1.9 to 1.13) are compiled without optimization and take five times the CPU time, and it ends a COPY with
every batch; it writes the other types.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import RowError

HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
TRAILER = struct.pack(">h", -1)
#: Arrow counts the bytes of one array in 31 bits: a batch that comes near is split.
LARGEST = 1 << 29
_BYTES = (pa.string(), pa.binary())
_NUMBERS = {
    pa.bool_(): "u1", pa.int16(): "i2", pa.int32(): "i4", pa.int64(): "i8", pa.float32(): "f4", pa.float64(): "f8",
    pa.date32(): "i4", pa.timestamp("us"): "i8", pa.timestamp("us", "UTC"): "i8", pa.binary(16): "V16",
}  # fmt: skip
#: PostgreSQL's first day and microsecond, by Arrow's count from 1970.
_DAY, _MICROSECOND = 10_957, 946_684_800_000_000
_NOTHING = pa.scalar(b"", pa.binary())


def is_plain(kind: pa.DataType) -> bool:
    """Whether columns of this type can be encoded here; ADBC knows the others."""
    return kind in _BYTES or kind in _NUMBERS


def encode(batch: pa.RecordBatch) -> Iterator[memoryview]:
    """The batch's part of the stream, without header and trailer."""
    if batch.nbytes > LARGEST and batch.num_rows > 1:
        half = batch.num_rows // 2
        yield from encode(batch.slice(0, half))
        yield from encode(batch.slice(half))
        return
    pieces = _Pieces(batch.num_rows)
    pieces.add(">i2", batch.num_columns)
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            _add(pieces, column)
        except pa.ArrowInvalid as error:
            raise RowError(f"column {name!r}: {error}") from error
    joined = pc.binary_join_element_wise(*pieces.end(), _NOTHING, null_handling="replace", null_replacement="")
    _, offsets, data = joined.buffers()
    end = int(np.frombuffer(offsets, np.int32)[joined.offset + len(joined)])
    yield memoryview(data)[:end]


class _Pieces:
    """The pieces of the rows, in their order."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._fixed: list[tuple[str, Any]] = []
        self._all: list[pa.Array] = []

    def add(self, code: str, values: Any) -> None:
        """What has the same size in every row: an array, or one value for all."""
        self._fixed.append((code, values))

    def add_bytes(self, values: pa.Array) -> None:
        """What has a size of its own in every row; nothing for a null."""
        self._lay_out()
        self._all.append(values)

    def end(self) -> list[pa.Array]:
        """All of them."""
        self._lay_out()
        return self._all

    def _lay_out(self) -> None:
        if self._fixed:
            laid = np.empty(self._rows, [(str(i), code) for i, (code, _) in enumerate(self._fixed)])
            for i, (_, values) in enumerate(self._fixed):
                laid[str(i)] = values
            size = laid.dtype.itemsize
            self._all.append(_binary(np.arange(0, size * (self._rows + 1), size, dtype=np.int32), laid))
            self._fixed = []


def _add(pieces: _Pieces, column: pa.Array) -> None:
    if column.type in _BYTES:
        pieces.add(">i4", pc.binary_length(column).fill_null(-1).to_numpy())
        pieces.add_bytes(column.cast(pa.binary()))
        return
    code = _NUMBERS[column.type]
    values = _numbers(column, code)
    size = values.dtype.itemsize
    if not column.null_count:
        pieces.add(">i4", size)
        pieces.add(f">{code}", values)
        return
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    ends = np.zeros(len(values) + 1, np.int32)
    np.cumsum(valid * size, out=ends[1:])
    pieces.add(">i4", np.where(valid, size, -1))
    pieces.add_bytes(_binary(ends, np.ascontiguousarray(values[valid].astype(f">{code}"))))


def _numbers(column: pa.Array, code: str) -> npt.NDArray[Any]:
    """The values as the server counts them; what is under a null is anything."""
    if pa.types.is_boolean(column.type):
        column = column.cast(pa.uint8())
    elif pa.types.is_date(column.type):
        column = pc.subtract_checked(column.cast(pa.int32()), pa.scalar(_DAY, pa.int32()))
    elif pa.types.is_timestamp(column.type):
        column = pc.subtract_checked(column.cast(pa.int64()), _MICROSECOND)
    return np.frombuffer(column.buffers()[1], code, len(column), column.offset * np.dtype(code).itemsize)


def _binary(ends: npt.NDArray[np.int32], values: npt.NDArray[Any]) -> pa.Array:
    return pa.Array.from_buffers(pa.binary(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(values)])
