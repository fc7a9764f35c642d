"""The scenarios, each exhaustive within its bounds; together they are what design.md asks for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from .kernel import KERNEL, Kernel
from .lineage import Lineages
from .search import Checker, Result, search
from .world import Bounds

#: Two drivers, two subtasks, two checkpoints; an executor is lost once, a batch fails once.
TWO_PHASE = Bounds(retries=1, failures=1)
#: Three drivers, so that one can die inside the recovery from the death of another.
RESTARTS = Bounds(generations=3, checkpoints=1)
#: The endpoint refuses a send once, and a batch fails once.
WRITE_AHEAD = Bounds(write_ahead=True, refusals=1, failures=1)
#: The same endpoint with a source that falls quiet: only the timer and starts are left to deliver.
QUIET = Bounds(write_ahead=True, refusals=1, quiet=True)
#: The endpoint drops transactions; the repair of one is interrupted, or dropped as well.
TIMEOUTS = Bounds(checkpoints=1, timeouts=2)
#: The driver dies after the repair, and the one after it too.
REPAIRS = Bounds(generations=3, checkpoints=1, timeouts=1, one_after_another=True)


def bounded(bounds: Bounds) -> Callable[[Kernel], Any]:
    """A scenario of drivers, as a function of the rules it runs by."""
    return lambda kernel: Checker(replace(bounds, kernel=kernel))


SCENARIOS: dict[str, Callable[[Kernel], Any]] = {
    "two-phase sink": bounded(TWO_PHASE),
    "restarts": bounded(RESTARTS),
    "write-ahead sink": bounded(WRITE_AHEAD),
    "quiet source": bounded(QUIET),
    "timeouts": bounded(TIMEOUTS),
    "repairs": bounded(REPAIRS),
    "lineage": Lineages,
}


def run(name: str, kernel: Kernel = KERNEL, wanted: str | None = None) -> Result:
    """Search one scenario."""
    return search(SCENARIOS[name](kernel), wanted=wanted)


def main() -> None:
    """Search all of them with all rules on, and say how many states there were."""
    total, worst = 0, ""
    for name in SCENARIOS:
        result = run(name)
        print(f"{name}: {result}", flush=True)
        total += result.states
        worst = worst or result.broken
    print(f"{total:,} states in all: {worst or 'nothing broken'}")
    if worst:
        raise SystemExit(1)
