"""Arrow columns as SQLite values."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

_types = pa.types
_NESTED = (_types.is_list, _types.is_large_list, _types.is_struct, _types.is_map, _types.is_fixed_size_list)


def quote(identifier: str) -> str:
    """An identifier for use in SQL."""
    return '"' + identifier.replace('"', '""') + '"'


def column_type(kind: pa.DataType) -> str:
    """The column type that keeps values of this Arrow type."""
    if _types.is_integer(kind) or _types.is_boolean(kind) or _types.is_duration(kind):
        return "INTEGER"
    if _types.is_floating(kind):
        return "REAL"
    if _types.is_binary(kind) or _types.is_large_binary(kind) or _types.is_fixed_size_binary(kind):
        return "BLOB"
    return "TEXT"


def has_order(kind: pa.DataType) -> bool:
    """Whether SQLite orders the stored values as Arrow orders them: decimals and nested values are kept as text."""
    return not (_types.is_decimal(kind) or any(is_nested(kind) for is_nested in _NESTED))


def to_rows(batch: pa.RecordBatch) -> Any:
    """The rows as tuples, made column by column; for `executemany`."""
    return zip(*(_column(column) for column in batch.columns), strict=True)


def _column(column: pa.Array) -> list[Any]:
    convert = _converter(column.type)
    return convert(column)


def _converter(kind: pa.DataType) -> Callable[[pa.Array], list[Any]]:
    if any(is_nested(kind) for is_nested in _NESTED):
        return _json_text
    if _types.is_boolean(kind) or _types.is_duration(kind):
        return lambda column: column.cast(pa.int64()).to_pylist()
    if _types.is_timestamp(kind) and kind.tz is not None:
        # One instant, one text: in the session's time zone neither equality nor order would hold over its changes.
        return lambda column: column.cast(pa.timestamp(kind.unit, "UTC")).cast(pa.string()).to_pylist()
    if _types.is_decimal(kind) or _types.is_temporal(kind):
        # Exact and sortable text; SQLite has no type of its own for either.
        return lambda column: column.cast(pa.string()).to_pylist()
    return lambda column: column.to_pylist()


def _json_text(column: pa.Array) -> list[Any]:
    """Nested values as JSON text: the one place that visits each value in Python."""
    return [None if value is None else json.dumps(value, default=str) for value in column.to_pylist()]
