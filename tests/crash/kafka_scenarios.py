"""The Kafka columns of the fault matrix: `kafka` is the two-phase mode, `kafka-both` both modes under one decision,
`kafka-few` these when one task writes a whole checkpoint."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any, cast

from tests.crash.harness import Work
from tests.crash.kafka_work import KafkaWork
from tests.crash.processes import end, stopped_children, wait_for, wait_until_stopped
from tests.crash.scenarios import (
    Case,
    Scenario,
    _first_commit,
    _flip,
    _last_decision,
    _wal_file,
    crash_in_recovery_twice,
    crash_then_restart,
    damaged,
    deleted_checkpoint,
    half_a_checkpoint,
    old_checkpoint,
    partitions_change,
    zombie,
)

SINKS = ("kafka", "kafka-write-ahead", "kafka-both", "kafka-few")
#: Transaction timeouts to try: long enough for a task on this machine, as short as that allows.
TIMEOUTS = (5_000, 20_000, 60_000)


def on_kafka(scenario: Callable[[KafkaWork], None]) -> Scenario:
    """A scenario that asks for more than any work folder has."""

    def run(work: Work) -> None:
        scenario(cast(KafkaWork, work))

    return run


# -- 4: k of n committed --------------------------------------------------------------------------------------------


def some_committed(fault: str = "", count: int = 1) -> Scenario:
    """The driver dies after it has committed some transactions of a checkpoint; the rest follow, after `fault` too."""

    def scenario(work: KafkaWork) -> None:
        work.crash("decision=kill-after@2")
        for subtask in range(count):
            work.commit_one(work.last_decided(), subtask)
        if fault:
            work.crash(fault)
        work.run_clean()
        work.assert_clean()

    return on_kafka(scenario)


# -- 7: group offsets -----------------------------------------------------------------------------------------------


def offsets_fault(way: str) -> Scenario:
    """The group lags after the fault, and stands at the end after the restart; the consumer saw that it never led."""

    def scenario(work: KafkaWork) -> None:
        code = work.run(f"offsets={way}")
        assert code == (-9 if way == "kill" else 0), work.log()
        if way == "kill":
            assert sum(work.lag().values()) > 0, work.lag()
        work.run_clean()
        work.assert_clean()

    return on_kafka(scenario)


# -- 10: an outage longer than the transactions' timeout ------------------------------------------------------------


def time_out(work: KafkaWork, fault: str = "decision=kill-after@2", **spec: Any) -> int:
    """Run into the fault with transactions that soon time out; the checkpoint that was decided last.

    On a slow machine a task can take longer than the shortest timeout, and fails: then a longer one is tried.
    """
    for timeout in TIMEOUTS:
        assert work.run(fault, late_ms=timeout, may_miss=True, retry="20s", **spec) != 0
        if work.fired():
            return work.last_decided()
    raise AssertionError(f"{fault} never fired\n{work.log()}")


def repaired(work: KafkaWork, before: int, lost: int, rows: int) -> None:
    """One repair record more than before, of the lost rows and no others."""
    found = work.records("repair")[before:]
    assert [record["checkpoint_id"] for record in found] == [lost], found
    assert sum(c["rows"] for c in found[0]["committables"]) == rows, found
    work.assert_clean(repairs=before + 1)


def all_lost(work: KafkaWork) -> None:
    """Every transaction of a decided checkpoint timed out: the replay proves equal, and all is produced again."""
    lost, before = time_out(work), len(work.records("repair"))
    work.wait_until_swept()
    work.run_clean()
    repaired(work, before, lost, work.rows_decided(lost))


def some_lost(first: dict[str, Any], then: dict[str, Any]) -> Scenario:
    """One transaction of the checkpoint was committed, the others timed out: only those are produced again."""

    def scenario(work: KafkaWork) -> None:
        lost = time_out(work, late_from=1, **first)
        before = len(work.records("repair"))
        wait_for(lambda: len(work.open_transactions()) == 1, "the broker has swept all but one")
        committed = work.commit_one(lost)
        work.run_clean(**then)
        repaired(work, before, lost, work.rows_decided(lost) - committed)

    return on_kafka(scenario)


def cannot_be_matched(work: KafkaWork) -> None:
    """Another split of the rows, and some are committed: stops loudly and keeps all; the first layout mends it."""
    lost = time_out(work, late_from=1)
    before = len(work.records("repair"))
    wait_for(lambda: len(work.open_transactions()) == 1, "the broker has swept all but one")
    committed = work.commit_one(lost)
    for _ in range(2):
        work.crash(partitions=5)
        for text in ("LostError", f"of checkpoint {lost} (", "the rows of subtask 1 (", "holdfast resolve"):
            assert text in work.log(), f"{text}\n{work.log()}"
    assert len(work.records("repair")) == before
    work.run_clean()
    repaired(work, before, lost, work.rows_decided(lost) - committed)


def repair_killed(work: KafkaWork) -> None:
    """The driver dies before the repair is recorded, the next one after: it is recorded once, and committed."""
    lost, before = time_out(work), len(work.records("repair"))
    work.wait_until_swept()
    work.crash("repair=kill")
    work.crash("repair=kill-after")
    work.run_clean()
    repaired(work, before, lost, work.rows_decided(lost))


def driver_paused(work: KafkaWork) -> None:
    """The driver sleeps between decision and commit until its transactions are gone: it repairs and goes on."""
    for timeout in TIMEOUTS:
        driver = work.start("decision=stop-after@2", late_ms=timeout, retry="20s")
        try:
            wait_for(lambda p=driver: work.fired() or p.poll() is not None, "the driver pauses")  # type: ignore[misc]
            if driver.poll() is not None:
                work.missed()
                continue
            wait_until_stopped(driver)
            lost, before = work.last_decided(), len(work.records("repair"))
            work.wait_until_swept()
            driver.send_signal(signal.SIGCONT)
            code = driver.wait(180)
        finally:
            end(driver)
        # Its later checkpoints have the same short timeout, and this machine may be slow.
        found = [record["checkpoint_id"] for record in work.records("repair")[before:]]
        assert lost in found, f"exit code {code}, repaired {found}\n{work.log()}"
        work.run_clean()
        work.assert_clean(repairs=None)
        return
    raise AssertionError(f"the driver never paused\n{work.log()}")


def delivered_later(work: KafkaWork) -> None:
    """Write-ahead: the driver dies after the decision and no transaction is open, so none can time out."""
    work.crash("decision=kill-after@2")
    assert work.open_transactions() == []
    work.run_clean()
    work.assert_clean()


def delivery_paused(work: KafkaWork) -> None:
    """Write-ahead: a delivery sleeps with all rows sent until its transaction is gone, and all die: sent again."""
    for timeout in TIMEOUTS:
        driver = work.start("commit.mark=stop@2", config={"transaction.timeout.ms": timeout})
        try:
            wait_for(lambda p=driver: stopped_children(p) or p.poll() is not None, "the delivery pauses")  # type: ignore[misc]
            workers = stopped_children(driver)
        finally:
            end(driver)
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
        work.missed()
        if workers:
            work.wait_until_swept()
            work.run_clean()
            work.assert_clean()
            return
    raise AssertionError(f"the delivery never paused\n{work.log()}")


# -- 14: the endpoint is killed and restarted -----------------------------------------------------------------------


def broker_away_at_commit(work: KafkaWork) -> None:
    """The broker dies after the decision and stays away: the query fails and says so; with the broker back it ends."""
    driver = work.start("decision=stop-after@2", retry="15s")
    try:
        wait_until_stopped(driver)
        work.broker.stop(kill=True)
        driver.send_signal(signal.SIGCONT)
        code = driver.wait(240)
    finally:
        end(driver)
        work.broker.start()
    assert code == 1 and "CommitError: checkpoint 1 is decided" in work.log(), work.log()
    work.run_clean()
    work.assert_clean()


def broker_restarted(fault: str) -> Scenario:
    """The broker is killed and restarted while the driver sleeps; the query goes on."""

    def scenario(work: KafkaWork) -> None:
        driver = work.start(fault)
        try:
            process = work.wait_paused(driver)
            work.broker.stop(kill=True)
            work.broker.start()
            os.kill(process, signal.SIGCONT)
            code = driver.wait(240)
        finally:
            end(driver)
        assert code == 0, work.log()
        work.run_clean()
        work.assert_clean()

    return on_kafka(scenario)


def survives_an_outage(work: KafkaWork) -> None:
    """Write-ahead: the broker is away when the driver wants to deliver, and comes back: the query itself ends well."""
    driver = work.start("decision=stop-after@2", drain_timeout=240)
    try:
        wait_until_stopped(driver)
        work.broker.stop(kill=True)
        driver.send_signal(signal.SIGCONT)
        work.broker.start()
        assert driver.wait(240) == 0, work.log()
    finally:
        end(driver)
    work.assert_clean()


# -- the cases ------------------------------------------------------------------------------------------------------

TITLES = {
    1: "in the middle of a task",
    2: "all tasks prepared, no decision",
    3: "decision durable, nothing committed",
    4: "k of n committed",
    5: "committed, answer lost",
    6: "sinks committed, not Spark",
    7: "before the group-offset commit",
    8: "crash inside recovery, twice",
    9: "driver stopped, second driver started, first continued",
    10: "outage longer than transaction.timeout.ms",
    11: "partition count changes before replay",
    12: "old or deleted checkpoint",
    13: "record truncated or a bit flipped",
    14: "the endpoint is killed and restarted",
}

_FAULTS = {
    1: {"error": "task.write=error@2", "kill": "task.write=kill@2", "lost": "task.write=lost@2"},
    2: {"error": "decision=error@2", "kill": "decision=kill@2", "lost": "task.prepared=lost@2"},
    3: {"error": "commit.sink=error@2", "kill": "decision=kill-after@2", "lost": "decision=lost@2"},
    6: {"error": "batch.return=error@2", "kill": "batch.return=kill@2", "lost": "batch.return=lost@2"},
}

#: What both modes do alike.
_COMMON: dict[tuple[int, str], Scenario] = {
    **{(point, way): crash_then_restart(fault) for point, ways in _FAULTS.items() for way, fault in ways.items()},
    **{(7, way): offsets_fault(way) for way in ("error", "kill", "lost")},
    (9, "before decision"): zombie("decision=stop@2"),
    (9, "before commit"): zombie("commit.sink=stop@2"),
    (9, "after commit"): zombie("commit.record=stop-after@2"),
    (11, "undecided"): partitions_change("decision=kill@2"),
    (11, "decided"): partitions_change("decision=kill-after@2"),
    (11, "task killed"): partitions_change("task.prepared=kill@2"),
    (12, "deleted"): deleted_checkpoint,
    (12, "old copy"): old_checkpoint,
    (12, "half deleted"): half_a_checkpoint,
    (13, "truncated"): damaged(lambda data: data[:-40], _last_decision),
    (13, "bit flipped"): damaged(_flip, _first_commit),
}

_TWO_PHASE: dict[tuple[int, str], Scenario] = {
    **_COMMON,
    **{(8, way): crash_in_recovery_twice(way) for way in ("error", "kill", "lost")},
    (4, "one of three"): some_committed(count=1),
    (4, "two of three"): some_committed(count=2),
    (4, "and recovery killed"): some_committed("commit.sink=kill-after"),
    (5, "error"): crash_then_restart("commit.record=error@2"),
    (5, "kill"): crash_then_restart("commit.sink=kill-after@2"),
    (5, "lost"): crash_then_restart("commit.sink=lost@2"),
    (10, "all lost"): on_kafka(all_lost),
    (10, "some lost"): some_lost({}, {}),
    (10, "indexes moved"): some_lost({"shift": 0}, {"shift": 1}),
    (10, "cannot be matched"): on_kafka(cannot_be_matched),
    (10, "repair killed"): on_kafka(repair_killed),
    (10, "driver paused"): on_kafka(driver_paused),
    (14, "away at commit"): on_kafka(broker_away_at_commit),
    (14, "prepared"): broker_restarted("decision=stop@2"),
    (14, "decided"): broker_restarted("decision=stop-after@2"),
}

_WRITE_AHEAD: dict[tuple[int, str], Scenario] = {
    **_COMMON,
    **{(8, way): crash_in_recovery_twice(way, "recovery") for way in ("error", "kill", "lost")},
    (4, "error"): crash_then_restart("commit.subtask=error@2"),
    (4, "kill"): crash_then_restart("commit.subtask=kill@2"),
    (4, "lost"): crash_then_restart("commit.subtask=lost@2"),
    (4, "sent, not committed"): crash_then_restart("commit.mark=kill@2"),
    (5, "error"): crash_then_restart("commit.record=error@2"),
    (5, "kill"): crash_then_restart("commit.mark=kill-after@2"),
    (5, "lost"): crash_then_restart("commit.mark=lost@2"),
    (10, "driver killed"): on_kafka(delivered_later),
    (10, "delivery paused"): on_kafka(delivery_paused),
    (13, "log file"): damaged(_flip, _wal_file),
    (14, "survives"): on_kafka(survives_an_outage),
    (14, "prepared"): broker_restarted("decision=stop@2"),
    (14, "decided"): broker_restarted("decision=stop-after@2"),
}


def one_after_the_other(*faults_: str) -> Scenario:
    """The same pipeline runs into each fault in turn, and comes through."""

    def scenario(work: KafkaWork) -> None:
        for fault in faults_:
            work.crash(fault)
        work.run_clean()
        work.assert_clean()

    return on_kafka(scenario)


def decided_then_recovered(work: KafkaWork) -> None:
    """Nothing committed and recovery killed; then k of n transactions and log files, and recovery killed again."""
    work.crash("decision=kill-after@2")
    lost = work.last_decided()
    work.crash("recovery=kill")
    assert not work.committed_by(lost)
    work.commit_one(lost)
    both = {"commit.subtask", "commit.sink:two-phase"}
    work.kill_when("commit.subtask=kill@2,commit.sink:two-phase=hang", lambda: work.fired() == both)
    assert "recovery" in work.inside("commit.sink:two-phase"), work.log()
    work.run_clean()
    work.assert_clean()


#: Points 1, 6 and 5, for one pipeline.
_IN_A_ROW = ("task.write=kill@2", "batch.return=kill", "commit.sink=lost,commit.mark=lost,commit.record=kill@2")
#: Both modes under one decision, for `make test`: each point once, several in one pipeline where that saves drivers.
_BOTH: dict[tuple[tuple[int, ...], str], Scenario] = {
    ((1, 5, 6, 7), "one after the other"): one_after_the_other(*_IN_A_ROW, "offsets=kill"),
    ((2, 11), "undecided"): _COMMON[11, "undecided"],
    ((3, 4, 8), "decided"): on_kafka(decided_then_recovered),
    ((9,), "before decision"): _COMMON[9, "before decision"],
    ((10,), "some lost"): _TWO_PHASE[10, "some lost"],
    ((12,), "deleted"): _COMMON[12, "deleted"],
    ((13,), "truncated"): _COMMON[13, "truncated"],
    ((14,), "decided"): _TWO_PHASE[14, "decided"],
}

#: One task for both modes of a whole checkpoint; where the replay has another split, its rows are found all the same.
_FEW: dict[tuple[tuple[int, ...], str], Scenario] = {
    ((1, 5, 6), "one after the other"): one_after_the_other(*_IN_A_ROW),
    ((2,), "kill"): _COMMON[2, "kill"],
    ((3,), "kill"): _COMMON[3, "kill"],
    ((8,), "kill"): _TWO_PHASE[8, "kill"],
    ((9,), "before decision"): _COMMON[9, "before decision"],
    ((9,), "after commit"): _COMMON[9, "after commit"],
    ((10,), "all lost"): _TWO_PHASE[10, "all lost"],
    ((10,), "repair killed"): _TWO_PHASE[10, "repair killed"],
    ((10,), "driver paused"): _TWO_PHASE[10, "driver paused"],
    ((11,), "undecided"): _COMMON[11, "undecided"],
    ((11,), "decided"): _COMMON[11, "decided"],
    ((11,), "task killed"): _COMMON[11, "task killed"],
    ((14,), "decided"): _TWO_PHASE[14, "decided"],
}


def _cases() -> list[Case]:
    columns = {"kafka": _TWO_PHASE, "kafka-write-ahead": _WRITE_AHEAD}
    each = [
        Case(point, TITLES[point], sink, way, scenario)
        for sink, column in columns.items()
        for (point, way), scenario in sorted(column.items(), key=lambda item: item[0])
    ]
    together = [
        Case(points[0], TITLES[points[0]], sink, way, scenario, always=sink == "kafka-both", also=points[1:])
        for sink, found in (("kafka-both", _BOTH), ("kafka-few", _FEW))
        for (points, way), scenario in found.items()
    ]
    return each + together


CASES = _cases()
