"""What the PostgreSQL tests share: a query without Spark over a database of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg.rows import dict_row

import holdfast as hf
from holdfast.testing.local import LocalBatch, LocalQuery, LocalRun
from tests.servers.postgres import execute

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
        return hf.PostgresSink(self.dsn, table, **options)

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

    @property
    def leftovers(self) -> list[str]:
        tables = self.select("SELECT relname FROM pg_class WHERE relname LIKE 'stage%' AND relkind = 'r'")
        gids = self.select("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
        return [row[0] for row in tables + gids]
