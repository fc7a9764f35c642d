"""PostgresSink against a real server: what goes wrong, and that every row is there once all the same."""

from __future__ import annotations

import logging
import pickle
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import holdfast as hf
from holdfast.connectors.postgres import ledger, server, two_phase
from holdfast.core.model import Outcome
from holdfast.errors import (
    CommitError,
    ConfigError,
    FencedError,
    ForeignLineageError,
    HoldfastError,
    InjectedFault,
    RowError,
    StaleCheckpointError,
)
from holdfast.testing.local import Died, PickledTasks, armed
from tests.integration.pg import Query, batch, rows, settle
from tests.servers.postgres import PASSWORD, PostgresServer, execute

APPENDING = ("ledger", "two-phase")
LEDGER, LOG, TWO_PHASE = {"mode": "ledger"}, {"mode": "ledger", "stage": "log"}, {"mode": "two-phase"}
MODES: tuple[dict[str, Any], ...] = (LEDGER, LOG, TWO_PHASE, {"mode": "upsert", "key": ["id"]})
each_mode = pytest.mark.parametrize("options", MODES, ids=[str(o.get("stage") or o["mode"]) for o in MODES])


@pytest.fixture
def query(postgres: PostgresServer, tmp_path: Path) -> Query:
    return Query(tmp_path / "checkpoint", postgres.new_database())


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may kill."""
    made = PostgresServer(fsync="off")
    made.start()
    yield made
    made.close()


# -- the server goes down ---------------------------------------------------------------------------------------------


@each_mode
def test_fault_14_the_server_is_killed_between_pre_commit_and_commit(
    own_server: PostgresServer, tmp_path: Path, options: dict[str, Any]
) -> None:
    query = Query(tmp_path, own_server.new_database())
    run = query.start(**options)
    run.run(0, batch(rows(1), rows(2)))

    def crash(_: Any) -> None:
        own_server.stop(kill=True)
        own_server.start()

    run.run(1, batch(rows(3), rows(4), prepared=crash))
    own_server.stop(kill=True)
    own_server.start()
    run.run(2, batch(rows(5)))
    run.close()
    assert query.ids() == [1, 2, 3, 4, 5]
    assert query.leftovers == []


@each_mode
def test_t6_a_server_that_stays_down_fails_the_query_and_the_restart_commits(
    own_server: PostgresServer, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "PATIENCE", 0.0)
    query = Query(tmp_path, own_server.new_database())
    if options["mode"] == "upsert":
        options = {**options, "order_by": "name"}  # without it the server is asked for doubled keys before the decision
    run = query.start(**options)
    with pytest.raises(CommitError, match=r"checkpoint 0 is decided, but.*\(127.0.0.1:\d+/t_\w+\): cannot connect"):
        run.run(0, batch(rows(1), rows(2), prepared=lambda _: own_server.stop(kill=True)))
        settle(run)
    own_server.start()
    run = query.start(**options)
    run.run(0, batch(rows(1), rows(2)))
    run.close()
    assert query.ids() == [1, 2]
    assert query.leftovers == []


@each_mode
def test_connections_are_kept_from_one_checkpoint_to_the_next_and_replaced_when_the_server_ended_them(
    query: Query, options: dict[str, Any]
) -> None:
    run = query.start(**options)
    run.run(0, batch(rows(1)))
    first = query.connected(1)  # in production tasks have their own, in their own processes
    run.run(1, batch(rows(2)))
    assert query.connected(1) == first
    for pid in first:
        execute(query.dsn, "SELECT pg_terminate_backend(%s, 5000)", pid)
    run.run(2, batch(rows(3)))
    assert not query.connected(1) & first
    run.close()
    query.connected(0)
    assert query.ids() == [1, 2, 3]
    assert query.leftovers == []


def test_a_connection_with_an_open_transaction_is_not_kept(query: Query) -> None:
    run = query.start(mode="ledger")
    with pytest.raises(RowError):
        run.run(0, batch(rows(1), [{"id": 2, "name": "\0"}]))
    run = query.start(mode="ledger")
    run.run(0, batch(rows(1)))
    run.close()
    assert query.ids() == [1]


# -- what readers see -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [LEDGER, LOG, MODES[-1]], ids=["ledger", "log", "upsert"])
def test_a_reader_never_sees_part_of_a_checkpoint(query: Query, options: dict[str, Any]) -> None:
    run = query.start(**options)
    seen: set[int] = set()
    stop = threading.Event()

    def look() -> None:
        with psycopg.connect(query.dsn, autocommit=True) as connection:
            while not stop.is_set():
                found = connection.execute("SELECT count(*) FROM t").fetchone()
                assert found is not None
                seen.add(found[0])

    reader = threading.Thread(target=look)
    reader.start()
    for checkpoint in range(5):
        start = 400 * checkpoint
        run.run(checkpoint, batch(*[rows(*range(start + 100 * i, start + 100 * i + 100)) for i in range(4)]))
    stop.set()
    reader.join()
    run.close()
    assert seen <= {0, 400, 800, 1200, 1600, 2000}
    assert len(query.ids()) == 2000


# -- prepared transactions --------------------------------------------------------------------------------------------


def test_fault_4_some_subtasks_are_committed_and_the_restart_commits_the_rest(query: Query) -> None:
    run = query.start(mode="two-phase")
    with pytest.raises(Died), armed("commit.subtask=error@2", died=True):
        run.run(0, batch(rows(1), rows(2), rows(3)))
    run = query.start(mode="two-phase")
    run.run(0, batch(rows(1), rows(2), rows(3)))
    assert query.ids() == [1, 2, 3]
    assert query.leftovers == []


def test_t3_committing_twice_is_told_by_the_ledger_row_of_each_subtask(query: Query) -> None:
    run = query.start(mode="two-phase")
    reports: list[Any] = []
    run.run(0, batch(rows(1), rows(2), prepared=reports.extend))
    data = [c.data for report in reports for c in report.committables]
    assert run.sinks[0].commit(0, data, PickledTasks()) is Outcome.ALREADY_COMMITTED
    assert query.select("SELECT checkpoint_id, row_count FROM _holdfast.ledger") == [(0, 1), (0, 1)]
    run.close()


@pytest.mark.parametrize("mode", APPENDING)
def test_t4_work_of_others_is_never_touched(query: Query, mode: str) -> None:
    query.start(mode=mode).close()
    with psycopg.connect(query.dsn, autocommit=True) as connection:
        connection.execute("CREATE TABLE _holdfast.stage_of_somebody (n int)")
        connection.execute("BEGIN")
        connection.execute("CREATE TABLE other (n int)")
        connection.execute("PREPARE TRANSACTION 'somebody-1'")
    run = query.start(mode=mode)
    run.run(0, batch(rows(1)))
    run.close()
    assert sorted(query.leftovers) == ["somebody-1", "stage_of_somebody"]
    execute(query.dsn, "ROLLBACK PREPARED 'somebody-1'")


def test_the_gid_shows_the_names_and_fits_however_long_they_are(postgres: PostgresServer, tmp_path: Path) -> None:
    query = Query(tmp_path, postgres.new_database(), name="a pipeline with a name of one hundred bytes " + "é" * 28)
    gids: list[str] = []
    sink = query.sink(create=True, mode="two-phase", name="a sink, " + "漢" * 20)
    run = query.start(sink)
    run.run(0, batch(rows(1), rows(2), prepared=lambda _: gids.extend(query.leftovers)))
    run.close()
    assert query.ids() == [1, 2]
    assert len(gids) == 2
    assert all(gid.startswith("hfp1-a.20pipeline.20with") and len(gid) <= 200 for gid in gids)


def test_two_phase_needs_a_server_setting_and_says_which(tmp_path: Path) -> None:
    without = PostgresServer(max_prepared_transactions="0", fsync="off")
    without.start()
    try:
        query = Query(tmp_path, without.new_database())
        with pytest.raises(ConfigError, match="ALTER SYSTEM SET max_prepared_transactions = 64, then restart"):
            query.start(mode="two-phase")
        run = query.start(mode="ledger")
        run.run(0, batch(rows(1)))
        run.close()
        assert query.ids() == [1]
    finally:
        without.close()


def test_more_partitions_than_prepared_transactions_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    small = PostgresServer(max_prepared_transactions="1", fsync="off")
    small.start()
    try:
        query = Query(tmp_path, small.new_database())
        run = query.start(mode="two-phase")
        with pytest.raises(ConfigError, match=r"maximum number of prepared transactions reached.*ALTER SYSTEM SET"):
            run.run(0, batch(rows(1), rows(2)))
        assert query.leftovers == []
    finally:
        small.close()


def test_the_same_unique_key_in_two_subtasks_is_an_error_and_no_endless_wait(query: Query) -> None:
    execute(query.dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    run = query.start(mode="two-phase", lock_timeout=0.5)
    with pytest.raises(HoldfastError, match=r"waited for longer than lock_timeout.*same unique key.*pg_prepared_xacts"):
        run.run(0, batch(rows(1), rows(1)))
    assert query.leftovers == []


def test_a_start_does_not_wait_for_ever_for_a_table_that_somebody_has_locked(query: Query) -> None:
    query.select("CREATE TABLE t (id bigint, name text)")
    with psycopg.connect(query.dsn) as other:
        other.execute("LOCK TABLE t")
        with pytest.raises(HoldfastError, match=r"table t is locked by somebody for longer than .*0.5 s"):
            query.start(lock_timeout=0.5)
    query.start(lock_timeout=0.5)


@pytest.mark.parametrize(
    ("first", "second"), [(LEDGER, TWO_PHASE), (TWO_PHASE, LEDGER), (LOG, TWO_PHASE), (TWO_PHASE, LOG)]
)
def test_the_mode_may_change_between_restarts(query: Query, first: dict[str, Any], second: dict[str, Any]) -> None:
    run = query.start(**first)
    with pytest.raises(InjectedFault), armed("decision=lost"):
        run.run(0, batch(rows(1), rows(2)))
    batch(rows(9)).write(run.info, run.sinks, 1, 0)
    run = query.start(**second)
    assert query.leftovers == []
    run.run(0, batch(rows(1), rows(2)))
    run.run(1, batch(rows(3)))
    run.close()
    assert query.ids() == [1, 2, 3]


# -- zombies ----------------------------------------------------------------------------------------------------------


@each_mode
def test_fault_9_a_paused_driver_that_wakes_up_commits_nothing_twice(query: Query, options: dict[str, Any]) -> None:
    old = query.start(**options)
    reports: list[Any] = []
    with pytest.raises(Died), armed("commit.sink=error", died=True):
        old.run(0, batch(rows(1), rows(2), prepared=reports.extend))
    new = query.start(**options)
    new.run(0, batch(rows(1), rows(2)))
    new.run(1, batch([{"id": 1, "name": "newer"}] if options["mode"] == "upsert" else rows(3)))
    after = query.select()
    data = [c.data for report in reports for c in report.committables]
    assert old.sinks[0].commit(0, data, PickledTasks()) is Outcome.ALREADY_COMMITTED
    assert query.select() == after
    with pytest.raises(FencedError):
        old.run(2, batch(rows(4)))
    new.close()
    assert query.leftovers == []


@pytest.mark.parametrize("options", [LEDGER, LOG], ids=["ledger", "log"])
def test_rule_9_two_drivers_that_commit_at_the_same_moment_write_once(query: Query, options: dict[str, Any]) -> None:
    run = query.start(**options)
    reports = batch(rows(1), rows(2)).write(run.info, run.sinks, 0, 0)
    data = [c.data for report in reports for c in report.committables]
    outcomes: list[Any] = []
    with psycopg.connect(query.dsn) as blocker:
        # Both are held up in the middle: on the table that they are about to write.
        blocker.execute("LOCK TABLE t IN EXCLUSIVE MODE")
        drivers = [
            threading.Thread(target=lambda: outcomes.append(run.sinks[0].commit(0, data, PickledTasks())))
            for _ in range(2)
        ]
        for driver in drivers:
            driver.start()
        drivers[0].join(1.0)
        assert outcomes == []
        blocker.commit()
    for driver in drivers:
        driver.join()
    assert sorted(outcomes) == [Outcome.ALREADY_COMMITTED, Outcome.COMMITTED]
    assert query.ids() == [1, 2]


# -- the ledger -------------------------------------------------------------------------------------------------------


@each_mode
def test_rule_10_another_or_an_older_checkpoint_location_is_refused(
    query: Query, tmp_path: Path, options: dict[str, Any]
) -> None:
    run = query.start(**options)
    run.run(0, batch(rows(1)))
    run.close()
    twin = Query(tmp_path / "twin", query.dsn)
    with pytest.raises(ForeignLineageError, match=r"table _holdfast.ledger at 127.0.0.1:\d+/t_\w+\).*take_over"):
        twin.start(**options)
    assert PASSWORD not in str(vars(run.sinks[0]))
    info = run.info
    stale = query.sink(create=True, **options)
    with pytest.raises(StaleCheckpointError, match="knows checkpoints up to none"):
        stale.open(type(info)(info.pipeline, info.lineage, 9, info.location, last_decided=None, schema=info.schema))


@each_mode
def test_a_take_over_owns_the_name_and_still_delivers_what_it_owes(
    query: Query, tmp_path: Path, options: dict[str, Any]
) -> None:
    other = Query(tmp_path / "other", query.dsn)
    other_run = other.start(**options)
    other_run.run(0, batch(rows(100)))
    query.local.pipeline = "elsewhere"
    run = query.start(**options)
    with pytest.raises(InjectedFault), armed("decision=lost"):
        run.run(0, batch(rows(1), rows(2)))
    taken = query.sink(create=True, **options)
    info = run.info
    lineage = uuid.uuid4().hex
    taken.open(
        type(info)("elsewhere", lineage, info.generation + 1, info.location, "exactly-once", 0, True, info.schema)
    )
    decided = run.coordinator._log.facts.decided[0]
    data = [c.data for c in decided.committables]
    taken.recover("elsewhere", info.generation + 1, {0: data})
    assert taken.commit(0, data, PickledTasks()) is Outcome.COMMITTED
    assert taken.commit(0, data, PickledTasks()) is Outcome.ALREADY_COMMITTED
    assert query.ids() == [1, 2, 100]
    found = query.select("SELECT DISTINCT lineage FROM _holdfast.ledger WHERE pipeline = 'elsewhere'")
    assert found == [(lineage,)], "the next start must not take its own deliveries for another location's"
    with pytest.raises(ForeignLineageError):
        query.sink(create=True, **options).open(info)


@each_mode
def test_the_ledger_does_not_grow(query: Query, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "KEPT", 3)
    monkeypatch.setattr(two_phase, "PRUNED", 1)
    run = query.start(**options)
    for checkpoint in range(8):
        run.run(checkpoint, batch(rows(checkpoint)))
    run.close()
    assert query.select("SELECT checkpoint_id FROM _holdfast.ledger ORDER BY 1") == [(5,), (6,), (7,)]


def test_two_pipelines_that_start_at_once_both_find_schema_and_ledger(query: Query, tmp_path: Path) -> None:
    failures: list[Exception] = []

    def start(number: int) -> None:
        try:
            made = Query(tmp_path / str(number), query.dsn, name=f"p{number}")
            made.start(made.sink(f"t{number}", create=True)).close()
        except Exception as error:  # noqa: BLE001  shown below
            failures.append(error)

    threads = [threading.Thread(target=start, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


# -- secrets ----------------------------------------------------------------------------------------------------------


@each_mode
def test_the_password_is_nowhere(
    query: Query, tmp_path: Path, options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    sink = query.sink(create=True, **options)
    run = query.start(sink)
    reports: list[Any] = []
    run.run(0, batch(rows(1), prepared=reports.extend))
    run.close()
    wrong = hf.PostgresSink(query.dsn.replace("s3cret", "oth3r"), "t", **options)
    with pytest.raises(HoldfastError, match="password authentication failed") as caught:
        wrong.open(run.info)
    shown = [sink.name, repr(sink), repr(sink.server), str(reports), str(caught.value), caplog.text]
    shown += [path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file()]
    for text in shown:
        assert "s3cret" not in text and "oth3r" not in text
    assert "s3cret" in pickle.loads(pickle.dumps(sink)).server._conninfo, "executors need it"


@pytest.mark.parametrize(
    "dsn", ["postgresql://u:s3/cret@h/db", "postgresql://u:s3%zzcret@h/db", "host=h password='s3cret", "s3cret"]
)
def test_an_unreadable_dsn_is_not_quoted(dsn: str) -> None:
    with pytest.raises(ConfigError, match=r"dsn cannot be read.*%XX") as caught:
        hf.PostgresSink(dsn, "t")
    assert "s3" not in str(caught.value)
    assert caught.value.__cause__ is None


# -- rows that do not fit ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", APPENDING)
@pytest.mark.parametrize(
    ("column", "name", "message"),
    [
        ("name varchar(3)", "long", "'long' has more than 3 characters"),
        ("name text NOT NULL", None, "null value in column"),
        ("name text CHECK (length(name) < 4)", "long", "check constraint"),
        ("name jsonb", "{oops", "invalid input syntax for type json"),
        ("name text", "nul\0", "invalid byte sequence"),
        ("name uuid", "no-uuid", "'no-uuid' is not a uuid"),
        ("name uuid", "z" * 32, "not a uuid"),
        ("name inet", "somewhere", "invalid input syntax for type inet"),
    ],
)
def test_a_row_the_table_refuses_fails_before_the_decision(
    query: Query, mode: str, column: str, name: str | None, message: str
) -> None:
    execute(query.dsn, f"CREATE TABLE t (id bigint, {column})")
    run = query.start(mode=mode)
    with pytest.raises(RowError, match=message):
        run.run(0, batch([{"id": 1, "name": None if name is None else name}]))
    assert run.coordinator.pending == []
    assert query.leftovers == []


def test_a_row_refused_at_commit_stops_the_query_and_nothing_is_lost(query: Query) -> None:
    execute(query.dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    run = query.start()
    run.run(0, batch(rows(1)))
    with pytest.raises(
        RowError, match=r"checkpoint 1 does not go into table public.t: duplicate.*rows are in \"_holdfast\".\"stage_"
    ):
        run.run(1, batch(rows(1), rows(2)))
    execute(query.dsn, "ALTER TABLE t DROP CONSTRAINT t_pkey")
    run = query.start()
    run.run(1, batch(rows(1), rows(2)))
    run.close()
    assert query.ids() == [1, 1, 2]
    assert query.leftovers == []


def test_a_table_that_was_dropped_meanwhile_stops_the_query_and_nothing_is_lost(query: Query) -> None:
    run = query.start()
    with pytest.raises(ConfigError, match=r"is not what it was when the query started.*Nothing is lost"):
        run.run(0, batch(rows(1), prepared=lambda _: execute(query.dsn, "DROP TABLE t") and None))
    run = query.start()
    run.run(0, batch(rows(1)))
    run.close()
    assert query.ids() == [1]


@pytest.mark.parametrize("synchronous", ["off", "on"])
def test_a_role_with_synchronous_commit_off_is_overruled(
    query: Query, synchronous: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(query.dsn, "CREATE TABLE seen (setting text)")
    execute(
        query.dsn,
        "CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO seen VALUES (current_setting('synchronous_commit')); RETURN NEW; END $$",
    )
    execute(query.dsn, "CREATE TABLE t (id bigint, name text)")
    execute(query.dsn, "CREATE TRIGGER look BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION look()")
    database = query.dsn.rpartition("/")[2]
    execute(query.dsn, f"ALTER DATABASE {database} SET synchronous_commit = {synchronous}")
    for checkpoint, mode in enumerate(APPENDING):
        run = query.start(mode=mode)
        run.run(checkpoint, batch(rows(checkpoint)))
        run.close()
    assert query.select("SELECT DISTINCT setting FROM seen") == [("on",)]


def test_a_role_that_may_not_create_the_schema_is_told_what_to_ask_for(query: Query, postgres: PostgresServer) -> None:
    role = f"r_{uuid.uuid4().hex[:8]}"
    execute(query.dsn, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    execute(query.dsn, "CREATE TABLE t (id bigint, name text)")
    dsn = f"host=127.0.0.1 port={postgres.port} dbname={query.dsn.rpartition('/')[2]} user={role} password=x"
    asked: Callable[[], Any] = lambda: Query(Path(query.local.folder), dsn).start(create=False)  # noqa: E731
    with pytest.raises(ConfigError, match='CREATE SCHEMA "_holdfast" AUTHORIZATION'):
        asked()
    execute(query.dsn, f"CREATE SCHEMA _holdfast AUTHORIZATION {role}")
    with pytest.raises(ConfigError, match="permission denied for table t"):
        asked()
    execute(query.dsn, f"GRANT INSERT ON t TO {role}")
    run = asked()
    run.run(0, batch(rows(1)))
    run.close()
    assert query.ids() == [1]
    execute(query.dsn, f"DROP OWNED BY {role}")
    execute(query.dsn, f"DROP ROLE {role}")
