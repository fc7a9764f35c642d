"""Cassandra: the cluster, the table, the marks."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

from holdfast.committers.cassandra_client import borrow, close_idle
from holdfast.connectors.cassandra.sink import CassandraSink
from holdfast.pipeline.checks.registry import Problem, check, warning
from holdfast.pipeline.checks.situation import Situation

_KEYSPACE = "SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = ?"


@check(
    "cassandra-reach",
    CassandraSink,
    remedy="See that the nodes run and can be reached from here; check "
    "contact_points, port, username, password, tls and local_dc",
)
def reach(situation: Situation, sink: CassandraSink) -> Iterator[Problem]:
    """The cluster answers and lets this user in."""
    with borrow(sink.settings, f"sink {sink.name!r}") as client:
        client.query("SELECT release_version FROM system.local")
    yield from ()


@check(
    "cassandra-table",
    CassandraSink,
    remedy="Make the table with its primary key, or cast and select columns that it takes",
)
def table(situation: Situation, sink: CassandraSink) -> Iterator[Problem]:
    """The table is there and takes the columns of the rows."""
    with borrow(sink.settings, f"sink {sink.name!r}") as client:
        copy(sink).find_table(client, situation.schemas.get(sink.name))
    yield from ()


@check(
    "cassandra-replication",
    CassandraSink,
    remedy="ALTER KEYSPACE ... WITH replication = {'class': "
    "'NetworkTopologyStrategy', '<datacenter>': 3}, then repair; write with consistency LOCAL_QUORUM",
)
def replication(situation: Situation, sink: CassandraSink) -> Iterator[Problem]:
    """The keyspace keeps copies, and a write waits for more than one of them."""
    with borrow(sink.settings, f"sink {sink.name!r}") as client:
        rows: list[Any] = client.query(_KEYSPACE, (sink.keyspace,))
    if not rows:
        return  # the table's check says so
    copies = [int(value) for key, value in rows[0].replication.items() if key != "class" and str(value).isdigit()]
    if copies and max(copies) < 2:
        yield warning(f"keyspace {sink.keyspace!r} keeps one copy: what is delivered is gone with its node's disk")
    elif sink.consistency in ("ONE", "LOCAL_ONE"):
        yield warning(f"consistency={sink.consistency}: a row that one node alone has counts as delivered")


@check(
    "cassandra-ledger",
    CassandraSink,
    remedy="Start from the location that wrote them, or give the pipeline a new name, "
    "or pass --take-over; for marks that were restored, see holdfast resolve --accept-restored",
)
def ledger(situation: Situation, sink: CassandraSink) -> Iterator[Problem]:
    """The marks are this location's, neither ahead of its log nor behind it."""
    if not situation.takes_over:
        sink.compare_marks(situation.run_of(sink))
    close_idle()
    yield from ()
