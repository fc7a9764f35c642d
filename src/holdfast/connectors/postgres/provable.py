"""Rows that a task proves by itself, without the server (rule 11): which tables allow that, and the proof.

With stage="log" the server meets the rows after the decision, so it must not find anything wrong with one of them but
what only its other rows or its own code can tell. What it would have to parse, compute or look up is refused at the
start; what it would check of a value is checked in the task.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.postgres.lengths import ENTRY, HEADER, TEXTS, VALUE, room
from holdfast.connectors.postgres.names import TableName
from holdfast.connectors.postgres.rows import is_plain
from holdfast.connectors.postgres.table import Column, Target
from holdfast.connectors.postgres.types import SqlType, created_type, wire
from holdfast.errors import ConfigError
from holdfast.sinks.values import check_valid, refuse

#: What the server takes from the wire as it is; of texts it asks that they are UTF-8 without a zero byte.
_TYPES = (
    *TEXTS, "bool", "int2", "int4", "int8", "float4", "float8", "bytea", "date", "timestamp", "timestamptz", "uuid",
)  # fmt: skip
#: Of a page of 8 kB: what a row may have besides what is kept out of line, and what is left in it of one that is.
_PAGE, _ROW, _OUT_OF_LINE = 8192, 8000, 32
#: Bytes that a row may have: the server makes it as a whole, in 1 GB.
LARGEST_ROW = (1 << 30) - (1 << 20)
#: `char(n)` fills up with blanks: of all such columns of a row together not more than this.
_MOST_BLANKS = 1 << 19

_TABLE = """
SELECT c.oid, pg_encoding_to_char(d.encoding), current_setting('block_size')::int, c.relkind = 'p', c.relispartition,
       c.relhasrules, a.amname
FROM pg_class c JOIN pg_database d ON d.datname = current_database() LEFT JOIN pg_am a ON a.oid = c.relam
WHERE c.oid = to_regclass(%s)"""
_COLUMNS = """
SELECT a.attname, a.attlen, a.attstorage = 'p' AND a.attlen < 0, t.typtype = 'd', a.attgenerated <> ''
FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped"""
#: Since version 18 some are NOT ENFORCED. One over whole rows names no columns.
_CHECKS = """
SELECT c.conname, ARRAY(
    SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey)),
    pg_get_expr(c.conbin, c.conrelid)
FROM pg_constraint c WHERE c.conrelid = %s AND c.contype = 'c'
AND to_jsonb(c) ->> 'conenforced' IS DISTINCT FROM 'false'"""
_INDEXES = """
SELECT c.relname, m.amname, i.indexprs IS NOT NULL OR i.indpred IS NOT NULL, ARRAY(
    SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum > 0 AND (
        a.attnum = ANY (i.indkey) OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
            AND d.objid = c.oid AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum)))
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
WHERE i.indrelid = %s AND i.indisready"""


@dataclass(frozen=True)
class Proof:
    """What each row has to be; made on the driver, used in every task."""

    sink: str
    #: columns as the table names them -> as the DataFrame does
    sources: tuple[tuple[str, str], ...]
    required: tuple[str, ...] = ()
    #: name of an index, its columns of varying length, and how many bytes these may have together
    entries: tuple[tuple[str, tuple[str, ...], int], ...] = ()

    def check(self, rows: pa.RecordBatch) -> None:
        """RowError for the first that the server would not take; `rows` are as COPY wants them."""
        named = dict(self.sources)
        for column in self.required:
            if rows.column(column).null_count:
                index = pc.index(rows.column(column).is_null(), True).as_py()
                raise refuse(
                    self.sink, named[column], rows.column(column), index, "is null, and the table's is NOT NULL"
                )
        check_valid(self.sink, rows.rename_columns([named[name] for name in rows.schema.names]))
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            if pa.types.is_string(column.type) and (index := _zero_byte(column)) is not None:
                raise refuse(self.sink, named[name], column, index, "has a zero byte, which no text of PostgreSQL has")
        self._check_sizes(rows, named)

    def _check_sizes(self, rows: pa.RecordBatch, named: dict[str, str]) -> None:
        for index, columns, most in self.entries:
            why = (
                f"has more than the {most} bytes that stage='log' can be sure of for index {index!r}: shorten it, or "
                "use stage='server'"
            )
            self._check_size(rows, columns, most, named, why)
        if rows.nbytes > LARGEST_ROW // 2:
            varying = [f.name for f in rows.schema if _varies(f.type)]
            self._check_size(rows, varying, LARGEST_ROW, named, "makes the row larger than PostgreSQL's 1 GB")

    def _check_size(
        self, rows: pa.RecordBatch, columns: Sequence[str], most: int, named: dict[str, str], why: str
    ) -> None:
        sizes = [pc.binary_length(rows.column(column)).fill_null(0).cast(pa.int64()) for column in columns]
        if sum(pc.max(size).as_py() or 0 for size in sizes) <= most:
            return
        total = np.sum([size.to_numpy() for size in sizes], axis=0)
        if total.max(initial=0) > most:
            index = int(np.argmax(total > most))
            longest = max(columns, key=lambda c: len(rows.column(c)[index].as_buffer() or b""))
            raise refuse(self.sink, named[longest], rows.column(longest), index, why)


def _varies(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_binary(kind))


def _zero_byte(texts: pa.Array) -> int | None:
    """The first text with one."""
    _, offsets, data = texts.buffers()
    if data is None or len(texts) == 0:
        return None
    ends = np.frombuffer(offsets, np.int32, len(texts) + 1, texts.offset * 4)
    if np.frombuffer(data, np.uint8)[ends[0] : ends[-1]].all():
        return None
    found = int(pc.index(pc.match_substring(texts, "\0"), True).as_py())  # what lies under a null is nobody's text
    return found if found >= 0 else None


def check_created(sink: str, table: TableName, schema: pa.Schema) -> None:
    """Refuse a table that has yet to be made from these columns."""
    made = []
    for field in schema:
        kind = created_type(field.name, field.type)
        how = wire(field.type, kind)
        assert not isinstance(how, str), how
        made.append(Column(field.name, field.name, kind, how, required=False))
    _raise(sink, table, _columns(made))


def prove(connection: Any, sink: str, target: Target) -> Proof:
    """What a row of this table has to be; ConfigError with all that a task cannot tell by itself."""
    (oid, encoding, page, *kinds) = connection.execute(_TABLE, (target.name.sql,)).fetchone()
    found = connection.execute(_COLUMNS, (oid,)).fetchall()
    lengths = {name: length for name, length, *_ in found}
    problems = [*_columns(target.columns), *_server(encoding, page), *_table(*kinds)]
    written = set(target.names)
    for name, _, inline, domain, generated in found:
        if generated:
            problems.append(f"column {name!r} is computed by the server")
        elif name in written and domain:
            problems.append(f"column {name!r} is of a domain, which the server checks")
        elif name in written and inline:
            problems.append(f"column {name!r} has storage PLAIN, so a row could be too long for a page")
    for name, over, text in connection.execute(_CHECKS, (oid,)).fetchall():
        if written.intersection(over) or ".*" in text:
            problems.append(f"constraint {name!r} is checked by the server")
    if sum(_OUT_OF_LINE if length < 0 else length + VALUE for length in lengths.values()) > _ROW:
        problems.append(f"its {len(lengths)} columns may be too many for one row")
    blanks = {c.name: c.type.most or 0 for c in target.columns if c.type.base == "bpchar"}
    if sum(blanks.values()) > _MOST_BLANKS:
        problems.append(f"columns {', '.join(sorted(blanks))} of type char are very long")
    entries = []
    for name, method, computed, over in connection.execute(_INDEXES, (oid,)).fetchall():
        varying = tuple(sorted(c for c in written.intersection(over) if lengths.get(c, 0) < 0))
        left = room([lengths[c] for c in over], sum(blanks.get(c, 0) for c in over))
        if computed and written.intersection(over):
            problems.append(f"index {name!r} has an expression or a condition, which the server computes")
        elif varying and (method not in ("btree", "hash") or (method == "btree" and left < ENTRY // 2 - HEADER)):
            problems.append(f"nobody but the server knows how long a value index {name!r} ({method}) takes")
        elif varying and method == "btree":
            entries.append((name, varying, left))
    _raise(sink, target.name, problems)
    required = tuple(c.name for c in target.columns if c.required)
    return Proof(sink, tuple((c.name, c.source) for c in target.columns), required, tuple(entries))


def _server(encoding: str, page: int) -> Iterator[str]:
    if encoding != "UTF8":
        yield f"the database's encoding is {encoding}, not UTF8, so the server converts every text"
    if page < _PAGE:
        yield f"the server's pages have {page} bytes only"


def _table(partitioned: bool, partition: bool, rules: bool, method: str | None) -> Iterator[str]:
    if partitioned:
        yield "it is partitioned, so the server looks for each row's partition"
    if partition:
        yield "it is a partition, so the server checks its bounds"
    if rules:
        yield "it has rules, which COPY does not follow"
    if not partitioned and method != "heap":
        yield f"its access method is {method}, whose limits are not known"


def _columns(columns: Collection[Column]) -> Iterator[str]:
    for column in columns:
        if column.wire.as_text or column.type.is_array or column.type.base not in _TYPES:
            yield f"column {column.source!r} is of type {_spelled(column.type)}, which the server reads or checks"
        elif not is_plain(column.wire.arrow):
            yield f"column {column.source!r} of type {_spelled(column.type)} is given as {column.wire.arrow}"


def _spelled(kind: SqlType) -> str:
    return kind.spelled or kind.base


def _raise(sink: str, table: TableName, problems: Iterator[str] | Sequence[str]) -> None:
    found = list(problems)
    if found:
        raise ConfigError(
            f"sink {sink!r}: stage='log' does not go with table {table}: {'; '.join(found)}. There a task proves every "
            "row by itself, before anything is decided. Use stage='server', which lets the server do it, or change the "
            "table"
        )
