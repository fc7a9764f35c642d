"""Rows in the write-ahead log until one task copies a whole checkpoint into the table: mode `ledger`, stage `log`.

The server writes each row once. A task proves its rows by itself (`provable.py`) and seals them; the commit is one
transaction of one task: COPY of every subtask's file, then the ledger row. The ledger comes last, in one message with
COMMIT: a task that is paused or cut off in the middle of its rows holds no lock that another one needs, and whoever
comes second finds the checkpoint done. So it does no harm that Spark runs such a task twice (rule 9).
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks, beside
from holdfast.checkpoint.storage import open_storage
from holdfast.connectors.postgres import trouble
from holdfast.connectors.postgres.guard import HungError
from holdfast.connectors.postgres.ledger import BEHIND, REFUSED, Ledger
from holdfast.connectors.postgres.names import TableName, literal, names_digest
from holdfast.connectors.postgres.provable import Proof
from holdfast.connectors.postgres.session import Session
from holdfast.connectors.postgres.table import Target, add_missing
from holdfast.connectors.postgres.writer import to_wire
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task
from holdfast.errors import RecordError
from holdfast.sinks import wal

logger = logging.getLogger("holdfast")
KIND = "logged"
#: The ledger's word for these rows where others of the same checkpoint were staged: rows of a report that are sent
#: again come as they were sealed, whatever the options are by then.
PART = "log"
#: what the server says when something held a lock for too long
_LOCKED = "55P03"
#: deliveries that this driver began: of two, the earlier one is of a task that nobody waits for any more
_numbers = itertools.count(1)


class LoggedWriter:
    """One task's rows on their way into the log; no connection is needed."""

    def __init__(self, schema: str, target: Target, proof: Proof, task: Task) -> None:
        self._schema, self._target, self._proof, self._task = schema, target, proof, task
        self._log = wal.LogWriter(task)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows that the table will take."""
        rows = to_wire(self._target, self._task.sink, batch)
        self._proof.check(rows)
        self._log.write(rows)

    def prepare(self) -> dict[str, Any]:
        """Seal them; the committable says all that the commit needs (rule 16)."""
        target = self._target
        return {
            **self._log.seal(),
            "kind": KIND,
            "mode": "ledger",
            "schema": self._schema,
            "target": [target.name.schema, target.name.table],
            "columns": target.names,
            "add": target.add,
        }

    def abort(self) -> None:
        """Leave nothing behind."""
        self._log.discard()


def commit(
    ledger: Ledger,
    run: Run,
    checkpoint_id: CheckpointId,
    committables: Sequence[Mapping[str, Any]],
    known: CheckpointId,
    part: str,
    tasks: Tasks,
) -> Outcome:
    """Let one task copy the rows of all subtasks and add the ledger row, in one transaction.

    It waits for the server most of the time; in a slot of a local Spark it would hold up the next checkpoint's tasks.
    """
    handles = sorted(committables, key=lambda c: c["subtask"])
    deliver = Deliver(ledger, run, checkpoint_id, known, part, next(_numbers))
    with wal.naming_lost(run.location, handles):
        return beside(tasks, deliver, handles)


@dataclass(frozen=True)
class Deliver:
    """Runs in a task: one transaction for all of a checkpoint's rows."""

    ledger: Ledger
    run: Run
    checkpoint_id: CheckpointId
    known: CheckpointId
    part: str = ""
    #: the driver's count of such tasks
    number: int = 0

    def __call__(self, handles: Sequence[Mapping[str, Any]]) -> Outcome:
        """Copy and commit them, if that is not done."""
        server = self.ledger.server
        session = server.session(plain=True)
        try:
            self._transact(session, handles)
        except HungError as error:
            session.close()
            raise server.hung(error) from None
        except session.error as error:
            session.close()
            return self._judge(", ".join(sorted({str(_target(h)) for h in handles})), error)
        except BaseException:
            session.close()
            raise
        session.keep()
        return Outcome.COMMITTED

    def _transact(self, session: Session, handles: Sequence[Mapping[str, Any]]) -> None:
        ledger, run = self.ledger, self.run
        refuse = ledger.refuse(run, self.checkpoint_id, self.known, self.part)
        # A first look without the lock: most of what is done already need not be copied to find out.
        session.execute(f"SET LOCAL application_name = {literal(_name(run, ledger.sink, self.number))}; {refuse}")
        for (target, _), mine in itertools.groupby(handles, key=lambda h: (_target(h), h["columns"])):
            alike = list(mine)
            adding = dict.fromkeys(add_missing(target, *column) for handle in alike for column in handle["add"])
            session.execute("; ".join(adding) or "SELECT")  # which also ends the COPY before
            for handle in alike:
                self._copy(session, target, handle)
        rows = sum(handle["rows"] for handle in handles)
        with faults.point("commit.subtask"):
            session.execute(
                "; ".join(
                    (
                        ledger.lock(run),
                        refuse,
                        ledger.add(run, self.checkpoint_id, rows, self.part),
                        ledger.prune(run, self.checkpoint_id),
                        "COMMIT",
                    )
                )
            )

    def _copy(self, session: Session, target: TableName, handle: Mapping[str, Any]) -> None:
        rows = 0
        for batch in wal.read_log(self.run.location, handle):
            session.ingest(str(target.schema), target.table, batch)
            rows += batch.num_rows
        if rows != handle["rows"]:
            raise RecordError(
                f"write-ahead file {self.run.location}/{handle['handle']} has {rows} rows, and {handle['rows']} were "
                "sealed: nothing of it was delivered. Restore it from a copy of the checkpoint location"
            )

    def _judge(self, target: str, error: Exception) -> Outcome:
        """What a failure means: done before, the rows' fault, the table's, or worth another try."""
        ledger, run = self.ledger, self.run
        found = trouble.read(error)
        if found.state == _LOCKED:
            with ledger.server.connect(target) as connection:
                _clear_the_way(connection, run, ledger.sink, self.number)
        # One that ran beside this one may have committed the very rows that these collide with.
        elif found.state in (REFUSED, BEHIND) or found.is_about_rows or found.is_about_set_up:
            with ledger.server.connect(target) as connection:
                outcome = ledger.judge(connection, run, self.checkpoint_id, self.known, self.part)
            if outcome is not None:
                return outcome
        where, kept = f"sink {ledger.sink!r} ({ledger.server})", f"the log at {run.location}"
        told = trouble.after_decision(where, target, self.checkpoint_id, found, kept)
        raise (told or ledger.server.blame(target, error)) from error


def _target(handle: Mapping[str, Any]) -> TableName:
    """Where rows go, as it was decided (rule 16)."""
    schema, table = handle["target"]
    return TableName(schema, table)


def _name(run: Run, sink: str, number: int) -> str:
    """What the server's list of sessions shows of a delivery, while it lasts."""
    return f"holdfast {names_digest(run.pipeline, sink, run.lineage)} {run.generation}.{number}"


def _clear_the_way(connection: Any, run: Run, sink: str, number: int) -> None:
    """End what earlier tasks of this sink have left open: rows of theirs, not committed, can hold the same keys.

    Such a task was paused or cut off, and nobody waits for it: its driver is fenced, or has begun another one since. A
    twin of this one, with the same number, is left alone.
    """
    mine = _name(run, sink, number)
    sessions = "SELECT pid, application_name FROM pg_stat_activity WHERE usename = current_user"
    for pid, name in connection.execute(f"{sessions} AND datname = current_database()").fetchall():
        match = re.fullmatch(re.escape(mine.rpartition(" ")[0]) + r" (\d+)\.(\d+)", name or "")
        if match and (int(match[1]), int(match[2])) < (run.generation, number):
            logger.warning(
                "sink %s: session %s of an earlier delivery (%s) is in the way and is ended", sink, pid, name
            )
            connection.execute("SELECT pg_terminate_backend(%s)", (pid,))


def missing(location: str, committables: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of them whose file is not in the log, whole."""
    storage = open_storage(location)
    return [c for c in committables if not wal.is_there(storage, c)]
