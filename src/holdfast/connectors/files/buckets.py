"""Buckets: which folder a row goes to, and how values become names of folders (F2).

`column=value`, as Hive, Spark, Arrow and DuckDB read it. A value can hold anything: what could end the name, leave the
folder or mean something to a reader is written as `%` and two hex digits. Null and empty text are
`__HIVE_DEFAULT_PARTITION__`, which readers take for null: Hive has no other name for either.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.options import Rule, check_fields, text
from holdfast.errors import ConfigError, RowError

NULL = "__HIVE_DEFAULT_PARTITION__"
#: what Hive and Spark escape, and what a file system or a shell pattern would take for its own
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{}\[\]^]")
_ESCAPED = re.compile(r"%([0-9A-Fa-f]{2})")
_LONGEST = 255
_DIRECTIVE = re.compile(r"%(.)")
_DIRECTIVES = "YmdHMjyGVu"
_SEGMENT = re.compile(r"[A-Za-z][A-Za-z0-9_]*=[A-Za-z0-9_.%+-]+")


def escape_value(value: str | None) -> str:
    """A value as the name of a folder, after the `=`."""
    if value is None or value == "":
        return NULL
    if value == NULL:
        return f"%{ord(value[0]):02X}{value[1:]}"
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", value)


def unescape_value(text: str) -> str | None:
    """The inverse of `escape_value`; empty text comes back as None."""
    if text == NULL:
        return None
    return _ESCAPED.sub(lambda match: chr(int(match[1], 16)), text)


def _is_zone(value: object) -> bool:
    try:
        return isinstance(value, str) and ZoneInfo(value) is not None
    except (ZoneInfoNotFoundError, ValueError, OSError):  # no such zone; no such name; the name of a folder of zones
        return False


_FOLDERS = Rule(
    "folders of the form name=value, such as 'date=%Y-%m-%d/hour=%H', so that readers see them as columns",
    lambda value: isinstance(value, str) and all(map(_SEGMENT.fullmatch, value.split("/"))),
)


@dataclass(frozen=True)
class TimeBucket:
    """Folders by time: of an event-time column, or without one of processing time (when the checkpoint began).

    `pattern` is made of `name=value` folders with Python's directives %Y %m %d %H %M %j %y %G %V %u.
    """

    pattern: Annotated[str, _FOLDERS] = "date=%Y-%m-%d/hour=%H"
    column: Annotated[str, text("the name of a column")] | None = None
    timezone: Annotated[str, Rule("a time zone such as 'Europe/Berlin'", _is_zone)] = "UTC"

    def __post_init__(self) -> None:
        check_fields(self, "TimeBucket")
        wrong = [found for found in _DIRECTIVE.findall(self.pattern) if found not in _DIRECTIVES]
        if wrong or not _DIRECTIVE.search(self.pattern) or self.pattern.endswith("%"):
            raise ConfigError(
                f"TimeBucket: pattern {self.pattern!r} must use directives among "
                f"{' '.join('%' + d for d in _DIRECTIVES)}"
            )

    @property
    def names(self) -> list[str]:
        """The columns a reader sees."""
        return [segment.partition("=")[0] for segment in self.pattern.split("/")]

    def folders(self, batch: pa.RecordBatch, timestamp: int) -> pa.Array:
        """The folder of each row."""
        if self.column is None:
            moment = pa.scalar(timestamp, pa.timestamp("ms", "UTC"))
            values: pa.Array = pa.repeat(moment, batch.num_rows)
        else:
            values = batch.column(self.column)
        if not pa.types.is_timestamp(values.type):
            values = values.cast(pa.timestamp("us"))
        elif values.type.tz is not None:
            values = values.cast(pa.timestamp(values.type.unit, self.timezone))
        nothing = "/".join(f"{name}={NULL}" for name in self.names)
        return pc.fill_null(pc.strftime(values, format=self.pattern), nothing)

    def check(self, schema: pa.Schema) -> None:
        """Raise unless the rows have such a column and none that the folders would hide."""
        hidden = [name for name in self.names if name in schema.names]
        if hidden:
            raise ConfigError(
                f"TimeBucket: readers would take the folder {hidden[0]}=... for column {hidden[0]!r} of the rows: use "
                "another name in the pattern"
            )
        if self.column is None:
            return
        kind = _field(schema, self.column).type
        if not (pa.types.is_timestamp(kind) or pa.types.is_date(kind)):
            raise ConfigError(f"TimeBucket: column {self.column!r} is of type {kind}, not a timestamp or a date")


@dataclass(frozen=True)
class Buckets:
    """Where rows go, by columns and times, in this order."""

    by: tuple[str | TimeBucket, ...] = ()

    @classmethod
    def of(cls, bucket_by: object) -> Buckets:
        """From the sink's option: a column, a TimeBucket, or a list of them."""
        given = [bucket_by] if isinstance(bucket_by, str | TimeBucket) else bucket_by
        if not isinstance(given, Sequence) or not all(isinstance(b, TimeBucket | str) and b for b in given):
            raise ConfigError(f"bucket_by must be columns and hf.TimeBucket(...) objects, not {bucket_by!r}")
        names = [name for b in given for name in (b.names if isinstance(b, TimeBucket) else [b])]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ConfigError(f"bucket_by names {twice[0]!r} twice")
        for name in names:
            if name.startswith(("_", ".")) or _UNSAFE.search(name):
                raise ConfigError(f"bucket_by: a folder {name}=... would be hidden from readers or misread: rename it")
        return cls(tuple(given))

    @property
    def columns(self) -> list[str]:
        """Columns whose values are in the folders' names and not in the files."""
        return [b for b in self.by if isinstance(b, str)]

    def check(self, schema: pa.Schema) -> None:
        """Raise unless rows of this schema can be put into these buckets."""
        for bucket in self.by:
            if isinstance(bucket, TimeBucket):
                bucket.check(schema)
                continue
            kind = _field(schema, bucket).type
            if not _has_text(kind):
                raise ConfigError(
                    f"bucket_by: column {bucket!r} is of type {kind}, which makes no folder name: use text, whole "
                    "numbers, decimals, booleans, dates or timestamps, or cast it"
                )
        if schema.names and not set(schema.names) - set(self.columns):
            raise ConfigError("bucket_by names every column, so that nothing is left for the files themselves")

    def assign(self, batch: pa.RecordBatch, timestamp: int) -> tuple[pa.DictionaryArray | None, pa.RecordBatch]:
        """The folder of each row, None when there are no buckets; and the rows without what is in the folder's name."""
        if not self.by:
            return None, batch
        folders = [
            bucket.folders(batch, timestamp) if isinstance(bucket, TimeBucket) else _segments(batch, bucket)
            for bucket in self.by
        ]
        paths = folders[0] if len(folders) == 1 else pc.binary_join_element_wise(*folders, "/")
        rows = batch.drop_columns(self.columns) if self.columns else batch
        return paths.dictionary_encode(), rows

    def split(self, batch: pa.RecordBatch, timestamp: int) -> Iterator[tuple[str, pa.RecordBatch]]:
        """(folder, its rows without the columns that are in the folder's name), each folder once, rows in order."""
        yield from grouped(*self.assign(batch, timestamp))


def grouped(encoded: pa.DictionaryArray | None, rows: pa.RecordBatch) -> Iterator[tuple[str, pa.RecordBatch]]:
    """Each folder once, with its rows in order."""
    if encoded is None:
        yield "", rows
    elif len(encoded.dictionary) == 1:
        yield encoded.dictionary[0].as_py(), rows
    else:
        codes = encoded.indices.to_numpy(zero_copy_only=False)
        order = np.argsort(codes, kind="stable")
        starts = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
        sorted_rows = rows.take(pa.array(order))
        for code, folder in enumerate(encoded.dictionary.to_pylist()):
            yield folder, sorted_rows.slice(starts[code], starts[code + 1] - starts[code])


def _segments(batch: pa.RecordBatch, column: str) -> pa.Array:
    """`column=value` for each row; only distinct values are looked at one by one."""
    values = batch.column(column)
    if pa.types.is_timestamp(values.type) and values.type.tz is not None:
        values = values.cast(pa.timestamp(values.type.unit, "UTC")).cast(pa.timestamp(values.type.unit))
    encoded = values.cast(pa.string()).dictionary_encode(null_encoding="encode")
    names = [f"{column}={escape_value(value)}" for value in encoded.dictionary.to_pylist()]
    for name in names:
        if len(name.encode()) > _LONGEST:
            raise RowError(
                f"bucket_by: a value of column {column!r} is too long for the name of a folder "
                f"({len(name.encode())} bytes, {_LONGEST} are allowed): {name[:60]!r}... Bucket by something shorter"
            )
    return pa.array(names, pa.string()).take(encoded.indices)


def _field(schema: pa.Schema, column: str) -> pa.Field:
    if column not in schema.names:
        raise ConfigError(f"bucket_by: {column!r} is not among the columns {', '.join(schema.names)}")
    return schema.field(column)


def _has_text(kind: pa.DataType) -> bool:
    tests = (
        pa.types.is_string,
        pa.types.is_large_string,
        pa.types.is_integer,
        pa.types.is_boolean,
        pa.types.is_decimal,
        pa.types.is_date,
        pa.types.is_timestamp,
    )
    return any(test(kind) for test in tests)
