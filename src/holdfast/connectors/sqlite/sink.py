"""SQLite: the embedded default."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.checkpoint.storage import make_folder
from holdfast.connectors.sqlite.deletes import Deleting, prepare_graves, runs
from holdfast.connectors.sqlite.errors import sqlite_error, told
from holdfast.connectors.sqlite.table import CREATE_LEDGER, Ledger, Table
from holdfast.connectors.sqlite.trial import Trial, trial_of
from holdfast.connectors.sqlite.types import (
    Keys,
    check_declared,
    check_types,
    collation,
    column_type,
    encode,
    has_order,
    to_rows,
)
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task, check_name
from holdfast.core.options import Columns, Condition, checked, one_of
from holdfast.core.paths import AnyPath, path_text
from holdfast.errors import ConfigError, RowError
from holdfast.sinks import wal
from holdfast.sinks.deletes import DELETED, KeepDeletes, check_delete_when, marks, split, without
from holdfast.sinks.keys import FindDuplicates
from holdfast.sinks.ledger import APPEND, check_ledger, having
from holdfast.sinks.order import MissingIndexError, check_order_by
from holdfast.sinks.pattern import MAX_TARGETS, Targets, parse_pattern
from holdfast.sinks.schema_change import DISCARD, EVOLVE, FREEZE, SchemaChange, discarded, ways
from holdfast.sinks.write_ahead import StagedSink

MODES = ("ledger", "upsert")


class _Writing(wal.LogWriter):
    """The rows of one task on their way into the log, and the table they are tried in, if there is one."""

    def __init__(self, task: Task, trial: Trial | None) -> None:
        super().__init__(task)
        self._trial = trial
        self._tried = None if trial is None else trial.connect()

    def write(self, batch: pa.RecordBatch) -> None:
        """Append rows that the table will take."""
        if self._trial is not None and self._tried is not None:
            self._trial.insert(self._tried, split(batch)[0] if DELETED in batch.schema.names else batch)
        super().write(batch)

    def seal(self) -> dict[str, Any]:
        """See LogWriter."""
        self._end()
        return super().seal()

    def discard(self) -> None:
        """See LogWriter."""
        self._end()
        super().discard()

    def _end(self) -> None:
        if self._tried is not None:
            self._tried.close()


class SqliteSink(StagedSink):
    """Exactly-once into a table of an SQLite file: the rows of a checkpoint and its ledger row are one transaction.

    Needs a file that driver and executors reach: one machine. A reader sees whole checkpoints only. `mode="ledger"`,
    or "append", appends. `mode="upsert"` replaces rows by `key`; of two rows of one key the one with the larger
    `order_by` wins, and without `order_by` two rows of one key in one checkpoint are an error, raised before anything
    is decided. Rows for which `delete_when` is true delete the row of their key. A table that does not exist is created
    from the DataFrame's columns. A value that the table cannot take is refused in the task, before anything is decided.
    `table` may be a pattern over columns, such as "orders_{country}": then there is a table for each value, at most
    `max_targets` of them.
    """

    #: `commit` works from committables and its own connections, and shares nothing but what it has delivered
    overlaps = True
    _trial: Trial | None = None
    _found: Mapping[str, CheckpointId] = {}
    #: the newest checkpoint that is in the ledger, as far as this run has seen
    _known: CheckpointId = -1
    #: how the table compares its key columns
    _collations: tuple[str, ...] = ()

    @checked
    def __init__(
        self,
        path: AnyPath,
        table: str,
        *,
        mode: Annotated[str, one_of(*MODES, APPEND)] = "ledger",
        key: Columns = (),
        order_by: str | None = None,
        delete_when: Condition | None = None,
        keep_deletes: KeepDeletes = "7d",
        schema_change: SchemaChange = FREEZE,
        max_targets: Targets = MAX_TARGETS,
        name: str | None = None,
    ) -> None:
        file = path_text("path", path, "the path of a file")
        if file == ":memory:":
            raise ConfigError(f"path must name a file, not {path!r}: executors open it too")
        check_table(table)
        self.pattern, self.max_targets = parse_pattern("table", table), max_targets
        mode = "ledger" if mode == APPEND else mode
        if mode == "upsert" and not key:
            raise ConfigError("mode='upsert' needs key=[...], the columns that identify a row")
        if mode == "ledger" and (key or order_by):
            raise ConfigError("key and order_by belong to mode='upsert'; mode='ledger' appends every row")
        keep = check_delete_when(delete_when, keep_deletes, upsert=mode == "upsert")
        self.delete_when = delete_when
        self.schema_change = schema_change
        self.table = Table(str(Path(file).absolute()), table, tuple(key), order_by, keep=keep)
        self.mode = mode
        self.name = check_name("name", name or f"sqlite-{table}"[:100])

    def for_target(self, target: str) -> SqliteSink:
        """See TwoPhaseCommitSink."""
        made = copy.copy(self)
        made.table, made.pattern = replace(self.table, name=check_table(target)), None
        return made

    def shared_paths(self, location: str) -> Sequence[str]:
        """See TwoPhaseCommitSink; the driver makes the table, and a task writes into it."""
        return (*super().shared_paths(location), str(Path(self.table.path).parent))

    @property
    def address(self) -> str:
        """See TwoPhaseCommitSink."""
        return self.table.path

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink."""
        super().open(run)
        schema = None if run.schema is None else without(self.name, run.schema, self.delete_when)
        self.check_columns(schema)
        file = Path(self.table.path)
        new = not file.exists()
        make_folder(file.parent)
        with told(self.name, self.table.path), self.table.connect(create=True) as connection:
            if new:
                connection.execute("PRAGMA journal_mode=WAL")
            connection.execute(CREATE_LEDGER)
            if run.take_over:
                self._ledger.take_over(connection, self._committed)
            self._found = self._ledger.read(connection)
            check_ledger(run, self._where, self._found)
            if schema is not None:
                self.check_table(connection, schema)
            own = "" if schema is None else self.table.create_statement(schema)
            add = [self.table.add_statement(*column) for column in self.table.add]
            self._trial = trial_of(connection, self.name, self.table.path, self.table.name, own, add)

    def initialize_state(self, state: Any) -> None:
        """The ledger must know what was committed (rule 15), unless that went into another file, on purpose."""
        before = state.get("path") if isinstance(state, Mapping) else None
        if before is not None and before != self.table.path and self._committed >= 0:
            with told(self.name, self.table.path), self.table.connect() as connection:
                self._ledger.reach(connection, self._committed)
                self._found = self._ledger.read(connection)
        check_ledger(self.run, self._where, self._found, sink=self.name)
        self._known = self._found.get(self.run.lineage, -1)

    def snapshot_state(self, checkpoint_id: CheckpointId) -> Any:
        """Where the rows go: a ledger that lacks them is in that file, or in one that came after it."""
        return {"version": 1, "path": self.table.path}

    def begin(self, task: Task) -> _Writing:
        """See TwoPhaseCommitSink."""
        return _Writing(task, self._trial)

    def write(self, txn: wal.LogWriter, batch: pa.RecordBatch) -> None:
        """Seal the rows as SQLite takes them: whatever it would not take is refused here (rule 11)."""
        rows = encode(self.name, batch if self.delete_when is None else batch.drop_columns([DELETED]))
        for column in self.table.key:
            if rows.column(column).null_count:
                raise RowError(
                    f"sink {self.name!r}: a row has no value in key column {column!r}; SQLite would never find it "
                    "again. Filter such rows out or fill the key in"
                )
        super().write(txn, rows if self.delete_when is None else rows.append_column(DELETED, marks(batch)))

    def pre_commit(self, txn: wal.LogWriter) -> Mapping[str, Any] | None:
        """The handle, and all that its commit needs to know (rule 16)."""
        return {**txn.seal(), "version": 2, "into": self.table.to_json()}

    def validate(self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks) -> None:
        """Without an order column, two rows of one key have no last one: refuse them before the decision (I1)."""
        if self.table.key and self.table.order_by is None:
            find = FindDuplicates(self.run.location, self.table.key, Keys(self.table.key, self._collations))
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
        """Rows of all subtasks and the ledger row, in one transaction, where and how it was decided."""
        handles = sorted(committables, key=lambda c: c["subtask"])
        into = [Table.from_json(c["into"]) for c in handles if "into" in c]  # version 1 had none
        table = into[0] if into else self.table
        known = self._known if table.path == self.table.path else -1
        with wal.naming_lost(self.run.location, handles):
            outcome = tasks.map(_Apply(table, self.run, self._ledger, checkpoint_id, known), [handles])[0]
        if table.path != self.table.path:
            with told(self.name, self.table.path), self.table.connect() as connection:
                self._ledger.reach(connection, checkpoint_id)
        self._known = max(self._known, checkpoint_id)
        self.forget_when_complete(checkpoint_id, committables)
        return outcome

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.run.pipeline, self.name, self.run.lineage, self.run.generation)

    @property
    def _where(self) -> str:
        return f"the ledger of sink {self.name!r} in {self.table.path}"

    @property
    def _committed(self) -> CheckpointId:
        known = self.run.committed.get(self.name)
        return -1 if known is None else known.checkpoint_id

    def check_columns(self, schema: pa.Schema | None) -> None:
        """Refuse rows that no table of SQLite could take."""
        if schema is None:
            return
        check_types(self.name, schema)
        order_by = self.table.order_by
        check_order_by(self.name, schema, self.table.key, order_by)
        if order_by is not None and not has_order(schema.field(order_by).type):
            raise ConfigError(
                f"sink {self.name!r}: order_by={order_by!r} is of type {schema.field(order_by).type}, which has no "
                "order in SQLite, where it is kept as text: cast it to bigint, double or timestamp"
            )

    def check_table(self, connection: sqlite3.Connection, schema: pa.Schema) -> None:
        """Make the table if it is not there, and refuse one that these rows do not go into."""
        self.table = replace(self.table, graves=None, add=())
        self._try(connection, self.table.create_statement(schema))
        there, given = self.table.columns(connection), {name.lower() for name in schema.names}
        check_declared(self.name, self.table.name, schema, self.table.types(connection))
        self._check_new(schema, [name for name in schema.names if name.lower() not in there], sorted(there))
        required = [column for column, must in there.items() if must and column not in given]
        if required:
            raise ConfigError(
                f"column {', '.join(required)} of table {self.table.name!r} in {self.table.path} is NOT NULL and not "
                "among the DataFrame's columns: add it to the query, or give it a default"
            )
        if self.delete_when is not None and self.table.order_by is not None:
            graves = prepare_graves(connection, self.table.name, self.table.key, self.table.order_by)
            self.table = replace(self.table, graves=graves)
        self._collations = tuple(collation(connection, self.table.name, column) for column in self.table.key)
        written = [name for name in schema.names if name.lower() in there]
        self._try(connection, f"EXPLAIN {self.table.insert_statement(written)}", [None] * len(written))

    def _check_new(self, schema: pa.Schema, missing: Sequence[str], there: Sequence[str]) -> None:
        """Columns that the table does not have."""
        where = f"table {self.table.name!r} in {self.table.path}"
        needed = (*self.table.key, *filter(None, [self.table.order_by]))
        add = tuple((name, column_type(schema.field(name).type)) for name in missing)
        self.discards = ()
        if self.schema_change == DISCARD or (self.schema_change == EVOLVE and set(missing) & set(needed)):
            self.discards = discarded(self.name, where, missing, needed)
        elif self.schema_change == EVOLVE:
            self.table = replace(self.table, add=add)
        elif missing:
            statements = [self.table.add_statement(*column) for column in add]
            raise ConfigError(
                f"{where} has no column {', '.join(missing)}: {ways(statements)}. The table has {', '.join(there)}"
            )

    def _try(self, connection: sqlite3.Connection, statement: str, values: Sequence[Any] = ()) -> None:
        try:
            connection.execute(statement, values)
        except sqlite3.OperationalError as error:
            told = f"sink {self.name!r} cannot write into table {self.table.name!r}: {error}"
            if self.table.key and "ON CONFLICT" in str(error):
                raise MissingIndexError(
                    f"{told}. The table needs a unique index on ({', '.join(self.table.key)})"
                ) from error
            raise ConfigError(told) from error


def check_table(table: object) -> str:
    """The name of a table."""
    if not isinstance(table, str) or not table or "\0" in table or _reserved(table):
        raise ConfigError(f"table must be the name of a table, and not begin with sqlite_ or holdfast_: {table!r}")
    return table


def _reserved(table: str) -> bool:
    """SQLite's names are the same in upper and lower case."""
    return table.lower().startswith(("sqlite_", "holdfast_"))


@dataclass(frozen=True)
class _Apply:
    """Runs in a task: one transaction for the whole checkpoint."""

    table: Table
    run: Run
    ledger: Ledger
    checkpoint_id: CheckpointId
    #: what the ledger has, unless the file is an older copy by now
    known: CheckpointId

    def __call__(self, handles: Sequence[Mapping[str, Any]]) -> Outcome:
        try:
            with self.table.connect() as connection:
                return self._transact(connection, handles)
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            if error.sqlite_errorname in ("SQLITE_NOTADB", "SQLITE_CORRUPT"):
                raise sqlite_error(self.ledger.sink, self.table.path, error) from error
            raise RowError(
                f"sink {self.ledger.sink!r}: a row of checkpoint {self.checkpoint_id} does not go into table "
                f"{self.table.name!r} of {self.table.path}: {error}. Nothing is lost, its rows are in the log: change "
                "the table so that it takes them, then start the query again; or give them up with `holdfast resolve`"
            ) from error
        except sqlite3.Error as error:
            raise sqlite_error(self.ledger.sink, self.table.path, error) from error

    def _transact(self, connection: sqlite3.Connection, handles: Sequence[Mapping[str, Any]]) -> Outcome:
        # IMMEDIATE takes the write lock first, so that no other driver can be between its look and its insert.
        connection.execute("BEGIN IMMEDIATE")
        try:
            outcome = self._apply(connection, handles)
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise
        return outcome

    def _apply(self, connection: sqlite3.Connection, handles: Sequence[Mapping[str, Any]]) -> Outcome:
        run = self.run
        ledger = self.ledger.read(connection)
        where = f"the ledger of sink {self.ledger.sink!r} in {self.table.path}"
        if any(lineage != run.lineage for lineage in ledger):
            check_ledger(run, where, ledger)
        if ledger.get(run.lineage, -1) < self.known:
            check_ledger(having(run, self.ledger.sink, ledger, self.known), where, ledger, sink=self.ledger.sink)
        if ledger.get(run.lineage, -1) >= self.checkpoint_id:
            return Outcome.ALREADY_COMMITTED
        count = deleted = 0
        table = self.table
        table.add_columns(connection)
        deleting = Deleting(connection, table.name, table.key, table.order_by, table.graves)
        for handle in handles:
            for batch in wal.read_log(run.location, handle):
                # Version 1 sealed the rows as they came.
                rows = batch if handle["version"] > 1 else encode(self.ledger.sink, batch)
                for part, deletes in runs(rows) if DELETED in rows.schema.names else [(rows, False)]:
                    if deletes:
                        deleting.delete(part, table.keep)
                        deleted += part.num_rows
                    else:
                        connection.executemany(table.insert_statement(part.schema.names), to_rows(part))
                count += batch.num_rows
        deleting.forget(deleted)
        self.ledger.add(connection, self.checkpoint_id, count)
        return Outcome.COMMITTED
