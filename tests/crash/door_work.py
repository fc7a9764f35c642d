"""Work folders whose pipelines go through `format("holdfast")`: the same input, endpoints and audits as elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from tests.crash.bucket_work import BucketWork
from tests.crash.harness import FAILED, Work
from tests.crash.kafka_work import MODES, KafkaWork
from tests.crash.processes import Driver, end, kill_all, state_of, wait_for
from tests.crash.stores_work import STORES, StoresWork


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
    kill_all(beside(driver.pid))
    end(driver)


class DoorWork(Work):
    """See Work.

    All but the tasks is done by the process beside the driver. Killed, it takes the query with it, and not the driver.
    Paused, it may wake up by itself: Spark ends workers that were idle for a minute, and the kernel continues what
    these leave.
    """

    module = "tests.crash.door_job"
    killed = FAILED
    last_words = "holdfast's process beside the driver has ended"

    def __init__(self, *arguments: Any) -> None:
        #: all so far
        self.drivers: list[Driver] = []
        super().__init__(*arguments)

    def start(self, fault: str = "", **spec: Any) -> Driver:
        """See Work."""
        driver = super().start(fault, **spec)
        self.drivers.append(driver)
        return driver

    def run(self, fault: str = "", **spec: Any) -> int:
        """See Work; no fault kills the driver itself."""
        code = super().run(fault, **spec)
        assert code in (0, FAILED), f"{fault}: exit code {code}\n{self.log()}"
        return code

    def wait_paused(self, driver: Driver) -> int:
        """See Work."""
        wait_for(lambda: self.fired() or driver.poll() is not None, "the fault")
        assert driver.poll() is None, self.log()
        (process,) = beside(driver.pid)
        wait_for(lambda: state_of(process) == "T", "the pause")
        return process

    def left(self) -> list[int]:
        """The processes beside drivers that have not ended yet."""
        return [pid for driver in self.drivers for pid in beside(driver.pid)]

    def end_left(self) -> None:
        """Kill them: of a case that failed, one may wait for its endpoint, or be about to write its last words."""
        kill_all(self.left())
        wait_for(lambda: not self.left(), "the processes beside the drivers are gone", 30)

    def assert_log_clean(self) -> None:
        """See Work; the process outlives its driver, until it has completed files and thrown away what nobody needs."""
        wait_for(lambda: not self.left(), "the processes beside the drivers end", 90)
        wait_for(lambda: not list((self.log_folder / "wal").rglob("*.arrow")), "an empty log", 60)
        super().assert_log_clean()


class KafkaDoor(DoorWork, KafkaWork):
    """From Kafka to Kafka."""

    def lag(self) -> dict[int, int]:
        """Nothing to see: a data source is not told of groups, which is said in the log."""
        said = "".join(self.printed(run) for run in range(1, self.runs + 1))  # a run without rows says nothing
        assert "no consumer group gets its offsets" in said, self.log()
        return {}


class BucketDoor(DoorWork, BucketWork):
    """With the checkpoint in a bucket. No data source is told what Spark was: our part goes by the environment."""

    cold = True


class StoresDoor(DoorWork, StoresWork):
    """From files into stores."""


@contextmanager
def door_work(folder: Path, sink: str, server: Callable[[str], Any]) -> Iterator[DoorWork]:
    """A folder for a case; nothing that it started is left."""
    with ExitStack() as stack:
        if sink in MODES:
            work: DoorWork = stack.enter_context(closing(KafkaDoor(folder, sink, server("kafka"))))
        elif sink in STORES:
            work = stack.enter_context(closing(StoresDoor(folder, sink, server)))
        else:
            work = DoorWork(folder, sink)
        stack.callback(work.end_left)
        yield work
