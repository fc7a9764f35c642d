"""The snippets of the pages on stores, run against real ones: the sinks that they make take rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import DataFrame

from holdfast.core.naming import job_id, operator_id
from tests.integration.test_docs import ROWS, Page
from tests.servers.cassandra import CassandraServer
from tests.servers.postgres import PostgresServer, execute
from tests.unit.test_docs import DOCS

pytestmark = pytest.mark.spark
IDS = [row["id"] for row in ROWS]


def versions(orders: DataFrame) -> DataFrame:
    """Each order twice: the second one is newer."""
    return orders.selectExpr("id", "explode(array(1, 2)) AS version").selectExpr("id", "version", "id * version AS n")


def test_rows_arrive_in_postgres(spark, tmp_path: Path, postgres: PostgresServer) -> None:
    dsn = postgres.new_database()
    execute(dsn, "CREATE TABLE orders (id bigint, amount double precision)")
    execute(dsn, "CREATE SCHEMA reports")
    execute(dsn, "CREATE TABLE reports.totals (day bigint, shop bigint, version int, UNIQUE (day, shop))")
    made = Page(DOCS / "postgres.md", tmp_path, spark, {"postgresql://writer@db.example.com/shop": dsn})
    made.run()
    whole = made.orders
    made.orders = whole.select("id", "amount")
    made.deliver(made.names["sink"], "orders")
    assert execute(dsn, "SELECT id FROM orders ORDER BY id") == [(n,) for n in IDS]
    made.orders = versions(whole).selectExpr("id AS day", "id AS shop", "version")
    made.deliver(made.names["totals"], "totals")
    assert execute(dsn, "SELECT day, version FROM reports.totals ORDER BY day") == [(n, 2) for n in IDS]


def test_rows_arrive_in_cassandra(spark, tmp_path: Path, cassandra: CassandraServer) -> None:
    cassandra.execute(
        "CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'replication_factor': 1}"
    )
    cassandra.execute("CREATE TABLE shop.totals (id bigint PRIMARY KEY, amount double)")
    data_center = cassandra.execute("SELECT data_center FROM system.local")[0]["data_center"]
    options = ", ".join(f"{name}={value!r}" for name, value in cassandra.options.items())
    replaced = {
        '["cassandra-1", "cassandra-2"],': f"{options},",
        '    username="writer",\n    password="from your secret store",\n': "",
        # Three copies need three servers.
        '"dc1": 3': f'"{data_center}": 1',
        '"dc1"': f'"{data_center}"',
        'keyspace="holdfast"': 'keyspace="docs_marks"',
    }
    made = Page(DOCS / "cassandra.md", tmp_path, spark, replaced)
    made.run()
    made.orders = made.orders.select("id", "amount")
    made.deliver(made.names["sink"], "totals")
    assert sorted(row["id"] for row in cassandra.execute("SELECT id FROM shop.totals")) == IDS
    committer = made.names["committer"]
    committer.set_job_id(job_id("docs", "0" * 32))
    committer.set_operator_id(operator_id("totals"))
    committer.create_resource()
    committer.open()
    committer.commit_checkpoint(0, 7)
    assert committer.is_checkpoint_committed(0, 7) and not committer.is_checkpoint_committed(0, 8)
    committer.close()


def test_the_newest_version_of_a_row_stays_in_sqlite(spark, tmp_path: Path) -> None:
    made = Page(DOCS / "sqlite.md", tmp_path, spark, {})
    made.run()
    made.orders = versions(made.orders)
    made.deliver(made.names["sink"], "orders")
    with closing(sqlite3.connect(tmp_path / "data" / "shop.db")) as connection:
        assert connection.execute("SELECT id, version, n FROM orders ORDER BY id").fetchall() == [
            (n, 2, 2 * n) for n in IDS
        ]


def test_a_new_column_of_the_query_is_added_to_the_table(spark, tmp_path: Path) -> None:
    made = Page(DOCS / "schema-changes.md", tmp_path, spark, {})
    made.run()
    whole = made.orders
    made.orders = whole.select("id")
    made.deliver(made.names["sink"], "orders")
    (tmp_path / "data" / "incoming" / "1.json").write_text('{"id": 9, "amount": 4.5}\n')
    made.orders = whole.select("id", "amount")
    made.deliver(made.names["sink"], "orders")
    with closing(sqlite3.connect(tmp_path / "data" / "shop.db")) as connection:
        found = connection.execute("SELECT id, amount FROM orders ORDER BY id").fetchall()
    assert found == [*((n, None) for n in IDS), (9, 4.5)]
