"""A driver: the real Coordinator on the real CheckpointLog, called as holdfast.spark calls it; and an operator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.checkpoint import orders, resolve, stuck
from holdfast.checkpoint.again import order_again
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.delivery import Delivery
from holdfast.checkpoint.log import ACCEPT_RESTORED, CheckpointLog
from holdfast.checkpoint.reports import GIVE_UP
from holdfast.core.retry import Retry
from holdfast.errors import CommitError, HoldfastError

from .scheduler import Process, Scheduler
from .spark import ModelBatch, Spark, Tasks, position

if TYPE_CHECKING:
    from .world import World

PIPELINE = "model"
RETRY = Retry(for_=12.0, first_wait=1.0, longest_wait=8.0)
#: seconds for which a driver stays when the input is at its end: long enough for the sweep of a quiet query
QUIET = 25.0
#: an operator who gives rows up and has them sent again
SEND_AGAIN = "send-again"
WHO = {"by": "model", "host": "here", "at": 0}


class ModelLoops:
    """Each delivery loop is an actor of the driver's process; implements loops.Loops."""

    def __init__(self, scheduler: Scheduler, process: Process) -> None:
        self._scheduler, self._process = scheduler, process
        self._woken: dict[str, bool] = {}
        self._over: dict[str, bool] = {}
        self._stopping = False

    def start(self, deliveries: Sequence[Delivery], name: str) -> None:
        for rank, delivery in enumerate(deliveries):
            self._spawn(delivery.sink.name, rank, [delivery])

    def _spawn(self, sink: str, rank: int, deliveries: Sequence[Delivery]) -> None:
        self._woken[sink], self._over[sink] = False, False

        def body() -> None:
            self._run(sink, deliveries)
            self._over[sink] = True

        self._scheduler.spawn(f"{self._process.name}.{sink}", self._process, 20 + rank, body)

    def _run(self, sink: str, deliveries: Sequence[Delivery]) -> None:
        while not self._stopping:
            self._woken[sink] = False
            waits = []
            for delivery in deliveries:
                try:
                    waits.append(delivery.step())
                except Exception as error:  # noqa: BLE001  as in loops.Threads
                    delivery.failure = CommitError(f"the delivery loop of sink {sink!r} failed: {error!r}")
                    delivery.failure.__cause__ = error
                    return
                if waits[-1] == 0.0:
                    break
            if 0.0 not in waits:
                self._scheduler.wait(lambda: self._woken[sink] or self._stopping, self._rest(waits))

    def _rest(self, waits: Sequence[float | None]) -> float | None:
        return min((wait for wait in waits if wait is not None), default=None)

    def wake(self) -> None:
        for sink in self._woken:
            self._woken[sink] = True

    def wait(self, condition: Callable[[], bool], timeout: float | None = None) -> bool:
        return self._scheduler.wait(condition, timeout)

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)

    def call(self, sink: str, do: Callable[[], None], timeout: float, over: Callable[[], bool]) -> bool:
        do()
        return True

    def stop(self, timeout: float) -> list[str]:
        self._stopping = True
        self._scheduler.wait(lambda: all(self._over.values()), timeout)
        return [sink for sink, over in self._over.items() if not over]


class Driver:
    """One run of the query."""

    def __init__(self, world: World, number: int, name: str, *, late: bool = False) -> None:
        self.world, self.number = world, number
        self.process = Process(name)
        world.processes.append(self.process)
        self.tasks = Tasks(self)
        self.coordinator: Coordinator | None = None
        self.log: CheckpointLog | None = None
        #: what the user was told; None when the query ended well, or its process died
        self.error: BaseException | None = None
        self.ended_well = False
        self.started = False
        world.drivers.append(self)
        actor = world.scheduler.spawn(name, self.process, 30, self._main, late=late)
        if number == 1 and world.setup.between:
            first = world.drivers[0]
            actor.waiting = lambda: first.over

    @property
    def over(self) -> bool:
        """Whether it has ended, by itself or not."""
        return self.process.dead or self.ended_well or self.error is not None

    def _main(self) -> None:
        if self.world.over_already(self):
            return
        self.started = True
        self.world.at_start(self)
        try:
            self._query()
            self.ended_well = True
            self.world.ended(self)
        except (HoldfastError, OSError) as error:
            if self.coordinator is not None:
                try:
                    self.coordinator.close(5.0, sweep=True)
                except (HoldfastError, OSError) as problem:
                    error.add_note(str(problem))
            self.error = error
            self.world.failed(self, error)

    def _query(self) -> None:
        world = self.world
        view = world.view(world.store, self.process)
        log = self.log = CheckpointLog(view, PIPELINE, retain=world.setup.retain)
        loops = world.rules.loops(world.scheduler, self.process)
        sinks = world.sinks(self)
        coordinator = self.coordinator = Coordinator(
            log,
            sinks,
            self.tasks,
            take_over=world.setup.take_over and self.number > 0,
            retry=RETRY,
            drain_timeout=60.0,
            loops=loops,
            clock=lambda: world.scheduler.now,
        )
        coordinator.start(lambda: position(world.engine))
        world.has_started(self, log, sinks)
        spark = Spark(world.engine, world.view(world.engine, self.process))
        while (number := spark.plan(world.batches)) is not None:
            world.advance_offsets(coordinator)
            coordinator.run(number, ModelBatch(self, number))
            spark.commit(number)
            world.after_batch()
        # The input is at its end, and the query is quiet for a while.
        undecided = world.undecided()
        world.scheduler.sleep(QUIET)
        coordinator.tick()
        world.swept(self, undecided)
        world.advance_offsets(coordinator)
        self._end(coordinator)

    def _end(self, coordinator: Coordinator) -> None:
        """As holdfast.spark.running does."""
        if coordinator.failure is not None:
            raise coordinator.failure
        if not coordinator.drain(60.0):
            left = coordinator.undelivered()
            if left is not None:
                raise left
        if coordinator.failure is not None:
            raise coordinator.failure
        coordinator.finish(5.0)
        coordinator.close(5.0)
        self.world.advance_offsets(coordinator)


class Operator:
    """Looks at what is stuck, and orders a way out: a generation of its own."""

    def __init__(self, world: World, how: str, *, late: bool = True) -> None:
        self.world, self.how = world, how
        self.process = Process("op")
        world.processes.append(self.process)
        #: (checkpoint, rows) of each order
        self.orders: list[dict[str, Any]] = []
        self.over = False
        # What is sent again needs a driver after the order, which may die over it.
        rank = 29 if how == SEND_AGAIN else 40
        world.scheduler.spawn("op", self.process, rank, self._main, late=late)

    def _main(self) -> None:
        try:
            self._resolve()
        except (HoldfastError, OSError) as error:
            self.world.refused.append(error)
        self.over = True

    def _resolve(self) -> None:
        world = self.world
        view = world.view(world.store, self.process)
        reader = CheckpointLog(view, PIPELINE)
        reader.load()
        if self.how == ACCEPT_RESTORED:
            known = reader.committed().get("wa")
            if known is None:
                raise CommitError("nothing is known to be committed: nothing to accept")
            missing = {"sink": "wa", "through": known.checkpoint_id, "first": None, "rows": None}
            self.orders.append(resolve.accept_restored("model:", PIPELINE, missing, WHO))
            return
        if self.how == SEND_AGAIN:
            self._send_again(reader)
            return
        orders.finish(reader, ("tx", "wa"))
        meant = stuck.choose(reader)
        for finding in meant:
            resolve.check_way("model:", finding, self.how)
        self.orders += resolve.record_orders("model:", PIPELINE, meant, self.how, WHO)

    def _send_again(self, reader: CheckpointLog) -> None:
        """Give up what the write-ahead sink owes, then have the rows of the reports sent with the next decision."""
        meant = [finding for commit, finding in stuck.owed_findings(reader).items() if commit.sink == "wa"]
        self.orders += resolve.record_orders("model:", PIPELINE, meant, GIVE_UP, WHO)
        for report in self.orders:
            order_again(self.world.view(self.world.store, self.process), report, WHO)
            self.world.sent_again.add(int(report["checkpoint_id"]))
