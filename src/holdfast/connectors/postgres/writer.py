"""What both kinds of writers share: a task's statements, and the column to blame when the server cannot cast one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.connectors.postgres.guard import HungError
from holdfast.connectors.postgres.lengths import Lengths
from holdfast.connectors.postgres.names import PART, ROW, new_part, quote
from holdfast.connectors.postgres.server import Server
from holdfast.connectors.postgres.session import Session
from holdfast.connectors.postgres.table import Target
from holdfast.core.naming import Task
from holdfast.errors import RowError
from holdfast.sinks.deletes import DELETED, marks


class Writer:
    """One task's rows on their way into one transaction: into table `into`, or first into `raw` to be cast there.

    In a staging table they carry the task's part, and their place among its rows where `ordered`.
    """

    def __init__(
        self,
        server: Server,
        target: Target,
        task: Task,
        *,
        into: tuple[str, str],
        raw: tuple[str, str] | None,
        staged: bool,
        ordered: bool = False,
        deletes: bool = False,
    ) -> None:
        self._server, self._target, self._task = server, target, task
        self._into, self._raw, self._part = into, raw, new_part()
        self._own = [PART, *([ROW] if ordered else []), *([DELETED] if deletes else [])] if staged else []
        self._rows = self._deleted = 0
        self._lengths = Lengths(target) if staged else None
        self._session: Session = server.session(plain=target.plain)

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows."""
        rows = to_wire(self._target, self._task.sink, batch)
        try:
            self._session.ingest(*(self._raw or self._into), self._marked(rows, batch))
        except HungError as error:
            raise self._server.hung(error) from None
        except self._session.error as error:
            raise self._server.blame(self._target.name, error) from None
        self._rows += batch.num_rows
        if self._lengths is not None:
            self._lengths.see(rows)

    def _marked(self, rows: pa.RecordBatch, batch: pa.RecordBatch) -> pa.RecordBatch:
        """With the columns of holdfast's own."""
        values = {
            PART: lambda: np.full(rows.num_rows, self._part, np.int64),
            ROW: lambda: np.arange(self._rows, self._rows + rows.num_rows, dtype=np.int64),
        }
        for name in self._own or ([PART] if self._raw else []):
            if name == DELETED:
                deleted = marks(batch)
                self._deleted += deleted.true_count
                rows = rows.append_column(name, deleted)
            else:
                rows = rows.append_column(name, pa.array(values[name]()))
        return rows

    def _cast_rows(self) -> None:
        """Rows that had to be cast go where they belong; a type that would not keep a value refuses it (D1)."""
        if self._raw is None:
            return
        rows = own_rows(self._raw, self._part)
        for statement, about in self._target.kept_statements(rows):
            self._execute(statement, about)
        self._execute("SAVEPOINT staged")
        try:
            self._session.execute(self._target.cast_statement(".".join(map(quote, self._into)), rows, own=self._own))
        except HungError as error:
            raise self._server.hung(error) from None
        except self._session.error as error:
            for column in self._target.cast_by_server:
                self._execute("ROLLBACK TO SAVEPOINT staged")
                about = f"column {column.source!r}"
                self._execute(f"SELECT count({column.cast}::{column.type.spelled}) FROM {rows}", about)  # noqa: S608
            raise self._server.blame(self._target.name, error) from None

    def prepare(self) -> dict[str, Any]:
        """Make the rows durable but not visible."""
        raise NotImplementedError

    def abort(self) -> None:
        """Leave nothing behind."""
        raise NotImplementedError

    def _execute(self, statement: str, about: str = "") -> None:
        """One statement; `about`: what it is about, for the error."""
        try:
            self._session.execute(statement)
        except HungError as error:
            raise self._server.hung(error) from None
        except self._session.error as error:
            raise self._server.blame(self._target.name, error, about) from None


def to_wire(target: Target, sink: str, batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows as COPY wants them; RowError for a value that the server could not keep as it is."""
    try:
        return target.to_wire(batch)
    except RowError as error:
        raise RowError(
            f"sink {sink!r}: a row does not go into table {target.name}: {error}. Change the query or the table, or "
            "filter such rows out"
        ) from None


def own_rows(table: tuple[str, str], part: int, *, deletes: bool = False) -> str:
    """The rows of one task in a staging table, for use after FROM; where there are deletes, without these."""
    only = f" AND NOT {quote(DELETED)}" if deletes else ""
    return f"(SELECT * FROM {'.'.join(map(quote, table))} WHERE {quote(PART)} = {part}{only}) AS own"  # noqa: S608
