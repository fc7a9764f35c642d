"""Point 15 of the fault matrix: what happens to executors of a real cluster while their tasks write."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable
from typing import Any

from tests.crash import late
from tests.crash.harness import Work
from tests.crash.processes import Driver, command_of, end, kill_all, state_of, wait_for
from tests.crash.scenarios import Case, Scenario, crash_then_restart
from tests.servers.spark_cluster import SparkCluster

POINT, TITLE = 15, "an executor of a real cluster is killed"
#: Each of these by format("holdfast"), too; `door` is SQLite so.
BEHIND_THE_DOOR = (
    "write-ahead", "files", "postgres", "postgres-log", "postgres-two-phase", "kafka", "kafka-write-ahead", "cassandra",
)  # fmt: skip
#: `three` is Kafka, PostgreSQL and files under one decision; `kafka-few` is Kafka with one task a checkpoint.
SINKS = (
    "sqlite", *BEHIND_THE_DOOR, "kafka-few", "three", "door", *(f"door-{sink}" for sink in BEHIND_THE_DOOR),
)  # fmt: skip
#: Sinks whose rows are sent by tasks, after the decision.
DELIVERED_BY_TASKS = ("write-ahead", "kafka-write-ahead", "cassandra", "postgres-log")
#: Sinks whose tasks seal rows in the write-ahead log.
IN_THE_LOG = ("sqlite", *DELIVERED_BY_TASKS)
#: How long an executor may be silent; and nobody waits long for what it has.
SHORT = {
    "spark.network.timeout": "12s",
    "spark.network.timeoutInterval": "2s",
    "spark.executor.heartbeatInterval": "2s",
    "spark.shuffle.io.maxRetries": "1",
    "spark.shuffle.io.retryWait": "1s",
}
#: Executors come when there is work and go when there is none.
DYNAMIC = {
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.enabled": "true",
    "spark.dynamicAllocation.shuffleTracking.timeout": "5s",
    "spark.dynamicAllocation.minExecutors": "0",
    "spark.dynamicAllocation.maxExecutors": "2",
    "spark.dynamicAllocation.schedulerBacklogTimeout": "1s",
    "spark.dynamicAllocation.executorIdleTimeout": "5s",
    "spark.scheduler.minRegisteredResourcesRatio": "0",
}


def cluster_of(work: Work) -> SparkCluster:
    """The one it runs on."""
    assert work.spark_cluster is not None
    return work.spark_cluster


def paused(work: Work, driver: Driver, *, but: tuple[int, ...] = ()) -> int:
    """Wait until a Python worker of an executor pauses at a fault; its process id."""
    cluster = cluster_of(work)
    found: list[int] = []

    def look() -> bool:
        found[:] = [pid for pid in cluster.paused() if pid not in but]
        return bool(found) or driver.poll() is not None

    wait_for(look, "a task pauses")
    assert found, f"no task came to the fault\n{work.log()}"
    return found[0]


def ended_well(work: Work, driver: Driver) -> None:
    """Spark ran again what was lost, and nobody had to start anything."""
    assert driver.wait(300) == 0, work.log()


def removed(work: Work) -> int:
    """How many executors the drivers have seen go."""
    return len(work.events("ExecutorRemoved"))


def executors_killed(*faults: str, resent: int = 0, **spec: Any) -> Scenario:
    """The executor of a task that came to the fault dies, with its Java and its Python; once for each fault.

    What its task had prepared is nobody's any more, and its checkpoints after it end it.
    """

    def scenario(work: Work) -> None:
        cluster = cluster_of(work)
        driver = work.start(",".join(faults), **spec)
        try:
            for _ in faults:
                cluster.kill_executor(cluster.executor_of(paused(work, driver)))
            ended_well(work, driver)
        finally:
            end(driver)
        assert removed(work) >= len(faults), work.log()
        work.assert_clean(resent=resent)

    return scenario


def zombie_executor(work: Work) -> None:
    """A machine stands still for longer than Spark waits. Another does its work; then it wakes up and prepares.

    Nothing of that may be seen, and the next driver ends it.
    """
    cluster = cluster_of(work)
    driver = work.start(late=True, conf=SHORT, partitions=2)
    frozen: list[int] = []
    try:
        task = _asleep(work, driver)
        frozen = cluster.freeze(cluster.worker_of(task))
        ended_well(work, driver)
        assert removed(work) >= 1, work.log()
        os.kill(task, signal.SIGCONT)
        told = work.once / late.END
        wait_for(lambda: told.exists() and told.read_text(), "the late task has ended")
        # A transaction or a file of the log that was there for all to see was ended by the batches since; what is only
        # begun can be prepared.
        assert told.read_text() == "prepared" or work.sink in (*IN_THE_LOG, "kafka", "three"), told.read_text()
    finally:
        _end_thawed(driver, frozen)
    cluster.idle()
    work.run_clean(late=True)
    work.assert_clean()


def woken_beside_a_driver(work: Work) -> None:
    """The same, and the machine wakes up, with its Java and its task, while the driver is at a later checkpoint.

    What the task prepares then is ended by that very driver.
    """
    cluster = cluster_of(work)
    driver = work.start("decision=stop@2", late=True, conf=SHORT, partitions=2)
    frozen: list[int] = []
    try:
        task = _asleep(work, driver)
        frozen = cluster.freeze(cluster.worker_of(task))
        process = work.wait_paused(driver)
        wait_for(lambda: removed(work) >= 1, "the frozen executor is given up")
        _thaw((*frozen, task))
        told = work.once / late.END
        wait_for(lambda: told.exists() and told.read_text(), "the late task has ended")
        os.kill(process, signal.SIGCONT)
        ended_well(work, driver)
    finally:
        _end_thawed(driver, frozen)
    cluster.idle()
    work.assert_clean()


def _thaw(frozen: Iterable[int]) -> None:
    for pid in frozen:
        if state_of(pid) is not None:
            os.kill(pid, signal.SIGCONT)


def _end_thawed(driver: Driver, frozen: Iterable[int]) -> None:
    """End a driver, and a machine's processes that its executor cannot end any more."""
    _thaw(frozen)
    end(driver)
    kill_all(pid for pid in frozen if "pyspark.daemon" in command_of(pid))


def _asleep(work: Work, driver: Driver) -> int:
    """Wait until a task pauses before it pre-commits; its process id."""
    begin = work.once / late.BEGIN
    wait_for(lambda: driver.poll() is not None or (begin.exists() and begin.read_text()), "a task sleeps")
    assert begin.exists(), work.log()
    task = int(begin.read_text())
    wait_for(lambda: state_of(task) == "T", "a task sleeps")
    return task


def shuffle_files_lost(work: Work) -> None:
    """A task fails, and what it had read is gone: Spark runs the stage before it again, and this one's tasks, too."""
    cluster = cluster_of(work)
    driver = work.start("task.write=stop", partitions=2)
    try:
        task = paused(work, driver)
        assert cluster.lose_shuffle_files(), "no stage had left anything"
        os.kill(task, signal.SIGKILL)
        ended_well(work, driver)
    finally:
        end(driver)
    again = [e for e in work.events("StageSubmitted") if e["Stage Info"]["Stage Attempt ID"] > 0]
    assert again, "no stage was run again"
    work.assert_clean()


def executors_released(work: Work) -> None:
    """Dynamic allocation takes the executors away that have prepared, before anything is decided."""
    driver = work.start("decision=stop", conf=DYNAMIC)
    try:
        process = work.wait_paused(driver)
        wait_for(lambda: removed(work) >= 1, "an idle executor is released")
        os.kill(process, signal.SIGCONT)
        ended_well(work, driver)
    finally:
        end(driver)
    assert len(work.events("ExecutorAdded")) >= 2, "the executors did not come back"
    work.assert_clean()


def decommissioned(fault: str, then: Callable[[Work, Driver], None] = ended_well) -> Scenario:
    """A worker is taken out of service while a task of it writes: the task may end, the next ones run elsewhere."""

    def scenario(work: Work) -> None:
        cluster = cluster_of(work)
        driver = work.start(fault)
        try:
            task = paused(work, driver)
            worker = cluster.worker_of(task)
            cluster.decommission(worker)
            cluster.wait_decommissioned(worker)
            os.kill(task, signal.SIGCONT)
            then(work, driver)
        finally:
            end(driver)
            cluster.mend()
        reasons = [event["Removed Reason"] for event in work.events("ExecutorRemoved")]
        assert any("decommission" in reason.lower() for reason in reasons), reasons
        if then is not ended_well:
            work.run_clean()
            assert_other_ports(work)
        work.assert_clean()

    return scenario


def _killed(work: Work, driver: Driver) -> None:
    """Between decision and commit, and not before its Java has seen the executor go: a dead one sees nothing."""
    process = work.wait_paused(driver)
    wait_for(lambda: removed(work) >= 1, "the decommissioned executor goes")
    os.kill(process, signal.SIGKILL)
    assert driver.wait(300) == work.killed, work.log()


def driver_killed(work: Work) -> None:
    """A driver dies between decision and commit; the next one goes on."""
    crash_then_restart("decision=kill-after@2")(work)
    assert_other_ports(work)


def assert_other_ports(work: Work) -> None:
    """Each driver listened elsewhere: executors of a dead one find nobody, and nothing that they have is needed."""
    ports = [event["Spark Properties"]["spark.driver.port"] for event in work.events("EnvironmentUpdate")]
    assert len(ports) == len(set(ports)) == work.runs > 1, ports


def _column(sink: str) -> dict[str, Scenario]:
    both = executors_killed("task.write=stop", "task.prepared=stop@2")
    if sink.startswith("door-"):
        # Their tasks meet what all tasks do; what the process beside the driver does itself is in door_scenarios.
        return {"both": both}
    if sink == "kafka-few":
        return {"both": both, "driver killed": driver_killed}
    ways: dict[str, Scenario] = {
        "in a task": executors_killed("task.write=stop"),
        "prepared": executors_killed("task.prepared=stop"),
        "both": both,
        "stopped and continued": zombie_executor,
        "woken beside a driver": woken_beside_a_driver,
        "shuffle files lost": shuffle_files_lost,
        "dynamic allocation": executors_released,
        "decommissioned": decommissioned("task.write=stop"),
        "driver killed": driver_killed,
        "decommissioned, driver killed": decommissioned("task.write=stop,decision=stop-after@2", _killed),
    }
    if sink in DELIVERED_BY_TASKS:
        ways["in a delivery"] = executors_killed("commit.subtask=stop")
    if sink in DELIVERED_BY_TASKS and sink != "postgres-log":  # there rows and mark are one transaction
        # Sent and not marked: it is sent again, which is what the guarantee says where no transaction marks it (W9).
        resent = 1 if sink == "write-ahead" else 0
        ways["delivered, not marked"] = executors_killed("commit.mark=stop", resent=resent)
    return ways


#: In `make test`: each way once, and each kind of pipeline.
_ALWAYS = {
    ("kafka", "both"), ("postgres-two-phase", "stopped and continued"), ("sqlite", "woken beside a driver"),
    ("write-ahead", "in a delivery"), ("files", "shuffle files lost"), ("three", "dynamic allocation"),
    ("three", "decommissioned, driver killed"),
}  # fmt: skip


def _cases() -> list[Case]:
    return [
        Case(POINT, TITLE, sink, way, scenario, always=(sink, way) in _ALWAYS)
        for sink in SINKS
        for way, scenario in _column(sink).items()
    ]


CASES = _cases()
