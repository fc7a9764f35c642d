"""Executions with other choices: all within bounds, depth first, or at random from a seed."""

from __future__ import annotations

import random
import time
from collections.abc import Hashable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from unittest import mock

from .execution import Result, execute, installed
from .rules import ALL, Rules
from .scheduler import Alternative
from .world import Setup

SWITCH = "switch"


@dataclass(frozen=True)
class Bounds:
    """How far from the default executions go: a switch of actors is a preemption, all else is a fault."""

    deviations: int = 1
    preemptions: int = 2
    faults: int = 2
    #: only these kinds; all when empty
    kinds: frozenset[str] = frozenset()
    #: only these actors are switched to (by prefix); all when empty
    towards: tuple[str, ...] = ()
    #: only at points whose text begins so; all when empty
    at: tuple[str, ...] = ()

    def allows(self, schedule: dict[int, Alternative], what: str, alternative: Alternative) -> bool:
        """Whether this deviation may be added."""
        switches = sum(a[0] == SWITCH for a in schedule.values())
        few = switches < self.preemptions if alternative[0] == SWITCH else len(schedule) - switches < self.faults
        return few and self.permits(what, alternative)

    def permits(self, what: str, alternative: Alternative) -> bool:
        """Whether it is of a kind, and at a place, that is explored."""
        kind = alternative[0]
        if self.kinds and kind not in self.kinds:
            return False
        if kind == SWITCH and self.towards and not alternative[1].startswith(self.towards):
            return False
        return not self.at or what.startswith(self.at)


#: every single deviation
ONE = Bounds()


@dataclass
class Report:
    """What an exploration saw."""

    executions: int = 0
    pruned: int = 0
    points: int = 0
    seconds: float = 0.0
    whole: bool = True
    found: Result | None = None
    violations: dict[str, Result] = field(default_factory=dict)

    def __str__(self) -> str:
        how = "" if self.whole else " (not all: out of time)"
        text = f"{self.executions} executions, {self.pruned} cut short, {self.points} points, {self.seconds:.1f} s{how}"
        return text if self.found is None else f"{text}\n{self.found}"


def explore(
    setup: Setup, rules: Rules = ALL, bounds: Bounds = ONE, *, wanted: str | None = None, seconds: float = 1e9
) -> Report:
    """Every execution within the bounds, fewest deviations first; ends at the first violation (of the wanted name)."""
    report = Report()
    began = time.monotonic()
    known: dict[Hashable, int] = {}
    frontier: list[dict[int, Alternative]] = [{}]
    with ExitStack() as stack:
        stack.enter_context(installed())
        for target, name, value in rules.patches:
            stack.enter_context(mock.patch.object(target, name, value))
        for depth in range(bounds.deviations + 1):
            following: list[dict[int, Alternative]] = []
            for schedule in frontier:
                left = bounds.deviations - depth

                def seen(number: int, key: Hashable, left: int = left) -> bool:
                    if known.get(key, -1) >= left:
                        return True
                    known[key] = left
                    return False

                result = execute(setup, rules, schedule, seen=seen)
                report.executions += 1
                report.pruned += result.pruned
                report.points += result.steps
                for violation in result.violations:
                    report.violations.setdefault(violation, result)
                if result.violations and (wanted is None or wanted in result.violations):
                    report.found = result
                    report.seconds = time.monotonic() - began
                    return report
                if time.monotonic() - began > seconds:
                    report.whole = False
                    report.seconds = time.monotonic() - began
                    return report
                if left:
                    following += list(_children(schedule, result, bounds))
            frontier = following
    report.seconds = time.monotonic() - began
    return report


def _children(schedule: dict[int, Alternative], result: Result, bounds: Bounds) -> Iterator[dict[int, Alternative]]:
    for point in result.points:
        for alternative in point.alternatives:
            if bounds.allows(schedule, point.what, alternative):
                yield {**schedule, point.number: alternative}


def wander(setup: Setup, rules: Rules, bounds: Bounds, seed: int, *, rate: float, most: int = 6) -> Result:
    """One execution with deviations at random; the same for the same seed. Only the kinds of the bounds are used."""
    chance = random.Random(seed)
    count = 0

    def choose(what: str, possible: list[Alternative]) -> Alternative | None:
        nonlocal count
        if count >= most or chance.random() >= rate:
            return None
        allowed = [a for a in possible if bounds.permits(what, a)]
        count += bool(allowed)
        return chance.choice(allowed) if allowed else None

    return execute(setup, rules, choose=choose)
