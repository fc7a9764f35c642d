"""Arrow columns as SQLite values: made in the task, where a value that SQLite cannot take is refused (rule 11)."""

from __future__ import annotations

import base64
import datetime
import json
import math
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError, RowError
from holdfast.sinks.values import BAD, check_valid, check_years, first_bad, is_dated, refuse

_types = pa.types
#: SQLite's own collations
BINARY, NOCASE, RTRIM = "BINARY", "NOCASE", "RTRIM"
_NESTED = (_types.is_list, _types.is_large_list, _types.is_struct, _types.is_map, _types.is_fixed_size_list)
#: a batch below this holds no row that is too long for SQLite
_SMALL = 500_000_000


def quote(identifier: str) -> str:
    """An identifier for use in SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def column_type(kind: pa.DataType) -> str:
    """The column type that keeps values of this Arrow type."""
    if _types.is_integer(kind) or _types.is_boolean(kind) or _types.is_duration(kind):
        return "INTEGER"
    if _types.is_floating(kind):
        return "REAL"
    if _is_binary(kind):
        return "BLOB"
    return "TEXT"


def has_order(kind: pa.DataType) -> bool:
    """Whether SQLite orders the stored values as Arrow orders them: decimals and nested values are kept as text."""
    return not (_types.is_decimal(kind) or _is_nested(kind))


def check_types(sink: str, schema: pa.Schema) -> None:
    """Refuse, by name, columns whose type SQLite has no value for."""
    for field in schema:
        try:
            _column(sink, field.name, pa.array([], field.type))
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise ConfigError(
                f"sink {sink!r}: column {field.name!r} is of type {field.type}, which SQLite cannot hold: cast it to "
                "text or to a number in the query"
            ) from error


def check_declared(sink: str, table: str, schema: pa.Schema, declared: Mapping[str, str]) -> None:
    """Refuse text for a column of numbers and numbers for one of text: SQLite would take both in silence."""
    for field in schema:
        kind, there = column_type(field.type), _affinity(declared.get(field.name.lower(), ""))
        if (kind == "TEXT") != (there == "TEXT") and {kind, there} <= {"TEXT", "INTEGER", "REAL"}:
            raise ConfigError(
                f"sink {sink!r}: column {field.name!r} is {field.type} in the DataFrame, kept as {kind}, and "
                f"{declared[field.name.lower()]} in table {table!r}: cast it in the query, or write into another table"
            )


def _affinity(declared: str) -> str:
    """What a column's declared type means to SQLite (its section 3.1)."""
    name = declared.upper()
    for words, found in ((("INT",), "INTEGER"), (("CHAR", "CLOB", "TEXT"), "TEXT"), (("REAL", "FLOA", "DOUB"), "REAL")):
        if any(word in name for word in words):
            return found
    return "" if not name or "BLOB" in name else "NUMERIC"


def encode(sink: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as SQLite takes them: whole numbers of 64 bits, doubles, text and bytes. RowError for any other value.

    No value of it can fail to be bound: a number fits, text is UTF-8, no value is longer than SQLite allows.
    """
    check_valid(sink, batch)
    names = batch.schema.names
    columns = [_column(sink, name, column) for name, column in zip(names, batch.columns, strict=True)]
    encoded = pa.RecordBatch.from_arrays(columns, names)
    if encoded.nbytes > _SMALL:
        _check_lengths(sink, encoded)
    return encoded


@dataclass(frozen=True)
class Keys:
    """The key columns of sealed rows as SQLite compares them: to it, 0.0 and -0.0 are one."""

    key: tuple[str, ...]
    #: of each of them, as the table has it
    collations: tuple[str, ...] = ()

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """A batch of the key columns, under their names."""
        columns = [batch.column(name) for name in self.key]
        same = [pc.add(c, 0.0) if _types.is_floating(c.type) else c for c in columns]
        for n, collation in enumerate(self.collations):
            if collation in _COMPARED and _types.is_string(same[n].type):
                same[n] = _COMPARED[collation](same[n])
        return pa.RecordBatch.from_arrays(same, list(self.key))


#: as SQLite's own collations compare text
_COMPARED = {NOCASE: pc.ascii_lower, RTRIM: lambda text: pc.ascii_rtrim(text, " ")}


def collation(connection: sqlite3.Connection, table: str, column: str) -> str:
    """How a column compares text; SQLite tells by comparing two texts as the column would, and in no other way."""
    values = f"SELECT {quote(column)} AS v FROM {quote(table)} WHERE 0 UNION ALL SELECT ?1"  # noqa: S608
    for name, one, other in ((NOCASE, "A", "a"), (RTRIM, "a ", "a")):
        if connection.execute(f"SELECT count(*) FROM ({values}) WHERE v = ?2", (one, other)).fetchone()[0]:  # noqa: S608
            return name
    return BINARY


def to_rows(batch: pa.RecordBatch) -> Any:
    """Encoded rows as tuples, made column by column; for `executemany`."""
    return zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _is_binary(kind: pa.DataType) -> bool:
    tests = (_types.is_binary, _types.is_large_binary, _types.is_fixed_size_binary, _types.is_binary_view)
    return any(test(kind) for test in tests)


def _is_nested(kind: pa.DataType) -> bool:
    return any(test(kind) for test in _NESTED)


def _column(sink: str, name: str, column: pa.Array) -> pa.Array:
    kind = column.type
    if _is_nested(kind):
        return _json_text(sink, name, column)
    if is_dated(kind):
        check_years(sink, name, column, "SQLite's dates end there; filter such rows out, or cast the column")
    if _types.is_timestamp(kind) and kind.tz is not None:
        # One instant, one text: in the session's time zone neither equality nor order would hold over its changes.
        # Without a zone Arrow formats it many times faster.
        return pc.binary_join_element_wise(column.view(pa.timestamp(kind.unit)).cast(pa.string()), "Z", "")
    if _types.is_integer(kind) or _types.is_boolean(kind) or _types.is_duration(kind):
        return _whole(sink, name, column)
    if _types.is_floating(kind):
        return _floating(sink, name, column)
    if _is_binary(kind):
        return column.cast(pa.large_binary() if _types.is_large_binary(kind) else pa.binary())
    if _types.is_large_string(kind) or _types.is_null(kind):
        return column
    # Decimals, dates and times are exact and sortable as text; SQLite has no type of its own for them.
    return column.cast(pa.string())


def _whole(sink: str, name: str, column: pa.Array) -> pa.Array:
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid as error:
        index = first_bad(column, lambda values: values.cast(pa.int64()))
        assert index is not None
        reason = "does not fit SQLite's whole numbers of 64 bits: cast it to text or decimal"
        raise refuse(sink, name, column, index, reason) from error


def _floating(sink: str, name: str, column: pa.Array) -> pa.Array:
    nan = pc.is_nan(column)
    if pc.any(nan).as_py():
        index = pc.index(pc.fill_null(nan, False), True).as_py()
        reason = "is not a number, which SQLite would store as NULL: replace it with nanvl() or filter it out"
        raise refuse(sink, name, column, index, reason)
    return column.cast(pa.float64())


def _json_text(sink: str, name: str, column: pa.Array) -> pa.Array:
    """Nested values as JSON text: the one place that visits each value in Python."""
    try:
        texts = [None if value is None else _dumps(value) for value in column.to_pylist()]
    except BAD as error:
        index = first_bad(column, lambda values: [_dumps(value) for value in values.to_pylist()])
        reason = f"makes no JSON ({type(error).__name__}: {error}): correct it in the query, or leave it out"
        raise refuse(sink, name, column, index or 0, reason) from error
    return pa.array(texts, pa.large_string())


def _dumps(value: Any) -> str:
    try:
        return json.dumps(value, default=_plain, allow_nan=False)
    except ValueError:
        # JSON has neither NaN nor infinities: they are text, as in Spark's own JSON.
        return json.dumps(_without_nan(value), default=_plain, allow_nan=False)


def _plain(value: Any) -> Any:
    """What JSON has no type for: bytes as base64, all else as in a column of its own."""
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, datetime.timedelta):
        return value // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.datetime):
        # In the session's time zone one instant would have several texts.
        zone = "" if value.tzinfo is None else "Z"
        moment = value if value.tzinfo is None else value.astimezone(datetime.UTC).replace(tzinfo=None)
        return moment.isoformat(" ", "microseconds") + zone
    return value.isoformat("microseconds") if isinstance(value, datetime.time) else str(value)


def _without_nan(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _without_nan(item) for key, item in value.items()}
    return [_without_nan(item) for item in value] if isinstance(value, (list, tuple)) else value


def _check_lengths(sink: str, batch: pa.RecordBatch) -> None:
    """A value, and a whole row, may have no more bytes than SQLite was built for (1,000,000,000)."""
    connection = sqlite3.connect(":memory:")
    limit = connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) - 20 * (batch.num_columns + 1)
    connection.close()
    total = pa.array([0] * batch.num_rows, pa.int64())
    for column in batch.columns:
        if not _types.is_null(column.type) and not _types.is_primitive(column.type):
            total = pc.add(total, pc.fill_null(pc.binary_length(column).cast(pa.int64()), 0))
    longest = pc.max(total).as_py() or 0
    if longest > limit:
        raise RowError(
            f"sink {sink!r}: a row has {longest} bytes of text and binary data, and SQLite takes {limit}: split it, or "
            "keep large values elsewhere"
        )
