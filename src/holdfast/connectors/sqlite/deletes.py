"""Deletes in SQLite: the statements, and the table that remembers them so that no late row undoes one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from holdfast.connectors.sqlite.types import BINARY, collation, quote, to_rows
from holdfast.sinks.deletes import DELETED, kept_name

#: expired ones that a commit forgets at least, if there are so many; more when it deletes more, so that none pile up
_FORGET = 1000


def prepare_graves(connection: sqlite3.Connection, table: str, key: Sequence[str], order_by: str) -> str:
    """Make the table that remembers deletes, and return its name; its columns are declared as the target's."""
    types = {row[1].lower(): row[2] for row in connection.execute(f"PRAGMA table_info({quote(table)})")}
    compared = {column: collation(connection, table, column) for column in (*key, order_by)}
    kinds = [types[c.lower()] + ("" if how == BINARY else f" COLLATE {how}") for c, how in compared.items()]
    name = kept_name("holdfast_deleted_", table.lower(), *(c.lower() for c in (*key, order_by)), *kinds)
    keys = [f"k{n}" for n in range(len(key))]
    declared = ", ".join(f"{column} {kind}" for column, kind in zip([*keys, "at"], kinds, strict=True))
    connection.execute(
        f"CREATE TABLE IF NOT EXISTS {name} ({declared}, until INTEGER NOT NULL, PRIMARY KEY ({', '.join(keys)}))"
    )
    connection.execute(f"CREATE INDEX IF NOT EXISTS {name}_until ON {name} (until)")
    return name


def newer_grave(graves: str, key: Sequence[int], order_by: int) -> str:
    """Whether a later delete of a row is remembered; `key` and `order_by` are the numbers of its values."""
    same = " AND ".join(f"k{n} = ?{place}" for n, place in enumerate(key))
    return f"SELECT 1 FROM {graves} WHERE {same} AND at IS NOT NULL AND (?{order_by} IS NULL OR ?{order_by} < at)"  # noqa: S608


class Deleting:
    """What a commit does with rows that delete, in the order of the log."""

    def __init__(
        self, connection: sqlite3.Connection, table: str, key: Sequence[str], order_by: str | None, graves: str | None
    ) -> None:
        self._connection, self._graves = connection, graves
        self._columns = [*key, *([] if order_by is None else [order_by])]
        same = " AND ".join(f"{quote(column)} = ?{n + 1}" for n, column in enumerate(key))
        self._delete = f"DELETE FROM {quote(table)} WHERE {same}"  # noqa: S608  identifiers are quoted
        if order_by is not None:
            self._delete += f" AND ({quote(order_by)} IS NULL OR ?{len(key) + 1} >= {quote(order_by)})"
        self._keys = [f"k{n}" for n in range(len(key))]

    def delete(self, rows: pa.RecordBatch, keep: float) -> None:
        """Delete the rows of these keys that are not newer, and remember it."""
        chosen = rows.select(self._columns)
        self._connection.executemany(self._delete, to_rows(chosen))
        if self._graves is None:
            return
        keys, marks = ", ".join(self._keys), ", ".join(f"?{n + 1}" for n in range(len(self._columns)))
        until = int((time.time() + keep) * 1000)
        self._connection.executemany(
            f"INSERT INTO {self._graves} ({keys}, at, until) VALUES ({marks}, {until}) ON CONFLICT ({keys}) DO UPDATE "  # noqa: S608
            f"SET at = excluded.at, until = excluded.until WHERE {self._graves}.at IS NULL OR excluded.at >= "
            f"{self._graves}.at",
            to_rows(chosen),
        )

    def forget(self, deleted: int) -> None:
        """Forget deletes whose time is over, the oldest first."""
        if self._graves is None:
            return
        oldest = f"SELECT rowid FROM {self._graves} WHERE until <= ? ORDER BY until LIMIT ?"  # noqa: S608
        self._connection.execute(
            f"DELETE FROM {self._graves} WHERE rowid IN ({oldest})",  # noqa: S608
            (int(time.time() * 1000), _FORGET + 2 * deleted),
        )


def runs(batch: pa.RecordBatch) -> Iterator[tuple[pa.RecordBatch, bool]]:
    """Neighbouring rows that all delete, or all do not, without the mark: of equal orders the last one wins."""
    marks = batch.column(DELETED).to_numpy(zero_copy_only=False)
    rows = batch.drop_columns([DELETED])
    edges = [0, *(np.flatnonzero(np.diff(marks)) + 1).tolist(), len(marks)]
    for start, end in pairwise(edges):
        if end > start:
            yield rows.slice(start, end - start), bool(marks[start])
