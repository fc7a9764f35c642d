"""Which folder a row goes to: any value, and never outside the root (F2)."""

from __future__ import annotations

import datetime
import os
from pathlib import Path, PurePosixPath

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.connectors.files.buckets import NULL, Buckets, TimeBucket, escape_value, unescape_value
from holdfast.errors import ConfigError, RowError

NASTY = ["/", "..", "../../etc", "a/b", "=", "a=b", "%", "%2F", "\x00", "😀", " ", ".", "~", "\\", "C:", "\n"]
NASTY += [NULL, "é", "_x", "%5F"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@pytest.mark.contract("F2")
@given(st.none() | TEXT)
def test_a_value_comes_back_as_it_was(value: str | None) -> None:
    assert unescape_value(escape_value(value)) == (value or None)


@pytest.mark.contract("F2")
@given(TEXT)
@example("..")
@example("../..")
@example("a/../../b")
@example("\x00")
def test_no_value_leaves_its_folder(value: str) -> None:
    segment = f"column={escape_value(value)}"
    assert "/" not in segment
    assert "\x00" not in segment
    assert os.path.normpath(f"/root/{segment}/file") == f"/root/{segment}/file"


@given(st.lists(TEXT, min_size=2, max_size=20, unique=True))
def test_different_values_have_different_folders(values: list[str]) -> None:
    assert len({escape_value(value) for value in values}) == len(values)


@pytest.mark.parametrize("value", NASTY)
def test_arrow_reads_the_value_back_from_the_folder(value: str, tmp_path: Path) -> None:
    batch = pa.record_batch({"id": [1], "word": [value]})
    ((folder, rows),) = Buckets.of("word").split(batch, 0)
    path = tmp_path / folder / "x.parquet"
    path.parent.mkdir(parents=True)
    assert path.resolve().is_relative_to(tmp_path)
    pa.parquet.write_table(pa.Table.from_batches([rows]), path)
    hive = pa.dataset.partitioning(pa.schema([("word", pa.string())]), flavor="hive")
    (row,) = pa.dataset.dataset(tmp_path, partitioning=hive).to_table().to_pylist()
    assert row == {"id": 1, "word": None if value == NULL else value}


def test_null_and_empty_share_hives_folder() -> None:
    batch = pa.record_batch({"id": [1, 2, 3], "word": [None, "", "x"]})
    found = {folder: rows.to_pydict() for folder, rows in Buckets.of("word").split(batch, 0)}
    assert found == {f"word={NULL}": {"id": [1, 2]}, "word=x": {"id": [3]}}


ROWS = st.lists(st.tuples(st.integers(), st.sampled_from([None, "a", "b", "c/d"]), st.integers(0, 3)), min_size=1)


@given(ROWS)
def test_every_row_is_in_its_bucket_once_and_in_order(rows: list[tuple[int, str | None, int]]) -> None:
    batch = pa.RecordBatch.from_pylist(
        [{"n": index, "word": word, "k": k} for index, (_, word, k) in enumerate(rows)],
        schema=pa.schema([("n", pa.int64()), ("word", pa.string()), ("k", pa.int32())]),
    )
    seen: dict[str, list[int]] = {}
    for folder, part in Buckets.of(["word", "k"]).split(batch, 0):
        assert folder not in seen
        assert part.schema.names == ["n"]
        seen[folder] = part.column("n").to_pylist()
        assert seen[folder] == sorted(seen[folder])
    expected: dict[str, list[int]] = {}
    for index, (_, word, k) in enumerate(rows):
        expected.setdefault(f"word={escape_value(word)}/k={k}", []).append(index)
    assert seen == expected


def test_columns_of_every_kind_that_makes_a_name() -> None:
    moment = datetime.datetime(2024, 2, 29, 23, 59, 1, 500, tzinfo=datetime.UTC)
    columns = {
        "flag": pa.array([True]),
        "number": pa.array([-5], pa.int8()),
        "price": pa.array(["1.50"]).cast(pa.decimal128(5, 2)),
        "day": pa.array([moment.date()]),
        "at": pa.array([moment], pa.timestamp("us", "America/New_York")),
    }
    batch = pa.record_batch({"id": [1], **columns})
    ((folder, _),) = Buckets.of(list(columns)).split(batch, 0)
    assert folder == "flag=true/number=-5/price=1.50/day=2024-02-29/at=2024-02-29 23%3A59%3A01.000500"


@pytest.mark.contract("F2")
@pytest.mark.parametrize(
    ("column", "folder"),
    [
        (TimeBucket(column="at"), "date=2024-03-01/hour=01"),
        (TimeBucket("month=%Y-%m", column="at", timezone="America/New_York"), "month=2024-02"),
        (TimeBucket("date=%Y-%m-%d", column="local"), "date=2024-03-01"),
        (TimeBucket("number=%j", column="day"), "number=061"),
        (TimeBucket("date=%Y-%m-%d/minute=%H%M"), "date=1970-01-02/minute=0001"),
        (TimeBucket("date=%Y/hour=%H", column="nothing"), f"date={NULL}/hour={NULL}"),
    ],
)
def test_time_buckets_of_event_time_and_processing_time(column: TimeBucket, folder: str) -> None:
    moment = datetime.datetime(2024, 3, 1, 1, 30)
    batch = pa.record_batch(
        {
            "at": pa.array([moment], pa.timestamp("us", "UTC")),
            "local": pa.array([moment], pa.timestamp("us")),
            "day": pa.array([moment.date()]),
            "nothing": pa.array([None], pa.timestamp("us", "UTC")),
        }
    )
    buckets = Buckets.of(column)
    buckets.check(batch.schema)
    ((found, rows),) = buckets.split(batch, (24 * 60 + 1) * 60_000)
    assert found == folder
    assert rows.schema.names == batch.schema.names, "an event-time column stays in the file"
    assert ".." not in PurePosixPath(found).parts


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("%Y-%m-%d", "name=value"),
        ("../date=%Y", "name=value"),
        ("date=%Y/..", "name=value"),
        ("date=%Y//hour=%H", "name=value"),
        ("_date=%Y", "name=value"),
        ("date=always", "directives among"),
        ("date=%c", "directives among"),
        ("date=%Y%", "directives among"),
        (7, "name=value"),
    ],
)
def test_a_pattern_that_readers_could_not_read_is_refused(pattern: object, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        TimeBucket(pattern)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"timezone": "Mars/Olympus"}, {"timezone": 7}, {"column": ""}])
def test_a_wrong_zone_or_column_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        TimeBucket(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "bucket_by", [7, [""], [1], ["a", "a"], ["_a"], [".a"], ["a/b"], ["date", TimeBucket("date=%Y")], None]
)
def test_wrong_buckets_are_refused(bucket_by: object) -> None:
    with pytest.raises(ConfigError, match="bucket_by"):
        Buckets.of(bucket_by)


@pytest.mark.parametrize(
    ("bucket_by", "why"),
    [
        ("none", "'none' is not among the columns id, word, amount, date"),
        ("amount", "'amount' is of type double"),
        (TimeBucket("day=%Y", column="word"), "'word' is of type string, not a timestamp"),
        (TimeBucket("date=%Y"), "for column 'date' of the rows"),
        (["id", "word", "date"], None),
    ],
)
def test_buckets_are_checked_against_the_rows(bucket_by: object, why: str | None) -> None:
    schema = pa.schema([("id", pa.int64()), ("word", pa.string()), ("amount", pa.float64()), ("date", pa.date32())])
    if why is None:
        Buckets.of(bucket_by).check(schema)
        with pytest.raises(ConfigError, match="nothing is left for the files"):
            Buckets.of(bucket_by).check(schema.remove(2))
        return
    with pytest.raises(ConfigError, match=why):
        Buckets.of(bucket_by).check(schema)


def test_a_value_too_long_for_a_folder_is_named() -> None:
    batch = pa.record_batch({"id": [1], "word": ["/" * 100]})
    with pytest.raises(RowError, match=r"column 'word' is too long for the name of a folder \(305 bytes"):
        list(Buckets.of("word").split(batch, 0))
