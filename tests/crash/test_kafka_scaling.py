"""Transactional ids over changes of scale, retries and zombies (P4): nothing open, nothing lost, nothing doubled."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.connectors.kafka.sink import ids
from holdfast.core.passes import PASSES, RING, TURNS
from tests.crash.kafka_work import KafkaWork
from tests.crash.processes import end, parent_of, state_of, wait_for, wait_until_stopped
from tests.servers.kafka import KafkaBroker


@pytest.fixture
def work(tmp_path: Path, kafka: KafkaBroker) -> Iterator[KafkaWork]:
    with closing(KafkaWork(tmp_path / "work", "kafka", kafka)) as work:
        yield work


@pytest.mark.contract("P4")
def test_partitions_go_from_2_to_8_to_3_with_a_crash_at_each(work: KafkaWork) -> None:
    """What an earlier scale left open is ended by the next, and what it had decided is committed."""
    work.crash("decision=kill", partitions=2)
    assert len(work.open_transactions()) == 2
    work.crash("decision=kill-after", partitions=8)
    left = [ids.parse(name) for name in work.open_transactions()]
    assert {(name.generation, name.subtask) for name in left if name} == {(1, n) for n in range(8)}
    work.crash("task.prepared=kill", partitions=3)
    work.run_clean(partitions=3)
    work.assert_clean()
    assert_ids_are_bounded(work, {0: 2, 1: 8, 2: 3, 3: 3})


def assert_ids_are_bounded(work: KafkaWork, widths: dict[int, int]) -> None:
    """What the broker keeps: no more than the places that runs of these widths take turns with."""
    kept = [found for found in map(ids.parse, work.transactional_ids()) if found is not None]
    assert len(kept) == len(work.transactional_ids()), "each says whose it is"
    assert {found.generation for found in kept} == set(widths)
    for generation, width in widths.items():
        own = [found for found in kept if found.generation == generation]
        assert {found.subtask for found in own} <= set(range(width))
        assert {found.attempt % PASSES for found in own} <= set(range(TURNS)), "these take turns while all goes well"
        assert len(own) <= width * TURNS * RING
        assert len(own) <= width * work.checkpoints, "and no checkpoint takes more than one for each subtask"


def paused_task(work: KafkaWork) -> int:
    """The process of the task that pauses before it begins, once it does."""
    note = work.once / "begin"
    wait_for(lambda: note.exists() and note.read_text(), "a task pauses before it begins")
    process = int(note.read_text())
    wait_for(lambda: state_of(process) == "T", "the task is paused")
    return process


@pytest.mark.contract("P4")
def test_killed_tasks_are_retried_within_the_batch(tmp_path: Path, kafka: KafkaBroker) -> None:
    """The query survives; what a first attempt had open, or even prepared, is ended with the commit."""
    with closing(KafkaWork(tmp_path / "work", "kafka-both", kafka)) as work:
        fault = "task.write=kill,task.prepared=kill@2"
        work.run_clean(fault, master="local[2,3]")
        assert work.fired() == {"task.write", "task.prepared"}
        work.assert_clean()


@pytest.mark.contract("P4")
def test_a_task_of_a_dead_driver_that_prepares_late_leaves_nothing_open(work: KafkaWork) -> None:
    """Trace 8: g1 dies; g2 recovers; g1's task prepares afterwards."""
    first = work.start(sleepy=True)
    zombie = 0
    try:
        zombie = paused_task(work)
        end(first)
        second = work.start("decision=stop")
        try:
            wait_until_stopped(second)
            os.kill(zombie, signal.SIGCONT)
            wait_for(lambda: state_of(zombie) in ("Z", None), "the zombie has ended")
            late = [name for name in map(ids.parse, work.open_transactions()) if name and name.generation == 0]
            assert len(late) == 1, f"{work.open_transactions()}\n{work.log(1)}"
            second.send_signal(signal.SIGCONT)
            assert second.wait(180) == 0, work.log()
        finally:
            end(second)
        work.assert_clean()
    finally:
        end(first)
        if zombie and state_of(zombie) is not None:
            os.kill(zombie, signal.SIGKILL)


@pytest.mark.contract("P4")
def test_a_task_of_a_lost_executor_that_prepares_after_its_retry_leaves_nothing_open(work: KafkaWork) -> None:
    """A real executor hangs until the driver gives it up and runs its task elsewhere; then that task goes on."""
    conf = {
        "spark.executor.memory": "512m",
        "spark.executor.heartbeatInterval": "1s",
        "spark.network.timeout": "8s",
        "spark.network.timeoutInterval": "1s",
    }
    driver = work.start("decision=stop", sleepy=True, master="local-cluster[2,1,512]", conf=conf)
    zombie = 0
    try:
        zombie = paused_task(work)
        executor = parent_of(parent_of(zombie))  # above it is Spark's daemon of Python workers
        os.kill(executor, signal.SIGSTOP)
        wait_until_stopped(driver)
        os.kill(zombie, signal.SIGCONT)
        wait_for(lambda: state_of(zombie) in ("Z", None), "the zombie has ended")
        left = [name for name in map(ids.parse, work.open_transactions()) if name]
        assert len(left) == 4 and len({name.subtask for name in left}) == 3, f"{left}\n{work.log()}"
        driver.send_signal(signal.SIGCONT)
        assert driver.wait(180) == 0, work.log()
    finally:
        end(driver)
        if zombie and state_of(zombie) is not None:
            os.kill(zombie, signal.SIGKILL)
    work.assert_clean()
