"""PostgreSQL's failover to a standby: the query goes on there, by itself, and every row is there once (D9)."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.integration.pg import Query, batch, rows, settle
from tests.servers.postgres import USER, PostgresServer, Standby, execute


@pytest.fixture
def pair() -> Iterator[tuple[PostgresServer, Standby]]:
    """A server whose commits wait for its standby, so that a failover takes nothing back."""
    primary = PostgresServer(fsync="off")
    primary.start()
    standby = Standby(primary)
    try:
        standby.start()
        execute(primary.dsn(), "ALTER SYSTEM SET synchronous_standby_names = '*'")
        execute(primary.dsn(), "SELECT pg_reload_conf()")
        yield primary, standby
    finally:
        standby.close()
        primary.close()


@pytest.mark.contract("D9")
@pytest.mark.parametrize(
    ("moment", "options"),
    [
        ("write", {"stage": "server"}),
        ("commit", {"stage": "log"}),
        ("commit", {"mode": "two-phase"}),
    ],
    ids=["write, ledger", "commit, log", "commit, two-phase"],
)
def test_d9_a_failover_to_a_standby_fails_no_query(
    pair: tuple[PostgresServer, Standby],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    options: dict[str, Any],
) -> None:
    primary, standby = pair
    database = primary.new_database().rpartition("/")[2]
    password = primary.dsn().partition(f"{USER}:")[2].partition("@")[0]
    hosts = f"127.0.0.1:{primary.port},127.0.0.1:{standby.port}"
    both = f"postgresql://{USER}:{password}@{hosts}/{database}?target_session_attrs=read-write"
    query, later = Query(tmp_path, both), []

    def fail_over() -> None:
        if not later:
            primary.stop(kill=True)
            later.append(threading.Timer(1.0, standby.promote))
            later[0].start()

    run = query.start(**options)
    run.run(0, batch(rows(1), rows(2)))
    settle(run)
    method = getattr(hf.PostgresSink, moment)

    def late(sink: hf.PostgresSink, *given: Any) -> Any:
        fail_over()
        return method(sink, *given)

    monkeypatch.setattr(hf.PostgresSink, moment, late)
    run.run(1, batch(rows(3), rows(4)))
    settle(run)
    run.run(2, batch(rows(5), rows(6)))
    settle(run)
    run.close()
    later[0].join()
    assert query.ids() == [1, 2, 3, 4, 5, 6]
    assert query.leftovers == []
    assert [row[0] for row in execute(standby.dsn(), "SELECT pg_is_in_recovery()")] == [False]
