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

Hashes = npt.NDArray[np.uint64]
#: Longer values are hashed one by one, in C: the loop over words would run for them alone.
LONGEST = 1024
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
            self._sum = (self._sum or 0) + int(row_hashes(batch).sum(dtype=np.uint64))

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
        _, offsets, data = column.buffers()
        ends = np.frombuffer(offsets, np.int64)[column.offset : column.offset + len(column) + 1]
        return _of_bytes(data, ends[:-1], np.diff(ends))
    return _of_fixed(column)


def _of_fixed(column: pa.Array) -> Hashes:
    """Numbers, dates, times, decimals: the bits as they are."""
    size = column.type.byte_width
    if size not in (1, 2, 4, 8):
        starts = (np.arange(len(column), dtype=np.int64) + column.offset) * size
        return _of_bytes(column.buffers()[1], starts, np.full(len(column), size, np.int64))
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


def _of_bytes(data: Any, starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Hashes:
    """Of each `data[start : start + length]`: its words, each times the number of its place, and its length."""
    hashes = lengths.astype(np.uint64)
    if not len(lengths) or not lengths.any():
        return hashes
    content = np.frombuffer(data, np.uint8)
    if len(content) < 8:
        content = np.concatenate([content, np.zeros(8 - len(content), np.uint8)])
    # Element i is the eight bytes from i on, wherever i lies.
    words = np.ndarray(len(content) - 7, "<u8", content, strides=(1,))
    long = lengths > LONGEST
    if long.any():
        for row in np.flatnonzero(long).tolist():
            value = content[starts[row] : starts[row] + lengths[row]]
            hashes[row] = int.from_bytes(hashlib.blake2b(value.data, digest_size=8).digest(), "little")
        rest = np.flatnonzero(~long)
        hashes[rest] = _of_words(words, starts[rest], lengths[rest])
        return hashes
    return _of_words(words, starts, lengths)


def _of_words(words: npt.NDArray[Any], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Hashes:
    if len(lengths) and lengths.min() != lengths.max() and not np.all(lengths[:-1] <= lengths[1:]):
        # By length, so that the values that have an i-th word are the last ones for every i.
        order = np.argsort(lengths, kind="stable")
        hashes = np.empty(len(lengths), np.uint64)
        hashes[order] = _of_words(words, starts[order], lengths[order])
        return hashes
    hashes = lengths.astype(np.uint64)
    counts = lengths >> 3
    for i in range(int(counts[-1]) if len(counts) else 0):
        first = int(np.searchsorted(counts, i, side="right"))
        hashes[first:] += _spread(words[starts[first:] + 8 * i]) * _PLACES[i]
    short = np.flatnonzero((lengths & 7) != 0)
    if len(short):
        # The last bytes, as the end of a word that begins before them, or, at the beginning of all, shifted there.
        missing = 8 - (lengths[short] & 7)
        at = starts[short] + (lengths[short] & ~7) - missing
        shift = np.maximum(-at, 0)
        last = words[at + shift] << (shift.astype(np.uint64) << np.uint64(3))
        hashes[short] += _spread(last >> (missing.astype(np.uint64) << np.uint64(3))) * _PLACES[-1]
    return hashes


def _spread(numbers: npt.NDArray[Any]) -> Hashes:
    """So that the highest bits matter in a product."""
    spread: Hashes = numbers ^ (numbers >> np.uint64(29))
    return spread
