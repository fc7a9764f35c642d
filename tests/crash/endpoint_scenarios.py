"""Points 16 to 19: an endpoint that hangs, one that was restored, a full disk, three brokers of which one is down."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import cast

from tests.crash.harness import FILES, ROWS, Work, holdfast, input_row, status
from tests.crash.kafka_work import KafkaWork
from tests.crash.processes import end, wait_until_stopped
from tests.crash.scenarios import Case, Scenario

SINKS = ("beside", "kafka-three")
TITLES = {
    16: "an endpoint never answers",
    17: "an endpoint was restored from an older copy",
    18: "the disk is full at a write of the log",
    19: "one of three brokers is down",
}
#: Beside SQLite: endpoints of which a test can make a copy and bring it back, and what committers keep.
RESTORED = (
    "write-ahead", "files", "postgres", "postgres-log", "postgres-two-phase", "cassandra", "kafka", "kafka-write-ahead",
)  # fmt: skip
#: How many writes of the log are tried; a checkpoint of two sinks takes about six.
WRITES = 12
#: Kilobytes that are left on the disk for a run, which needs more.
ROOM = (0, 24, 64)


# -- 16 -------------------------------------------------------------------------------------------------------------


def hung_endpoint(work: Work) -> None:
    """It takes rows and never answers: the stream, a table beside it, another pipeline and stop() go on; then it does.

    See tests.crash.failing_job.
    """
    work.module = "tests.crash.failing_job"
    work.run_clean(does="hangs")
    seen = work.seen()
    expected = [input_row(n) for n in work.sent()]
    assert sorted(work.received("orders")) == sorted(work.received("other")) == expected, work.log()
    assert seen["active"] and seen["status"]["code"] in (0, 1) and "folder" in seen["status"]["text"], seen
    assert seen["stop"]["took"] < 31, seen
    assert seen["other_started"] < 25, f"the other pipeline had to wait: {seen}"
    assert seen["stop"]["error"].startswith("UndeliveredError") and "'folder'" in seen["stop"]["error"], seen
    assert f"{FILES} checkpoints (0 to {FILES - 1}), {FILES * ROWS} rows" in seen["stop"]["error"], seen
    assert status(work).returncode != 0, "rows are owed"
    (work.folder / "endpoint" / "hang").unlink()
    work.module = Work.module
    work.run_clean()
    work.assert_clean()


# -- 17 -------------------------------------------------------------------------------------------------------------


def restored_endpoint(tries: int = 1) -> Scenario:
    """The endpoint is an older copy: refused by name; accepted by an operator, the pipeline goes on after the gap."""

    def scenario(work: Work) -> None:
        work.kill_when("batch.return=hang@1", lambda: work.is_complete(0))
        bring_back, first = work.copy_endpoint(), work.held()
        # A batch that was never committed to Spark is the first of the next run, and is written by nobody.
        work.kill_when("batch.return=hang@2", lambda: work.is_complete(1))
        both = work.held()
        missing = [rows - old for old, rows in zip(first, both, strict=True)]
        assert all(first) and all(missing), f"{first} {both}"
        bring_back()
        assert work.held() == first, "the copy is not what was copied"
        for _ in range(tries):
            work.crash()
            for text in ("RestoredEndpointError", "checkpoints 1 to 1 were committed there", "--accept-restored"):
                assert text in work.log(), f"{text}\n{work.log()}"
            assert work.held() == first, "a start that is refused changes nothing"
        assert status(work).returncode != 0
        location = str(work.folder / "checkpoint")
        for sink in sorted(work.sinks_of(1)):
            told = holdfast("resolve", location, "--sink", sink, "--accept-restored", "--yes")
            assert told.returncode == 0, told.stdout + told.stderr
        work.run_clean()
        work.assert_fired()
        work.assert_log_clean()
        for rows, gone in zip(work.held(), missing, strict=True):
            assert rows == Counter(work.rows_sent()) - gone, work.log()

    return scenario


# -- 18 -------------------------------------------------------------------------------------------------------------


def full_at_each_write(work: Work) -> None:
    """One write after the other fails, each in a run of its own; a run survives it or fails, and nothing is lost.

    Each run has one more file of rows to take, so that there is always enough to write.
    """
    for number in range(1, WRITES + 1):
        code = work.run(f"log.write=error@{number}", retry="5s")
        assert code == 0 or "log.write" in work.log(), f"write {number}: exit code {code}\n{work.log()}"
        assert code == 1 or number > 1, "the first write is the lineage, and nothing goes without it"
        work.add_input(work.checkpoints)
        work.checkpoints += 1
    work.run_clean()
    work.assert_clean()


def full_disk(work: Work) -> None:
    """A real one: a small file system, filled up; with room again the next run delivers all."""
    disk = work.folder / "checkpoint"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], check=True)
    try:
        ballast = disk / "ballast"
        for room in ROOM:
            free = os.statvfs(disk)
            ballast.write_bytes(b"x" * (free.f_bavail * free.f_frsize - room * 1024))
            work.crash(retry="3s", drain_timeout=5)
            assert "No space left" in work.log() or "disk is full" in work.log(), work.log()
            ballast.unlink()
        work.run_clean()
        work.assert_clean()
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


# -- 19 -------------------------------------------------------------------------------------------------------------


def one_broker_down(fault: str) -> Scenario:
    """A broker is killed while the driver sleeps, and stays away until the end: the query does not fail."""

    def scenario(given: Work) -> None:
        work = cast(KafkaWork, given)
        gone = work.cluster.brokers[1]
        driver = work.start(fault)
        try:
            wait_until_stopped(driver)
            gone.stop(kill=True)
            driver.send_signal(signal.SIGCONT)
            assert driver.wait(280) == 0, work.log()
        finally:
            end(driver)
            gone.start()
            work.cluster.wait()
        work.assert_clean()

    return scenario


def _cases() -> list[Case]:
    found: list[tuple[int, str, str, Callable[[Work], None], bool]] = [
        (16, "beside", "then it does", hung_endpoint, False),
        (17, "sqlite", "accepted", restored_endpoint(tries=2), True),
        *((17, sink, "accepted", restored_endpoint(), False) for sink in RESTORED),
        (18, "beside", "each write", full_at_each_write, False),
        (19, "kafka-three", "prepared", one_broker_down("decision=stop@2"), False),
        (19, "kafka-three", "decided", one_broker_down("decision=stop-after@2"), False),
    ]
    if os.geteuid() == 0 and Path("/bin/mount").exists():  # only root may mount a disk to fill
        found.append((18, "beside", "a real disk", full_disk, True))
    return [Case(point, TITLES[point], sink, way, scenario, always) for point, sink, way, scenario, always in found]


CASES = _cases()
