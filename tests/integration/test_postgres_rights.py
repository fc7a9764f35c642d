"""Roles that may little, timeouts that are meant for people, a pooler in between: it works, or a sentence says why."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from holdfast.errors import ConfigError, RowError
from holdfast.sinks.subtask import make_task
from holdfast.testing.local import PickledTasks
from tests.integration.pg import Query, batch, rows, settle
from tests.integration.test_postgres_proofs import LONG
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer, execute, newest

LOG = {"mode": "ledger", "stage": "log"}
MODES: tuple[dict[str, Any], ...] = ({"mode": "ledger"}, LOG, {"mode": "two-phase"}, {"mode": "upsert", "key": ["id"]})
each_mode = pytest.mark.parametrize("options", MODES, ids=[str(o.get("stage") or o["mode"]) for o in MODES])
SLOW = (
    "CREATE TABLE t (id bigint PRIMARY KEY, name text); "
    "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN PERFORM pg_sleep(0.4); RETURN NEW; END'; "
    "CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()"
)


@pytest.fixture
def query(postgres: PostgresServer, tmp_path: Path) -> Query:
    return Query(tmp_path / "checkpoint", postgres.new_database())


@pytest.fixture
def role(query: Query, postgres: PostgresServer, tmp_path: Path) -> Iterator[Callable[[], tuple[str, Query]]]:
    """Makes roles without rights, and a query as each of them."""
    made: list[str] = []

    def make() -> tuple[str, Query]:
        name = f"r_{uuid.uuid4().hex[:8]}"
        execute(query.dsn, f"CREATE ROLE {name} LOGIN PASSWORD 'x'")
        made.append(name)
        database = query.dsn.rpartition("/")[2]
        dsn = f"host=127.0.0.1 port={postgres.port} dbname={database} user={name} password=x"
        return name, Query(tmp_path / name, dsn, name=f"of {name}")

    yield make
    for name in made:
        execute(query.dsn, f"DROP OWNED BY {name}")
        execute(query.dsn, f"DROP ROLE {name}")


@each_mode
def test_timeouts_of_a_role_end_nothing_of_ours(query: Query, options: dict[str, Any]) -> None:
    timeouts_end_nothing(query, options, ["statement_timeout", "idle_in_transaction_session_timeout"])


@pytest.fixture(scope="module")
def postgres_18() -> Iterator[PostgresServer]:
    """PostgreSQL 18 of the same wheel: since 17 there is `transaction_timeout`."""
    server = PostgresServer(installed=newest(), fsync="off")
    server.start()
    yield server
    server.close()


@each_mode
def test_the_transaction_timeout_of_postgresql_17_and_newer_ends_nothing_of_ours(
    postgres_18: PostgresServer, tmp_path: Path, options: dict[str, Any]
) -> None:
    query = Query(tmp_path / "checkpoint", postgres_18.new_database())
    timeouts_end_nothing(query, options, ["transaction_timeout"])


@pytest.mark.parametrize(
    ("server", "timeout"), [("postgres", "statement_timeout"), ("postgres_18", "transaction_timeout")]
)
def test_ending_a_prepared_transaction_is_not_ended_by_a_timeout(
    request: pytest.FixtureRequest, tmp_path: Path, server: str, timeout: str
) -> None:
    """COMMIT and ROLLBACK PREPARED are in no transaction that could have settings of its own."""
    query = Query(tmp_path / "checkpoint", request.getfixturevalue(server).new_database())
    execute(query.dsn, f"ALTER DATABASE {query.dsn.rpartition('/')[2]} SET {timeout} = '150ms'")
    run = query.start(mode="two-phase")
    (sink,) = run.sinks
    with sink.server.connect() as connection:
        connection.alone("SELECT pg_sleep(0.4)")
    run.run(0, batch(rows(1)))
    run.close()
    assert query.ids() == [1]
    assert execute(query.dsn, f"SHOW {timeout}") == [("150ms",)], "others' settings are left alone"


def timeouts_end_nothing(query: Query, options: dict[str, Any], names: Sequence[str]) -> None:
    execute(query.dsn, SLOW)
    for name in names:
        execute(query.dsn, f"ALTER DATABASE {query.dsn.rpartition('/')[2]} SET {name} = '150ms'")
    with psycopg.connect(query.dsn) as probe, pytest.raises(psycopg.Error, match="timeout"):
        probe.execute("SELECT pg_sleep(0.4)")
    run = query.start(**options)
    (sink,) = run.sinks
    writer = sink.begin(make_task(run.info, sink.name, 0, 0, 0, 0))
    sink.write(writer, pa.RecordBatch.from_pylist(rows(1), schema=query.local.schema))
    if options is not LOG:  # there a task asks the server for nothing
        writer._execute("SELECT pg_sleep(0.4)")
    sink.write(writer, pa.RecordBatch.from_pylist(rows(2), schema=query.local.schema))
    data = [sink.pre_commit(writer)]
    sink.commit(0, data, PickledTasks())
    run.close()
    assert query.ids() == [1, 2]


def test_an_idle_transaction_of_a_task_is_not_ended_while_it_waits_for_rows(query: Query) -> None:
    for name in ("idle_in_transaction_session_timeout", "idle_session_timeout"):
        execute(query.dsn, f"ALTER DATABASE {query.dsn.rpartition('/')[2]} SET {name} = '150ms'")
    run = query.start(mode="ledger")
    (sink,) = run.sinks
    writer = sink.begin(make_task(run.info, sink.name, 0, 0, 0, 0))
    writer._execute("SELECT 1")
    execute(query.dsn, "SELECT pg_sleep(0.4)")
    sink.write(writer, pa.RecordBatch.from_pylist(rows(1), schema=query.local.schema))
    sink.commit(0, [sink.pre_commit(writer)], PickledTasks())
    run.close()
    assert query.ids() == [1]


@contextmanager
def nothing_made(query: Query) -> Iterator[None]:
    """For as long as this lasts, nobody can make, change or drop anything in the database."""
    refuse = "RETURNS event_trigger LANGUAGE plpgsql AS 'BEGIN RAISE EXCEPTION ''no % here'', tg_tag; END'"
    execute(query.dsn, f"CREATE FUNCTION refuse() {refuse}")
    execute(query.dsn, "CREATE EVENT TRIGGER refuse ON ddl_command_start EXECUTE FUNCTION refuse()")
    try:
        yield
    finally:
        execute(query.dsn, "DROP EVENT TRIGGER refuse")


@pytest.mark.parametrize("options", [{"mode": "ledger"}, {"mode": "upsert", "key": ["id"]}], ids=["ledger", "upsert"])
def test_long_values_of_an_index_need_no_temporary_table_and_no_right_to_make_one(
    query: Query, role: Callable[[], tuple[str, Query]], options: dict[str, Any]
) -> None:
    """Nothing is made or dropped while the query runs, either: the catalog would grow with every task."""
    name, other = role()
    execute(query.dsn, f"REVOKE TEMPORARY ON DATABASE {query.dsn.rpartition('/')[2]} FROM PUBLIC")
    execute(query.dsn, f"CREATE SCHEMA _holdfast AUTHORIZATION {name}")
    execute(query.dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text); CREATE INDEX ON t (name, id)")
    execute(query.dsn, f"GRANT SELECT, INSERT, UPDATE ON t TO {name}")
    run = other.start(create=False, **options)
    with nothing_made(query):
        values = [LONG[:600], LONG[:2600], "x" * 9000, None]  # the third is short once it is compressed
        run.run(0, batch(*([{"id": n, "name": value}] for n, value in enumerate(values))))
        settle(run)
        with pytest.raises(RowError, match=r"column 'id', 'name' in index 't_name_id_idx': .*index row size \d{4} exc"):
            run.run(1, batch([{"id": 9, "name": LONG[:4000]}]))
    assert run.coordinator.pending == [], "nothing is decided"
    run.close()
    again = other.start(create=False, **options)
    again.run(1, batch(rows(8)))
    again.close()
    assert query.ids() == [0, 1, 2, 3, 8]
    assert query.select("SELECT max(length(name)) FROM t") == [(9000,)]
    tried = query.select("SELECT relname FROM pg_class WHERE relname ~ '^long_' AND relkind = 'r'")
    assert [query.select(f"SELECT count(*) FROM _holdfast.{table}") for (table,) in tried] == [[(0,)]]


def test_two_roles_that_share_the_schema_get_a_sentence_with_the_way_out(
    query: Query, role: Callable[[], tuple[str, Query]]
) -> None:
    run = query.start()
    run.run(0, batch(rows(1)))
    run.close()
    name, other = role()
    execute(query.dsn, f"GRANT INSERT ON t TO {name}")
    with pytest.raises(
        ConfigError, match=r"may not use schema _holdfast.*option schema.*GRANT USAGE, CREATE"
    ) as caught:
        other.start(create=False)
    execute(query.dsn, f"GRANT USAGE ON SCHEMA _holdfast TO {name}")
    with pytest.raises(ConfigError, match=rf"schema _holdfast .* is another role's, and {name} lacks rights"):
        other.start(create=False)
    for statement in str(caught.value).partition("run: ")[2].replace("the_role", name).split(";"):
        execute(query.dsn, statement)
    run = other.start(create=False)
    run.run(0, batch(rows(2)))
    run.close()
    assert query.ids() == [1, 2]


def test_create_is_no_error_for_a_table_that_is_there(query: Query, role: Callable[[], tuple[str, Query]]) -> None:
    name, other = role()
    execute(query.dsn, f"CREATE SCHEMA _holdfast AUTHORIZATION {name}")
    with pytest.raises(
        ConfigError, match=r"create=True cannot make it.*permission denied for schema public.*CREATE TABLE"
    ):
        other.start(create=True)
    execute(query.dsn, "CREATE TABLE t (id bigint, name text)")
    execute(query.dsn, f"GRANT INSERT ON t TO {name}")
    run = other.start(create=True)
    run.run(0, batch(rows(1)))
    run.close()
    assert query.ids() == [1]


def test_a_role_that_may_connect_only_once_commits_all_prepared_transactions(
    query: Query, role: Callable[[], tuple[str, Query]]
) -> None:
    """Two connections commit them where the server allows two; nothing fails where it does not."""
    name, other = role()
    execute(query.dsn, f"CREATE SCHEMA _holdfast AUTHORIZATION {name}")
    execute(query.dsn, "CREATE TABLE t (id bigint, name text)")
    execute(query.dsn, f"GRANT INSERT ON t TO {name}")
    run = other.start(create=False, mode="two-phase")
    execute(query.dsn, f"ALTER ROLE {name} CONNECTION LIMIT 1")
    query.connected(1)
    for checkpoint in range(2):
        run.run(checkpoint, batch(*(rows(3 * checkpoint + n) for n in range(3))))
    assert query.ids() == list(range(6))
    assert query.leftovers == []
    execute(query.dsn, f"ALTER ROLE {name} CONNECTION LIMIT 2")
    run.run(2, batch(*(rows(6 + n) for n in range(3))))
    assert query.ids() == list(range(9))
    query.connected(2)  # the second one is kept for the next commit
    run.close()


@each_mode
def test_row_level_security_is_refused_at_the_start(
    query: Query, role: Callable[[], tuple[str, Query]], options: dict[str, Any]
) -> None:
    name, other = role()
    execute(query.dsn, f"CREATE SCHEMA _holdfast AUTHORIZATION {name}")
    execute(query.dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    execute(query.dsn, f"GRANT SELECT, INSERT, UPDATE ON t TO {name}")
    execute(query.dsn, "ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    execute(query.dsn, "CREATE POLICY few ON t USING (true) WITH CHECK (id < 5)")
    with pytest.raises(ConfigError, match=r"row-level security applies to this role on table t.*BYPASSRLS"):
        other.start(create=False, **options)
    execute(query.dsn, f"ALTER ROLE {name} BYPASSRLS")
    run = other.start(create=False, **options)
    run.run(0, batch(rows(1, 9)))
    settle(run)
    execute(query.dsn, f"ALTER ROLE {name} NOBYPASSRLS; ALTER TABLE t DISABLE ROW LEVEL SECURITY")
    run.close()
    execute(
        query.dsn,
        "ALTER TABLE _holdfast.ledger ENABLE ROW LEVEL SECURITY; ALTER TABLE _holdfast.ledger FORCE ROW LEVEL SECURITY",
    )
    with pytest.raises(ConfigError, match="row-level security hides rows of"):
        other.start(create=False, **options)


@pytest.fixture(scope="module")
def pooler(postgres: PostgresServer) -> Iterator[PgBouncer]:
    made = PgBouncer(postgres)
    yield made
    made.close()


@each_mode
def test_it_works_behind_a_pooler_in_transaction_mode(query: Query, pooler: PgBouncer, options: dict[str, Any]) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("host", pa.string()), ("n", pa.decimal128(9, 2))])
    execute(query.dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text, host inet, n numeric(9,2))")
    if options is LOG:
        schema = pa.schema(list(schema)[:2])
    execute(query.dsn, f"ALTER DATABASE {query.dsn.rpartition('/')[2]} SET statement_timeout = '45s'")
    direct, query.dsn = query.dsn, pooler.dsn(query.dsn.rpartition("/")[2])
    query.local.schema = schema
    run = query.start(create=False, **options)
    for checkpoint in range(3):
        values = [
            [{"id": 10 * checkpoint + n, "name": "x", "host": "10.0.0.1", "n": n} for n in (k, k + 1)]
            for k in (0, 2, 4)
        ]
        run.run(checkpoint, batch(*values, schema=schema))
    settle(run)
    run.close()
    run = query.start(create=False, **options)
    run.close()
    query.dsn = direct
    assert query.ids() == [10 * c + n for c in range(3) for n in range(6)]
    assert query.leftovers == []
    for name, before in (("lock_timeout", "0"), ("statement_timeout", "45s")):
        assert execute(pooler.dsn(direct.rpartition("/")[2]), f"SHOW {name}") == [(before,)], (
            "nothing is left behind in the processes that others are lent"
        )
