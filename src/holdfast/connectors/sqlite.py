"""SQLite: the embedded default."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.connectors.sqlite_types import column_type, has_order, quote, to_rows
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import check_name
from holdfast.errors import ConfigError, RowError
from holdfast.sinks import wal
from holdfast.sinks.keys import FindDuplicates
from holdfast.sinks.ledger import check_ledger
from holdfast.sinks.write_ahead import StagedSink

MODES = ("ledger", "upsert")
_LEDGER_KEPT = 100
_CREATE_LEDGER = """
CREATE TABLE IF NOT EXISTS holdfast_ledger (
    pipeline TEXT NOT NULL, sink TEXT NOT NULL, checkpoint_id INTEGER NOT NULL, lineage TEXT NOT NULL,
    generation INTEGER NOT NULL, row_count INTEGER NOT NULL, committed_at TEXT NOT NULL DEFAULT (datetime('now')),
    PRIMARY KEY (pipeline, sink, checkpoint_id)
)"""
_READ_LEDGER = """
SELECT lineage, max(checkpoint_id) FROM holdfast_ledger WHERE pipeline = ? AND sink = ? GROUP BY lineage"""
_ADD_TO_LEDGER = """
INSERT INTO holdfast_ledger (pipeline, sink, checkpoint_id, lineage, generation, row_count) VALUES (?, ?, ?, ?, ?, ?)"""
_PRUNE_LEDGER = "DELETE FROM holdfast_ledger WHERE pipeline = ? AND sink = ? AND checkpoint_id <= ?"
_CLEAR_LEDGER = "DELETE FROM holdfast_ledger WHERE pipeline = ? AND sink = ?"


@dataclass(frozen=True)
class Table:
    """The target table and how rows go into it."""

    path: str
    name: str
    key: tuple[str, ...] = ()
    order_by: str | None = None

    @contextmanager
    def connect(self) -> Iterator[sqlite3.Connection]:
        """A connection in autocommit mode, so that every BEGIN and COMMIT is ours."""
        with closing(sqlite3.connect(self.path, timeout=60, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            yield connection

    def columns(self, connection: sqlite3.Connection) -> dict[str, bool]:
        """The table's columns in lower case, and whether a row must give a value; none when there is no such table."""
        found = connection.execute(f"PRAGMA table_info({quote(self.name)})")
        return {
            name.lower(): bool(required) and default is None and not key for _, name, _, required, default, key in found
        }

    def create_statement(self, schema: pa.Schema) -> str:
        """The table for these columns."""
        columns = [f"{quote(field.name)} {column_type(field.type)}" for field in schema]
        if self.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quote, self.key))})")
        return f"CREATE TABLE IF NOT EXISTS {quote(self.name)} ({', '.join(columns)})"

    def insert_statement(self, columns: Sequence[str]) -> str:
        """Append, or replace by key; an `order_by` that is smaller than what is there changes nothing."""
        names, marks = ", ".join(map(quote, columns)), ", ".join("?" * len(columns))
        statement = f"INSERT INTO {quote(self.name)} ({names}) VALUES ({marks})"  # noqa: S608  identifiers are quoted
        if not self.key:
            return statement
        keys = ", ".join(map(quote, self.key))
        others = [column for column in columns if column not in self.key]
        if not others:
            return f"{statement} ON CONFLICT ({keys}) DO NOTHING"
        updates = ", ".join(f"{quote(c)} = excluded.{quote(c)}" for c in others)
        statement += f" ON CONFLICT ({keys}) DO UPDATE SET {updates}"
        if self.order_by is not None:
            stored = f"{quote(self.name)}.{quote(self.order_by)}"
            statement += f" WHERE {stored} IS NULL OR excluded.{quote(self.order_by)} >= {stored}"
        return statement


class SqliteSink(StagedSink):
    """Exactly-once into a table of an SQLite file: the rows of a checkpoint and its ledger row are one transaction.

    Needs a file that driver and executors reach: one machine. A reader sees whole checkpoints only. `mode="ledger"`
    appends. `mode="upsert"` replaces rows by `key`; of two rows of one key the one with the larger `order_by` wins, and
    without `order_by` two rows of one key in one checkpoint are an error, raised before anything is decided. A table
    that does not exist is created from the DataFrame's columns.
    """

    def __init__(
        self,
        path: str,
        table: str,
        *,
        mode: str = "ledger",
        key: Sequence[str] = (),
        order_by: str | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(path, (str, Path)) or not str(path) or str(path) == ":memory:":
            raise ConfigError(f"path must name a file, not {path!r}: executors open it too")
        if not isinstance(table, str) or not table or "\0" in table or _reserved(table):
            raise ConfigError(f"table must be the name of a table, and not begin with sqlite_ or holdfast_: {table!r}")
        if mode not in MODES:
            raise ConfigError(f"mode must be one of {', '.join(MODES)}, not {mode!r}")
        if isinstance(key, str):
            raise ConfigError(f"key must be a list of columns: key=[{key!r}]")
        if mode == "upsert" and not key:
            raise ConfigError("mode='upsert' needs key=[...], the columns that identify a row")
        if mode == "ledger" and (key or order_by):
            raise ConfigError("key and order_by belong to mode='upsert'; mode='ledger' appends every row")
        self.table = Table(str(Path(path).absolute()), table, tuple(key), order_by)
        self.mode = mode
        self.name = check_name("name", name or f"sqlite-{table}"[:100])

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink."""
        super().open(run)
        self._check_columns(run.schema)
        file = Path(self.table.path)
        new = not file.exists()
        file.parent.mkdir(parents=True, exist_ok=True)
        with self.table.connect() as connection:
            if new:
                connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(_CREATE_LEDGER)
            if run.take_over:
                self._take_over(connection)
            where = f"the ledger of sink {self.name!r} in {self.table.path}"
            check_ledger(run, where, _ledger(connection, run.pipeline, self.name))
            if run.schema is not None:
                self._check_table(connection, run.schema)

    def write(self, txn: wal.LogWriter, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        for column in self.table.key:
            values = batch.column(column)
            # SQLite stores NaN as NULL.
            if values.null_count or (pa.types.is_floating(values.type) and pc.any(pc.is_nan(values)).as_py()):
                raise RowError(
                    f"sink {self.name!r}: a row has no value in key column {column!r}; SQLite would never find it "
                    "again. Filter such rows out or fill the key in"
                )
        super().write(txn, batch)

    def validate(self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks) -> None:
        """Without an order column, two rows of one key have no last one: refuse them before the decision (I1)."""
        if self.table.key and self.table.order_by is None:
            find = FindDuplicates(self.run.location, self.table.key)
            for duplicate in tasks.map(find, [list(committables)]):
                if duplicate is not None:
                    raise RowError(
                        f"sink {self.name!r}: checkpoint {checkpoint_id} has several rows with key {duplicate}, and "
                        "nothing says which is the last. Give the sink order_by='column', or drop duplicates in the "
                        "query"
                    )

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Rows of all subtasks and the ledger row, in one transaction."""
        handles = sorted(committables, key=lambda c: c["subtask"])
        outcome = tasks.map(_Apply(self.table, self.run, self.name, checkpoint_id), [handles])[0]
        self.forget_when_complete(checkpoint_id, committables)
        return outcome

    def _check_columns(self, schema: pa.Schema | None) -> None:
        if schema is None:
            return
        wanted = (*self.table.key, *filter(None, [self.table.order_by]))
        missing = [column for column in wanted if column not in schema.names]
        if missing:
            raise ConfigError(
                f"sink {self.name!r}: key and order_by must be columns of the DataFrame; {', '.join(missing)} is not "
                f"among {', '.join(schema.names)}"
            )
        order_by = self.table.order_by
        if order_by is not None and not has_order(schema.field(order_by).type):
            raise ConfigError(
                f"sink {self.name!r}: order_by={order_by!r} is of type {schema.field(order_by).type}, which has no "
                "order in SQLite, where it is kept as text: cast it to bigint, double or timestamp"
            )

    def _check_table(self, connection: sqlite3.Connection, schema: pa.Schema) -> None:
        self._try(connection, self.table.create_statement(schema))
        there, given = self.table.columns(connection), {name.lower() for name in schema.names}
        missing = [name for name in schema.names if name.lower() not in there]
        if missing:
            raise ConfigError(
                f"table {self.table.name!r} in {self.table.path} has no column {', '.join(missing)}: add it with "
                f"ALTER TABLE, or select other columns. The table has {', '.join(sorted(there))}"
            )
        required = [column for column, must in there.items() if must and column not in given]
        if required:
            raise ConfigError(
                f"column {', '.join(required)} of table {self.table.name!r} in {self.table.path} is NOT NULL and not "
                "among the DataFrame's columns: add it to the query, or give it a default"
            )
        self._try(connection, f"EXPLAIN {self.table.insert_statement(schema.names)}", [None] * len(schema.names))

    def _try(self, connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()) -> None:
        try:
            connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            index = f". The table needs a unique index on ({', '.join(self.table.key)})" if self.table.key else ""
            raise ConfigError(
                f"sink {self.name!r} cannot write into table {self.table.name!r}: {error}{index}"
            ) from error

    def _take_over(self, connection: sqlite3.Connection) -> None:
        """Own the name from here on, with nothing marked as delivered: what this log still owes must not be skipped."""
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_CLEAR_LEDGER, (self.run.pipeline, self.name))
        mark = (self.run.pipeline, self.name, -1, self.run.lineage, self.run.generation, 0)
        connection.execute(_ADD_TO_LEDGER, mark)
        connection.execute("COMMIT")


def _reserved(table: str) -> bool:
    """SQLite's names are the same in upper and lower case."""
    return table.lower().startswith(("sqlite_", "holdfast_"))


def _ledger(connection: sqlite3.Connection, pipeline: str, sink: str) -> dict[str, CheckpointId]:
    return dict(connection.execute(_READ_LEDGER, (pipeline, sink)).fetchall())


@dataclass(frozen=True)
class _Apply:
    """Runs in a task: one transaction for the whole checkpoint."""

    table: Table
    run: Run
    sink: str
    checkpoint_id: CheckpointId

    def __call__(self, handles: Sequence[Mapping[str, Any]]) -> Outcome:
        with self.table.connect() as connection:
            # IMMEDIATE takes the write lock first, so that no other driver can be between its look and its insert.
            connection.execute("BEGIN IMMEDIATE")
            try:
                outcome = self._apply(connection, handles)
                connection.execute("COMMIT")
            except BaseException as error:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if isinstance(error, (sqlite3.IntegrityError, OverflowError)):
                    raise RowError(
                        f"sink {self.sink!r}: a row of checkpoint {self.checkpoint_id} does not go into table "
                        f"{self.table.name!r} of {self.table.path}: {error}. Nothing is lost, its rows are in the log: "
                        "change the table so that it takes them, then start the query again"
                    ) from error
                raise
        return outcome

    def _apply(self, connection: sqlite3.Connection, handles: Sequence[Mapping[str, Any]]) -> Outcome:
        run = self.run
        ledger = _ledger(connection, run.pipeline, self.sink)
        if any(lineage != run.lineage for lineage in ledger):
            check_ledger(run, f"the ledger of sink {self.sink!r} in {self.table.path}", ledger)
        if ledger.get(run.lineage, -1) >= self.checkpoint_id:
            return Outcome.ALREADY_COMMITTED
        count = 0
        for handle in handles:
            for batch in wal.read_log(run.location, handle):
                connection.executemany(self.table.insert_statement(batch.schema.names), to_rows(batch))
                count += batch.num_rows
        row = (run.pipeline, self.sink, self.checkpoint_id, run.lineage, run.generation, count)
        connection.execute(_ADD_TO_LEDGER, row)
        connection.execute(_PRUNE_LEDGER, (run.pipeline, self.sink, self.checkpoint_id - _LEDGER_KEPT))
        return Outcome.COMMITTED
