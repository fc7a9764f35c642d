"""Files: the folder of a FileSink, the file of an SqliteSink, marks that are files."""

from __future__ import annotations

import copy
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from holdfast.checkpoint.clients import returning_files
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.sqlite import SqliteSink
from holdfast.connectors.sqlite.errors import told
from holdfast.connectors.sqlite.table import CREATE_LEDGER, Ledger
from holdfast.errors import ConfigError
from holdfast.pipeline.checks.log import try_store
from holdfast.pipeline.checks.registry import CHECKS, Problem, also, check, fatal, warning
from holdfast.pipeline.checks.situation import Situation
from holdfast.sinks.deletes import without
from holdfast.sinks.ledger import check_ledger
from holdfast.sinks.order import MissingIndexError

_LEDGER = (
    "Start from the location that wrote it, or give the pipeline a new name, or pass --take-over; for one that was "
    "restored, see holdfast resolve --accept-restored"
)


@check(
    "files-folder",
    FileSink,
    remedy="Give this user the right to create, read, list and delete there; for an object "
    "store, check the bucket's name and the credentials",
)
def folder(situation: Situation, sink: FileSink) -> Iterator[Problem]:
    """The folder can be written; tried with a hidden file that is removed."""
    try_store(sink.path)
    yield from ()


@check("files-columns", FileSink, remedy="Cast or leave out the column, or take another format")
def columns(situation: Situation, sink: FileSink) -> Iterator[Problem]:
    """The format can hold the columns of the rows, and the buckets are among them."""
    schema = situation.schemas.get(sink.name)
    if schema is not None:
        sink.check_columns(schema)
    yield from ()


@check(
    "files-return",
    FileSink,
    remedy="Compact and delete only while the pipeline runs, and status shows that the sink owes nothing; or write to "
    "s3:// or a local disk, where committed files are yours at once",
)
def returning(situation: Situation, sink: FileSink) -> Iterator[Problem]:
    """A committed file that is taken away never comes back."""
    text = returning_files(sink.path)
    if text is not None:
        yield warning(text)


@check("files-ledger", FileSink, remedy=_LEDGER)
def ledger(situation: Situation, sink: FileSink) -> Iterator[Problem]:
    """What is in the folder is this location's, neither ahead of its log nor behind it, and of the same columns."""
    if situation.takes_over:
        return
    # A copy without what a run remembers. At a start that takes nothing over, looking is all it does.
    copied, state = copy.copy(sink), situation.state_of(sink)
    copied.open(situation.run_of(sink))
    if state is not None and state["options"]["path"] != sink.path:
        yield warning(
            f"rows went into {state['options']['path']} until now, and go into {sink.path} from here on",
            "Run holdfast flush with the checkpoint location first, if rows still wait there",
        )
        return
    try:
        copied.initialize_state(state)
    except ConfigError as error:
        yield fatal(str(error), CHECKS["files-columns"].remedy, check="files-columns")


@check(
    "sqlite-file",
    SqliteSink,
    remedy="See that the file and its folder are there, writable for this user and on a disk "
    "with room, and that nobody holds a lock",
)
def sqlite_file(situation: Situation, sink: SqliteSink) -> Iterator[Problem]:
    """The file can be written, or made; tried with a transaction that is rolled back."""
    file = Path(sink.table.path)
    if file.exists():
        with told(sink.name, sink.table.path), sink.table.connect() as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("ROLLBACK")
    else:
        try_store(str(file.parent))
    yield from ()


@check("sqlite-table", SqliteSink, remedy="ALTER TABLE as the message says, or select other columns")
def sqlite_table(situation: Situation, sink: SqliteSink) -> Iterator[Problem]:
    """The table is there, or can be made, and takes the columns of the rows; with a unique index on the key."""
    rows = situation.schemas.get(sink.name)
    if rows is None:
        return
    schema = without(sink.name, rows, sink.delete_when)
    copied = copy.copy(sink)  # what it finds out is not for the one that will be started
    copied.check_columns(schema)
    there = Path(sink.table.path).exists()
    made = sink.table.connect() if there else closing(sqlite3.connect(":memory:", isolation_level=None))
    with told(sink.name, sink.table.path), made as connection:
        connection.execute("BEGIN IMMEDIATE")
        try:
            connection.execute(CREATE_LEDGER)
            copied.check_table(connection, schema)
        except MissingIndexError as error:
            keys = ", ".join(sink.table.key)
            yield fatal(str(error), f"CREATE UNIQUE INDEX on {sink.table.name} ({keys})", check="sqlite-upsert-index")
        finally:
            connection.execute("ROLLBACK")


also(
    "sqlite-upsert-index",
    SqliteSink,
    "The table has a unique index on the key",
    remedy="CREATE UNIQUE INDEX on the key",
)


@check("sqlite-ledger", SqliteSink, remedy=_LEDGER)
def sqlite_ledger(situation: Situation, sink: SqliteSink) -> Iterator[Problem]:
    """The ledger is this location's, neither ahead of its log nor behind it."""
    if situation.takes_over:
        return
    run = situation.run_of(sink)
    found: dict[str, int] = {}
    if Path(sink.table.path).exists():
        with told(sink.name, sink.table.path), sink.table.connect() as connection:
            there = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'holdfast_ledger'").fetchone()
            if there:
                found = Ledger(run.pipeline, sink.name, run.lineage, run.generation).read(connection)
    state = situation.state_of(sink)
    moved = state is not None and state.get("path") != sink.table.path
    where = f"the ledger of sink {sink.name!r} in {sink.table.path}"
    check_ledger(run, where, found, sink=None if moved else sink.name)
    if moved:
        yield warning(f"rows went into {state.get('path')} until now, and go into {sink.table.path} from here on")
