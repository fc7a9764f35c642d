"""Work folders whose pipelines go through `format("holdfast")`: the same input, endpoints and audits as elsewhere."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from tests.crash.harness import Work
from tests.crash.kafka_work import KafkaWork
from tests.crash.processes import Driver, end, wait_for
from tests.crash.stores_work import StoresWork


def beside(session: int) -> list[int]:
    """The processes of ours beside the drivers of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = path.read_text().rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(words[3]) == session and "holdfast.doors.beside" in command and words[0] not in "ZX":
            found.append(int(path.parent.name))
    return found


def end_all(driver: Driver) -> None:
    """Kill a driver with all that it has started, our process first."""
    for pid in beside(driver.pid):
        os.kill(pid, signal.SIGKILL)
    end(driver)


class DoorWork(Work):
    """See Work."""

    module = "tests.crash.door_job"
    #: the last one
    driver: Driver

    def start(self, fault: str = "", **spec: Any) -> Driver:
        """See Work."""
        self.driver = super().start(fault, **spec)
        return self.driver

    def assert_log_clean(self) -> None:
        """See Work; the process outlives its driver, until it has completed files and thrown away what nobody needs."""
        wait_for(lambda: not beside(self.driver.pid), "the process beside the driver ends", 90)
        wait_for(lambda: not list((self.log_folder / "wal").rglob("*.arrow")), "an empty log", 60)
        super().assert_log_clean()


class KafkaDoor(DoorWork, KafkaWork):
    """From Kafka to Kafka."""

    def lag(self) -> dict[int, int]:
        """Nothing to see: a data source is not told of groups, which is said in the log."""
        said = "".join(self.printed(run) for run in range(1, self.runs + 1))  # a run without rows says nothing
        assert "no consumer group gets its offsets" in said, self.log()
        return {}


class FilesDoor(DoorWork, StoresWork):
    """From files into files."""
