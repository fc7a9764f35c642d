"""What both kinds of writers share: a task's statements, and the column to blame when the server cannot cast one."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.postgres.server import Server
from holdfast.connectors.postgres.session import Session
from holdfast.connectors.postgres.table import Target
from holdfast.core.naming import Task
from holdfast.errors import RowError

#: A page of an index holds at least three entries, of 2,704 bytes each at most.
_LONG = 500


class Writer:
    """One task's rows on their way into one transaction, through a table of their own where `stage` names one."""

    def __init__(self, server: Server, target: Target, task: Task, stage: tuple[str, str] | None) -> None:
        self._server, self._target, self._task, self._stage = server, target, task, stage
        self._rows = 0
        indexed = {name for index in target.indexes for name in index.columns}
        self._watched = [c.name for c in target.columns if c.name in indexed and c.wire.arrow in _BYTES]
        self._long: set[str] = set()
        self._session: Session = server.session(plain=target.plain)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        schema, table = self._stage or (str(self._target.name.schema), self._target.name.table)
        rows = self._to_wire(batch)
        try:
            self._session.ingest(schema, table, rows, own=self._stage is not None)
        except self._session.error as error:
            raise self._server.blame(self._target.name, error) from None
        self._rows += batch.num_rows
        if self._stage is not None:
            for name in self._watched:
                if (pc.max(pc.binary_length(rows.column(name))).as_py() or 0) > _LONG:
                    self._long.add(name)

    def prepare(self) -> dict[str, Any]:
        """Make the rows durable but not visible."""
        raise NotImplementedError

    def abort(self) -> None:
        """Leave nothing behind."""
        raise NotImplementedError

    def _to_wire(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return self._target.to_wire(batch)
        except RowError as error:
            raise RowError(
                f"sink {self._task.sink!r}: a row does not go into table {self._target.name}: {error}. Change the "
                "query or the table, or filter such rows out"
            ) from None

    def _execute(self, statement: str, about: str = "") -> None:
        """One statement; `about`: what it is about, for the error."""
        try:
            self._session.execute(statement)
        except self._session.error as error:
            raise self._server.blame(self._target.name, error, about) from None

    def _cast(self, statement: str) -> None:
        """A statement that puts staged text into other types; what fails is tried again column by column."""
        self._execute("SAVEPOINT staged")
        try:
            self._session.execute(statement)
        except self._session.error as error:
            for column in self._target.cast_by_server:
                self._execute("ROLLBACK TO SAVEPOINT staged")
                assert self._stage is not None
                self._execute(self._target.cast_statement(*self._stage, [column]), f"column {column.source!r}")
            raise self._server.blame(self._target.name, error) from None


_BYTES = (pa.string(), pa.binary())
