"""PostgreSQL: the server, the table, the ledger. What is tried is rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from holdfast.connectors.postgres import provable, two_phase
from holdfast.connectors.postgres.catalog import create_statement, find_table
from holdfast.connectors.postgres.ledger import Ledger
from holdfast.connectors.postgres.names import quote
from holdfast.connectors.postgres.server import drivers
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.connectors.postgres.trouble import said
from holdfast.pipeline.checks.registry import Problem, also, check, fatal, warning
from holdfast.pipeline.checks.situation import Situation
from holdfast.sinks.deletes import without
from holdfast.sinks.order import MissingIndexError, check_order_by


@check(
    "postgres-reach",
    PostgresSink,
    remedy="See that the server runs and can be reached from here; check dsn, the password and pg_hba.conf",
)
def reach(situation: Situation, sink: PostgresSink) -> Iterator[Problem]:
    """The server answers and lets this role in."""
    with sink.server.connect(starting=True) as connection:
        connection.execute("SELECT 1")
    yield from ()


@check(
    "postgres-prepared-transactions",
    PostgresSink,
    remedy="Set max_prepared_transactions in postgresql.conf to at least "
    "twice the number of tasks and restart the server; or use mode: ledger",
)
def prepared_transactions(situation: Situation, sink: PostgresSink) -> Iterator[Problem]:
    """The server has room for the prepared transactions of a checkpoint."""
    if sink.mode != "two-phase":
        return
    tasks = situation.parallelism
    with sink.server.connect(starting=True) as connection:
        two_phase.check_server(connection, sink.name)
        limit = int(connection.execute("SHOW max_prepared_transactions").fetchone()[0])
        (used,) = connection.execute("SELECT count(*) FROM pg_prepared_xacts").fetchone()
    if limit - used < tasks:
        yield warning(
            f"max_prepared_transactions is {limit}, {used} are in use, and {tasks} tasks at a time prepare one each"
        )


@check(
    "postgres-rights",
    PostgresSink,
    remedy="Let an administrator grant what the message says, or give the sink a schema of its own",
)
def rights(situation: Situation, sink: PostgresSink) -> Iterator[Problem]:
    """This role may use, or make, the schema for ledger and staging; tried and rolled back."""
    with sink.server.connect(starting=True) as connection:
        Ledger(sink.server, sink.schema, sink.name).create(connection, only_try=True)
    yield from ()


@check(
    "postgres-table",
    PostgresSink,
    remedy="Make the table as the message says, cast or select other columns, or set create: true",
)
def table(situation: Situation, sink: PostgresSink) -> Iterator[Problem]:
    """The table is there, or can be made, and takes the columns of the rows."""
    rows = situation.schemas.get(sink.name)
    if rows is None:
        return
    schema = without(sink.name, rows, sink.delete_when)
    check_order_by(sink.name, schema, sink.asked.key, sink.asked.order_by)
    psycopg, _, _ = drivers()
    with sink.server.connect(sink.table, starting=True) as connection:
        if sink.create and not _there(connection, sink):
            if sink.stage == "log":
                provable.check_created(sink.name, sink.table, schema)
            try:
                connection.undone(create_statement(sink.table, schema, sink.asked.key))
            except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidSchemaName) as error:
                yield fatal(f"table {sink.table} is not there, and create: true cannot make it: {said(error)}")
            return
        try:
            found, *_ = find_table(connection, sink.name, sink.table, schema, sink.asked, sink.schema_change)
            if sink.stage == "log":
                provable.prove(connection, sink.name, found)
        except MissingIndexError as error:
            keys = ", ".join(map(quote, sink.asked.key))
            yield fatal(str(error), f"CREATE UNIQUE INDEX ON {sink.table.sql} ({keys})", check="postgres-upsert-index")


also(
    "postgres-upsert-index",
    PostgresSink,
    "The table has a unique index on the key",
    remedy="CREATE UNIQUE INDEX on the key",
)


@check(
    "postgres-ledger",
    PostgresSink,
    remedy="Start from the location that wrote it, or give the pipeline a new name, or "
    "pass --take-over; for one that was restored, see holdfast resolve --accept-restored",
)
def ledger(situation: Situation, sink: PostgresSink) -> Iterator[Problem]:
    """The ledger is this location's, neither ahead of its log nor behind it."""
    if situation.takes_over:
        return
    own = Ledger(sink.server, sink.schema, sink.name)
    run = situation.run_of(sink)
    with sink.server.connect(starting=True) as connection:
        there = connection.execute("SELECT to_regclass(%s)", (own.table,)).fetchone()[0] is not None
        own.check(run, own.read(connection, run.pipeline) if there else {})
    yield from ()


def _there(connection: Any, sink: PostgresSink) -> bool:
    return connection.execute("SELECT to_regclass(%s)", (sink.table.sql,)).fetchone()[0] is not None
