"""Kafka's default partitioner for whole Arrow batches: murmur2 of the key, as Java's producer and librdkafka have it.

librdkafka can do it row by row, but then every row costs it a lookup and a lock. Computed here, the rows of one
partition are handed over together.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import numpy.typing as npt

#: The name of what is computed here among librdkafka's partitioners.
MURMUR2_RANDOM = "murmur2_random"
#: A longer key is left to librdkafka's own function: the loop below runs once for four bytes of the longest key.
LONGEST_KEY = 4096
_SEED, _M = np.uint32(0x9747B28C), np.uint32(0x5BD1E995)
#: Rows without a key stay in one partition for a while, as Kafka's sticky partitioner does it. It begins anywhere, so
#: that many tasks do not meet in one partition.
_turns = itertools.count(random.randrange(1 << 16))
#: So many rows make the wait small that each partition of a transaction begins with.
_STAY = 100_000

Ints = npt.NDArray[np.int64]


def murmur2(data: npt.NDArray[np.uint8], starts: Ints, lengths: Ints) -> npt.NDArray[np.uint32]:
    """The hash of each `data[start : start + length]`."""
    if len(lengths) and not np.all(lengths[:-1] <= lengths[1:]):
        # By length, so that the keys that have an i-th word are the last ones for every i.
        order = np.argsort(lengths, kind="stable")
        hashes = np.empty(len(lengths), np.uint32)
        hashes[order] = murmur2(data, starts[order], lengths[order])
        return hashes
    words = _overlapping_words(data)
    counts = lengths >> 2
    state = lengths.astype(np.uint32) ^ _SEED
    for i in range(int(counts[-1]) if len(counts) else 0):
        first = int(np.searchsorted(counts, i, side="right"))
        state[first:] = (state[first:] * _M) ^ _mixed(words[starts[first:] + 4 * i])
    rest = lengths & 3
    for i in (2, 1, 0):
        rows = np.flatnonzero(rest > i)
        if len(rows):
            state[rows] ^= data[starts[rows] + (counts[rows] << 2) + i].astype(np.uint32) << np.uint32(8 * i)
            if i == 0:
                state[rows] *= _M
    state ^= state >> np.uint32(13)
    state *= _M
    state ^= state >> np.uint32(15)
    return state


def _overlapping_words(data: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
    """Element i is the four bytes from i on, little-endian, wherever i lies."""
    return np.ndarray(max(0, len(data) - 3), "<u4", data, strides=(1,))


def _mixed(word: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    mixed: npt.NDArray[np.uint32] = word.astype(np.uint32) * _M
    mixed ^= mixed >> np.uint32(24)
    mixed *= _M
    return mixed


def of_keys(hashes: npt.NDArray[np.uint32], partitions: int) -> npt.NDArray[np.int32]:
    """The partition of each hash: made positive by dropping the sign, as Java does."""
    return ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(partitions)).astype(np.int32)


class Turns:
    """Where rows without a key go: each transaction begins with the next partition, and moves on after many rows."""

    def __init__(self) -> None:
        self._first, self._rows = next(_turns), 0

    def next(self, rows: int, partitions: int) -> int:
        """The partition for so many rows."""
        turn = self._first + self._rows // _STAY
        self._rows += rows
        return turn % partitions


def order_by(partition: npt.NDArray[np.int32]) -> npt.NDArray[np.intp] | None:
    """The stable order that brings the rows of a partition together; None where they are."""
    if len(partition) < 2 or np.all(partition[:-1] <= partition[1:]):
        return None
    # numpy sorts 16-bit numbers by radix, several times as fast.
    small = partition.astype(np.int16) if int(partition.max()) < 1 << 15 else partition
    return np.argsort(small, kind="stable")
