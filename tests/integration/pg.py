"""What the PostgreSQL tests share: a query without Spark over a database of its own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.rows import dict_row

import holdfast as hf
from holdfast.testing.local import LocalBatch, LocalQuery, LocalRun
from tests.servers.postgres import execute, left_behind

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


def batch(*partitions: Sequence[dict[str, Any]], schema: pa.Schema = SCHEMA, **options: Any) -> LocalBatch:
    made = [[pa.RecordBatch.from_pylist(list(rows), schema=schema)] for rows in partitions]
    return LocalBatch(made, **options)


def rows(*ids: int) -> list[dict[str, Any]]:
    return [{"id": i, "name": f"n{i}"} for i in ids]


def settle(run: LocalRun) -> None:
    """Wait for a sink that commits beside the next batch; raise what it failed with."""
    run.coordinator.drain(60.0)
    if run.coordinator.failure is not None:
        raise run.coordinator.failure


class Query:
    """A pipeline into one database; `start` is a new driver."""

    def __init__(self, folder: Path, dsn: str, name: str = "orders", schema: pa.Schema = SCHEMA) -> None:
        self.dsn = dsn
        self.local = LocalQuery(str(folder), name, schema)

    def sink(self, table: str = "t", **options: Any) -> hf.PostgresSink:
        # Most tests are about what is at the server; those of the log say so.
        return hf.PostgresSink(self.dsn, table, **{"stage": "server", **options})

    def start(self, *sinks: hf.PostgresSink, **options: Any) -> LocalRun:
        return self.local.start(list(sinks) or [self.sink(**{"create": True, **options})])

    def select(self, statement: str = "SELECT * FROM t ORDER BY 1") -> list[tuple[Any, ...]]:
        return execute(self.dsn, statement)

    def dicts(self, statement: str = "SELECT * FROM t ORDER BY 1") -> list[dict[str, Any]]:
        with psycopg.connect(self.dsn, row_factory=dict_row) as connection:
            return connection.execute(statement).fetchall()

    def ids(self, table: str = "t") -> list[int]:
        return [row[0] for row in self.select(f"SELECT id FROM {table} ORDER BY 1")]

    def connections(self) -> set[int]:
        """The server's processes for holdfast's connections to this database."""
        activity = "SELECT pid FROM pg_stat_activity WHERE datname = current_database()"
        return {row[0] for row in self.select(f"{activity} AND application_name = 'holdfast'")}

    def connected(self, count: int) -> set[int]:
        """These, once there are so many: the server takes a moment to end one that was closed."""
        deadline = time.monotonic() + 10
        while len(found := self.connections()) != count and time.monotonic() < deadline:
            time.sleep(0.02)
        assert len(found) == count, found
        return found

    @property
    def leftovers(self) -> list[str]:
        return left_behind(self.dsn)


def as_it_was(query: Query, committable: dict[str, Any], token: str, version: int) -> dict[str, Any]:
    """Staged rows and their committable as earlier versions had them: in a table of their own."""
    table = f"stage_{uuid.uuid4().hex}"
    columns = ", ".join(f'"{column}"' for column in committable["columns"])
    stage, part = committable["table"], committable["part"]
    execute(
        query.dsn,
        f'CREATE TABLE _holdfast."{table}" AS SELECT {columns} FROM _holdfast."{stage}" WHERE _holdfast_part = {part} '
        "ORDER BY ctid",
    )
    execute(query.dsn, f"COMMENT ON TABLE _holdfast.\"{table}\" IS '{token}'")
    execute(query.dsn, f"DELETE FROM _holdfast.staged WHERE part = {part}")
    made = {k: v for k, v in committable.items() if k != "part"} | {"version": version, "table": table}
    if version == 1:
        made = {k: v for k, v in made.items() if k not in ("mode", "key", "order_by")}
        made["target"] = ".".join(committable["target"])
    return made
