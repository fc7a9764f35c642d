"""Names made of columns: `table="orders_{country}"` is one table for each country (topics and folders likewise).

A value becomes part of a name only if it is made of letters, digits, `_` and `-` (in topics and folders also dots), and
begins with a letter or digit: so it cannot leave a folder, end a quoted name or be taken for another one. What is not
is a refused row, by column, and so is null.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.options import whole
from holdfast.errors import ConfigError, RowError
from holdfast.sinks.values import shown

#: how many names a sink may come to have, unless it is told otherwise
MAX_TARGETS = 100
#: the option's type
Targets = Annotated[int, whole(1)]
_PIECE = re.compile(r"\{\{|\}\}|\{([^{}]*)\}|[{}]")
_KINDS = (pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_boolean, pa.types.is_date)


@dataclass(frozen=True)
class Pattern:
    """The option as it was given, taken apart: a text, then a column, then a text, and so on."""

    option: str
    text: str
    #: one more than columns
    texts: tuple[str, ...]
    columns: tuple[str, ...]
    #: more than one name of this kind may have: dots
    dots: bool = False

    @property
    def root(self) -> str:
        """What stands before the first column."""
        return self.texts[0]

    def fill(self, *values: str) -> str:
        """The name for these values, which are checked already."""
        return "".join(text + value for text, value in zip(self.texts, (*values, ""), strict=True))

    def check(self, schema: pa.Schema) -> None:
        """ConfigError unless rows of this schema have the columns, of types that make names."""
        for column in self.columns:
            if column not in schema.names:
                raise ConfigError(
                    f"{self.option}={self.text!r}: {column!r} is not among the columns {', '.join(schema.names)}. For "
                    "a brace that is part of the name write it twice"
                )
            kind = schema.field(column).type
            if not any(is_kind(kind) for is_kind in _KINDS):
                raise ConfigError(
                    f"{self.option}={self.text!r}: column {column!r} is of type {kind}, which makes no name: use text, "
                    "whole numbers, booleans or dates, or cast it"
                )

    def names(self, batch: pa.RecordBatch, fits: Callable[[str], str | None]) -> pa.DictionaryArray:
        """The name that each row goes to. RowError, with the rows, for a value that makes none.

        `fits` says what is wrong with a whole name, None when nothing is; it sees distinct ones only.
        """
        values = [self._values(batch, column) for column in self.columns]
        joined = pc.binary_join_element_wise(*_woven(self.texts, values), "")
        encoded = joined.dictionary_encode()
        for number, name in enumerate(encoded.dictionary.to_pylist()):
            wrong = fits(name)
            if wrong is not None:
                rows = np.flatnonzero(encoded.indices.to_numpy(zero_copy_only=False) == number)
                raise RowError(
                    f"{self.option}={self.text!r}: {name!r} {wrong}", rows=rows.tolist(), column=self.columns[0],
                    reason=f"{self.option} {name!r} {wrong}",
                )  # fmt: skip
        return encoded

    def _values(self, batch: pa.RecordBatch, column: str) -> pa.Array:
        values = batch.column(column)
        if values.null_count:
            raise self._refused(column, "is null, which makes no name", values.is_null())
        allowed = r"^[A-Za-z0-9][A-Za-z0-9_.-]*$" if self.dots else r"^[A-Za-z0-9][A-Za-z0-9_-]*$"
        encoded = values.dictionary_encode()
        texts = encoded.dictionary.cast(pa.string())
        # A newline at the end is not seen by $.
        good = pc.and_(pc.match_substring_regex(texts, allowed), pc.invert(pc.match_substring(texts, "\n")))
        if good.false_count:
            bad = pc.invert(good.take(encoded.indices))
            dots = ", dots" if self.dots else ""
            first = shown(texts.filter(pc.invert(good)), 0, 60)
            raise self._refused(
                column,
                f"{first} makes no name: only letters from A to Z, digits, _ and -{dots} go into one, and it begins "
                "with a letter or digit",
                bad,
            )
        return texts.take(encoded.indices)

    def _refused(self, column: str, why: str, bad: pa.Array) -> RowError:
        rows = np.flatnonzero(bad.to_numpy(zero_copy_only=False)).tolist()
        return RowError(
            f"{self.option}={self.text!r}: column {column!r}: {why}. Make a plain value of it in the query, or filter "
            "such rows out",
            rows=rows,
            column=column,
            reason=why,
        )


def parse_pattern(option: str, text: object, *, dots: bool = False) -> Pattern | None:
    """The pattern in an option; None when it names no column, then it is a name as it stands."""
    if not isinstance(text, str) or ("{" not in text and "}" not in text):
        return None
    texts, columns, end = [""], list[str](), 0
    for piece in _PIECE.finditer(text):
        texts[-1] += text[end : piece.start()]
        end = piece.end()
        if piece[0] in ("{{", "}}"):
            texts[-1] += piece[0][0]
        elif not piece[1]:
            raise ConfigError(
                f"{option}={text!r}: a brace that is part of the name is written twice, and a column stands between "
                "two, as in 'orders_{country}'"
            )
        else:
            columns.append(piece[1])
            texts.append("")
    texts[-1] += text[end:]
    return Pattern(option, text, tuple(texts), tuple(columns), dots) if columns else None


def places(encoded: pa.DictionaryArray) -> Iterator[tuple[str, pa.Array]]:
    """Each name once, with the numbers of its rows in order."""
    codes = encoded.indices.to_numpy(zero_copy_only=False)
    order = np.argsort(codes, kind="stable")
    starts = np.searchsorted(codes[order], np.arange(len(encoded.dictionary) + 1))
    for code, name in enumerate(encoded.dictionary.to_pylist()):
        yield name, pa.array(order[starts[code] : starts[code + 1]])


def _woven(texts: tuple[str, ...], values: list[pa.Array]) -> Iterator[pa.Array | pa.Scalar]:
    for text, column in zip(texts, values, strict=False):
        yield pa.scalar(text)
        yield column
    yield pa.scalar(texts[-1])
