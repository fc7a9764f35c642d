"""A sink that seals rows in the log and publishes them when they are decided; it may lag.

The endpoint holds the mark in the same transaction as the rows (P6): a writer is known by its subtask, initialising
it fences every older one, and a send of a fenced writer fails.
"""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.core.recovery import Moment, PublishStep

from . import kernel as k
from .two_phase import Tasks, deliver
from .world import DEAD, LOST, UNDONE, Driver, File, Op, Row, World, Writer


def put(pairs: tuple[tuple[int, int], ...], key: int, value: int) -> tuple[tuple[int, int], ...]:
    """A mapping kept as sorted pairs, with one of them set."""
    return tuple(sorted((dict(pairs) | {key: value}).items()))


class WriteAhead(Tasks):
    """Files in the log."""

    def prepare(self, world: World, name: str, writer: Writer, rows: tuple[Row, ...]) -> World:
        """Seal a file. A name that says too little overwrites another's, and the record points to other rows then."""
        kept = [f for f in world.files if f.name != name]
        broken = world.broken
        for file in world.files:
            if file.name == name and self.needed(world, file):
                broken = UNDONE
        return world._replace(files=frozenset([*kept, File(name, writer, rows)]), broken=broken)

    def needed(self, world: World, file: File) -> bool:
        """Whether a record names this file and its rows are not at the endpoint yet."""
        return world.is_promised((file.name, file.writer)) and not set(file.rows) <= set(world.delivered)

    def leftovers(self, world: World) -> Iterator[tuple[str, Writer]]:
        """Every file in the log."""
        return ((f.name, f.writer) for f in world.files)

    def undo(self, world: World, driver: Driver, data: tuple) -> World:
        """Delete it, if it is still there."""
        there = [f for f in world.files if (f.name, f.writer) == data]
        broken = UNDONE if any(self.needed(world, f) for f in there) else world.broken
        return world._replace(files=world.files - set(there), broken=broken)

    def commit_ops(self, checkpoint_id: int, work: tuple) -> tuple[Op, ...]:
        """Subtask by subtask in the order of PUBLISH, then the record; then the files go."""
        publish = tuple(("publish", checkpoint_id, c.subtask, c.data, self.kernel.publish) for c in work)
        discard = tuple(("undo", c.data) for c in work)
        return (*publish, ("record", checkpoint_id), *discard)

    def do_publish(self, world: World, driver: Driver, n: int, subtask: int, data: tuple, steps: tuple):
        """One of the steps of publishing."""
        step, *rest = steps
        follow = driver._replace(agenda=(("publish", n, subtask, data, tuple(rest)), *driver.agenda))
        if step is PublishStep.INITIALISE:
            writers = put(world.writers, subtask, driver.generation)
            yield f"initialises writer {subtask}", world._replace(writers=writers), follow
        elif step is PublishStep.READ_MARK:
            mark = dict(world.marks).get(subtask, -1)
            yield f"reads mark {mark} of writer {subtask}", world, driver if mark >= n else follow
        else:
            yield from self.send(world, driver, n, subtask, data)

    def send(self, world: World, driver: Driver, n: int, subtask: int, data: tuple):
        """Rows and mark in one transaction; or refused, and then this and all later checkpoints wait."""
        later = driver._replace(agenda=tuple(op for op in driver.agenda if op[0] not in ("publish", "record", "undo")))
        if dict(world.writers).get(subtask) != driver.generation:
            # An older driver that wakes up can do this to a newer one, so it must not stop for it: try again later.
            yield f"is fenced as writer {subtask}", world, later
            return
        rows = [f.rows for f in world.files if f.name == data[0]]
        if not rows:
            yield f"finds file {data[1]} missing", world._replace(broken=LOST), driver._replace(agenda=DEAD)
            return
        marked = world._replace(marks=put(world.marks, subtask, n))
        yield f"sends {n}/{subtask} {data[1]}", deliver(marked, rows[0]), driver
        if world.refusals:
            yield f"send of {n}/{subtask} is refused", world._replace(refusals=world.refusals - 1), later

    def environment(self, world: World) -> Iterator[tuple[str, World]]:
        """Nothing times out."""
        return iter(())

    def timer(self, world: World, only: int | None = None) -> Iterator[tuple[str, World]]:
        """Deliver what lags while the driver waits for tasks, or for a batch that never comes (rule 7)."""
        if not self.kernel.steps_at(Moment.TIMER):
            return
        for i, driver in enumerate(world.drivers):
            quiet = not driver.agenda or driver.agenda[0][0] == "await"
            if only in (None, i) and quiet and k.plan(self.kernel, driver.entries, driver.commits):
                if not self.kernel.may_decide(driver.generation, world.generations):
                    yield f"g{driver.generation + 1} timer: fenced", self.put(world, i, driver._replace(agenda=DEAD))
                    continue
                mine = driver._replace(agenda=(("moment", Moment.TIMER), *driver.agenda))
                yield f"g{driver.generation + 1} timer", self.put(world, i, mine)

    def left_open(self, world: World) -> bool:
        """Whether a file is left that nobody needs."""
        return bool(world.files)
