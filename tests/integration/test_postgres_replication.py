"""What a subscriber of logical replication, another server, gets to see of a pipeline."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.connectors.postgres import stages
from tests.integration.pg import Query, batch, rows, settle
from tests.servers.postgres import PASSWORD, PostgresServer, binaries, execute


@pytest.fixture(scope="module")
def publisher() -> Iterator[PostgresServer]:
    made = PostgresServer(fsync="off", wal_level="logical")
    made.start()
    yield made
    made.close()


@pytest.fixture
def subscribe(postgres: PostgresServer) -> Iterator[Callable[..., str]]:
    """Copies the tables' definitions and subscribes; the answer is the subscriber's database."""
    made: list[tuple[str, str]] = []

    def start(query: Query, publication: str, folder: Path) -> str:
        subscriber = postgres.new_database()
        restore(query, subscriber, folder)
        execute(query.dsn, f"CREATE PUBLICATION p {publication}")
        execute(subscriber, f"CREATE SUBSCRIPTION s_{query.local.pipeline} CONNECTION '{query.dsn}' PUBLICATION p")
        made.append((subscriber, f"s_{query.local.pipeline}"))
        wait(lambda: execute(subscriber, "SELECT count(*) FROM pg_subscription_rel WHERE srsubstate <> 'r'") == [(0,)])
        return subscriber

    yield start
    for subscriber, name in made:
        execute(subscriber, f"DROP SUBSCRIPTION {name}")


def wait(done: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "the subscriber does not catch up"
        time.sleep(0.1)


def count(dsn: str, table: str) -> Any:
    return execute(dsn, f"SELECT count(*) FROM {table}")[0][0]


STAGES = "SELECT relname FROM pg_class WHERE relname ~ '^stage_' AND relkind = 'r' ORDER BY 1"


def restore(query: Query, subscriber: str, folder: Path, *only: str) -> None:
    """Give the subscriber the definitions of the publisher's tables."""
    environment = {**os.environ, "PGPASSWORD": PASSWORD}
    dump = ["pg_dump", "-Fc", "--schema-only", "--no-publications", *only, "-f", str(folder / "dump"), "-d", query.dsn]
    for command in (dump, ["pg_restore", "-d", subscriber, str(folder / "dump")]):
        ran = subprocess.run([str(binaries() / command[0]), *command[1:]], env=environment, capture_output=True)
        assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("mode", ["ledger", "two-phase"])
def test_a_publication_of_the_table_carries_its_rows_once_and_nothing_of_holdfast(
    publisher: PostgresServer, subscribe: Callable[..., str], tmp_path: Path, mode: str
) -> None:
    query = Query(tmp_path / "checkpoint", publisher.new_database(), name=f"only_{mode.replace('-', '_')}")
    run = query.start(mode=mode)
    subscriber = subscribe(query, "FOR TABLE t", tmp_path)
    for checkpoint in range(4):
        run.run(checkpoint, batch(rows(2 * checkpoint), rows(2 * checkpoint + 1)))
    settle(run)
    run.close()
    wait(lambda: count(subscriber, "t") == 8)
    assert [row[0] for row in execute(subscriber, "SELECT id FROM t ORDER BY 1")] == list(range(8))
    assert count(subscriber, "_holdfast.ledger") == count(subscriber, "_holdfast.staged") == 0


def test_a_publication_for_all_tables_carries_ledger_and_staging_too_and_goes_on(
    publisher: PostgresServer, subscribe: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "LARGE", 1)
    query = Query(tmp_path / "checkpoint", publisher.new_database(), name="everything")
    execute(query.dsn, "CREATE TABLE t (id bigint, name inet)")
    values = [{"id": n, "name": f"10.0.0.{n}"} for n in range(10)]
    run = query.start(create=False)
    run.run(0, batch(values[:2]))
    settle(run)
    subscriber = subscribe(query, "FOR ALL TABLES", tmp_path)
    for checkpoint in range(1, 5):
        run.run(checkpoint, batch([values[2 * checkpoint]], [values[2 * checkpoint + 1]]))
    settle(run)
    run.close()
    wait(lambda: count(subscriber, "t") == 10 and count(subscriber, "_holdfast.ledger") == 5)
    assert [row[0] for row in execute(subscriber, "SELECT id FROM t ORDER BY 1")] == list(range(10))
    wait(lambda: count(subscriber, "_holdfast.staged") == 0)
    published = {row[0] for row in execute(query.dsn, "SELECT tablename FROM pg_publication_tables")}
    assert {"ledger", "staged", "t"} < published
    assert not [name for name in published if name.startswith("raw_")], "an unlogged table is never published"
    errors = execute(subscriber, "SELECT apply_error_count FROM pg_stat_subscription_stats")
    assert errors == [(0,)]


def test_no_new_table_stops_a_subscriber_of_all_tables_while_a_query_runs(
    publisher: PostgresServer, subscribe: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A backup locks the staging tables, so none can be emptied; checkpoints overlap, and all have grown."""
    monkeypatch.setattr(stages, "LARGE", 1)
    query = Query(tmp_path / "checkpoint", publisher.new_database(), name="locked")
    run = query.start()
    subscriber = subscribe(query, "FOR ALL TABLES", tmp_path)
    tables = query.select(STAGES)
    with psycopg.connect(query.dsn) as backup:
        for (name,) in tables:
            backup.execute(f"LOCK TABLE _holdfast.{name} IN ACCESS SHARE MODE")
        for checkpoint in range(5):
            run.run(checkpoint, batch(rows(2 * checkpoint), rows(2 * checkpoint + 1)))
        settle(run)
    run.run(5, batch(rows(10)))
    settle(run)
    run.close()
    assert query.ids() == list(range(11))
    assert query.select(STAGES) == tables
    wait(lambda: count(subscriber, "t") == 11 and count(subscriber, "_holdfast.ledger") == 6)
    assert execute(subscriber, "SELECT apply_error_count FROM pg_stat_subscription_stats") == [(0,)]


def test_a_subscriber_of_all_tables_stops_at_a_table_it_lacks_and_goes_on_when_it_has_it(
    publisher: PostgresServer, subscribe: Callable[..., str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A start after the table was changed makes new staging tables, and says so."""
    query = Query(tmp_path / "checkpoint", publisher.new_database(), name="lacking")
    run = query.start()
    subscriber = subscribe(query, "FOR ALL TABLES", tmp_path)
    run.run(0, batch(rows(0)))
    settle(run)
    run.close()
    assert "FOR ALL TABLES" not in caplog.text
    known = query.select(STAGES)
    execute(query.dsn, "ALTER TABLE t ALTER name TYPE varchar(9)")
    run = query.start()
    assert "are new, and a publication FOR ALL TABLES carries them" in caplog.text
    run.run(1, batch(rows(1)))
    settle(run)
    run.close()
    failures = "SELECT apply_error_count > 0 FROM pg_stat_subscription_stats"
    wait(lambda: execute(subscriber, failures) == [(True,)])
    assert count(subscriber, "t") == 1
    lacking = [name for (name,) in query.select(STAGES) if (name,) not in known]
    restore(query, subscriber, tmp_path, *(f"--table=_holdfast.{name}" for name in lacking))
    wait(lambda: count(subscriber, "t") == 2)
