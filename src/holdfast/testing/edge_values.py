"""Values at the edges of every type that Spark can give, and the one thing a sink must do with each (rule 11, D1).

Refuse it in the task, by name, with nothing decided; or deliver it, so that it is read back equal. Never a third thing:
a value that fails after the decision stops the pipeline for good, and one that arrives changed is worse.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

import pyarrow as pa

from holdfast.errors import ConfigError, RowError
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.testing.context import _MEMORY
from holdfast.testing.local import LocalBatch, LocalQuery

_DAY = 86_400 * 10**6
#: days since 1970
YEARS = {
    "the first day of year 0": -719_528,
    "the last day before year 1": -719_163,
    "the first day of year 1": -719_162,
    "the day before the Gregorian calendar": -141_428,
    "a leap day": 19_782,
    "the last day of year 9999": 2_932_896,
    "the first day of year 10000": 2_932_897,
    "the year before year 0": -719_529,
}
NOT_UTF8 = {
    "a byte that starts nothing": b"ab\xff",
    "a lone surrogate": b"\xed\xa0\x80",
    "an overlong NUL": b"\xc0\x80",
    "a letter cut in two": b"caf\xc3",
}
TEXTS = {
    "empty text": "",
    "NUL": "\0",
    "text with NUL": "a\0b",
    "quotes": '\'"`\\""\'',
    "line ends": "a\r\nb\nc\rd\n",
    "separators": ",;\t|",
    "control characters": "".join(map(chr, range(1, 32))) + "\x7f\x85",
    "line separators of Unicode": "\u2028\u2029",
    "text that looks like null": "null",
    "text that looks like a number": "007",
    "blanks around": "  a  ",
    "letters beyond the first plane": "𝄞🏳️‍🌈",
    "a byte order mark": "\ufeffa",
    "a megabyte of text": "ä" * 500_000,
}


@dataclass(frozen=True)
class EdgeValue:
    """One value in one column `v`, beside a column `id` that is 7."""

    name: str
    #: of length 1; the type is part of it
    array: pa.Array

    @property
    def schema(self) -> pa.Schema:
        """Of the row."""
        return pa.schema([("id", pa.int64()), ("v", self.array.type)])

    @property
    def batch(self) -> pa.RecordBatch:
        """The row."""
        return pa.RecordBatch.from_arrays([pa.array([7], pa.int64()), self.array], schema=self.schema)


def text_of(*values: bytes, large: bool = False) -> pa.Array:
    """A text column of these bytes, UTF-8 or not, as `CAST(binary AS STRING)` makes it in Spark."""
    raw = pa.array(values, pa.large_binary() if large else pa.binary())
    kind = pa.LargeStringArray if large else pa.StringArray
    return kind.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2])


def edge_values() -> list[EdgeValue]:
    """All of them; every name is there once."""
    return [EdgeValue(name, array) for name, array in _all()]


def _all() -> Iterator[tuple[str, pa.Array]]:
    yield "void", pa.array([None], pa.null())
    yield from _numbers()
    for name, text in TEXTS.items():
        yield name, pa.array([text], pa.string())
        yield f"{name}, in a large column", pa.array([text], pa.large_string())
    for name, raw in NOT_UTF8.items():
        yield name, text_of(raw)
        yield f"{name}, in a large column", text_of(raw, large=True)
        yield f"{name}, in an array", pa.ListArray.from_arrays([0, 2], text_of(b"ok", raw))
        yield f"{name}, in a struct", pa.StructArray.from_arrays([text_of(raw)], ["s"])
        yield f"{name}, as the key of a map", pa.MapArray.from_arrays([0, 1], text_of(raw), pa.array([1]))
        yield f"{name}, as the value of a map", pa.MapArray.from_arrays([0, 1], pa.array(["k"]), text_of(raw))
    for name, blob in {"no bytes": b"", "bytes": b"\0\xff", "a megabyte of bytes": b"\xff" * 10**6}.items():
        yield name, pa.array([blob], pa.binary())
    yield from _times()
    yield from _nested()
    for kind in (
        pa.bool_(),
        pa.int64(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.date32(),
        pa.timestamp("us", "UTC"),
    ):
        yield f"null, {kind}", pa.array([None], kind)
    yield "null, decimal", pa.array([None], pa.decimal128(10, 2))


def _numbers() -> Iterator[tuple[str, pa.Array]]:
    for value in (True, False):
        yield f"{value}", pa.array([value])
    for bits, kind in ((8, pa.int8()), (16, pa.int16()), (32, pa.int32()), (64, pa.int64())):
        yield f"smallest number of {bits} bits", pa.array([-(2 ** (bits - 1))], kind)
        yield f"largest number of {bits} bits", pa.array([2 ** (bits - 1) - 1], kind)
    yield "largest unsigned number that is a signed one", pa.array([2**63 - 1], pa.uint64())
    yield "largest unsigned number", pa.array([2**64 - 1], pa.uint64())
    for name, number in {
        "zero": 0.0,
        "minus zero": -0.0,
        "a tenth": 0.1,
        "smallest double": 5e-324,
        "largest double": 1.7976931348623157e308,
        "a double without a fraction": 1e22,
        "not a number": float("nan"),
        "infinity": float("inf"),
        "minus infinity": float("-inf"),
    }.items():
        yield name, pa.array([number], pa.float64())
    for name, number in {
        "smallest float": 1e-45,
        "largest float": 3.4028234663852886e38,
        "NaN float": float("nan"),
    }.items():
        yield name, pa.array([number], pa.float32())
    for digits, scale in ((38, 0), (38, 38), (38, 18), (10, 2), (1, 0)):
        kind = pa.decimal128(digits, scale)
        # Not by arithmetic, which would round to 28 digits.
        yield f"largest decimal({digits},{scale})", pa.array([Decimal((0, (9,) * digits, -scale))], kind)
        yield f"smallest decimal({digits},{scale})", pa.array([Decimal((1, (9,) * digits, -scale))], kind)
        yield f"decimal({digits},{scale}) next to zero", pa.array([Decimal((0, (1,), -scale))], kind)
        yield f"zero as decimal({digits},{scale})", pa.array([Decimal(0)], pa.decimal128(digits, scale))


def _times() -> Iterator[tuple[str, pa.Array]]:
    days = {**YEARS, "the first date of all": -(2**31), "the last date of all": 2**31 - 1}
    for name, day in days.items():
        yield name, pa.array([day], pa.int32()).cast(pa.date32())
    moments = {f"{name}, at its last moment": (day + 1) * _DAY - 1 for name, day in YEARS.items()}
    moments |= {"1970": 0, "the first moment of all": -(2**63), "the last moment of all": 2**63 - 1}
    moments |= {"year 32768": 971_890_963_200_000_000, "year 290000": 9_089_348_860_800_000_000}
    for name, moment in moments.items():
        for zone in (None, "UTC"):
            kind = pa.timestamp("us", zone)
            yield f"{name}{' UTC' if zone else ''}", pa.array([moment], pa.int64()).cast(kind)
    for name, length in {"no time": 0, "the longest time": 2**63 - 1, "the longest time back": -(2**63)}.items():
        yield name, pa.array([length], pa.int64()).cast(pa.duration("us"))
    yield "the last microsecond of a day", pa.array([_DAY - 1], pa.int64()).cast(pa.time64("us"))


def _nested() -> Iterator[tuple[str, pa.Array]]:
    numbers, empty = pa.list_(pa.int64()), pa.struct([])
    for name, value, kind in (
        ("empty array", [], numbers),
        ("array of null", [None], numbers),
        ("null array", None, numbers),
        ("array of arrays", [[], [1, None], None], pa.list_(numbers)),
        ("array of doubles", [0.1, float("nan"), float("inf"), float("-inf"), None], pa.list_(pa.float64())),
        ("array of texts", list(TEXTS.values())[:-1], pa.list_(pa.string())),
        ("array of bytes", [b"", b"\0\xff"], pa.list_(pa.binary())),
        ("array of nothing", [None], pa.list_(pa.null())),
        ("struct without fields", {}, empty),
        ("array of structs without fields", [{}, None], pa.list_(empty)),
        ("struct of nulls", {"a": None, "b": None}, pa.struct([("a", pa.int64()), ("b", pa.string())])),
        ("null struct", None, pa.struct([("a", pa.int64())])),
        ("struct with odd names", {'ä"\n\0': 1, "": 2}, pa.struct([('ä"\n\0', pa.int64()), ("", pa.int64())])),
        ("struct of decimals", {"d": Decimal("1e-38")}, pa.struct([("d", pa.decimal128(38, 38))])),
        ("empty map", [], pa.map_(pa.string(), pa.int64())),
        ("map", [("", 1), ('k\n"', None)], pa.map_(pa.string(), pa.int64())),
        ("map by number", [(1, "a"), (2, None)], pa.map_(pa.int64(), pa.string())),
        ("null map", None, pa.map_(pa.string(), pa.int64())),
    ):
        yield name, pa.array([value], kind)
    for name in ("the first day of year 0", "the last day of year 9999", "the first day of year 10000"):
        moment = pa.array([YEARS[name] * _DAY], pa.int64()).cast(pa.timestamp("us", "UTC"))
        yield f"{name}, in an array", pa.ListArray.from_arrays([0, 1], moment)
        yield f"{name}, in a struct", pa.StructArray.from_arrays([moment], ["at"])


def exercise_values(
    make_sink: Callable[[EdgeValue], TwoPhaseCommitSink],
    is_there: Callable[[EdgeValue], bool],
    *,
    values: Iterable[EdgeValue] | None = None,
) -> Mapping[str, str]:
    """Send each value through a pipeline of its own; AssertionError with every value that met a third thing.

    `make_sink` makes a sink for a table or folder of this value alone. `is_there` says whether a reader finds there
    the one row, with the value equal to what was sent, as the sink documents it. Returns for each value `delivered`, or
    what it was refused with.
    """
    outcomes: dict[str, str] = {}
    wrong: list[str] = []
    for number, edge in enumerate(edge_values() if values is None else values):
        with tempfile.TemporaryDirectory(
            prefix="holdfast-values-", dir=_MEMORY if _MEMORY.is_dir() else None
        ) as folder:
            outcome, right = _outcome(LocalQuery(folder, f"edge-{number}", edge.schema), edge, make_sink, is_there)
        outcomes[edge.name] = outcome
        if not right:
            wrong.append(f"- {edge.name} ({edge.array.type}): {outcome}")
    if wrong:
        raise AssertionError("\n".join([f"{len(wrong)} values were neither refused nor delivered as sent:", *wrong]))
    return outcomes


def _outcome(
    query: LocalQuery,
    edge: EdgeValue,
    make_sink: Callable[[EdgeValue], TwoPhaseCommitSink],
    is_there: Callable[[EdgeValue], bool],
) -> tuple[str, bool]:
    """(what happened, whether that is allowed)."""
    try:
        run = query.start([make_sink(edge)])
        run.run(0, LocalBatch([[edge.batch]]))
        run.deliver()
    except Exception as error:  # noqa: BLE001  whatever a sink raises is a finding
        text = f"{type(error).__name__}: {error}"
        if query.storage.names("decisions"):
            return f"decided, then {text}", False
        named = isinstance(error, RowError | ConfigError) and "'v'" in str(error)
        return text, named
    if run.coordinator.pending:
        return "decided, and not delivered", False
    run.close()
    return ("delivered", True) if is_there(edge) else ("delivered, but not as it was sent", False)
