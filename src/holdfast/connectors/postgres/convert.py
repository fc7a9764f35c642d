"""The values of a column in their form for the wire; what the server could not keep as it is, is refused (D1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.postgres.types import Wire, is_text
from holdfast.errors import RowError

_is = pa.types
#: A time of more than six digits after the point, zeros aside.
_FINER = r"\.[0-9]{6}[0-9]*[1-9]"
#: The first and the last value that the server takes, by Arrow's count; what lies beyond Arrow's own range is left out.
_RANGES = {
    pa.date32(): (-2_440_588, 2_145_042_905 - 1),
    pa.timestamp("us"): (-210_866_803_200_000_000, (1 << 63) - 1),
    pa.timestamp("us", "UTC"): (-210_866_803_200_000_000, (1 << 63) - 1),
}


def convert(name: str, column: pa.Array, target: Wire) -> pa.Array:
    """One column's values in their form for the wire; RowError for what the server cannot keep as it is."""
    try:
        _check(column, target)
        if target.how == "null":
            return pa.nulls(len(column), target.arrow)
        if target.how == "uuid":
            return _uuid(column)
        if target.how == "jsonb":
            # The binary form of jsonb: the number of its version, and the text.
            return pc.binary_join_element_wise(b"\x01", column.cast(pa.binary()), b"")
        made = column if column.type == target.arrow else column.cast(target.arrow)
        _check_times(made, target.step)
        return made
    except (pa.ArrowInvalid, ValueError) as error:
        raise RowError(f"column {name!r}: {error}") from error


def _check(column: pa.Array, target: Wire) -> None:
    """Raise for texts that are too long: blanks at their end the server would cut off in silence; and too fine."""
    while _is.is_list(column.type) or _is.is_large_list(column.type):
        column = column.flatten()
    if not is_text(column.type):
        return
    for most, what, measure in (
        (target.most, "characters", pc.utf8_length),
        (target.most_bytes, "bytes", pc.binary_length),
    ):
        # No text has more characters than bytes.
        if most is not None and (pc.max(pc.binary_length(column)).as_py() or 0) > most:
            lengths = measure(column)
            if (pc.max(lengths).as_py() or 0) > most:
                raise ValueError(f"{_shown(column, pc.greater(lengths, most))} has more than {most} {what}")
    if target.has_time:
        finer = pc.match_substring_regex(column.cast(pa.binary()), _FINER)
        if pc.any(finer).as_py():
            raise ValueError(f"{_shown(column, finer)} has a time that would be rounded to microseconds")


def _check_times(column: pa.Array, step: int) -> None:
    """Raise for days and times that PostgreSQL does not have, or would round."""
    while _is.is_list(column.type):
        column = column.flatten()
    kind = column.type
    if kind in _RANGES and len(column) > column.null_count:
        number = column.cast(pa.int32() if _is.is_date(kind) else pa.int64())
        first, last = pc.min_max(number).as_py().values()
        low, high = _RANGES[kind]
        if first < low or last > high:
            what = "day" if _is.is_date(kind) else "microsecond"
            raise ValueError(f"{what} {first if first < low else last} from 1970 on is out of PostgreSQL's range")
    if step > 1 and len(column):
        number = column.cast(pa.int64()).fill_null(0)
        between = np.not_equal(np.remainder(number.to_numpy(zero_copy_only=False), step), 0)
        if between.any():
            raise ValueError(f"{_shown(column, pa.array(between))} would be rounded: give the column more digits")


def _shown(column: pa.Array, which: Any) -> str:
    """The first of some values, shortened."""
    try:
        text = repr(column.filter(which)[0].as_py())
    except (ValueError, OverflowError):  # not UTF-8, or a time that Python does not have
        text = "a value"
    return text if len(text) <= 60 else f"{text[:56]}...{text[0]}"


def _uuid(column: pa.Array) -> pa.Array:
    """Text with or without dashes to 16 bytes, all rows at once."""
    digits = pc.replace_substring(column.cast(pa.string()), "-", "").fill_null("0" * 32)
    wrong = pc.filter(column, pc.not_equal(pc.binary_length(digits), 32))
    if len(wrong):
        raise ValueError(f"{_shown(wrong, pa.array([True] + [False] * (len(wrong) - 1)))} is not a uuid")
    # Every value has 32 bytes, so one call reads them all, straight from the array's buffer.
    buffer, start = digits.buffers()[2], 32 * digits.offset
    text = b"" if buffer is None else buffer.to_pybytes()[start : start + 32 * len(digits)]
    try:
        values = bytes.fromhex(text.decode("ascii", "replace"))
    except ValueError:
        raise ValueError("a value is not a uuid: it has other characters than 0-9, a-f and dashes") from None
    if len(values) != 16 * len(column):
        raise ValueError("a value is not a uuid: there are blanks in it")
    made = pa.Array.from_buffers(pa.binary(16), len(column), [None, pa.py_buffer(values)])
    return pc.if_else(column.is_valid(), made, pa.scalar(None, pa.binary(16)))
