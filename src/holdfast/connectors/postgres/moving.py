"""The commit of staged rows: all of a checkpoint into the table and its ledger row, in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.ports import Run
from holdfast.connectors.postgres import trouble
from holdfast.connectors.postgres.ledger import REFUSED, Ledger
from holdfast.connectors.postgres.names import TableName
from holdfast.connectors.postgres.server import drivers
from holdfast.connectors.postgres.staging import drop, missing, sql_name
from holdfast.connectors.postgres.table import Upsert, insert_statement
from holdfast.core.model import CheckpointId, Outcome
from holdfast.errors import ConfigError, LostError, RowError
from holdfast.sinks.ledger import check_ledger

#: What a committable of version 1 does not say: the table and what is replaced, as the options have it now.
Options = Callable[[], tuple[TableName, Upsert]]


def commit(
    ledger: Ledger,
    run: Run,
    options: Options,
    checkpoint_id: CheckpointId,
    committables: Sequence[Mapping[str, Any]],
) -> Outcome:
    """Move the rows of all subtasks and add the ledger row; then drop the staging tables.

    A crash before the drop leaves them to the next sweep.
    """
    psycopg, _, _ = drivers()
    ordered = sorted(committables, key=lambda c: (c["subtask"], c["table"]))
    into = [_target(ledger.sink, checkpoint_id, c, options) for c in ordered]
    moves = [
        insert_statement(target, c["columns"], sql_name(c), upsert)
        for c, (target, upsert) in zip(ordered, into, strict=True)
    ]
    target = ", ".join(sorted({str(name) for name, _ in into}))
    with ledger.server.connect(target) as connection:
        outcome = Outcome.COMMITTED
        try:
            ledger.server.in_one_go(
                connection,
                ledger.lock(run),
                ledger.refuse(run, checkpoint_id),
                ledger.add(run, checkpoint_id, sum(c["rows"] for c in ordered)),
                *moves,
                ledger.prune(run, checkpoint_id),
            )
        except psycopg.Error as error:
            outcome = _judge(connection, ledger, run, target, checkpoint_id, ordered, error)
        for schema in {c["schema"] for c in ordered}:
            drop(connection, schema, [c["table"] for c in ordered if c["schema"] == schema])
    return outcome


def _target(
    sink: str, checkpoint_id: CheckpointId, committable: Mapping[str, Any], options: Options
) -> tuple[TableName, Upsert]:
    """Where rows go, as it was decided (rule 16)."""
    if committable["version"] >= 2:
        schema, table = committable["target"]
        return TableName(schema, table), Upsert(tuple(committable["key"]), committable["order_by"])
    target, upsert = options()
    if committable["target"] != str(target):
        raise ConfigError(
            f"sink {sink!r}: checkpoint {checkpoint_id} was decided for table {committable['target']} by an older "
            f"version of holdfast and is not there yet: start once more with that table, let it catch up, then change "
            f"it to {target}"
        )
    return target, upsert


def _judge(
    connection: Any,
    ledger: Ledger,
    run: Run,
    target: str,
    checkpoint_id: CheckpointId,
    committables: Sequence[Mapping[str, Any]],
    error: Any,
) -> Outcome:
    """What a failed move means: done before, lost, the rows' fault, the table's, or worth another try."""
    if error.sqlstate == REFUSED:
        known = ledger.read(connection, run.pipeline)
        if any(lineage != run.lineage for lineage in known):
            check_ledger(run, ledger.where, known)
        return Outcome.ALREADY_COMMITTED
    found = trouble.read(error)
    where = f"sink {ledger.sink!r} ({ledger.server})"
    if found.state == "42P01":
        lost = missing(connection, committables)
        if lost:
            raise LostError(
                f"{where}: {len(lost)} of {len(committables)} staging tables of checkpoint {checkpoint_id} "
                f"({sum(c['rows'] for c in lost)} rows, subtasks {', '.join(str(c['subtask']) for c in lost)}) are "
                "gone before they were committed: somebody dropped them, or the database was restored from a backup",
                lost,
            ) from error
    staged = f"{len(committables)} staging tables of schema {committables[0]['schema']}"
    if found.is_about_rows:
        by = "" if found.constraint is None else f" (constraint {found.constraint!r})"
        raise RowError(
            f"{where}: a row of checkpoint {checkpoint_id} does not go into table {target}: {found.said}{by}. Nothing "
            f"is lost, its rows are in {staged}: change the table so that it takes them, or remove what they collide "
            "with, then start the query again; or end it with `holdfast resolve`"
        ) from error
    if found.is_about_set_up:
        raise ConfigError(
            f"{where}: table {target} is not what it was when the query started: {found.said}. Nothing is lost, the "
            f"rows are in {staged}: put it right, then start the query again"
        ) from error
    raise error
