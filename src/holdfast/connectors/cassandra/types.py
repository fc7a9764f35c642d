"""Arrow columns as Cassandra values: which fits which, and how."""

from __future__ import annotations

import ipaddress
import re
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_is = pa.types
_TOKEN = re.compile(r"\s*([<>,]|[^<>,\s][^<>,]*)")
_DAY_ZERO = 2**31
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


def _text(kind: pa.DataType) -> bool:
    return bool(_is.is_string(kind) or _is.is_large_string(kind) or _is.is_string_view(kind))


def _bytes(kind: pa.DataType) -> bool:
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


#: Cassandra type -> which Arrow types it holds without loss, except that a timestamp has milliseconds there.
_SCALARS: dict[str, Callable[[pa.DataType], bool]] = {
    "text": _text,
    "varchar": _text,
    "ascii": _text,
    "uuid": _text,
    "timeuuid": _text,
    "inet": _text,
    "blob": _bytes,
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
    if cql.name == "timestamp":
        return array.cast(pa.timestamp("ms", array.type.tz), safe=False).cast(pa.int64())
    if cql.name == "date":
        return pc.add(array.cast(pa.date32()).cast(pa.int32()).cast(pa.int64()), _DAY_ZERO)
    if cql.name == "time":
        return array.cast(pa.time64("ns")).cast(pa.int64())
    if cql.name in ("uuid", "timeuuid"):
        return pc.utf8_lower(array)
    if cql.name == "inet":
        return pa.array([None if text is None else str(ipaddress.ip_address(text)) for text in array.to_pylist()])
    return array


def to_values(array: pa.Array, cql: CqlType) -> list[Any]:
    """What the driver binds."""
    values: list[Any] = normalise(array, cql).to_pylist()
    convert = _converter(cql)
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _converter(cql: CqlType) -> Callable[[Any], Any] | None:
    """For what Arrow cannot make itself; None when it can."""
    if cql.name in ("uuid", "timeuuid"):
        return uuid.UUID
    inner = [_converter(argument) or _same for argument in cql.arguments]
    if cql.name in ("list", "vector"):
        return lambda items: [inner[0](item) for item in items]
    if cql.name == "set":
        return lambda items: {inner[0](item) for item in items}
    if cql.name == "map":
        return lambda items: {inner[0](key): inner[1](value) for key, value in items}
    return None


def _same(value: Any) -> Any:
    return value


def problem(array: pa.Array, cql: CqlType) -> str | None:
    """Why Cassandra would refuse a value of this column, or None; nulls are fine."""
    if cql.name in ("uuid", "timeuuid"):
        what = "a UUID" if cql.name == "uuid" else "a time-based UUID (version 1)"
        form = _UUID.format(version=_HEX if cql.name == "uuid" else "1")
        return _outside(array, pc.match_substring_regex(array, form), f"is not {what} in its usual form, 8-4-4-4-12")
    if cql.name == "inet":
        good = [text is None or _is_address(text) for text in array.to_pylist()]
        return _outside(array, pa.array(good, pa.bool_()), "is not an IP address")
    if cql.name == "ascii":
        return None if _all(pc.string_is_ascii(array)) else "a value is not ASCII"
    if cql.name == "vector" and not _all(pc.equal(pc.list_value_length(array), int(cql.arguments[1].name))):
        return f"a value does not have {cql.arguments[1]} elements"
    if cql.name in ("list", "set", "vector"):
        return _inner_problem(array.flatten(), cql.arguments[0])
    if cql.name == "map":
        # Not `.keys` and `.items`: those of a slice are still of the whole array.
        pair = pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])
        keys, items = array.cast(pa.list_(pair)).flatten().flatten()
        return _inner_problem(keys, cql.arguments[0]) or _inner_problem(items, cql.arguments[1])
    return None


def _inner_problem(array: pa.Array, cql: CqlType) -> str | None:
    if array.null_count:
        return "there is a null inside a collection, which Cassandra does not keep"
    return problem(array, cql)


def _all(mask: pa.Array) -> bool:
    return pc.all(mask, min_count=0).as_py() is not False


def _outside(array: pa.Array, good: pa.Array, what: str) -> str | None:
    """The first value that is not good."""
    bad = array.filter(pc.invert(good))
    return f"{bad[0].as_py()!r} {what}" if len(bad) else None


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return "%" not in text
