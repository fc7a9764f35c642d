"""The formats a file can have: what each can hold, and how rows are written, in bounded memory."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.connectors.files import csvtext, jsonlines
from holdfast.errors import ConfigError
from holdfast.sinks.values import holds

#: a Parquet row group: enough rows for good encoding, few enough to be held in memory
ROW_GROUP_ROWS, ROW_GROUP_BYTES = 1_000_000, 64 * 2**20
#: rows that are turned into text at once, and their size: as JSON a byte can become six, and Arrow's text ends at 2 GB
_TEXT_ROWS, _TEXT_BYTES = 16_384, 256 * 2**20


class Output(Protocol):
    """Where a file's bytes go."""

    def write(self, data: bytes, /) -> int:
        """Take them."""


def _write_parquet(file: Output, schema: pa.Schema, batches: Iterable[pa.RecordBatch], compression: str) -> None:
    with pq.ParquetWriter(file, schema, compression=compression) as writer:
        for table in _row_groups(batches, schema):
            writer.write_table(table, row_group_size=ROW_GROUP_ROWS)


def _row_groups(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.Table]:
    collected: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in chain.from_iterable(halves(batch, 8 * ROW_GROUP_BYTES) for batch in batches):
        collected.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= ROW_GROUP_ROWS or size >= ROW_GROUP_BYTES:
            yield pa.Table.from_batches(collected, schema)
            collected, rows, size = [], 0, 0
    if collected:
        yield pa.Table.from_batches(collected, schema)


def _write_json(file: Output, schema: pa.Schema, batches: Iterable[pa.RecordBatch], compression: str) -> None:
    with _Text(file, compression) as text:
        for batch in _slices(batches):
            for lines in _lines(batch):
                text.write(lines)


def _lines(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Lines of JSON; in two halves when names of fields, which are in every row, make them longer than Arrow's text."""
    try:
        yield jsonlines.encode(batch)
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        if batch.num_rows <= 1:
            raise
        for half in (batch.slice(0, batch.num_rows // 2), batch.slice(batch.num_rows // 2)):
            yield from _lines(half)


def _write_csv(file: Output, schema: pa.Schema, batches: Iterable[pa.RecordBatch], compression: str) -> None:
    with _Text(file, compression) as text:
        text.write(csvtext.header(schema))
        for batch in _slices(batches):
            for lines in csvtext.encode(batch):
                text.write(lines)


def _slices(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for start in range(0, batch.num_rows, _TEXT_ROWS):
            yield from halves(batch.slice(start, _TEXT_ROWS), _TEXT_BYTES)


def halves(batch: pa.RecordBatch, limit: int) -> Iterator[pa.RecordBatch]:
    """The rows in pieces that are no larger than that, if they are more than one row."""
    if batch.num_rows <= 1 or batch.nbytes <= limit:
        yield batch
        return
    middle = batch.num_rows // 2
    yield from halves(batch.slice(0, middle), limit)
    yield from halves(batch.slice(middle), limit)


class _Text:
    """A text file, plain or compressed; the same rows always give the same bytes."""

    def __init__(self, file: Any, compression: str) -> None:
        self._file = file
        self._gzip = gzip.GzipFile("", "wb", 6, file, 0) if compression == "gzip" else None

    def __enter__(self) -> _Text:
        return self

    def __exit__(self, *_: object) -> None:
        if self._gzip is not None:
            self._gzip.close()

    def write(self, data: bytes) -> int:
        (self._gzip or self._file).write(data)
        return len(data)


def _flat(kind: pa.DataType) -> bool:
    return not (pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind)) and (
        jsonlines.supports(kind)
    )


def _has_parquet_type(kind: pa.DataType) -> bool:
    """Nothing but nulls is of no type; an interval would be read back as a number by all but Arrow.

    The same inside of structs, lists and maps; a struct without fields has no place in a Parquet file.
    """
    return not holds(kind, _is_unknown_to_parquet)


def _is_unknown_to_parquet(kind: pa.DataType) -> bool:
    types = pa.types
    empty = types.is_struct(kind) and kind.num_fields == 0
    return bool(types.is_null(kind) or types.is_duration(kind) or types.is_interval(kind) or empty)


def _has_twins(kind: pa.DataType) -> bool:
    """Whether a struct has two fields of one name: no reader can tell them apart."""
    if not pa.types.is_struct(kind):
        return False
    names = [field.name for field in kind]
    return len(names) > len(set(names))


@dataclass(frozen=True)
class Format:
    """One format."""

    suffix: str
    #: compression -> what it adds to the file's name; the first is the default
    compressions: Mapping[str, str]
    holds: Callable[[pa.DataType], bool]
    write: Callable[[Output, pa.Schema, Iterable[pa.RecordBatch], str], None]
    #: whether files of a folder must agree on a column's type
    typed: bool
    cannot: str


_TEXTS = {"none": "", "gzip": ".gz"}
FORMATS: dict[str, Format] = {
    "parquet": Format(
        ".parquet",
        {"snappy": "", "zstd": "", "gzip": "", "lz4": "", "none": ""},
        _has_parquet_type,
        _write_parquet,
        typed=True,
        cannot="cast it to the type it shall have",
    ),
    "json": Format(
        ".json",
        _TEXTS,
        jsonlines.supports,
        _write_json,
        typed=False,
        cannot="cast it to text (base64 for binary), or use format='parquet'",
    ),
    "csv": Format(
        ".csv",
        _TEXTS,
        _flat,
        _write_csv,
        typed=False,
        cannot="cast it to text (to_json for nested values, base64 for binary), or use format='json' or 'parquet'",
    ),
}


def choose(name: str, compression: str | None) -> tuple[Format, str]:
    """The format and compression of the sink's options."""
    chosen = FORMATS[name]
    picked = next(iter(chosen.compressions)) if compression is None else compression
    if picked not in chosen.compressions:
        raise ConfigError(f"compression of {name} must be one of {', '.join(chosen.compressions)}, not {compression!r}")
    return chosen, picked


def suffix(name: str, compression: str) -> str:
    """How the names of such files end."""
    return FORMATS[name].suffix + FORMATS[name].compressions[compression]


def of_file(file: str, name: str, compression: str) -> tuple[Format, str]:
    """How a planned file is written: its name says it, whatever the sink's options have become since."""
    chosen = FORMATS[name]
    if file.endswith(chosen.suffix + chosen.compressions[compression]):
        return chosen, compression
    known = [
        (form, packed, form.suffix + added) for form in FORMATS.values() for packed, added in form.compressions.items()
    ]
    return next((form, packed) for form, packed, suffix in known if file.endswith(suffix))


def check_types(sink: str, name: str, schema: pa.Schema) -> None:
    """Refuse, by name, columns the format cannot hold."""
    twice = [column for column in schema.names if schema.names.count(column) > 1]
    if twice:
        raise ConfigError(f"sink {sink!r}: two columns are named {twice[0]!r}: rename one")
    for field in schema:
        if holds(field.type, _has_twins):
            raise ConfigError(
                f"sink {sink!r}: column {field.name!r} has a struct with two fields of one name: rename one"
            )
        if not FORMATS[name].holds(field.type):
            raise ConfigError(
                f"sink {sink!r}: column {field.name!r} is of type {field.type}, which {name} cannot hold: "
                f"{FORMATS[name].cannot}"
            )


def normal(schema: pa.Schema) -> pa.Schema:
    """The schema as files have it: the same for the same columns, whatever the session's time zone."""
    fields = []
    for field in schema:
        kind = field.type
        if pa.types.is_timestamp(kind) and kind.tz is not None:
            kind = pa.timestamp(kind.unit, "UTC")
        fields.append(pa.field(field.name, kind))
    return pa.schema(fields)


def fingerprint(schema: pa.Schema) -> str:
    """Short and equal for equal schemas: rows of different ones never share a file."""
    return hashlib.sha256(schema.serialize().to_pybytes()).hexdigest()[:12]


def columns(schema: pa.Schema) -> tuple[tuple[str, str], ...]:
    """Names and types, as text."""
    return tuple((field.name, str(field.type)) for field in schema)


def describe(schema: pa.Schema) -> list[list[Any]]:
    """The same as plain data for a record."""
    return [list(column) for column in columns(schema)]
