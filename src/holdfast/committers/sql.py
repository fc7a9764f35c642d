"""A committer in one small SQL table (C3)."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.committers.base import CheckpointCommitter
from holdfast.core.model import CheckpointId
from holdfast.core.naming import parse_job_id
from holdfast.errors import ConfigError, HoldfastError

_CREATE = """
CREATE TABLE IF NOT EXISTS holdfast_committer (
    job_id TEXT NOT NULL, operator_id TEXT NOT NULL, subtask INTEGER NOT NULL, checkpoint_id INTEGER NOT NULL,
    PRIMARY KEY (job_id, operator_id, subtask)
)"""
_COMMIT = """
INSERT INTO holdfast_committer (job_id, operator_id, subtask, checkpoint_id) VALUES (?, ?, ?, ?)
ON CONFLICT (job_id, operator_id, subtask) DO UPDATE SET checkpoint_id = excluded.checkpoint_id
WHERE excluded.checkpoint_id > holdfast_committer.checkpoint_id"""
_READ = "SELECT checkpoint_id FROM holdfast_committer WHERE job_id = ? AND operator_id = ? AND subtask = ?"
_PROGRESS = "SELECT job_id, max(checkpoint_id) FROM holdfast_committer WHERE operator_id = ? GROUP BY job_id"

_FORGET = "DELETE FROM holdfast_committer WHERE job_id = ? AND operator_id = ?"


class SqlCheckpointCommitter(CheckpointCommitter):
    """One row for each subtask in the table `holdfast_committer` of a database, by URL: `sqlite:///path/to/file.db`.

    Needs a database every executor reaches.
    """

    def __init__(self, url: str) -> None:
        if not isinstance(url, str):
            raise ConfigError(f"url must be a string, not {type(url).__name__}")
        parts = urlsplit(url)
        if parts.scheme != "sqlite":
            raise ConfigError(f"url must begin with sqlite:///, and this one begins with {parts.scheme or 'no scheme'}")
        path = unquote(parts.path.removeprefix("/"))
        if parts.query or parts.fragment:
            raise ConfigError("url must name a file and nothing more: write ? as %3F and # as %23")
        if not path or parts.netloc:
            raise ConfigError("url must name a file: sqlite:///relative/path.db or sqlite:////absolute/path.db")
        self._path = str(Path(path).absolute())
        self._connection: sqlite3.Connection | None = None

    def create_resource(self) -> None:
        """Create the table; an existing one is used."""
        self._pipeline()
        Path(self._path).parent.mkdir(parents=True, exist_ok=True)
        self.open()
        try:
            self._db.execute(_CREATE)
        finally:
            self.close()

    def open(self) -> None:
        """See CheckpointCommitter."""
        if self._connection is None:
            self._connection = sqlite3.connect(self._path, timeout=60, isolation_level=None)
            self._connection.execute("PRAGMA synchronous=FULL")

    def close(self) -> None:
        """See CheckpointCommitter."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def commit_checkpoint(self, subtask: int, checkpoint_id: CheckpointId) -> None:
        """See CheckpointCommitter."""
        self._db.execute(_COMMIT, (self.job_id, self.operator_id, subtask, checkpoint_id))

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: CheckpointId) -> bool:
        """See CheckpointCommitter."""
        row = self._db.execute(_READ, (self.job_id, self.operator_id, subtask)).fetchone()
        return row is not None and checkpoint_id <= row[0]

    def progress(self) -> Mapping[str, CheckpointId]:
        """See CheckpointCommitter."""
        return {lineage: checkpoint for lineage, (_, checkpoint) in self._lineages().items()}

    def take_over(self) -> None:
        """See CheckpointCommitter."""
        others = [job for job, _ in self._lineages().values() if job != self.job_id]
        self._db.executemany(_FORGET, [(job, self.operator_id) for job in others])

    def _lineages(self) -> dict[str, tuple[str, CheckpointId]]:
        """{lineage: (job id, last checkpoint)} of every pipeline of this name."""
        pipeline = self._pipeline()
        found = {}
        for text, checkpoint in self._db.execute(_PROGRESS, (self.operator_id,)).fetchall():
            job = parse_job_id(text)
            if job is not None and job[0] == pipeline:
                found[job[1]] = (text, checkpoint)
        return found

    @property
    def _db(self) -> sqlite3.Connection:
        if self._connection is None:
            raise HoldfastError(f"{type(self).__name__} is not open: call open() first")
        return self._connection
