"""Columns as the bytes Cassandra is sent: the same bytes the driver would send, value by value (rule 11)."""

from __future__ import annotations

import datetime
import ipaddress
import math
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from cassandra import cqltypes
from hypothesis import given
from hypothesis import strategies as st

from holdfast.connectors.cassandra.encode import encode, lengths, listed
from holdfast.connectors.cassandra.types import CqlType, parse_type, problem

EPOCH = datetime.datetime(1970, 1, 1)


def driver_type(cql: CqlType) -> Any:
    """The driver's class for a type."""
    if cql.name == "vector":
        inner = driver_type(cql.arguments[0])
        return type("Vector", (cqltypes.VectorType,), {"vector_size": int(cql.arguments[1].name), "subtype": inner})
    if cql.arguments:
        kind = {"list": cqltypes.ListType, "set": cqltypes.SetType, "map": cqltypes.MapType}[cql.name]
        return kind.apply_parameters([driver_type(a) for a in cql.arguments])
    return cqltypes._cqltypes["varchar" if cql.name == "text" else cql.name]


def for_driver(value: Any, cql: CqlType) -> Any:
    """A value as the driver wants it."""
    if cql.name in ("uuid", "timeuuid"):
        return uuid.UUID(value)
    if cql.name == "timestamp":
        return (value.replace(tzinfo=None) - EPOCH) // datetime.timedelta(milliseconds=1)
    if cql.name == "date":
        return (value - EPOCH.date()).days + 2**31
    if cql.name == "time":
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 10**9 + value.microsecond * 1000
    if cql.name == "map":
        return {for_driver(k, cql.arguments[0]): for_driver(v, cql.arguments[1]) for k, v in value}
    if cql.name in ("list", "set", "vector"):
        return [for_driver(item, cql.arguments[0]) for item in value]
    return value


def unique(items: list[Any]) -> list[Any]:
    return list(dict(items).items())


text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
integers = st.integers(-(2**63), 2**63 - 1)
naive = st.datetimes(datetime.datetime(1970, 1, 1), datetime.datetime(9999, 12, 31)).map(
    lambda moment: moment.replace(microsecond=moment.microsecond // 1000 * 1000)
)
#: type -> (Arrow type, values)
KINDS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), text),
    "varchar": (pa.large_string(), text),
    "ascii": (pa.string_view(), st.text(st.characters(max_codepoint=127), max_size=20)),
    "blob": (pa.binary(), st.binary(max_size=20)),
    "boolean": (pa.bool_(), st.booleans()),
    "tinyint": (pa.int8(), st.integers(-128, 127)),
    "smallint": (pa.uint8(), st.integers(0, 255)),
    "int": (pa.int32(), st.integers(-(2**31), 2**31 - 1)),
    "bigint": (pa.int64(), integers),
    "varint": (pa.int64(), integers | st.sampled_from([0, -1, 127, 128, -128, -129, 255, 256, 2**63 - 1, -(2**63)])),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "decimal": (pa.decimal128(38, 5), st.decimals(-(10**32), 10**32, places=5)),
    "timestamp": (pa.timestamp("us"), naive),
    "date": (pa.date32(), st.dates()),
    "time": (pa.time64("us"), st.times()),
    "uuid": (pa.string(), st.uuids().map(str)),
    "timeuuid": (pa.string(), st.integers(0, 2**32 - 1).map(lambda n: str(uuid.UUID(fields=(n, 1, 0x1001, 1, 1, n))))),
    "inet": (pa.string(), st.ip_addresses().map(str)),
    "frozen<list<int>>": (pa.list_(pa.int32()), st.lists(st.integers(-(2**31), 2**31 - 1), max_size=4)),
    "set<text>": (pa.large_list(pa.string()), st.lists(text, max_size=4, unique=True)),
    "map<text, frozen<list<timestamp>>>": (
        pa.map_(pa.string(), pa.list_(pa.timestamp("us"))),
        st.lists(st.tuples(text, st.lists(naive, max_size=3)), max_size=3).map(unique),
    ),
    # Of a NaN only that it is one is kept.
    "vector<float, 2>": (
        pa.list_(pa.float32(), 2),
        st.tuples(st.floats(width=32, allow_nan=False), st.just(0.5)).map(list),
    ),
    "vector<text, 2>": (pa.list_(pa.string()), st.lists(text, min_size=2, max_size=2)),
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
@given(data=st.data())
def test_rule_11_a_column_is_encoded_as_the_driver_binds_each_value(name: str, data: st.DataObject) -> None:
    kind, values = KINDS[name]
    cql = parse_type(name)
    given_values = data.draw(st.lists(st.none() | values, max_size=6))
    array = pa.array(given_values, kind)
    cut = data.draw(st.integers(0, len(given_values)))
    for part, expected in ((array, given_values), (array.slice(cut), given_values[cut:])):
        assert problem(part, cql) is None
        encoded = encode(part, cql)
        serialize = driver_type(cql).serialize
        bound = [None if value is None else serialize(for_driver(value, cql), 4) for value in expected]
        assert listed(encoded) == bound
        assert lengths(encoded).tolist() == [len(value or b"") for value in bound]


def test_other_layouts_of_a_type_are_encoded_alike() -> None:
    """Arrow has several for most; Spark uses one of them."""
    zoned = datetime.datetime(2024, 5, 1, 12, tzinfo=datetime.UTC)
    for name, value, kinds in (
        ("text", "é", [pa.string(), pa.large_string(), pa.string_view()]),
        ("blob", b"ab", [pa.binary(), pa.large_binary(), pa.binary(2), pa.binary_view()]),
        ("varint", 200, [pa.uint8(), pa.int16(), pa.uint32(), pa.uint64(), pa.int64()]),
        ("double", 0.5, [pa.float16(), pa.float32(), pa.float64()]),
        ("float", 0.5, [pa.float16(), pa.float32()]),
        ("decimal", Decimal("1.5"), [pa.decimal32(5, 1), pa.decimal64(5, 1), pa.decimal128(5, 1), pa.decimal256(5, 1)]),
        ("timestamp", zoned, [pa.timestamp(unit, tz) for unit in ("s", "ms", "us", "ns") for tz in (None, "UTC")]),
        ("date", datetime.date(1969, 12, 31), [pa.date32(), pa.date64()]),
        ("time", datetime.time(1, 2), [pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns")]),
        ("set<int>", [1, 2], [pa.list_(pa.int32()), pa.large_list(pa.int32()), pa.list_(pa.int32(), 2)]),
    ):
        found = {tuple(listed(encode(pa.array([None, value], kind), parse_type(name)))) for kind in kinds}
        assert len(found) == 1, name
        assert next(iter(found))[0] is None


def test_a_large_unsigned_number_and_a_negative_scale() -> None:
    assert listed(encode(pa.array([2**64 - 1], pa.uint64()), CqlType("varint"))) == [b"\x00" + b"\xff" * 8]
    array = pa.array([12300], pa.int64()).cast(pa.decimal128(20, 0)).cast(pa.decimal128(20, -2))
    assert listed(encode(array, CqlType("decimal"))) == [cqltypes.DecimalType.serialize(Decimal("1.23E+4"), 4)]


def test_not_a_number_has_one_form() -> None:
    """Cassandra compares all of them as equal; two keys of different bits would be one there."""
    import numpy as np

    odd = pa.array(np.frombuffer(b"\x01\x00\x00\x00\x00\x00\xf8\xff\x00\x00\x00\x00\x00\x00\xf8\x7f", np.float64))
    first, second = listed(encode(odd, CqlType("double")))
    assert first == second
    assert math.isnan(cqltypes.DoubleType.deserialize(first, 4))


def test_addresses_as_bytes() -> None:
    values = ["1.2.3.4", "::1", None, "1.2.3.4", "0:0:0:0:0:0:0:1"]
    packed = [None if v is None else ipaddress.ip_address(v).packed for v in values]
    assert listed(encode(pa.array(values), CqlType("inet"))) == packed


def numbers(unit: str, *values: int) -> pa.Array:
    return pa.array([*values, None], pa.int64()).cast(pa.timestamp(unit, "Europe/Amsterdam"))


def test_rule_16_moments_that_an_earlier_version_decided_are_sent_as_it_sent_them() -> None:
    assert listed(encode(numbers("us", 1999, 2001), CqlType("timestamp"))) == [
        (1).to_bytes(8, "big"), (2).to_bytes(8, "big"), None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("cql", "array", "why"),
    [
        ("text", pa.array([b"fine", b"ab\xff"]).cast(pa.binary()).view(pa.string()), "b'ab\\xff' is not UTF-8"),
        ("uuid", pa.array([b"\xff" * 100]).view(pa.string()), "characters) is not UTF-8"),
        ("inet", pa.array([b"\xc0\x80"]).view(pa.string()), "is not UTF-8"),
        ("time", pa.array([86_400_000_000], pa.int64()).cast(pa.time64("us")), "86400000000 us is not a time of a day"),
        ("time", pa.array([-1], pa.int32()).cast(pa.time32("s")), "-1 s is not a time of a day"),
        ("timestamp", pa.array([2**62], pa.int64()).cast(pa.timestamp("s")), "seconds from 1970 is too far away"),
        ("timestamp", numbers("us", 1714564800123456), "'2024-05-01 12:00:00.123456' is finer than a millisecond"),
        ("timestamp", numbers("us", -1), "'1969-12-31 23:59:59.999999' is finer than a millisecond"),
        ("timestamp", numbers("us", 2**63 - 1), "is finer than a millisecond, and Cassandra keeps no more"),
        ("timestamp", numbers("ns", 10**6, 10**6 + 1), "date_trunc('MILLISECOND', ...) cuts it"),
        ("date", pa.array([2**62], pa.int64()).cast(pa.date64()), "is not a day Cassandra has"),
        ("ascii", pa.array(["é" * 100]), "characters) is not ASCII"),
    ],
)
def test_rule_11_a_value_that_cannot_be_encoded_is_named_and_shortened(cql: str, array: pa.Array, why: str) -> None:
    found = problem(array, parse_type(cql))
    assert found is not None
    assert why in found
    assert len(found) < 200


def test_invalid_text_inside_collections_is_found() -> None:
    broken = pa.array([b"\xff"]).view(pa.string())
    lists = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), broken)
    assert "is not UTF-8" in (problem(lists, parse_type("set<text>")) or "")
    maps = pa.MapArray.from_arrays(pa.array([0, 1], pa.int32()), pa.array(["k"]), broken)
    assert "is not UTF-8" in (problem(maps, parse_type("map<text, text>")) or "")
