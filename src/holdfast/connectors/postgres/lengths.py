"""How long a value an index takes: what is surely short enough, and where the server tries the rest.

An index refuses an entry that is too long, and only the server knows how long one is after it was compressed. So a
task puts rows with long values into a table of the sink's that has the same index, and takes them back. Such a table is
made at the start and stays: a temporary one would have to be made in every task, and needs a right of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.postgres.names import literal, quote, schema_lock, stage_prefix
from holdfast.connectors.postgres.stages import empty
from holdfast.connectors.postgres.table import Column, Index, Target
from holdfast.core.naming import escape

#: Types whose values an index keeps as long as they came.
TEXTS = ("text", "varchar", "bpchar", "name", "citext")
#: What an entry of a btree may have: of a page of 8 kB a third. Then header and alignment of an entry, and of a value.
ENTRY, HEADER, VALUE = 2704, 16, 8
#: Bytes that surely fit where it is not known what the index keeps of a value.
SHORT = 500
_BYTES = (pa.string(), pa.binary())


def room(lengths: Iterable[int], blanks: int) -> int:
    """How many bytes the texts of one entry of a btree may have together.

    `lengths` are those of the catalog, for all its columns; `blanks` are those that fill up a `char`.
    """
    return ENTRY - HEADER - blanks - sum(VALUE + max(length, 0) for length in lengths)


def limited(index: Index, columns: Sequence[tuple[Column, int]], method: str, as_they_come: bool) -> Index:
    """With what is known of its limit; `columns` with their lengths.

    `as_they_come`: the database keeps UTF-8 and pages of the usual size, and the index computes nothing.
    """
    texts = tuple(c.name for c, _ in columns if c.wire.arrow in _BYTES)
    if method == "hash" or not texts:
        return index
    if method != "btree" or not as_they_come or not all(length >= 0 or _is_kept(c) for c, length in columns):
        return replace(index, texts=texts, sure=SHORT)
    blanks = sum(c.type.most or 0 for c, _ in columns if c.type.base == "bpchar")
    return replace(index, texts=texts, sure=max(SHORT, room([length for _, length in columns], blanks)))


def _is_kept(column: Column) -> bool:
    """Whether an index keeps its values as they come."""
    return column.type.base in (*TEXTS, "bytea") and not column.type.is_array and not column.wire.as_text


class Lengths:
    """Which indexes a task's values may be too long for."""

    def __init__(self, target: Target) -> None:
        self._indexes = [index for index in target.indexes if index.tried_in is not None]
        self._texts = {column for index in self._indexes for column in index.texts}
        #: their names
        self.doubtful: set[str] = set()

    def see(self, rows: pa.RecordBatch) -> None:
        """Look at some more rows, which are as COPY wants them."""
        longest = {name: pc.max(pc.binary_length(rows.column(name))).as_py() or 0 for name in self._texts}
        for index in self._indexes:
            if sum(longest[column] for column in index.texts) > index.sure:
                self.doubtful.add(index.name)


def prepare(connection: Any, target: Target, schema: str, role: str, pipeline: str, sink: str) -> Target:
    """Make the tables in which long values are tried, where an index has a limit; empty those that have grown."""
    found = []
    for index in target.indexes:
        if index.texts:
            columns = ", ".join(c.declared for c in target.columns if c.name in index.columns)
            # Of another role's table we could not be sure that we may use it.
            name = stage_prefix("long", pipeline, sink, f"{columns} {index.definition} {role}").rstrip("_")
            table = f"{quote(schema)}.{quote(name)}"
            if connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()[0] is None:
                about = f"holdfast: long values of sink {escape(sink)} of pipeline {escape(pipeline)} are tried here"
                indexed = f"CREATE INDEX IF NOT EXISTS {quote(f'{name}_index')} ON {table} {index.definition}"
                # Two drivers that start at once would both find nothing, and one of them would fail.
                connection.together(
                    schema_lock(schema),
                    f"CREATE UNLOGGED TABLE IF NOT EXISTS {table} ({columns})",
                    indexed,
                    f"COMMENT ON TABLE {table} IS {literal(about)}",
                )
            empty(connection, schema, name)
            index = replace(index, tried_in=table)
        found.append(index)
    return replace(target, indexes=tuple(found))
