"""Running one execution: the model's threads, storage and ids in place of the real ones, from nothing to the checks."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

from holdfast.checkpoint import log as log_module
from holdfast.checkpoint import slots
from holdfast.checkpoint.log import ACCEPT_RESTORED
from holdfast.errors import LineageError, LostError, UndeliveredError

from .drivers import Driver, Operator
from .locks import Lock
from .memory import SerialPool
from .rules import ALL, Rules
from .scheduler import Alternative, Pruned, Scheduler, Stuck
from .world import HELD_BACK, NO_WAY_OUT, STUCK, Broken, Setup, World

_world: list[World] = []


@dataclass
class Result:
    """How an execution ended."""

    #: what is broken, and how
    violations: dict[str, str] = field(default_factory=dict)
    schedule: dict[int, Alternative] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    points: list[Any] = field(default_factory=list)
    pruned: bool = False
    steps: int = 0

    def __str__(self) -> str:
        trace = "\n  ".join(self.told) or "no deviation"
        broken = "; ".join(f"{name}: {how}" for name, how in self.violations.items()) or "nothing is broken"
        return f"{broken}\n  {trace}\n  schedule = {self.schedule}"


@contextmanager
def installed() -> Iterator[None]:
    """Put the model's threads, storage and ids in the place of the real ones."""

    def scheduler() -> Scheduler:
        return _world[-1].scheduler

    threads = SimpleNamespace(Lock=lambda: Lock(scheduler), RLock=lambda: Lock(scheduler, again=True))
    logger = logging.getLogger("holdfast")
    disabled, logger.disabled = logger.disabled, True
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if not name.startswith(("holdfast.checkpoint.", "holdfast.sinks.")) or name == "holdfast.checkpoint.loops":
                continue
            if hasattr(module, "threading"):
                stack.enter_context(mock.patch.object(module, "threading", threads))
            if hasattr(module, "open_storage"):
                stack.enter_context(mock.patch.object(module, "open_storage", lambda at: _world[-1].open_storage(at)))
        stack.enter_context(mock.patch.object(log_module, "ThreadPoolExecutor", SerialPool))
        stack.enter_context(mock.patch.object(slots, "SHARD", 1))  # from the second on, a folder for each generation
        stack.enter_context(mock.patch("uuid.uuid4", lambda: _world[-1].unique()))
        try:
            yield
        finally:
            logger.disabled = disabled


def execute(
    setup: Setup,
    rules: Rules = ALL,
    schedule: dict[int, Alternative] | None = None,
    *,
    choose: Any = None,
    seen: Any = None,
) -> Result:
    """One execution, from nothing to the checks at its end."""
    scheduler = Scheduler(dict(schedule or {}), choose=choose, seen=seen)
    world = World(setup, rules, scheduler)
    _world.append(world)
    result = Result(schedule=scheduler.schedule, points=scheduler.points)
    try:
        _run(world)
        world.check()
    except Broken as broken:
        world.fail(broken.violation, broken.detail)
    except Stuck as stuck:
        world.fail(STUCK, str(stuck))
    except Pruned:
        result.pruned = True
    except Noticed:
        pass
    finally:
        scheduler.close()
        _world.pop()
    result.told, result.steps, result.violations = scheduler.told, scheduler._count, world.broken
    return result


def _run(world: World) -> None:
    setup, scheduler = world.setup, world.scheduler
    Driver(world, 0, "d1")
    Driver(world, 1, "d2", late=True)
    if setup.operator and setup.operator != ACCEPT_RESTORED:  # that one comes when a start was refused
        world.operator = Operator(world, setup.operator)
    scheduler.run()
    scheduler.calm = True
    noticed = [d.error for d in world.drivers if isinstance(d.error, LineageError)]
    if setup.between and noticed and not setup.take_over:
        if setup.operator != ACCEPT_RESTORED:
            raise Noticed
        world.operator = Operator(world, setup.operator, late=False)
        scheduler.run()
    for number in range(2, 5):
        last = Driver(world, number, f"d{number + 1}")
        scheduler.run()
        if last.ended_well:
            return
        if setup.between and isinstance(last.error, LineageError):
            if setup.operator != ACCEPT_RESTORED:
                raise Noticed
            world.operator = Operator(world, setup.operator, late=False)
            scheduler.run()
        if isinstance(last.error, LostError) and setup.operator:
            world.operator = Operator(world, setup.operator, late=False)
            scheduler.run()
            if not world.operator.orders:
                raise Broken(NO_WAY_OUT, f"{last.error}; the operator was told: {world.refused[-1:]}")
    if isinstance(last.error, UndeliveredError):
        raise Broken(HELD_BACK, str(last.error))
    raise Broken(STUCK, f"clean restarts fail: {type(last.error).__name__}: {last.error}")


class Noticed(Exception):
    """The start was refused, as it must be."""
