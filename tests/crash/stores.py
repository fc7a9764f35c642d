"""The endpoints of the crash tests that are no topics: what a plain reader finds there, and what must not be left."""

from __future__ import annotations

import re
import shutil
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Hashable
from datetime import UTC
from pathlib import Path
from typing import Any, ClassVar

import psycopg
import pyarrow.dataset as ds

from holdfast.core.naming import operator_id
from tests.crash.harness import ROWS, WORDS, input_row
from tests.servers.cassandra import CassandraServer
from tests.servers.postgres import execute, left_behind

#: What is seen as a whole or not at all: which one a row belongs to, and how many rows it has.
Whole = tuple[Callable[[int], Hashable], int]
CHECKPOINT: Whole = (lambda number: number // ROWS, ROWS)
FILE: Whole = (lambda number: (number // ROWS, number % len(WORDS)), ROWS // len(WORDS))
_KEYSPACE = (
    "CREATE KEYSPACE IF NOT EXISTS crash WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 1}"
)


class Store(ABC):
    """One sink's endpoint."""

    kind: ClassVar[str]
    #: what readers see as a whole; None where rows are seen one by one or subtask by subtask
    whole: Whole | None = None
    #: whether a row that was seen can be told from one that was written over
    watched = True
    options: dict[str, Any]

    @abstractmethod
    def received(self) -> list[int]:
        """The ids there, as any reader sees them."""

    def rows(self) -> list[Any]:
        """The rows there with all their columns; a store of ids alone has no more."""
        return list(self.received())

    def expected(self, number: int) -> Any:
        """The row of an id, as `rows` gives it."""
        return number

    @abstractmethod
    def assert_nothing_left(self, name: str, checkpoints: int) -> None:
        """After a good end: nothing hidden, prepared or staged, and the marks where they belong."""

    def copy(self, name: str) -> Callable[[], None]:
        """Make a copy of all that is there of this pipeline; returns what brings it back."""
        raise AssertionError(f"no case restores {self.kind}")

    def away(self, error: Exception) -> bool:
        """Whether this is what a reader meets while the server is away."""
        return False


class Files(Store):
    """A folder of Parquet files, by default in one bucket for each word."""

    kind = "files"

    def __init__(self, folder: Path, column: str = "id", *, buckets: bool = True) -> None:
        self.folder, self._column = folder, column
        self.options = {"path": str(folder), "bucket_by": ["word"] if buckets else []}
        self.whole = FILE if buckets else CHECKPOINT
        self._files_each = len(WORDS) if buckets else 1

    def received(self) -> list[int]:
        """See Store."""
        if not self.folder.exists():
            return []
        found = ds.dataset(str(self.folder), format="parquet", partitioning="hive")
        if not found.files:
            return []
        return [int(value) for value in found.to_table(columns=[self._column]).column(0).to_pylist()]

    def rows(self) -> list[Any]:
        """See Store."""
        if self._column != "id":
            return self.received()
        table = ds.dataset(str(self.folder), format="parquet", partitioning="hive").to_table(["id", "word", "at"])
        return [(row["id"], row["word"], row["at"].timestamp()) for row in table.to_pylist()]

    def expected(self, number: int) -> Any:
        """See Store."""
        return input_row(number) if self._column == "id" else number

    def copy(self, name: str) -> Callable[[], None]:
        """See Store."""
        copy = self.folder.with_name("files-copy")
        shutil.copytree(self.folder, copy)

        def bring_back() -> None:
            shutil.rmtree(self.folder)
            copy.rename(self.folder)

        return bring_back

    def parts(self) -> list[Path]:
        """Rows that are decided or not, and in no committed file."""
        return sorted(self.folder.glob("_holdfast/*/*/parts/**/*.arrow"))

    def assert_nothing_left(self, name: str, checkpoints: int) -> None:
        """Only marks are hidden, the furthest at the end; one file for each bucket of each checkpoint."""
        files = [path.relative_to(self.folder) for path in self.folder.rglob("*") if path.is_file()]
        hidden = [path for path in files if path.parts[0] == "_holdfast"]
        # A driver that was paused adds its mark late; the furthest counts, and the next checkpoint removes the others.
        assert {path.parts[3] for path in hidden} == {"ledger"}, f"hidden files left: {hidden}"
        assert max(int(path.name.split("_")[0]) for path in hidden) == checkpoints - 1, hidden
        visible = [path for path in files if path not in hidden]
        strange = [path for path in visible if not re.fullmatch(r"\d+-\d+-\d+-[0-9a-f]{32}-\S+\.parquet", path.name)]
        assert not strange, strange
        assert len(visible) == checkpoints * self._files_each, visible


class Postgres(Store):
    """A table without a key, so that it would take a row twice."""

    kind = "postgres"

    def __init__(self, dsn: str, table: str, mode: str, columns: str = "id bigint, word text, at timestamptz") -> None:
        how = {"mode": "ledger", "stage": "log"} if mode == "log" else {"mode": mode, "stage": "server"}
        self._dsn, self._table, self._mode = dsn, table, how["mode"]
        self._column = columns.split()[0]
        self.options = {"dsn": dsn, "table": table, **how}
        self.whole = CHECKPOINT if self._mode == "ledger" else None
        execute(dsn, f"CREATE TABLE {table} ({columns})")

    def received(self) -> list[int]:
        """See Store."""
        return [int(row[0]) for row in execute(self._dsn, f"SELECT {self._column} FROM {self._table}")]

    def rows(self) -> list[Any]:
        """See Store."""
        if self._column != "id":
            return self.received()
        found = execute(self._dsn, f"SELECT id, word, at FROM {self._table}")
        return [(number, word, at.timestamp()) for number, word, at in found]

    def expected(self, number: int) -> Any:
        """See Store."""
        return input_row(number) if self._column == "id" else number

    def copy(self, name: str) -> Callable[[], None]:
        """See Store; of the whole database."""
        server, _, database = self._dsn.rpartition("/")
        others, copy = f"{server}/postgres", f"copy_{uuid.uuid4().hex[:8]}"
        # What a killed driver had open ends a moment after it, and a database in use is not copied.
        ended = "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE datname = %s"
        execute(others, ended, database)
        execute(others, f"CREATE DATABASE {copy} TEMPLATE {database}")

        def bring_back() -> None:
            execute(others, f"DROP DATABASE {database} WITH (FORCE)")
            execute(others, f"CREATE DATABASE {database} TEMPLATE {copy}")
            execute(others, f"DROP DATABASE {copy}")

        return bring_back

    def prepared(self) -> list[str]:
        """Prepared transactions of this database."""
        return [g for (g,) in execute(self._dsn, "SELECT gid FROM pg_prepared_xacts WHERE database=current_database()")]

    def assert_nothing_left(self, name: str, checkpoints: int) -> None:
        """Nothing prepared or staged; all checkpoints in the ledger, with all their rows."""
        assert left_behind(self._dsn) == []
        ledger = execute(
            self._dsn,
            "SELECT checkpoint_id, sum(row_count)::int, count(*) FROM _holdfast.ledger WHERE pipeline = %s AND sink = "
            "%s GROUP BY checkpoint_id ORDER BY checkpoint_id",
            name,
            f"postgres-{self._table}",
        )
        assert [row[:2] for row in ledger] == [(n, ROWS) for n in range(checkpoints)], ledger
        assert self._mode != "ledger" or all(row[2] == 1 for row in ledger), ledger

    def away(self, error: Exception) -> bool:
        """See Store."""
        return isinstance(error, psycopg.OperationalError)


class Cassandra(Store):
    """A table with the id as its key: a row that is sent twice shows in its write time only."""

    kind = "cassandra"
    watched = False

    def __init__(self, server: CassandraServer, table: str) -> None:
        self._server, self._table = server, table
        self.options = {**server.options, "keyspace": "crash", "table": table}
        server.execute(_KEYSPACE)
        server.execute(f"CREATE TABLE crash.{table} (id bigint PRIMARY KEY, word text, at timestamp)")

    def received(self) -> list[int]:
        """See Store."""
        return [row["id"] for row in self._rows()]

    def rows(self) -> list[Any]:
        """See Store."""
        found = self._server.execute(f"SELECT id, word, at FROM crash.{self._table}")
        return [(row["id"], row["word"], row["at"].replace(tzinfo=UTC).timestamp()) for row in found]

    def expected(self, number: int) -> Any:
        """See Store."""
        return input_row(number)

    def copy(self, name: str) -> Callable[[], None]:
        """See Store; as a restored snapshot would be: rows and marks."""
        there = set(self.received())
        key = (name, operator_id(f"cassandra-crash-{self._table}"))
        columns = "pipeline, operator_id, job_id, subtask, checkpoint_id"
        marks = self._server.execute(
            f"SELECT {columns} FROM crash.holdfast_committer WHERE pipeline = %s AND operator_id = %s", key
        )

        def bring_back() -> None:
            later = ", ".join(str(number) for number in set(self.received()) - there)
            self._server.execute(f"DELETE FROM crash.{self._table} WHERE id IN ({later})")
            # Deleted marks would hide those that come back: a mark's write time is its checkpoint.
            self._server.execute("TRUNCATE crash.holdfast_committer")
            for mark in marks:
                self._server.execute(
                    f"INSERT INTO crash.holdfast_committer ({columns}) VALUES (%s, %s, %s, %s, %s) USING TIMESTAMP %s",
                    (*mark.values(), mark["checkpoint_id"] + 1),
                )

        return bring_back

    def _rows(self) -> list[dict[str, Any]]:
        return self._server.execute(f"SELECT id, writetime(word) AS written FROM crash.{self._table}")

    def assert_nothing_left(self, name: str, checkpoints: int) -> None:
        """The marks of the last checkpoint are there; a checkpoint's rows have its one write time, later ones later."""
        # The committer's marks are deleted by nobody, whoever started with fewer partitions.
        marks = self._server.execute(
            "SELECT job_id, subtask, checkpoint_id FROM crash.holdfast_committer WHERE pipeline = %s AND operator_id "
            "= %s",
            (name, operator_id(f"cassandra-crash-{self._table}")),
        )
        assert len({mark["job_id"] for mark in marks}) == 1, marks
        assert max(mark["checkpoint_id"] for mark in marks) == checkpoints - 1, marks
        times: dict[int, Counter[int]] = {}
        for row in self._rows():
            times.setdefault(row["id"] // ROWS, Counter())[row["written"]] += 1
        assert all(len(found) == 1 for found in times.values()), times
        written = [next(iter(times[checkpoint])) for checkpoint in sorted(times)]
        assert written == sorted(set(written)), f"write times do not grow: {written}"
