"""The target table as tasks see it, and the SQL that puts rows into it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.connectors.postgres.names import TableName, literal, quote
from holdfast.connectors.postgres.rows import is_plain
from holdfast.connectors.postgres.types import SqlType, Wire, convert


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

    @property
    def cast(self) -> str:
        """The value as the server reads it from text; without a length, which an explicit cast would cut it to."""
        return f"{quote(self.name)}::{self.type.unlimited}" if self.wire.as_text else quote(self.name)


@dataclass(frozen=True)
class Index:
    """An index of the table, which a row can be too long for, or whose expression can fail."""

    name: str
    #: what comes after the table's name in its definition
    definition: str
    columns: frozenset[str]
    #: counts of its expressions, when it has some: to compute them is to prove them
    expressions: tuple[str, ...] = ()


@dataclass(frozen=True)
class Target:
    """The table and the columns that are written; made on the driver, used in every task."""

    name: TableName
    columns: tuple[Column, ...]
    #: its CHECK constraints over these columns: staged rows obey them before anything is decided
    checks: tuple[str, ...] = ()
    #: columns that are not written but computed from these, or that a check needs: name, type and what fills them
    extras: tuple[str, ...] = ()
    indexes: tuple[Index, ...] = ()
    #: whether a row needs a partition
    partitioned: bool = False

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
            parts += [*self.extras, *self.checks]
        return f"CREATE TABLE {quote(schema)}.{quote(table)} ({', '.join(parts)})"

    def cast_statements(self, schema: str, table: str) -> list[str]:
        """Turns the columns that came as text into what they are, then adds what is checked; none without such."""
        if not self.cast_by_server:
            return []
        statements = [self.cast_statement(schema, table, self.cast_by_server)]
        added = [*(f"ADD COLUMN {extra}" for extra in self.extras), *(f"ADD {check}" for check in self.checks)]
        if added:
            statements.append(f"ALTER TABLE {quote(schema)}.{quote(table)} {', '.join(added)}")
        return statements

    def cast_statement(self, schema: str, table: str, columns: Sequence[Column]) -> str:
        """Turns columns that came as text into what they are."""
        parts = [f"ALTER COLUMN {quote(c.name)} TYPE {c.type.spelled} USING {c.cast}" for c in columns]
        return f"ALTER TABLE {quote(schema)}.{quote(table)} {', '.join(parts)}"

    def move_statement(self, schema: str, table: str) -> str:
        """Appends the rows of a staging table, casting what came as text."""
        names = ", ".join(map(quote, self.names))
        values = ", ".join(c.cast for c in self.columns)
        return f"INSERT INTO {self.name.sql} ({names}) SELECT {values} FROM {quote(schema)}.{quote(table)}"  # noqa: S608

    def proofs(self, schema: str, table: str, long: Collection[str]) -> list[tuple[str, str]]:
        """What shows that staged rows go through the target's indexes and partitions, and what each is about.

        Not whether they meet rows of the target: that only the commit can tell. `long`: columns of long values.
        """
        rows = f"{quote(schema)}.{quote(table)}"
        found = []
        for index in self.indexes:
            about = f"column {', '.join(map(repr, sorted(index.columns)))} in index {index.name!r}"
            if index.expressions:
                found.append((f"SELECT {', '.join(index.expressions)} FROM {rows}", about))  # noqa: S608
            if index.columns.intersection(long):
                found.append((f"CREATE INDEX ON {rows} {index.definition}", about))
        if self.partitioned:
            found.append((_find_partitions(self.name.sql, rows), ""))
        return found


def _find_partitions(target: str, rows: str) -> str:
    """Fails when there is no partition for a row; partitions come and go, so it looks for them when it runs."""
    one = "'(' || coalesce(pg_get_partition_constraintdef(relid), 'true') || ')'"
    leaves = f"pg_partition_tree({literal(target)}::regclass) WHERE isleaf"
    find = f"SELECT coalesce(string_agg({one}, ' OR '), 'false') INTO fits FROM {leaves}"  # noqa: S608
    look = literal(f"SELECT row_to_json(s)::text FROM {rows} s WHERE (") + " || fits || ') IS NOT TRUE LIMIT 1'"  # noqa: S608
    body = (
        f"DECLARE fits text; bad text; BEGIN {find}; EXECUTE {look} INTO bad; IF bad IS NOT NULL THEN "
        "RAISE EXCEPTION 'there is no partition for row %', left(bad, 200) USING ERRCODE = '23514'; END IF; "
        # of a column that is not written: the table's default for it decides, at the commit
        "EXCEPTION WHEN undefined_column THEN NULL; END"
    )
    return f"DO {literal(body)}"


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


def comment_statement(schema: str, table: str, text: str) -> str:
    """Notes whose a table is."""
    return f"COMMENT ON TABLE {quote(schema)}.{quote(table)} IS {literal(text)}"
