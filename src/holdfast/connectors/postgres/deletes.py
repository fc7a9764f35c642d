"""Deletes in PostgreSQL: one statement for a checkpoint's rows, and the table that remembers deletes.

That table is in holdfast's schema, one for each target table, key and order: another pipeline that writes into the same
table finds the same deletes there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.connectors.postgres.names import ROW, TableName, quote, schema_lock
from holdfast.connectors.postgres.server import drivers
from holdfast.connectors.postgres.table import Deletes, Target, Upsert, on_conflict
from holdfast.connectors.postgres.trouble import said
from holdfast.errors import ConfigError
from holdfast.sinks.deletes import DELETED, kept_name

#: expired ones that a commit forgets at least, if there are so many; more when it deletes more, so that none pile up
_FORGET = 1000


def prepare(connection: Any, sink: str, schema: str, target: Target, upsert: Upsert, keep: float) -> Upsert:
    """How rows replace and delete; makes the table that remembers deletes, where there is an order to remember."""
    columns = [*upsert.key, *([] if upsert.order_by is None else [upsert.order_by])]
    collations = {c.name: c.collation for c in target.columns if c.collation is not None and c.name in columns}
    deletes = Deletes(collations=tuple(sorted(collations.items())))
    if upsert.order_by is not None:
        spelled = {c.name: c.type.spelled for c in target.columns}
        kinds = [spelled[c] + (f" COLLATE {collations[c]}" if c in collations else "") for c in columns]
        (role,) = connection.execute("SELECT current_user").fetchone()
        # Of another role's table we could not be sure that we may use it.
        name = kept_name("deleted_", str(target.name.schema), target.name.table, role, *columns, *kinds)
        _create(connection, f"{quote(schema)}.{quote(name)}", schema, name, len(upsert.key), kinds, target.name)
        deletes = replace(deletes, graves=(schema, name), keep=keep)
    found = replace(upsert, deletes=deletes)
    _try(connection, sink, target, found)
    return found


def _create(
    connection: Any, table: str, schema: str, name: str, keys: int, kinds: Sequence[str], target: TableName
) -> None:
    if connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()[0] is not None:
        return
    named = ", ".join(f"k{n}" for n in range(keys))
    declared = ", ".join(f"k{n} {kind}" for n, kind in enumerate(kinds[:keys]))
    connection.together(
        schema_lock(schema),
        f"CREATE TABLE IF NOT EXISTS {table} ({declared}, at {kinds[keys]}, until timestamptz NOT NULL, "
        f"PRIMARY KEY ({named}))",
        f"CREATE INDEX IF NOT EXISTS {quote(name + '_until')} ON {table} (until)",
        f"COMMENT ON TABLE {table} IS {_text(f'holdfast: deleted keys of table {target}')}",
    )


def _text(text: str) -> str:
    return "'" + text.replace("'", "''").replace("\\", "/") + "'"


def change_statement(target: TableName, columns: Sequence[str], rows: str, upsert: Upsert, last: str) -> str:
    """Replace and delete by key, in one statement: of each key its last row counts, and that is one of both.

    A row older than a delete that is remembered stays away; a delete older than the row that is there does nothing.
    """
    assert upsert.deletes is not None
    graves, deleted = upsert.deletes.table, f"last.{quote(DELETED)}"
    collations = dict(upsert.deletes.collations)

    def value(column: str) -> str:
        return f"last.{quote(column)}" + (f" COLLATE {collations[column]}" if column in collations else "")

    keys, names = ", ".join(map(quote, upsert.key)), ", ".join(map(quote, columns))
    chosen = f"SELECT {names}, {quote(DELETED)} FROM {rows}"  # noqa: S608  identifiers are quoted
    same = " AND ".join(f"stored.{quote(c)} = {value(c)}" for c in upsert.key)
    newer, buried, forbidden = "", "", ""
    if upsert.order_by is not None and graves is not None:
        column = quote(upsert.order_by)
        order = upsert.ordered(f"last.{column}") if upsert.by_bytes else value(upsert.order_by)
        ranked, stored, grave = order.removeprefix("last."), *map(upsert.ordered, (f"stored.{column}", "grave.at"))
        chosen = (
            f"SELECT DISTINCT ON ({keys}) {names}, {quote(DELETED)} FROM {rows} "  # noqa: S608
            f"ORDER BY {keys}, {ranked} DESC NULLS LAST, {last}"
        )
        newer = f" AND (stored.{column} IS NULL OR {order} >= {stored})"
        places = ", ".join(f"k{n}" for n in range(len(upsert.key)))
        buried = (
            f", buried AS (INSERT INTO {graves} AS grave ({places}, at, until) SELECT {keys}, {column}, now() + "  # noqa: S608
            f"interval '{upsert.deletes.keep:.3f} seconds' FROM last WHERE {deleted} ON CONFLICT ({places}) DO UPDATE "
            "SET at = excluded.at, until = excluded.until WHERE grave.at IS NULL OR "
            f"{upsert.ordered('excluded.at')} >= {grave})"
        )
        match = " AND ".join(f"grave.k{n} = {value(c)}" for n, c in enumerate(upsert.key))
        forbidden = (
            f" AND NOT EXISTS (SELECT FROM {graves} AS grave WHERE {match} AND grave.at IS NOT NULL "
            f"AND ({order} IS NULL OR {order} < {grave}))"
        )
    return (
        f"WITH last AS MATERIALIZED ({chosen}), gone AS (DELETE FROM {target.sql} AS stored USING last "  # noqa: S608
        f"WHERE {deleted} AND {same}{newer}){buried} INSERT INTO {target.sql} AS stored ({names}) SELECT {names} "
        f"FROM last WHERE NOT {deleted}{forbidden} {on_conflict(columns, upsert)}"
    )


def forget_statement(graves: str, deleted: int) -> str:
    """Forget deletes whose time is over, the oldest first."""
    oldest = f"SELECT ctid FROM {graves} WHERE until <= now() ORDER BY until LIMIT {_FORGET + 2 * deleted}"  # noqa: S608
    return f"DELETE FROM {graves} WHERE ctid = ANY (ARRAY({oldest} FOR UPDATE SKIP LOCKED))"  # noqa: S608


def _try(connection: Any, sink: str, target: Target, upsert: Upsert) -> None:
    """Let the server check the statement of the commit: the right to delete, above all."""
    psycopg, _, _ = drivers()
    nothing = ", ".join(f"NULL::{c.type.spelled} AS {quote(c.name)}" for c in target.there)
    rows = f"(SELECT {nothing}, NULL::bigint AS {quote(ROW)}, false AS {quote(DELETED)} WHERE false) AS nothing"
    try:
        names = [column.name for column in target.there]
        connection.execute("EXPLAIN " + change_statement(target.name, names, rows, upsert, quote(ROW)))
    except psycopg.ProgrammingError as error:
        raise ConfigError(
            f"sink {sink!r} cannot delete from table {target.name}: {said(error)}. delete_when needs the rights to "  # noqa: S608
            "SELECT and DELETE, and a key and order_by that can be compared"
        ) from error
