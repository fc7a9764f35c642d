"""The Cassandra sink: rows in the log first, then upserts by primary key (W1-W9, I1)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.committers.base import CheckpointCommitter
from holdfast.committers.cassandra import CassandraCheckpointCommitter
from holdfast.committers.cassandra_client import borrow, close_idle, reaching
from holdfast.committers.cassandra_settings import check_choice, check_identifier, make_settings
from holdfast.connectors.cassandra.send import Sender
from holdfast.connectors.cassandra.table import Table, describe
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import check_name
from holdfast.errors import ConfigError, RowError
from holdfast.sinks import wal
from holdfast.sinks.keys import FindDuplicates, LastRows, only
from holdfast.sinks.subtask import current_task
from holdfast.sinks.write_ahead import WriteAheadSink

CONSISTENCY = ("LOCAL_QUORUM", "QUORUM", "EACH_QUORUM", "ALL", "LOCAL_ONE", "ONE", "TWO", "THREE")
NULLS = ("write", "skip")


class CassandraSink(WriteAheadSink):
    """Exactly-once into a table of Cassandra, one row for each primary key, of which the last one counts.

    Needs a table whose rows are replaced by writing them again: no counters, no lists that are not frozen; both are
    refused at the start. Rows are sealed in the log, then sent as upserts by primary key. A crash between the send and
    the mark, or a paused driver that wakes up, sends a checkpoint again (W9): every row carries the write time of its
    checkpoint, which grows from checkpoint to checkpoint, so that sending again changes nothing and an old checkpoint
    never overwrites a newer one. Readers see rows as they are sent. While Cassandra is down the query goes on.

    Of two rows of one key in one checkpoint the one with the larger `order_by` wins; without `order_by` they are an
    error, raised before anything is decided.
    """

    def __init__(
        self,
        contact_points: Sequence[str],
        keyspace: str,
        table: str,
        *,
        committer: CheckpointCommitter | None = None,
        order_by: str | None = None,
        nulls: str = "write",
        consistency: str = "LOCAL_QUORUM",
        concurrency: int = 64,
        port: int = 9042,
        username: str | None = None,
        password: str | None = None,
        tls: bool | Mapping[str, Any] = False,
        local_dc: str | None = None,
        timeout: float = 10.0,
        name: str | None = None,
        max_pending: int | None = 1000,
        max_pending_bytes: int | None = 10 * 1024**3,
    ) -> None:
        self.settings = make_settings(contact_points, port, username, password, tls, local_dc, timeout)
        self.keyspace = check_identifier("keyspace", keyspace)
        self.table_name = check_identifier("table", table)
        if order_by is not None and (not isinstance(order_by, str) or not order_by):
            raise ConfigError(f"order_by must be the name of a column, or None, not {order_by!r}")
        if not isinstance(concurrency, int) or isinstance(concurrency, bool) or not 1 <= concurrency <= 10_000:
            raise ConfigError(f"concurrency must be a whole number from 1 to 10000, not {concurrency!r}")
        self.order_by = order_by
        self.nulls = check_choice("nulls", nulls, NULLS)
        self.consistency = check_choice("consistency", consistency, CONSISTENCY)
        self.concurrency = concurrency
        if committer is None:
            committer = CassandraCheckpointCommitter(
                contact_points, keyspace, port=port, username=username, password=password, tls=tls, local_dc=local_dc,
                timeout=timeout,
            )  # fmt: skip
        super().__init__(committer=committer, max_pending=max_pending, max_pending_bytes=max_pending_bytes)
        self.name = check_name("name", name or f"cassandra-{keyspace}-{table}"[:100])
        # Keys differ between the subtasks of a checkpoint, so they need no order; with order_by one task looks at all.
        self.ordered = order_by is not None
        self._table: Table | None = None
        #: of the newest checkpoint, in milliseconds
        self._timestamp = 0
        #: of the checkpoint being delivered, with order_by: its log files, and in the task the rows to send
        self._handles: Sequence[Mapping[str, Any]] = ()
        self._last_rows: dict[int, pa.Array] | None = None

    # -- on the driver ----------------------------------------------------------------------------------------------

    def open(self, run: Run) -> None:
        """See TwoPhaseCommitSink; a start needs Cassandra, to look at the table and at the marks."""
        try:
            super().open(run)
            with borrow(self.settings) as client:
                self._table = describe(client, self.keyspace, self.table_name)
            if run.schema is not None:
                self._check_columns(run.schema)
        finally:
            close_idle()

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

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """See WriteAheadSink."""
        # Goes to the task with the sink: which row of a key is the last is seen in all subtasks' rows together.
        self._handles = sorted(committables, key=lambda c: c["subtask"]) if self.order_by is not None else ()
        self._last_rows = None
        return super().commit(checkpoint_id, committables, tasks)

    # -- in the task ------------------------------------------------------------------------------------------------

    def write(self, txn: wal.LogWriter, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        self._check_columns(batch.schema)
        self.table.check_rows(self.name, batch)
        super().write(txn, batch)

    def pre_commit(self, txn: wal.LogWriter) -> Mapping[str, Any] | None:
        """The time of a checkpoint is later than that of the one before, also when the driver's clock is set back."""
        handle = dict(txn.seal())
        handle["timestamp"] = max(handle["timestamp"], self._timestamp + 1)
        return handle

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: CheckpointId, timestamp: int) -> bool:
        """See WriteAheadSink."""
        if self.order_by is not None:
            values = self._last_of_each_key(values, self.order_by)
        with borrow(self.settings) as client:
            client.know_replicas(self.keyspace)
            sender = Sender(
                client, self.table, timestamp * 1000, consistency=self.consistency, concurrency=self.concurrency,
                keep_nulls=self.nulls == "write",
            )  # fmt: skip
            try:
                with reaching(self.settings):
                    for batch in values:
                        sender.send(batch)
                    sender.finish()
            except (ConfigError, TypeError, ValueError, struct.error) as error:
                raise RowError(
                    f"sink {self.name!r}: rows of checkpoint {checkpoint_id} do not go into table {self.table}: "
                    f"{error}. Nothing is lost, its rows are in the log: change the table or the rights so that it "
                    "takes them, then start the query again"
                ) from error
        return True

    def _last_of_each_key(self, values: Iterator[pa.RecordBatch], order_by: str) -> Iterator[pa.RecordBatch]:
        """Only the rows that are the last of their key in the whole checkpoint."""
        if self._last_rows is None:
            find = LastRows(self.run.location, self.table.key, order_by, _Normalised(self.table))
            subtasks = [handle["subtask"] for handle in self._handles]
            self._last_rows = dict(zip(subtasks, find(self._handles), strict=True))
        return only(values, self._last_rows[current_task().subtask])

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
        if self.order_by is None:
            return
        if self.order_by not in schema.names:
            raise ConfigError(
                f"sink {self.name!r}: order_by={self.order_by!r} is not among the DataFrame's columns: "
                f"{', '.join(schema.names)}"
            )
        if self.order_by in self.table.key:
            raise ConfigError(
                f"sink {self.name!r}: order_by={self.order_by!r} is part of the primary key of {self.table}, so it is "
                "the same in all rows of one key"
            )
        if pa.types.is_nested(schema.field(self.order_by).type):
            raise ConfigError(f"sink {self.name!r}: order_by={self.order_by!r} has no order: take a plain column")


@dataclass(frozen=True)
class _Normalised:
    """The key columns of a batch as Cassandra compares them."""

    table: Table

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return self.table.normalised_key(batch)
