"""`order_by`: which of two rows of one key is the last. One meaning, in every sink that replaces rows by key (I1).

Of two rows of one key the one with the larger `order_by` wins, in one checkpoint and over all of them: a row that comes
late and is older than the stored one changes nothing. No value is smaller than any value. Of equal ones the one written
last wins. Numbers, dates and moments are compared as such, text by its bytes; NaN is the largest number.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.errors import ConfigError


class MissingIndexError(ConfigError):
    """The table has no unique index on the key, so nothing says which row a new one replaces."""


def check_order_by(sink: str, schema: pa.Schema, key: Sequence[str], order_by: str | None) -> None:
    """Refuse an `order_by` that orders nothing; that `key` and it are columns, too."""
    missing = [column for column in (*key, *filter(None, [order_by])) if column not in schema.names]
    if missing:
        raise ConfigError(
            f"sink {sink!r}: key and order_by must be columns of the DataFrame; {', '.join(missing)} is not among "
            f"{', '.join(schema.names)}"
        )
    if order_by is None:
        return
    if order_by in key:
        raise ConfigError(
            f"sink {sink!r}: order_by={order_by!r} is part of the key ({', '.join(key)}), so it is the same in all "
            "rows of one key: name another column"
        )
    if pa.types.is_nested(schema.field(order_by).type):
        raise ConfigError(
            f"sink {sink!r}: order_by={order_by!r} is of type {schema.field(order_by).type}, which has no order: take "
            "a number, a date, a timestamp or text"
        )


def is_older(value: Any, stored: Any) -> bool:
    """Whether a row with this `order_by` gives way to the one that is there; None is no value, or no row."""
    if stored is None:
        return False
    return value is None or _rank(value) < _rank(stored)


def _rank(value: Any) -> tuple[bool, Any]:
    """NaN, which Python finds neither smaller nor larger, is the largest number."""
    nan = isinstance(value, float) and value != value
    return nan, 0 if nan else value
