"""How Arrow columns travel to PostgreSQL's columns by binary COPY; `convert.py` does it.

ADBC writes each Arrow type in one binary form and converts nothing, so every column is first cast to the one Arrow type
whose form the table's column reads. A type without such a form is staged as text and cast by the server.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pyarrow as pa

from holdfast.errors import ConfigError

_is = pa.types
_TEXT = ("text", "varchar", "bpchar", "name", "json", "citext")
_EXACT = {
    "bool": pa.bool_(),
    "int2": pa.int16(),
    "int4": pa.int32(),
    "int8": pa.int64(),
    "float4": pa.float32(),
    "float8": pa.float64(),
    "bytea": pa.binary(),
    "date": pa.date32(),
    "time": pa.time64("us"),
    "timestamp": pa.timestamp("us"),
    "timestamptz": pa.timestamp("us", "UTC"),
    "interval": pa.duration("us"),
    "uuid": pa.binary(16),
    "jsonb": pa.binary(),
    **dict.fromkeys(_TEXT, pa.string()),
}
#: Their arrays travel as arrays of text: ADBC would name the elements' type wrong.
_ONLY_TEXT = ("varchar", "bpchar", "name", "json", "citext")
_INTEGER_BITS = {"int2": 16, "int4": 32, "int8": 64}
_LARGEST_INTEGER = pa.decimal128(20, 0)


@dataclass(frozen=True)
class SqlType:
    """A column's type: its name in the catalog, or that of its elements, and how SQL spells it."""

    base: str
    is_array: bool
    spelled: str
    #: as the catalog keeps length, precision or scale; -1: none
    modifier: int = -1
    #: how SQL spells it without these, and without domains
    unlimited: str = ""
    #: an array whose elements are of a domain: the server takes those from text only
    of_domain: bool = False
    #: whether a part of it, such as a field of a composite type, has a length or precision of its own
    limited_inside: bool = False
    #: whether a time is part of it: the server rounds what it reads from text to microseconds
    has_time: bool = False

    @property
    def scale(self) -> int | None:
        """Digits after the point of a numeric, below 0 before it; None: any number."""
        if self.base != "numeric" or self.modifier < 4:
            return None
        return (((self.modifier - 4) & 0x7FF) ^ 1024) - 1024

    @property
    def most(self) -> int | None:
        """How many characters a text may have; None: any number."""
        if self.base in ("varchar", "bpchar") and self.modifier >= 4:
            return self.modifier - 4
        return None

    @property
    def most_bytes(self) -> int | None:
        """How many bytes a text may have, of types that the server cuts it to; None: any number."""
        return {"char": 1, "name": 63}.get(self.base)

    @property
    def step(self) -> int:
        """The microseconds that a time is rounded to."""
        if self.base not in ("time", "timestamp", "timestamptz", "interval") or self.modifier < 0:
            return 1
        return int(10 ** max(0, 6 - (self.modifier & 0xFFFF)))


@dataclass(frozen=True)
class Wire:
    """How a column travels: cast to this Arrow type, after one of a few conversions.

    What the server would cut or round in silence is refused: texts of more than `most` characters or `most_bytes`,
    times between two `step`s of so many microseconds, and texts with a finer time where one is read from them. Other
    limits of a type that is read from text are proved by the server (`Target.kept_statements`).
    """

    arrow: pa.DataType
    how: str = "cast"
    most: int | None = None
    step: int = 1
    most_bytes: int | None = None
    has_time: bool = False

    @property
    def as_text(self) -> bool:
        """Whether the server has to cast it from text."""
        return self.how == "text"


def wire(given: pa.DataType, wanted: SqlType) -> Wire | str:
    """How Arrow values of this type get into such a column, or why they do not."""
    if wanted.is_array:
        return _wire_array(given, wanted)
    if _is.is_null(given):
        return Wire(_EXACT.get(wanted.base, pa.string() if wanted.base != "numeric" else pa.decimal128(1, 0)), "null")
    if wanted.base == "uuid" and is_text(given):
        return Wire(pa.binary(16), "uuid")
    if wanted.base == "jsonb" and is_text(given):
        return Wire(pa.binary(), "jsonb")
    if wanted.base == "numeric":
        return _wire_numeric(given, wanted)
    if wanted.base not in _EXACT:
        return _wire_text(given, wanted)
    if wanted.base == "interval" and wanted.modifier >= 0 and wanted.modifier >> 16 & 0x7FFF != 0x7FFF:
        return "it keeps some fields only: make the column interval"
    if _fits(given, wanted.base):
        return Wire(_EXACT[wanted.base], most=wanted.most, step=wanted.step, most_bytes=wanted.most_bytes)
    return _advice(given, wanted.base)


def _wire_text(given: pa.DataType, wanted: SqlType) -> Wire | str:
    """By the server's own reading of a text."""
    if wanted.base == "money":
        return "it rounds and depends on the server's language: make the column numeric"
    if wanted.base.startswith("_"):
        return "arrays of a domain over arrays cannot be written"
    if not is_text(given):
        return "cast it to string in the query"
    if wanted.limited_inside:
        return "a part of it would be cut or rounded in silence: take the lengths and precisions out of its type"
    return Wire(pa.string(), "text", wanted.most, most_bytes=wanted.most_bytes, has_time=wanted.has_time)


def _wire_array(given: pa.DataType, wanted: SqlType) -> Wire | str:
    if _is.is_null(given):
        return Wire(pa.list_(pa.string()), "null")
    if not (_is.is_list(given) or _is.is_large_list(given)):
        return "make it an array in the query"
    if _is.is_null(given.value_type):
        return "cast its elements to a type in the query"
    one = replace(wanted, is_array=False)
    inner = _wire_text(given.value_type, one) if wanted.of_domain else wire(given.value_type, one)
    if isinstance(inner, str):
        return inner
    if inner.how == "cast" and not wanted.of_domain and wanted.base not in _ONLY_TEXT:
        return Wire(pa.list_(inner.arrow), step=inner.step)
    if is_text(given.value_type):
        return replace(inner, arrow=pa.list_(pa.string()), how="text")
    return "use an array of text, numbers, dates or timestamps"


def _wire_numeric(given: pa.DataType, wanted: SqlType) -> Wire | str:
    digits = 0 if _is.is_integer(given) else given.scale if _is.is_decimal(given) else None
    if digits is None:
        return "cast it to decimal in the query"
    if wanted.scale is not None and digits > wanted.scale:
        return f"it would be rounded to {wanted.scale} digits after the point: cast it in the query"
    return Wire(_LARGEST_INTEGER if _is.is_integer(given) else given)


def is_text(given: pa.DataType) -> bool:
    """Whether values of this type are text."""
    return bool(_is.is_string(given) or _is.is_large_string(given) or _is.is_string_view(given))


def _fits(given: pa.DataType, base: str) -> bool:
    """Whether the value arrives whole, or the cast of a value that does not fit fails."""
    if base in _TEXT:
        return is_text(given)
    if base in _INTEGER_BITS:
        return bool(_is.is_integer(given))
    if base in ("float4", "float8"):
        bits = 24 if base == "float4" else 64
        whole = _is.is_integer(given) and given.bit_width <= bits
        return bool(whole or (_is.is_floating(given) and given.bit_width <= _EXACT[base].bit_width))
    if base in ("timestamp", "timestamptz"):
        return bool(_is.is_timestamp(given)) and (given.tz is not None) == (base == "timestamptz")
    if base == "uuid":
        return bool(given == pa.binary(16))
    if base == "jsonb":
        return False
    tests = {
        "bool": _is.is_boolean, "date": _is.is_date, "time": _is.is_time, "interval": _is.is_duration,
        "bytea": lambda t: _is.is_binary(t) or _is.is_large_binary(t) or _is.is_fixed_size_binary(t),
    }  # fmt: skip
    return bool(tests[base](given))


def _advice(given: pa.DataType, base: str) -> str:
    if _is.is_timestamp(given) and base == "timestamp":
        return "a time with a zone has no place there: cast it to timestamp_ntz in the query, or make it timestamptz"
    if _is.is_timestamp(given) and base == "timestamptz":
        return "a time without a zone is no instant: cast it to timestamp in the query, or make the column timestamp"
    if _is.is_struct(given) or _is.is_map(given):
        return "use to_json() in the query and a jsonb column"
    return "cast it in the query"


def column_type(name: str, given: pa.DataType) -> str:
    """The column type for a table that is made from a DataFrame."""
    if _is.is_list(given) or _is.is_large_list(given):
        if not (_is.is_list(given.value_type) or _is.is_large_list(given.value_type)):
            return column_type(name, given.value_type) + "[]"
    elif _is.is_decimal(given):
        return f"numeric({given.precision}, {given.scale})"
    elif _is.is_null(given):
        return "text"
    elif _is.is_integer(given):
        return "smallint" if given.bit_width <= 16 else "integer" if given.bit_width == 32 else "bigint"
    elif _is.is_timestamp(given):
        return "timestamp" if given.tz is None else "timestamptz"
    else:
        for sql, base in _CREATED.items():
            if _fits(given, base):
                return sql
    raise ConfigError(
        f"column {name!r} is of type {given}, for which no column can be made: turn it into text with to_json() in the "
        "query, and create the table yourself with a jsonb column for it"
    )


def created_type(name: str, given: pa.DataType) -> SqlType:
    """The type of a column that is made from a DataFrame's, as the catalog will have it."""
    spelled = column_type(name, given)
    element = spelled.removesuffix("[]")
    is_array, modifier = element != spelled, -1
    kind = given.value_type if is_array else given
    if _is.is_decimal(kind):
        element, modifier = "numeric", (kind.precision << 16 | (kind.scale & 0x7FF)) + 4
    base = {"smallint": "int2", "integer": "int4", "bigint": "int8", **_CREATED}.get(element, element)
    unlimited = element + ("[]" if is_array else "")
    return SqlType(base, is_array, spelled, modifier, unlimited, has_time=base in _TIMES)


_TIMES = ("time", "timetz", "timestamp", "timestamptz", "interval")
_CREATED = {
    "boolean": "bool", "real": "float4", "double precision": "float8", "text": "text", "bytea": "bytea", "date": "date",
    "time": "time", "interval": "interval",
}  # fmt: skip
