"""Staging tables of earlier versions: one for each task, with the task's token as its comment.

A start finishes what is decided and drops what is not; nothing makes new ones.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.ports import Run
from holdfast.connectors.postgres.names import quote
from holdfast.connectors.postgres.server import drivers
from holdfast.core.naming import parse_token

logger = logging.getLogger("holdfast")
#: Tables dropped in one transaction: each takes a few locks, and a server has few thousand.
_AT_ONCE = 50
#: How long a drop waits for its locks.
_DROP_WAIT = "1s"
_LIST = """
SELECT c.relname, d.description FROM pg_class c
JOIN pg_description d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass AND d.objsubid = 0
WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r' AND c.relname ~ '^stage_[0-9a-f]{32}$'"""


def is_legacy(committable: Mapping[str, Any]) -> bool:
    """Whether its rows are in a table of their own."""
    return bool(committable["version"] <= 2)


def sweep(
    connection: Any,
    run: Run,
    sink: str,
    schemas: Collection[str],
    generation: int,
    kept: Collection[str],
) -> None:
    """Drop this sink's tables of this and older generations that no record names; see `staging.sweep`."""
    for schema in schemas:
        undecided = []
        for table, comment in connection.execute(_LIST, (quote(schema),)).fetchall():
            task = parse_token(comment)
            if task is None or table in kept or (task.pipeline, task.sink) != (run.pipeline, sink):
                continue
            if task.generation <= generation if task.lineage == run.lineage else run.takes_from(task.lineage):
                undecided.append(table)
        drop(connection, schema, undecided)


def drop(connection: Any, schema: str, tables: Sequence[str]) -> None:
    """What somebody reads, such as a backup that reads for hours, is left to a later start."""
    psycopg, _, _ = drivers()
    for start in range(0, len(tables), _AT_ONCE):
        names = ", ".join(f"{quote(schema)}.{quote(table)}" for table in tables[start : start + _AT_ONCE])
        try:
            connection.together(f"SET LOCAL lock_timeout = '{_DROP_WAIT}'", f"DROP TABLE IF EXISTS {names}")
        except psycopg.errors.LockNotAvailable:
            logger.info("staging tables are being read, so they are dropped later: %s", names)
