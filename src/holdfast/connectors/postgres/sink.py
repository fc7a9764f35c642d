"""The PostgreSQL sink."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.checkpoint.storage import LocalStorage, open_storage
from holdfast.connectors.postgres import kinds, legacy, staging, starting, two_phase
from holdfast.connectors.postgres.kinds import Commits, kinds_of
from holdfast.connectors.postgres.ledger import Ledger
from holdfast.connectors.postgres.legacy import is_legacy
from holdfast.connectors.postgres.logged import LoggedWriter
from holdfast.connectors.postgres.names import TableName, check_identifier, parse_table
from holdfast.connectors.postgres.server import Server
from holdfast.connectors.postgres.stages import Place, Stages
from holdfast.connectors.postgres.staging import StagingWriter
from holdfast.connectors.postgres.starting import Found
from holdfast.connectors.postgres.table import Upsert
from holdfast.connectors.postgres.two_phase import Known, PreparingWriter
from holdfast.connectors.postgres.writer import Writer
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task, check_name
from holdfast.core.options import SECONDS, SECRET, Columns, Condition, checked, one_of
from holdfast.errors import ConfigError, RowError
from holdfast.sinks import wal
from holdfast.sinks.deletes import KeepDeletes, check_delete_when, without
from holdfast.sinks.ledger import APPEND
from holdfast.sinks.order import check_order_by
from holdfast.sinks.pattern import MAX_TARGETS, Targets, parse_pattern
from holdfast.sinks.schema_change import DISCARD, EVOLVE, FREEZE, SchemaChange
from holdfast.sinks.two_phase import TwoPhaseCommitSink

MODES = ("ledger", "two-phase", "upsert")
STAGES = ("auto", "server", "log")


class PostgresSink(TwoPhaseCommitSink):
    """Exactly-once into a table of PostgreSQL, by binary COPY straight from Arrow.

    `mode="ledger"` appends: one transaction brings a whole checkpoint into the table and notes it in a ledger, so a
    reader sees whole checkpoints only; it needs no server setting. Until then rows wait in the checkpoint location
    (`stage="log"`), so the server writes each of them once; tasks then prove the rows without the server, which goes
    for tables of simple types and constraints. For all others they wait in a staging table (`stage="server"`).
    `stage="auto"` takes the log where it refuses no row that the server would take and the location is no object store.
    `mode="two-phase"` appends too: each
    task prepares a transaction that the driver commits; it writes rows once, needs `max_prepared_transactions`, and a
    reader can see some subtasks of a checkpoint before the others. `mode="upsert"` works as `ledger` and replaces rows
    by `key`; of two rows of one key the one with the larger `order_by` wins, and without `order_by` two rows of one key
    in one checkpoint are an error, raised before anything is decided. Rows for which `delete_when` is true delete the
    row of their key. `table` may be a pattern over columns, such as "orders_{country}" (not in mode "two-phase"): then
    there is a table for each value, at most `max_targets` of them.
    """

    extras = ("postgres",)

    @checked
    def __init__(
        self,
        dsn: Annotated[str, SECRET],
        table: str,
        *,
        mode: Annotated[str, one_of(*MODES, APPEND)] = "ledger",
        stage: Annotated[str, one_of(*STAGES)] = "auto",
        key: Columns = (),
        order_by: str | None = None,
        delete_when: Condition | None = None,
        keep_deletes: KeepDeletes = "7d",
        schema_change: SchemaChange = FREEZE,
        create: bool = False,
        schema: str = "_holdfast",
        lock_timeout: Annotated[float, SECONDS] = 60.0,
        max_targets: Targets = MAX_TARGETS,
        name: str | None = None,
    ) -> None:
        mode = "ledger" if mode == APPEND else mode
        if mode == "upsert" and not key:
            raise ConfigError("mode='upsert' needs key=[...], the columns that identify a row")
        if mode != "upsert" and (key or order_by):
            raise ConfigError(f"key and order_by belong to mode='upsert'; mode={mode!r} appends every row")
        if stage == "log" and mode != "ledger":
            raise ConfigError(
                f"stage='log' belongs to mode='ledger'; mode={mode!r} needs the server to have the rows before the "
                "decision: leave stage out"
            )
        self.keep_deletes = check_delete_when(delete_when, keep_deletes, upsert=mode == "upsert")
        self.delete_when = delete_when
        self.schema_change = schema_change
        if self.schema_change == EVOLVE and mode == "two-phase":
            raise ConfigError(
                "schema_change='evolve' needs mode='ledger' or 'upsert': in mode='two-phase' rows are in the table "
                "before the decision that would add a column"
            )
        self.table = parse_table(table)
        self.pattern, self.max_targets = parse_pattern("table", table), max_targets
        if self.pattern is not None and mode == "two-phase":
            raise ConfigError(
                "table: a pattern over columns does not go with mode='two-phase': a transaction that the server lost "
                "is written anew from the replay with the rows of all its tables. Give it mode='ledger' or 'upsert'"
            )
        self.schema = check_identifier("schema", schema)
        self.mode, self.stage, self.create = mode, stage, create
        self.name = check_name("name", name or f"postgres-{self.table}"[:100])
        self.server = Server(dsn, lock_timeout, self.name)
        #: staged and logged rows keep for as long as nobody deletes them; a prepared transaction can be rolled back by
        #: hand, and what the endpoint then lacks is taken from the replay, which Spark has only until the batch returns
        self.overlaps = mode != "two-phase"
        self.repairable = mode == "two-phase"
        self.asked = Upsert(tuple(key), order_by)
        self._found: Found | None = None
        self._stages: dict[bool, Stages] = {}
        self._place = Place(self.schema)
        #: what the ledger in a schema is known to have
        self._known: dict[str, Known] = {}
        #: whether what earlier versions and other options left was looked for
        self._swept = False
        self._delivered = wal.Delivered()
        self._sweeps_all = False
        self._run: Run | None = None

    def for_target(self, target: str) -> PostgresSink:
        """See TwoPhaseCommitSink."""
        made = copy.copy(self)
        made.table, made.pattern = parse_table(target), None
        made._stages, made._known, made._delivered = {}, {}, wal.Delivered()
        return made

    # -- on the driver ----------------------------------------------------------------------------------------------

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink."""
        # Once all that others have left is undone, who comes later, by a take-over of their own, is left alone.
        self._run, self._sweeps_all, self._swept, self._delivered = run, run.take_over, False, wal.Delivered()
        schema = None if run.schema is None else without(self.name, run.schema, self.delete_when)
        if schema is not None:
            check_order_by(self.name, schema, self.asked.key, self.asked.order_by)
        self.server.keep_connections()
        ledger = self._ledger
        with self.server.connect(self.table, starting=True) as connection:
            ledger.create(connection)
            if self.mode == "two-phase":
                two_phase.check_server(connection, self.name)
            if run.take_over:
                ledger.take_over(connection, run)
            found = ledger.read(connection, run.pipeline)
            ledger.check(run, found)
            ledger.check_parts(connection, run)
            self._known[self.schema] = Known(found.get(run.lineage, -1))
            if schema is not None:
                self._look(connection, schema)

    def _look(self, connection: Any, schema: pa.Schema) -> None:
        self._found = starting.look(connection, self, schema)
        self.discards = self._found.discards
        self._stages = starting.stages_of(connection, self, self.run.pipeline, self._found)
        self._choose(connection)

    def _choose(self, connection: Any) -> None:
        found = {raw: stages.choose(connection) for raw, stages in self._stages.items()}
        self._place = Place(self.schema, found.get(False), found.get(True))

    def close(self) -> None:
        """See TwoPhaseCommitSink."""
        self.server.close()

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """Forget staged and logged rows, and roll back prepared transactions, that no record names.

        Those of this and older generations, and of all kinds: mode and stage may have been others before the restart.
        Then choose where the next tasks write.
        """
        staged, prepared, sealed = kinds_of([c for committables in decided.values() for c in committables])
        if self._logs or not self._swept:
            wal.sweep(open_storage(self.run.location), self.name, generation, {0: sealed})
        old = [c for c in staged if is_legacy(c)]
        run = replace(self.run, take_over=self._sweeps_all)
        with self.server.connect(self.table) as connection:
            for schema in {self.schema, *(c["schema"] for c in staged if not is_legacy(c))}:
                ledger = Ledger(self.server, schema, self.name)
                staging.sweep(connection, ledger, run, generation, {c["part"] for c in staged if c not in old})
            two_phase.sweep(connection, run, self.name, generation, {c["gid"] for c in prepared})
            if not self._swept:
                schemas, kept = {self.schema, *(c["schema"] for c in old)}, {c["table"] for c in old}
                legacy.sweep(connection, run, self.name, schemas, generation, kept)
                self._swept = True
            self._sweeps_all = False
            self._choose(connection)

    def validate(self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks) -> None:
        """Without an order column, two rows of one key have no last one: refuse them before the decision (I1)."""
        if self.mode == "upsert" and self.found.upsert.order_by is None:
            duplicate = staging.find_duplicate(self.server, self.found.upsert.key, committables)
            if duplicate is not None:
                raise RowError(
                    f"sink {self.name!r}: checkpoint {checkpoint_id} has several rows with key {duplicate}, and "
                    "nothing says which is the last. Give the sink order_by='column', or drop duplicates in the query"
                )

    def still_prepared(self, committables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """See TwoPhaseCommitSink."""
        return kinds.still_prepared(self.server, self.table, self.run.location, committables)

    def as_decided(self, committables: Sequence[Mapping[str, Any]]) -> PostgresSink:
        """See TwoPhaseCommitSink: prepared anew, into the table and beside the ledger of the decision."""
        prepared = kinds_of(committables).prepared
        told = [c for c in prepared if c["version"] > 1]  # version 1 did not say
        if not told or self._run is None:
            return self
        sink = copy.copy(self)
        sink.mode, sink.stage, sink.repairable, sink.create = "two-phase", "server", True, False
        sink.table, sink.schema = TableName(*told[0]["target"]), told[0]["schema"]
        sink.asked = Upsert()
        sink.delete_when, sink.schema_change = None, FREEZE if self.schema_change == FREEZE else DISCARD
        assert self.run.schema is not None
        schema = without(self.name, self.run.schema, self.delete_when)
        with self.server.connect(sink.table) as connection:
            sink._look(connection, schema)
        return sink

    def rows_of(self, committables: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch] | None:
        """See TwoPhaseCommitSink. Nobody can look into a prepared transaction."""
        if kinds_of(committables).prepared:
            return None
        return kinds.rows_of(self.server, self.run.location, committables)

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Make the checkpoint visible, in the way it was prepared, whatever the options are now (rule 16)."""
        commits = Commits(self.server, self.name, self.schema, self.run, self._known)
        outcome = commits.commit(checkpoint_id, committables, tasks, self._options)
        self._delivered.add(checkpoint_id, kinds_of(committables).logged)
        return outcome

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """See TwoPhaseCommitSink."""
        self._delivered.discard(self.run.location, checkpoint_id)

    def shared_paths(self, location: str) -> Sequence[str]:
        """See TwoPhaseCommitSink; tasks write the log, and one of them reads it."""
        return (location,) if self.may_log(location) else ()

    def may_log(self, location: str) -> bool:
        """Whether rows may wait in the checkpoint location, if the table allows it; not unasked in an object store."""
        if self.mode != "ledger" or self.stage == "server":
            return False
        return self.stage == "log" or isinstance(open_storage(location), LocalStorage)

    # -- in the task ------------------------------------------------------------------------------------------------

    def begin(self, task: Task) -> Writer | LoggedWriter:
        """See TwoPhaseCommitSink."""
        found = self.found
        if found.proof is not None:
            return LoggedWriter(self.schema, found.target, found.proof, task)
        if self.mode == "two-phase":
            return PreparingWriter(self.server, self._ledger, self.run, found.target, task, self._place.raw)
        return StagingWriter(self.server, self._place, found.target, found.upsert, task)

    def write(self, txn: Writer | LoggedWriter, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        for column in self.asked.key:
            if batch.column(column).null_count:
                raise RowError(
                    f"sink {self.name!r}: a row has no value in key column {column!r}; nothing would ever replace it. "
                    "Filter such rows out or fill the key in"
                )
        txn.write(batch)

    def pre_commit(self, txn: Writer | LoggedWriter) -> Mapping[str, Any] | None:
        """See TwoPhaseCommitSink."""
        return txn.prepare()

    def abort(self, txn: Writer | LoggedWriter) -> None:
        """See TwoPhaseCommitSink."""
        txn.abort()

    @property
    def address(self) -> str:
        """See TwoPhaseCommitSink."""
        return self.server.address

    @property
    def _logs(self) -> bool:
        """Whether tasks write to the log."""
        return self.stage == "log" if self._found is None else self._found.proof is not None

    # -- what a run knows -------------------------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The query run this sink is part of."""
        if self._run is None:
            raise ConfigError(f"sink {self.name!r} is not part of a running query")
        return self._run

    @property
    def found(self) -> Found:
        """The table as it was found at the start."""
        if self._found is None:
            raise ConfigError(f"sink {self.name!r} was not told the columns of the rows when the query started")
        return self._found

    @property
    def _ledger(self) -> Ledger:
        return Ledger(self.server, self.schema, self.name)

    def _options(self) -> tuple[TableName, Upsert]:
        return self.found.target.name, self.found.upsert
