"""SqlCheckpointCommitter in PostgreSQL: the tests of the other committers, and what only a server can show (C1-C5)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import psycopg
import pytest

from holdfast.committers.base import CheckpointCommitter
from holdfast.committers.sql import SqlCheckpointCommitter
from holdfast.core.naming import job_id, operator_id
from holdfast.errors import ConfigError, HoldfastError, RestoredEndpointError, SinkError
from tests.servers.pgbouncer import PgBouncer
from tests.servers.postgres import PostgresServer, execute
from tests.unit.test_committers import (  # noqa: F401  run again here, with the `make` below
    LINEAGE,
    test_a_closed_committer_can_be_pickled_to_an_executor,
    test_a_take_over_forgets_the_other_lineages_of_this_sink_and_nothing_else,
    test_c2_committed_means_up_to_the_stored_checkpoint,
    test_c4_close_deletes_nothing_and_an_existing_resource_is_reused,
    test_c5_ids_are_stable_over_restarts_and_tell_pipelines_sinks_and_lineages_apart,
    test_progress_names_every_lineage_of_the_same_name_and_sink,
    test_rule_9_a_committer_never_moves_backwards,
)

Make = Callable[..., CheckpointCommitter]


@pytest.fixture
def dsn(postgres: PostgresServer) -> str:
    return postgres.new_database()


@pytest.fixture(scope="module")
def pooler(postgres: PostgresServer) -> Iterator[PgBouncer]:
    made = PgBouncer(postgres)
    yield made
    made.close()


@pytest.fixture(params=["direct", "pooler"])
def url(dsn: str, request: pytest.FixtureRequest) -> str:
    """The database, and the same through a pooler that lends a process of the server out for one transaction."""
    if request.param == "direct":
        return dsn
    pooler: PgBouncer = request.getfixturevalue("pooler")
    return pooler.dsn(dsn.rpartition("/")[2])


@pytest.fixture
def make(url: str, request: pytest.FixtureRequest) -> Make:
    def ready(pipeline: str = "orders", lineage: str = LINEAGE, sink: str = "target") -> CheckpointCommitter:
        made = SqlCheckpointCommitter(url)
        made.set_job_id(job_id(pipeline, lineage))
        made.set_operator_id(operator_id(sink))
        made.create_resource()
        made.open()
        request.addfinalizer(made.close)
        return made

    return ready


@pytest.mark.contract("C3")
def test_c4_one_row_for_each_subtask_that_close_leaves_and_ids_as_large_as_they_get(make: Make, dsn: str) -> None:
    committer = make()
    for checkpoint_id in (*range(20), 2**60):
        committer.commit_checkpoint(0, checkpoint_id)
    committer.close()
    assert execute(dsn, "SELECT subtask, checkpoint_id FROM holdfast_committer") == [(0, 2**60)]


def test_committers_that_start_at_once_both_find_the_table(make: Make) -> None:
    failures: list[BaseException] = []

    def start() -> None:
        try:
            make()
        except Exception as error:  # noqa: BLE001  shown below
            failures.append(error)

    threads = [threading.Thread(target=start) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_mark_is_durable_and_not_cut_short_whatever_the_database_prefers(make: Make, url: str, dsn: str) -> None:
    """Nor is a setting left behind in a process that the pooler gives to somebody else."""
    for setting in ("synchronous_commit = off", "statement_timeout = '150ms'"):
        execute(dsn, f"ALTER DATABASE {dsn.rpartition('/')[2]} SET {setting}")
    committer = make()
    execute(dsn, "CREATE TABLE seen (setting text)")
    execute(
        dsn,
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.4); "
        "INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$",
    )
    execute(dsn, "CREATE TRIGGER look BEFORE INSERT ON holdfast_committer FOR EACH ROW EXECUTE FUNCTION look()")
    committer.commit_checkpoint(0, 1)
    assert execute(dsn, "SELECT setting FROM seen") == [("on",)]
    assert execute(url, "SHOW synchronous_commit") == [("off",)]


def test_marks_of_many_subtasks_go_through_whichever_process_the_server_has(make: Make, url: str) -> None:
    """A statement that was prepared by name is known to one of them only."""
    committer = make()
    for subtask in range(8):
        assert not committer.is_checkpoint_committed(subtask, 0)
        committer.commit_checkpoint(subtask, 0)
    with psycopg.connect(url) as somebody:
        somebody.execute("SELECT 1")  # has the process that was used last, until its transaction ends
        for subtask in range(8):
            committer.commit_checkpoint(subtask, 1)
            assert committer.is_checkpoint_committed(subtask, 1)
    assert committer.progress() == {LINEAGE: 1}


def test_misuse_is_an_error_and_the_password_is_not_shown(dsn: str) -> None:
    committer = SqlCheckpointCommitter(dsn)
    with pytest.raises(ConfigError, match="set_job_id was not called"):
        committer.create_resource()
    with pytest.raises(HoldfastError, match="is not open"):
        committer.commit_checkpoint(0, 0)
    assert "s3cret" not in repr(committer)
    wrong = SqlCheckpointCommitter(dsn.replace("s3cret", "oth3r"))
    with pytest.raises(SinkError, match=r"\(127.0.0.1:\d+/t_\w+\).*password authentication failed") as caught:
        wrong.open()
    assert "oth3r" not in str(caught.value)


def test_rule_15_a_table_that_is_gone_or_restored_is_not_taken_for_one_that_knows(make: Make, dsn: str) -> None:
    committer = make()
    committer.commit_checkpoint(0, 3)
    execute(dsn, "CREATE TABLE backup AS TABLE holdfast_committer")
    committer.commit_checkpoint(0, 7)
    execute(dsn, "TRUNCATE holdfast_committer; INSERT INTO holdfast_committer TABLE backup")
    assert committer.progress() == {LINEAGE: 3}
    execute(dsn, "DROP TABLE holdfast_committer")
    for ask in (committer.progress, lambda: committer.is_checkpoint_committed(0, 3)):
        with pytest.raises(RestoredEndpointError, match=r"sink 'target' \(127.* has lost its table"):
            ask()
    with pytest.raises(RestoredEndpointError):
        committer.commit_checkpoint(0, 8)
    assert make().progress() == {}, "made anew: what was committed is not in it"


@pytest.mark.parametrize("url", ["direct"], indirect=True)  # a pooler has another connection at once
def test_a_server_that_closes_the_connection_is_an_error_with_the_address(make: Make, dsn: str) -> None:
    committer = make()
    execute(dsn, "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'holdfast'")
    with pytest.raises(SinkError, match=r"committer of sink 'target' \(127.0.0.1:\d+/t_\w+\)"):
        committer.commit_checkpoint(0, 8)
