"""Spark, as far as the protocol can see it: planned and committed batches, replays, tasks on executors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from holdfast.checkpoint.ports import EnginePosition, Run, SubtaskReport
from holdfast.core.repair import Replayed
from holdfast.errors import EngineError
from holdfast.sinks.subtask import digest_partition, make_task, write_subtask

from .scheduler import Process
from .store import Store, View

if TYPE_CHECKING:
    from .drivers import Driver

SCHEMA = pa.schema([("id", pa.int64())])


@cache
def record_batch(rows: tuple[int, ...]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(rows, pa.int64())], schema=SCHEMA)


@cache
def digest_of(subtask: int, rows: tuple[int, ...]) -> Replayed | None:
    return digest_partition(subtask, [record_batch(rows)] if rows else [])


class Spark:
    """The engine's own checkpoint: offsets/N when a batch is planned, commits/N when it is over."""

    def __init__(self, store: Store, view: View) -> None:
        self._store, self._view = store, view
        planned, committed = self.position_now()
        self._next = (planned or 0) if planned != committed else 0 if planned is None else planned + 1

    def position_now(self) -> tuple[int | None, int | None]:
        return tuple(
            max((int(n) for n in self._store.names(folder)), default=None) for folder in ("offsets", "commits")
        )  # type: ignore[return-value]

    def plan(self, batches: int) -> int | None:
        """The next batch, or the one that has to be replayed; None when the input is at its end."""
        number = self._next
        if number >= batches:
            return None
        if f"offsets/{number}" not in self._store.files and not self._view.create(f"offsets/{number}", b"{"):
            raise EngineError(f"Spark: another query has planned batch {number}")
        return number

    def commit(self, number: int) -> None:
        """The batch function has returned."""
        if not self._view.create(f"commits/{number}", b"{"):
            raise EngineError(f"Spark: another query has committed batch {number}")
        self._next = number + 1


def position(store: Store) -> EnginePosition:
    """What a start reads, after the fence."""
    planned, committed = (max((int(n) for n in store.names(folder)), default=None) for folder in ("offsets", "commits"))
    return EnginePosition(planned, committed)


class Tasks:
    """Functions of one driver on executors: each is a process of its own, which may outlive the driver."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._started = 0

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return self.run([lambda attempt, item=item: function(item) for item in items], "send")

    def run(self, functions: Sequence[Callable[[int], Any]], what: str) -> list[Any]:
        """All of them side by side; one whose executor dies is tried again, an exception of one goes up at once."""
        scheduler = self._driver.world.scheduler
        answers: dict[int, Any] = {}
        errors: list[BaseException] = []
        processes: dict[int, Process] = {}

        def start(number: int) -> None:
            attempt, self._started = self._started, self._started + 1
            name = f"{self._driver.process.name}.{what}{attempt}"
            process = processes[number] = Process(name, self._driver.process)

            def body() -> None:
                try:
                    answers[number] = functions[number](attempt)
                except Exception as error:  # noqa: BLE001  goes up in the driver
                    errors.append(error)

            scheduler.spawn(name, process, 10 + number, body)

        for number in range(len(functions)):
            start(number)
        while True:
            scheduler.wait(
                lambda: bool(errors) or len(answers) == len(functions) or any(p.dead for p in processes.values())
            )
            scheduler.join(self._driver.process, processes.values())
            if errors:
                raise errors[0]
            if len(answers) == len(functions):
                return [answers[number] for number in range(len(functions))]
            for number, process in list(processes.items()):
                if process.dead:
                    start(number)


class ModelBatch:
    """A micro-batch: the same rows each time it is evaluated, but split as it pleases; implements ports.Batch."""

    def __init__(self, driver: Driver, number: int) -> None:
        self._driver, self._number = driver, number

    def partitions(self) -> list[tuple[int, ...]]:
        """Two partitions, whose indexes move from run to run; one in the third."""
        world, generation = self._driver.world, self._driver.number
        first, second = world.rows_of(self._number, mended=generation > 0)
        if world.setup.differs:
            world.evaluations += 1
            first = tuple(row + 1000 * world.evaluations for row in first)
        split = [first, second] if generation % 3 == 0 else [second, first] if generation % 3 == 1 else [first + second]
        return [part for part in split if part]

    def write(
        self,
        run: Run,
        sinks: Sequence[Any],
        checkpoint_id: int,
        timestamp: int,
        *,
        only: Collection[int] | None = None,
        repair: int = 0,
        careful: bool = False,
    ) -> list[SubtaskReport]:
        parts = self.partitions()

        def task(subtask: int, attempt: int) -> SubtaskReport:
            tasks = [make_task(run, s.name, checkpoint_id, subtask, attempt, timestamp, repair) for s in sinks]
            return write_subtask(sinks, tasks, [record_batch(parts[subtask])], careful=careful)

        chosen = [n for n in range(len(parts)) if only is None or n in only]
        return self._driver.tasks.run([lambda attempt, n=n: task(n, attempt) for n in chosen], "task")

    def digests(self, sink: str) -> list[Replayed]:
        found = [digest_of(n, rows) for n, rows in enumerate(self.partitions())]
        return [replayed for replayed in found if replayed is not None]

    def drain(self) -> None:
        """Spark's state and watermark are no part of the model."""
