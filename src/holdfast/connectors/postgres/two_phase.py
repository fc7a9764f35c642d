"""Prepared transactions: each task's rows are one, and the driver ends it. Mode `two-phase`."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.ports import Run
from holdfast.connectors.postgres.ledger import Ledger
from holdfast.connectors.postgres.names import literal, make_gid, names_digest, parse_gid
from holdfast.connectors.postgres.server import Server, drivers
from holdfast.connectors.postgres.table import Target
from holdfast.connectors.postgres.trouble import RAISE_PREPARED
from holdfast.connectors.postgres.writer import Writer
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task
from holdfast.errors import ConfigError, LostError, SinkError

logger = logging.getLogger("holdfast")
KIND = "prepared"
#: what the server answers about a prepared transaction that is not there any more
_GONE = "42704"
#: commits between two looks for what the ledger may forget: to forget is one more write to disk
PRUNED = 20


@dataclass(frozen=True)
class Known:
    """What a run has committed last, so the server must know it."""

    checkpoint_id: CheckpointId = -1
    #: its prepared transactions, in this mode
    gids: frozenset[str] = frozenset()
    #: how many commits there were in this mode
    commits: int = 0


class PreparingWriter(Writer):
    """One task's rows in a transaction that outlives its connection.

    Rows go straight into the table, or, where a column has to be cast by the server, through a table of the sink's (a
    temporary one could not be prepared).
    """

    def __init__(self, server: Server, ledger: Ledger, run: Run, target: Target, task: Task, raw: str | None) -> None:
        self._ledger, self._run = ledger, run
        self._gid = make_gid(task)
        self._may_be_prepared = False
        table = (str(target.name.schema), target.name.table)
        super().__init__(
            server, target, task, into=table, raw=None if raw is None else (ledger.schema, raw), staged=False
        )

    def prepare(self) -> dict[str, Any]:
        """Add the ledger row, which says later that this very transaction was committed, and prepare."""
        self._cast_rows()
        self._execute(self._ledger.add(self._run, self._task.checkpoint_id, self._rows, self._gid))
        self._may_be_prepared = True
        self._execute(f"PREPARE TRANSACTION {literal(self._gid)}")
        self._session.keep()
        return {
            "version": 2,
            "kind": KIND,
            "mode": "two-phase",
            "gid": self._gid,
            "schema": self._ledger.schema,
            "target": [self._target.name.schema, self._target.name.table],
            "subtask": self._task.subtask,
            "rows": self._rows,
        }

    def abort(self) -> None:
        """Roll back, prepared or not."""
        self._session.close()
        if self._may_be_prepared:
            with self._server.connect() as connection:
                _end(connection, "ROLLBACK", self._gid)


def check_server(connection: Any, sink: str) -> None:
    """Prepared transactions are switched off unless somebody switched them on."""
    limit = int(connection.execute("SHOW max_prepared_transactions").fetchone()[0])
    if limit == 0:
        raise ConfigError(f"sink {sink!r}: the server has max_prepared_transactions = 0. {RAISE_PREPARED}")


def commit(
    ledger: Ledger,
    run: Run,
    checkpoint_id: CheckpointId,
    committables: Sequence[Mapping[str, Any]],
    last: Known,
) -> Outcome:
    """End every subtask's transaction; for one that is not there any more, its ledger row tells whether it committed.

    A reader can see the rows of some subtasks before those of the others. `last`: what this run committed before.
    """
    ordered = sorted(committables, key=lambda c: c["subtask"])
    with ledger.server.connect() as connection:
        known = ledger.read(connection, run.pipeline)
        if any(lineage != run.lineage for lineage in known) and not run.take_over:
            ledger.check(run, known)
        if known.get(run.lineage, -1) < last.checkpoint_id:
            ledger.check_known(run, known, last.checkpoint_id)
        if last.gids - ledger.parts(connection, run, sorted(last.gids)):
            # An older copy that has some of its subtasks: it was made while they were committed.
            ledger.check_known(run, {run.lineage: last.checkpoint_id - 1}, last.checkpoint_id)
        gone = _commit_all(ledger.server, connection, ordered)
        upkeep = []
        made_by = [parse_gid(c["gid"]) for c in ordered]
        if any(gid is None or gid.lineage != run.lineage for gid in made_by):
            upkeep.append(ledger.adopt(run, [c["gid"] for c in ordered]))
        if last.commits % PRUNED == 0:
            upkeep.append(ledger.prune(run, checkpoint_id))
        if upkeep:
            connection.together(*upkeep)
        # A later checkpoint in the ledger was prepared after this one was complete, whatever was pruned since.
        in_doubt = gone if known.get(run.lineage, -1) <= checkpoint_id else []
        done = ledger.parts(connection, run, [c["gid"] for c in in_doubt]) if in_doubt else set()
    lost = [c for c in in_doubt if c["gid"] not in done]
    if lost:
        raise LostError(
            f"sink {ledger.sink!r} ({ledger.server}): {len(lost)} of {len(ordered)} prepared transactions of "
            f"checkpoint {checkpoint_id} ({sum(c['rows'] for c in lost)} rows, subtasks "
            f"{', '.join(str(c['subtask']) for c in lost)}) are gone without having been committed: somebody rolled "
            "them back, or the database was restored from a backup",
            lost,
        )
    return Outcome.ALREADY_COMMITTED if len(gone) == len(ordered) else Outcome.COMMITTED


def _commit_all(server: Server, connection: Any, ordered: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those that were not there to be committed. By two connections: each commit waits for the server's disk."""

    def end(connection: Any, some: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        gone = []
        for committable in some:
            with faults.point("commit.subtask"):
                if not _end(connection, "COMMIT", committable["gid"]):
                    gone.append(committable)
        return gone

    def beside(some: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]] | None:
        connected = False
        try:
            with server.connect(starting=True) as another:
                connected = True
                return end(another, some)
        except (SinkError, ConfigError) as error:
            if connected:
                raise
            logger.debug("the server lets no second connection in, so one commits all: %s", error)
            return None

    if len(ordered) < 2:
        return end(connection, ordered)
    with ThreadPoolExecutor(1, "holdfast-commit") as thread:
        others = thread.submit(beside, ordered[1::2])
        gone = end(connection, ordered[::2])
        found = others.result()
    return gone + (end(connection, ordered[1::2]) if found is None else found)


def prepared(connection: Any, committables: Sequence[Mapping[str, Any]]) -> set[str]:
    """The gids of those of them that the server still holds."""
    held = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() AND gid = ANY (%s)"
    return {row[0] for row in connection.execute(held, ([c["gid"] for c in committables],)).fetchall()}


def sweep(connection: Any, run: Run, sink: str, generation: int, kept: Collection[str]) -> None:
    """Roll back this sink's prepared transactions of this and older generations that no record names.

    A take-over also rolls back those of other lineages: they would hold their locks for ever.
    """
    mine = names_digest(run.pipeline, sink)
    listed = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    for (text,) in connection.execute(listed).fetchall():
        gid = parse_gid(text)
        if gid is None or gid.names != mine or text in kept:
            continue
        if gid.generation <= generation if gid.lineage == run.lineage else run.takes_from(gid.lineage):
            try:
                _end(connection, "ROLLBACK", text)
            except drivers()[0].errors.ObjectNotInPrerequisiteState:
                logger.info("prepared transaction %s is busy, so it is rolled back later", text)


def _end(connection: Any, how: str, gid: str) -> bool:
    """Whether the prepared transaction was there to be ended."""
    psycopg, _, _ = drivers()
    try:
        connection.alone(f"{how} PREPARED {literal(gid)}")
    except psycopg.Error as error:
        if error.sqlstate != _GONE:
            raise
        return False
    return True
