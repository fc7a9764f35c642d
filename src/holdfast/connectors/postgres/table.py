"""The target table as tasks see it, and the SQL that puts rows into it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.connectors.postgres.convert import convert
from holdfast.connectors.postgres.names import PART, ROW, TableName, literal, quote
from holdfast.connectors.postgres.rows import is_plain
from holdfast.connectors.postgres.types import SqlType, Wire
from holdfast.sinks.deletes import DELETED


@dataclass(frozen=True)
class Column:
    """A column of the table that the DataFrame fills."""

    name: str
    #: the DataFrame's name for it
    source: str
    type: SqlType
    wire: Wire
    required: bool
    #: how it is compared, where that is not as its type is: staged values are compared so, too
    collation: str | None = None

    @property
    def declared(self) -> str:
        """As a staging table declares it."""
        return declare(self.name, self.type.spelled, self.collation)

    @property
    def staged_type(self) -> str:
        """Its type in the table where texts wait for their cast."""
        if not self.wire.as_text:
            return self.type.spelled
        return "text[]" if self.type.is_array else "text"

    @property
    def cast(self) -> str:
        """The value as the server reads it from text; without a length, which an explicit cast would cut it to."""
        return f"{quote(self.name)}::{self.type.unlimited}" if self.wire.as_text else quote(self.name)

    @property
    def changed(self) -> str | None:
        """Whether the column's type would not keep the value that was read, in SQL; None when it keeps every value.

        Both are compared, so it needs no knowledge of the type. Lengths of `varchar` and `char` are counted before;
        here, blanks that fill a `char` up would be a change.
        """
        if not self.wire.as_text or self.type.modifier < 0 or self.type.most is not None:
            return None
        before, after = self.cast, f"{self.cast}::{self.type.spelled}::{self.type.unlimited}"
        return f"({before} IS DISTINCT FROM {after})"


@dataclass(frozen=True)
class Index:
    """An index of the table, which a row can be too long for, or whose expression can fail."""

    name: str
    #: what comes after the table's name in its definition
    definition: str
    columns: frozenset[str]
    #: counts of its expressions, when it has some: to compute them is to prove them
    expressions: tuple[str, ...] = ()
    #: columns whose values it can find too long, and how many bytes these surely may have together
    texts: tuple[str, ...] = ()
    sure: int = 0
    #: the table in which longer ones are tried
    tried_in: str | None = None

    @property
    def trial(self) -> str:
        """Which rows are tried, in SQL."""
        return " + ".join(f"coalesce(octet_length({quote(c)}::text), 0)" for c in self.texts) + f" > {self.sure}"


@dataclass(frozen=True)
class Target:
    """The table and the columns that are written; made on the driver, used in every task."""

    name: TableName
    columns: tuple[Column, ...]
    #: its CHECK constraints over these columns: staged rows obey them before anything is decided
    checks: tuple[tuple[str, str], ...] = ()
    #: columns that are not written but computed from these, or that a check needs: name, how it is declared, and
    #: whether it is NOT NULL
    extras: tuple[tuple[str, str, bool], ...] = ()
    indexes: tuple[Index, ...] = ()
    #: whether a row needs a partition
    partitioned: bool = False
    #: columns that the commit adds to the table
    added: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """The table's columns that are written."""
        return [column.name for column in self.columns]

    @property
    def there(self) -> tuple[Column, ...]:
        """The columns that the table has already."""
        return tuple(column for column in self.columns if column.name not in self.added)

    @property
    def add(self) -> list[list[str]]:
        """The columns to add, and their types."""
        return [[column.name, column.type.spelled] for column in self.columns if column.name in self.added]

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

    def stage_columns(self, *, raw: bool, ordered: bool, deletes: bool = False) -> str:
        """What a staging table is made of: types, NOT NULLs and CHECKs of the target, so that bad rows fail there.

        `raw`: texts as they came, before their cast. `ordered`: the order of the rows counts. `deletes`: some rows
        delete, of which nothing is asked but a key.
        """
        if raw:
            parts = [f"{quote(c.name)} {c.staged_type}" for c in self.columns]
        else:
            parts = [_declared(n, c.name, c.declared, c.required, deletes) for n, c in enumerate(self.columns)]
            parts += [_declared(n, *extra, deletes) for n, extra in enumerate(self.extras, len(self.columns))]
            parts += [_check(name, text, deletes) for name, text in self.checks]
        parts.append(f"{quote(PART)} bigint NOT NULL")
        if ordered:
            parts.append(f"{quote(ROW)} bigint NOT NULL")
        if deletes:
            parts.append(f"{quote(DELETED)} boolean NOT NULL")
        return ", ".join(parts)

    @property
    def asked_by_part(self) -> bool:
        """Whether tasks look at their own rows in staging: then these need an index."""
        return self.partitioned or any(index.expressions for index in self.indexes)

    def cast_statement(self, into: str, rows: str, *, own: Sequence[str] = ()) -> str:
        """Appends `rows`, casting what came as text; `own`: columns of holdfast's that go with them."""
        names = ", ".join(map(quote, [*self.names, *own]))
        values = ", ".join([*(c.cast for c in self.columns), *map(quote, own)])
        return f"INSERT INTO {into} ({names}) SELECT {values} FROM {rows}"  # noqa: S608  identifiers are quoted

    def kept_statements(self, rows: str) -> list[tuple[str, str]]:
        """What shows that no text of `rows` is cut or rounded by its column's type, and what each is about."""
        found = []
        for column in self.columns:
            if column.changed is not None:
                look = f"SELECT {quote(column.name)}::text INTO bad FROM {rows} WHERE {column.changed} LIMIT 1"  # noqa: S608
                says = literal(f"% would be cut or rounded by type {column.type.spelled.replace('%', '%%')}")
                body = (
                    f"#variable_conflict use_column\nDECLARE bad text; BEGIN {look}; IF FOUND THEN "
                    f"RAISE EXCEPTION {says}, left(bad, 60) USING ERRCODE = '22001'; END IF; END"
                )
                found.append((f"DO {literal(body)}", f"column {column.source!r}"))
        return found

    def proofs(self, rows: str, doubtful: Collection[str]) -> list[tuple[str, str]]:
        """What shows that staged rows go through the target's indexes and partitions, and what each is about.

        Not whether they meet rows of the target: that only the commit can tell. `doubtful`: indexes that a value may
        be too long for.
        """
        found = []
        for index in self.indexes:
            about = f"column {', '.join(map(repr, sorted(index.columns)))} in index {index.name!r}"
            if index.expressions:
                found.append((f"SELECT {', '.join(index.expressions)} FROM {rows}", about))  # noqa: S608
            if index.name in doubtful and index.tried_in is not None:
                columns = ", ".join(map(quote, sorted(index.columns)))
                tried = f"INSERT INTO {index.tried_in} ({columns}) SELECT {columns} FROM {rows} WHERE {index.trial}"  # noqa: S608
                found += [("SAVEPOINT long", ""), (tried, about), ("ROLLBACK TO SAVEPOINT long", "")]
        if self.partitioned:
            names = ", ".join(map(quote, [*self.names, *(name for name, _, _ in self.extras)]))
            found.append((_find_partitions(self.name.sql, f"(SELECT {names} FROM {rows})"), ""))  # noqa: S608
        return found


def declare(name: str, kind: str, collation: str | None) -> str:
    """A column with its type, in SQL."""
    return f"{quote(name)} {kind}" + ("" if collation is None else f" COLLATE {collation}")


def _declared(number: int, name: str, declared: str, required: bool, deletes: bool) -> str:
    """A column of a staging table; a row that deletes need not have a value."""
    if not required or not deletes:
        return declared + (" NOT NULL" if required else "")
    return f"{declared}, {_check(f'{number}: {name} is NOT NULL', f'{quote(name)} IS NOT NULL', deletes)}"


def _check(name: str, text: str, deletes: bool) -> str:
    """A CHECK of the target, for rows that do not delete."""
    return f"CONSTRAINT {quote(name)} CHECK ({f'{quote(DELETED)} OR ({text})' if deletes else text})"


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
class Deletes:
    """What becomes of rows that delete."""

    #: schema and name of the table that remembers them, and for how many seconds
    graves: tuple[str, str] | None = None
    keep: float = 0.0
    #: key or order columns that are not compared as their type is, and how
    collations: tuple[tuple[str, str], ...] = ()

    @property
    def table(self) -> str | None:
        """Quoted, for use in SQL."""
        return None if self.graves is None else ".".join(map(quote, self.graves))

    def to_json(self) -> dict[str, Any]:
        """For a committable (rule 16)."""
        graves = None if self.graves is None else list(self.graves)
        return {"graves": graves, "keep": self.keep, "collations": [list(pair) for pair in self.collations]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Deletes:
        """Read back."""
        graves = data["graves"]
        collations = tuple((column, how) for column, how in data["collations"])
        return cls(None if graves is None else (graves[0], graves[1]), data["keep"], collations)


@dataclass(frozen=True)
class Upsert:
    """Which rows replace which."""

    key: tuple[str, ...] = ()
    order_by: str | None = None
    #: None: no row deletes
    deletes: Deletes | None = None
    #: whether the order is one of texts: by their bytes, as in every sink, whatever the column's collation says
    by_bytes: bool = False

    def ordered(self, value: str) -> str:
        """A value of `order_by`, so that it is compared as it should be."""
        return f'{value}::text COLLATE pg_catalog."C"' if self.by_bytes else value


def add_column(target: TableName, column: str, kind: str) -> str:
    """What adds a column."""
    return f"ALTER TABLE {target.sql} ADD COLUMN {quote(column)} {kind}"


def add_missing(target: TableName, column: str, kind: str) -> str:
    """Adds it unless it is there: then the table is not locked."""
    there = (
        f"SELECT FROM pg_attribute WHERE attrelid = {literal(target.sql)}::regclass "
        f"AND attname = {literal(column)} AND NOT attisdropped"
    )
    body = f"BEGIN IF NOT EXISTS ({there}) THEN {add_column(target, column, kind)}; END IF; END"
    return f"DO {literal(body)}"


def insert_statement(target: TableName, columns: Sequence[str], rows: str, upsert: Upsert, last: str) -> str:
    """Append `rows` (what comes after FROM), or replace by key; an `order_by` below what is there changes nothing.

    Of two rows of one key the one with the larger `order_by` is taken, and of equal ones the first by `last`.
    """
    names = ", ".join(map(quote, columns))
    if not upsert.key:
        return f"INSERT INTO {target.sql} ({names}) SELECT {names} FROM {rows}"  # noqa: S608  identifiers are quoted
    keys = ", ".join(map(quote, upsert.key))
    select = f"SELECT {names} FROM {rows}"  # noqa: S608
    if upsert.order_by is not None:
        order = f"{keys}, {upsert.ordered(quote(upsert.order_by))} DESC NULLS LAST, {last}"
        select = f"SELECT DISTINCT ON ({keys}) {names} FROM {rows} ORDER BY {order}"  # noqa: S608
    return f"INSERT INTO {target.sql} AS stored ({names}) {select} {on_conflict(columns, upsert)}"


def on_conflict(columns: Sequence[str], upsert: Upsert) -> str:
    """What happens to a row of a key that is there, which is `stored`."""
    statement = f"ON CONFLICT ({', '.join(map(quote, upsert.key))}) DO "
    others = [column for column in columns if column not in upsert.key]
    if not others:
        return statement + "NOTHING"
    statement += "UPDATE SET " + ", ".join(f"{quote(c)} = excluded.{quote(c)}" for c in others)
    if upsert.order_by is not None:
        column = quote(upsert.order_by)
        new, old = upsert.ordered(f"excluded.{column}"), upsert.ordered(f"stored.{column}")
        statement += f" WHERE stored.{column} IS NULL OR {new} >= {old}"
    return statement
