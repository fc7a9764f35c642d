"""Arrow as JSON lines, a column at a time: no Python per row.

As Spark writes it: decimals are numbers, times are ISO text, NaN and the infinities are text. A null field is written
as null.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.compute as pc

#: kinds of values -> how they become text
_CONTROL = r"[\x00-\x1f]"


def supports(kind: pa.DataType) -> bool:
    """Whether JSON can hold it and give it back."""
    if pa.types.is_struct(kind):
        return all(supports(field.type) for field in kind)
    if pa.types.is_map(kind):
        return _is_text(kind.key_type) and supports(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return supports(kind.value_type)
    return pa.types.is_null(kind) or any(test(kind) for test, _ in _SCALARS)


def encode(batch: pa.RecordBatch) -> bytes:
    """One line of JSON for each row."""
    lines = _object(batch.schema.names, batch.columns, batch.num_rows)
    joined = pc.binary_join(pa.ListArray.from_arrays([0, len(lines)], lines), "\n")[0].as_py()
    return joined.encode() + b"\n" if batch.num_rows else b""


def _object(names: list[str], columns: list[pa.Array], length: int) -> pa.Array:
    if not names:
        return pa.repeat(pa.scalar("{}"), length)
    pieces: list[pa.Array | str] = []
    for index, (name, column) in enumerate(zip(names, columns, strict=True)):
        pieces += ["{" if index == 0 else ",", f"{json.dumps(name, ensure_ascii=False)}:", _values(column)]
    return pc.binary_join_element_wise(*pieces, "}", "")


def _values(array: pa.Array) -> pa.Array:
    """JSON text of each value; never null."""
    kind = array.type
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if pa.types.is_null(kind):
        return pa.repeat(pa.scalar("null"), len(array))
    if pa.types.is_struct(kind):
        text = _object([field.name for field in kind], array.flatten(), len(array))
        text = pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string()))
    elif pa.types.is_map(kind):
        text = _nested(array, _pairs(array), "{", "}")
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        text = _nested(array, _values(_flat(array)), "[", "]")
    else:
        text = next(make for test, make in _SCALARS if test(kind))(array)
    return pc.fill_null(text, "null")


def _flat(array: pa.Array) -> pa.Array:
    """The values of lists, those of null lists left out."""
    return array.flatten()


def _pairs(array: pa.MapArray) -> pa.Array:
    lists = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
    entries = lists.flatten()
    return pc.binary_join_element_wise(_values(entries.field("key")), _values(entries.field("value")), ":")


def _nested(array: pa.Array, items: pa.Array, start: str, end: str) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(_as_list(array)), 0).cast(pa.int64())
    offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
    joined = pc.binary_join(pa.LargeListArray.from_arrays(offsets, items), ",")
    text = pc.binary_join_element_wise(start, joined, end, "")
    return pc.if_else(array.is_valid(), text, pa.scalar(None, pa.string()))


def _as_list(array: pa.Array) -> pa.Array:
    if not pa.types.is_map(array.type):
        return array
    return array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))


def _text(array: pa.Array) -> pa.Array:
    """Quoted, with what JSON wants escaped."""
    array = array.cast(pa.string())
    array = pc.replace_substring(array, "\\", "\\\\")
    array = pc.replace_substring(array, '"', '\\"')
    # Control characters are rare: only what is there is replaced.
    if pc.any(pc.match_substring_regex(array, _CONTROL)).as_py():
        for code in range(32):
            array = pc.replace_substring(array, chr(code), json.dumps(chr(code))[1:-1])
    return pc.binary_join_element_wise('"', array, '"', "")


def _quoted(array: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise('"', array.cast(pa.string()), '"', "")


def _number(array: pa.Array) -> pa.Array:
    return array.cast(pa.string())


def _float(array: pa.Array) -> pa.Array:
    text = array.cast(pa.string())
    # A double stays one for readers that guess types: 1.0 and not 1.
    whole = pc.match_substring_regex(text, r"^-?[0-9]+$")
    text = pc.if_else(whole, pc.binary_join_element_wise(text, ".0", ""), text)
    for found, name in (("nan", '"NaN"'), ("-nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"')):
        text = pc.if_else(pc.equal(text, found), name, text)
    return text


def _timestamp(array: pa.Array) -> pa.Array:
    zone = array.type.tz is not None
    if zone:
        array = array.cast(pa.timestamp(array.type.unit, "UTC"))
    return _quoted(pc.strftime(array, format="%Y-%m-%dT%H:%M:%SZ" if zone else "%Y-%m-%dT%H:%M:%S"))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


_SCALARS: list[tuple[Callable[[pa.DataType], bool], Callable[[pa.Array], pa.Array]]] = [
    (_is_text, _text),
    (pa.types.is_boolean, _number),
    (pa.types.is_integer, _number),
    (pa.types.is_floating, _float),
    (pa.types.is_decimal, _number),
    (pa.types.is_date, _quoted),
    (pa.types.is_timestamp, _timestamp),
]
