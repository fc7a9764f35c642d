"""A committer in one small Cassandra table (C3)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any

from holdfast.committers.base import CheckpointCommitter
from holdfast.committers.cassandra_client import Client, Lease, borrow, reaching
from holdfast.committers.cassandra_settings import (
    Hosts,
    Password,
    Port,
    Timeout,
    Tls,
    Word,
    check_identifier,
    make_settings,
    quote,
)
from holdfast.core.model import CheckpointId
from holdfast.core.naming import parse_job_id, unescape
from holdfast.core.options import checked, one_of
from holdfast.errors import CommitError, ConfigError, HoldfastError

#: Levels at which a read sees every write; the first one within one datacenter.
CONSISTENCY = ("LOCAL_QUORUM", "QUORUM", "ALL")
_STRATEGIES = ("SimpleStrategy", "NetworkTopologyStrategy")
_DATACENTER = re.compile(r"[\w.-]+", re.ASCII)
_COLUMNS = {
    "pipeline": "text", "operator_id": "text", "job_id": "text", "subtask": "int", "checkpoint_id": "bigint",
}  # fmt: skip
_KEYSPACE = "SELECT keyspace_name FROM system_schema.keyspaces WHERE keyspace_name = ?"
_DESCRIBE = "SELECT column_name, type FROM system_schema.columns WHERE keyspace_name = ? AND table_name = ?"


class CassandraCheckpointCommitter(CheckpointCommitter):
    """One row for each subtask in a table of a Cassandra keyspace.

    Needs a Cassandra (tested with 5.0) that driver and executors reach, and the rights to read and write that table. A
    keyspace that does not exist is created only with `replication`, which nobody but you can choose:
    `{"class": "NetworkTopologyStrategy", "dc1": 3}`; a table that does not exist is created.

    Marks never move backwards, without a read before the write: the write time of a mark is its checkpoint id, and in
    Cassandra the later write time wins, whoever writes first.
    """

    extras = ("cassandra",)

    @checked
    def __init__(
        self,
        contact_points: Hosts,
        keyspace: str,
        *,
        table: str = "holdfast_committer",
        replication: Mapping[str, Any] | None = None,
        consistency: Annotated[str, one_of(*CONSISTENCY)] = "LOCAL_QUORUM",
        port: Port = 9042,
        username: Word | None = None,
        password: Password | None = None,
        tls: Tls = False,
        local_dc: Word | None = None,
        timeout: Timeout = 10.0,
    ) -> None:
        self._settings = make_settings(contact_points, port, username, password, tls, local_dc, timeout)
        self.keyspace = check_identifier("keyspace", keyspace)
        self.table = check_identifier("table", table)
        self._replication = None if replication is None else _check_replication(replication)
        self.consistency = consistency
        self._lease: Lease | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Configuration only."""
        return {**self.__dict__, "_lease": None}

    @property
    def address(self) -> str:
        """See CheckpointCommitter."""
        return f"{self._settings.hosts}, {self.keyspace}.{self.table}"

    def create_resource(self) -> None:
        """Create keyspace and table; existing ones are used as they are."""
        self._pipeline()
        with borrow(self._settings, self._who) as client:
            if not client.query(_KEYSPACE, (self.keyspace,)):
                if self._replication is None:
                    raise ConfigError(
                        f"there is no keyspace {self.keyspace!r} in Cassandra at {self._settings.hosts} (upper and "
                        "lower case count). Create it, or say how many copies it keeps: replication="
                        "{'class': 'NetworkTopologyStrategy', '<datacenter>': 3}"
                    )
                client.session.execute(
                    f"CREATE KEYSPACE IF NOT EXISTS {quote(self.keyspace)} WITH replication = {self._replication}"
                )
            columns = self._columns(client)
            if not columns:
                # Looked for first: two tables of one name, created at once, confuse old versions of Cassandra.
                client.session.execute(
                    f"CREATE TABLE IF NOT EXISTS {self._name} (pipeline text, operator_id text, job_id text, subtask "
                    "int, checkpoint_id bigint, PRIMARY KEY ((pipeline, operator_id), job_id, subtask)) WITH comment = "
                    "'holdfast: the last checkpoint each subtask of a sink delivered'"
                )
            elif columns != _COLUMNS:
                raise ConfigError(
                    f"table {self.keyspace}.{self.table} is not a committer's, it has the columns "
                    f"{', '.join(sorted(columns))}: give the committer another table='...'"
                )

    def open(self) -> None:
        """See CheckpointCommitter."""
        if self._lease is None:
            self._lease = Lease(self._settings, self._who)

    def close(self) -> None:
        """See CheckpointCommitter."""
        lease, self._lease = self._lease, None
        if lease is not None:
            lease.give_back()

    def commit_checkpoint(self, subtask: int, checkpoint_id: CheckpointId) -> None:
        """See CheckpointCommitter."""
        key = (self._pipeline(), self.operator_id, self.job_id, subtask)
        self._query(
            f"INSERT INTO {self._name} (pipeline, operator_id, job_id, subtask, checkpoint_id) "  # noqa: S608  quoted
            "VALUES (?, ?, ?, ?, ?) USING TIMESTAMP ?",
            (*key, checkpoint_id, checkpoint_id + 1),
        )
        if not self.is_checkpoint_committed(subtask, checkpoint_id):
            raise CommitError(
                f"a mark of {self.job_id!r} in {self.keyspace}.{self.table} does not stay: it was deleted there, by "
                "hand or because another checkpoint location took the name over, and the deletion is newer than any "
                "mark. Start with take_over=True, or TRUNCATE the table while no pipeline runs"
            )

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: CheckpointId) -> bool:
        """See CheckpointCommitter."""
        rows = self._query(
            f"SELECT checkpoint_id FROM {self._name} WHERE pipeline = ? AND operator_id = ? "  # noqa: S608  quoted
            "AND job_id = ? AND subtask = ?",
            (self._pipeline(), self.operator_id, self.job_id, subtask),
        )
        return bool(rows) and checkpoint_id <= rows[0].checkpoint_id

    def progress(self) -> Mapping[str, CheckpointId]:
        """See CheckpointCommitter."""
        found: dict[str, CheckpointId] = {}
        for job, checkpoint in self._marks():
            parsed = parse_job_id(job)
            if parsed is not None:
                found[parsed[1]] = max(checkpoint, found.get(parsed[1], checkpoint))
        return found

    def take_over(self) -> None:
        """See CheckpointCommitter."""
        for job in {job for job, _ in self._marks()} - {self.job_id}:
            self._query(
                f"DELETE FROM {self._name} WHERE pipeline = ? AND operator_id = ? AND job_id = ?",  # noqa: S608  quoted
                (self._pipeline(), self.operator_id, job),
            )

    @property
    def _name(self) -> str:
        return f"{quote(self.keyspace)}.{quote(self.table)}"

    @property
    def _who(self) -> str:
        try:
            return f"the marks of sink {unescape(self.operator_id)!r}"
        except ValueError:  # an id that somebody else made
            return f"the marks of {self.operator_id!r}"

    def _marks(self) -> list[tuple[str, CheckpointId]]:
        """(job id, checkpoint) of every subtask and lineage of this pipeline name and sink."""
        rows = self._query(
            f"SELECT job_id, checkpoint_id FROM {self._name} WHERE pipeline = ? AND operator_id = ?",  # noqa: S608  quoted
            (self._pipeline(), self.operator_id),
        )
        return [(row.job_id, row.checkpoint_id) for row in rows]

    @property
    def made(self) -> bool:
        """See CheckpointCommitter."""
        with borrow(self._settings, self._who) as client:
            return bool(self._columns(client))

    def _columns(self, client: Client) -> dict[str, str]:
        rows = client.query(_DESCRIBE, (self.keyspace, self.table))
        return {row.column_name: row.type for row in rows}

    def _query(self, statement: str, values: tuple[Any, ...]) -> list[Any]:
        if self._lease is None:
            raise HoldfastError(f"{type(self).__name__} is not open: call open() first")
        try:
            with reaching(self._settings, self._who):
                return self._lease.client.query(statement, values, self.consistency)
        except HoldfastError:
            self._lease.broken = True
            raise


def _check_replication(replication: Mapping[str, Any]) -> str:
    """As CQL; every part is checked, since CQL takes no parameters here."""
    rest = dict(replication)
    strategy = rest.pop("class", None)
    if strategy not in _STRATEGIES:
        raise ConfigError(f"replication: class must be one of {', '.join(_STRATEGIES)}, not {strategy!r}")
    if strategy == "SimpleStrategy" and set(rest) != {"replication_factor"}:
        raise ConfigError("replication: SimpleStrategy takes replication_factor and nothing else")
    if not rest:
        raise ConfigError("replication: NetworkTopologyStrategy needs the copies in each datacenter: {'dc1': 3}")
    for name, copies in rest.items():
        if not isinstance(name, str) or not _DATACENTER.fullmatch(name):
            raise ConfigError(f"replication: {name!r} is not the name of a datacenter")
        if not isinstance(copies, int) or isinstance(copies, bool) or copies < 1:
            raise ConfigError(f"replication: {name} must be a number of copies of at least 1, not {copies!r}")
    parts = [f"'class': '{strategy}'", *(f"'{name}': {copies}" for name, copies in rest.items())]
    return "{" + ", ".join(parts) + "}"
