"""The rows that holdfast encodes for COPY are those that ADBC writes."""

from __future__ import annotations

import datetime
import resource
import time
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.connectors.postgres import rows as encoding
from holdfast.connectors.postgres.server import Server
from holdfast.errors import RowError
from holdfast.testing.local import LocalBatch, TaskFailed
from tests.integration.pg import SCHEMA, Query
from tests.integration.pg import rows as some_rows
from tests.servers.postgres import PostgresServer, execute

COLUMNS = {
    "flag": (pa.bool_(), "boolean", st.booleans()),
    "small": (pa.int16(), "smallint", st.integers(-(2**15), 2**15 - 1)),
    "whole": (pa.int32(), "integer", st.integers(-(2**31), 2**31 - 1)),
    "big": (pa.int64(), "bigint", st.integers(-(2**63), 2**63 - 1)),
    "single": (pa.float32(), "real", st.floats(width=32)),
    "double": (pa.float64(), "double precision", st.floats()),
    "day": (pa.date32(), "date", st.dates()),
    "local": (pa.timestamp("us"), "timestamp", st.datetimes()),
    "instant": (pa.timestamp("us", "UTC"), "timestamptz", st.datetimes(timezones=st.just(datetime.UTC))),
    "id": (pa.binary(16), "uuid", st.binary(min_size=16, max_size=16)),
    "words": (pa.string(), "text", st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))),
    "bits": (pa.binary(), "bytea", st.binary()),
}
PLAIN = pa.schema([(name, kind) for name, (kind, _, _) in COLUMNS.items()])
VALUES = st.fixed_dictionaries({name: st.none() | values for name, (_, _, values) in COLUMNS.items()})


@pytest.fixture(scope="module")
def server(postgres: PostgresServer) -> tuple[Server, str]:
    dsn = postgres.new_database()
    columns = ", ".join(f"{name} {sql}" for name, (_, sql, _) in COLUMNS.items())
    for table in ("copied", "ingested"):
        execute(dsn, f"CREATE TABLE {table} (at serial, {columns})")
    return Server(dsn, 60), dsn


def write(server: tuple[Server, str], batches: list[pa.RecordBatch]) -> tuple[list[Any], list[Any]]:
    """What is in the tables after both have written the same."""
    where, dsn = server
    execute(dsn, "TRUNCATE copied, ingested RESTART IDENTITY")
    for table, plain in (("copied", True), ("ingested", False)):
        session = where.session(plain=plain)
        for batch in batches:
            session.ingest("public", table, batch)
        session.execute("COMMIT")
        session.keep()
    # As text: NaN is not equal to itself.
    copied, ingested = (
        execute(dsn, f"SELECT {table}::text FROM {table} ORDER BY at") for table in ("copied", "ingested")
    )
    return copied, ingested


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(made=st.lists(st.lists(VALUES, max_size=5), min_size=1, max_size=3), skip=st.integers(0, 2))
def test_what_is_encoded_here_is_what_adbc_writes(
    server: tuple[Server, str], made: list[list[dict[str, Any]]], skip: int
) -> None:
    batches = [pa.RecordBatch.from_pylist(rows, schema=PLAIN).slice(skip) for rows in made]
    copied, ingested = write(server, batches)
    assert copied == ingested
    assert len(copied) == sum(batch.num_rows for batch in batches)


def test_batches_without_nulls_and_of_nulls_alone(server: tuple[Server, str]) -> None:
    whole = pa.RecordBatch.from_pydict({"whole": list(range(500)), "words": ["x" * (i % 40) for i in range(500)]})
    whole = whole.cast(pa.schema([PLAIN.field("whole"), PLAIN.field("words")]))
    nothing = pa.RecordBatch.from_arrays([pa.nulls(3, pa.int32()), pa.nulls(3, pa.string())], schema=whole.schema)
    copied, ingested = write(server, [whole, nothing, whole.slice(250, 7)])
    assert copied == ingested
    assert len(copied) == 510


def test_a_batch_too_large_for_one_array_is_split(server: tuple[Server, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "LARGEST", 100)
    batch = pa.RecordBatch.from_pydict(
        {"words": [f"{i}" * 9 for i in range(100)]}, schema=pa.schema([PLAIN.field("words")])
    )
    assert len(list(encoding.encode(batch))) > 8
    copied, ingested = write(server, [batch])
    assert copied == ingested


@pytest.mark.parametrize("mode", ["ledger", "two-phase"])
def test_a_row_the_server_refuses_is_a_row_error_and_leaves_nothing(
    postgres: PostgresServer, tmp_path: Path, mode: str
) -> None:
    query = Query(tmp_path, postgres.new_database())
    run = query.start(mode=mode)
    bad = pa.RecordBatch.from_pylist([*some_rows(1), {"id": 2, "name": "\0"}], schema=SCHEMA)
    with pytest.raises(RowError, match="does not go into table"):
        run.run(0, LocalBatch([[bad]]))
    run.close()
    assert query.ids() == []
    assert query.leftovers == []


def test_a_task_that_breaks_off_in_its_rows_leaves_no_open_transaction(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    query = Query(tmp_path, postgres.new_database())
    run = query.start(mode="two-phase")
    batch = pa.RecordBatch.from_pylist(some_rows(1, 2), schema=SCHEMA)
    with pytest.raises(TaskFailed):
        run.run(0, LocalBatch([[batch, batch]], failing=0))
    run.close()
    query.connected(0)
    run = query.start(mode="two-phase")
    run.run(0, LocalBatch([[batch]]))
    run.close()
    assert query.ids() == [1, 2]


def test_rows_wait_for_a_slow_server_instead_of_filling_memory(server: tuple[Server, str]) -> None:
    where, dsn = server
    execute(dsn, "CREATE TABLE IF NOT EXISTS slow (words text)")
    slow = "BEGIN PERFORM pg_sleep(CASE length(NEW.words) WHEN 4 THEN 40 ELSE 0.02 END); RETURN NEW; END"
    execute(dsn, f"CREATE OR REPLACE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS '{slow}'")
    execute(dsn, "CREATE OR REPLACE TRIGGER slow BEFORE INSERT ON slow FOR EACH ROW EXECUTE FUNCTION slow()")
    batch = pa.RecordBatch.from_pydict({"words": ["x" * 2_000_000] * 10}, schema=pa.schema([PLAIN.field("words")]))
    session = where.session(plain=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.monotonic()
    for _ in range(15):
        session.ingest("public", "slow", batch)
    assert time.monotonic() - begin > 2.5, "the server was not waited for"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 150_000, "of 300 MB"
    session.ingest("public", "slow", pa.RecordBatch.from_pydict({"words": ["last"]}, schema=batch.schema))
    begin = time.monotonic()
    session.close()
    assert time.monotonic() - begin < 20, "nobody waits for rows that are given up"
    assert execute(dsn, "SELECT count(*) FROM slow") == [(0,)]


@pytest.mark.parametrize("plain", [True, False])
def test_a_limit_on_statements_does_not_end_a_task_that_waits_for_rows(server: tuple[Server, str], plain: bool) -> None:
    _, dsn = server
    session = Server(f"{dsn}?options=-c%20statement_timeout%3D200", 60).session(plain=plain)
    batch = pa.RecordBatch.from_pydict({"words": ["x"]}, schema=pa.schema([PLAIN.field("words")]))
    execute(dsn, "TRUNCATE copied")
    for _ in range(3):
        session.ingest("public", "copied", batch)
        time.sleep(0.15)
    session.execute("COMMIT")
    session.close()
    assert execute(dsn, "SELECT count(*) FROM copied") == [(3,)]


def test_a_connection_that_breaks_in_the_rows_is_an_error_with_its_reason(server: tuple[Server, str]) -> None:
    where, dsn = server
    session = where.session(plain=True)
    batch = pa.RecordBatch.from_pydict({"words": ["x" * 1000] * 10_000}, schema=pa.schema([PLAIN.field("words")]))
    session.ingest("public", "copied", batch)
    execute(dsn, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query LIKE 'COPY%'")
    with pytest.raises(psycopg.OperationalError):
        for _ in range(100):
            session.ingest("public", "copied", batch)
    session.close()


@pytest.mark.parametrize(("name", "bits"), [("day", 32), ("local", 64), ("instant", 64)])
def test_days_and_times_out_of_range_are_refused_by_name(name: str, bits: int) -> None:
    lowest = pa.array([-(2 ** (bits - 1))], pa.int32() if bits == 32 else pa.int64())
    batch = pa.RecordBatch.from_arrays([lowest.cast(COLUMNS[name][0])], names=[name])
    with pytest.raises(RowError, match=f"column '{name}': overflow"):
        list(encoding.encode(batch))
