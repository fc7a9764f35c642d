"""CSV as Spark reads it, and all others read the same file: every short text of what dialects trip over (D1, F6)."""

from __future__ import annotations

import csv
import itertools
import math
import random
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.connectors.files import csvtext, formats
from holdfast.errors import RowError

pytestmark = pytest.mark.spark
ALPHABET = "\"\\,\n\r #;'\tab\x00é"
TEXTS = ["".join(t) for n in range(4) for t in itertools.product(ALPHABET, repeat=n)]
TEXTS += ["back\\", "\\\\server\\share", 'say "hi"', "NaN", "null", "Inf", "x,y\\z", '{"a": 1}', "\ufeffa", "a\u2028b"]


def accepted(texts: list[str], readers: Any) -> list[str]:
    """Those that the sink takes for these readers; they are many, so a batch is halved until it is taken or one."""
    try:
        csvtext.check_rows("out", pa.RecordBatch.from_pydict({"word": pa.array(texts)}), readers, ["word"])
    except RowError:
        half = len(texts) // 2
        return accepted(texts[:half], readers) + accepted(texts[half:], readers) if half else []
    return texts


def write(path: Any, columns: dict[str, Any]) -> None:
    batch = pa.RecordBatch.from_pydict(columns)
    with path.open("wb") as file:
        formats.FORMATS["csv"].write(file, batch.schema, [batch], "none")


def test_what_is_accepted_for_all_readers_is_the_same_to_all_of_them(spark, tmp_path) -> None:
    texts = accepted(TEXTS, csvtext.READERS)
    assert len(texts) > 700, "the rule refuses what is misread, and not much more"
    path = tmp_path / "x.csv"
    write(path, {"id": list(range(len(texts))), "word": texts, "after": ["x"] * len(texts)})
    wanted = [(n, text, "x") for n, text in enumerate(texts)]
    found = spark.read.csv(str(path), header=True, schema="id long, word string, after string").collect()
    assert [tuple(row) for row in found] == wanted
    assert duckdb.sql(f"SELECT * FROM read_csv('{path}', types={{'word': 'VARCHAR'}})").fetchall() == wanted
    assert list(pandas.read_csv(path, dtype={"word": str}).itertuples(index=False, name=None)) == wanted
    with path.open(newline="", encoding="utf-8") as file:
        assert [(int(a), b, c) for a, b, c in list(csv.reader(file))[1:]] == wanted


def made_up(dice: random.Random) -> str:
    """Text of any plane, with what line and field splitters of other programs take for an end or a space."""
    odd = "\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u2028\u2029\u3000\ufeff\x01\x7f\"\\,;#'\t ab"
    ranges = ((0x20, 0x7F), (0xA0, 0x800), (0x800, 0xD800), (0xE000, 0xFFFE), (0x10000, 0x110000))

    def one() -> str:
        return dice.choice(odd) if dice.random() < 0.5 else chr(dice.randrange(*dice.choice(ranges)))

    return "".join(one() for _ in range(dice.randrange(12)))


def any_float(dice: random.Random) -> float:
    """Of any bits; NaN and infinities among them."""
    (found,) = struct.unpack("<d", dice.randbytes(8))
    return float(
        dice.choice([found, found, dice.gauss(0, 1), round(dice.uniform(-1e6, 1e6), 2), -0.0, math.nan, math.inf])
    )


def test_some_thousand_rows_of_any_text_and_any_float_come_back_from_spark_and_the_others(spark, tmp_path) -> None:
    dice = random.Random(12)
    texts = accepted([made_up(dice) for _ in range(8000)], csvtext.READERS)
    assert len(texts) > 3000, "the rule refuses what is misread, and not much more"
    floats = [any_float(dice) for _ in texts]
    path = tmp_path / "x.csv"
    write(path, {"id": list(range(len(texts))), "word": texts, "x": floats, "after": ["y"] * len(texts)})
    wanted = [(n, text, repr(x), "y") for n, (text, x) in enumerate(zip(texts, floats, strict=True))]
    found = spark.read.csv(str(path), header=True, schema="id long, word string, x double, after string").collect()
    assert [(row.id, row.word, repr(row.x), row.after) for row in found] == wanted
    types = "{'word': 'VARCHAR', 'x': 'DOUBLE'}"
    rows = duckdb.sql(f"SELECT * FROM read_csv('{path}', types={types})").fetchall()
    assert [(n, word, repr(x), after) for n, word, x, after in rows] == wanted
    table = pandas.read_csv(path, dtype={"word": str}, float_precision="round_trip")
    assert [(n, word, repr(x), after) for n, word, x, after in table.itertuples(index=False, name=None)] == wanted
    with path.open(newline="", encoding="utf-8") as file:
        assert [(int(a), b, repr(float(c)), d) for a, b, c, d in list(csv.reader(file))[1:]] == wanted


def test_the_options_that_the_errors_name_make_spark_read_everything(spark, tmp_path) -> None:
    assert accepted(TEXTS, ()) == TEXTS
    texts = [text for text in TEXTS if "\x00" not in text]
    path = tmp_path / "x.csv"
    write(path, {"id": list(range(len(texts) + 1)), "word": [*texts, None]})
    options = {"escape": '"', "multiLine": True, "nullValue": "\ue000", "header": True}
    found = {r.id: r.word for r in spark.read.csv(str(path), schema="id long, word string", **options).collect()}
    assert found == {**dict(enumerate(texts)), len(texts): None}


def test_numbers_and_times_are_the_same_to_spark_and_duckdb(spark, tmp_path) -> None:
    path = tmp_path / "x.csv"
    moment = datetime(2024, 5, 1, 1, 2, 3, 4, UTC)
    floats = [math.nan, math.inf, -math.inf, 0.1, -0.0, 1e300, 5e-324, None]
    columns = {
        "x": pa.array(floats),
        "y": pa.array([math.inf, math.nan, None, 0.1, 3.0, -math.inf, 1e-30, 1.5], pa.float32()),
        "d": pa.array([Decimal("0.000000001"), Decimal("-1.5"), None, *[Decimal(10**20)] * 5], pa.decimal128(38, 9)),
        "at": pa.array([moment] * 8, pa.timestamp("us", "UTC")),
        "local": pa.array([moment.replace(tzinfo=None)] * 8, pa.timestamp("us")),
        "day": pa.array([date(2024, 5, 1)] * 8),
        "b": pa.array([True, False, None, True, True, True, True, True]),
        "i": pa.array([2**63 - 1, -(2**63), None, 0, 1, 2, 3, 4]),
    }
    write(path, columns)
    wanted = repr(pa.RecordBatch.from_pydict(columns).drop_columns(["at"]).to_pylist())
    kinds = "x double, y float, d decimal(38,9), at timestamp, local timestamp_ntz, day date, b boolean, i long"
    frame = spark.read.csv(str(path), header=True, schema=kinds)
    assert {row.u for row in frame.selectExpr("unix_micros(at) AS u").collect()} == {moment.timestamp() * 1e6}
    assert repr([row.asDict() for row in frame.drop("at").collect()]) == wanted
    types = "{'x': 'DOUBLE', 'y': 'FLOAT', 'd': 'DECIMAL(38,9)', 'at': 'TIMESTAMP'}"
    relation = duckdb.sql(f"SELECT * FROM read_csv('{path}', types={types})")
    rows = [dict(zip(relation.columns, row, strict=True)) for row in relation.fetchall()]
    assert {row.pop("at") for row in rows} == {moment.replace(tzinfo=None)}
    assert repr(rows) == wanted


def test_a_query_with_a_value_that_spark_would_misread_fails_by_column_and_decides_nothing(spark, tmp_path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.json").write_text('{"id": 1, "word": "a, \\"quoted\\" word"}\n')
    frame = spark.readStream.schema("id long, word string").json(str(tmp_path / "in"))
    sink = hf.FileSink(tmp_path / "out", format="csv", partition_by="id")
    query = hf.write_stream(frame, sink, name="csv", checkpoint_location=str(tmp_path / "checkpoint"))
    with pytest.raises(RowError, match=r"column 'word' has a value that Spark's reader misreads.*escape"):
        query.trigger(availableNow=True).start().awaitTermination()
    sink = hf.FileSink(tmp_path / "out", format="csv", partition_by="id", csv_readers=["duckdb", "pandas", "python"])
    query = hf.write_stream(frame, sink, name="csv", checkpoint_location=str(tmp_path / "checkpoint"))
    query.trigger(availableNow=True).start().awaitTermination()
    (file,) = (tmp_path / "out" / "id=1").iterdir()
    assert file.read_text() == '"word"\n"a, ""quoted"" word"\n'
