"""The demo's supervisor: writes orders, kills drivers, takes the endpoint down, and waits for the end."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.checkpoint.status import read_status
from holdfast.demo.audit import count_database, count_log_files
from holdfast.demo.driver import Driver
from holdfast.demo.endpoint import Endpoint
from holdfast.demo.files import Folder, make_orders, write_orders
from holdfast.demo.plan import Kill, Plan
from holdfast.errors import ConfigError

#: seconds between two order files, between two looks at the driver, between two looks at the endpoints
FILE_EVERY, LOOK_EVERY, COUNT_EVERY = 0.2, 0.01, 0.5
#: a driver that makes no progress for so long, because it has all its rows, is killed anyway
PATIENCE = 25.0
#: the endpoint stays down until so many checkpoints wait for it, or so many posts were refused, or for so many seconds
BACKLOG, REFUSALS, LONGEST_OUTAGE = 2, 4, 60.0


@dataclass(frozen=True)
class Killed:
    """One kill that happened."""

    pid: int
    moment: str
    #: seconds since the demo started
    at: float


@dataclass(frozen=True)
class Progress:
    """What the live table shows."""

    seconds: float
    rows: int
    rows_in: int
    sqlite: int
    endpoint: int
    endpoint_up: bool
    pending: int
    most_pending: int
    kills: int
    driver: str

    @property
    def delivered(self) -> int:
        """Rows that are at both endpoints, at least."""
        return min(self.sqlite, self.endpoint)


class Demo:
    """One run; `run` returns when everything is delivered or the deadline has passed."""

    def __init__(self, folder: Folder, plan: Plan, show: Callable[[Progress], None]) -> None:
        self._folder, self._plan, self._show = folder, plan, show
        self._orders = make_orders(plan.rows, plan.seed)
        self._written = self._files = 0
        self._sqlite = self._pending = self._most_pending = self._log_files = 0
        self._next_file = self._next_count = 0.0
        self._due: float | None = None
        self._late = False
        self._down_since = self._up_since = 0.0
        self._begin = time.monotonic()
        self.deadline = 90 + 40 * (len(plan.kills) + 1) + plan.rows / 1000
        self.killed: list[Killed] = []
        self.endpoint = Endpoint(folder.endpoint)
        self.driver: Driver | None = None

    def run(self) -> bool:
        """Whether every row arrived in time; the audit has the last word."""
        for kill in self._plan.kills:
            self._run_until_killed(kill)
        driver = self._spawn()
        while not self._finished():
            driver.check()
            driver.decisions()
            if self._step():
                return False
        driver.finish()
        return True

    def close(self) -> None:
        """End what still runs."""
        if self.driver is not None:
            self.driver.kill()
        self.endpoint.close()

    @property
    def progress(self) -> Progress:
        """How far it is."""
        driver = "starting" if self.driver is None or self.driver.progressed is None else "running"
        return Progress(
            self._elapsed, self._plan.rows, self._written, self._sqlite, self.endpoint.rows, self.endpoint.up,
            self._pending, self._most_pending, len(self.killed), driver,
        )  # fmt: skip

    # -- killing ----------------------------------------------------------------------------------------------------

    def _run_until_killed(self, kill: Kill) -> None:
        driver = self._spawn()
        self._due, self._late = None, False
        while not driver.killed:
            if self._is_time(driver, kill):
                driver.kill()
            driver.check()
            if self._step():
                return
        self.endpoint.ambush(None)
        driver.kill()  # waits until a kill by the endpoint's thread is done
        self.killed.append(Killed(driver.pid, "late" if self._late else kill.moment, round(self._elapsed, 2)))

    def _is_time(self, driver: Driver, kill: Kill) -> bool:
        now = time.monotonic()
        if kill.moment == "start":
            return now >= driver.started + kill.delay
        decisions = driver.decisions()
        if decisions is None or driver.progressed is None:
            return False
        if decisions >= kill.decisions:
            if kill.moment == "send":
                self.endpoint.ambush(driver.kill)
            else:
                self._due = self._due or now + kill.delay
        if self._due is not None and now >= self._due:
            return True
        # A driver with nothing left to do never reaches its moment; during the outage nothing can be sent.
        since = max(driver.progressed, self._up_since)
        self._late = now > since + PATIENCE and (self.endpoint.up or kill.moment != "send")
        return self._late

    def _spawn(self) -> Driver:
        self.driver = Driver(self._folder, self.endpoint.port)
        return self.driver

    # -- time passes ------------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        """A hundredth of a second of the world; True when the deadline has passed."""
        time.sleep(LOOK_EVERY)
        now = time.monotonic()
        if now >= self._next_file:
            self._next_file = now + FILE_EVERY
            self._write_file()
        if now >= self._next_count:
            self._next_count = now + COUNT_EVERY
            self._count()
            self._show(self.progress)
        return self._elapsed > self.deadline

    def _write_file(self) -> None:
        end = min(self._written + self._plan.rows_per_file, self._plan.allowance(len(self.killed)))
        if end > self._written:
            write_orders(self._folder, self._files, self._orders[self._written : end])
            self._written, self._files = end, self._files + 1

    def _count(self) -> None:
        self._sqlite = count_database(self._folder)
        self._log_files = count_log_files(self._folder)
        try:
            pending = read_status(str(self._folder.checkpoint)).pending
        except ConfigError:
            pending = ()  # the first driver has not claimed it yet
        self._pending = max((sink.checkpoints for sink in pending), default=0)
        self._most_pending = max(self._pending, self._most_pending)
        self._switch_endpoint()

    def _switch_endpoint(self) -> None:
        now, (down, up) = time.monotonic(), self._plan.outage
        if not self._down_since and self._written >= down:
            self.endpoint.up, self._down_since = False, now
        elif not self.endpoint.up and self._written >= up:
            refused = self.endpoint.refused
            felt = refused >= REFUSALS or (refused > 0 and self._pending >= BACKLOG)
            felt = felt or now > self._down_since + LONGEST_OUTAGE
            self.endpoint.up, self._up_since = felt, now if felt else 0.0

    def _finished(self) -> bool:
        everything = self._written == self._plan.rows <= min(self._sqlite, self.endpoint.rows)
        return everything and self._up_since > 0 and not self._pending and not self._log_files

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._begin
