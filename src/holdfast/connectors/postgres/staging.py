"""Rows in staging tables until the driver moves them: modes `ledger` and `upsert`.

A task's rows and its entry in table `staged` are one transaction. The entry goes with the transaction that moves the
rows, or when a sweep finds that nobody decided them; the rows themselves go when their table is emptied (`stages.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run
from holdfast.connectors.postgres import stages
from holdfast.connectors.postgres.ledger import Ledger
from holdfast.connectors.postgres.legacy import is_legacy
from holdfast.connectors.postgres.names import PART, literal, quote
from holdfast.connectors.postgres.server import Server, drivers
from holdfast.connectors.postgres.stages import Place
from holdfast.connectors.postgres.table import Target, Upsert
from holdfast.connectors.postgres.writer import Writer, own_rows
from holdfast.core.naming import Task, parse_token
from holdfast.sinks.deletes import DELETED

logger = logging.getLogger("holdfast")
KIND = "staged"


class StagingWriter(Writer):
    """One task's rows on their way into a staging table, in one transaction."""

    def __init__(self, server: Server, place: Place, target: Target, upsert: Upsert, task: Task) -> None:
        assert place.rows is not None
        self._schema, self._table, self._upsert = place.schema, place.rows, upsert
        self._may_exist = False
        super().__init__(
            server,
            target,
            task,
            into=(place.schema, place.rows),
            raw=None if place.raw is None else (place.schema, place.raw),
            staged=True,
            ordered=upsert.order_by is not None,
            deletes=upsert.deletes is not None,
        )

    def prepare(self) -> dict[str, Any]:
        """Make the rows durable; the committable says all that the commit needs (rule 16)."""
        target, key, deletes = self._target, self._upsert.key, self._upsert.deletes
        self._cast_rows()
        doubtful = self._lengths.doubtful if self._lengths is not None else ()
        for statement, about in target.proofs(own_rows(self._into, self._part, deletes=deletes is not None), doubtful):
            self._execute(statement, about)
        task, staged = self._task, f"{quote(self._schema)}.staged"
        texts = ", ".join(map(literal, (task.pipeline, task.sink, self._table, task.token)))
        self._execute(
            f"INSERT INTO {staged} (part, row_count, pipeline, sink, stage, token) "  # noqa: S608
            f"VALUES ({self._part}, {self._rows}, {texts})"
        )
        self._may_exist = True
        self._execute("COMMIT")
        self._session.keep()
        return {
            "version": 3 if deletes is None and not target.added else 4,
            "kind": KIND,
            "mode": "upsert" if key else "ledger",
            "schema": self._schema,
            "table": self._table,
            "part": self._part,
            "columns": target.names,
            "target": [target.name.schema, target.name.table],
            "key": list(key),
            "order_by": self._upsert.order_by,
            "subtask": self._task.subtask,
            "rows": self._rows,
            **({"by_bytes": True} if self._upsert.by_bytes else {}),
            **({"add": target.add} if target.added else {}),
            **({} if deletes is None else {"deletes": deletes.to_json(), "deleted": self._deleted}),
        }

    def abort(self) -> None:
        """Leave nothing behind but rows that nobody needs."""
        self._session.close()
        if self._may_exist:
            with self._server.connect() as connection:
                forget(connection, self._schema, [self._part])


def find_duplicate(server: Server, key: Sequence[str], committables: Sequence[Mapping[str, Any]]) -> str | None:
    """A key that occurs twice in a checkpoint, as text, or None."""
    columns = ", ".join(map(quote, key))
    rows = " UNION ALL ".join(f"SELECT {columns} FROM {source}" for source, _ in sources(committables))  # noqa: S608
    shown = ", ".join(f"{quote(column)}::text" for column in key)
    with server.connect() as connection:
        found = connection.execute(
            f"SELECT {shown} FROM ({rows}) AS rows GROUP BY {columns} HAVING count(*) > 1 LIMIT 1"  # noqa: S608
        ).fetchone()
    return None if found is None else ", ".join(f"{k}={v}" for k, v in zip(key, found, strict=True))


def sources(committables: Sequence[Mapping[str, Any]]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """What comes after FROM to read the rows of several committables, and whose rows each of these is."""
    tables: dict[str, list[Mapping[str, Any]]] = {}
    for committable in committables:
        tables.setdefault(sql_name(committable), []).append(committable)
    return [(f"{name}{_only(mine)}", mine) for name, mine in tables.items()]


def _only(committables: Sequence[Mapping[str, Any]]) -> str:
    if is_legacy(committables[0]):
        return ""
    return f" WHERE {quote(PART)} = ANY ({parts_of(committables)})"


def parts_of(committables: Sequence[Mapping[str, Any]]) -> str:
    """Their parts, in SQL."""
    return f"'{{{','.join(str(int(c['part'])) for c in committables)}}}'::bigint[]"


def missing(connection: Any, committables: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of them whose rows are not all there."""
    gone = []
    for source, mine in sources(committables):
        name = sql_name(mine[0])
        if connection.execute("SELECT to_regclass(%s)", (name,)).fetchone()[0] is None:
            gone += mine
        elif not is_legacy(mine[0]):
            counts = f"SELECT {quote(PART)}, count(*) FROM {source} GROUP BY 1"  # noqa: S608
            held = dict(connection.execute(counts).fetchall())
            entries = f"SELECT part FROM {quote(mine[0]['schema'])}.staged WHERE part = ANY ({parts_of(mine)})"  # noqa: S608
            known = {row[0] for row in connection.execute(entries).fetchall()}
            gone += [c for c in mine if c["part"] not in known or held.get(c["part"], 0) != c["rows"]]
    return [c for c in committables if c in gone]


def rows_of(server: Server, committables: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch]:
    """The rows that are there, read back; types that Arrow does not have come as text."""
    _, manager, _ = drivers()
    with server.connect() as connection:
        gone = missing(connection, committables)
    for committable in committables:
        if committable in gone:
            logger.warning("rows of subtask %s in %s are gone", committable["subtask"], sql_name(committable))
            continue
        columns = ", ".join(map(quote, [*committable["columns"], *([DELETED] if "deletes" in committable else [])]))
        ((source, _),) = sources([committable])
        try:
            with closing(server.adbc_connection()) as connection, closing(manager.AdbcStatement(connection)) as query:
                query.set_sql_query(f"SELECT {columns} FROM {source}")  # noqa: S608
                stream, _ = query.execute_query()
                with pa.RecordBatchReader._import_from_c(stream.address) as reader:
                    for batch in reader:
                        yield _without_extensions(batch)
        except manager.Error as error:
            raise server.blame(sql_name(committable), error) from error


def _without_extensions(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Numbers of any length, enums and the like come as text with a note; the text is enough."""
    plain = [c.storage if isinstance(c.type, pa.BaseExtensionType) else c for c in batch.columns]
    return pa.RecordBatch.from_arrays(plain, names=batch.schema.names)


def sweep(connection: Any, ledger: Ledger, run: Run, generation: int, kept: Collection[int]) -> None:
    """Forget this sink's staged rows of this and older generations that no record names.

    A take-over also forgets those of other lineages, whose generations are not ours: nobody else will.
    """
    entries = f"SELECT part, token FROM {ledger.staged} WHERE pipeline = %s AND sink = %s"  # noqa: S608
    undecided = []
    for part, token in connection.execute(entries, (run.pipeline, ledger.sink)).fetchall():
        task = parse_token(token)
        if task is None or part in kept:
            continue
        if task.generation <= generation if task.lineage == run.lineage else run.takes_from(task.lineage):
            undecided.append(part)
    if undecided:
        forget(connection, ledger.schema, undecided)


def forget(connection: Any, schema: str, parts: Sequence[int]) -> None:
    """Nobody needs these rows."""
    listed = ", ".join(map(str, parts))
    connection.together(f"DELETE FROM {quote(schema)}.staged WHERE part IN ({listed})")  # noqa: S608


def emptied(connection: Any, committables: Sequence[Mapping[str, Any]]) -> None:
    """After a move: empty the tables of these, if it is worth it."""
    for schema, table in sorted({(c["schema"], c["table"]) for c in committables}):
        stages.empty(connection, schema, table)


def sql_name(committable: Mapping[str, Any]) -> str:
    """The staging table, quoted."""
    return f"{quote(committable['schema'])}.{quote(committable['table'])}"
