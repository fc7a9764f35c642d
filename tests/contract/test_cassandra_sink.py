"""The Cassandra sink against the contract suite, on a real server."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import holdfast as hf
from holdfast.testing import exercise_sink
from holdfast.testing.contract import CHECKS
from tests.servers.cassandra import CassandraServer

REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 1}"


@pytest.mark.parametrize("options", [{}, {"order_by": "amount"}], ids=["alone", "order_by"])
def test_contract(cassandra: CassandraServer, options: dict[str, Any]) -> None:
    keyspace = f"contract_{uuid.uuid4().hex[:8]}"
    cassandra.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {REPLICATION}")
    cassandra.execute(f"CREATE TABLE {keyspace}.t (id bigint PRIMARY KEY, name text, amount double)")
    report = exercise_sink(
        lambda: hf.CassandraSink(keyspace=keyspace, table="t", **cassandra.options, **options),
        lambda: cassandra.execute(f"SELECT * FROM {keyspace}.t"),
    )
    assert set(report.passed) == set(CHECKS)
