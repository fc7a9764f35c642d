"""Rows in staging tables until the driver moves them: modes `ledger` and `upsert`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run
from holdfast.connectors.postgres.names import new_staging_table, quote
from holdfast.connectors.postgres.server import Server, drivers
from holdfast.connectors.postgres.table import Target, Upsert, comment_statement
from holdfast.connectors.postgres.writer import Writer
from holdfast.core.naming import Task, parse_token

logger = logging.getLogger("holdfast")
KIND = "staged"
#: Tables dropped in one transaction: each takes a few locks, and a server has few thousand.
_AT_ONCE = 50
#: How long a drop waits for its locks.
_DROP_WAIT = "1s"
_LIST = """
SELECT c.relname, d.description FROM pg_class c
JOIN pg_description d ON d.objoid = c.oid AND d.classoid = 'pg_class'::regclass AND d.objsubid = 0
WHERE c.relnamespace = to_regnamespace(%s) AND c.relkind = 'r' AND starts_with(c.relname, 'stage_')"""


class StagingWriter(Writer):
    """One task's rows on their way into a staging table of their own, in one transaction."""

    def __init__(self, server: Server, schema: str, target: Target, upsert: Upsert, task: Task) -> None:
        self._schema, self._table, self._upsert = schema, new_staging_table(), upsert
        self._may_exist = False
        super().__init__(server, target, task, (schema, self._table))
        try:
            self._execute(target.staging_statement(schema, self._table))
            self._execute(comment_statement(schema, self._table, task.token))
        except BaseException:
            self._session.close()
            raise

    def prepare(self) -> dict[str, Any]:
        """Make the staging table durable; the committable says all that the commit needs (rule 16)."""
        target, key = self._target, self._upsert.key
        for statement in target.cast_statements(self._schema, self._table):
            self._cast(statement)
        for statement, about in target.proofs(self._schema, self._table, self._long):
            self._execute(statement, about)
        self._may_exist = True
        self._execute("COMMIT")
        self._session.keep()
        return {
            "version": 2,
            "kind": KIND,
            "mode": "upsert" if key else "ledger",
            "schema": self._schema,
            "table": self._table,
            "columns": target.names,
            "target": [target.name.schema, target.name.table],
            "key": list(key),
            "order_by": self._upsert.order_by,
            "subtask": self._task.subtask,
            "rows": self._rows,
        }

    def abort(self) -> None:
        """Leave nothing behind."""
        self._session.close()
        if self._may_exist:
            with self._server.connect() as connection:
                drop(connection, self._schema, [self._table])


def find_duplicate(server: Server, key: Sequence[str], committables: Sequence[Mapping[str, Any]]) -> str | None:
    """A key that occurs twice in a checkpoint, as text, or None."""
    columns = ", ".join(map(quote, key))
    rows = " UNION ALL ".join(f"SELECT {columns} FROM {sql_name(c)}" for c in committables)  # noqa: S608
    shown = ", ".join(f"{quote(column)}::text" for column in key)
    with server.connect() as connection:
        found = connection.execute(
            f"SELECT {shown} FROM ({rows}) AS rows GROUP BY {columns} HAVING count(*) > 1 LIMIT 1"  # noqa: S608
        ).fetchone()
    return None if found is None else ", ".join(f"{k}={v}" for k, v in zip(key, found, strict=True))


def missing(connection: Any, committables: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of them whose staging table is gone."""
    names = [sql_name(c) for c in committables]
    gone = "SELECT name FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL"
    found = {row[0] for row in connection.execute(gone, (names,)).fetchall()}
    return [c for c, name in zip(committables, names, strict=True) if name in found]


def rows_of(server: Server, committables: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """The rows of the staging tables that are there, read back; types that Arrow does not have come as text."""
    _, manager, _ = drivers()
    with server.connect() as connection:
        gone = missing(connection, committables)
    for committable in committables:
        if committable in gone:
            logger.warning("the rows of staging table %s cannot be read: it is gone", sql_name(committable))
            continue
        columns = ", ".join(map(quote, committable["columns"]))
        try:
            with closing(server.adbc_connection()) as connection, closing(manager.AdbcStatement(connection)) as query:
                query.set_sql_query(f"SELECT {columns} FROM {sql_name(committable)}")  # noqa: S608
                stream, _ = query.execute_query()
                with pa.RecordBatchReader._import_from_c(stream.address) as reader:
                    for batch in reader:
                        yield _without_extensions(batch)
        except manager.Error as error:
            raise server.blame(sql_name(committable), error) from error


def _without_extensions(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Numbers of any length, enums and the like come as text with a note; the text is enough."""
    plain = [c.storage if isinstance(c.type, pa.BaseExtensionType) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(plain, names=batch.schema.names)


def sweep(
    connection: Any, run: Run, sink: str, schemas: Collection[str], generation: int, kept: Collection[str]
) -> None:
    """Drop this sink's staging tables of this and older generations that no record names.

    A take-over also drops those of other lineages, whose generations are not ours: nobody else will.
    """
    for schema in schemas:
        undecided = []
        for table, comment in connection.execute(_LIST, (quote(schema),)).fetchall():
            task = parse_token(comment)
            if task is None or table in kept or (task.pipeline, task.sink) != (run.pipeline, sink):
                continue
            if task.generation <= generation if task.lineage == run.lineage else run.take_over:
                undecided.append(table)
        drop(connection, schema, undecided)


def drop(connection: Any, schema: str, tables: Sequence[str]) -> None:
    """What somebody reads, such as a backup that reads for hours, is left to a later sweep."""
    psycopg, _, _ = drivers()
    for start in range(0, len(tables), _AT_ONCE):
        names = ", ".join(f"{quote(schema)}.{quote(table)}" for table in tables[start : start + _AT_ONCE])
        try:
            connection.execute(f"SET lock_timeout = '{_DROP_WAIT}'; DROP TABLE IF EXISTS {names}")
        except psycopg.errors.LockNotAvailable:
            logger.info("staging tables are being read, so they are dropped later: %s", names)


def sql_name(committable: Mapping[str, Any]) -> str:
    """The staging table, quoted."""
    return f"{quote(committable['schema'])}.{quote(committable['table'])}"
