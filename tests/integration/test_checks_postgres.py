"""The findings of `holdfast check` about PostgreSQL, provoked on a real server (R2)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.pipeline.checks.examine import findings
from holdfast.pipeline.checks.registry import Level
from holdfast.pipeline.checks.situation import Situation
from holdfast.sinks.fan import fanned
from tests.integration.checking import deliver, found, one, situation
from tests.servers.kafka import free_port
from tests.servers.postgres import PostgresServer, execute

OK, WARNING, FATAL = Level.OK, Level.WARNING, Level.FATAL


@pytest.fixture
def dsn(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture
def query(tmp_path: Path, dsn: str) -> Callable[..., Situation]:
    def make(location: str = "checkpoint", **options: Any) -> Situation:
        sink = hf.PostgresSink(options.pop("dsn", dsn), "orders", **options)
        return situation(tmp_path / location, sink, parallelism=2)

    return make


@pytest.mark.contract("R2")
def test_a_good_table_is_found_good_and_nothing_is_changed(query, dsn: str) -> None:
    assert {f.level for f in findings(query(create=True), only="postgres")} == {OK}
    made = "SELECT relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname IN"
    assert execute(dsn, f"{made} ('public', '_holdfast')") == []
    assert execute(dsn, "SELECT to_regnamespace('_holdfast')") == [(None,)]


@pytest.mark.contract("R2")
def test_postgres_reach(query, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.connectors.postgres.server.PATIENCE", 0.5)
    away = query(dsn=f"postgresql://nobody:hunter22@127.0.0.1:{free_port()}/shop")
    said = one(away, "postgres-reach", FATAL, "127.0.0.1", "dsn")
    assert said.action == "restart" and "hunter22" not in said.text
    assert len(findings(away, only="postgres")) == 1


def test_postgres_table(query, dsn: str) -> None:
    one(query(), "postgres-table", FATAL, "there is no table orders", "create")
    execute(dsn, "CREATE TABLE orders (id int2[], word text)")
    one(query(), "postgres-table", FATAL, "id is int64 in the DataFrame and smallint[] in the table")
    execute(dsn, "ALTER TABLE orders ALTER id TYPE bigint USING 1")
    one(query(), "postgres-table", OK)


def test_postgres_table_for_the_stage_in_which_tasks_prove_rows_alone(query, dsn: str) -> None:
    one(query(stage="log", create=True), "postgres-table", OK)
    execute(dsn, "CREATE TABLE orders (id numeric, word text CONSTRAINT short CHECK (length(word) < 9))")
    said = ("column 'id' is of type numeric", "constraint 'short'", "stage='server'")
    one(query(stage="log"), "postgres-table", FATAL, *said)
    execute(dsn, "ALTER TABLE orders ALTER id TYPE bigint, DROP CONSTRAINT short")
    one(query(stage="log"), "postgres-table", OK)


def test_of_tables_that_rows_name_only_the_server_is_checked(dsn: str, tmp_path: Path) -> None:
    fan = fanned(hf.PostgresSink(dsn, "orders_{word}", name="orders"))
    said = [f.check for f in findings(situation(tmp_path, fan), only="postgres")]
    assert said == ["postgres-reach", "postgres-prepared-transactions", "postgres-rights"]


def test_postgres_upsert_index(query, dsn: str) -> None:
    execute(dsn, "CREATE TABLE orders (id bigint, word text)")
    upsert = {"mode": "upsert", "key": ["id"]}
    said = one(query(**upsert), "postgres-upsert-index", FATAL, "unique index on (id)")
    execute(dsn, said.remedy)  # the remedy is a statement that mends it
    assert found(query(**upsert), "postgres-upsert-index") == []
    one(query(**upsert), "postgres-table", OK)


def test_postgres_rights(query, postgres: PostgresServer, dsn: str) -> None:
    execute(dsn, "DROP ROLE IF EXISTS clerk")
    execute(dsn, "CREATE ROLE clerk LOGIN PASSWORD 'clerk'")
    execute(dsn, "CREATE TABLE orders (id bigint, word text)")
    execute(dsn, "GRANT ALL ON orders TO clerk")
    database = dsn.rpartition("/")[2]
    clerk = f"postgresql://clerk:clerk@127.0.0.1:{postgres.port}/{database}"
    one(query(dsn=clerk), "postgres-rights", FATAL, "may not create its schema", "administrator")
    execute(dsn, f"GRANT CREATE ON DATABASE {database} TO clerk")
    one(query(dsn=clerk), "postgres-rights", OK)
    execute(dsn, "DROP OWNED BY clerk")
    execute(dsn, "DROP ROLE clerk")


def test_postgres_prepared_transactions(query, dsn: str) -> None:
    execute(dsn, "CREATE TABLE orders (id bigint, word text)")
    one(query(mode="two-phase"), "postgres-prepared-transactions", OK)
    without = PostgresServer(max_prepared_transactions="0", fsync="off")
    without.start()
    try:
        away = query(mode="two-phase", dsn=without.dsn())
        one(away, "postgres-prepared-transactions", FATAL, "max_prepared_transactions = 0", "mode: ledger")
        without.stop()
        without._settings["max_prepared_transactions"] = "1"
        without.start()
        one(away, "postgres-prepared-transactions", WARNING, "max_prepared_transactions is 1")
    finally:
        without.close()


@pytest.mark.contract("R2")
def test_postgres_ledger(query, dsn: str, tmp_path: Path) -> None:
    deliver(tmp_path / "checkpoint", hf.PostgresSink(dsn, "orders", create=True))
    one(query(), "postgres-ledger", OK)
    one(query("second"), "postgres-ledger", FATAL, "another checkpoint location", "--take-over")
    execute(dsn, "DELETE FROM _holdfast.ledger")
    one(query(), "postgres-ledger", FATAL, "restored from a backup", "--accept-restored")
