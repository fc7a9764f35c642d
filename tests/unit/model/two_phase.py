"""A sink that prepares in the endpoint: transactions with names, producers that fence each other, timeouts.

It behaves as Kafka does (facts.md): initialising a name aborts what is open under it, committing names the producer,
a repeated commit is answered by the mark, and an aborted or timed-out transaction stays gone.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.states import Event

from .drivers import Drivers
from .world import TWICE, UNDONE, Driver, Op, Row, Txn, World, Writer, digest


def deliver(world: World, rows: tuple[Row, ...]) -> World:
    """Rows become visible."""
    twice = any(row in world.delivered for row in rows)
    delivered = tuple(sorted((*world.delivered, *rows)))
    return world._replace(delivered=delivered, broken=TWICE if twice else world.broken)


class Tasks(Drivers):
    """What both kinds of sink share: tasks that report, are retried, fail or come late."""

    def prepare(self, world: World, name: str, writer: Writer, rows: tuple[Row, ...]) -> World:
        """What one task leaves at the endpoint or in the log."""
        raise NotImplementedError

    def tasks(self, world: World) -> Iterator[tuple[str, World]]:
        """Every task that has not run yet may run now, whether or not its driver still lives."""
        if world.idle:
            return
        for writer, rows in world.tasks:
            name = self.kernel.name(*writer)
            after = self.prepare(world._replace(tasks=world.tasks - {(writer, rows)}), name, writer, rows)
            waiting = self.waiting_for(world, writer)
            if waiting is None:
                yield f"late task {writer} prepares", after
                continue
            i, subtask = waiting
            driver = world.drivers[i]
            report = (subtask, (name, writer), digest(rows))
            mine = driver._replace(reports=tuple(sorted((*driver.reports, report))))
            yield f"task {writer} prepares", self.put(after, i, mine)
            if world.retries:
                again = (*writer[:3], writer[3] + 1)
                op = driver.agenda[0]
                swapped = tuple((s, again if w == writer else w) for s, w in op[3])
                mine = driver._replace(agenda=((*op[:3], swapped), *driver.agenda[1:]))
                lost = world._replace(tasks=world.tasks | {(again, rows)}, retries=world.retries - 1)
                yield f"executor of task {writer} is lost, Spark tries again", self.put(lost, i, mine)

    def waiting_for(self, world: World, writer: Writer) -> tuple[int, int] | None:
        """The driver, and its subtask, that waits for this attempt."""
        for i, driver in enumerate(world.drivers):
            if driver.agenda and driver.agenda[0][0] == "await":
                for subtask, wanted in driver.agenda[0][3]:
                    if wanted == writer:
                        return i, subtask
        return None

    def failures(self, world: World) -> Iterator[tuple[str, World]]:
        """A batch fails while its tasks run; those still queued come late."""
        if world.failures:
            for i, driver in enumerate(world.drivers):
                waits = driver.agenda and driver.agenda[0][0] == "await"
                if waits and driver.generation != self.bounds.generations - 1:
                    failed = world._replace(failures=world.failures - 1)
                    yield f"g{driver.generation + 1} batch fails", self.put(failed, i, self.failed(driver, Event.FAIL))


class TwoPhase(Tasks):
    """Transactions."""

    def prepare(self, world: World, name: str, writer: Writer, rows: tuple[Row, ...]) -> World:
        """Initialise the name, which aborts what is open under it, and leave a transaction open."""
        kept, broken = [], world.broken
        for txn in world.txns:
            if txn.name == name and not txn.committed:
                broken = UNDONE if world.is_promised((txn.name, txn.writer)) else broken
            else:
                kept.append(txn)
        return world._replace(txns=frozenset([*kept, Txn(name, writer, rows)]), broken=broken)

    def leftovers(self, world: World) -> Iterator[tuple[str, Writer]]:
        """Open transactions."""
        return ((t.name, t.writer) for t in world.txns if not t.committed)

    def undo(self, world: World, driver: Driver, data: tuple) -> World:
        """Abort it, if it is still open."""
        there = [t for t in world.txns if (t.name, t.writer) == data and not t.committed]
        if not there:
            return world
        broken = UNDONE if world.is_promised(data) else world.broken
        return world._replace(txns=world.txns - set(there), broken=broken)

    def commit_ops(self, checkpoint_id: int, work: tuple) -> tuple[Op, ...]:
        """Subtask by subtask, then the record."""
        return (*(("commit", checkpoint_id, c.subtask, c.data) for c in work), ("record", checkpoint_id))

    def do_commit(self, world: World, driver: Driver, checkpoint_id: int, subtask: int, data: tuple):
        """End the transaction, or learn that it is ended already, or gone."""
        wanted = self.kernel.identity(data)
        found = [t for t in world.txns if self.kernel.identity((t.name, t.writer)) == wanted]
        opened = [t for t in found if not t.committed]
        where = f"{checkpoint_id}/{subtask} {data[1]}"
        if opened:
            txn = opened[0]
            txns = world.txns - {txn} | {txn._replace(committed=True)}
            yield f"commits {where}", deliver(world._replace(txns=txns), txn.rows), driver
        elif found:
            yield f"finds {where} committed", world, driver
        else:
            lost = tuple(sorted({*driver.lost, (checkpoint_id, subtask)}))
            agenda = tuple(op for op in driver.agenda if op != ("record", checkpoint_id))
            yield f"finds {where} lost", world, driver._replace(lost=lost, agenda=agenda)

    def environment(self, world: World) -> Iterator[tuple[str, World]]:
        """The endpoint drops a transaction that was open too long."""
        if world.timeouts:
            for txn in world.txns:
                if not txn.committed:
                    left = world._replace(txns=world.txns - {txn}, timeouts=world.timeouts - 1)
                    yield f"transaction {txn.writer} times out", left

    def timer(self, world: World, only: int | None = None) -> Iterator[tuple[str, World]]:
        """Nothing lags here: a commit that fails stops the query."""
        return iter(())

    def left_open(self, world: World) -> bool:
        """Whether anything is open."""
        return any(not t.committed for t in world.txns)
