"""The target table of an SQLite file, and the ledger beside it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote as url_quote

import pyarrow as pa

from holdfast.connectors.sqlite.deletes import newer_grave
from holdfast.connectors.sqlite.types import column_type, quote
from holdfast.core.model import CheckpointId

#: seconds to wait for another's lock before it is an error, which is retried
_PATIENCE = 20
_LEDGER_KEPT = 100
CREATE_LEDGER = """
CREATE TABLE IF NOT EXISTS holdfast_ledger (
    pipeline TEXT NOT NULL, sink TEXT NOT NULL, checkpoint_id INTEGER NOT NULL, lineage TEXT NOT NULL,
    generation INTEGER NOT NULL, row_count INTEGER NOT NULL, committed_at TEXT NOT NULL DEFAULT (datetime('now')),
    PRIMARY KEY (pipeline, sink, checkpoint_id)
)"""
_READ_LEDGER = """
SELECT lineage, max(checkpoint_id) FROM holdfast_ledger WHERE pipeline = ? AND sink = ? GROUP BY lineage"""
_ADD_TO_LEDGER = """
INSERT INTO holdfast_ledger (pipeline, sink, checkpoint_id, lineage, generation, row_count) VALUES (?, ?, ?, ?, ?, ?)"""
_PRUNE_LEDGER = "DELETE FROM holdfast_ledger WHERE pipeline = ? AND sink = ? AND checkpoint_id <= ?"
_CLEAR_LEDGER = "DELETE FROM holdfast_ledger WHERE pipeline = ? AND sink = ?"


@dataclass(frozen=True)
class Table:
    """The target table and how rows go into it."""

    path: str
    name: str
    key: tuple[str, ...] = ()
    order_by: str | None = None
    #: the table that remembers deletes, and for how many seconds; None: there are none, or they are not remembered
    graves: str | None = None
    keep: float = 0.0
    #: columns that the commit adds, and their types
    add: tuple[tuple[str, str], ...] = ()

    @property
    def mode(self) -> str:
        """As the sink's option."""
        return "upsert" if self.key else "ledger"

    def to_json(self) -> dict[str, Any]:
        """All that a commit needs to know (rule 16)."""
        return {
            "path": self.path,
            "table": self.name,
            "mode": self.mode,
            "key": list(self.key),
            "order_by": self.order_by,
            **({} if self.graves is None else {"graves": self.graves, "keep": self.keep}),
            **({"add": [list(column) for column in self.add]} if self.add else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Table:
        """Read back from a committable."""
        add = tuple((name, kind) for name, kind in data.get("add", ()))
        graves, keep = data.get("graves"), data.get("keep", 0.0)
        return cls(data["path"], data["table"], tuple(data["key"]), data["order_by"], graves, keep, add)

    @contextmanager
    def connect(self, *, create: bool = False) -> Iterator[sqlite3.Connection]:
        """A connection in autocommit mode, so that every BEGIN and COMMIT is ours.

        A file that is gone is not made anew but at a start, which sees that it lacks what was committed (rule 15).
        """
        url = f"file:{url_quote(self.path)}?mode={'rwc' if create else 'rw'}"
        with closing(sqlite3.connect(url, timeout=_PATIENCE, isolation_level=None, uri=True)) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            yield connection

    def columns(self, connection: sqlite3.Connection) -> dict[str, bool]:
        """The table's columns in lower case, and whether a row must give a value; none when there is no such table."""
        found = connection.execute(f"PRAGMA table_info({quote(self.name)})")
        return {
            name.lower(): bool(required) and default is None and not key for _, name, _, required, default, key in found
        }

    def types(self, connection: sqlite3.Connection) -> dict[str, str]:
        """The table's columns in lower case, as they are declared; none of a STRICT table, which checks each value."""
        made = "SELECT sql FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type = 'table'"
        found = connection.execute(made, (self.name,)).fetchone()
        if found is not None and "STRICT" in found[0].rpartition(")")[2].upper():
            return {}
        return {row[1].lower(): row[2] for row in connection.execute(f"PRAGMA table_info({quote(self.name)})")}

    def add_statement(self, column: str, kind: str) -> str:
        """What adds a column."""
        return f"ALTER TABLE {quote(self.name)} ADD COLUMN {quote(column)} {kind}"

    def add_columns(self, connection: sqlite3.Connection) -> None:
        """Add the columns that are to be added and are not there."""
        there = self.columns(connection) if self.add else {}
        for column, kind in self.add:
            if column.lower() not in there:
                connection.execute(self.add_statement(column, kind))

    def create_statement(self, schema: pa.Schema) -> str:
        """The table for these columns."""
        columns = [f"{quote(field.name)} {column_type(field.type)}" for field in schema]
        if self.key:
            columns.append(f"PRIMARY KEY ({', '.join(map(quote, self.key))})")
        return f"CREATE TABLE IF NOT EXISTS {quote(self.name)} ({', '.join(columns)})"

    def insert_statement(self, columns: Sequence[str]) -> str:
        """Append, or replace by key; an `order_by` that is smaller than what is there changes nothing."""
        names, marks = ", ".join(map(quote, columns)), ", ".join(f"?{n + 1}" for n in range(len(columns)))
        statement = f"INSERT INTO {quote(self.name)} ({names}) "
        if self.graves is None:
            statement += f"VALUES ({marks})"
        else:
            places = {column: n + 1 for n, column in enumerate(columns)}
            newer = newer_grave(self.graves, [places[c] for c in self.key], places[self.order_by or ""])
            statement += f"SELECT {marks} WHERE NOT EXISTS ({newer})"
        if not self.key:
            return statement
        keys = ", ".join(map(quote, self.key))
        others = [column for column in columns if column not in self.key]
        if not others:
            return f"{statement} ON CONFLICT ({keys}) DO NOTHING"
        updates = ", ".join(f"{quote(c)} = excluded.{quote(c)}" for c in others)
        statement += f" ON CONFLICT ({keys}) DO UPDATE SET {updates}"
        if self.order_by is not None:
            stored = f"{quote(self.name)}.{quote(self.order_by)}"
            statement += f" WHERE {stored} IS NULL OR excluded.{quote(self.order_by)} >= {stored}"
        return statement


@dataclass(frozen=True)
class Ledger:
    """The rows of one pipeline and sink in the ledger; lineages are told apart (rule 10)."""

    pipeline: str
    sink: str
    lineage: str
    generation: int

    def read(self, connection: sqlite3.Connection) -> dict[str, CheckpointId]:
        """{lineage: last committed checkpoint}."""
        return dict(connection.execute(_READ_LEDGER, (self.pipeline, self.sink)).fetchall())

    def add(self, connection: sqlite3.Connection, checkpoint_id: CheckpointId, rows: int) -> None:
        """This checkpoint is committed, and so are all before it; old rows are forgotten."""
        row = (self.pipeline, self.sink, checkpoint_id, self.lineage, self.generation, rows)
        connection.execute(_ADD_TO_LEDGER, row)
        connection.execute(_PRUNE_LEDGER, (self.pipeline, self.sink, checkpoint_id - _LEDGER_KEPT))

    def reach(self, connection: sqlite3.Connection, checkpoint_id: CheckpointId) -> None:
        """See to it that the ledger knows of this checkpoint, whose rows are elsewhere."""
        connection.execute("BEGIN IMMEDIATE")
        if self.read(connection).get(self.lineage, -1) < checkpoint_id:
            self.add(connection, checkpoint_id, 0)
        connection.execute("COMMIT")

    def take_over(self, connection: sqlite3.Connection, committed: CheckpointId) -> None:
        """Own the name from here on; what this location has committed is known, what it still owes is not skipped."""
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_CLEAR_LEDGER, (self.pipeline, self.sink))
        self.add(connection, committed, 0)
        connection.execute("COMMIT")
