"""What is in the table already: with `order_by`, a row older than the stored one is not sent."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from holdfast.committers.cassandra_client import Client, consistency_level
from holdfast.committers.cassandra_settings import quote
from holdfast.connectors.cassandra.deletes import Graves
from holdfast.connectors.cassandra.encode import encode, listed
from holdfast.connectors.cassandra.table import Table
from holdfast.connectors.cassandra.types import normalise
from holdfast.sinks.order import is_older

#: How a level that writes is read, so that a read sees every write; with a smaller one it need not.
READS = {
    "LOCAL_QUORUM": "LOCAL_QUORUM",
    "QUORUM": "QUORUM",
    "EACH_QUORUM": "LOCAL_QUORUM",
    "ALL": "QUORUM",
}


class Stored:
    """Looks at the stored rows of a batch's keys.

    A look before the write is enough, without a condition in the write: checkpoints of one sink are delivered in order,
    and a driver that is not alone any more sends old checkpoints only, whose write times lose against newer ones.
    """

    def __init__(
        self,
        client: Client,
        table: Table,
        order_by: str,
        *,
        consistency: str,
        concurrency: int,
        graves: Graves | None = None,
    ) -> None:
        self._client, self._table, self._order_by, self._graves = client, table, order_by, graves
        self._consistency, self._concurrency = consistency_level(READS[consistency]), concurrency

    def newer(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The rows that are not older than the stored ones, nor than a delete; each key is there once."""
        given = normalise(batch.column(self._order_by), self._table.type_of(self._order_by)).to_pylist()
        table = self._table
        known = [self._read(batch, f"{quote(table.keyspace)}.{quote(table.name)}", table.key, self._order_by)]
        if self._graves is not None:
            known.append(self._read(batch, self._graves.sql, [f"k{n}" for n in range(len(table.key))], "at"))
        kept = [not any(is_older(value, old) for old in olds) for value, *olds in zip(given, *known, strict=True)]
        return batch if all(kept) else batch.filter(pa.array(kept))

    def _read(self, batch: pa.RecordBatch, where: str, key: Sequence[str], order: str) -> list[Any]:
        """The order of each row's key in a table, None where there is none."""
        from cassandra.concurrent import execute_concurrent
        from cassandra.query import BoundStatement

        table, column = self._table, quote(order)
        # As a number: moments outside of Python's years are stored, too.
        column = f"toUnixTimestamp({column})" if table.type_of(self._order_by).name == "timestamp" else column
        same = " AND ".join(f"{quote(name)} = ?" for name in key)
        prepared = self._client.prepare(f"SELECT {column} FROM {where} WHERE {same}")  # noqa: S608  quoted
        keys = [listed(encode(batch.column(name), table.type_of(name))) for name in table.key]
        statements = []
        for values in zip(*keys, strict=True):
            bound = BoundStatement(prepared, consistency_level=self._consistency)
            bound.values, bound.raw_values, bound.is_idempotent = list(values), (), True
            statements.append((bound, None))
        answers = execute_concurrent(self._client.session, statements, self._concurrency)
        found = []
        for _, rows in answers:
            row = rows.one()
            found.append(None if row is None else _plain(row[0]))
        return found


def _plain(value: Any) -> Any:
    """A value of the driver, as `normalise` has it."""
    from cassandra.util import Date, Time

    if isinstance(value, Date):
        return value.days_from_epoch + 2**31
    if isinstance(value, Time):
        return value.nanosecond_time
    return str(value) if isinstance(value, uuid.UUID) else value
