"""Order-free digests of rows, from their Arrow buffers: what a repair compares a replay with (P5).

A row's hash depends on nothing but its values: not on its place, nor on the batch it came in. The digest of a partition
is the sum of its rows' hashes, so a replay that splits or orders the same rows in another way is recognised. Computed
here and not by an expression in the JVM, which costs four times as much: one more copy of every row.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Hashes = npt.NDArray[np.uint64]
#: Longer values are hashed one by one, in C: the loop over words would run for them alone.
LONGEST = 1024
#: Where lengths differ much, values are filled up to one of these.
_WIDTHS = [8, 16, 32, 64, 128, 256, 512, LONGEST]
#: Rows that are hashed at a time: what is made on the way is small then, and never leaves a core's own memory.
PIECE = 8192
_NULL, _START = np.uint64(0x9E3779B97F4A7C15), np.uint64(0x243F6A8885A308D3)
_A, _B = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


class Digest:
    """Counts the rows of a partition and adds up their hashes."""

    def __init__(self, *, hashed: bool = True) -> None:
        self.rows = 0
        self._sum: int | None = None
        self._hashed = hashed

    def add(self, batch: pa.RecordBatch) -> None:
        """Count a batch."""
        self.rows += batch.num_rows
        if self._hashed:
            pieces = (batch.slice(row, PIECE) for row in range(0, batch.num_rows, PIECE))
            self._sum = (self._sum or 0) + sum(int(row_hashes(piece).sum(dtype=np.uint64)) for piece in pieces)

    @property
    def text(self) -> str | None:
        """Sixteen hexadecimal digits, None when nothing was hashed."""
        return None if self._sum is None else f"{self._sum % (1 << 64):016x}"


def row_hashes(batch: pa.RecordBatch) -> Hashes:
    """A hash of each row."""
    return _in_order(batch.columns, batch.num_rows)


def _in_order(columns: list[pa.Array], rows: int) -> Hashes:
    hashes = np.full(rows, _START)
    for column in columns:
        hashes ^= _hashes(column)
        _mix(hashes)
    return hashes


def _mix(numbers: Hashes) -> Hashes:
    """Spread every bit over all of them, in place."""
    numbers ^= numbers >> np.uint64(30)
    numbers *= _A
    numbers ^= numbers >> np.uint64(27)
    numbers *= _B
    numbers ^= numbers >> np.uint64(31)
    return numbers


#: An odd number for each place of a word, so that words that change places change the hash; the last is for what is
#: left when the words are taken.
_PLACES = _mix(np.arange(1, LONGEST // 8 + 2, dtype=np.uint64) * _NULL) | np.uint64(1)


def _hashes(column: pa.Array) -> Hashes:
    """A hash of each value; null is a value of its own."""
    hashes = _mix(_of_values(column))
    if column.null_count:
        hashes[column.is_null().to_numpy(zero_copy_only=False)] = _NULL
    return hashes


def _of_values(column: pa.Array) -> Hashes:
    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        return _of_values(column.storage)
    if pa.types.is_null(kind):
        return np.zeros(len(column), np.uint64)
    if pa.types.is_boolean(kind):
        return _of_values(column.cast(pa.uint8()))
    if pa.types.is_dictionary(kind):
        return _of_values(column.dictionary_decode())
    if pa.types.is_struct(kind):
        return _in_order(column.flatten(), len(column))
    if pa.types.is_map(kind):
        entries = pa.StructArray.from_arrays([column.keys, column.items], ["key", "value"])
        return _of_lists(column.offsets, entries)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _of_lists(column.offsets, column.values)
    if any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary)):
        column = column.cast(pa.large_binary())
    if pa.types.is_large_binary(column.type):
        return _of_bytes(column)
    return _of_fixed(column)


def _of_fixed(column: pa.Array) -> Hashes:
    """Numbers, dates, times, decimals: the bits as they are."""
    size = column.type.byte_width
    if size not in (1, 2, 4, 8):
        ends = pa.py_buffer((np.arange(len(column) + 1, dtype=np.int64) + column.offset) * size)
        return _of_bytes(pa.Array.from_buffers(pa.large_binary(), len(column), [None, ends, column.buffers()[1]]))
    bits = np.frombuffer(column.buffers()[1] or b"", f"u{size}")[column.offset : column.offset + len(column)]
    return bits.astype(np.uint64)


def _of_lists(offsets: pa.Array, values: pa.Array) -> Hashes:
    """The sum of the elements' hashes, each mixed with its place in the list."""
    ends = offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    values, ends = values.slice(ends[0], ends[-1] - ends[0]), ends - ends[0]
    lengths = np.diff(ends)
    places = np.arange(len(values), dtype=np.int64) - np.repeat(ends[:-1], lengths)
    sums = np.zeros(len(values) + 1, np.uint64)
    np.cumsum(_mix(_hashes(values) + places.astype(np.uint64) * _A), out=sums[1:])
    found: Hashes = sums[ends[1:]] - sums[ends[:-1]] + lengths.astype(np.uint64)
    return found


def _of_bytes(column: pa.Array) -> Hashes:
    """Of each value: its words, each times the number of its place, and its length."""
    _, offsets, data = column.buffers()
    ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(ends)
    longest = int(lengths.max(initial=0))
    if longest == 0:
        return lengths.astype(np.uint64)
    if longest <= min(LONGEST, max(4 * int(lengths.mean()), _WIDTHS[1])):
        return _of_padded(data, ends, lengths, -(-longest // 8))
    # Few are long: filled up to the longest, all the others would be as long as it.
    hashes = np.empty(len(lengths), np.uint64)
    widths = np.searchsorted(_WIDTHS, lengths)
    for width in np.unique(widths).tolist():
        rows = np.flatnonzero(widths == width)
        if width == len(_WIDTHS):
            hashes[rows] = [_of_long(data[ends[row] : ends[row + 1]]) for row in rows.tolist()]
            continue
        _, offsets, some = column.take(pa.array(rows)).buffers()
        ends_of_some = np.frombuffer(offsets, np.int64)[: len(rows) + 1]
        hashes[rows] = _of_padded(some, ends_of_some, lengths[rows], _WIDTHS[width] // 8)
    return hashes


def _of_long(value: pa.Buffer) -> int:
    return int.from_bytes(hashlib.blake2b(value, digest_size=8).digest(), "little")


def _of_padded(data: pa.Buffer, ends: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], words: int) -> Hashes:
    """As above, of values of at most so many words: a matrix of words, the last one of a value filled up with zeros."""
    rows = len(lengths)
    if int(lengths.min()) < 8 * words:
        # Arrow takes bytes for text here, and looks at none of them.
        text = pa.Array.from_buffers(pa.large_string(), rows, [None, pa.py_buffer(ends), data])
        _, ends_of_padded, data = pc.ascii_rpad(text, 8 * words, padding="\0").buffers()
        ends = np.frombuffer(ends_of_padded, np.int64)
    matrix = np.frombuffer(data, "<u8", rows * words, int(ends[0])).reshape(rows, words)
    hashes = lengths.astype(np.uint64)
    hashes += _spread(matrix) @ _PLACES[:words]
    if (lengths & 7).any():
        # What does not fill a word has a number of its own, wherever it is.
        full = lengths >> 3
        last = matrix.reshape(-1)[np.minimum(full, words - 1) + np.arange(0, rows * words, words)]
        hashes += _spread(last) * np.where(lengths & 7, _PLACES[-1] - _PLACES[full], np.uint64(0))
    return hashes


def _spread(numbers: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """So that the highest bits matter in a product."""
    spread = numbers >> np.uint64(29)
    spread ^= numbers
    return spread
