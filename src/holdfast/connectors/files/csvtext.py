r"""Arrow as CSV that readers read back equal with their defaults, and which values no CSV can carry to which reader.

Spark's reader takes `\` for an escape inside of quotes and a doubled quote for two; all others take `""` for one quote
and `\` for itself. So text goes into quotes where both ways agree, bare where that is the same to all, and else as
RFC 4180 has it, which Spark's reader misreads: such a value is refused in the task while Spark is among the readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.errors import ConfigError, RowError
from holdfast.sinks.values import refuse

#: `python` is Python's csv module, and with it all that keep to RFC 4180 and know no null: spreadsheets, databases
READERS = ("spark", "duckdb", "pandas", "python")
#: inside of quotes Spark's reader changes it: a quote, two backslashes, or one at the end
_ESCAPING = r'"|\\\\|\\$'
#: to every reader the same without quotes; `#` could be taken for a comment
_BARE = r"^[^\"',#\s\x00-\x1f\x7f](?:[^,\r\n]*[^,\s\x00-\x1f\x7f])?$"
_MISSING = (
    "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA", "NULL",
    "NaN", "None", "n/a", "nan", "null",
)  # fmt: skip
_SMALL = r"^-?0\.0"
_FIELD, _LINE = 131_072, 2_000_000


@dataclass(frozen=True)
class Trap:
    """What text some readers would not give back."""

    readers: tuple[str, ...]
    found: Callable[[pa.Array], pa.Array]
    #: what the reader makes of it, and the option it needs
    reason: str


def _misread_by_spark(text: pa.Array) -> pa.Array:
    """Not the same in quotes, and not to be written bare."""
    odd = pc.match_substring_regex(text, _ESCAPING)
    return pc.and_(odd, pc.invert(pc.match_substring_regex(text, _BARE)))


TRAPS = (
    Trap(
        ("spark",),
        _misread_by_spark,
        "Spark's reader misreads with its defaults (a quote or a backslash, with a comma, a space at an end or the "
        "like): it needs .option('escape', '\"')",
    ),
    Trap(
        ("spark",),
        lambda text: pc.match_substring_regex(text, r"[\r\n]"),
        "has a line end, which ends the row for Spark's reader: it needs .option('multiLine', True)",
    ),
    Trap(
        ("spark", "duckdb", "pandas"),
        lambda text: pc.equal(pc.binary_length(text), 0),
        "is empty, which readers take for null: Spark's needs .option('nullValue', ...) with a text that never occurs, "
        "DuckDB's allow_quoted_nulls=false, pandas keep_default_na=False",
    ),
    Trap(
        ("pandas",),
        lambda text: pc.is_in(text, pa.array(_MISSING)),
        "pandas takes for a missing one: it needs keep_default_na=False",
    ),
    Trap(
        ("spark", "pandas"),
        lambda text: pc.match_substring(text, "\x00"),
        "has a NUL character, where pandas ends the text, and which Spark drops before a quote: no option helps, "
        "remove it in the query",
    ),
    Trap(
        ("python",),
        lambda text: pc.greater(pc.binary_length(text), _FIELD),
        f"has more than {_FIELD} bytes, too many for Python's csv module: it needs csv.field_size_limit(...)",
    ),
)
#: columns' names are not data: no reader takes them for missing
_OF_NAMES = (*TRAPS[:3], TRAPS[4])


def choose_readers(readers: object) -> tuple[str, ...]:
    """The sink's option."""
    given = [readers] if isinstance(readers, str) else readers
    if not isinstance(given, Sequence) or not all(reader in READERS for reader in given):
        raise ConfigError(f"csv_readers must be some of {', '.join(READERS)}, or empty, not {readers!r}")
    return tuple(reader for reader in READERS if reader in given)


def check_names(sink: str, names: Sequence[str], readers: Sequence[str]) -> None:
    """Refuse names of columns that a reader would not give back."""
    text = pa.array(names, pa.string())
    for trap in _OF_NAMES:
        hit = pc.index(trap.found(text), True).as_py()
        if hit >= 0 and set(trap.readers).intersection(readers):
            raise ConfigError(
                f"sink {sink!r}: the first line of a CSV file would have the column name {names[hit]!r}, which "
                f"{trap.reason}. Rename it, or leave out that reader: csv_readers={_without(readers, trap)}"
            )


def check_rows(sink: str, batch: pa.RecordBatch, readers: Sequence[str], columns: Iterable[str]) -> None:
    """Refuse text that one of the readers would not give back."""
    texts = [name for name in columns if _is_text(batch.schema.field(name).type)]
    for name in texts:
        column = batch.column(name)
        for trap in TRAPS:
            if not set(trap.readers).intersection(readers):
                continue
            hit = pc.index(trap.found(column), True).as_py()
            if hit >= 0:
                raise refuse(
                    sink,
                    name,
                    column,
                    hit,
                    f"{trap.reason}. Change it in the query, use another format, or, if your readers have that option "
                    f"or are others, say so: csv_readers={_without(readers, trap)}",
                )
    if "duckdb" in readers and batch.nbytes > _LINE // 2:
        _check_lines(sink, batch, texts)


def _check_lines(sink: str, batch: pa.RecordBatch, texts: Sequence[str]) -> None:
    length = pa.array([64 * batch.num_columns] * batch.num_rows, pa.int64())
    for name in texts:
        column = batch.column(name)
        doubled = pc.add(pc.binary_length(column), pc.count_substring(column, '"'))
        length = pc.add(length, pc.fill_null(doubled, 0).cast(pa.int64()))
    longest = pc.max(length).as_py()
    if longest is not None and longest > _LINE:
        raise RowError(
            f"sink {sink!r}: a row makes a line of some {longest} bytes, too long for DuckDB's reader by default: "
            "it needs max_line_size. Use another format, or leave 'duckdb' out of csv_readers"
        )


def _without(readers: Sequence[str], trap: Trap) -> str:
    return str([reader for reader in readers if reader not in trap.readers])


def header(schema: pa.Schema) -> bytes:
    """The first line."""
    return _joined([",".join(_text(pa.array(schema.names, pa.string())).to_pylist())])


def encode(batch: pa.RecordBatch) -> Iterator[bytes]:
    """Lines; in halves when they are longer than Arrow's text can be."""
    if not batch.num_rows:
        return
    try:
        fields = [pc.fill_null(_field(column), "") for column in batch.columns]
        lines = pc.binary_join_element_wise(*fields, ",") if len(fields) > 1 else fields[0]
        yield _joined(lines)
    except (pa.ArrowInvalid, pa.ArrowCapacityError):
        if batch.num_rows == 1:
            raise
        for half in (batch.slice(0, batch.num_rows // 2), batch.slice(batch.num_rows // 2)):
            yield from encode(half)


def _joined(lines: object) -> bytes:
    array = lines if isinstance(lines, pa.Array) else pa.array(lines, pa.string())
    text: str = pc.binary_join(pa.ListArray.from_arrays([0, len(array)], array), "\n")[0].as_py()
    return text.encode() + b"\n"


def _field(column: pa.Array) -> pa.Array:
    if _is_text(column.type):
        return _text(column.cast(pa.string()))
    text = column.cast(pa.string())
    if not pa.types.is_floating(column.type):
        return text
    if pc.any(pc.match_substring_regex(text, _SMALL)).as_py():
        # pandas counts the zeros among the 17 digits that it looks at.
        for zeros in range(1, 8):
            text = pc.replace_substring_regex(text, rf"^(-?)0\.0{{{zeros}}}([1-9])([0-9]+)$", rf"\1\2.\3e-{zeros + 1}")
    if pc.all(pc.is_finite(column), skip_nulls=True).as_py() is False:
        # By Spark's names, which all others know, too; in quotes, because Arrow's reader takes a bare one for null.
        for found, name in (("nan", '"NaN"'), ("-nan", '"NaN"'), ("inf", '"Inf"'), ("-inf", '"-Inf"')):
            text = pc.if_else(pc.equal(text, found), name, text)
    return text


def _text(text: pa.Array) -> pa.Array:
    quoted = pc.binary_join_element_wise('"', pc.replace_substring(text, '"', '""'), '"', "")
    odd = pc.match_substring_regex(text, _ESCAPING)
    if not pc.any(odd).as_py():
        return quoted
    return pc.if_else(pc.and_(odd, pc.match_substring_regex(text, _BARE)), text, quoted)


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
