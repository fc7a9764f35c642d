"""What a value must be before anything is decided (rule 11): looked at in the task, a column at a time.

A sink calls these from `write`. What they refuse is a RowError that names sink, column, reason and the first bad value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import RowError

_SECONDS = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}
#: the first second of year 0, and the first after year 9999
_YEAR_0, _YEAR_10000 = -62_167_219_200, 253_402_300_800
_DAY = 86_400
#: what taking a value apart can raise when the value is bad
BAD = (pa.ArrowInvalid, UnicodeError, ValueError, OverflowError)

_types = pa.types


def refuse(sink: str, column: str, array: pa.Array, index: int, reason: str) -> RowError:
    """The error for one value of a column."""
    return RowError(
        f"sink {sink!r}: column {column!r} has a value that {reason}. The first is {shown(array, index)}",
        rows=[index],
        column=column,
        reason=f"has a value that {reason}",
    )


def check_valid(sink: str, batch: pa.RecordBatch) -> None:
    """Refuse text that is not UTF-8, at any depth, and anything else that is not what its type says."""
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            # A slice of lists is looked at with what is outside of it: look again at the values alone.
            index = first_bad(column, lambda values: values.validate(full=True))
            if index is None:
                continue
            utf8 = "UTF8" in str(error)
            reason = (
                "is not UTF-8: keep it as binary, or write it as text with hex() or base64() in the query"
                if utf8
                else f"is not valid ({error}): correct it in the query"
            )
            raise refuse(sink, name, column, index, reason) from error


def check_years(sink: str, column: str, array: pa.Array, remedy: str) -> None:
    """Refuse dates and timestamps, at any depth, outside of the years 0 to 9999: no reader takes them as text."""
    if all(_in_years(leaf) for leaf in leaves(array)):
        return

    def accept(values: pa.Array) -> None:
        if not all(_in_years(leaf) for leaf in leaves(values)):
            raise ValueError("year")

    index = first_bad(array, accept)
    assert index is not None
    raise refuse(sink, column, array, index, f"is not within the years 0000 to 9999: {remedy}")


def leaves(array: pa.Array) -> Iterator[pa.Array]:
    """The values of a column at the bottom: of lists, structs and maps those inside."""
    kind = array.type
    if _types.is_struct(kind):
        for child in array.flatten():
            yield from leaves(child)
    elif _types.is_map(kind):
        entries = array.cast(pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))).flatten()
        yield from leaves(entries)
    elif _types.is_list(kind) or _types.is_large_list(kind) or _types.is_fixed_size_list(kind):
        yield from leaves(array.flatten())
    else:
        yield array


def holds(kind: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    """Whether a type, or one inside it, is such."""
    return test(kind) or any(holds(kind.field(n).type, test) for n in range(kind.num_fields))


def is_dated(kind: pa.DataType) -> bool:
    """Whether values have a year."""
    return bool(_types.is_timestamp(kind) or _types.is_date(kind))


def _in_years(array: pa.Array) -> bool:
    kind = array.type
    if _types.is_timestamp(kind):
        each, numbers = _SECONDS[kind.unit], array.view(pa.int64())
        low, high = _YEAR_0 * each, _YEAR_10000 * each
    elif _types.is_date32(kind):
        low, high, numbers = _YEAR_0 // _DAY, _YEAR_10000 // _DAY, array.view(pa.int32())
    elif _types.is_date64(kind):
        low, high, numbers = _YEAR_0 * 1000, _YEAR_10000 * 1000, array.view(pa.int64())
    else:
        return True
    if _types.is_timestamp(kind) and kind.unit == "ns":  # 64 bits of nanoseconds end in 2262
        return True
    found = pc.min_max(numbers).as_py()
    return found["min"] is None or bool(low <= found["min"] and found["max"] < high)


def first_bad(array: pa.Array, accept: Callable[[pa.Array], object]) -> int | None:
    """The first value that `accept` raises for, by halving; None when it accepts all of them taken by themselves."""

    def bad(end: int) -> bool:
        try:
            accept(array.take(pa.array(range(end), pa.int64())))
        except BAD:
            return True
        return False

    if not bad(len(array)):
        return None
    low, high = 0, len(array)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bad(middle) else (middle, high)
    return high - 1


def shown(array: pa.Array, index: int, longest: int = 80) -> str:
    """One value, for an error; shortened."""
    one = array.take(pa.array([index]))
    for make in (_python, _raw, str):
        try:
            text = " ".join(make(one).split()) if make is str else make(one)
        except (*BAD, pa.ArrowNotImplementedError):
            continue
        return text if len(text) <= longest else f"{text[:longest]}... ({len(text)} characters)"
    return "one that cannot be shown"


def _python(one: pa.Array) -> str:
    return repr(one[0].as_py())


def _raw(one: pa.Array) -> str:
    """A value that Python has no object for: text that is not UTF-8, a time outside of its years."""
    kind = one.type
    if _types.is_timestamp(kind):
        return f"{one.view(pa.int64())[0].as_py()} {kind.unit} since 1970"
    if _types.is_date32(kind):
        return f"{one.view(pa.int32())[0].as_py()} days since 1970"
    return repr(one.cast(pa.large_binary() if _types.is_large_string(kind) else pa.binary())[0].as_py())
