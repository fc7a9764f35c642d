"""Rows on their way: prepared inserts, many at a time but never more than allowed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.committers.cassandra_client import Client, consistency_level
from holdfast.connectors.cassandra.deletes import Graves, delete_statements
from holdfast.connectors.cassandra.encode import listed
from holdfast.connectors.cassandra.rows import ROW, Rows, encode_rows
from holdfast.connectors.cassandra.table import Table
from holdfast.connectors.cassandra.types import parse_type
from holdfast.errors import ConfigError

if TYPE_CHECKING:
    from cassandra.query import BoundStatement, PreparedStatement, Statement

#: Rows of one partition travel together, up to this many and about this many bytes.
BATCH_ROWS, BATCH_BYTES = 100, 32 * 1024


class Sender:
    """Writes batches of rows with one write time; after `finish` Cassandra has taken them all."""

    def __init__(
        self, client: Client, table: Table, write_time: int, *, consistency: str, concurrency: int, keep_nulls: bool
    ) -> None:
        self._client, self._table, self._write_time = client, table, write_time
        self._consistency = consistency_level(consistency)
        self._keep_nulls = keep_nulls
        self._window = _Window(client, concurrency)

    def send(self, batch: pa.RecordBatch) -> None:
        """Hand the rows over; an error of an earlier one is raised here or by `finish`."""
        prepared = self._client.prepare(self._table.insert(batch.schema.names))
        self._check_types(prepared)
        rows = encode_rows(self._table, batch)
        statements: Iterable[Statement] = self._bound(prepared, rows)
        if len(self._table.partition) < len(self._table.key):
            statements = self._by_partition(statements, (rows.sizes - ROW).tolist())
        for statement in statements:
            self._window.submit(statement)

    def delete(self, batch: pa.RecordBatch, graves: Graves | None, order_by: str | None) -> None:
        """Delete the rows of these keys, and remember it."""
        if batch.num_rows:
            how = (self._write_time, self._consistency, graves, order_by)
            for statement in delete_statements(self._client, self._table, batch, *how):
                self._window.submit(statement)

    def finish(self) -> None:
        """Wait until all are taken."""
        self._window.drain()

    def _check_types(self, prepared: PreparedStatement) -> None:
        """The bytes are those of the types the rows were checked against: the table must still have them."""
        for column in prepared.column_metadata[:-1]:
            now, then = parse_type(column.type.cql_parameterized_type()), self._table.type_of(column.name)
            if not now.like(then):
                raise ConfigError(
                    f"column {column.name!r} of {self._table} is {now} now, and was {then} when these rows were decided"
                )

    def _bound(self, prepared: PreparedStatement, rows: Rows) -> Iterator[BoundStatement]:
        """Nothing is converted here: the values are bytes."""
        from cassandra.query import UNSET_VALUE, BoundStatement

        columns: list[list[Any]] = [listed(column) for column in rows.columns]
        if not self._keep_nulls:
            columns = [[UNSET_VALUE if value is None else value for value in column] for column in columns]
        write_time = self._write_time.to_bytes(8, "big", signed=True)
        for row in zip(*columns, strict=True):
            bound = BoundStatement(prepared, consistency_level=self._consistency)
            bound.values = [*row, write_time]
            bound.raw_values = ()  # only for its repr
            bound.is_idempotent = True
            yield bound

    def _by_partition(self, statements: Iterable[BoundStatement], sizes: list[int]) -> Iterator[Statement]:
        """Unlogged batches of one partition each: one mutation at the replicas, and many times faster."""
        partitions: dict[bytes, list[BoundStatement]] = {}
        bytes_of: dict[bytes, int] = {}
        for bound, size in zip(statements, sizes, strict=True):
            if size >= BATCH_BYTES:
                yield self._together([bound])  # alone: with others it could be more than a mutation may have
                continue
            key = bound.routing_key
            if bytes_of.get(key, 0) + size > BATCH_BYTES:
                del bytes_of[key]
                yield self._together(partitions.pop(key))
            partitions.setdefault(key, []).append(bound)
            bytes_of[key] = bytes_of.get(key, 0) + size
            if len(partitions[key]) >= BATCH_ROWS:
                del bytes_of[key]
                yield self._together(partitions.pop(key))
        for rows in partitions.values():
            yield self._together(rows)

    def _together(self, rows: list[BoundStatement]) -> Statement:
        from cassandra.query import BatchStatement, BatchType

        if len(rows) == 1:
            return rows[0]
        batch = BatchStatement(BatchType.UNLOGGED, consistency_level=self._consistency)
        batch.is_idempotent = True
        for row in rows:
            batch.add(row)
        return batch


class _Window:
    """Requests under way, at most so many; the first error stops it."""

    def __init__(self, client: Client, size: int) -> None:
        self._session, self._size = client.session, size
        self._free = threading.Semaphore(size)
        self._error: Exception | None = None

    def submit(self, statement: Statement) -> None:
        self._free.acquire()
        if self._error is not None:
            self._free.release()
            self.drain()
        try:
            future = self._session.execute_async(statement)
        except BaseException:
            self._free.release()
            raise
        future.add_callbacks(self._taken, self._refused)

    def drain(self) -> None:
        """The driver gives every request an end, by its timeout at the latest."""
        for _ in range(self._size):
            self._free.acquire()
        for _ in range(self._size):
            self._free.release()
        if self._error is not None:
            raise self._error

    def _taken(self, rows: Any) -> None:
        self._free.release()

    def _refused(self, error: Exception) -> None:
        self._error = self._error or error
        self._free.release()
