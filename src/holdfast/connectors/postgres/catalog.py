"""What the server's catalog says about the target table, matched to the DataFrame's columns at the start."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.connectors.postgres.lengths import TEXTS, limited
from holdfast.connectors.postgres.names import PART, ROW, TableName, quote
from holdfast.connectors.postgres.server import drivers
from holdfast.connectors.postgres.table import Column, Index, Target, Upsert, add_column, declare, insert_statement
from holdfast.connectors.postgres.trouble import said
from holdfast.connectors.postgres.types import SqlType, column_type, created_type, wire
from holdfast.errors import ConfigError
from holdfast.sinks.order import MissingIndexError
from holdfast.sinks.schema_change import DISCARD, EVOLVE, FREEZE, discarded, ways, without_columns

_FIND = """
SELECT c.oid, n.nspname, c.relname, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.oid = to_regclass(%s)"""
#: For a domain the type below it counts, however deep; for an array its elements', and what is below those. `tree`: all
#: types that a value has parts of.
_COLUMNS = """
WITH RECURSIVE below AS (
    SELECT attnum, atttypid AS type, atttypmod AS modifier, attnotnull AS required, false AS value, 0 AS depth,
           false AS is_array, false AS of_domain
    FROM pg_attribute WHERE attrelid = %(table)s AND attnum > 0 AND NOT attisdropped
    UNION ALL
    SELECT attnum, CASE typtype WHEN 'd' THEN typbasetype ELSE typelem END,
           CASE typtype WHEN 'd' THEN typtypmod ELSE modifier END, required OR (typnotnull AND NOT is_array),
           value OR typdefault IS NOT NULL, depth + 1, is_array OR typtype <> 'd',
           of_domain OR (is_array AND typtype = 'd')
    FROM below JOIN pg_type t ON t.oid = type
    WHERE typtype = 'd' OR (typcategory = 'A' AND typelem <> 0 AND NOT is_array)),
base AS (SELECT DISTINCT ON (attnum) * FROM below ORDER BY attnum, depth DESC),
tree AS (
    SELECT attnum, type, -1 AS modifier FROM base
    UNION
    SELECT attnum, part.type, part.modifier FROM tree JOIN pg_type t ON t.oid = tree.type, LATERAL (
        SELECT typbasetype AS type, typtypmod AS modifier WHERE typtype = 'd'
        UNION ALL SELECT typelem, tree.modifier WHERE typcategory = 'A' AND typelem <> 0
        UNION ALL SELECT atttypid, atttypmod FROM pg_attribute
            WHERE typtype = 'c' AND attrelid = typrelid AND pg_attribute.attnum > 0 AND NOT attisdropped
        UNION ALL SELECT rngsubtype, -1 FROM pg_range WHERE rngtypid = t.oid
            OR (to_jsonb(pg_range) ->> 'rngmultitypid')::oid = t.oid) part)
SELECT a.attname, format_type(a.atttypid, a.atttypmod), t.typname, b.is_array, b.required,
       a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '' OR b.value, b.modifier,
       format_type(b.type, -1) || CASE WHEN b.is_array THEN '[]' ELSE '' END, b.of_domain,
       EXISTS (SELECT FROM tree JOIN pg_type p ON p.oid = tree.type WHERE tree.attnum = a.attnum
               AND (modifier >= 0 OR (p.typname IN ('name', 'char') AND p.oid <> b.type))),
       EXISTS (SELECT FROM tree JOIN pg_type p ON p.oid = tree.type WHERE tree.attnum = a.attnum
               AND p.typname IN ('time', 'timetz', 'timestamp', 'timestamptz', 'interval')),
       a.attgenerated, a.attidentity, pg_get_expr(d.adbin, d.adrelid), ARRAY(
           SELECT r.attname::text FROM pg_depend p JOIN pg_attribute r ON r.attrelid = a.attrelid
           AND r.attnum = p.refobjsubid WHERE p.refclassid = 'pg_class'::regclass AND p.refobjid = a.attrelid
           AND p.refobjsubid > 0 AND p.refobjsubid <> a.attnum AND
               ((p.classid = 'pg_attrdef'::regclass AND p.objid = d.oid)
             OR (p.classid = 'pg_class'::regclass AND p.objid = a.attrelid AND p.objsubid = a.attnum))),
       CASE WHEN a.attcollation <> o.typcollation THEN quote_ident(n.nspname) || '.' || quote_ident(c.collname) END
FROM pg_attribute a
JOIN base b ON b.attnum = a.attnum
JOIN pg_type t ON t.oid = b.type
JOIN pg_type o ON o.oid = a.atttypid
LEFT JOIN pg_collation c ON c.oid = a.attcollation
LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
WHERE a.attrelid = %(table)s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum"""
#: Also those that are NOT VALID: new rows have to obey them. Since version 18 some are NOT ENFORCED.
_CHECKS = """
SELECT c.conname, pg_get_expr(c.conbin, c.conrelid), ARRAY(
    SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = c.conrelid AND a.attnum = ANY (c.conkey))
FROM pg_constraint c WHERE c.conrelid = %s AND c.contype = 'c'
AND to_jsonb(c) ->> 'conenforced' IS DISTINCT FROM 'false'"""
_INDEXES = """
SELECT c.relname, substring(pg_get_indexdef(c.oid) FROM ' (USING .*)$'), ARRAY(
    SELECT a.attname::text FROM pg_attribute a WHERE a.attrelid = i.indrelid AND a.attnum > 0 AND (
        a.attnum = ANY (i.indkey) OR EXISTS (SELECT FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
            AND d.objid = c.oid AND d.refobjid = i.indrelid AND d.refobjsubid = a.attnum))),
    CASE WHEN i.indexprs IS NULL AND i.indpred IS NULL THEN '{}' ELSE ARRAY(
        SELECT pg_get_indexdef(c.oid, n, false) FROM generate_series(1, i.indnkeyatts) n) END,
    pg_get_expr(i.indpred, i.indrelid), m.amname, i.indexprs IS NULL AND current_setting('block_size')::int >= 8192
        AND (SELECT pg_encoding_to_char(encoding) = 'UTF8' FROM pg_database WHERE datname = current_database())
FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
WHERE i.indrelid = %s AND i.indisready"""
_LENGTHS = "SELECT attname, attlen FROM pg_attribute WHERE attrelid = %s AND attnum > 0"
#: A default that is not the same for every row and at every time.
_CALL = re.compile(r"\w\(|CURRENT_|LOCALTIME|USER", re.IGNORECASE)


@dataclass(frozen=True)
class _Found:
    """A column of the table."""

    name: str
    spelled: str
    base: str
    is_array: bool
    required: bool
    has_default: bool
    modifier: int
    unlimited: str
    of_domain: bool
    limited_inside: bool
    has_time: bool
    generated: str
    identity: str
    default: str | None
    uses: list[str]
    #: how it is compared, where that is not as its type is
    collation: str | None

    @property
    def type(self) -> SqlType:
        return SqlType(
            self.base,
            self.is_array,
            self.spelled,
            self.modifier,
            self.unlimited,
            self.of_domain,
            self.limited_inside,
            self.has_time,
        )

    def extra(self) -> str | None:
        """How a staging table declares it when no row has it; None when it would not be the target's value."""
        declared = declare(self.name, self.spelled, self.collation)
        if self.generated:
            how = "STORED" if self.generated == "s" else "VIRTUAL"
            return f"{declared} GENERATED ALWAYS AS ({self.default}) {how}"
        if self.identity or (self.default is not None and _CALL.search(self.default)):
            return None
        return declared + (f" DEFAULT {self.default}" if self.default is not None else "")


def create_statement(name: TableName, schema: pa.Schema, key: Sequence[str]) -> str:
    """The table for a DataFrame's columns."""
    parts = [f"{quote(field.name)} {column_type(field.name, field.type)}" for field in schema]
    if key:
        parts.append(f"PRIMARY KEY ({', '.join(map(quote, key))})")
    return f"CREATE TABLE IF NOT EXISTS {name.sql} ({', '.join(parts)})"


def find_table(
    connection: Any, sink: str, name: TableName, schema: pa.Schema, upsert: Upsert, change: str = FREEZE
) -> tuple[Target, Upsert, tuple[str, ...]]:
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
    if connection.execute("SELECT row_security_active(%s::oid)", (oid,)).fetchone()[0]:
        raise ConfigError(
            f"sink {sink!r}: row-level security applies to this role on table {name}: a policy could refuse rows after "
            "they are decided, and COPY does not work under one. Let its role own the table, or give it BYPASSRLS"
        )
    there = {row[0]: _Found(*row) for row in connection.execute(_COLUMNS, {"table": oid}).fetchall()}
    matched = {field.name: _match(field.name, there) for field in schema}
    missing = [source for source, column in matched.items() if column is None]
    added, left_out = _new(
        connection, sink, name, TableName(namespace, relation), schema, missing, upsert, change, there
    )
    matched = {source: source if source in added else c for source, c in matched.items() if source not in left_out}
    schema = without_columns(schema, left_out)
    doubled = sorted({c for c in matched.values() if list(matched.values()).count(c) > 1 and c is not None})
    if doubled:
        raise ConfigError(f"sink {sink!r}: two columns of the DataFrame are column {doubled[0]!r} of table {name}")
    given = set(matched.values())
    if given & {PART, ROW}:
        raise ConfigError(f"sink {sink!r}: columns {PART} and {ROW} are holdfast's own in staging: rename yours")
    required = [c.name for c in there.values() if c.required and not c.has_default and c.name not in given]
    if required:
        raise ConfigError(
            f"sink {sink!r}: column {', '.join(required)} of table {name} is NOT NULL and not among the DataFrame's "
            "columns: add it to the query, or give it a default"
        )
    columns = _columns(sink, name, schema, matched, there, added)
    known = {c.name for c in columns} - set(added)
    checks, extras = _checks(connection, oid, there, known)
    indexes = _indexes(connection, oid, {c.name: c for c in columns if c.name in known})
    target = Target(TableName(namespace, relation), columns, checks, extras, indexes, kind == "p", added)
    order = upsert.order_by and (matched[upsert.order_by] or upsert.order_by)
    by_bytes = any(c.name == order and c.type.base in TEXTS and not c.type.is_array for c in columns)
    renamed = Upsert(tuple(matched[c] or c for c in upsert.key), order, by_bytes=by_bytes)
    _try(connection, sink, target, renamed)
    return target, renamed, left_out


def _new(
    connection: Any,
    sink: str,
    name: TableName,
    table: TableName,
    schema: pa.Schema,
    missing: Sequence[str],
    upsert: Upsert,
    change: str,
    there: Collection[str],
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Columns that the table does not have: those to add, and those to leave out."""
    needed = (*upsert.key, *filter(None, [upsert.order_by]))
    if not missing:
        return (), ()
    if change == DISCARD or (change == EVOLVE and set(missing) & set(needed)):
        return (), discarded(sink, f"table {name}", missing, needed)
    statements = [add_column(table, column, column_type(column, schema.field(column).type)) for column in missing]
    if change == FREEZE:
        raise ConfigError(
            f"sink {sink!r}: table {name} has no column {', '.join(missing)}: {ways(statements)}. The table has "
            f"{', '.join(there)}"
        )
    owns = "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(%s)"
    if not connection.execute(owns, (table.sql,)).fetchone()[0]:
        raise ConfigError(
            f"sink {sink!r}: schema_change='evolve' has to add column {', '.join(missing)} to table {table}, which "
            f"only its owner may: let the owner run {'; '.join(statements)}, or be a member of the owner's role"
        )
    return tuple(missing), ()


def _match(source: str, there: dict[str, _Found]) -> str | None:
    """The same name, else the only one that differs in upper and lower case: to Spark they are one."""
    if source in there:
        return source
    alike = [column for column in there if column.lower() == source.lower()]
    return alike[0] if len(alike) == 1 else None


def _columns(
    sink: str,
    name: TableName,
    schema: pa.Schema,
    matched: dict[str, str | None],
    there: dict[str, _Found],
    added: Collection[str] = (),
) -> tuple[Column, ...]:
    columns, wrong = [], []
    for field in schema:
        column = matched[field.name]
        assert column is not None
        found = None if column in added else there[column]
        kind = created_type(column, field.type) if found is None else found.type
        how = wire(field.type, kind)
        if isinstance(how, str):
            wrong.append(f"{field.name} is {field.type} in the DataFrame and {kind.spelled} in the table: {how}")
        else:
            required, collation = (False, None) if found is None else (found.required, found.collation)
            columns.append(Column(column, field.name, kind, how, required, collation))
    if wrong:
        raise ConfigError(f"sink {sink!r}: columns do not fit table {name}: {'; '.join(wrong)}")
    return tuple(columns)


def _checks(
    connection: Any, table: int, there: dict[str, _Found], given: Collection[str]
) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str, bool], ...]]:
    """The CHECKs that staged rows can be put to, and the columns that these and generated columns need."""
    extras: dict[str, str] = {}

    def have(columns: Sequence[str]) -> bool:
        """Whether a staging table has all of these, or can be given them."""
        needed: dict[str, str] = {}
        for name in columns:
            if name in given or name in extras:
                continue
            declared = there[name].extra()
            if declared is None or not have(there[name].uses):
                return False
            needed[name] = declared
        extras.update(needed)
        return True

    for column in there.values():
        if column.generated:
            have([column.name])
    checks = []
    for name, text, over in connection.execute(_CHECKS, (table,)).fetchall():
        if over and ".*" not in text and have(over):
            checks.append((name, text))
    return tuple(checks), tuple((name, declared, there[name].required) for name, declared in extras.items())


def _indexes(connection: Any, table: int, given: Mapping[str, Column]) -> tuple[Index, ...]:
    found = []
    lengths = dict(connection.execute(_LENGTHS, (table,)).fetchall())
    for name, definition, columns, expressions, only, *how in connection.execute(_INDEXES, (table,)).fetchall():
        if set(columns) <= set(given):
            where = f" FILTER (WHERE {only})" if only else ""
            counts = tuple(f"count({expression}){where}" for expression in expressions)
            index = Index(name, definition, frozenset(columns), counts)
            found.append(limited(index, [(given[c], lengths[c]) for c in columns], *how))
    return tuple(found)


def _try(connection: Any, sink: str, target: Target, upsert: Upsert) -> None:
    """Let the server check the statement of the commit: permission, generated columns, a unique index for the key."""
    psycopg, _, _ = drivers()
    nothing = ", ".join(f"NULL::{c.type.spelled} AS {quote(c.name)}" for c in target.there)
    rows = f"(SELECT {nothing}, NULL::bigint AS {quote(ROW)} WHERE false) AS nothing"
    names = [column.name for column in target.there]
    try:
        connection.execute("EXPLAIN " + insert_statement(target.name, names, rows, upsert, quote(ROW)))
    except (psycopg.ProgrammingError, psycopg.NotSupportedError, psycopg.OperationalError) as error:
        if error.sqlstate is None or error.sqlstate[:2] not in ("42", "0A"):
            raise
        told = f"sink {sink!r} cannot write into table {target.name}: {said(error)}"
        if error.sqlstate == "42P10":
            raise MissingIndexError(f"{told}. The table needs a unique index on ({', '.join(upsert.key)})") from error
        raise ConfigError(told) from error
