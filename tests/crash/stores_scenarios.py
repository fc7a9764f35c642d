"""The columns of the fault matrix for files, PostgreSQL and Cassandra; `stores` is all of them under one decision."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from tests.crash.harness import Work
from tests.crash.kafka_scenarios import TITLES
from tests.crash.processes import end, stopped_children, wait_for, wait_until_stopped
from tests.crash.scenarios import (
    Case,
    Scenario,
    _first_commit,
    _flip,
    _last_decision,
    _wal_file,
    between_two_commits,
    crash_in_recovery_twice,
    crash_then_restart,
    damaged,
    deleted_checkpoint,
    half_a_checkpoint,
    old_checkpoint,
    partitions_change,
    zombie,
)
from tests.crash.stores import Files
from tests.crash.stores_work import STORES, StoresWork

SINKS = tuple(sink for sink in STORES if sink != "three")


def on_stores(scenario: Callable[[StoresWork], None]) -> Scenario:
    """A scenario that asks for more than any work folder has."""

    def run(work: Work) -> None:
        scenario(cast(StoresWork, work))

    return run


def _part(work: Work) -> Path:
    """A hidden file with decided rows."""
    store = cast(StoresWork, work).stores[0]
    assert isinstance(store, Files)
    return store.parts()[-1]


# -- 14: the endpoint is killed and restarted -----------------------------------------------------------------------


def _servers(work: StoresWork) -> list[Any]:
    """The servers of its stores."""
    kinds = {store.kind for store in work.stores} - {"files"}
    return [work.servers(kind) for kind in sorted(kinds)]


def server_restarted(fault: str) -> Scenario:
    """The server is killed and restarted while the driver sleeps; the query goes on."""

    def scenario(work: StoresWork) -> None:
        driver = work.start(fault)
        try:
            process = work.wait_paused(driver)
            for server in _servers(work):
                server.stop(kill=True)
                server.start()
            os.kill(process, signal.SIGCONT)
            code = driver.wait(240)
        finally:
            end(driver)
        assert code == 0, work.log()
        work.run_clean()
        work.assert_clean()

    return on_stores(scenario)


def server_away(*, survives: bool) -> Scenario:
    """The server dies after a decision and stays away: a sink that may lag goes on, another fails and says so."""

    def scenario(work: StoresWork) -> None:
        driver = work.start("decision=stop-after@2", retry="15s", drain_timeout=240)
        servers = _servers(work)
        try:
            wait_until_stopped(driver)
            for server in servers:
                server.stop(kill=True)
            driver.send_signal(signal.SIGCONT)
            if survives:
                wait_for(lambda: "trying again" in work.log() or driver.poll() is not None, "the sink lags")
                assert driver.poll() is None, work.log()
            else:
                assert driver.wait(240) == 1, work.log()
                assert "CommitError: checkpoint 1 is decided" in work.log(), work.log()
        finally:
            try:
                for server in servers:
                    server.start()
                code = driver.wait(240)
            finally:
                end(driver)
        assert code == 0 or not survives, work.log()
        work.run_clean()
        work.assert_clean()

    return on_stores(scenario)


def server_restarted_under_a_task(fault: str) -> Scenario:
    """The server is killed and restarted while a task sleeps in the middle of its work, with a connection open."""

    def scenario(work: StoresWork) -> None:
        driver = work.start(fault)
        workers: list[int] = []
        try:
            wait_for(lambda: stopped_children(driver) or driver.poll() is not None, "a task pauses")
            workers = stopped_children(driver)
            assert workers, f"{fault} never fired\n{work.log()}"
            for server in _servers(work):
                server.stop(kill=True)
                server.start()
            for worker in workers:
                os.kill(worker, signal.SIGCONT)
            driver.wait(240)
        finally:
            end(driver)
        work.run_clean()
        work.assert_clean()

    return on_stores(scenario)


# -- the cases ------------------------------------------------------------------------------------------------------


def _common(*, sinks: int = 1, deep: str = "commit.record") -> dict[tuple[int, str], Scenario]:
    """What all of them do alike; a pipeline with several sinks comes to `commit.sink` so often in each checkpoint."""
    faults = {
        1: {"error": "task.write=error@2", "kill": "task.write=kill@2", "lost": "task.write=lost@2"},
        2: {"error": "decision=error@2", "kill": "decision=kill@2", "lost": "task.prepared=lost@2"},
        3: {"error": f"commit.sink=error@{sinks + 1}", "kill": "decision=kill-after@2", "lost": "decision=lost@2"},
        6: {"error": "batch.return=error@2", "kill": "batch.return=kill@2", "lost": "batch.return=lost@2"},
    }
    return {
        **{(point, way): crash_then_restart(fault) for point, ways in faults.items() for way, fault in ways.items()},
        **{(8, way): crash_in_recovery_twice(way, deep) for way in ("error", "kill", "lost")},
        (9, "before decision"): zombie("decision=stop@2"),
        (9, "before commit"): zombie(f"commit.sink=stop@{sinks + 1}"),
        (9, "after commit"): zombie(f"commit.record=stop-after@{2 * sinks}"),
        (11, "undecided"): partitions_change("decision=kill@2"),
        (11, "decided"): partitions_change("decision=kill-after@2"),
        (11, "task killed"): partitions_change("task.prepared=kill@2"),
        (12, "deleted"): deleted_checkpoint,
        (12, "old copy"): old_checkpoint,
        (12, "half deleted"): half_a_checkpoint,
        (13, "truncated"): damaged(lambda data: data[:-40], _last_decision),
        (13, "bit flipped"): damaged(_flip, _first_commit),
    }


def _ways(point: int, error: str, kill: str, lost: str) -> dict[tuple[int, str], Scenario]:
    return {
        (point, "error"): crash_then_restart(error),
        (point, "kill"): crash_then_restart(kill),
        (point, "lost"): crash_then_restart(lost),
    }


_COLUMNS: dict[str, dict[tuple[int, str], Scenario]] = {
    "files": {
        **_common(),
        **_ways(4, "commit.subtask=error@2", "commit.subtask=kill@2", "commit.subtask=lost@2"),
        **_ways(5, "commit.record=error@2", "commit.mark=kill-after@2", "commit.mark=lost@2"),
        (4, "no mark"): crash_then_restart("commit.mark=kill@2"),
        (13, "hidden file"): damaged(_flip, _part),
    },
    "postgres": {
        **_common(sinks=2),
        **_ways(4, "commit.sink=error@2", "commit.sink=kill@2", "commit.sink=lost@1"),
        (4, "one of two"): between_two_commits("postgres-orders_0", "postgres-orders_1"),
        **_ways(5, "commit.record=error@2", "commit.sink=kill-after@3", "commit.sink=lost@3"),
        (14, "prepared"): server_restarted("decision=stop@2"),
        (14, "decided"): server_restarted("decision=stop-after@2"),
        (14, "in a task"): server_restarted_under_a_task("task.write=stop@2"),
        (14, "away at commit"): server_away(survives=False),
    },
    "postgres-log": {
        **_common(),
        **_ways(4, "commit.subtask=error@1", "commit.subtask=kill@1", "commit.subtask=lost@1"),
        **_ways(5, "commit.record=error@2", "commit.subtask=kill-after@1", "commit.sink=lost@2"),
        (13, "log file"): damaged(_flip, _wal_file),
        (14, "prepared"): server_restarted("decision=stop@2"),
        (14, "decided"): server_restarted("decision=stop-after@2"),
        # On a local Spark the driver delivers; `make cluster` has it done by executors.
        (14, "in a delivery"): server_restarted("commit.subtask=stop@2"),
        (14, "away at commit"): server_away(survives=False),
    },
    "postgres-two-phase": {
        **_common(),
        **_ways(4, "commit.subtask=error@4", "commit.subtask=kill@4", "commit.subtask=lost@3"),
        **_ways(5, "commit.record=error@2", "commit.sink=kill-after@2", "commit.sink=lost@2"),
        (14, "prepared"): server_restarted("decision=stop@2"),
        (14, "decided"): server_restarted("decision=stop-after@2"),
        (14, "in a task"): server_restarted_under_a_task("task.write=stop@2"),
        (14, "away at commit"): server_away(survives=False),
    },
    "cassandra": {
        **_common(deep="recovery"),
        **_ways(4, "commit.subtask=error@2", "commit.subtask=kill@2", "commit.subtask=lost@2"),
        **_ways(5, "commit.record=error@2", "commit.mark=kill-after@2", "commit.mark=lost@2"),
        (4, "sent, not marked"): crash_then_restart("commit.mark=kill@2"),
        (13, "log file"): damaged(_flip, _wal_file),
        (14, "prepared"): server_restarted("decision=stop@2"),
        (14, "decided"): server_restarted("decision=stop-after@2"),
        (14, "in a delivery"): server_restarted_under_a_task("commit.mark=stop@2"),
        (14, "away at commit"): server_away(survives=True),
    },
}
_ALL = _common(sinks=len(STORES["stores"]))
#: In `make test`: where all sinks do the same, all at once under one decision; the rest one by one.
_TOGETHER = {
    (1, "kill"), (2, "lost"), (3, "kill"), (6, "kill"), (8, "kill"), (9, "before commit"), (11, "undecided"),
    (13, "truncated"),
}  # fmt: skip
_COLUMNS["stores"] = {
    **{key: _ALL[key] for key in _TOGETHER},
    (14, "decided"): server_restarted("decision=stop-after@2"),
}
_ALONE = {
    ("files", 4, "kill"), ("files", 12, "old copy"),
    ("postgres", 5, "kill"), ("postgres-log", 4, "kill"), ("postgres-log", 5, "kill"),
    ("postgres-two-phase", 4, "kill"), ("postgres-two-phase", 12, "deleted"),
    ("cassandra", 5, "kill"), ("cassandra", 12, "old copy"),
}  # fmt: skip


def _cases() -> list[Case]:
    return [
        Case(point, TITLES[point], sink, way, scenario, always=sink == "stores" or (sink, point, way) in _ALONE)
        for sink, column in _COLUMNS.items()
        for (point, way), scenario in sorted(column.items(), key=lambda item: item[0])
    ]


CASES = _cases()
