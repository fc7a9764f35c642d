"""CassandraSink at the edges of every type (D1): refused in the task by name, or delivered and read back equal.

Never a third thing: nothing that is decided fails or changes on its way.
"""

from __future__ import annotations

import datetime
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.cassandra.encode import encode, listed
from holdfast.connectors.cassandra.types import parse_type
from holdfast.errors import RowError
from holdfast.testing.local import LocalBatch, LocalQuery
from tests.integration.test_cassandra_sink import Rig
from tests.servers.cassandra import CassandraServer

#: this server takes 2 MiB in one mutation
LARGE, TOO_LARGE = 2 * 1024**2 - 2000, 3 * 1024**2
UUID1, UUID4 = "00000000-0000-1000-8000-00000000000a", "5ec540f0-8062-4bcc-96e8-53d992c419e2"


def raw(*values: bytes) -> pa.Array:
    """Text as Spark makes it from bytes: nobody has looked whether it is text."""
    return pa.array(values, pa.binary()).view(pa.string())


def numbers(kind: pa.DataType, *values: int) -> pa.Array:
    """Times of all kinds by their number, also those no calendar has."""
    return pa.array(values, pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)


def floats(kind: pa.DataType) -> pa.Array:
    return pa.array([0.0, -0.0, float("nan"), float("inf"), -float("inf"), 1e-45, 3.4e38, 0.1], kind)


def nested(kind: pa.DataType, *values: Any) -> pa.Array:
    return pa.array(values, kind)


def of_invalid_text(kind: str) -> pa.Array:
    offsets, inner = pa.array([0, 1], pa.int32()), raw(b"ab\xff")
    if kind == "map":
        return pa.MapArray.from_arrays(offsets, pa.array(["k"]), inner)
    return pa.ListArray.from_arrays(offsets, inner)


YEAR_0, YEAR_9999 = -62_167_219_200, 253_402_300_799
LIMITS_64 = (2**63 - 1, -(2**63))
TEXTS, INTS = pa.list_(pa.string()), pa.list_(pa.int32())
FINE, REFUSED = "delivered", "refused"
#: (type, values, what happens to each of them)
EDGES: list[tuple[str, pa.Array, str]] = [
    ("text", pa.array(["", "\0", "a\0b", "naïve ☃ 漢字 😀", "\U0010ffff", "x" * LARGE, None]), FINE),
    ("text", pa.array(["x" * TOO_LARGE]), REFUSED),
    ("text", raw(b"ab\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\xf4\x90\x80\x80", b"\xe2\x98"), REFUSED),
    ("ascii", pa.array(["", "\0", "\x7f"]), FINE),
    ("ascii", pa.array(["é", "\x80"]), REFUSED),
    ("ascii", raw(b"\xff"), REFUSED),
    ("blob", pa.array([b"", b"\0", bytes(range(256)), b"x" * LARGE]), FINE),
    ("blob", pa.array([b"x" * TOO_LARGE]), REFUSED),
    ("boolean", pa.array([True, False, None]), FINE),
    ("tinyint", pa.array([-128, 127], pa.int8()), FINE),
    ("smallint", pa.array([-(2**15), 2**15 - 1], pa.int16()), FINE),
    ("int", pa.array([-(2**31), 2**31 - 1, 0, -1], pa.int32()), FINE),
    ("bigint", pa.array([*LIMITS_64, 0, -1], pa.int64()), FINE),
    ("varint", pa.array([*LIMITS_64, 0, -1, 127, 128, -128, -129, 255], pa.int64()), FINE),
    ("varint", pa.array([2**64 - 1, 0], pa.uint64()), FINE),
    ("float", floats(pa.float32()), FINE),
    ("double", floats(pa.float64()), FINE),
    ("double", pa.array([5e-324, 1.7976931348623157e308]), FINE),
    ("decimal", pa.array([Decimal(10**38 - 1), Decimal(1 - 10**38), Decimal(0)], pa.decimal128(38, 0)), FINE),
    ("decimal", pa.array([Decimal("0." + "9" * 38), Decimal("1e-38")], pa.decimal128(38, 38)), FINE),
    ("decimal", pa.array([Decimal(10**76 - 1), Decimal(1 - 10**76)], pa.decimal256(76, 0)), FINE),
    ("timestamp", numbers(pa.timestamp("us"), 0, -1000, YEAR_0 * 10**6, YEAR_9999 * 10**6 + 999_000), FINE),
    ("timestamp", numbers(pa.timestamp("us"), 1, -1, YEAR_9999 * 10**6 + 999_999, *LIMITS_64), REFUSED),
    ("timestamp", numbers(pa.timestamp("ms", "UTC"), *LIMITS_64), FINE),
    ("timestamp", numbers(pa.timestamp("ns"), 2**63 // 10**6 * 10**6, -(2**63 // 10**6) * 10**6), FINE),
    ("timestamp", numbers(pa.timestamp("ns"), 1, 1000, *LIMITS_64), REFUSED),
    ("timestamp", numbers(pa.timestamp("s"), *LIMITS_64), REFUSED),
    ("date", numbers(pa.date32(), 0, -1, -719_528, 2_932_896, 2**31 - 1, -(2**31)), FINE),
    ("date", numbers(pa.date64(), (2**31 - 1) * 86_400_000, -(2**31) * 86_400_000, 86_399_999), FINE),
    ("date", numbers(pa.date64(), 2**31 * 86_400_000, *LIMITS_64), REFUSED),
    ("time", numbers(pa.time64("us"), 0, 86_399_999_999), FINE),
    ("time", numbers(pa.time64("ns"), 86_399_999_999_999), FINE),
    ("time", numbers(pa.time64("us"), 86_400_000_000, -1, *LIMITS_64), REFUSED),
    ("time", numbers(pa.time32("s"), 86_400, -1), REFUSED),
    ("uuid", pa.array([UUID1, UUID4.upper(), "0" * 8 + "-0000-0000-0000-" + "0" * 12]), FINE),
    ("uuid", pa.array(["", "x", UUID4.replace("-", ""), UUID4 + " ", f"{{{UUID4}}}", "٣" * 36]), REFUSED),
    ("timeuuid", pa.array([UUID1]), FINE),
    ("timeuuid", pa.array([UUID4]), REFUSED),
    ("inet", pa.array(["0.0.0.0", "255.255.255.255", "::", "::ffff:1.2.3.4", "0:0:0:0:0:0:0:1"]), FINE),
    ("inet", pa.array(["", "1.2.3", "1.2.3.4 ", "fe80::1%eth0", "localhost", "1" * 5000]), REFUSED),
    ("frozen<list<int>>", nested(INTS, [], [1, 1], [2**31 - 1] * 10_000, None), FINE),
    ("frozen<list<int>>", nested(INTS, [None], [1, None]), REFUSED),
    ("set<text>", nested(TEXTS, [], [""], ["b", "a", "b"], ["x" * 65_535]), FINE),
    ("set<text>", nested(TEXTS, ["x" * 65_536], [None], ["y" * 60_000] * 50), REFUSED),
    ("set<text>", of_invalid_text("set"), REFUSED),
    ("map<text, text>", nested(pa.map_(pa.string(), pa.string()), [], [("", "")], [("a", "x" * 100_000)]), FINE),
    ("map<text, text>", nested(pa.map_(pa.string(), pa.string()), [("a", None)]), REFUSED),
    ("map<text, text>", of_invalid_text("map"), REFUSED),
    (
        "frozen<map<text, frozen<set<timestamp>>>>",
        nested(pa.map_(pa.string(), pa.list_(pa.timestamp("us"))), [("a", [datetime.datetime(9999, 1, 1)]), ("b", [])]),
        FINE,
    ),
    ("vector<float, 2>", nested(pa.list_(pa.float32()), [0.0, 0.0], [float("nan"), float("inf")]), FINE),
    ("vector<float, 2>", nested(pa.list_(pa.float32()), [], [1.0], [1.0, 2.0, 3.0], [1.0, None]), REFUSED),
    ("vector<text, 2>", nested(TEXTS, ["", "x" * 300]), FINE),
]  # fmt: skip
NAMES = {cql: f"c{number}" for number, cql in enumerate(dict.fromkeys(cql for cql, _, _ in EDGES))}


@pytest.fixture
def rig(cassandra: CassandraServer, tmp_path: Path) -> Rig:
    return Rig(cassandra, tmp_path)


class Attempts:
    """A query that is started again when rows were refused, as an operator does who mends it."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.query = rig, LocalQuery(str(rig.folder / "orders"), "orders")
        self.run = self.query.start([rig.sink()])

    def attempt(self, checkpoint_id: int, batch: pa.RecordBatch, column: str) -> str:
        """One checkpoint of these rows: delivered, or refused with nothing decided."""
        storage = self.query.storage
        before = storage.walk("decisions")
        try:
            self.run.run(checkpoint_id, LocalBatch([[batch]]))
        except RowError as error:
            assert f"column {column!r} (" in str(error)
            assert len(str(error)) < 600
            assert storage.walk("decisions") == before
            self.run.close()
            self.run = self.query.start([self.rig.sink()])
            assert storage.walk("wal") == []
            return REFUSED
        assert self.run.coordinator.pending == []
        return FINE


def test_d1_every_edge_of_every_type_is_refused_by_name_or_delivered_and_read_back_equal(rig: Rig) -> None:
    rig.create("id bigint PRIMARY KEY, " + ", ".join(f"{name} {cql}" for cql, name in NAMES.items()))
    attempts, sent = Attempts(rig), {}
    checkpoint_id = number = 0
    for cql, values, expected in EDGES:
        for position in range(len(values)):
            value, number = values.slice(position, 1), number + 1
            batch = pa.RecordBatch.from_arrays([pa.array([number], pa.int64()), value], names=["id", NAMES[cql]])
            outcome = attempts.attempt(checkpoint_id, batch, NAMES[cql])
            assert outcome == expected, (cql, position)
            if outcome == FINE:
                checkpoint_id += 1
                sent[number] = (cql, value)
    attempts.run.close()
    assert_equal(rig, sent)


def assert_equal(rig: Rig, sent: dict[int, tuple[str, pa.Array]]) -> None:
    """What a reader sees: the bytes of plain values, the elements of collections."""
    plain = {cql: name for cql, name in NAMES.items() if "<" not in cql}
    blobs = ", ".join(name if cql == "blob" else f"{cql}asblob({name}) AS {name}" for cql, name in plain.items())
    others = ", ".join(name for cql, name in NAMES.items() if cql not in plain)
    found = {row["id"]: row for row in rig.read(f"id, {blobs}, {others}")}
    assert set(found) == set(sent), "no row is missing, none is too many"
    for number, (cql, value) in sent.items():
        row = found[number]
        for other, name in NAMES.items():
            if other != cql:
                assert row[name] is None, "nothing was written there"
        if cql in plain:
            assert row[NAMES[cql]] == listed(encode(value, parse_type(cql)))[0], (cql, value)
        else:
            assert comparable(row[NAMES[cql]]) == comparable(value[0].as_py(), parse_type(cql).name), (cql, value)


def comparable(value: Any, kind: str = "") -> str:
    """Collections alike: Cassandra keeps no difference between an empty one and none, and no order in a set or map."""
    if value is None or (not value and kind in ("set", "map")):
        return "None"
    if kind == "map" or hasattr(value, "items"):
        pairs = value.items() if hasattr(value, "items") else value
        return repr(sorted((str(key), comparable(inner, "")) for key, inner in pairs))
    if isinstance(value, (str, bytes, int, float, datetime.datetime)):
        return repr(value)
    items = [comparable(item) for item in value]
    return repr(sorted(set(items)) if kind == "set" or type(value).__name__ == "SortedSet" else items)


@pytest.mark.parametrize(
    ("p", "c", "column"),
    [
        ("", "a", "p"), (None, "a", "p"), ("x" * 65_536, "a", "p"), (b"\xff", "a", "p"),
        ("a", None, "c"), ("a", "x" * 65_536, "c"), ("a", b"\xff", "c"),
        ("a", "", None), ("x" * 65_535, "y" * 65_535, None), ("\0", "\0", None),
    ],
    ids=lambda value: f"{type(value).__name__}-{len(value or '')}",
)  # fmt: skip
def test_d1_every_edge_of_a_key(rig: Rig, p: Any, c: Any, column: str | None) -> None:
    rig.create("p text, c text, v int, PRIMARY KEY (p, c)")

    def key(value: Any) -> pa.Array:
        return raw(value) if isinstance(value, bytes) else pa.array([value], pa.string())

    attempts = Attempts(rig)
    batch = pa.RecordBatch.from_arrays([key(p), key(c), pa.array([1], pa.int32())], names=["p", "c", "v"])
    assert attempts.attempt(0, batch, column or "") == (REFUSED if column else FINE)
    attempts.run.close()
    assert rig.read("p, c") == ([] if column else [{"p": p, "c": c}])


def test_d1_a_partition_key_of_two_parts_may_have_empty_ones_and_has_one_limit(rig: Rig) -> None:
    rig.create("a text, b text, PRIMARY KEY ((a, b))")
    attempts = Attempts(rig)
    half, rest = "x" * 32_767, "y" * (65_535 - 6 - 32_767)
    made = [pa.RecordBatch.from_pydict({"a": [a], "b": [b]}) for a, b in (("", ""), (half, rest), (half, rest + "z"))]
    assert [attempts.attempt(n, batch, "a") for n, batch in enumerate(made)] == [FINE, FINE, REFUSED]
    attempts.run.close()
    assert len(rig.read()) == 2


def test_d1_keys_that_cassandra_tells_apart_are_told_apart_and_equal_ones_are_not(rig: Rig) -> None:
    """0.0 and -0.0 are two keys there, and there is one "not a number"."""
    rig.create("d double, v int, PRIMARY KEY (d)")
    run = Attempts(rig).run
    batch = pa.RecordBatch.from_pydict({"d": [0.0, -0.0, float("nan")], "v": pa.array([1, 2, 3], pa.int32())})
    run.run(0, LocalBatch([[batch]]))
    twice = pa.RecordBatch.from_pydict({"d": [float("nan")] * 2, "v": pa.array([1, 2], pa.int32())})
    with pytest.raises(RowError, match="several rows with primary key"):
        run.run(1, LocalBatch([[twice]]))
    run.close()
    assert len(rig.read()) == 3


def test_d1_random_rows_over_all_columns_at_once(rig: Rig) -> None:
    """Many rows of many edges in one batch, in slices, as Spark sends them: what is fine alone is fine together."""
    rig.create("id bigint PRIMARY KEY, " + ", ".join(f"{name} {cql}" for cql, name in NAMES.items()))
    dice = random.Random(11)
    small = {cql: next(v for c, v, e in EDGES if c == cql and e == FINE) for cql in NAMES}
    arrays = {
        cql: values.take(pa.array([dice.choice([None, *range(len(values))]) for _ in range(60)], pa.int64()))
        for cql, values in small.items()
        if cql not in ("text", "blob")
    }
    ids = pa.array(range(60), pa.int64())
    whole = pa.RecordBatch.from_arrays([ids, *arrays.values()], names=["id", *(NAMES[cql] for cql in arrays)])
    run = Attempts(rig).run
    run.run(0, LocalBatch([[whole.slice(0, 7), whole.slice(7, 13)], [whole.slice(20)]]))
    run.close()
    blobs = {cql: name for cql, name in NAMES.items() if cql in arrays and "<" not in cql}
    bytes_of = {
        row["id"]: row for row in rig.read("id, " + ", ".join(f"{c}asblob({n}) AS {n}" for c, n in blobs.items()))
    }
    others = ", ".join(NAMES[cql] for cql in arrays if cql not in blobs)
    found = {row["id"]: row for row in rig.read(f"id, {others}")}
    for cql, values in arrays.items():
        encoded = listed(encode(values, parse_type(cql)))
        for row in range(60):
            if cql in blobs:
                assert bytes_of[row][NAMES[cql]] == encoded[row], (cql, row)
            else:
                want = comparable(values[row].as_py(), parse_type(cql).name)
                assert comparable(found[row][NAMES[cql]]) == want, (cql, row)
