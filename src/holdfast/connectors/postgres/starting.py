"""What a start finds out about the target table, and makes there if it is asked to."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.connectors.postgres import deletes, lengths, provable
from holdfast.connectors.postgres.catalog import create_statement, find_table
from holdfast.connectors.postgres.provable import Proof
from holdfast.connectors.postgres.server import drivers
from holdfast.connectors.postgres.stages import Stages
from holdfast.connectors.postgres.table import Target, Upsert
from holdfast.connectors.postgres.trouble import said
from holdfast.errors import ConfigError, SinkError

if TYPE_CHECKING:
    from holdfast.connectors.postgres.sink import PostgresSink

logger = logging.getLogger("holdfast")


@dataclass(frozen=True)
class Found:
    """The table as tasks need to know it."""

    target: Target
    upsert: Upsert
    #: columns of the rows that it has no place for
    discards: tuple[str, ...]
    #: what rows have to be, where tasks prove it without the server
    proof: Proof | None


def look(connection: Any, sink: PostgresSink, schema: pa.Schema) -> Found:
    """Make the table if that is wanted, and refuse one that these rows do not go into."""
    psycopg, _, _ = drivers()
    try:
        if sink.create:
            _create(connection, sink, schema)
        target, upsert, discards = find_table(connection, sink.name, sink.table, schema, sink.asked, sink.schema_change)
        if sink.delete_when is not None:
            upsert = deletes.prepare(connection, sink.name, sink.schema, target, upsert, sink.keep_deletes)
        proof = _proof(connection, sink, target)
        if _stages(sink, proof):
            role, pipeline = _role(connection), sink.run.pipeline
            target = lengths.prepare(connection, target, sink.schema, role, pipeline, sink.name)
    except psycopg.errors.LockNotAvailable as error:
        raise SinkError(
            f"sink {sink.name!r} ({sink.address}): table {sink.table} is locked by somebody for longer than "
            f"lock_timeout ({sink.server.lock_timeout:g} s): pg_stat_activity and pg_prepared_xacts tell "
            "by whom. Start again when it is free"
        ) from error
    return Found(target, upsert, discards, proof)


def _proof(connection: Any, sink: PostgresSink, target: Target) -> Proof | None:
    """How tasks prove rows that wait in the log; None where they wait at the server."""
    if not sink.may_log(sink.run.location):
        return None
    try:
        proof = provable.prove(connection, sink.name, target)
    except ConfigError as error:
        if sink.stage == "log":
            raise
        logger.info("rows wait at the server, in a staging table: %s", error)
        return None
    if sink.stage == "auto" and proof.entries:
        # The task would refuse a long value that the server may be able to compress into its index.
        logger.info("sink %s: rows wait at the server, in a staging table: it has indexes on texts", sink.name)
        return None
    return proof


def _create(connection: Any, sink: PostgresSink, schema: pa.Schema) -> None:
    """Unless it is there: then no right to create one is needed."""
    psycopg, _, _ = drivers()
    if connection.execute("SELECT to_regclass(%s)", (sink.table.sql,)).fetchone()[0] is not None:
        return
    statement = create_statement(sink.table, schema, sink.asked.key)
    if sink.stage == "log":
        provable.check_created(sink.name, sink.table, schema)
    try:
        connection.together(statement)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.InvalidSchemaName) as error:
        raise ConfigError(
            f"sink {sink.name!r}: table {sink.table} is not there, and create=True cannot make it at "
            f"{sink.address}: {said(error)}. Let somebody who may run: {statement}"
        ) from error


def _stages(sink: PostgresSink, proof: Proof | None) -> bool:
    """Whether rows wait in staging tables, where the server can be asked about them."""
    return sink.mode != "two-phase" and proof is None


def _role(connection: Any) -> str:
    return str(connection.execute("SELECT current_user").fetchone()[0])


def stages_of(connection: Any, sink: PostgresSink, pipeline: str, found: Found) -> dict[bool, Stages]:
    """The tables that tasks write into before the commit, if they do: {whether for texts to be cast: the tables}."""
    how = {"ordered": found.upsert.order_by is not None, "deletes": found.upsert.deletes is not None}
    staged = _stages(sink, found.proof)
    kinds = [raw for raw in (False, True) if (found.target.cast_by_server if raw else staged)]
    if not kinds:
        return {}
    role = _role(connection)
    return {raw: Stages(sink.schema, role, pipeline, sink.name, found.target, raw=raw, **how) for raw in kinds}
