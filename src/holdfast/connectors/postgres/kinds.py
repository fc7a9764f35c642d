"""Prepared work by its kind: each is asked for, read back and committed in the way it was prepared (rule 16)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.connectors.postgres import logged, moving, staging, two_phase
from holdfast.connectors.postgres.ledger import Ledger
from holdfast.connectors.postgres.moving import Options
from holdfast.connectors.postgres.names import TableName
from holdfast.connectors.postgres.server import Server
from holdfast.connectors.postgres.two_phase import Known
from holdfast.core.model import CheckpointId, Outcome
from holdfast.errors import ConfigError
from holdfast.sinks import wal


class Kinds(NamedTuple):
    """Committables by how they were prepared."""

    staged: list[Mapping[str, Any]]
    prepared: list[Mapping[str, Any]]
    logged: list[Mapping[str, Any]]


def kinds_of(committables: Sequence[Mapping[str, Any]]) -> Kinds:
    """A repair, and rows that are sent again, can leave several in one checkpoint if the options have changed."""
    known = [c for c in committables if c["version"] <= 4]
    return Kinds(*([c for c in known if c["kind"] == module.KIND] for module in (staging, two_phase, logged)))


def still_prepared(
    server: Server, table: TableName, location: str, committables: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Those whose rows are all there (rule 14)."""
    kinds = kinds_of(committables)
    gone, held = logged.missing(location, kinds.logged), set[str]()
    if kinds.staged or kinds.prepared:
        with server.connect(table) as connection:
            gone += staging.missing(connection, kinds.staged) if kinds.staged else []
            held = two_phase.prepared(connection, kinds.prepared) if kinds.prepared else held
    return [c for c in committables if (c["gid"] in held if c in kinds.prepared else c not in gone)]


def rows_of(server: Server, location: str, committables: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """The rows that are there, of those that are staged or in the log."""
    kinds = kinds_of(committables)
    staged = staging.rows_of(server, kinds.staged) if kinds.staged else iter(())
    return itertools.chain(staged, wal.read_what_is_left(location, kinds.logged))


class Commits:
    """The commits of one sink."""

    def __init__(self, server: Server, sink: str, schema: str, run: Run, known: dict[str, Known]) -> None:
        self._server, self._sink, self._schema, self._run = server, sink, schema, run
        #: what the ledger in a schema is known to have; kept by the sink
        self._known = known

    def commit(
        self,
        checkpoint_id: CheckpointId,
        committables: Sequence[Mapping[str, Any]],
        tasks: Tasks,
        options: Options,
    ) -> Outcome:
        """Make the checkpoint visible, whatever the options are now."""
        staged, prepared, sealed = kinds = kinds_of(committables)
        if sum(map(len, kinds)) < len(committables):
            raise ConfigError(
                f"sink {self._sink!r}: checkpoint {checkpoint_id} was prepared by a newer version of holdfast: use that"
            )
        run, outcomes = self._run, set()
        if prepared:
            ledger, known = self._ledger_of(prepared)
            outcomes.add(two_phase.commit(ledger, run, checkpoint_id, prepared, known))
            if checkpoint_id >= known.checkpoint_id:
                gids = frozenset(c["gid"] for c in prepared)
                self._known[ledger.schema] = Known(checkpoint_id, gids, known.commits + 1)
        if sealed:
            ledger, known = self._ledger_of(sealed)
            part = logged.PART if staged else ""
            outcomes.add(logged.commit(ledger, run, checkpoint_id, sealed, known.checkpoint_id, part, tasks))
            self._learn(ledger, checkpoint_id)
        if staged:
            ledger, known = self._ledger_of(staged)
            outcomes.add(moving.commit(ledger, run, options, checkpoint_id, staged, known.checkpoint_id))
            self._learn(ledger, checkpoint_id)
        return outcomes.pop() if len(outcomes) == 1 else Outcome.COMMITTED

    def _ledger_of(self, committables: Sequence[Mapping[str, Any]]) -> tuple[Ledger, Known]:
        """The one that knows whether they were committed before, and what it has; the option may have been another."""
        schema = min(c.get("schema", self._schema) for c in committables)
        return Ledger(self._server, schema, self._sink), self._known.get(schema, Known())

    def _learn(self, ledger: Ledger, checkpoint_id: CheckpointId) -> None:
        if checkpoint_id > self._known.get(ledger.schema, Known()).checkpoint_id:
            self._known[ledger.schema] = Known(checkpoint_id)
