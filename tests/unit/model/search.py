"""Breadth first over all interleavings; the first broken invariant comes with the shortest trace to it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from holdfast.core.recovery import Moment

from . import kernel as k
from .two_phase import TwoPhase
from .world import HELD_BACK, LOST, OPEN, STOPPED, Bounds, World
from .write_ahead import WriteAhead


@dataclass(frozen=True)
class Result:
    """What a search found."""

    states: int
    ends: int
    seconds: float
    broken: str = ""
    trace: tuple[str, ...] = ()

    def __str__(self) -> str:
        text = f"{self.states:,} states, {self.ends:,} of them ends, {self.seconds:.1f} s"
        if not self.broken:
            return f"{text}: nothing broken"
        steps = "\n".join(f"  {number:2}. {step}" for number, step in enumerate(self.trace, 1))
        return f"{text}: {self.broken}\n{steps}"


class Checker:
    """A scenario's transitions and what must hold."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.sink = (WriteAhead if bounds.write_ahead else TwoPhase)(bounds)
        self.newest = bounds.generations - 1
        self.rows = {(c, s) for c in range(bounds.checkpoints) for s in range(bounds.subtasks)}

    def first(self) -> World:
        """The world before anything happened."""
        return self.bounds.first()

    def successors(self, world: World) -> Iterator[tuple[str, World]]:
        """Every step anything can take."""
        yield from self.sink.start(world)
        for i in range(len(world.drivers)):
            yield from self.sink.step(world, i)
        yield from self.sink.tasks(world)
        yield from self.sink.failures(world)
        yield from self.sink.environment(world)
        yield from self.sink.timer(world)
        yield from self.last_batch(world)

    def last_batch(self, world: World) -> Iterator[tuple[str, World]]:
        """Unless the source is quiet, one more batch comes, without rows, after all late tasks that ever come."""
        if self.bounds.quiet or world.idle or not self.at_rest(world):
            return
        driver = world.drivers[-1]._replace(agenda=(("moment", Moment.BATCH),))
        label = f"g{driver.generation + 1} begins a batch without rows"
        yield label, self.sink.put(world._replace(idle=True), self.newest, driver)

    def at_rest(self, world: World) -> bool:
        """Whether the newest driver has nothing left to do."""
        return len(world.drivers) == self.bounds.generations and not world.drivers[-1].agenda

    def broken(self, world: World) -> tuple[bool, str]:
        """Whether this is an end, and which invariant does not hold here."""
        if world.broken:
            return False, world.broken
        if len(world.drivers) < self.bounds.generations:
            return False, ""
        newest = world.drivers[-1]
        if newest.dead:
            return True, STOPPED
        if newest.agenda or (not self.bounds.quiet and not world.idle) or any(self.sink.timer(world, self.newest)):
            return False, ""
        return True, self.broken_at_end(world)

    def broken_at_end(self, world: World) -> str:
        """What must hold once the newest driver is at rest, wherever the older ones stopped."""
        if k.plan(self.bounds.kernel, world.entries, world.commits):
            return HELD_BACK
        if set(world.delivered) != self.rows:
            return LOST
        if not self.bounds.quiet and self.sink.left_open(world):
            return OPEN
        return ""


def search(scenario: Any, *, wanted: str | None = None, limit: int = 2_000_000) -> Result:
    """Visit every state; stop at the first that breaks an invariant.

    A rule that is off may break several: with `wanted`, the search goes on past the others.
    """
    began = time.perf_counter()
    first = scenario.first()
    parents: dict[Any, tuple[Any, str] | None] = {first: None}
    queue = deque([first])
    ends = 0
    while queue:
        state = queue.popleft()
        end, broken = scenario.broken(state)
        ends += end
        if broken and wanted in (None, broken):
            return Result(len(parents), ends, time.perf_counter() - began, broken, trace(parents, state))
        for label, after in scenario.successors(state):
            if after.broken and wanted not in (None, after.broken):
                after = after._replace(broken="")
            if after not in parents:
                parents[after] = (state, label)
                queue.append(after)
        if len(parents) > limit:
            raise RuntimeError(f"more than {limit:,} states: make the bounds smaller")
    return Result(len(parents), ends, time.perf_counter() - began)


def trace(parents: dict[Any, tuple[Any, str] | None], state: Any) -> tuple[str, ...]:
    """The steps that led here."""
    steps = []
    while (step := parents[state]) is not None:
        state, label = step
        steps.append(label)
    return tuple(reversed(steps))
