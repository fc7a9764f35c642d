"""CSV is read back equal by every reader with its defaults, or the value is refused by column (D1, F6)."""

from __future__ import annotations

import csv
import io
import math
import tempfile
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from holdfast.connectors.files import csvtext, formats
from holdfast.errors import ConfigError, RowError

#: what dialects trip over comes often
NASTY = st.text(st.sampled_from("\"\\,;|\t\n\r #'ab0é\x00\x1a"), max_size=6)
TEXT = NASTY | st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(["NA", "null", "007"])
FLOATS = st.floats(width=64)
ROW = st.tuples(st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | TEXT, st.none() | FLOATS, st.none() | TEXT)
SCHEMA = pa.schema([("id", pa.int64()), ("word", pa.string()), ("x", pa.float64()), ("more", pa.large_string())])
Rows = list[tuple[Any, ...]]


def written(batch: pa.RecordBatch) -> bytes:
    out = io.BytesIO()
    formats.FORMATS["csv"].write(out, batch.schema, [batch], "none")
    return out.getvalue()


def table(rows: Rows) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([dict(zip(SCHEMA.names, row, strict=True)) for row in rows], schema=SCHEMA)


def accepted(rows: Rows, *readers: str) -> Rows:
    """Those the sink does not refuse, when these are the readers."""
    found = []
    for row in rows:
        try:
            csvtext.check_rows("out", table([row]), readers, SCHEMA.names)
        except RowError:
            continue
        found.append(row)
    return found


def same(found: Rows, rows: Rows, *, ulps: float = 0.0) -> None:
    assert len(found) == len(rows)
    for one, other in zip(found, rows, strict=True):
        for value, wanted in zip(one, other, strict=True):
            if isinstance(wanted, float) and isinstance(value, float):
                both_nan = math.isnan(value) and math.isnan(wanted)
                assert both_nan or value == wanted or abs(value - wanted) <= ulps * math.ulp(wanted)
            else:
                assert value == wanted


@settings(max_examples=100)
@given(st.lists(ROW, min_size=1, max_size=5))
@example([(1, 'say "hi"', 1.5, "back\\"), (2, "a\\b,c", math.nan, "\\\\server\\x"), (3, "1,2", -math.inf, None)])
def test_pythons_csv_module_reads_back_what_was_accepted_for_it(rows: Rows) -> None:
    rows = accepted(rows, "python")
    read = list(csv.reader(io.StringIO(written(table(rows)).decode(), newline="")))
    assert read[0] == SCHEMA.names
    # It knows no null and no types: null is empty text there.
    found = [(int(a) if a else None, b, float(c) if c else None, d) for a, b, c, d in read[1:]]
    same(found, [(a, b or "", c, d or "") for a, b, c, d in rows])


@settings(max_examples=100, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=5))
@example([(1, 'say "hi"', 1.5, "back\\"), (2, "a\\b,c", math.nan, "\\\\server\\x"), (3, "1,2", -math.inf, None)])
@example([(1, "line\nend", math.inf, "NA"), (2, '"all,in"', 0.1, "null")])
def test_duckdb_reads_back_what_was_accepted_for_it(rows: Rows) -> None:
    rows = accepted(rows, "duckdb")
    if not rows:
        return
    found = duckdb_reads(written(table(rows)))
    same(found, rows)


def duckdb_reads(data: bytes) -> Rows:
    with tempfile.NamedTemporaryFile(suffix=".csv") as file:
        file.write(data)
        file.flush()
        kinds = "{'id': 'BIGINT', 'word': 'VARCHAR', 'x': 'DOUBLE', 'more': 'VARCHAR'}"
        return duckdb.sql(f"SELECT * FROM read_csv('{file.name}', types={kinds})").fetchall()


@settings(max_examples=100)
@given(st.lists(ROW, min_size=1, max_size=5))
@example([(1, 'say "hi"', 1.5, "back\\"), (2, "a\\b,c", math.nan, "\\\\server\\x"), (3, "1,2", -math.inf, None)])
@example([(n, None, sign * 1.5321330332181815 * 10.0**-n, None) for n in range(10) for sign in (1, -1)])
def test_pandas_reads_back_what_was_accepted_for_it(rows: Rows) -> None:
    rows = accepted(rows, "pandas")
    if not rows:
        return
    kinds = {"id": "Int64", "word": str, "x": float, "more": str}
    frame = pandas.read_csv(io.BytesIO(written(table(rows))), dtype=kinds)
    found = [tuple(None if v is pandas.NA else v for v in row) for row in frame.itertuples(index=False)]
    texts = [tuple(None if isinstance(v, float) and n in (1, 3) else v for n, v in enumerate(row)) for row in found]
    # It has one word for null and NaN, and by default its last digit is not exact.
    same(texts, [(a, b, math.nan if c is None else c, d) for a, b, c, d in rows], ulps=16)


@pytest.mark.parametrize(
    ("value", "option", "readers"),
    [
        ('{"a": 1, "b": 2}', "escape", ["duckdb", "pandas", "python"]),
        ("comma, and back\\", "escape", ["duckdb", "pandas", "python"]),
        ("two\nlines", "multiLine", ["duckdb", "pandas", "python"]),
        ("", "nullValue", ["python"]),
        ("NA", "keep_default_na=False", ["spark", "duckdb", "python"]),
        ("nul \x00", "no option helps", ["duckdb", "python"]),
        ("x" * 140_000, "field_size_limit", ["spark", "duckdb", "pandas"]),
    ],
)
def test_what_a_reader_would_misread_is_refused_by_column_with_its_option(
    value: str, option: str, readers: list[str]
) -> None:
    batch = table([(1, "fine", 1.0, value)])
    with pytest.raises(RowError, match=rf"sink 'out': column 'more' has a value that (?s:.*){option}") as error:
        csvtext.check_rows("out", batch, csvtext.READERS, SCHEMA.names)
    assert f"csv_readers={readers}" in str(error.value)
    csvtext.check_rows("out", batch, readers, SCHEMA.names)
    csvtext.check_rows("out", batch, csvtext.READERS, ["id", "word", "x"])


def test_a_line_too_long_for_duckdb_is_refused() -> None:
    batch = pa.RecordBatch.from_pydict({f"c{n}": ["x" * 130_000] for n in range(16)})
    with pytest.raises(RowError, match="max_line_size"):
        csvtext.check_rows("out", batch, csvtext.READERS, batch.schema.names)
    csvtext.check_rows("out", batch, ["spark", "pandas", "python"], batch.schema.names)


@pytest.mark.parametrize("name", ['a"b,c', "a\nb", ""])
def test_a_columns_name_that_would_be_misread_is_refused_at_the_start(name: str) -> None:
    with pytest.raises(ConfigError, match=r"the first line of a CSV file.*Rename it"):
        csvtext.check_names("out", ["id", name], csvtext.READERS)
    csvtext.check_names("out", ["id", "NA", 'a "quoted" name', name], [])


@pytest.mark.parametrize("wrong", ["excel", ["spark", 7], 7])
def test_unknown_readers_are_refused(wrong: object) -> None:
    with pytest.raises(ConfigError, match="csv_readers must be some of spark, duckdb, pandas, python"):
        csvtext.choose_readers(wrong)


def test_a_column_of_text_alone_keeps_its_rows_and_its_header(tmp_path: Path) -> None:
    """DuckDB guesses the dialect and the header: nothing here may lead it astray."""
    words = ["a;b", "c|d", "#no comment", "x\ty", " spaces ", "it's", 'say "hi"', "1", "true", "a,b"]
    batch = pa.RecordBatch.from_pydict({"word": words})
    path = tmp_path / "x.csv"
    path.write_bytes(written(batch))
    assert duckdb.sql(f"SELECT word FROM read_csv('{path}')").fetchall() == [(word,) for word in words]
    assert pandas.read_csv(path)["word"].tolist() == words
