"""The parts of `holdfast demo`, without Spark: the audit must be able to fail."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, RemoteDisconnected
from pathlib import Path
from urllib.request import urlopen

import pytest

from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.storage import open_storage
from holdfast.cli.demo import _page
from holdfast.core.model import Committable
from holdfast.demo.audit import audit_folder
from holdfast.demo.endpoint import Endpoint
from holdfast.demo.files import Folder, make_orders, write_orders
from holdfast.demo.plan import MOMENTS, make_plan


def decide(log: CheckpointLog, checkpoint_id: int, *committed: str) -> None:
    sinks = ["sqlite", "endpoint"]
    log.decide(checkpoint_id, sinks, [Committable(sink, 0, {}) for sink in sinks], timestamp=0, state={})
    for sink in committed:
        log.record_commit(checkpoint_id, sink, {})


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    """A demo that went well: 100 orders, both endpoints have each once."""
    folder = Folder(tmp_path)
    folder.create()
    orders = make_orders(100, seed=1)
    write_orders(folder, 0, orders[:60])
    write_orders(folder, 1, orders[60:])
    with closing(sqlite3.connect(folder.database)) as connection, connection:
        connection.execute("CREATE TABLE orders (id, customer, cents)")
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", orders)
    for number in (0, 1):
        source = folder.source / f"orders-{number:06}.json"
        (folder.endpoint / f"{'a' * 32}-{number}-0.jsonl").write_bytes(source.read_bytes())
    log = CheckpointLog(open_storage(log_location(str(folder.checkpoint))), "demo-orders")
    log.start()
    decide(log, 0, "sqlite", "endpoint")
    return folder


def change(folder: Folder, statement: str) -> None:
    with closing(sqlite3.connect(folder.database)) as connection, connection:
        connection.execute(statement)


def test_the_audit_passes_what_is_as_promised(folder: Folder) -> None:
    found = audit_folder(folder)
    assert found.problems == []
    assert (found.sqlite.rows_in, found.sqlite.rows_out, found.endpoint.rows_out) == (100, 100, 100)


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("DELETE FROM orders WHERE id = 7", "lost 1, doubled 0"),
        ("INSERT INTO orders SELECT * FROM orders WHERE id = 7", "lost 0, doubled 1"),
        ("UPDATE orders SET cents = cents + 1 WHERE id = 7", "lost 1, doubled 0, never sent 1"),
    ],
)
def test_the_audit_sees_one_wrong_row_in_sqlite(folder: Folder, statement: str, problem: str) -> None:
    change(folder, statement)
    [found] = audit_folder(folder).problems
    assert found.startswith("SQLite: ")
    assert found.endswith(problem)


def test_the_audit_sees_rows_under_a_second_key_and_a_lost_post(folder: Folder) -> None:
    first = folder.endpoint / f"{'a' * 32}-0-0.jsonl"
    (folder.endpoint / f"{'a' * 32}-9-0.jsonl").write_bytes(first.read_bytes())
    assert audit_folder(folder).endpoint.doubled
    first.unlink()
    assert audit_folder(folder).problems == []
    (folder.endpoint / f"{'a' * 32}-9-0.jsonl").unlink()
    assert len(audit_folder(folder).endpoint.lost) == 60


def test_the_audit_sees_pending_checkpoints_and_left_files(folder: Folder) -> None:
    log = CheckpointLog(open_storage(log_location(str(folder.checkpoint))), "demo-orders")
    log.start()
    decide(log, 1, "sqlite")
    left = folder.checkpoint / "holdfast" / "wal" / "endpoint" / "1"
    left.mkdir(parents=True)
    (left / "x.arrow").touch()
    problems = audit_folder(folder).problems
    assert problems == [
        "1 checkpoints are still pending",
        "1 write-ahead files are left, and nothing will deliver them",
    ]


@pytest.mark.parametrize("kills", range(8))
@pytest.mark.parametrize("rows", [1, 10, 20_000])
def test_a_plan_writes_every_row_and_ends_the_outage_before_the_last_kill(kills: int, rows: int) -> None:
    plan = make_plan(3, rows, kills)
    assert plan == make_plan(3, rows, kills)
    assert len(plan.kills) == kills
    assert plan.allowance(kills) == rows
    down, up = plan.outage
    assert 0 <= down <= up <= (plan.allowance(kills - 1) if kills else rows)
    assert {kill.moment for kill in plan.kills} <= set(MOMENTS) - {"late"}
    if kills >= 4:
        assert {kill.moment for kill in plan.kills} == set(MOMENTS) - {"late"}


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    endpoint = Endpoint(tmp_path)
    yield endpoint
    endpoint.close()


def post(endpoint: Endpoint, checkpoint_id: int, body: bytes) -> int:
    connection = HTTPConnection("127.0.0.1", endpoint.port, timeout=10)
    try:
        connection.request("POST", "/", body, {"Idempotency-Key": f"{'a' * 32}-{checkpoint_id}-0"})
        return connection.getresponse().status
    finally:
        connection.close()


def test_the_endpoint_keeps_a_key_once_and_notices_other_rows_under_it(endpoint: Endpoint) -> None:
    assert [post(endpoint, 0, b"{}\n{}\n"), post(endpoint, 0, b"{}\n{}\n"), post(endpoint, 1, b"{}\n")] == [200] * 3
    assert (endpoint.rows, endpoint.posts, endpoint.repeated, endpoint.changed) == (3, 3, 1, 0)
    post(endpoint, 1, b"{other}\n")
    assert (endpoint.rows, endpoint.changed) == (3, 1)


def test_an_endpoint_that_is_down_refuses_or_hangs_up(endpoint: Endpoint) -> None:
    endpoint.up = False
    assert post(endpoint, 0, b"{}\n") == 503
    with pytest.raises(RemoteDisconnected):
        post(endpoint, 0, b"{}\n")
    assert (endpoint.rows, endpoint.refused) == (0, 2)


def test_an_ambush_keeps_the_rows_and_gives_no_answer(endpoint: Endpoint) -> None:
    struck = []
    endpoint.ambush(lambda: struck.append(True))
    with pytest.raises(RemoteDisconnected):
        post(endpoint, 0, b"{}\n")
    assert struck == [True]
    assert endpoint.rows == 1
    assert post(endpoint, 0, b"{}\n") == 200
    assert (endpoint.rows, endpoint.repeated) == (1, 1)


def test_the_dashboard_of_a_demo_is_there_before_its_pipeline_is(tmp_path: Path) -> None:
    made = Folder(tmp_path)
    made.create()
    with _page(made, 0) as url:
        assert "cannot be read" not in urlopen(url, timeout=60).read().decode()
        log = CheckpointLog(open_storage(log_location(str(made.checkpoint))), "demo-orders")
        log.start()
        decide(log, 0, "sqlite", "endpoint")
        assert "demo-orders" in urlopen(f"{url}p/checkpoint", timeout=60).read().decode()
