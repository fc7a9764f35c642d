"""What each format holds, and that it comes back (F6)."""

from __future__ import annotations

import datetime
import decimal
import gzip
import io
import json
import math
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.json
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.connectors.files import formats, jsonlines
from holdfast.connectors.files.sink import FileSink
from holdfast.errors import ConfigError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.string())),
        ("m", pa.map_(pa.string(), pa.int32())),
        ("n", pa.struct([("x", pa.float64()), ("y", pa.list_(pa.struct([("z", pa.string())])))])),
        ("ll", pa.large_list(pa.large_string())),
    ]
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
ROW = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | FLOATS,
        "s": st.none() | TEXT,
        "b": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.none() | TEXT, max_size=3),
        "m": st.none() | st.dictionaries(TEXT, st.none() | st.integers(-9, 9), max_size=3),
        "n": st.none()
        | st.fixed_dictionaries(
            {
                "x": st.none() | FLOATS,
                "y": st.none() | st.lists(st.none() | st.fixed_dictionaries({"z": st.none() | TEXT}), max_size=2),
            }
        ),
        "ll": st.none() | st.lists(TEXT, max_size=2),
    }
)


def write(name: str, table: pa.Table, compression: str | None = None) -> bytes:
    chosen, picked = formats.choose(name, compression)
    out = io.BytesIO()
    chosen.write(out, table.schema, table.to_batches(), picked)
    return out.getvalue()


@pytest.mark.contract("F6")
@settings(max_examples=60)
@given(st.lists(ROW, max_size=6), st.integers(0, 3))
def test_json_is_what_went_in(rows: list[dict[str, Any]], start: int) -> None:
    maps = [{**row, "m": None if row["m"] is None else list(row["m"].items())} for row in rows]
    batch = pa.RecordBatch.from_pylist(maps, schema=SCHEMA).slice(start)
    lines = jsonlines.encode(batch).decode().split("\n")
    assert lines.pop() == ""
    assert [json.loads(line) for line in lines] == rows[start:]


def test_json_writes_times_decimals_and_strange_numbers_as_spark_does() -> None:
    moment = datetime.datetime(2024, 1, 1, 1, 2, 3, 4)
    batch = pa.record_batch(
        {
            "at": pa.array([moment, None], pa.timestamp("us", "Europe/Berlin")),
            "local": pa.array([moment, None], pa.timestamp("us")),
            "day": pa.array([moment.date(), None]),
            "price": pa.array([decimal.Decimal("1.50"), None]),
            "f": pa.array([math.nan, math.inf]),
            "g": pa.array([-math.inf, 1.0]),
            "nothing": pa.array([None, None]),
        }
    )
    first, second = jsonlines.encode(batch).decode().splitlines()
    assert first == (
        '{"at":"2024-01-01T01:02:03.000004Z","local":"2024-01-01T01:02:03.000004","day":"2024-01-01","price":1.50,'
        '"f":"NaN","g":"-Infinity","nothing":null}'
    )
    assert json.loads(second) == {
        "at": None, "local": None, "day": None, "price": None, "f": "Infinity", "g": 1.0, "nothing": None,
    }  # fmt: skip
    assert second.endswith('"g":1.0,"nothing":null}'), "a double stays one for readers that guess types"


def test_arrow_reads_our_json() -> None:
    table = pa.table({"id": [1, 2], "word": ["a\nb", None], "amount": [1.0, 2.5]})
    assert pa.json.read_json(io.BytesIO(write("json", table))).to_pylist() == table.to_pylist()


@pytest.mark.contract("F6")
@settings(max_examples=40)
@given(st.lists(st.tuples(st.integers(-5, 5), st.none() | TEXT), min_size=1, max_size=5))
def test_csv_keeps_null_and_empty_text_apart(rows: list[tuple[int, str | None]]) -> None:
    schema = pa.schema([("id", pa.int64()), ("word", pa.string())])
    table = pa.Table.from_pylist([{"id": i, "word": w} for i, w in rows], schema=schema)
    convert = pyarrow.csv.ConvertOptions(
        column_types=schema, null_values=[""], strings_can_be_null=True, quoted_strings_can_be_null=False
    )
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    found = pyarrow.csv.read_csv(io.BytesIO(write("csv", table)), None, parse, convert)
    assert found.to_pylist() == table.to_pylist()


def test_csv_begins_with_its_columns() -> None:
    assert write("csv", pa.table({"id": [1], "a word": ["x"]})) == b'"id","a word"\n1,"x"\n'


@pytest.mark.parametrize("name", ["json", "csv"])
def test_compressed_text_is_the_same_text_and_the_same_bytes_each_time(name: str) -> None:
    table = pa.table({"id": list(range(1000))})
    compressed = write(name, table, "gzip")
    assert gzip.decompress(compressed) == write(name, table)
    assert compressed == write(name, table, "gzip")


@pytest.mark.contract("F6")
@pytest.mark.parametrize("compression", [None, "snappy", "zstd", "gzip", "lz4", "none"])
def test_parquet_in_every_compression(compression: str | None) -> None:
    table = pa.table({"id": list(range(1000)), "at": pa.array([0] * 1000, pa.timestamp("us", "UTC"))})
    data = write("parquet", table, compression)
    assert pa.parquet.read_table(io.BytesIO(data)).equals(table)
    assert data == write("parquet", table, compression), "the same rows give the same file"


def test_row_groups_are_large_whatever_the_batches_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many small checkpoints must not make many small row groups, nor one that does not fit in memory."""
    small = pa.table({"id": list(range(10))}).to_batches()
    out = io.BytesIO()
    formats.FORMATS["parquet"].write(out, small[0].schema, small * 1000, "none")
    assert pa.parquet.ParquetFile(out).num_row_groups == 1
    monkeypatch.setattr(formats, "ROW_GROUP_BYTES", 8000)
    out = io.BytesIO()
    formats.FORMATS["parquet"].write(out, small[0].schema, small * 1000, "none")
    assert pa.parquet.ParquetFile(out).num_row_groups == 10


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("parquet", pa.null()),
        ("parquet", pa.duration("us")),
        ("json", pa.binary()),
        ("json", pa.list_(pa.binary())),
        ("json", pa.map_(pa.int32(), pa.string())),
        ("json", pa.duration("us")),
        ("csv", pa.binary()),
        ("csv", pa.large_binary()),
        ("csv", pa.list_(pa.string())),
        ("csv", pa.struct([("a", pa.int64())])),
        ("csv", pa.map_(pa.string(), pa.string())),
        ("csv", pa.duration("us")),
    ],
)
def test_what_a_format_cannot_hold_is_refused_by_name(name: str, kind: pa.DataType) -> None:
    with pytest.raises(ConfigError, match=r"sink 'out': column 'odd' is of type .* cannot hold: cast it"):
        formats.check_types("out", name, pa.schema([("id", pa.int64()), ("odd", kind)]))


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="two columns are named 'a'"):
        formats.check_types("out", "parquet", pa.schema([("a", pa.int64()), ("a", pa.string())]))


@pytest.mark.contract("F6")
@pytest.mark.parametrize(
    ("name", "compression"), [("orc", None), ("avro", None), ("json", "snappy"), ("parquet", "no"), (7, None)]
)
def test_a_format_or_compression_that_is_not_there_is_refused(name: object, compression: str | None) -> None:
    with pytest.raises(ConfigError, match="must be one of"):
        FileSink("/data/out", name, compression=compression)  # type: ignore[arg-type]


def test_a_sessions_time_zone_does_not_make_another_schema() -> None:
    zones = (("UTC", True), ("Asia/Tokyo", False))
    schemas = [pa.schema([pa.field("at", pa.timestamp("us", zone), nullable=null)]) for zone, null in zones]
    first, second = (formats.fingerprint(formats.normal(schema)) for schema in schemas)
    assert first == second
    assert first != formats.fingerprint(pa.schema([("at", pa.timestamp("us"))]))


def test_csv_names_nan_and_the_infinities_as_spark_does_and_leaves_other_numbers_alone() -> None:
    """Bare, Arrow's reader takes nan for null, and Spark's reader takes neither nan nor inf."""
    out = io.BytesIO()
    plain = pa.RecordBatch.from_pydict({"id": [1], "x": [1.5]})
    odd = pa.RecordBatch.from_pydict({"id": [2, 3, 4, 5], "x": [float("nan"), float("inf"), float("-inf"), None]})
    formats.FORMATS["csv"].write(out, plain.schema, [plain, odd, plain], "none")
    lines = out.getvalue().decode().splitlines()
    assert lines == ['"id","x"', "1,1.5", '2,"NaN"', '3,"Inf"', '4,"-Inf"', "5,", "1,1.5"]
