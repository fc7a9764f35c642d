"""Prepared transactions: each task's rows are one, and the driver ends it. Mode `two-phase`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run
from holdfast.connectors.postgres.ledger import Ledger
from holdfast.connectors.postgres.names import literal, make_gid, names_digest, new_staging_table, parse_gid, quote
from holdfast.connectors.postgres.server import RAISE_PREPARED, Server, blame, drivers
from holdfast.connectors.postgres.table import Target
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task
from holdfast.errors import ConfigError
from holdfast.sinks.ledger import check_ledger

logger = logging.getLogger("holdfast")
KIND = "prepared"
#: what the server answers about a prepared transaction that is not there any more
_GONE = "42704"


class PreparingWriter:
    """One task's rows in a transaction that outlives its connection.

    Rows go straight into the table, or, where a column has to be cast by the server, through a table that this same
    transaction creates and drops (a temporary one could not be prepared).
    """

    kind = KIND

    def __init__(self, server: Server, ledger: Ledger, run: Run, target: Target, task: Task) -> None:
        self._server, self._ledger, self._run, self._target, self._task = server, ledger, run, target, task
        self._gid = make_gid(task)
        self._rows = 0
        self._may_be_prepared = False
        self._through = (ledger.schema, new_staging_table()) if target.cast_by_server else None
        self._session = server.session(plain=target.plain)
        try:
            if self._through is not None:
                self._execute(target.staging_statement(*self._through))
        except BaseException:
            self._session.close()
            raise

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        name = self._target.name
        schema, table = self._through or (str(name.schema), name.table)
        try:
            self._session.ingest(schema, table, self._target.to_wire(batch), own=self._through is not None)
        except self._session.error as error:
            raise blame(self._task.sink, name, error) from None
        self._rows += batch.num_rows

    def prepare(self) -> dict[str, Any]:
        """Add the ledger row, which says later that this very transaction was committed, and prepare."""
        if self._through is not None:
            schema, table = self._through
            self._execute(self._target.move_statement(schema, table))
            self._execute(f"DROP TABLE {quote(schema)}.{quote(table)}")
        self._execute(self._ledger.add(self._run, self._task.checkpoint_id, self._rows, self._gid))
        self._may_be_prepared = True
        self._execute(f"PREPARE TRANSACTION {literal(self._gid)}")
        self._session.keep()
        return {"version": 1, "kind": KIND, "gid": self._gid, "subtask": self._task.subtask, "rows": self._rows}

    def abort(self) -> None:
        """Roll back, prepared or not."""
        self._session.close()
        if self._may_be_prepared:
            with self._server.connect() as connection:
                _end(connection, "ROLLBACK", self._gid)

    def _execute(self, statement: str) -> None:
        try:
            self._session.execute(statement)
        except self._session.error as error:
            raise blame(self._task.sink, self._target.name, error) from None


def check_server(connection: Any, sink: str) -> None:
    """Prepared transactions are switched off unless somebody switched them on."""
    limit = int(connection.execute("SHOW max_prepared_transactions").fetchone()[0])
    if limit == 0:
        raise ConfigError(f"sink {sink!r}: the server has max_prepared_transactions = 0. {RAISE_PREPARED}")


def commit(ledger: Ledger, run: Run, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]]) -> Outcome:
    """End every subtask's transaction; for one that is not there any more, its ledger row tells whether it committed.

    A reader can see the rows of some subtasks before those of the others.
    """
    ordered = sorted(committables, key=lambda c: c["subtask"])
    with ledger.server.connect() as connection:
        known = ledger.read(connection, run.pipeline)
        if any(lineage != run.lineage for lineage in known) and not run.take_over:
            check_ledger(run, ledger.where, known)
        gone = []
        for committable in ordered:
            with faults.point("commit.subtask"):
                if not _end(connection, "COMMIT", committable["gid"]):
                    gone.append(committable["gid"])
        # A later checkpoint in the ledger was prepared after this one was complete, whatever was pruned since.
        in_doubt = gone if known.get(run.lineage, -1) <= checkpoint_id else []
        if in_doubt and set(in_doubt) - ledger.parts(connection, run, in_doubt):
            return Outcome.LOST
        gids = [c["gid"] for c in ordered]
        ledger.server.in_one_go(connection, ledger.adopt(run, gids), ledger.prune(run, checkpoint_id))
    return Outcome.ALREADY_COMMITTED if len(gone) == len(ordered) else Outcome.COMMITTED


def sweep(connection: Any, run: Run, sink: str, generation: int, kept: Collection[str]) -> None:
    """Roll back this sink's prepared transactions of this and older generations that no record names."""
    mine = names_digest(run.pipeline, sink)
    listed = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    for (text,) in connection.execute(listed).fetchall():
        gid = parse_gid(text)
        if (
            gid is not None
            and (gid.names, gid.lineage) == (mine, run.lineage)
            and gid.generation <= generation
            and text not in kept
        ):
            try:
                _end(connection, "ROLLBACK", text)
            except drivers()[0].errors.ObjectNotInPrerequisiteState:
                logger.info("prepared transaction %s is busy, so it is rolled back later", text)


def _end(connection: Any, how: str, gid: str) -> bool:
    """Whether the prepared transaction was there to be ended."""
    psycopg, _, _ = drivers()
    try:
        connection.execute(f"{how} PREPARED {literal(gid)}")
    except psycopg.Error as error:
        if error.sqlstate != _GONE:
            raise
        return False
    return True
