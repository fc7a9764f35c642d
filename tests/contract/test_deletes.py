"""I2: `delete_when` means the same in every sink that replaces rows by key, whatever is replayed and wherever it dies.

The same events in a batch job are the measure: of each key the event with the largest order counts, of equal ones the
last, and a delete leaves no row.
"""

from __future__ import annotations

import sqlite3
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast.errors import ConfigError, RowError
from holdfast.sinks.deletes import DELETED
from holdfast.testing.local import Died, LocalBatch, LocalQuery, armed
from tests.servers.cassandra import CassandraServer
from tests.servers.postgres import PostgresServer, execute

#: hundreds of small files, of which none outlives its story
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
SCHEMA = pa.schema([("k", pa.string()), ("at", pa.int64()), ("v", pa.int64()), (DELETED, pa.bool_())])


class Event(NamedTuple):
    k: str
    at: int | None
    v: int | None
    deleted: bool | None = False


class Checkpoint(NamedTuple):
    parts: list[list[Event]]
    #: where the driver dies, and then a new one starts and Spark runs the batch again
    crashes: Sequence[str] = ()
    #: a driver starts anew after it, although nothing is wrong
    restart: bool = False


def batch_job(checkpoints: list[Checkpoint]) -> dict[str, int | None]:
    last: dict[str, Event] = {}
    for event in (e for c in checkpoints for part in c.parts for e in part):
        before = last.get(event.k)
        if before is None or before.at is None or (event.at is not None and event.at >= before.at):
            last[event.k] = event
    return {k: event.v for k, event in last.items() if not event.deleted}


def play(folder: str, sink: Callable[[], Any], checkpoints: list[Checkpoint]) -> None:
    query = LocalQuery(f"{folder}/checkpoint", "orders", SCHEMA)
    run = query.start([sink()])
    for number, checkpoint in enumerate(checkpoints):
        rows = [[pa.RecordBatch.from_pylist([_row(e) for e in part], schema=SCHEMA)] for part in checkpoint.parts]
        for crash in checkpoint.crashes:
            try:
                with armed(crash, died=True):
                    run.run(number, LocalBatch(rows))
                    run.coordinator.drain(60.0)
            except Died:
                pass
            run = query.start([sink()])
        run.run(number, LocalBatch(rows))
        run.coordinator.drain(60.0)
        assert run.coordinator.failure is None
        if checkpoint.restart:
            run = query.start([sink()])
    run.close()


def _row(event: Event) -> dict[str, Any]:
    return {"k": event.k, "at": event.at, "v": event.v, DELETED: event.deleted}


def of_sqlite(folder: str) -> dict[str, int | None]:
    with closing(sqlite3.connect(f"{folder}/out.db")) as connection:
        return dict(connection.execute("SELECT k, v FROM t").fetchall())


CRASHES = ("task.write=error", "decision=error", "decision=lost", "commit.sink=error", "commit.sink=lost",
           "commit.record=error", "batch.return=error")  # fmt: skip
events = st.builds(
    Event,
    k=st.sampled_from("abc"),
    at=st.one_of(st.none(), st.integers(0, 6)),
    v=st.integers(0, 99),
    deleted=st.sampled_from([False, False, True, None]),
)
stories = st.lists(
    st.builds(
        Checkpoint,
        parts=st.lists(st.lists(events, min_size=1, max_size=5), min_size=1, max_size=3),
        crashes=st.lists(st.sampled_from(CRASHES), max_size=2),
        restart=st.booleans(),
    ),
    min_size=1,
    max_size=5,
)


@settings(max_examples=30, deadline=None)
@given(checkpoints=stories)
def test_i2_replays_and_crashes_leave_the_table_of_a_batch_job(checkpoints: list[Checkpoint]) -> None:
    options: dict[str, Any] = {"mode": "upsert", "key": ["k"], "order_by": "at", "delete_when": "true"}
    with TemporaryDirectory(dir=MEMORY) as folder:
        play(folder, lambda: hf.SqliteSink(f"{folder}/out.db", "t", **options), checkpoints)
        assert of_sqlite(folder) == batch_job(checkpoints)


#: A story that meets every case once, for stores in which a story takes a second.
STORY = [
    Checkpoint([[Event("a", 1, 1), Event("b", 5, 2), Event("c", 1, 3)], [Event("d", 3, 4), Event("e", None, 5)]]),
    # a row and its delete, in this order and in the other; a delete that comes late; one of a row that was never there
    Checkpoint(
        [
            [Event("a", 2, None, True), Event("b", 4, None, True), Event("f", 9, None, True)],
            [Event("g", 2, 6), Event("g", 3, None, True), Event("h", 3, None, True), Event("h", 2, 7)],
        ],
        ["commit.sink=error", "commit.record=error"],
    ),
    # late rows stay away, also after a restart; of equal orders the last one wins; no order is the smallest
    Checkpoint(
        [
            [Event("a", 1, 8), Event("f", 8, 9), Event("g", 2, 10), Event("h", 1, 11)],
            [Event("c", 1, None, True), Event("d", None, None, True), Event("e", None, None, True)],
        ],
        ["decision=lost"],
        restart=True,
    ),
    # newer rows come back
    Checkpoint([[Event("a", 3, 12), Event("c", 1, 13), Event("f", 9, 14), Event("e", None, 15), Event("i", 1, None)]]),
]
AFTER = {"a": 12, "b": 2, "c": 13, "d": 4, "e": 15, "f": 14, "i": None}


def test_the_story_is_what_a_batch_job_makes_of_it() -> None:
    assert batch_job(STORY) == AFTER


def test_i2_deletes_in_postgres(postgres: PostgresServer, tmp_path: Path) -> None:
    """Into a table that asks more of its rows than a delete says."""
    dsn = postgres.new_database()
    execute(dsn, 'CREATE TABLE t (k text COLLATE "C" PRIMARY KEY, at bigint, v bigint CHECK (v < 99))')
    options: dict[str, Any] = {"mode": "upsert", "key": ["k"], "order_by": "at", "delete_when": "true"}
    play(str(tmp_path), lambda: hf.PostgresSink(dsn, "t", **options), STORY)
    assert dict(execute(dsn, "SELECT k, v FROM t")) == AFTER
    (graves,) = [name for (name,) in execute(dsn, "SELECT tablename FROM pg_tables WHERE tablename ~ '^deleted_'")]
    kept = dict(execute(dsn, f"SELECT k0, at FROM _holdfast.{graves}"))
    assert kept == {"a": 2, "b": 4, "c": 1, "d": None, "e": None, "f": 9, "g": 3, "h": 3}
    assert execute(dsn, f"SELECT count(*) FROM _holdfast.{graves} WHERE until < now() + interval '6 days'") == [(0,)]
    # Their time is over: the next commit forgets them, and from then on a late row comes back.
    execute(dsn, f"UPDATE _holdfast.{graves} SET until = now() - interval '1 second'")
    more = [*STORY, Checkpoint([[Event("z", 1, 1)]]), Checkpoint([[Event("g", 1, 16)]])]
    resumed(str(tmp_path), lambda: hf.PostgresSink(dsn, "t", **options), more, len(STORY))
    assert dict(execute(dsn, "SELECT k, v FROM t")) == {**AFTER, "g": 16, "z": 1}
    assert execute(dsn, f"SELECT count(*) FROM _holdfast.{graves}") == [(0,)]


def resumed(folder: str, sink: Callable[[], Any], checkpoints: list[Checkpoint], first: int) -> None:
    query = LocalQuery(f"{folder}/checkpoint", "orders", SCHEMA)
    query.planned = query.committed = first - 1
    run = query.start([sink()])
    for number, checkpoint in enumerate(checkpoints[first:], first):
        rows = [[pa.RecordBatch.from_pylist([_row(e) for e in part], schema=SCHEMA)] for part in checkpoint.parts]
        run.run(number, LocalBatch(rows))
        run.coordinator.drain(60.0)
        assert run.coordinator.failure is None
    run.close()


def test_a_delete_in_postgres_needs_no_more_than_its_key(postgres: PostgresServer, tmp_path: Path) -> None:
    """NOT NULL, CHECK, generated columns, expression indexes and partitions are asked of rows that stay."""
    dsn = postgres.new_database()
    execute(
        dsn,
        "CREATE TABLE t (k text, at bigint NOT NULL, v bigint NOT NULL CHECK (v > 0), w bigint GENERATED ALWAYS AS "
        "(100 / v) STORED NOT NULL, PRIMARY KEY (k)) PARTITION BY RANGE (k)",
    )
    execute(dsn, "CREATE TABLE t_a PARTITION OF t FOR VALUES FROM ('a') TO ('n')")
    options: dict[str, Any] = {"mode": "upsert", "key": ["k"], "delete_when": "true"}
    query = LocalQuery(str(tmp_path / "checkpoint"), "orders", SCHEMA)
    run = query.start([hf.PostgresSink(dsn, "t", **options)])

    def write(number: int, *rows: Event) -> None:
        run.run(number, LocalBatch([[pa.RecordBatch.from_pylist([_row(e) for e in rows], schema=SCHEMA)]]))
        run.coordinator.drain(60.0)
        assert run.coordinator.failure is None

    write(0, Event("a", 1, 5), Event("b", 1, 5))
    write(1, Event("a", 2, None, True), Event("z", 2, None, True), Event("c", 2, 7))
    assert execute(dsn, "SELECT k, v FROM t ORDER BY k") == [("b", 5), ("c", 7)]
    with pytest.raises(RowError, match="v is NOT NULL"):
        write(2, Event("d", 2, None))
    with pytest.raises(RowError, match="violates check constraint"):
        write(2, Event("d", 2, -1))
    with pytest.raises(RowError, match=r"several rows with key k=a.*order_by"):
        write(2, Event("a", 2, 1), Event("a", 3, None, True))
    run.close()


def test_a_role_that_may_not_delete_is_told_at_the_start(postgres: PostgresServer, tmp_path: Path) -> None:
    dsn = postgres.new_database()
    role = f"writer_{uuid.uuid4().hex[:8]}"
    execute(dsn, "CREATE TABLE t (k text PRIMARY KEY, at bigint, v bigint)")
    execute(dsn, f"CREATE ROLE {role}")
    execute(dsn, f"GRANT SELECT, INSERT, UPDATE ON t TO {role}")
    execute(dsn, f"CREATE SCHEMA _holdfast AUTHORIZATION {role}")
    sink = hf.PostgresSink(
        f"{dsn}{'&' if '?' in dsn else '?'}options=-crole%3D{role}",
        "t", mode="upsert", key=["k"], order_by="at", delete_when="true",
    )  # fmt: skip
    with pytest.raises(
        ConfigError, match=r"cannot delete from table public\.t: permission denied.*rights to SELECT and"
    ):
        LocalQuery(str(tmp_path / "checkpoint"), "orders", SCHEMA).start([sink])


def test_i2_deletes_in_cassandra(cassandra: CassandraServer, tmp_path: Path) -> None:
    keyspace = f"deletes_{uuid.uuid4().hex[:8]}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cassandra.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
    cassandra.execute(f"CREATE TABLE {keyspace}.t (k text PRIMARY KEY, at bigint, v bigint)")
    place: dict[str, Any] = {"keyspace": keyspace, "table": "t", **cassandra.options}
    play(
        str(tmp_path),
        lambda: hf.CassandraSink(**place, order_by="at", delete_when="true", keep_deletes="1d"),
        STORY,
    )
    assert {row["k"]: row["v"] for row in cassandra.execute(f"SELECT k, v FROM {keyspace}.t")} == AFTER
    tables = cassandra.execute(f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}'")
    (graves,) = [t["table_name"] for t in tables if t["table_name"].startswith("holdfast_deleted_")]
    kept = cassandra.execute(f"SELECT k0, at, ttl(at) AS ttl FROM {keyspace}.{graves}")
    assert {row["k0"]: row["at"] for row in kept if row["at"] is not None} == {"a": 2, "c": 1, "f": 9, "g": 3, "h": 3}
    assert all(80_000 < row["ttl"] <= 86_400 for row in kept if row["at"] is not None)


def test_without_an_order_a_delete_is_one_of_its_checkpoint(cassandra: CassandraServer, tmp_path: Path) -> None:
    keyspace = f"deletes_{uuid.uuid4().hex[:8]}"
    replication = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cassandra.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {replication}")
    cassandra.execute(f"CREATE TABLE {keyspace}.t (k text, at bigint, v bigint, PRIMARY KEY (k, at))")
    place: dict[str, Any] = {"keyspace": keyspace, "table": "t", **cassandra.options}
    play(
        str(tmp_path),
        lambda: hf.CassandraSink(**place, delete_when="true"),
        [
            Checkpoint([[Event("a", 1, 1), Event("a", 2, 2), Event("b", 1, 3)]]),
            Checkpoint([[Event("a", 1, None, True), Event("b", 1, None, True)]]),
            Checkpoint([[Event("b", 1, 4)]]),
        ],
    )
    found = cassandra.execute(f"SELECT k, at, v FROM {keyspace}.t")
    assert {(row["k"], row["at"], row["v"]) for row in found} == {("a", 2, 2), ("b", 1, 4)}
