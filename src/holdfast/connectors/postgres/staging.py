"""Rows in staging tables until the driver moves them: modes `ledger` and `upsert`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run
from holdfast.connectors.postgres.ledger import REFUSED, Ledger
from holdfast.connectors.postgres.names import TableName, new_staging_table, quote
from holdfast.connectors.postgres.server import Server, blame, drivers, is_about_rows, said
from holdfast.connectors.postgres.table import Target, Upsert, comment_statement, insert_statement
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task, parse_token
from holdfast.errors import ConfigError, RowError
from holdfast.sinks.ledger import check_ledger

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


class StagingWriter:
    """One task's rows on their way into a staging table of their own, in one transaction."""

    kind = KIND

    def __init__(self, server: Server, schema: str, target: Target, task: Task) -> None:
        self._server, self._schema, self._target, self._task = server, schema, target, task
        self._table = new_staging_table()
        self._rows = 0
        self._may_exist = False
        self._session = server.session(plain=target.plain)
        try:
            self._execute(target.staging_statement(schema, self._table))
            self._execute(comment_statement(schema, self._table, task.token))
        except BaseException:
            self._session.close()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        try:
            self._session.ingest(self._schema, self._table, self._target.to_wire(batch), own=True)
        except self._session.error as error:
            raise blame(self._task.sink, self._target.name, error) from None
        self._rows += batch.num_rows

    def prepare(self) -> dict[str, Any]:
        """Make the staging table durable; the committable names it."""
        cast = self._target.cast_statement(self._schema, self._table)
        if cast is not None:
            self._execute(cast)
        self._may_exist = True
        self._execute("COMMIT")
        self._session.keep()
        return {
            "version": 1,
            "kind": KIND,
            "schema": self._schema,
            "table": self._table,
            "columns": self._target.names,
            "target": str(self._target.name),
            "subtask": self._task.subtask,
            "rows": self._rows,
        }

    def abort(self) -> None:
        """Leave nothing behind."""
        self._session.close()
        if self._may_exist:
            with self._server.connect() as connection:
                _drop(connection, self._schema, [self._table])

    def _execute(self, statement: str) -> None:
        try:
            self._session.execute(statement)
        except self._session.error as error:
            raise blame(self._task.sink, self._target.name, error) from None


def commit(
    ledger: Ledger,
    run: Run,
    target: TableName,
    upsert: Upsert,
    checkpoint_id: CheckpointId,
    committables: Sequence[Mapping[str, Any]],
) -> Outcome:
    """Move the rows of all subtasks and add the ledger row, in one transaction; then drop the staging tables.

    A crash before the drop leaves them to the next sweep.
    """
    psycopg, _, _ = drivers()
    ordered = sorted(committables, key=lambda c: c["subtask"])
    others = {c["target"] for c in ordered} - {str(target)}
    if others:
        raise ConfigError(
            f"sink {ledger.sink!r}: checkpoint {checkpoint_id} was decided for table {', '.join(sorted(others))} and "
            f"is not there yet: start once more with that table, let it catch up, then change it to {target}"
        )
    moves = [insert_statement(target, c["columns"], _sql(c), upsert) for c in ordered]
    rows = sum(c["rows"] for c in ordered)
    with ledger.server.connect() as connection:
        outcome = Outcome.COMMITTED
        try:
            ledger.server.in_one_go(
                connection,
                ledger.lock(run),
                ledger.refuse(run, checkpoint_id),
                ledger.add(run, checkpoint_id, rows),
                *moves,
                ledger.prune(run, checkpoint_id),
            )
        except psycopg.Error as error:
            outcome = _judge(connection, ledger, run, target, checkpoint_id, ordered, error)
        if outcome is not Outcome.LOST:
            for schema in {c["schema"] for c in ordered}:
                _drop(connection, schema, [c["table"] for c in ordered if c["schema"] == schema])
    return outcome


def _judge(
    connection: Any,
    ledger: Ledger,
    run: Run,
    target: TableName,
    checkpoint_id: CheckpointId,
    committables: Sequence[Mapping[str, Any]],
    error: Any,
) -> Outcome:
    """What a failed move means: done before, lost, the rows' fault, the table's, or worth another try."""
    if error.sqlstate == REFUSED:
        found = ledger.read(connection, run.pipeline)
        if any(lineage != run.lineage for lineage in found):
            check_ledger(run, ledger.where, found)
        return Outcome.ALREADY_COMMITTED
    if error.sqlstate == "42P01":
        names = [_sql(c) for c in committables]
        count = "SELECT count(*) FROM unnest(%s::text[]) AS name WHERE to_regclass(name) IS NULL"
        if connection.execute(count, (names,)).fetchone()[0]:
            return Outcome.LOST
    if is_about_rows(error):
        raise RowError(
            f"sink {ledger.sink!r}: a row of checkpoint {checkpoint_id} does not go into table {target}: {said(error)}"
            f". Nothing is lost, its rows are in {len(committables)} staging tables of schema "
            f"{committables[0]['schema']}: change the table so that it takes them, then start the query again"
        ) from error
    if (error.sqlstate or "").startswith("42"):
        raise ConfigError(
            f"sink {ledger.sink!r}: table {target} is not what it was when the query started: {said(error)}. Nothing "
            "is lost: put it right, then start the query again"
        ) from error
    raise error


def find_duplicate(server: Server, key: Sequence[str], committables: Sequence[Mapping[str, Any]]) -> str | None:
    """A key that occurs twice in a checkpoint, as text, or None."""
    columns = ", ".join(map(quote, key))
    rows = " UNION ALL ".join(f"SELECT {columns} FROM {_sql(c)}" for c in committables)  # noqa: S608
    shown = ", ".join(f"{quote(column)}::text" for column in key)
    with server.connect() as connection:
        found = connection.execute(
            f"SELECT {shown} FROM ({rows}) AS rows GROUP BY {columns} HAVING count(*) > 1 LIMIT 1"  # noqa: S608
        ).fetchone()
    return None if found is None else ", ".join(f"{k}={v}" for k, v in zip(key, found, strict=True))


def sweep(connection: Any, run: Run, sink: str, schema: str, generation: int, kept: Collection[str]) -> None:
    """Drop this sink's staging tables of this and older generations that no record names."""
    undecided = []
    for table, comment in connection.execute(_LIST, (quote(schema),)).fetchall():
        task = parse_token(comment)
        if (
            task is not None
            and (task.pipeline, task.sink, task.lineage) == (run.pipeline, sink, run.lineage)
            and task.generation <= generation
            and table not in kept
        ):
            undecided.append(table)
    _drop(connection, schema, undecided)


def _drop(connection: Any, schema: str, tables: Sequence[str]) -> None:
    """What somebody reads, such as a backup that reads for hours, is left to a later sweep."""
    psycopg, _, _ = drivers()
    for start in range(0, len(tables), _AT_ONCE):
        names = ", ".join(f"{quote(schema)}.{quote(table)}" for table in tables[start : start + _AT_ONCE])
        try:
            connection.execute(f"SET lock_timeout = '{_DROP_WAIT}'; DROP TABLE IF EXISTS {names}")
        except psycopg.errors.LockNotAvailable:
            logger.info("staging tables are being read, so they are dropped later: %s", names)


def _sql(committable: Mapping[str, Any]) -> str:
    return f"{quote(committable['schema'])}.{quote(committable['table'])}"
