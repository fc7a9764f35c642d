"""Arrow rows as Kafka messages: each points at its own bytes, in the partition and order Kafka's producer gives."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.connectors.kafka.producer.arrow import by_topic, to_messages
from holdfast.connectors.kafka.producer.partitioner import LONGEST_KEY, Turns, murmur2, of_keys
from holdfast.errors import RowError

KINDS = [pa.binary(), pa.large_binary(), pa.binary_view()]
OTHER = "consistent_random"


def reference(key: bytes) -> int:
    """murmur2 as Java's producer has it, one byte after the other."""
    m, mask = 0x5BD1E995, 0xFFFFFFFF
    h = 0x9747B28C ^ len(key)
    whole = len(key) // 4 * 4
    for i in range(0, whole, 4):
        k = int.from_bytes(key[i : i + 4], "little") * m & mask
        k = (k ^ (k >> 24)) * m & mask
        h = (h * m & mask) ^ k
    if rest := key[whole:]:
        h = (h ^ int.from_bytes(rest, "little")) * m & mask
    h = (h ^ (h >> 13)) * m & mask
    return h ^ (h >> 15)


def hashes(keys: Sequence[bytes]) -> list[int]:
    lengths = np.array([len(key) for key in keys], np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)])[: len(keys)].astype(np.int64)
    data = np.frombuffer(b"".join(keys), "u1") if any(keys) else np.zeros(1, "u1")
    return [int(h) for h in murmur2(data, starts, lengths)]


def read(messages: np.ndarray) -> list[tuple[int, bytes | None, bytes | None]]:
    """(partition, key, value) of each message, from where it points."""
    return [
        (
            int(m["partition"]),
            ctypes.string_at(int(m["key"]), int(m["key_len"])) if m["key"] else None,
            ctypes.string_at(int(m["payload"]), int(m["len"])) if m["payload"] else None,
        )
        for m in messages
    ]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_the_vectors_of_the_java_client(key: bytes, expected: int) -> None:
    assert hashes([key]) == [expected & 0xFFFFFFFF] == [reference(key)]


@given(keys=st.lists(st.binary(max_size=70), max_size=40))
@settings(max_examples=300, deadline=None)
def test_keys_of_mixed_lengths(keys: list[bytes]) -> None:
    assert hashes(keys) == [reference(key) for key in keys]


def test_a_negative_hash_loses_its_sign_only() -> None:
    assert of_keys(np.array([0x80000003, 3, 0xFFFFFFFF], np.uint32), 4).tolist() == [3, 3, 3]
    assert of_keys(np.array([0xFFFFFFFF], np.uint32), 1000).tolist() == [0x7FFFFFFF % 1000]


rows = st.lists(
    st.tuples(st.none() | st.binary(max_size=20), st.none() | st.binary(max_size=20), st.none() | st.integers(-1, 4)),
    min_size=1,
    max_size=60,
)


@given(rows=rows, kind=st.sampled_from(KINDS), named=st.booleans(), cut=st.integers(0, 5))
@settings(max_examples=300, deadline=None)
def test_every_row_once_in_its_partition_and_in_order(rows: Any, kind: pa.DataType, named: bool, cut: int) -> None:
    columns = {"key": pa.array([r[0] for r in rows], kind), "value": pa.array([r[1] for r in rows], kind)}
    if named:
        columns["partition"] = pa.array([r[2] for r in rows], pa.int32())
    batch, rows = pa.record_batch(columns).slice(cut), rows[cut:]
    messages, partitioned, alive = to_messages(batch, 5)
    assert partitioned and len(alive) == 2 and messages.flags.c_contiguous
    # Rows without a key stay together, in whatever partition.
    assert read(messages) in [placed(rows, named, alone) for alone in range(5)]


def placed(rows: Any, named: bool, alone: int) -> list[tuple[int, bytes | None, bytes | None]]:
    def partition(row: Any) -> int:
        if named and row[2] not in (None, -1):
            return int(row[2])
        return alone if row[0] is None else (reference(row[0]) & 0x7FFFFFFF) % 5

    return sorted(((partition(row), row[0], row[1]) for row in rows), key=lambda message: message[0])


def test_rows_without_a_key_go_to_another_partition_with_the_next_transaction() -> None:
    batch = pa.record_batch({"value": pa.array([b"a", b"b"])})
    placed = [{p for p, _, _ in read(to_messages(batch, 3)[0])} for _ in range(6)]
    assert all(len(where) == 1 for where in placed)
    assert set().union(*placed[:3]) == set().union(*placed[3:]) == {0, 1, 2}


def test_rows_without_a_key_stay_for_a_while_and_move_on_after_many() -> None:
    turns = Turns()
    first = [turns.next(10_000, 4) for _ in range(10)]
    then = [turns.next(10_000, 4) for _ in range(30)]
    assert len(set(first)) == 1
    assert then == [(first[0] + step) % 4 for step in (1, 2, 3) for _ in range(10)]


def test_another_partitioner_is_librdkafkas() -> None:
    batch = pa.record_batch({"key": pa.array([b"x", b"y"]), "value": pa.array([b"1", b"2"])})
    messages, partitioned, _ = to_messages(batch, 4, OTHER)
    assert not partitioned
    assert read(messages) == [(-1, b"x", b"1"), (-1, b"y", b"2")]


def test_another_partitioner_and_partitions_by_hand_keep_the_order() -> None:
    """Where librdkafka will put the middle row is not known, so nothing may pass it."""
    batch = pa.record_batch({"value": pa.array([b"1", b"2", b"3"]), "partition": pa.array([3, None, 0], pa.int32())})
    messages, partitioned, _ = to_messages(batch, 4, OTHER)
    assert partitioned
    assert [(p, v) for p, _, v in read(messages)] == [(3, b"1"), (-1, b"2"), (0, b"3")]


def test_a_very_long_key_is_placed_by_librdkafkas_own_function() -> None:
    keys = [b"x" * (LONGEST_KEY + 1), b"y", None, b"z" * (LONGEST_KEY + 77), b"z" * LONGEST_KEY]
    batch = pa.record_batch({"key": pa.array(keys), "value": pa.array([b"1", b"2", b"3", b"4", b"5"])})
    messages, partitioned, _ = to_messages(batch, 4)
    assert partitioned
    assert all(p == (reference(key) & 0x7FFFFFFF) % 4 for p, key, _ in read(messages) if key is not None)


@pytest.mark.parametrize(("number", "named"), [(4, "4"), (-2, "-2"), (2**40, str(2**40))])
def test_a_partition_that_is_not_there(number: int, named: str) -> None:
    batch = pa.record_batch({"value": pa.array([b"1"]), "partition": pa.array([number], pa.int64())})
    with pytest.raises(RowError, match=rf"names partition {named}, and the topic has partitions 0 to 3"):
        to_messages(batch, 4)


def test_null_and_empty_are_two_things() -> None:
    batch = pa.record_batch({"key": pa.array([b"", None], pa.binary()), "value": pa.array([None, b""], pa.binary())})
    assert sorted((k is None, v is None) for _, k, v in read(to_messages(batch, 1)[0])) == [
        (False, True),
        (True, False),
    ]


def test_no_rows() -> None:
    empty = pa.record_batch({"key": pa.array([], pa.binary()), "value": pa.array([], pa.binary())})
    assert len(to_messages(empty, 4)[0]) == 0


def test_topics_keep_their_order() -> None:
    batch = pa.record_batch({"value": ["1", "2", "3"], "topic": ["b", "a", "b"]})
    assert [(t, rows["value"].to_pylist()) for t, rows in by_topic(batch, None)] == [("b", ["1", "3"]), ("a", ["2"])]
    assert [(t, rows.num_rows) for t, rows in by_topic(batch, "c")] == [("c", 3)]
    with pytest.raises(RowError, match="a row has no topic"):
        list(by_topic(pa.record_batch({"value": ["1"], "topic": pa.array([None], pa.string())}), None))
