"""A table like the target, in memory: what it refuses for a row's own values is refused before the decision (rule 11).

NOT NULL, CHECK, STRICT and the type of a row number depend on the row alone, and are tried here. What depends on rows
that are there already (UNIQUE, triggers, foreign keys) can be known only when the rows are committed.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.connectors.sqlite.types import quote, to_rows
from holdfast.errors import ConfigError, RowError

#: words of a table's declaration without which no row can be refused for its own values
_DEMANDING = re.compile(r"\b(CHECK|NOT\s+NULL|STRICT|GENERATED|AS|PRIMARY\s+KEY|WITHOUT)\b", re.IGNORECASE)
_LOOK = "SELECT type, sql FROM sqlite_master WHERE name = ? COLLATE NOCASE AND type IN ('table', 'view')"
_SHORT = 200


@dataclass(frozen=True)
class Trial:
    """How to make such a table; goes to the tasks."""

    sink: str
    path: str
    table: str
    create: str
    #: statements that add the columns that the commit will add
    add: tuple[str, ...] = ()

    def connect(self) -> sqlite3.Connection:
        """A new one, which forgets each row at once: no row meets another."""
        connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        name = quote(self.table)
        for statement in (self.create, *self.add):
            connection.execute(statement)
        connection.execute(
            f"CREATE TRIGGER holdfast_forget AFTER INSERT ON {name} BEGIN DELETE FROM {name}; END"  # noqa: S608
        )
        return connection

    def insert(self, connection: sqlite3.Connection, batch: pa.RecordBatch) -> None:
        """Raise RowError for the first row that the table refuses."""
        names, marks = ", ".join(map(quote, batch.schema.names)), ", ".join("?" * batch.num_columns)
        statement = f"INSERT INTO {quote(self.table)} ({names}) VALUES ({marks})"  # noqa: S608  identifiers are quoted
        connection.execute("BEGIN")
        try:
            connection.executemany(statement, to_rows(batch))
        except sqlite3.IntegrityError as error:
            row = _first_refused(connection, statement, batch)
            raise RowError(
                f"sink {self.sink!r}: a row does not go into table {self.table!r} of {self.path}: {error}. Correct it "
                f"or filter it out in the query, or change the table. The first is {row}"
            ) from error
        finally:
            connection.execute("ROLLBACK")


def trial_of(
    connection: sqlite3.Connection, sink: str, path: str, table: str, own: str, add: Sequence[str]
) -> Trial | None:
    """The trial that a table needs; None for one that refuses no row for its own values. `own`: as we create it."""
    found = connection.execute(_LOOK, (table,)).fetchone()
    if found is None or found[0] != "table" or found[1].upper().startswith("CREATE VIRTUAL"):
        return None
    if found[1] == own.replace(" IF NOT EXISTS", "", 1) or not _DEMANDING.search(found[1]):
        return None
    trial = Trial(sink, path, table, found[1], tuple(add))
    try:
        trial.connect().close()
    except sqlite3.Error as error:
        raise ConfigError(
            f"sink {sink!r}: a table like {table!r} of {path} cannot be made to try rows in: {error}"
        ) from error
    return trial


def _first_refused(connection: sqlite3.Connection, statement: str, batch: pa.RecordBatch) -> str:
    for row in to_rows(batch):
        try:
            connection.execute(statement, row)
        except sqlite3.IntegrityError:
            text = repr(dict(zip(batch.schema.names, row, strict=True)))
            return text if len(text) <= _SHORT else f"{text[:_SHORT]}..."
    return "one of several together"
