"""Arrow columns as Cassandra values: which type fits which, and which values Cassandra would refuse."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

_is = pa.types
_TOKEN = re.compile(r"\s*([<>,]|[^<>,\s][^<>,]*)")
_DAY_ZERO = 2**31
_SHOWN = 60
_HEX = "[0-9a-fA-F]"
_UUID = f"^{_HEX}{{{{8}}}}-{_HEX}{{{{4}}}}-{{version}}{_HEX}{{{{3}}}}-{_HEX}{{{{4}}}}-{_HEX}{{{{12}}}}$"


@dataclass(frozen=True)
class CqlType:
    """A type as Cassandra writes it, `map<text, frozen<list<int>>>`."""

    name: str
    arguments: tuple[CqlType, ...] = ()
    frozen: bool = False

    def __str__(self) -> str:
        inner = f"{self.name}<{', '.join(map(str, self.arguments))}>" if self.arguments else self.name
        return f"frozen<{inner}>" if self.frozen else inner

    def like(self, other: CqlType) -> bool:
        """Whether values of both are the same bytes."""
        same = self._plain_name == other._plain_name and len(self.arguments) == len(other.arguments)
        return same and all(a.like(b) for a, b in zip(self.arguments, other.arguments, strict=True))

    @property
    def _plain_name(self) -> str:
        """The driver calls vectors by the name of their class."""
        return {"varchar": "text", "org.apache.cassandra.db.marshal.VectorType": "vector"}.get(self.name, self.name)


def parse_type(text: str) -> CqlType:
    """Read what `system_schema.columns` says."""
    found, rest = _parse(_TOKEN.findall(text))
    if rest:
        raise ValueError(f"{text!r} is not a Cassandra type")
    return found


def _parse(tokens: list[str]) -> tuple[CqlType, list[str]]:
    name, tokens = tokens[0].strip(), tokens[1:]
    arguments: list[CqlType] = []
    if tokens[:1] == ["<"]:
        while tokens[0] != ">":
            argument, tokens = _parse(tokens[1:])
            arguments.append(argument)
        tokens = tokens[1:]
    if name == "frozen":
        (inner,) = arguments
        return CqlType(inner.name, inner.arguments, frozen=True), tokens
    return CqlType(name, tuple(arguments)), tokens


def is_text(kind: pa.DataType) -> bool:
    """Whether it is text, of any layout."""
    return bool(_is.is_string(kind) or _is.is_large_string(kind) or _is.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    """Whether it is bytes, of any layout."""
    return bool(
        _is.is_binary(kind) or _is.is_large_binary(kind) or _is.is_fixed_size_binary(kind) or _is.is_binary_view(kind)
    )


def _list(kind: pa.DataType) -> bool:
    return bool(_is.is_list(kind) or _is.is_large_list(kind) or _is.is_fixed_size_list(kind))


def _integer(bits: int) -> Callable[[pa.DataType], bool]:
    def fits(kind: pa.DataType) -> bool:
        return bool(
            (_is.is_signed_integer(kind) and kind.bit_width <= bits)
            or (_is.is_unsigned_integer(kind) and kind.bit_width < bits)
        )

    return fits


#: Cassandra type -> which Arrow types it holds without loss; of timestamps those in whole milliseconds, see `problem`.
_SCALARS: dict[str, Callable[[pa.DataType], bool]] = {
    "text": is_text,
    "varchar": is_text,
    "ascii": is_text,
    "uuid": is_text,
    "timeuuid": is_text,
    "inet": is_text,
    "blob": is_bytes,
    "boolean": _is.is_boolean,
    "tinyint": _integer(8),
    "smallint": _integer(16),
    "int": _integer(32),
    "bigint": _integer(64),
    "varint": _is.is_integer,
    "float": lambda kind: _is.is_float16(kind) or _is.is_float32(kind),
    "double": _is.is_floating,
    "decimal": _is.is_decimal,
    "timestamp": _is.is_timestamp,
    "date": _is.is_date,
    "time": _is.is_time,
}


def fits(cql: CqlType, kind: pa.DataType) -> bool:
    """Whether every value of the Arrow type goes into the Cassandra type."""
    if cql.name in _SCALARS:
        return bool(_SCALARS[cql.name](kind))
    if cql.name in ("list", "set", "vector"):
        return _list(kind) and fits(cql.arguments[0], kind.value_type)
    if cql.name == "map":
        key, value = cql.arguments
        return bool(_is.is_map(kind)) and fits(key, kind.key_type) and fits(value, kind.item_type)
    return False


def created(kind: pa.DataType) -> str | None:
    """The Cassandra type of a column that is made for values of an Arrow type; None: somebody has to choose one."""
    if _is.is_list(kind) or _is.is_large_list(kind):
        inner = created(kind.value_type)
        return None if inner is None else f"frozen<list<{inner}>>"
    for name in _CREATED:
        if _SCALARS[name](kind):
            return name
    return None


#: the smallest that holds all values comes first
_CREATED = (
    "text", "blob", "boolean", "tinyint", "smallint", "int", "bigint", "float", "double", "decimal", "timestamp",
    "date", "time",
)  # fmt: skip


def expected(cql: CqlType) -> str:
    """What a DataFrame's column must be for it, in Spark's words."""
    words = {
        "text": "string", "varchar": "string", "ascii": "string", "uuid": "string", "timeuuid": "string",
        "inet": "string", "blob": "binary", "boolean": "boolean", "tinyint": "tinyint", "smallint": "smallint",
        "int": "int", "bigint": "bigint", "varint": "bigint", "float": "float", "double": "double",
        "decimal": "decimal", "timestamp": "timestamp", "date": "date", "time": "time", "list": "array", "set": "array",
        "vector": "array", "map": "map",
    }  # fmt: skip
    return words.get(cql.name, "")


def normalise(array: pa.Array, cql: CqlType) -> pa.Array:
    """The value as Cassandra keeps it: two that are equal there are equal here."""
    array = plain(array)
    if cql.name == "timestamp":
        # Not safe: earlier versions decided rows with finer ones, and those are still delivered.
        return array.cast(pa.timestamp("ms", array.type.tz), safe=False).cast(pa.int64())
    if cql.name == "date":
        days = array.cast(pa.date32(), safe=False) if _is.is_date64(array.type) else array
        return pc.add(days.cast(pa.int32()).cast(pa.int64()), _DAY_ZERO)
    if cql.name == "time":
        return array.cast(pa.time64("ns")).cast(pa.int64())
    if cql.name in ("float", "double"):
        array = array.cast(pa.float32()) if _is.is_float16(array.type) else array
        # There is one "not a number" there; Arrow tells those of different bits apart.
        return pc.if_else(pc.is_nan(array), pa.scalar(float("nan"), array.type), array)
    if cql.name in ("uuid", "timeuuid"):
        return pc.utf8_lower(array)
    if cql.name == "inet":
        return pa.array([None if text is None else str(ipaddress.ip_address(text)) for text in array.to_pylist()])
    return array


def plain(array: pa.Array) -> pa.Array:
    """The same values in a layout that every function of Arrow takes."""
    if _is.is_string_view(array.type):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if _is.is_binary_view(array.type) else array


def pairs(array: pa.Array) -> tuple[pa.Array, pa.Array]:
    """All keys and all values of a map column; its own `.keys` and `.items` ignore that it is a slice."""
    pair = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
    keys, values = array.cast(pa.list_(pair)).flatten().flatten()
    return keys, values


def problem(array: pa.Array, cql: CqlType) -> str | None:
    """Why Cassandra would refuse a value of this column, or None; nulls are fine."""
    if is_text(array.type):
        return _text_problem(plain(array), cql)
    if cql.name in ("timestamp", "time", "date"):
        return _time_problem(array, cql)
    if cql.name == "vector" and not _all(pc.equal(pc.list_value_length(array), int(cql.arguments[1].name))):
        return f"a value does not have {cql.arguments[1]} elements"
    if cql.name in ("list", "set", "vector"):
        return _inner_problem(array.flatten(), cql.arguments[0])
    if cql.name == "map":
        keys, items = pairs(array)
        return _inner_problem(keys, cql.arguments[0]) or _inner_problem(items, cql.arguments[1])
    return None


def _inner_problem(array: pa.Array, cql: CqlType) -> str | None:
    if array.null_count:
        return "there is a null inside a collection, which Cassandra does not keep"
    return problem(array, cql)


def _text_problem(array: pa.Array, cql: CqlType) -> str | None:
    broken = _not_utf8(array)
    if broken is not None:
        return f"{shown(broken)} is not UTF-8"
    if cql.name in ("uuid", "timeuuid"):
        what = "a UUID" if cql.name == "uuid" else "a time-based UUID (version 1)"
        form = _UUID.format(version=_HEX if cql.name == "uuid" else "1")
        return _outside(array, pc.match_substring_regex(array, form), f"is not {what} in its usual form, 8-4-4-4-12")
    if cql.name == "inet":
        return _outside(array, _addresses(array), "is not an IP address")
    if cql.name == "ascii":
        return _outside(array, pc.string_is_ascii(array), "is not ASCII")
    return None


def _not_utf8(array: pa.Array) -> bytes | None:
    """The first value that is no text, which Spark lets through: `CAST(X'ff' AS STRING)`."""
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        for value in array.cast(pa.large_binary()).to_pylist():
            try:
                if value is not None:
                    value.decode()
            except UnicodeDecodeError:
                return bytes(value)
        raise
    return None


#: In a unit coarser than milliseconds a moment can be too far away for them.
_FURTHEST_SECOND = (2**63 - 1) // 1000
_DAY = {"s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}
_IN_A_MILLISECOND = {"us": 10**3, "ns": 10**6}


def _time_problem(array: pa.Array, cql: CqlType) -> str | None:
    if cql.name == "date":
        if _is.is_date32(array.type):
            return None
        numbers, limit = array.cast(pa.int64()), 2**31 * _DAY["ms"]
        good = pc.and_(pc.greater_equal(numbers, -limit), pc.less(numbers, limit))
        return _outside(numbers, good, "milliseconds is not a day Cassandra has: it keeps 2^31 days around 1970")
    unit = array.type.unit
    numbers = array.cast(pa.int32() if _is.is_time32(array.type) else pa.int64()).cast(pa.int64())
    if cql.name == "time":
        good = pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, _DAY[unit]))
        return _outside(numbers, good, f"{unit} is not a time of a day")
    if unit == "s":
        good = pc.and_(pc.less_equal(numbers, _FURTHEST_SECOND), pc.greater_equal(numbers, -_FURTHEST_SECOND))
        return _outside(numbers, good, "seconds from 1970 is too far away for milliseconds")
    if unit in _IN_A_MILLISECOND:
        step = _IN_A_MILLISECOND[unit]
        good = pc.equal(pc.multiply(pc.divide(numbers, step), step), numbers)
        # As text: Python knows no moments after the year 9999.
        bad = array.filter(pc.invert(good)).slice(0, 1).cast(pa.timestamp(unit)).cast(pa.string())
        finer = "is finer than a millisecond, and Cassandra keeps no more; date_trunc('MILLISECOND', ...) cuts it"
        return f"{shown(bad[0].as_py())} {finer}" if len(bad) else None
    return None


def _all(mask: pa.Array) -> bool:
    return pc.all(mask, min_count=0).as_py() is not False


def _outside(array: pa.Array, good: pa.Array, what: str) -> str | None:
    """The first value that is not good."""
    bad = array.filter(pc.invert(good))
    return f"{shown(bad[0].as_py())} {what}" if len(bad) else None


def shown(value: object) -> str:
    """A value in an error: enough to find it."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def _addresses(array: pa.Array) -> pa.Array:
    """Which are addresses; each one that occurs is looked at once."""
    known = array.dictionary_encode()
    good = [text is None or _is_address(text) for text in known.dictionary.to_pylist()]
    return pa.array(good, pa.bool_()).take(known.indices)


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text
