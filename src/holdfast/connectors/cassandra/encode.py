"""Arrow columns as the bytes Cassandra is sent (CQL protocol version 4), whole columns at a time.

The task encodes every row before it is decided and the delivery encodes it again: one function of the same input, so
that what worked in the task works there. No driver binds anything afterwards.
"""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.cassandra.types import CqlType, normalise, pairs, plain

_is = pa.types
_NUMBERS = {
    "tinyint": ">i1", "smallint": ">i2", "int": ">i4", "bigint": ">i8", "float": ">f4", "double": ">f8",
    "timestamp": ">i8", "date": ">u4", "time": ">i8",
}  # fmt: skip
#: Of these a vector holds the bytes alone; before those of any other type it has their length.
_FIXED = ("boolean", "int", "bigint", "float", "double", "uuid", "timeuuid", "timestamp")
Bytes = npt.NDArray[np.uint8]


def encode(array: pa.Array, cql: CqlType) -> pa.Array:
    """The values as bytes, in a binary array; null stays null. ValueError for what does not go into the type."""
    if cql.name in _NUMBERS:
        return _numbers(normalise(array, cql), _NUMBERS[cql.name])
    return _OTHERS[cql.name](plain(array), cql)


def lengths(encoded: pa.Array) -> npt.NDArray[np.int64]:
    """How many bytes each value has; none for null."""
    found: npt.NDArray[np.int64] = pc.binary_length(encoded).fill_null(0).to_numpy(zero_copy_only=False)
    return found.astype(np.int64)


def listed(encoded: pa.Array) -> list[bytes | None]:
    """What the driver sends; much faster than `to_pylist`."""
    if not len(encoded):
        return []
    values: list[bytes | None]
    if _is.is_fixed_size_binary(encoded.type):
        width = encoded.type.byte_width
        data = np.frombuffer(encoded.buffers()[1], f"V{width}")
        values = data[encoded.offset : encoded.offset + len(encoded)].tolist()
    else:
        kind = np.int64 if _is.is_large_binary(encoded.type) else np.int32
        _, offsets, buffer = encoded.buffers()
        ends = np.frombuffer(offsets, kind)[encoded.offset : encoded.offset + len(encoded) + 1].tolist()
        whole = memoryview(buffer)[ends[0] : ends[-1]].tobytes() if buffer is not None else b""
        first = ends[0]
        values = [whole[a - first : b - first] for a, b in itertools.pairwise(ends)]
    if encoded.null_count:
        for row in np.flatnonzero(~_valid(encoded)).tolist():
            values[row] = None
    return values


# -- one function for each kind of type --------------------------------------------------------------------------------


def _numbers(array: pa.Array, kind: str) -> pa.Array:
    values = array.fill_null(0) if array.null_count else array
    return _fixed(values.to_numpy(zero_copy_only=False).astype(kind).tobytes(), np.dtype(kind).itemsize, array)


def _boolean(array: pa.Array, cql: CqlType) -> pa.Array:
    values = array.fill_null(False) if array.null_count else array
    return _fixed(values.to_numpy(zero_copy_only=False).astype(np.uint8).tobytes(), 1, array)


def _plain(array: pa.Array, cql: CqlType) -> pa.Array:
    """Text and bytes are what they are."""
    large = _is.is_large_string(array.type) or _is.is_large_binary(array.type)
    return array.cast(pa.large_binary() if large else pa.binary())


def _uuid(array: pa.Array, cql: CqlType) -> pa.Array:
    zero = "00000000-0000-0000-0000-000000000000"
    text = pc.replace_substring(array.fill_null(zero), "-", "")
    return _fixed(bytes.fromhex("".join(text.to_pylist())), 16, array)


def _inet(array: pa.Array, cql: CqlType) -> pa.Array:
    """Each address that occurs is read once."""
    known = array.dictionary_encode()
    packed = [None if text is None else ipaddress.ip_address(text).packed for text in known.dictionary.to_pylist()]
    return pa.array(packed, pa.binary()).take(known.indices)


def _varint(array: pa.Array, cql: CqlType) -> pa.Array:
    values = array.fill_null(0) if array.null_count else array
    unsigned = _is.is_uint64(array.type)
    numbers = values.to_numpy(zero_copy_only=False).astype(">u8" if unsigned else ">i8")
    digits = np.frombuffer(numbers.tobytes(), np.uint8).reshape(len(array), 8)
    if unsigned:
        digits = np.hstack([np.zeros((len(array), 1), np.uint8), digits])
    return _shortened(digits, array, head=0)


def _decimal(array: pa.Array, cql: CqlType) -> pa.Array:
    """The scale, then the unscaled number."""
    array = array if _is.is_decimal128(array.type) or _is.is_decimal256(array.type) else _wide(array)
    width, scale, rows = array.type.byte_width, array.type.scale, len(array)
    raw = np.frombuffer(array.buffers()[1] or b"", np.uint8)[array.offset * width : (array.offset + rows) * width]
    digits = raw.copy().reshape(rows, width)[:, ::-1]
    if array.null_count:
        digits[~_valid(array)] = 0
    head = np.frombuffer(scale.to_bytes(4, "big", signed=True), np.uint8)
    return _shortened(np.hstack([np.tile(head, (rows, 1)), digits]), array, head=4)


def _wide(array: pa.Array) -> pa.Array:
    return array.cast(pa.decimal128(array.type.precision, array.type.scale))


def _shortened(digits: Bytes, array: pa.Array, *, head: int) -> pa.Array:
    """Big-endian numbers without the leading bytes that only repeat their sign; the first `head` bytes stay."""
    number = digits[:, head:]
    spare = np.zeros(number.shape, bool)
    for column in range(number.shape[1] - 1):
        # A byte is not needed when all before it are not, it is only sign, and the next one has the same sign.
        sign = np.where(number[:, column + 1] >= 128, 255, 0)
        spare[:, column] = number[:, column] == sign
        if column:
            spare[:, column] &= spare[:, column - 1]
    kept = np.hstack([np.ones((len(digits), head), bool), ~spare])
    offsets = np.concatenate([[0], np.cumsum(kept.sum(axis=1))]).astype(np.int32)
    buffers = [_bitmap(array), pa.py_buffer(offsets.tobytes()), pa.py_buffer(digits[kept].tobytes())]
    return pa.Array.from_buffers(pa.binary(), len(array), buffers)


def _sequence(array: pa.Array, cql: CqlType) -> pa.Array:
    """A list or set: how many, then each with its length."""
    items = _prefixed(encode(array.flatten(), cql.arguments[0]))
    return _joined(array, items)


def _map(array: pa.Array, cql: CqlType) -> pa.Array:
    keys, values = pairs(array)
    parts = _prefixed(encode(keys, cql.arguments[0])), _prefixed(encode(values, cql.arguments[1]))
    return _joined(array, _concatenated(*parts))


def _vector(array: pa.Array, cql: CqlType) -> pa.Array:
    inner = cql.arguments[0]
    items = encode(array.flatten(), inner).cast(pa.large_binary())
    if not _always_as_long(inner):
        sizes = [_vint(size) for size in lengths(items).tolist()]
        items = _concatenated(pa.array(sizes, pa.large_binary()), items)
    return _joined(array, items, counted=False)


def _always_as_long(cql: CqlType) -> bool:
    return cql.name in _FIXED or (cql.name == "vector" and _always_as_long(cql.arguments[0]))


def _vint(number: int) -> bytes:
    """Cassandra's unsigned number of variable length: leading ones say how many bytes follow the first."""
    extra = max(0, (max(number.bit_length(), 1) - 1) // 7)
    if extra >= 8:
        return b"\xff" + number.to_bytes(8, "big")
    return ((((1 << extra) - 1) << (8 - extra) << (8 * extra)) | number).to_bytes(extra + 1, "big")


_OTHERS: dict[str, Callable[[pa.Array, CqlType], pa.Array]] = {
    "text": _plain, "varchar": _plain, "ascii": _plain, "blob": _plain, "boolean": _boolean, "uuid": _uuid,
    "timeuuid": _uuid, "inet": _inet, "varint": _varint, "decimal": _decimal, "list": _sequence, "set": _sequence,
    "map": _map, "vector": _vector,
}  # fmt: skip


# -- parts ------------------------------------------------------------------------------------------------------------


def _prefixed(encoded: pa.Array) -> pa.Array:
    """Each value after its length."""
    return _concatenated(_counts(lengths(encoded)), encoded.cast(pa.large_binary()))


def _joined(array: pa.Array, items: pa.Array, *, counted: bool = True) -> pa.Array:
    """The items of each list of `array` as one value; `items` are those of all lists, one after the other."""
    counts = pc.list_value_length(array if not _is.is_map(array.type) else array.cast(_listed_type(array.type)))
    sizes = counts.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), items)
    joined = pc.binary_join(lists, pa.scalar(b"", pa.large_binary()))
    if counted:
        joined = _concatenated(_counts(sizes), joined)
    return pc.if_else(pa.array(_valid(array)), joined, None) if array.null_count else joined


def _listed_type(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct([("key", kind.key_type), ("value", kind.item_type)]))


def _counts(numbers: npt.NDArray[np.int64]) -> pa.Array:
    data = pa.py_buffer(numbers.astype(">i4").tobytes())
    return pa.Array.from_buffers(pa.binary(4), len(numbers), [None, data]).cast(pa.large_binary())


def _concatenated(*parts: pa.Array) -> pa.Array:
    return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.large_binary()))


def _fixed(data: bytes, width: int, array: pa.Array) -> pa.Array:
    """Values of one width, null where `array` is."""
    return pa.Array.from_buffers(pa.binary(width), len(array), [_bitmap(array), pa.py_buffer(data)])


def _valid(array: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = array.is_valid().to_numpy(zero_copy_only=False)
    return found


def _bitmap(array: pa.Array) -> pa.Buffer | None:
    return pa.py_buffer(np.packbits(_valid(array), bitorder="little").tobytes()) if array.null_count else None
