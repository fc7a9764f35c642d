"""I3: a column that the table or the files do not have is refused with the statement, added with the decision, or left
out and counted; a type that changed is refused. One meaning in every sink."""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.sinks.deletes import DELETED
from holdfast.testing.local import Died, LocalBatch, LocalQuery, LocalRun, armed
from tests.servers.cassandra import CassandraServer
from tests.servers.postgres import PostgresServer, execute

NARROW = pa.schema([("id", pa.int64()), ("name", pa.string())])
WIDE = pa.schema([*NARROW, ("price", pa.decimal128(10, 2)), ("at", pa.timestamp("us", "UTC")), ("tags", pa.string())])
RETYPED = pa.schema([("id", pa.int64()), ("name", pa.int64())])


@dataclass
class Store:
    """A sink's table or folder, and a look into it."""

    folder: Path
    make: Callable[..., Any]
    read: Callable[[], list[dict[str, Any]]]
    #: what the error of `freeze` says
    statement: str
    number: int = 0

    def start(self, schema: pa.Schema, **options: Any) -> LocalRun:
        query = LocalQuery(str(self.folder / "checkpoint"), "orders", schema)
        query.planned = query.committed = self.number - 1 if self.number else None
        return query.start([self.make(**options)])

    def write(self, run: LocalRun, schema: pa.Schema, *rows: dict[str, Any]) -> None:
        run.run(self.number, LocalBatch([[pa.RecordBatch.from_pylist([row], schema=schema)] for row in rows]))
        run.coordinator.drain(60.0)
        assert run.coordinator.failure is None
        self.number += 1

    def discarded(self, checkpoint_id: int) -> Any:
        (found,) = [c for c in hf.checkpoints(self.folder / "checkpoint") if c.checkpoint_id == checkpoint_id]
        (sink,) = found.sinks.values()
        return sink.get("discarded")


ANN, BOB = {"id": 1, "name": "ann"}, {"id": 2, "name": "bob", "tags": "x"}
EVE: dict[str, Any] = {"id": 3, "name": "eve", "price": None, "at": None, "tags": None}


def check(store: Store, *, evolves: bool = True) -> None:
    """The whole life of a table: narrow, refused, narrow rows of a wide stream, wide, and its type changed."""
    run = store.start(NARROW)
    store.write(run, NARROW, ANN)
    run.close()
    with pytest.raises(ConfigError, match=store.statement):
        store.start(WIDE)
    run = store.start(WIDE, schema_change="discard-column")
    store.write(run, WIDE, BOB, EVE)
    run.close()
    names = sorted(row["name"] for row in store.read())
    assert names == ["ann", "bob", "eve"]
    assert all(set(row) == {"id", "name"} for row in store.read())
    assert store.discarded(1) == {"price": 0, "at": 0, "tags": 1}
    if evolves:
        run = store.start(WIDE, schema_change="evolve")
        assert all(set(row) == {"id", "name"} for row in store.read()), "nothing happens before the decision"
        # The driver dies after the decision: the commit of the next one adds the columns, and once.
        with pytest.raises(Died), armed("commit.sink=error", died=True):
            store.write(run, WIDE, {**EVE, "id": 4, "tags": "y"})
            run.coordinator.drain(60.0)
        store.number += 1
        run = store.start(WIDE, schema_change="evolve")
        store.write(run, WIDE, {**EVE, "id": 5, "tags": "z"})
        run.close()
        assert {row["id"]: row.get("tags") for row in store.read()} == {1: None, 2: None, 3: None, 4: "y", 5: "z"}
        assert all(set(row) == set(WIDE.names) for row in store.read() if row["id"] in (4, 5))
        assert store.discarded(store.number - 1) is None
        store.start(WIDE).close()
    with pytest.raises(ConfigError, match=r"name'? is (int64|text and the DataFrame's is int64)"):
        store.start(RETYPED, schema_change="evolve" if evolves else "discard-column")


def of_sqlite(path: Path, table: str = "t") -> list[dict[str, Any]]:
    with closing(sqlite3.connect(path)) as connection:
        found = connection.execute(f"SELECT * FROM {table}")
        names = [column[0] for column in found.description]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]


def test_i3_in_sqlite(tmp_path: Path) -> None:
    path = tmp_path / "out.db"
    check(
        Store(
            tmp_path,
            lambda **options: hf.SqliteSink(path, "t", **options),
            lambda: of_sqlite(path),
            r'has no column price, at, tags: add it with ALTER TABLE "t" ADD COLUMN "price" TEXT; ALTER TABLE "t" ADD '
            r'COLUMN "at" TEXT; ALTER TABLE "t" ADD COLUMN "tags" TEXT; or .*evolve.*discard-column',
        )
    )


def test_i3_in_postgres(postgres: PostgresServer, tmp_path: Path) -> None:
    dsn = postgres.new_database()
    check(
        Store(
            tmp_path,
            lambda **options: hf.PostgresSink(dsn, "t", create=True, **options),
            lambda: [row[0] for row in execute(dsn, "SELECT to_jsonb(t) FROM t")],
            r'has no column price, at, tags: add it with ALTER TABLE "public"."t" ADD COLUMN "price" numeric\(10, 2\); '
            r'ALTER TABLE "public"."t" ADD COLUMN "at" timestamptz; ALTER TABLE "public"."t" ADD COLUMN "tags" ',
        )
    )
    kinds = "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute WHERE attrelid = 't'::regclass"
    assert set(execute(dsn, f"{kinds} AND attnum > 2")) == {
        ("price", "numeric(10,2)"), ("at", "timestamp with time zone"), ("tags", "text"),
    }  # fmt: skip


def test_i3_in_postgres_with_keys_and_deletes(postgres: PostgresServer, tmp_path: Path) -> None:
    dsn = postgres.new_database()
    execute(dsn, "CREATE TABLE t (id bigint PRIMARY KEY)")
    schema = pa.schema([("id", pa.int64()), ("many", pa.list_(pa.decimal128(6, 1))), (DELETED, pa.bool_())])
    options: dict[str, Any] = {"mode": "upsert", "key": ["id"], "delete_when": "true", "schema_change": "evolve"}
    query = LocalQuery(str(tmp_path / "checkpoint"), "orders", schema)
    run = query.start([hf.PostgresSink(dsn, "t", **options)])
    rows = [{"id": n, "many": [n, 2], DELETED: n == 2} for n in (1, 2)]
    run.run(0, LocalBatch([[pa.RecordBatch.from_pylist(rows, schema=schema)]]))
    run.coordinator.drain(60.0)
    assert run.coordinator.failure is None
    assert execute(dsn, "SELECT id, many::text FROM t") == [(1, "{1.0,2.0}")]
    run.close()


def test_i3_only_the_owner_of_a_table_can_evolve_it(postgres: PostgresServer, tmp_path: Path) -> None:
    dsn, role = postgres.new_database(), f"writer_{uuid.uuid4().hex[:8]}"
    execute(dsn, "CREATE TABLE t (id bigint)")
    execute(dsn, f"CREATE ROLE {role}")
    execute(dsn, f"GRANT ALL ON t TO {role}")
    execute(dsn, f"CREATE SCHEMA _holdfast AUTHORIZATION {role}")
    place = f"{dsn}{'&' if '?' in dsn else '?'}options=-crole%3D{role}"
    with pytest.raises(ConfigError, match=r'only its owner may: let the owner run ALTER TABLE "public"."t" ADD COLUMN'):
        LocalQuery(str(tmp_path), "orders", NARROW).start([hf.PostgresSink(place, "t", schema_change="evolve")])
    with pytest.raises(ConfigError, match="needs mode='ledger' or 'upsert'"):
        hf.PostgresSink(dsn, "t", mode="two-phase", schema_change="evolve")


def test_i3_in_cassandra(cassandra: CassandraServer, tmp_path: Path) -> None:
    keyspace = f"wider_{uuid.uuid4().hex[:8]}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cassandra.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
    cassandra.execute(f"CREATE TABLE {keyspace}.t (id bigint PRIMARY KEY, name text)")
    place: dict[str, Any] = {"keyspace": keyspace, "table": "t", **cassandra.options}
    check(
        Store(
            tmp_path,
            lambda **options: hf.CassandraSink(**place, **options),
            lambda: [dict(row) for row in cassandra.execute(f"SELECT * FROM {keyspace}.t")],
            rf'add it with ALTER TABLE "{keyspace}"."t" ADD "price" decimal; ALTER TABLE "{keyspace}"."t" ADD "at" '
            rf'timestamp; ALTER TABLE "{keyspace}"."t" ADD "tags" text; or let the sink do it',
        )
    )


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_i3_in_files(tmp_path: Path, form: str) -> None:
    """Readers of files of both kinds: DuckDB joins them by name; without that it takes the columns of the first."""
    files = f"{tmp_path}/out/*.{form}"

    def read() -> list[dict[str, Any]]:
        with duckdb.connect() as connection:
            found = connection.execute(f"SELECT * FROM read_{form}('{files}', union_by_name=true) ORDER BY id")
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    rolling = hf.Rolling(age="0s")
    store = Store(
        tmp_path,
        lambda **options: hf.FileSink(tmp_path / "out", form, rolling=rolling, **options),
        read,
        r"column price, at, tags is new, and the files of .*out have id, name: .*schema_change='evolve'",
    )
    check(store)


def test_i3_csv_files_have_the_columns_of_the_first(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="'evolve' does not go with format='csv'"):
        hf.FileSink(tmp_path / "out", "csv", schema_change="evolve")

    def read() -> list[dict[str, Any]]:
        with duckdb.connect() as connection:
            found = connection.execute(f"SELECT * FROM read_csv('{tmp_path}/out/*.csv', header=true) ORDER BY id")
            names = [column[0] for column in found.description]
            return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    rolling = hf.Rolling(age="0s")
    make = lambda **options: hf.FileSink(tmp_path / "out", "csv", rolling=rolling, **options)  # noqa: E731
    check(Store(tmp_path, make, read, "column price, at, tags is new"), evolves=False)


def test_a_column_that_was_left_out_for_a_while_keeps_its_type(tmp_path: Path) -> None:
    rolling = hf.Rolling(age="0s")
    store = Store(tmp_path, lambda **options: hf.FileSink(tmp_path / "out", rolling=rolling, **options), list, "")
    for schema in (NARROW, NARROW.remove(1)):
        run = store.start(schema)
        store.write(run, schema, {"id": 1, "name": "ann"})
        run.close()
    with pytest.raises(ConfigError, match="column 'name' is int64 now and was string"):
        store.start(RETYPED)
    store.start(NARROW).close()
    # A new folder, as the error says, has no columns yet.
    store.make = lambda **options: hf.FileSink(tmp_path / "new", rolling=rolling, name="files-out", **options)
    run = store.start(RETYPED)
    store.write(run, RETYPED, {"id": 1, "name": 2})
    run.close()


def test_a_key_cannot_be_left_out(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "out.db")) as connection:
        connection.execute("CREATE TABLE t (name TEXT)")
    for choice in ("evolve", "discard-column"):
        sink = hf.SqliteSink(tmp_path / "out.db", "t", mode="upsert", key=["id"], schema_change=choice)
        with pytest.raises(ConfigError, match="has no column id, which is part of key or order_by"):
            LocalQuery(str(tmp_path / "checkpoint"), "orders", NARROW).start([sink])
    with pytest.raises(ConfigError, match="schema_change must be one of freeze, evolve, discard-column, not 'add'"):
        hf.SqliteSink(tmp_path / "out.db", "t", schema_change="add")
