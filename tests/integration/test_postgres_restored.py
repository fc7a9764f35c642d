"""A database that is not the one that was written to: restored from a backup, emptied, made anew (rule 15, D5)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.ports import Committed, Run
from holdfast.errors import RestoredEndpointError
from tests.integration.pg import Query, batch, rows
from tests.servers.postgres import PASSWORD, PostgresServer, binaries, execute

MODES: tuple[dict[str, Any], ...] = ({"mode": "ledger"}, {"mode": "two-phase"}, {"mode": "upsert", "key": ["id"]})
each_mode = pytest.mark.parametrize("options", MODES, ids=[str(o["mode"]) for o in MODES])


@pytest.fixture
def query(postgres: PostgresServer, tmp_path: Path) -> Query:
    return Query(tmp_path / "checkpoint", postgres.new_database())


def reopened(run: Any, committed: int, **changed: Any) -> Run:
    """The next start, with what the commit records say."""
    known = {"postgres-t": Committed(committed, 0)}
    return replace(run.info, last_decided=committed, committed=known, **changed)


def dump(query: Query, file: Path) -> None:
    tool("pg_dump", "-Fc", "-f", str(file), "-d", query.dsn)


def restore(query: Query, file: Path) -> None:
    tool("pg_restore", "--clean", "--if-exists", "-d", query.dsn, str(file))


def tool(name: str, *options: str) -> None:
    command = [str(binaries() / name), *options]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PGPASSWORD": PASSWORD})
    assert done.returncode == 0, done.stderr


@each_mode
def test_d5_a_database_restored_from_an_older_backup_is_refused_with_the_checkpoints(
    query: Query, tmp_path: Path, options: dict[str, Any]
) -> None:
    run = query.start(**options)
    for checkpoint in range(3):
        run.run(checkpoint, batch(rows(checkpoint)))
    dump(query, tmp_path / "backup")
    for checkpoint in range(3, 6):
        run.run(checkpoint, batch(rows(checkpoint)))
    run.close()
    sink = query.sink(**options)
    sink.open(reopened(run, 5))
    sink.close()
    restore(query, tmp_path / "backup")
    assert query.ids() == [0, 1, 2], "the rows of three checkpoints are missing"
    with pytest.raises(
        RestoredEndpointError,
        match=r"the ledger of sink 'postgres-t' \(table _holdfast.ledger at 127.*checkpoints 3 to 5 were committed",
    ) as caught:
        sink.open(reopened(run, 5))
    assert caught.value.behind == (3, 5)
    assert "holdfast resolve" in str(caught.value) and PASSWORD not in str(caught.value)
    sink.close()


@each_mode
@pytest.mark.parametrize(
    "lose",
    [
        lambda q: execute(q.dsn, "DROP TABLE _holdfast.ledger"),
        lambda q: execute(q.dsn, "DROP SCHEMA _holdfast CASCADE"),
        lambda q: execute(q.dsn, "DELETE FROM _holdfast.ledger WHERE checkpoint_id > 0"),
    ],
    ids=["table", "schema", "rows"],
)
def test_d5_a_ledger_that_was_dropped_or_emptied_is_refused_again_and_again(
    query: Query, options: dict[str, Any], lose: Callable[[Query], Any]
) -> None:
    run = query.start(**options)
    for checkpoint in range(2):
        run.run(checkpoint, batch(rows(checkpoint)))
    run.close()
    lose(query)
    for _ in range(2):
        sink = query.sink(**options)
        with pytest.raises(RestoredEndpointError, match=r"checkpoints \d to 1 were committed.*options dsn and schema"):
            sink.open(reopened(run, 1))
        sink.close()


def of_subtasks(run: Any, checkpoint: int, *subtasks: int) -> Run:
    """The next start, with what the commit records say of each subtask."""
    known = Committed(checkpoint, 0, dict.fromkeys(subtasks, checkpoint))
    return replace(run.info, last_decided=checkpoint, committed={"postgres-t": known})


def forget(query: Query, checkpoint: int, subtask: int) -> None:
    gid = f"part ~ '-{checkpoint}-{subtask}-[0-9]+-[0-9a-f]+$'"
    assert execute(query.dsn, f"DELETE FROM _holdfast.ledger WHERE {gid} RETURNING part")


def test_rule_15_a_backup_from_the_middle_of_a_checkpoint_is_refused_by_its_subtasks(query: Query) -> None:
    """Prepared transactions are committed one by one: the newest checkpoint alone does not tell."""
    run = query.start(mode="two-phase")
    for checkpoint in range(2):
        run.run(checkpoint, batch(*(rows(10 * checkpoint + n) for n in range(3))))
    run.close()
    sink = query.sink(mode="two-phase")
    sink.open(of_subtasks(run, 1, 0, 1, 2))
    sink.close()
    forget(query, 1, 2)
    execute(query.dsn, "DELETE FROM t WHERE id = 12")
    with pytest.raises(RestoredEndpointError, match=r"for checkpoint 1 of subtask 2; but.*accept-restored") as caught:
        sink.open(of_subtasks(run, 1, 0, 1, 2))
    assert caught.value.behind == (1, 1)
    sink.close()
    # In another mode, the next run is refused as well.
    other = query.sink(mode="ledger")
    with pytest.raises(RestoredEndpointError, match=r"checkpoint 1 of subtask 2"):
        other.open(of_subtasks(run, 1, 0, 1, 2))
    other.close()


def test_rule_15_what_the_ledger_forgot_long_ago_is_not_missed(query: Query) -> None:
    """Subtask 2 had rows in the first checkpoint only, 120 checkpoints ago."""
    run = query.start(mode="two-phase")
    run.run(0, batch(rows(0), rows(1), rows(2)))
    run.run(120, batch(rows(3)))
    run.close()
    known = Committed(120, 0, {0: 120, 1: 0, 2: 0})
    sink = query.sink(mode="two-phase")
    sink.open(replace(run.info, last_decided=120, committed={"postgres-t": known}))
    sink.close()


def test_rule_15_an_older_copy_with_some_subtasks_is_noticed_while_the_query_runs(query: Query) -> None:
    run = query.start(mode="two-phase")
    run.run(0, batch(rows(0)))
    run.run(1, batch(rows(1), rows(2)))
    forget(query, 1, 1)
    with pytest.raises(RestoredEndpointError, match=r"checkpoints 1 to 1 were committed there"):
        run.run(2, batch(rows(3)))
    run.close()


def test_d5_a_new_and_empty_database_is_refused_before_the_table_is_missed(
    query: Query, postgres: PostgresServer
) -> None:
    run = query.start()
    run.run(0, batch(rows(0)))
    run.close()
    query.dsn = postgres.new_database()
    sink = query.sink(create=False)
    with pytest.raises(RestoredEndpointError, match=r": none; but checkpoints 0 to 0 were committed"):
        sink.open(reopened(run, 0))
    sink.close()
    fresh = query.sink(create=True)
    fresh.open(replace(run.info, last_decided=None, committed={}))
    fresh.close()


@each_mode
def test_after_a_take_over_the_next_start_is_not_refused(query: Query, options: dict[str, Any]) -> None:
    run = query.start(**options)
    for checkpoint in range(2):
        run.run(checkpoint, batch(rows(checkpoint)))
    run.close()
    execute(query.dsn, "DELETE FROM _holdfast.ledger")
    taken = reopened(run, 1, lineage="ab" * 16, take_over=True)
    for info in (taken, replace(taken, take_over=False)):
        sink = query.sink(**options)
        sink.open(info)
        sink.close()
