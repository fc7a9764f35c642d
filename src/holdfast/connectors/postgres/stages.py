"""A sink's staging tables: made once, used again and again, and emptied when nobody needs a row of them.

Each checkpoint's tasks write into one of them. It is emptied by TRUNCATE, and only once it has grown (LARGE): until
then rows that were moved lie there and are passed over. TRUNCATE needs a moment in which nobody else looks at the
table, so while somebody does, such as a backup that reads for hours, rows go into a new one. Two are enough otherwise,
and are there from the start: one is moved while the next checkpoint's tasks write into the other. None is ever dropped,
so no `pg_dump` misses one. Where every table is published (FOR ALL TABLES) there is never a new one while a query runs,
since a subscriber that does not have it stops: there, a table that cannot be emptied grows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.connectors.postgres.names import PART, literal, quote, schema_lock, stage_prefix
from holdfast.connectors.postgres.table import Target
from holdfast.core.naming import escape

logger = logging.getLogger("holdfast")
#: Bytes above which a table is emptied: to read past so much costs some milliseconds.
LARGE = 8 << 20
#: Rows are gone soon, and autovacuum would be in TRUNCATE's way.
_SETTINGS = "autovacuum_enabled = false, toast.autovacuum_enabled = false"


@dataclass(frozen=True)
class Place:
    """The tables that the tasks of one checkpoint write into."""

    schema: str
    #: staged rows, until the commit moves them
    rows: str | None = None
    #: rows with texts that the server has yet to cast; nobody needs them after the task
    raw: str | None = None


class Stages:
    """The tables of one kind of one sink, by their number.

    `raw` ones are unlogged: a crash of the server ends every transaction that still needs their rows. Those with staged
    rows are not: a decided checkpoint outlives a crash.
    """

    def __init__(
        self,
        schema: str,
        role: str,
        pipeline: str,
        sink: str,
        target: Target,
        *,
        raw: bool,
        ordered: bool,
        deletes: bool,
    ) -> None:
        self._schema, self._raw = schema, raw
        self._columns = target.stage_columns(raw=raw, ordered=ordered, deletes=deletes)
        self._indexed = raw or target.asked_by_part
        # Of another role's tables we could not be sure that we may empty them.
        shape = f"{self._columns} {self._indexed} {role}"
        self._prefix = stage_prefix("raw" if raw else "stage", pipeline, sink, shape)
        self._comment = f"holdfast: rows of sink {escape(sink)} of pipeline {escape(pipeline)} on their way"
        self._sink, self._count = sink, 0
        # Rows in a `raw` table are nobody's once their task is over: none is moved while others are written.
        self._least = 1 if raw else 2

    def choose(self, connection: Any) -> str:
        """One that is small; if there is none, one that can be emptied now; if there is none, a new one.

        The first time all are made that are needed as a rule.
        """
        if not self._count:
            self._prepare(connection)
        names = [self._name(number) for number in range(self._count)]
        for attempt in range(2):
            for name, size in zip(names, self._sizes(connection, names), strict=True):
                if size is not None and size < LARGE:
                    return name
            if attempt == 0:
                for name in names:
                    empty(connection, self._schema, name)
        sizes = self._sizes(connection, names)
        missing = [n for n, size in enumerate(sizes) if size is None]
        if not missing and not self._raw and is_all_published(connection):
            return min(zip(sizes, names, strict=True))[1]
        number = missing[0] if missing else self._count
        self._create(connection, self._name(number))
        self._count = max(self._count, number + 1)
        return self._name(number)

    def _prepare(self, connection: Any) -> None:
        self._count = max(self._find(connection), self._least)
        names = [self._name(number) for number in range(self._least)]
        missing = [name for name, size in zip(names, self._sizes(connection, names), strict=True) if size is None]
        for name in missing:
            self._create(connection, name)
        if missing and not self._raw and is_all_published(connection):
            logger.warning(
                "sink %s: tables %s in schema %s are new, and a publication FOR ALL TABLES carries them: a subscriber "
                "that does not have them stops until it does (docs/postgres.md, logical replication)",
                self._sink,
                ", ".join(missing),
                self._schema,
            )

    def _name(self, number: int) -> str:
        return f"{self._prefix}{number}"

    def _find(self, connection: Any) -> int:
        """How many there are from earlier starts."""
        prefix = f"{quote(self._schema)}.{self._prefix}"
        found = connection.execute(
            "SELECT coalesce(max(n) + 1, 0) FROM generate_series(0, 99) n WHERE to_regclass(%s || n) IS NOT NULL",
            (prefix,),
        ).fetchone()
        return int(found[0])

    def _sizes(self, connection: Any, names: Sequence[str]) -> list[int | None]:
        full = [f"{quote(self._schema)}.{quote(name)}" for name in names]
        sizes = "SELECT pg_relation_size(to_regclass(name)) FROM unnest(%s::text[]) WITH ORDINALITY AS n (name, place)"
        return [row[0] for row in connection.execute(f"{sizes} ORDER BY place", (full,)).fetchall()]

    def _create(self, connection: Any, name: str) -> None:
        table = f"{quote(self._schema)}.{quote(name)}"
        kind = "UNLOGGED TABLE" if self._raw else "TABLE"
        steps = [f"CREATE {kind} IF NOT EXISTS {table} ({self._columns}) WITH ({_SETTINGS})"]
        if self._indexed:
            steps.append(f"CREATE INDEX IF NOT EXISTS {quote(name + '_part')} ON {table} ({quote(PART)})")
        steps.append(f"COMMENT ON TABLE {table} IS {literal(self._comment)}")
        # Two drivers that start at once would both find nothing, and one of them would fail.
        connection.together(schema_lock(self._schema), *steps)


def is_all_published(connection: Any) -> bool:
    """Whether logical replication carries every table that somebody makes."""
    return bool(connection.execute("SELECT EXISTS (SELECT FROM pg_publication WHERE puballtables)").fetchone()[0])


def empty(connection: Any, schema: str, name: str) -> None:
    """Empty a table that has grown, if nobody uses it or needs a row of it.

    With the lock in hand nobody is writing, and whose rows are still needed stands in table `staged`, since rows and
    entry are committed together: so no driver, however late, can take a row away that another one has yet to move. Rows
    in a `raw` table have no entry; they are needed only by a transaction that holds a lock.
    """
    table = f"{quote(schema)}.{quote(name)}"
    needed = f"SELECT FROM {quote(schema)}.staged WHERE stage = {literal(name)}"
    lock = f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE NOWAIT"
    body = (
        f"BEGIN IF pg_relation_size({literal(table)}) >= {LARGE} THEN {lock}; "
        f"IF NOT EXISTS ({needed}) THEN TRUNCATE {table}; END IF; END IF; "
        "EXCEPTION WHEN lock_not_available OR undefined_table OR insufficient_privilege THEN NULL; END"
    )
    connection.together(f"DO {literal(body)}")
