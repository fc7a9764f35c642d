"""The digest of rows that a repair compares: of values only, whatever batch, order or buffer they come in (P5)."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.sinks.digest import LONGEST, Digest, row_hashes

BYTES = st.one_of(st.none(), st.binary(max_size=40), st.binary(min_size=LONGEST - 2, max_size=LONGEST + 2))
ITEMS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
PAIR = pa.struct([("a", pa.int32()), ("b", pa.string())])
KINDS = {
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int16": (pa.int16(), st.integers(-(2**15), 2**15 - 1)),
    "int32": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "int64": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "double": (pa.float64(), st.floats(allow_nan=False).filter(lambda x: x != 0)),
    "boolean": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=20)),
    "binary": (pa.binary(), st.binary(max_size=40)),
    "large": (pa.large_binary(), st.binary(max_size=40)),
    "decimal": (pa.decimal128(20, 2), st.integers(-(10**18), 10**18).map(lambda n: Decimal(n).scaleb(-2))),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes(dt.datetime(1, 1, 2), dt.datetime(9999, 12, 30))),
    "list": (pa.list_(pa.int64()), st.lists(st.none() | st.integers(-5, 5), max_size=4)),
    "headers": (ITEMS, st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "value": BYTES}), max_size=3)),
    "struct": (
        pa.struct([("a", pa.int32()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.none(), "b": st.text()}),
    ),
    "map": (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(st.text(max_size=3), st.integers(0, 3)), max_size=3)),
}


def digest(*batches: pa.RecordBatch) -> str | None:
    found = Digest()
    for batch in batches:
        found.add(batch)
    return found.text


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
def test_a_hash_is_that_of_the_values_alone(kind, data) -> None:
    type_, values = KINDS[kind]
    given_values = data.draw(st.lists(st.none() | values, min_size=1, max_size=12))
    batch = pa.record_batch([pa.array(given_values, type_), pa.array(range(len(given_values)))], ["x", "n"])
    hashes = row_hashes(batch)
    for n, value in enumerate(given_values):
        alone = pa.record_batch([pa.array([value], type_), pa.array([n])], ["x", "n"])
        assert row_hashes(batch.slice(n, 1))[0] == row_hashes(alone)[0] == hashes[n]
    only = row_hashes(batch.select(["x"]))
    same = {}
    for value, found in zip(batch.column("x").to_pylist(), only.tolist(), strict=True):
        assert same.setdefault(found, value) == value, "different values, the same hash"
    assert len(same) == len({repr(value) for value in batch.column("x").to_pylist()})


@given(st.lists(st.tuples(BYTES, BYTES), min_size=1, max_size=20), st.randoms(use_true_random=False))
def test_order_and_batches_do_not_matter(rows, random) -> None:
    schema = pa.schema([("key", pa.binary()), ("value", pa.binary())])
    lines = [{"key": key, "value": value} for key, value in rows]
    whole = pa.RecordBatch.from_pylist(lines, schema)
    random.shuffle(lines)
    parts = [pa.RecordBatch.from_pylist(lines[n : n + 3], schema) for n in range(0, len(lines), 3)]
    assert digest(whole) == digest(*parts)
    assert digest(whole) != digest(*parts, whole.slice(0, 1))


@given(st.binary(min_size=1, max_size=LONGEST + 40), st.data())
def test_every_byte_its_place_and_the_length_matter(value, data) -> None:
    at = data.draw(st.integers(0, len(value) - 1))
    other = data.draw(st.integers(0, len(value) - 1))
    changed = bytearray(value)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    swapped = bytearray(value)
    swapped[at], swapped[other] = swapped[other], swapped[at]
    texts = {value, bytes(changed), bytes(swapped), value + b"\0", value[:-1], b"\0" + value}
    batch = pa.record_batch([pa.array(sorted(texts), pa.binary())], ["x"])
    assert len(np.unique(row_hashes(batch))) == len(texts)


def test_what_looks_alike_is_told_apart() -> None:
    """Null and empty, the same values in other columns or other elements, the highest bits of two words."""
    pairs = [
        ([None, None], [b"", None]),
        ([b"a", b""], [b"", b"a"]),
        ([b"ab", b"c"], [b"a", b"bc"]),
        ([b"\0" * 16, None], [(b"\0" * 7 + b"\x80") * 2, None]),
    ]
    for one, other in pairs:
        batches = [pa.record_batch([pa.array([v], pa.binary()) for v in row], ["a", "b"]) for row in (one, other)]
        assert digest(batches[0]) != digest(batches[1]), (one, other)
    lists = pa.array([[], None, [None], [1, 2], [2, 1], [1], [1, None], [0]], pa.list_(pa.int64()))
    assert len(np.unique(row_hashes(pa.record_batch([lists], ["x"])))) == len(lists)


def test_a_recorded_digest_is_recognised_by_every_later_version() -> None:
    rows = [{"key": b"k%d" % n, "value": b"v" * n, "n": n} for n in range(100)]
    assert digest(pa.RecordBatch.from_pylist(rows)) == "adc4c5f01daa399f"


def test_without_hashes_rows_are_counted() -> None:
    found = Digest(hashed=False)
    found.add(pa.record_batch([pa.array([1, 2])], ["x"]))
    assert (found.rows, found.text) == (2, None)
