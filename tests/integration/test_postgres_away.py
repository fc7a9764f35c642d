"""A server that is away, refuses, or hangs: an error that names sink and address, and that trying again may mend."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import adbc_driver_manager
import pyarrow as pa
import pytest

from holdfast.committers import watch
from holdfast.committers.sql import SqlCheckpointCommitter
from holdfast.connectors.postgres import server as connections
from holdfast.connectors.postgres.pool import pool
from holdfast.core.model import Outcome
from holdfast.core.naming import job_id
from holdfast.errors import ConfigError, RestoredEndpointError, SinkError, permanent
from holdfast.sinks import wal
from holdfast.sinks.subtask import make_task
from holdfast.testing.local import PickledTasks
from tests.integration.pg import Query, batch, rows, settle
from tests.servers.postgres import PASSWORD, PostgresServer, _children, execute

MODES: tuple[dict[str, Any], ...] = ({"mode": "ledger"}, {"mode": "two-phase"}, {"mode": "upsert", "key": ["id"]})
each_mode = pytest.mark.parametrize("options", MODES, ids=[str(o["mode"]) for o in MODES])
WHO = r"sink 'postgres-t' \(127.0.0.1:\d+/t_\w+\)"


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    """A server that a test may stop."""
    made = PostgresServer(fsync="off")
    made.start()
    yield made
    made.close()


@pytest.fixture
def query(own_server: PostgresServer, tmp_path: Path) -> Query:
    return Query(tmp_path, own_server.new_database())


@contextmanager
def stopped(server: PostgresServer, *, all_of_it: bool) -> Iterator[None]:
    """Every process of the server is there and does nothing; without `all_of_it`, new ones still come to life."""
    processes = _children(server.pid) | ({server.pid} if all_of_it else set())
    for process in processes:
        with suppress(ProcessLookupError):  # one that was about to end when they were listed
            os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)


def driver_calls(run: Any, data: list[Any]) -> dict[str, Callable[[], Any]]:
    (sink,) = run.sinks
    return {
        "recover": lambda: sink.recover("orders", run.info.generation, {0: data}),
        "validate": lambda: sink.validate(0, data, PickledTasks()),
        "still_prepared": lambda: sink.still_prepared(data),
        "commit": lambda: sink.commit(0, data, PickledTasks()),
        "rows_of": lambda: list(sink.rows_of(data) or ()),
        "open": lambda: sink.open(run.info),
    }


@pytest.mark.contract("D9")
@each_mode
def test_a_server_that_is_away_is_never_fatal_and_the_same_calls_work_when_it_is_back(
    own_server: PostgresServer, query: Query, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 0.2)
    run = query.start(**options)
    data = [c.data for r in batch(rows(1), rows(2)).write(run.info, run.sinks, 0, 0) for c in r.committables]
    calls = driver_calls(run, data)
    silent = {"ledger": {"validate"}, "two-phase": {"validate", "rows_of"}}.get(options["mode"], set())
    own_server.stop(kill=True)
    try:
        for name, call in calls.items():
            if name in silent:
                call()
                continue
            with pytest.raises(SinkError, match=rf"{WHO}: cannot connect.*goes on when it answers") as caught:
                call()
            assert not permanent(caught.value) and PASSWORD not in str(caught.value)
        with pytest.raises(SinkError, match=f"{WHO}: cannot connect"):
            batch(rows(3)).write(run.info, run.sinks, 1, 0)
    finally:
        own_server.start()
    for name in ("open", "recover", "validate"):
        calls[name]()
    assert calls["still_prepared"]() == data
    assert calls["commit"]() is Outcome.COMMITTED
    run.close()
    assert query.ids() == [1, 2]


def test_a_server_that_does_not_let_us_in_is_a_mistake_at_the_start_and_trouble_later(query: Query) -> None:
    run = query.start()
    wrong = Query(Path(query.local.folder), query.dsn.replace("s3cret", "oth3r"))
    with pytest.raises(ConfigError, match=f"{WHO}: cannot connect.*password authentication failed.*Correct the dsn"):
        wrong.sink().open(run.info)
    nowhere = Query(Path(query.local.folder), query.dsn + "x")
    with pytest.raises(ConfigError, match="does not exist"):
        nowhere.sink().open(run.info)
    run.close()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY", 0.4)
    monkeypatch.setattr(watch, "QUIET", 1.5)
    monkeypatch.setattr(watch, "_LOOK", 4)
    monkeypatch.setattr(connections, "PATIENCE", 0.2)


@pytest.mark.contract("D9")
@each_mode
@pytest.mark.parametrize("all_of_it", [True, False], ids=["all", "children"])
@pytest.mark.usefixtures("hasty")
def test_a_server_that_hangs_makes_driver_calls_fail_instead_of_wait_for_ever(
    own_server: PostgresServer, query: Query, options: dict[str, Any], all_of_it: bool
) -> None:
    query.dsn += "?connect_timeout=2"
    run = query.start(**options)
    data = [c.data for r in batch(rows(1), rows(2)).write(run.info, run.sinks, 0, 0) for c in r.committables]
    begun = time.monotonic()
    with (
        pytest.raises(SinkError, match=rf"{WHO}: the server.*(does not answer|has done nothing for)"),
        run.sinks[0].server.connect() as connection,
        stopped(own_server, all_of_it=all_of_it),
    ):
        connection.execute("SELECT 1")
        raise AssertionError("a stopped server does not answer")
    assert time.monotonic() - begun < 28
    commit = driver_calls(run, data)["commit"]
    run.sinks[0].recover("orders", run.info.generation, {0: data})  # so that a connection is kept
    with stopped(own_server, all_of_it=all_of_it):
        begun = time.monotonic()
        if all_of_it:
            with pytest.raises(SinkError, match=WHO):
                commit()
        else:
            commit()  # by a new process
        assert time.monotonic() - begun < 28
    assert commit() is (Outcome.COMMITTED if all_of_it else Outcome.ALREADY_COMMITTED)
    run.sinks[0].recover("orders", run.info.generation, {})
    run.close()
    assert query.ids() == [1, 2]
    assert query.leftovers == []


@pytest.mark.usefixtures("hasty")
def test_a_server_that_hangs_while_a_checkpoint_is_copied_from_the_log_is_given_up(
    own_server: PostgresServer, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    query.dsn += "?connect_timeout=2"
    run = query.start(stage="log")
    data = [c.data for r in batch(rows(1), rows(2)).write(run.info, run.sinks, 0, 0) for c in r.committables]
    read, begun = wal.read_log, []

    def slowly(location: str, handle: Any) -> Iterator[pa.RecordBatch]:
        yield from read(location, handle)
        if handle["subtask"] == 1 and not begun:
            begun.append(time.monotonic())
            hang.enter_context(stopped(own_server, all_of_it=True))

    monkeypatch.setattr(wal, "read_log", slowly)
    with ExitStack() as hang, pytest.raises(SinkError, match=rf"{WHO}: the server"):
        run.sinks[0].commit(0, data, PickledTasks())
    assert time.monotonic() - begun[0] < 28
    assert query.ids() == []
    assert run.sinks[0].commit(0, data, PickledTasks()) is Outcome.COMMITTED
    run.close()
    assert query.ids() == [1, 2]


def test_tasks_with_a_log_of_their_own_need_no_server(
    own_server: PostgresServer, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "PATIENCE", 0.2)
    run = query.start(stage="log")
    own_server.stop(kill=True)
    try:
        data = [c.data for r in batch(rows(1), rows(2)).write(run.info, run.sinks, 0, 0) for c in r.committables]
        assert run.sinks[0].still_prepared(data) == data
        with pytest.raises(SinkError, match=rf"{WHO}: cannot connect.*goes on when it answers") as caught:
            run.sinks[0].commit(0, data, PickledTasks())
        assert not permanent(caught.value) and PASSWORD not in str(caught.value)
    finally:
        own_server.start()
    assert run.sinks[0].commit(0, data, PickledTasks()) is Outcome.COMMITTED
    run.close()
    assert query.ids() == [1, 2]


@pytest.mark.usefixtures("hasty")
def test_a_commit_that_takes_long_and_works_is_left_alone(query: Query) -> None:
    execute(query.dsn, "CREATE TABLE t (id bigint, name text)")
    slow = "BEGIN PERFORM pg_sleep(0.1); RETURN NEW; END"
    execute(query.dsn, f"CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS '{slow}'")
    execute(query.dsn, "CREATE TRIGGER slow BEFORE INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()")
    run = query.start()
    begun = time.monotonic()
    run.run(0, batch(rows(*range(60))))
    assert time.monotonic() - begun > 5, "longer than the quiet that is put up with"
    run.close()
    assert len(query.ids()) == 60


@pytest.mark.usefixtures("hasty")
def test_a_statement_that_shows_no_sign_of_life_gets_more_time_each_time(query: Query) -> None:
    run = query.start()
    server = run.sinks[0].server
    failures = 0
    for _ in range(6):
        try:
            with server.connect() as connection:
                connection.execute("SELECT pg_sleep(4)")
            break
        except SinkError as error:
            assert "has done nothing for" in str(error)
            failures += 1
    assert 1 <= failures <= 3
    run.close()


@pytest.mark.usefixtures("hasty")
def test_a_committer_notices_a_server_that_hangs(own_server: PostgresServer, query: Query) -> None:
    committer = SqlCheckpointCommitter(query.dsn)
    committer.set_job_id(job_id("orders", "ab" * 16))
    committer.set_operator_id("target")
    committer.create_resource()
    committer.open()
    begun = time.monotonic()
    with stopped(own_server, all_of_it=True), pytest.raises(SinkError, match=r"sink 'target' \(127.0.0.1"):
        committer.commit_checkpoint(0, 1)
    assert time.monotonic() - begun < 28
    committer.close()
    committer.open()
    committer.commit_checkpoint(0, 1)
    committer.close()


@pytest.mark.parametrize("noticed_by", ["the network", "a look"])
def test_a_task_whose_rows_the_server_does_not_take_fails_instead_of_waiting_for_ever(
    own_server: PostgresServer, query: Query, noticed_by: str, request: pytest.FixtureRequest
) -> None:
    """A local socket has no timeout of its own."""
    execute(query.dsn, "CREATE TABLE t (v text)")
    query.local.schema = pa.schema([("v", pa.string())])
    run = query.start(create=False, lock_timeout=0.5)
    (sink,) = run.sinks
    if noticed_by == "a look":
        request.getfixturevalue("hasty")
    else:
        assert sink.server._unsent == 30_500
        sink.server._unsent = 2000
    rows_of_it = pa.RecordBatch.from_pylist([{"v": "x" * 1000}] * 20_000, schema=query.local.schema)
    task = make_task(run.info, sink.name, 0, 0, 0, 0)
    writer = sink.begin(task)
    sink.write(writer, rows_of_it.slice(0, 1))
    begun = time.monotonic()
    with stopped(own_server, all_of_it=False), pytest.raises(SinkError, match=WHO):
        for _ in range(10):
            sink.write(writer, rows_of_it)
    assert time.monotonic() - begun < 60
    writer.abort()
    run.close()


@pytest.mark.parametrize("column", ["text", "numeric(9,2)"], ids=["psycopg", "ADBC"])
@pytest.mark.usefixtures("hasty")
def test_a_task_whose_first_rows_meet_a_server_that_hangs_fails_instead_of_waiting_for_ever(
    own_server: PostgresServer, query: Query, column: str
) -> None:
    query.local.schema = pa.schema([("v", pa.string() if column == "text" else pa.decimal128(9, 2))])
    query.dsn += "?connect_timeout=2"
    execute(query.dsn, f"CREATE TABLE t (v {column})")
    run = query.start(create=False)
    (sink,) = run.sinks
    writer = sink.begin(make_task(run.info, sink.name, 0, 0, 0, 0))
    begun = time.monotonic()
    with (
        stopped(own_server, all_of_it=True),
        pytest.raises(SinkError, match=rf"{WHO}: the server.*(does not answer|has done nothing for)"),
    ):
        sink.write(writer, pa.RecordBatch.from_pylist([{"v": None}], schema=query.local.schema))
    assert time.monotonic() - begun < 28
    writer.abort()
    run.close()


@pytest.mark.usefixtures("hasty")
def test_a_connection_of_adbc_that_comes_too_late_is_given_up_and_closed(
    own_server: PostgresServer, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = query.start()
    server, answer = run.sinks[0].server, threading.Event()
    late: list[Any] = []

    def connect() -> Any:
        assert answer.wait(60)
        late.append(server_connect())
        return late[0]

    server_connect = server.adbc_connection
    monkeypatch.setattr(server, "adbc_connection", connect)
    with (
        stopped(own_server, all_of_it=True),
        pytest.raises(SinkError, match=rf"{WHO}: the server.*does not answer"),
    ):
        server.session(plain=False)
    answer.set()
    deadline = time.monotonic() + 60
    while not late or not _closed(late[0]):
        assert time.monotonic() < deadline, "its connection stays"
        time.sleep(0.05)
    run.close()


def _closed(connection: Any) -> bool:
    try:
        connection.get_info()
    except adbc_driver_manager.Error:
        return True
    return False


@pytest.mark.parametrize("all_of_it", [True, False], ids=["all", "children"])
@pytest.mark.parametrize("column", ["text", "numeric(9,2)"], ids=["psycopg", "ADBC"])
@each_mode
@pytest.mark.usefixtures("hasty")
def test_a_task_that_waits_for_an_answer_of_a_server_that_hangs_fails_instead_of_waiting_for_ever(
    own_server: PostgresServer, query: Query, options: dict[str, Any], column: str, all_of_it: bool
) -> None:
    kind = pa.string() if column == "text" else pa.decimal128(9, 2)
    query.local.schema = pa.schema([("id", pa.int64()), ("v", kind)])
    query.dsn += "?connect_timeout=2"
    execute(query.dsn, f"CREATE TABLE t (id bigint PRIMARY KEY, v {column})")
    run = query.start(create=False, **options)
    (sink,) = run.sinks
    writer = sink.begin(make_task(run.info, sink.name, 0, 0, 0, 0))
    sink.write(writer, pa.RecordBatch.from_pylist([{"id": 1, "v": None}], schema=query.local.schema))
    begun = time.monotonic()
    with (
        stopped(own_server, all_of_it=all_of_it),
        pytest.raises(SinkError, match=rf"{WHO}: the server.*(does not answer|has done nothing for)") as caught,
    ):
        sink.pre_commit(writer)
    assert time.monotonic() - begun < 28 and caught.value.action == "restart"
    writer.abort()
    sink.recover("orders", run.info.generation, {})
    run.run(0, batch([{"id": 1, "v": None}], schema=query.local.schema))
    run.close()
    assert query.ids() == [1]
    assert query.leftovers == []


@pytest.mark.parametrize("column", ["text", "numeric(9,2)"], ids=["psycopg", "ADBC"])
def test_two_sinks_on_one_server_share_its_connections(query: Query, column: str) -> None:
    """Whatever their options are."""
    for table in ("a", "b"):
        execute(query.dsn, f"CREATE TABLE {table} (id bigint, name {column})")
    if column != "text":
        query.local.schema = pa.schema([("id", pa.int64()), ("name", pa.decimal128(9, 2))])
    run = query.start(query.sink("a", name="a"), query.sink("b", name="b", lock_timeout=7.0))
    for checkpoint in range(3):
        ids = (checkpoint, 10 + checkpoint)
        run.run(checkpoint, batch(*([{"id": n, "name": None}] for n in ids), schema=query.local.schema))
        settle(run)
    assert len(query.connections()) == (2 if column == "text" else 3), (
        "a task of both has two transactions open; the driver takes what they leave"
    )
    kinds = [kind for kind, server in pool._idle if query.dsn.rpartition("/")[2] in server]
    assert sorted(kinds) == (["psycopg"] if column == "text" else ["ADBC", "psycopg"])
    run.sinks[0].close()
    assert query.connections(), "the other one goes on"
    run.close()
    query.connected(0)
    assert len(query.ids("a")) == len(query.ids("b")) == 6


def test_a_server_that_comes_back_as_an_older_copy_is_noticed_at_a_start_and_in_a_running_query(tmp_path: Path) -> None:
    """D5: a failover to a replica that lacks what was acknowledged."""
    server = PostgresServer(fsync="off")
    server.start()
    try:
        for mode in ("ledger", "two-phase"):
            query = Query(tmp_path / mode, server.new_database(), name=mode)
            run = query.start(mode=mode)
            for checkpoint in range(3):
                run.run(checkpoint, batch(rows(checkpoint)))
            settle(run)
            server.stop()
            shutil.copytree(server.data, tmp_path / f"copy-{mode}")
            server.start()
            for checkpoint in range(3, 5):
                run.run(checkpoint, batch(rows(checkpoint)))
            settle(run)
            server.stop()
            owner = server.data.stat()
            shutil.rmtree(server.data)
            shutil.copytree(tmp_path / f"copy-{mode}", server.data)
            for path in (server.data, *server.data.rglob("*")):
                os.chown(path, owner.st_uid, owner.st_gid)
            server.start()
            with pytest.raises(RestoredEndpointError, match="checkpoints 3 to 4 were committed there") as caught:
                run.run(5, batch(rows(5)))
                settle(run)
            assert caught.value.behind == (3, 4) and caught.value.action == "operator"
            with pytest.raises(RestoredEndpointError, match="checkpoints 3 to 4 were committed there"):
                query.start(mode=mode)
            assert query.ids() == [0, 1, 2], "nothing was added to what is wrong"
    finally:
        server.close()
