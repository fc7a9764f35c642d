"""The target table: what the catalog says about it, and the SQL that puts rows into it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.connectors.postgres.names import TableName, literal, quote
from holdfast.connectors.postgres.rows import is_plain
from holdfast.connectors.postgres.server import drivers, said
from holdfast.connectors.postgres.types import SqlType, Wire, column_type, convert, wire
from holdfast.errors import ConfigError

_FIND = """
SELECT c.oid, n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%s)"""
#: For a domain the type below it counts; for an array its elements'.
_COLUMNS = """
SELECT a.attname, format_type(a.atttypid, a.atttypmod), coalesce(e.typname, b.typname, t.typname), e.oid IS NOT NULL,
       a.attnotnull OR (t.typtype = 'd' AND t.typnotnull),
       a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '' OR t.typdefault IS NOT NULL,
       CASE WHEN t.typtype = 'd' THEN t.typtypmod ELSE a.atttypmod END
FROM pg_attribute a
JOIN pg_type t ON t.oid = a.atttypid
LEFT JOIN pg_type b ON b.oid = t.typbasetype
LEFT JOIN pg_type e ON e.oid = coalesce(b.typelem, t.typelem) AND coalesce(b.typcategory, t.typcategory) = 'A'
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
_CHECKS = """
SELECT pg_get_constraintdef(c.oid), ARRAY(
    SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey))
FROM pg_constraint c WHERE c.conrelid = %s AND c.contype = 'c' AND c.convalidated"""


@dataclass(frozen=True)
class Column:
    """A column of the table that the DataFrame fills."""

    name: str
    #: the DataFrame's name for it
    source: str
    type: SqlType
    wire: Wire
    required: bool

    @property
    def staged_type(self) -> str:
        """Its type in a staging table, at first."""
        if not self.wire.as_text:
            return self.type.spelled
        return "text[]" if self.type.is_array else "text"


@dataclass(frozen=True)
class Target:
    """The table and the columns that are written; made on the driver, used in every task."""

    name: TableName
    columns: tuple[Column, ...]
    #: its CHECK constraints over these columns: staged rows obey them before anything is decided
    checks: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The table's columns that are written."""
        return [column.name for column in self.columns]

    @property
    def cast_by_server(self) -> list[Column]:
        """The columns that travel as text."""
        return [column for column in self.columns if column.wire.as_text]

    @property
    def plain(self) -> bool:
        """Whether no column needs ADBC."""
        return all(is_plain(column.wire.arrow) for column in self.columns)

    def to_wire(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows as COPY wants them."""
        arrays = [convert(c.source, batch.column(c.source), c.wire) for c in self.columns]
        return pa.RecordBatch.from_arrays(arrays, names=self.names)

    def staging_statement(self, schema: str, table: str) -> str:
        """A table for one task's rows: the types, NOT NULLs and CHECKs of the target, so that bad rows fail there."""
        parts = [f"{quote(c.name)} {c.staged_type}{' NOT NULL' if c.required else ''}" for c in self.columns]
        if not self.cast_by_server:
            parts += self.checks
        return f"CREATE TABLE {quote(schema)}.{quote(table)} ({', '.join(parts)})"

    def cast_statement(self, schema: str, table: str) -> str | None:
        """Turns the columns that came as text into what they are; None when there are none."""
        parts = [
            f"ALTER COLUMN {quote(c.name)} TYPE {c.type.spelled} USING {quote(c.name)}::{c.type.spelled}"
            for c in self.cast_by_server
        ]
        if not parts:
            return None
        parts += [f"ADD {check}" for check in self.checks]
        return f"ALTER TABLE {quote(schema)}.{quote(table)} {', '.join(parts)}"

    def move_statement(self, schema: str, table: str) -> str:
        """Appends the rows of a staging table, casting what came as text."""
        names = ", ".join(map(quote, self.names))
        values = ", ".join(
            f"{quote(c.name)}::{c.type.spelled}" if c.wire.as_text else quote(c.name) for c in self.columns
        )
        return f"INSERT INTO {self.name.sql} ({names}) SELECT {values} FROM {quote(schema)}.{quote(table)}"  # noqa: S608


@dataclass(frozen=True)
class Upsert:
    """Which rows replace which."""

    key: tuple[str, ...] = ()
    order_by: str | None = None


def insert_statement(target: TableName, columns: Sequence[str], rows: str, upsert: Upsert) -> str:
    """Append `rows`, a table or subquery, or replace by key; an `order_by` smaller than what is there changes nothing.

    Of two rows of one key the one with the larger `order_by` is taken, and of equal ones the one written last.
    """
    names = ", ".join(map(quote, columns))
    if not upsert.key:
        return f"INSERT INTO {target.sql} ({names}) SELECT {names} FROM {rows}"  # noqa: S608  identifiers are quoted
    keys = ", ".join(map(quote, upsert.key))
    select = f"SELECT {names} FROM {rows}"  # noqa: S608
    if upsert.order_by is not None:
        order = f"{keys}, {quote(upsert.order_by)} DESC NULLS LAST, ctid DESC"
        select = f"SELECT DISTINCT ON ({keys}) {names} FROM {rows} ORDER BY {order}"  # noqa: S608
    statement = f"INSERT INTO {target.sql} AS stored ({names}) {select} ON CONFLICT ({keys}) DO "
    others = [column for column in columns if column not in upsert.key]
    if not others:
        return statement + "NOTHING"
    statement += "UPDATE SET " + ", ".join(f"{quote(c)} = excluded.{quote(c)}" for c in others)
    if upsert.order_by is not None:
        column = quote(upsert.order_by)
        statement += f" WHERE stored.{column} IS NULL OR excluded.{column} >= stored.{column}"
    return statement


def create_statement(name: TableName, schema: pa.Schema, key: Sequence[str]) -> str:
    """The table for a DataFrame's columns."""
    parts = [f"{quote(field.name)} {column_type(field.name, field.type)}" for field in schema]
    if key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quote, key))})")
    return f"CREATE TABLE IF NOT EXISTS {name.sql} ({', '.join(parts)})"


def resolve(connection: Any, sink: str, name: TableName, schema: pa.Schema, upsert: Upsert) -> tuple[Target, Upsert]:
    """Match the DataFrame's columns to the table's; whatever does not fit is named, before a row is written."""
    found = connection.execute(_FIND, (name.sql,)).fetchone()
    if found is None:
        statement = create_statement(name, schema, upsert.key)
        raise ConfigError(
            f"sink {sink!r}: there is no table {name} (names are taken as they are written, upper and lower case "
            f"differ). Pass create=True, or create it: {statement}"
        )
    oid, namespace, relation, kind = found
    if kind not in ("r", "p"):
        raise ConfigError(f"sink {sink!r}: {name} is not a table: views and foreign tables cannot be written")
    there = {row[0]: row for row in connection.execute(_COLUMNS, (oid,)).fetchall()}
    matched = {field.name: _match(field.name, there) for field in schema}
    missing = [source for source, column in matched.items() if column is None]
    if missing:
        raise ConfigError(
            f"sink {sink!r}: table {name} has no column {', '.join(missing)}: add it with ALTER TABLE, or select other "
            f"columns. The table has {', '.join(there)}"
        )
    doubled = sorted({c for c in matched.values() if list(matched.values()).count(c) > 1 and c is not None})
    if doubled:
        raise ConfigError(f"sink {sink!r}: two columns of the DataFrame are column {doubled[0]!r} of table {name}")
    given = set(matched.values())
    required = [c for c, (*_, must, default, _) in there.items() if must and not default and c not in given]
    if required:
        raise ConfigError(
            f"sink {sink!r}: column {', '.join(required)} of table {name} is NOT NULL and not among the DataFrame's "
            "columns: add it to the query, or give it a default"
        )
    columns = _columns(sink, name, schema, matched, there)
    checks = tuple(
        text for text, over in connection.execute(_CHECKS, (oid,)).fetchall() if over and given.issuperset(over)
    )
    target = Target(TableName(namespace, relation), columns, checks)
    renamed = Upsert(
        tuple(matched[c] or c for c in upsert.key), upsert.order_by and (matched[upsert.order_by] or upsert.order_by)
    )
    _try(connection, sink, target, renamed)
    return target, renamed


def _match(source: str, there: dict[str, Any]) -> str | None:
    """The same name, else the only one that differs in upper and lower case: to Spark they are one."""
    if source in there:
        return source
    alike = [column for column in there if column.lower() == source.lower()]
    return alike[0] if len(alike) == 1 else None


def _columns(
    sink: str, name: TableName, schema: pa.Schema, matched: dict[str, str | None], there: dict[str, Any]
) -> tuple[Column, ...]:
    columns, wrong = [], []
    for field in schema:
        column = matched[field.name]
        assert column is not None
        _, spelled, base, is_array, required, _, modifier = there[column]
        scale = None if base != "numeric" or modifier < 4 else (modifier - 4) & 0x7FF
        kind = SqlType(base, is_array, spelled, scale)
        how = wire(field.type, kind)
        if isinstance(how, str):
            wrong.append(f"{field.name} is {field.type} in the DataFrame and {spelled} in the table: {how}")
        else:
            columns.append(Column(column, field.name, kind, how, required))
    if wrong:
        raise ConfigError(f"sink {sink!r}: columns do not fit table {name}: {'; '.join(wrong)}")
    return tuple(columns)


def _try(connection: Any, sink: str, target: Target, upsert: Upsert) -> None:
    """Let the server check the statement of the commit: permission, generated columns, a unique index for the key."""
    psycopg, _, _ = drivers()
    nothing = ", ".join(f"NULL::{c.type.spelled} AS {quote(c.name)}" for c in target.columns)
    rows = f"(SELECT {nothing}, NULL::tid AS ctid WHERE false) AS nothing"
    try:
        connection.execute("EXPLAIN " + insert_statement(target.name, target.names, rows, upsert))
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.OperationalError) as error:
        if error.sqlstate is None or error.sqlstate[:2] not in ("42", "0A"):
            raise
        index = f". The table needs a unique index on ({', '.join(upsert.key)})" if error.sqlstate == "42P10" else ""
        raise ConfigError(f"sink {sink!r} cannot write into table {target.name}: {said(error)}{index}") from error


def comment_statement(schema: str, table: str, text: str) -> str:
    """Notes whose a table is."""
    return f"COMMENT ON TABLE {quote(schema)}.{quote(table)} IS {literal(text)}"
