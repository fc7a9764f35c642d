"""The Cassandra sink: rows in the log first, then upserts by primary key (W1-W9, I1)."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.committers.base import CheckpointCommitter
from holdfast.committers.cassandra import CassandraCheckpointCommitter
from holdfast.committers.cassandra_client import Client, borrow, close_idle
from holdfast.committers.cassandra_settings import (
    Hosts,
    Password,
    Port,
    Timeout,
    Tls,
    Word,
    check_identifier,
    make_settings,
)
from holdfast.connectors.cassandra.deletes import Graves, prepare_graves
from holdfast.connectors.cassandra.limits import Limits, read_limits
from holdfast.connectors.cassandra.rows import check_rows
from holdfast.connectors.cassandra.send import Sender
from holdfast.connectors.cassandra.stored import READS, Stored
from holdfast.connectors.cassandra.table import Table, describe
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import check_name
from holdfast.core.options import Condition, Limit, checked, one_of, text, whole
from holdfast.core.units import parse_size
from holdfast.errors import ConfigError, RowError
from holdfast.sinks import wal
from holdfast.sinks.deletes import KeepDeletes, check_delete_when, split, without
from holdfast.sinks.keys import FindDuplicates, LastRows, only
from holdfast.sinks.order import check_order_by
from holdfast.sinks.pattern import MAX_TARGETS, Targets, parse_pattern
from holdfast.sinks.schema_change import (
    DISCARD,
    FREEZE,
    SchemaChange,
    discarded,
    ways,
    without_columns,
)
from holdfast.sinks.write_ahead import Send, WriteAheadSink

CONSISTENCY = ("LOCAL_QUORUM", "QUORUM", "EACH_QUORUM", "ALL", "LOCAL_ONE", "ONE", "TWO", "THREE")
#: How marks are written beside rows of a level that the committer does not have: so that a read sees every mark.
MARKS = {"EACH_QUORUM": "QUORUM", **dict.fromkeys(("LOCAL_ONE", "ONE", "TWO", "THREE"), "LOCAL_QUORUM")}
NULLS = ("write", "skip")


class CassandraSink(WriteAheadSink):
    """Exactly-once into a table of Cassandra, one row for each primary key, of which the last one counts.

    Needs a table whose rows are replaced by writing them again: no counters, no lists that are not frozen; both are
    refused at the start. Rows are sealed in the log, then sent as upserts by primary key. A crash between the send and
    the mark, or a paused driver that wakes up, sends a checkpoint again (W9): every row carries the write time of its
    checkpoint, which grows from checkpoint to checkpoint, so that sending again changes nothing and an old checkpoint
    never overwrites a newer one. Readers see rows as they are sent. While Cassandra is down the query goes on.

    Of two rows of one key the one with the larger `order_by` wins: then the stored row is read before one is sent.
    Without `order_by` the later checkpoint wins, and two rows of one key in one checkpoint are an error, raised before
    anything is decided. Rows for which `delete_when` is true delete the row of their key. `table` may be a pattern over
    columns, such as "orders_{country}": then there is a table for each value, at most `max_targets` of them.
    """

    extras = ("cassandra",)

    @checked
    def __init__(
        self,
        contact_points: Hosts,
        keyspace: str,
        table: str,
        *,
        committer: CheckpointCommitter | None = None,
        order_by: Annotated[str, text("the name of a column")] | None = None,
        delete_when: Condition | None = None,
        keep_deletes: KeepDeletes = "7d",
        schema_change: SchemaChange = FREEZE,
        nulls: Annotated[str, one_of(*NULLS)] = "write",
        consistency: Annotated[str, one_of(*CONSISTENCY)] = "LOCAL_QUORUM",
        concurrency: Annotated[int, whole(1, 10_000)] = 64,
        max_mutation: int | str | None = None,
        port: Port = 9042,
        username: Word | None = None,
        password: Password | None = None,
        tls: Tls = False,
        local_dc: Word | None = None,
        timeout: Timeout = 10.0,
        max_targets: Targets = MAX_TARGETS,
        name: str | None = None,
        max_pending: Limit = 1000,
        max_pending_bytes: Limit = 10 * 1024**3,
    ) -> None:
        self.settings = make_settings(contact_points, port, username, password, tls, local_dc, timeout)
        self.keyspace = check_identifier("keyspace", keyspace)
        self.pattern, self.max_targets = parse_pattern("table", table), max_targets
        # The longest values are looked at in tasks; what stands around them is looked at here.
        sample = table if self.pattern is None else self.pattern.fill(*("x" for _ in self.pattern.columns))
        self.table_name = check_identifier("table", sample)
        if order_by is not None and consistency not in READS:
            raise ConfigError(
                f"order_by compares a row with the stored one, which a read after a write with consistency="
                f"{consistency!r} need not see: give one of {', '.join(READS)}"
            )
        self._keep = check_delete_when(delete_when, keep_deletes)
        self.delete_when = delete_when
        self.schema_change = schema_change
        self.order_by = order_by
        self.nulls = nulls
        self.consistency = consistency
        self.concurrency = concurrency
        self.max_mutation = None if max_mutation is None else parse_size("max_mutation", max_mutation)
        if committer is None:
            committer = CassandraCheckpointCommitter(
                contact_points, keyspace, consistency=MARKS.get(consistency, consistency), port=port, username=username,
                password=password, tls=tls, local_dc=local_dc, timeout=timeout,
            )  # fmt: skip
        super().__init__(committer=committer, max_pending=max_pending, max_pending_bytes=max_pending_bytes)
        self.name = check_name("name", name or f"cassandra-{keyspace}-{table}"[:100])
        self._table: Table | None = None
        self._graves: Graves | None = None
        self._limits = Limits()
        #: of the newest checkpoint, in milliseconds; the batch thread's, deliveries have their own in the handles
        self._timestamp = 0

    def for_target(self, target: str) -> CassandraSink:
        """See TwoPhaseCommitSink."""
        made = copy.copy(self)
        made.table_name, made.pattern = check_identifier("table", target), None
        made.committer, made._table, made._timestamp = copy.copy(self.committer), None, 0
        return made

    # -- on the driver ----------------------------------------------------------------------------------------------

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink; a start needs Cassandra, to look at the table and at the marks."""
        try:
            super().open(run)
            with borrow(self.settings, self._who) as client:
                self._limits = read_limits(client, self.max_mutation)
                self.find_table(client, run.schema)
                if run.schema is not None and self.delete_when is not None and self.order_by is not None:
                    self._graves = prepare_graves(client, self.table, self.order_by, self._keep)
        finally:
            close_idle()

    def find_table(self, client: Client, schema: pa.Schema | None) -> None:
        """Look at the table, and refuse rows that do not go into it; nothing is changed there."""
        self._table = describe(client, self.keyspace, self.table_name)
        if schema is not None:
            own = without(self.name, schema, self.delete_when)
            self._check_new(own)
            self._check_columns(without_columns(own, self.discards))

    def _check_new(self, schema: pa.Schema) -> None:
        """Columns that the table does not have."""
        missing, needed = self.table.missing(schema), [*self.table.key, *filter(None, [self.order_by])]
        self.discards = ()
        if not missing:
            return
        if self.schema_change == DISCARD or set(missing) & set(needed):
            self.discards = discarded(self.name, f"table {self.table}", missing, needed)
            return
        new = self.table.with_new(schema, missing)
        if self.schema_change == FREEZE:
            statements = [self.table.add_statement(name, str(new.type_of(name))) for name in missing]
            there = ", ".join(c.name for c in self.table.columns)
            raise ConfigError(
                f"sink {self.name!r}: rows do not go into table {self.table}: it has no column "
                f"{', '.join(map(repr, missing))} (upper and lower case count; it has {there}): {ways(statements)}"
            )
        self._table = new

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """See TwoPhaseCommitSink; columns that were decided to be added come first."""
        tables = {t for c in committables if c.get("add") for t in [Table.from_json(c)]}
        if tables:
            try:
                with borrow(self.settings, self._who) as client:
                    for table in tables:
                        table.add_columns(client)
            finally:
                close_idle()
        return super().commit(checkpoint_id, committables, tasks)

    def close(self) -> None:
        """See TwoPhaseCommitSink."""
        close_idle()

    def initialize_state(self, state: Any) -> None:
        """See TwoPhaseCommitSink; the write time of the newest checkpoint."""
        self._timestamp = 0 if state is None else int(state["timestamp"])

    def snapshot_state(self, checkpoint_id: CheckpointId) -> Any:
        """See TwoPhaseCommitSink."""
        return {"version": 1, "timestamp": self._timestamp}

    def validate(self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks) -> None:
        """Without an order column, two rows of one key have no last one: refuse them before the decision (I1)."""
        self._timestamp = max(self._timestamp, *(c["timestamp"] for c in committables))
        if self.order_by is not None:
            return
        find = FindDuplicates(self.run.location, self.table.key, _Normalised(self.table))
        for duplicate in tasks.map(find, [list(committables)]):
            if duplicate is not None:
                raise RowError(
                    f"sink {self.name!r}: checkpoint {checkpoint_id} has several rows with primary key {duplicate}, "
                    "and nothing says which is the last. Give the sink order_by='column', or drop duplicates in the "
                    "query"
                )

    def _groups(self, handles: Sequence[Mapping[str, Any]]) -> Sequence[Sequence[Mapping[str, Any]]]:
        """Keys differ between subtasks, so these need no order; with order_by one task looks at all of them."""
        ordered = any(handle.get("order_by", self.order_by) is not None for handle in handles)
        return [handles] if ordered else [[handle] for handle in handles]

    # -- in the task ------------------------------------------------------------------------------------------------

    def write(self, txn: wal.LogWriter, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink; every value is encoded here once, so that none can fail when it is decided."""
        if self.delete_when is None:
            self._check_columns(batch.schema)
            check_rows(self.name, self.table, self._limits, batch)
        else:
            rows, gone = split(batch)
            self._check_columns(rows.schema)
            check_rows(self.name, self.table, self._limits, rows)
            check_rows(self.name, self.table, self._limits, gone.select(self._named))
        super().write(txn, batch)

    def pre_commit(self, txn: wal.LogWriter) -> Mapping[str, Any] | None:
        """The rows, and all it takes to send them (rule 16).

        The time of a checkpoint is later than that of the one before, also when the driver's clock is set back.
        """
        handle = dict(txn.seal())
        handle["timestamp"] = max(handle["timestamp"], self._timestamp + 1)
        options = {"order_by": self.order_by, "nulls": self.nulls, "consistency": self.consistency}
        if self.delete_when is None:
            return {**handle, "version": 2, **self.table.to_json(), **options}
        graves = None if self._graves is None else self._graves.to_json()
        return {**handle, "version": 3, **self.table.to_json(), **options, "deletes": True, "graves": graves}

    def _sending(self, handles: Sequence[Mapping[str, Any]], checkpoint_id: CheckpointId) -> Send:
        """See WriteAheadSink; as it was decided, whatever the options are now."""
        last = _LastRows(self.run.location, handles)

        def send(handle: Mapping[str, Any], values: Iterator[pa.RecordBatch]) -> bool:
            sink = self._as_decided(handle)
            if sink.order_by is not None:
                values = only(values, last.of(handle, sink.table, sink.order_by))
            return sink.send_values(values, checkpoint_id, handle["timestamp"])

        return send

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: CheckpointId, timestamp: int) -> bool:
        """See WriteAheadSink; all these rows, of which there is one for each key."""
        try:
            with borrow(self.settings, self._who) as client:
                client.know_replicas(self.table.keyspace)
                sender = Sender(
                    client, self.table, timestamp * 1000, consistency=self.consistency, concurrency=self.concurrency,
                    keep_nulls=self.nulls == "write",
                )  # fmt: skip
                stored = None if self.order_by is None else Stored(
                    client, self.table, self.order_by, consistency=self.consistency, concurrency=self.concurrency,
                    graves=self._graves,
                )  # fmt: skip
                for batch in values:
                    rows = batch if stored is None else stored.newer(batch)
                    if self.delete_when is not None:
                        rows, gone = split(rows)
                        sender.delete(gone, self._graves, self.order_by)
                    sender.send(rows)
                sender.finish()
        except ConfigError as error:
            raise ConfigError(
                f"{error}. Rows of checkpoint {checkpoint_id} are decided and were to go into table {self.table}: the "
                "table, the rights or the limits of the cluster are not what they must be. Nothing is lost, the rows "
                "are in the log: mend it so that it takes them, then start the query again"
            ) from error
        return True

    def _as_decided(self, handle: Mapping[str, Any]) -> CassandraSink:
        """This sink with the options that a handle says (rule 16); one of version 1 says none, then those of now."""
        if "columns" not in handle:
            return self
        sink = copy.copy(self)
        sink._table = Table.from_json(handle)
        sink.keyspace, sink.table_name = sink._table.keyspace, sink._table.name
        sink.order_by, sink.nulls, sink.consistency = handle["order_by"], handle["nulls"], handle["consistency"]
        sink.delete_when = "as decided" if handle.get("deletes") else None
        sink._graves = Graves.from_json(handle.get("graves"))
        return sink

    @property
    def address(self) -> str:
        """See TwoPhaseCommitSink."""
        return f"{self.settings.hosts}, {self.keyspace}.{self.table_name}"

    @property
    def _named(self) -> list[str]:
        """What a row that deletes must have: its key, and the column that says when."""
        return [*self.table.key, *([] if self.order_by is None else [self.order_by])]

    @property
    def _who(self) -> str:
        return f"sink {self.name!r}"

    @property
    def table(self) -> Table:
        """The table as it was when the query started."""
        if self._table is None:
            raise ConfigError(f"sink {self.name!r} is not part of a running query")
        return self._table

    def _check_columns(self, schema: pa.Schema) -> None:
        try:
            self.table.check_columns(schema)
        except ConfigError as error:
            raise ConfigError(f"sink {self.name!r}: {error}") from error
        check_order_by(self.name, schema, self.table.key, self.order_by)


@dataclass
class _LastRows:
    """Which row of a key is the last is seen in the rows of all subtasks together, when the first of them is sent."""

    location: str
    handles: Sequence[Mapping[str, Any]]
    _found: dict[int, pa.Array] = field(default_factory=dict)

    def of(self, handle: Mapping[str, Any], table: Table, order_by: str) -> pa.Array:
        """The numbers of the rows of this handle that are sent."""
        if not self._found:
            find = LastRows(self.location, table.key, order_by, _Normalised(table))
            self._found = {h["subtask"]: rows for h, rows in zip(self.handles, find(self.handles), strict=True)}
        return self._found[handle["subtask"]]


@dataclass(frozen=True)
class _Normalised:
    """The key columns of a batch as Cassandra compares them."""

    table: Table

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self.table.normalised_key(batch)
