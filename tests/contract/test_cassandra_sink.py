"""The Cassandra sink against the contract suite, on a real server."""

from __future__ import annotations

import uuid
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.testing import exercise_sink
from tests.contract.test_shipped_sinks import assert_all_ran
from tests.servers.cassandra import CassandraServer

REPLICATION = "{'class': 'SimpleStrategy', 'replication_factor': 1}"


def unacceptable() -> list[pa.RecordBatch]:
    """Text that is none, no key, and more than this server takes in one mutation."""
    schema = pa.schema([("id", pa.int64()), ("name", pa.string()), ("amount", pa.float64())])
    made = [(1, pa.array([b"ab\xff"]).view(pa.string())), (None, pa.array(["a"])), (2, pa.array(["x" * 3_000_000]))]
    return [pa.RecordBatch.from_arrays([pa.array([i], pa.int64()), text, [0.5]], schema=schema) for i, text in made]


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("options", [{}, {"order_by": "amount"}], ids=["alone", "order_by"])
def test_contract(cassandra: CassandraServer, options: dict[str, Any]) -> None:
    keyspace = f"contract_{uuid.uuid4().hex[:8]}"
    cassandra.execute(f"CREATE KEYSPACE {keyspace} WITH replication = {REPLICATION}")
    cassandra.execute(f"CREATE TABLE {keyspace}.t (id bigint PRIMARY KEY, name text, amount double)")
    cassandra.execute(f"CREATE TABLE {keyspace}.other (id bigint PRIMARY KEY, name text, amount double)")
    marks = hf.CassandraCheckpointCommitter(keyspace=keyspace, **cassandra.options)

    def make(**changed: Any) -> hf.CassandraSink:
        settings = {"keyspace": keyspace, "table": "t", "name": "s", "committer": marks, **options, **changed}
        return hf.CassandraSink(**cassandra.options, **settings)

    report = exercise_sink(
        make,
        lambda: cassandra.execute(f"SELECT * FROM {keyspace}.t"),
        unacceptable=unacceptable,
        changed=lambda: make(table="other", order_by=None, nulls="skip", consistency="ONE"),
        ledger=True,
    )
    after = ["bad_value_is_refused_in_the_task", "changed_options_change_nothing_decided"]
    assert_all_ran(report, ran=[*after, "restored_endpoint_is_refused"])
