"""The findings of `holdfast check` about Cassandra, provoked on a real one (R2)."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.pipeline.checks.examine import findings
from holdfast.pipeline.checks.registry import Level
from holdfast.pipeline.checks.situation import Situation
from tests.integration.checking import deliver, one, situation
from tests.servers.cassandra import CassandraServer
from tests.servers.kafka import free_port

OK, WARNING, FATAL = Level.OK, Level.WARNING, Level.FATAL
COPIES = "{{'class': 'SimpleStrategy', 'replication_factor': {}}}"


@pytest.fixture
def keyspace(cassandra: CassandraServer) -> str:
    name = f"checks_{uuid.uuid4().hex[:8]}"
    cassandra.execute(f"CREATE KEYSPACE {name} WITH replication = {COPIES.format(1)}")
    return name


@pytest.fixture
def sink(cassandra: CassandraServer, keyspace: str) -> Callable[..., hf.CassandraSink]:
    def make(**options: Any) -> hf.CassandraSink:
        return hf.CassandraSink(**{**cassandra.options, **options}, keyspace=keyspace, table="orders")

    return make


@pytest.mark.contract("R2")
def test_cassandra_table_replication_and_ledger(
    sink, cassandra: CassandraServer, keyspace: str, tmp_path: Path
) -> None:
    def query(location: str = "checkpoint") -> Situation:
        return situation(tmp_path / location, sink())

    one(query(), "cassandra-table", FATAL, "there is no table", "primary key")
    cassandra.execute(f"CREATE TABLE {keyspace}.orders (id text PRIMARY KEY, word text)")
    one(query(), "cassandra-table", FATAL, "'id' is text", "cast")
    cassandra.execute(f"DROP TABLE {keyspace}.orders")
    cassandra.execute(f"CREATE TABLE {keyspace}.orders (id bigint PRIMARY KEY, word text)")
    said = {f.check: f.level for f in findings(query(), only="cassandra")}
    assert said.pop("cassandra-replication") is WARNING
    assert set(said.values()) == {OK}
    tables = cassandra.execute(f"SELECT table_name FROM system_schema.tables WHERE keyspace_name = '{keyspace}'")
    assert tables == [{"table_name": "orders"}]  # not even the marks' table was made
    cassandra.execute(f"ALTER KEYSPACE {keyspace} WITH replication = {COPIES.format(3)}")
    one(query(), "cassandra-replication", OK)
    cassandra.execute(f"ALTER KEYSPACE {keyspace} WITH replication = {COPIES.format(1)}")
    deliver(tmp_path / "checkpoint", sink())
    one(query(), "cassandra-ledger", OK)
    one(query("second"), "cassandra-ledger", FATAL, "another checkpoint location")
    cassandra.execute(f"DROP TABLE {keyspace}.holdfast_committer")
    one(query(), "cassandra-ledger", FATAL, "restored", "--accept-restored")


@pytest.mark.contract("R2")
def test_cassandra_reach(sink, tmp_path: Path) -> None:
    away = situation(tmp_path, sink(port=free_port(), timeout=2.0))
    said = one(away, "cassandra-reach", FATAL, "127.0.0.1", "contact_points")
    assert said.action == "restart"
