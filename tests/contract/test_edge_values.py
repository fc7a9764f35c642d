"""D1, as a property: any value of any type is refused in the task by name, or delivered and read back equal."""

from __future__ import annotations

import base64
import itertools
import json
import math
import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.testing.edge_values import NOT_UTF8, TEXTS, EdgeValue, edge_values, exercise_values, text_of

t = pa.types


def plain(array: pa.Array, index: int, *, sep: str, maps: bool) -> Any:
    """A value as JSON has it, made without Arrow's own formatting: what is compared with what came out."""
    kind = array.type
    if not array[index].is_valid:
        return None
    if t.is_struct(kind):
        children = array.flatten()
        return {kind[n].name: plain(child, index, sep=sep, maps=maps) for n, child in enumerate(children)}
    if t.is_map(kind):
        start, end = array.offsets[index].as_py(), array.offsets[index + 1].as_py()
        pairs = [
            [plain(array.keys, n, sep=sep, maps=maps), plain(array.items, n, sep=sep, maps=maps)]
            for n in range(start, end)
        ]
        return dict(pairs) if maps else pairs
    if t.is_list(kind):
        values = array.slice(index, 1).flatten()
        return [plain(values, n, sep=sep, maps=maps) for n in range(len(values))]
    if t.is_date32(kind):
        return str(np.datetime64(array.view(pa.int32())[index].as_py(), "D"))
    if t.is_timestamp(kind):
        text = str(np.datetime64(array.view(pa.int64())[index].as_py(), "us"))
        return text.replace("T", sep) + ("Z" if kind.tz else "")
    if t.is_duration(kind):
        return array.view(pa.int64())[index].as_py()
    value = array[index].as_py()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if t.is_float32(kind):
        return np.float32(value)
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def same(stored: Any, sent: Any) -> bool:
    """Equal, with numbers compared as numbers and NaN equal to itself."""
    if isinstance(sent, dict):
        return isinstance(stored, dict) and list(stored) == list(sent) and all(same(stored[k], sent[k]) for k in sent)
    if isinstance(sent, list):
        return isinstance(stored, list) and len(stored) == len(sent) and all(map(same, stored, sent))
    if isinstance(sent, bool) or sent is None or isinstance(sent, str | bytes):
        return type(stored) is type(sent) and stored == sent
    if isinstance(sent, Decimal):
        return Decimal(stored) == sent
    if isinstance(sent, np.float32):
        return np.float32(stored) == sent
    if isinstance(sent, float):
        return np.float64(stored) == sent
    return bool(stored == sent)


# -- SQLite -----------------------------------------------------------------------------------------------------------


class Sqlite:
    """A table of its own for each value."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.number = itertools.count()

    def make(self, edge: EdgeValue) -> hf.SqliteSink:
        self.path = self.folder / f"{next(self.number)}.db"
        return hf.SqliteSink(str(self.path), "rows")

    def is_there(self, edge: EdgeValue) -> bool:
        with closing(sqlite3.connect(self.path)) as connection:
            ((number, stored),) = connection.execute("SELECT id, v FROM rows").fetchall()
        kind, array = edge.array.type, edge.array
        assert number == 7
        if not array[0].is_valid:
            return stored is None
        if t.is_nested(kind):
            read = json.loads(stored, parse_constant=_no_json)
            return same(read, _decimals(plain(array, 0, sep=" ", maps=False)))
        if t.is_boolean(kind):
            return stored == int(array[0].as_py())
        if t.is_binary(kind):
            return stored == array[0].as_py()
        if t.is_time(kind):
            return stored == array[0].as_py().isoformat(timespec="microseconds")
        if t.is_floating(kind):
            return isinstance(stored, float) and stored == array[0].as_py()
        return same(stored, plain(array, 0, sep=" ", maps=False))


def _no_json(word: str) -> Any:
    raise AssertionError(f"{word} is no JSON, and SQLite's own functions refuse it")


def _decimals(value: Any) -> Any:
    """They are text in nested values: a number of JSON has no digits to trust."""
    if isinstance(value, dict):
        return {k: _decimals(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_decimals(v) for v in value]
    return str(value) if isinstance(value, Decimal) else value


# -- files ------------------------------------------------------------------------------------------------------------


class Files:
    """A folder of its own for each value."""

    def __init__(self, folder: Path, form: str) -> None:
        self.folder, self.form = folder, form
        self.number = itertools.count()

    def make(self, edge: EdgeValue) -> hf.FileSink:
        self.path = self.folder / str(next(self.number))
        # Read back with Arrow and every option; what readers misread with their defaults is in test_file_csv.
        return hf.FileSink(str(self.path), self.form, rolling=hf.Rolling(age="0s"), csv_readers=())

    def is_there(self, edge: EdgeValue) -> bool:
        (file,) = self.path.glob(f"*.{self.form}")
        return bool(getattr(self, self.form)(file, edge))

    @staticmethod
    def parquet(file: Path, edge: EdgeValue) -> bool:
        column = pa.parquet.read_table(file)["v"].combine_chunks()
        column.validate(full=True)
        if column.type != edge.array.type:
            return False
        return column.equals(edge.array) or repr(column.to_pylist()) == repr(edge.array.to_pylist())

    @staticmethod
    def json(file: Path, edge: EdgeValue) -> bool:
        (line,) = file.read_bytes().decode().split("\n")[:-1]
        row = json.loads(line, parse_float=Decimal)
        return list(row) == ["id", "v"] and row["id"] == 7 and same(row["v"], plain(edge.array, 0, sep="T", maps=True))

    @staticmethod
    def csv(file: Path, edge: EdgeValue) -> bool:
        convert = pa.csv.ConvertOptions(
            column_types=edge.schema, strings_can_be_null=True, quoted_strings_can_be_null=False
        )
        parse = pa.csv.ParseOptions(newlines_in_values=True)
        read = pa.csv.ReadOptions(block_size=8 << 20)
        column = pa.csv.read_csv(file, read, parse, convert)["v"].combine_chunks()
        return column.equals(edge.array) or repr(column.to_pylist()) == repr(edge.array.to_pylist())


TARGETS = {
    "sqlite": lambda folder: Sqlite(folder),
    "parquet": lambda folder: Files(folder, "parquet"),
    "json": lambda folder: Files(folder, "json"),
    "csv": lambda folder: Files(folder, "csv"),
}
#: values that must arrive, so that refusing everything is no way to pass
ARRIVE = ["a megabyte of text", "text with NUL", "infinity", "largest number of 64 bits", "the last day of year 9999"]


@pytest.mark.parametrize("target", TARGETS)
def test_every_edge_value_is_refused_by_name_or_delivered_as_sent(tmp_path: Path, target: str) -> None:
    rig = TARGETS[target](tmp_path)
    outcomes = exercise_values(rig.make, rig.is_there)
    refused = {name for name, outcome in outcomes.items() if outcome != "delivered"}
    assert {name for name in outcomes if any(name.startswith(bad) for bad in NOT_UTF8)} <= refused
    assert refused.isdisjoint(ARRIVE)
    assert refused.isdisjoint(name for name in TEXTS)


def test_a_sink_that_does_a_third_thing_is_told_of(tmp_path: Path) -> None:
    """The check itself can fail: rows that arrive changed, and rows that fail after their decision."""
    rig = Sqlite(tmp_path)
    few = [EdgeValue("a", pa.array(["x"])), EdgeValue("b", text_of(b"\xff"))]
    with pytest.raises(AssertionError, match=r"1 values .*\n- a \(string\): delivered, but not as it was sent"):
        exercise_values(rig.make, lambda edge: False, values=few)

    class Late(hf.SqliteSink):
        def commit(self, *_: Any) -> Any:
            raise ValueError("cannot bind")

    def late(edge: EdgeValue) -> Late:
        return Late(str(tmp_path / f"late-{edge.name}.db"), "rows")

    with pytest.raises(
        AssertionError, match=r"1 values .*\n- a \(string\): decided, (then .*cannot bind|and not delivered)"
    ):
        exercise_values(late, lambda edge: True, values=few)


# -- any value of any type --------------------------------------------------------------------------------------------

_BYTES = st.one_of(st.binary(max_size=8), st.text(max_size=8).map(lambda s: s.encode("utf-8", "surrogatepass")))
_LEAVES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.bool_(): st.booleans(),
    pa.int8(): st.integers(-(2**7), 2**7 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.float32(): st.floats(width=32),
    pa.float64(): st.floats(),
    pa.decimal128(38, 10): st.integers(-(10**38) + 1, 10**38 - 1).map(
        lambda n: Decimal((n < 0, tuple(map(int, str(abs(n)))), -10))
    ),
    pa.date32(): st.integers(-(2**31), 2**31 - 1),
    pa.timestamp("us"): st.integers(-(2**63), 2**63 - 1),
    pa.timestamp("us", "UTC"): st.integers(-62_200_000_000_000_000, 253_500_000_000_000_000),
    pa.duration("us"): st.integers(-(2**63), 2**63 - 1),
    pa.string(): _BYTES,
    pa.binary(): st.binary(max_size=8),
}


def leaf(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if t.is_string(kind):
        raw = pa.array(values, pa.binary())
        return pa.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2], raw.buffers()[0])
    if t.is_timestamp(kind) or t.is_duration(kind):
        return pa.array(values, pa.int64()).cast(kind)
    return pa.array(values, pa.int32()).cast(kind) if t.is_date32(kind) else pa.array(values, kind)


@st.composite
def columns(draw: st.DrawFn, length: int, depth: int = 2) -> pa.Array:
    """A column of this many values, of any type, nulls and bad text included."""
    shape = draw(st.sampled_from(["leaf", "leaf", "leaf", "list", "struct", "map"])) if depth else "leaf"
    if shape == "leaf":
        kind = draw(st.sampled_from(list(_LEAVES)))
        return leaf(kind, draw(st.lists(st.none() | _LEAVES[kind], min_size=length, max_size=length)))
    if shape == "struct":
        fields = draw(st.integers(0, 2))
        children = [draw(columns(length, depth - 1)) for _ in range(fields)]
        if not children:
            return pa.array([{}] * length, pa.struct([]))
        return pa.StructArray.from_arrays(children, [f"f{n}" for n in range(fields)])
    sizes = draw(st.lists(st.integers(0, 2), min_size=length, max_size=length))
    offsets = pa.array([0, *itertools.accumulate(sizes)], pa.int32())
    items = draw(columns(sum(sizes), depth - 1))
    if shape == "list":
        return pa.ListArray.from_arrays(offsets, items)
    keys = pa.array([f"k{n}" for n in range(sum(sizes))], pa.string())
    return pa.MapArray.from_arrays(offsets, keys, items)


@pytest.mark.parametrize("target", TARGETS)
@settings(
    max_examples=120,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(array=columns(1))
def test_any_value_of_any_type_is_refused_by_name_or_delivered_as_sent(
    tmp_path_factory: pytest.TempPathFactory, target: str, array: pa.Array
) -> None:
    rig = TARGETS[target](tmp_path_factory.mktemp("values"))
    exercise_values(rig.make, rig.is_there, values=[EdgeValue("any", array)])


def test_the_names_of_the_edge_values_are_there_once() -> None:
    names = [edge.name for edge in edge_values()]
    assert len(names) == len(set(names))
    assert all(len(edge.array) == 1 for edge in edge_values())
