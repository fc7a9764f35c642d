"""Deletes in Cassandra: rows are deleted by primary key, and the table beside remembers it for a time of its own.

Cassandra's own tombstones compare write times, which say when a row was sent; `order_by` says which one is later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.committers.cassandra_client import Client
from holdfast.committers.cassandra_settings import quote
from holdfast.connectors.cassandra.encode import encode, listed
from holdfast.connectors.cassandra.table import Table
from holdfast.sinks.deletes import kept_name

if TYPE_CHECKING:
    from cassandra.query import BoundStatement

_LOOK = "SELECT column_name FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?"


@dataclass(frozen=True)
class Graves:
    """The table that remembers the deletes of one table, key and order; Cassandra forgets them after `keep` seconds."""

    keyspace: str
    name: str
    keep: int

    @property
    def sql(self) -> str:
        """Quoted, for use in CQL."""
        return f"{quote(self.keyspace)}.{quote(self.name)}"

    def to_json(self) -> dict[str, Any]:
        """For a committable (rule 16)."""
        return {"keyspace": self.keyspace, "name": self.name, "keep": self.keep}

    @classmethod
    def from_json(cls, data: Mapping[str, Any] | None) -> Graves | None:
        """Read back."""
        return None if data is None else cls(data["keyspace"], data["name"], data["keep"])


def prepare_graves(client: Client, table: Table, order_by: str, keep: float) -> Graves:
    """Make the table that remembers deletes, if it is not there."""
    kinds = [str(table.type_of(column)) for column in (*table.key, order_by)]
    name = kept_name("holdfast_deleted_", table.name, *table.key, order_by, *kinds)
    graves = Graves(table.keyspace, name, int(keep))
    if not client.query(_LOOK, (table.keyspace, name)):
        keys = [f"k{n}" for n in range(len(table.key))]
        declared = ", ".join(f"{column} {kind}" for column, kind in zip([*keys, "at"], kinds, strict=True))
        partition = ", ".join(keys[: len(table.partition)])
        rest = "".join(f", {key}" for key in keys[len(table.partition) :])
        said = f"holdfast: deleted keys of table {table}".replace("'", "''")
        client.session.execute(
            f"CREATE TABLE IF NOT EXISTS {graves.sql} ({declared}, PRIMARY KEY (({partition}){rest})) "
            f"WITH comment = '{said}'"
        )
    return graves


def delete_statements(
    client: Client,
    table: Table,
    batch: pa.RecordBatch,
    write_time: int,
    consistency: int,
    graves: Graves | None,
    order_by: str | None,
) -> Iterator[BoundStatement]:
    """What deletes the rows of these keys, and remembers it first."""
    from cassandra.query import BoundStatement

    time = write_time.to_bytes(8, "big", signed=True)
    keys = [listed(encode(batch.column(name), table.type_of(name))) for name in table.key]
    where = " AND ".join(f"{quote(name)} = ?" for name in table.key)
    target = f"{quote(table.keyspace)}.{quote(table.name)}"
    delete = client.prepare(f"DELETE FROM {target} USING TIMESTAMP ? WHERE {where}")  # noqa: S608  quoted
    remember = None
    orders: list[bytes | None] = [None] * batch.num_rows
    if graves is not None and order_by is not None:
        names, marks = ", ".join(f"k{n}" for n in range(len(keys))), ", ".join("?" * len(keys))
        remember = client.prepare(
            f"INSERT INTO {graves.sql} ({names}, at) VALUES ({marks}, ?) USING TIMESTAMP ? AND TTL {graves.keep}"  # noqa: S608
        )
        orders = listed(encode(batch.column(order_by), table.type_of(order_by)))
    for *key, order in zip(*keys, orders, strict=True):
        values: list[tuple[Any, list[Any]]] = [] if remember is None else [(remember, [*key, order, time])]
        for prepared, given in [*values, (delete, [time, *key])]:
            bound = BoundStatement(prepared, consistency_level=consistency)
            bound.values, bound.raw_values, bound.is_idempotent = given, (), True
            yield bound
