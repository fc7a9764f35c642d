"""The ledger: which checkpoints are in the table, written in the same transaction as their rows (rules 9, 10)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.checkpoint.ports import Run
from holdfast.connectors.postgres.names import literal, lock_key, parse_gid, quote, schema_lock
from holdfast.connectors.postgres.server import Server, drivers
from holdfast.connectors.postgres.trouble import said
from holdfast.core.model import CheckpointId, Outcome
from holdfast.errors import ConfigError, RestoredEndpointError
from holdfast.sinks.ledger import check_ledger, check_subtasks, having

#: How many checkpoints back the ledger is kept.
KEPT = 100
#: raised by the server when the ledger forbids a commit: it is done, or the name belongs to another location
REFUSED = "HF001"
#: ... when it lacks what this run has committed
BEHIND = "HF003"
_COLUMNS = """
    pipeline text NOT NULL, sink text NOT NULL, lineage text NOT NULL, checkpoint_id bigint NOT NULL,
    part text NOT NULL DEFAULT '', generation bigint NOT NULL, row_count bigint NOT NULL,
    written_at timestamptz NOT NULL DEFAULT now(), PRIMARY KEY (pipeline, sink, lineage, checkpoint_id, part)"""
#: Whose rows are in staging and not moved yet: an entry for each task, committed together with its rows.
_STAGED = """
    part bigint PRIMARY KEY, pipeline text NOT NULL, sink text NOT NULL, stage text NOT NULL, token text NOT NULL,
    row_count bigint NOT NULL, written_at timestamptz NOT NULL DEFAULT now()"""


class Ledger:
    """The rows of one sink of one pipeline in the table `ledger` of holdfast's schema.

    One row for each checkpoint, or, in two-phase mode, one for each prepared transaction, with its gid as `part`.
    """

    def __init__(self, server: Server, schema: str, sink: str) -> None:
        self.server, self.schema, self.sink = server, schema, sink

    @property
    def table(self) -> str:
        """Quoted, for use in SQL."""
        return f"{quote(self.schema)}.ledger"

    @property
    def staged(self) -> str:
        """The table that says whose rows are in staging; quoted."""
        return f"{quote(self.schema)}.staged"

    @property
    def where(self) -> str:
        """For messages."""
        return f"the ledger of sink {self.sink!r} (table {self.schema}.ledger at {self.server})"

    def create(self, connection: Any, *, only_try: bool = False) -> bool:
        """Schema and tables, if they are not there; a role that may not create them only needs them to be there.

        With `only_try` they are created in a transaction that is taken back. True when they are there.
        """
        psycopg, _, _ = drivers()
        try:
            there = self._create(connection, only_try=only_try)
            if there:
                self._check_rights(connection)
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError(
                f"sink {self.sink!r} may not use schema {self.schema} at {self.server}: {said(error)}. It belongs to "
                f"another role; {self._ways_out}"
            ) from error
        return there

    @property
    def _ways_out(self) -> str:
        return (
            "give the sink a schema of its own (option schema), or let that role or an administrator run: GRANT USAGE, "
            f"CREATE ON SCHEMA {quote(self.schema)} TO the_role; GRANT SELECT, INSERT, UPDATE, DELETE ON {self.table}, "
            f"{self.staged} TO the_role"
        )

    def _check_rights(self, connection: Any) -> None:
        """Whatever a run will need of them, before it starts; and no rows are hidden from us."""
        needed = [f"has_schema_privilege({literal(self.schema)}, 'CREATE')"]
        for table in (self.table, self.staged):
            rights = ("SELECT", "INSERT", "UPDATE", "DELETE")
            needed += [f"has_table_privilege({literal(table)}, '{right}')" for right in rights]
        hidden = " OR ".join(f"row_security_active({literal(table)})" for table in (self.table, self.staged))
        asked = f"SELECT {' AND '.join(needed)}, {hidden}, current_user"
        may, hides, role = connection.execute(asked).fetchone()
        if hides:
            raise ConfigError(
                f"sink {self.sink!r}: row-level security hides rows of {self.table} or {self.staged} at {self.server} "
                f"from role {role}, so nobody could tell what was delivered: disable it for these tables"
            )
        if not may:
            raise ConfigError(
                f"sink {self.sink!r}: schema {self.schema} at {self.server} is another role's, and {role} lacks rights "
                f"there; {self._ways_out}"
            )

    def _create(self, connection: Any, *, only_try: bool) -> bool:
        psycopg, _, _ = drivers()
        steps = []
        if connection.execute("SELECT to_regnamespace(%s)", (quote(self.schema),)).fetchone()[0] is None:
            steps.append(f"CREATE SCHEMA IF NOT EXISTS {quote(self.schema)}")
        for table, columns in ((self.table, _COLUMNS), (self.staged, _STAGED)):
            if connection.execute("SELECT to_regclass(%s)", (table,)).fetchone()[0] is None:
                steps.append(f"CREATE TABLE IF NOT EXISTS {table} ({columns})")
        if not steps:
            return True
        # Two pipelines that start at once would both find nothing, and one of them would fail.
        try:
            (connection.undone if only_try else connection.together)(schema_lock(self.schema), *steps)
        except psycopg.errors.InsufficientPrivilege as error:
            raise ConfigError(
                f"sink {self.sink!r} may not create its schema for staging and ledger at {self.server}: {said(error)}. "
                f"Let an administrator run: CREATE SCHEMA {quote(self.schema)} AUTHORIZATION the_role"
            ) from error
        return not only_try

    def read(self, connection: Any, pipeline: str) -> dict[str, CheckpointId]:
        """{lineage: last checkpoint}, of every lineage of this pipeline name."""
        statement = (
            f"SELECT lineage, max(checkpoint_id) FROM {self.table} WHERE pipeline = %s AND sink = %s GROUP BY lineage"  # noqa: S608
        )
        return dict(connection.execute(statement, (pipeline, self.sink)).fetchall())

    def check(self, run: Run, found: Mapping[str, CheckpointId]) -> None:
        """Raise unless it is ours and knows what it has to know (rules 10, 15)."""
        try:
            check_ledger(run, self.where, found, sink=self.sink)
        except RestoredEndpointError as error:
            raise RestoredEndpointError(
                f"{error}. If it is not the database but one of the options dsn and schema that is another than "
                "before: start with the former ones",
                error.behind,
            ) from None

    def check_parts(self, connection: Any, run: Run) -> None:
        """Raise unless it knows each subtask of the newest committed checkpoint (15).

        Prepared transactions are committed one by one, so a copy can have some of them; of earlier checkpoints it has
        all then. A row for a whole checkpoint stands for all of its subtasks.
        """
        known = run.committed.get(self.sink)
        if known is None:
            return
        statement = (
            f"SELECT checkpoint_id, part FROM {self.table} "  # noqa: S608
            "WHERE pipeline = %s AND sink = %s AND lineage = %s AND checkpoint_id >= %s"
        )
        found = connection.execute(statement, (run.pipeline, self.sink, run.lineage, known.checkpoint_id)).fetchall()
        gids = [parse_gid(part) for _, part in found]
        if None in gids or any(checkpoint_id > known.checkpoint_id for checkpoint_id, _ in found):
            return
        there = {gid.subtask for gid in gids if gid is not None}
        check_subtasks(run, self.where, self.sink, lambda subtask, last: last < known.checkpoint_id or subtask in there)

    def check_known(self, run: Run, found: Mapping[str, CheckpointId], known: CheckpointId) -> None:
        """The same in the middle of a run that has committed `known`: a server can come back as an older copy."""
        self.check(having(run, self.sink, found, known), found)

    def take_over(self, connection: Any, run: Run) -> None:
        """Own the name from here on; marked as delivered is what commit records say, so what is owed is not skipped."""
        known = run.committed.get(self.sink)
        connection.together(
            self.lock(run),
            f"DELETE FROM {self.table} WHERE {self._mine(run)}",  # noqa: S608
            self.add(run, -1 if known is None else known.checkpoint_id, 0),
        )

    def lock(self, run: Run) -> str:
        """Hold off every other driver of this sink until the transaction ends."""
        return f"SELECT pg_advisory_xact_lock({lock_key('holdfast ledger', run.pipeline, self.sink)})"

    def refuse(self, run: Run, checkpoint_id: CheckpointId, known: CheckpointId, part: str = "") -> str:
        """Fails with REFUSED when this checkpoint, or this part of it, is done, or the name is another location's.

        With BEHIND when checkpoint `known`, which was committed before, is not there: the server is an older copy. Of
        this checkpoint only the row of the whole counts: some of its subtasks may have been prepared transactions.
        """
        done = f"checkpoint_id > {checkpoint_id} OR (checkpoint_id = {checkpoint_id} AND part = {literal(part)})"
        wrong = f"lineage <> {literal(run.lineage)} OR {done}"
        last = f"SELECT coalesce(max(checkpoint_id), -1) FROM {self.table} WHERE {self._mine(run)}"  # noqa: S608
        body = (
            f"BEGIN IF EXISTS (SELECT FROM {self.table} WHERE {self._mine(run)} AND ({wrong})) THEN "
            f"RAISE EXCEPTION 'the ledger forbids this commit' USING ERRCODE = '{REFUSED}'; END IF; "
            f"IF {known} > ({last}) THEN "
            f"RAISE EXCEPTION 'the ledger has lost checkpoints' USING ERRCODE = '{BEHIND}'; END IF; END"
        )
        return f"DO {literal(body)}"

    def judge(
        self, connection: Any, run: Run, checkpoint_id: CheckpointId, known: CheckpointId, part: str = ""
    ) -> Outcome | None:
        """After a commit that failed: whether it was done before, by whomever; None when the ledger allows it.

        Raises when the name belongs to another location, or the server is an older copy.
        """
        psycopg, _, _ = drivers()
        try:
            connection.together(self.refuse(run, checkpoint_id, known, part))
        except psycopg.Error as error:
            if error.sqlstate not in (REFUSED, BEHIND):
                raise
            there = self.read(connection, run.pipeline)
            if error.sqlstate == BEHIND:
                self.check_known(run, there, known)
            elif any(lineage != run.lineage for lineage in there):
                self.check(run, there)
            return Outcome.ALREADY_COMMITTED if error.sqlstate == REFUSED else None
        return None

    def add(self, run: Run, checkpoint_id: CheckpointId, rows: int, part: str = "") -> str:
        """Note a checkpoint, or a part of it."""
        texts = ", ".join(literal(text) for text in (run.pipeline, self.sink, run.lineage, part))
        return (
            f"INSERT INTO {self.table} (pipeline, sink, lineage, part, checkpoint_id, generation, row_count) "  # noqa: S608
            f"VALUES ({texts}, {checkpoint_id}, {run.generation}, {rows})"
        )

    def prune(self, run: Run, checkpoint_id: CheckpointId) -> str:
        """Forget checkpoints that nobody can ask about any more."""
        return f"DELETE FROM {self.table} WHERE {self._mine(run)} AND checkpoint_id <= {checkpoint_id - KEPT}"  # noqa: S608

    def parts(self, connection: Any, run: Run, parts: list[str]) -> set[str]:
        """Which of these prepared transactions were committed."""
        statement = f"SELECT part FROM {self.table} WHERE pipeline = %s AND sink = %s AND part = ANY (%s)"  # noqa: S608
        found = connection.execute(statement, (run.pipeline, self.sink, parts)).fetchall()
        return {row[0] for row in found}

    def adopt(self, run: Run, parts: list[str]) -> str:
        """After a take-over: what an earlier lineage of this location had prepared is this one's now."""
        listed = ", ".join(map(literal, parts))
        return (
            f"UPDATE {self.table} SET lineage = {literal(run.lineage)} WHERE {self._mine(run)} "  # noqa: S608
            f"AND lineage <> {literal(run.lineage)} AND part IN ({listed})"
        )

    def _mine(self, run: Run) -> str:
        return f"pipeline = {literal(run.pipeline)} AND sink = {literal(self.sink)}"
