"""What the demo will do, decided beforehand from the seed: kills, outage, pace."""

from __future__ import annotations

import random
from dataclasses import dataclass

#: moment -> what a person is told
MOMENTS = {
    "start": "while it starts",
    "batch": "in the middle of its work",
    "commit": "between a decision and its commits",
    "send": "after the endpoint took rows, before the driver knew",
    "late": "when it had nothing left to do",
}
#: order files in each driver's portion
FILES = 12


@dataclass(frozen=True)
class Kill:
    """When one driver is killed: at a moment, after so many decisions of its own, and so many seconds later."""

    moment: str
    decisions: int
    delay: float


@dataclass(frozen=True)
class Plan:
    """The whole run. Each driver gets an equal portion of the rows, so that every one has work when it is killed."""

    seed: int
    rows: int
    kills: tuple[Kill, ...]

    def allowance(self, driver: int) -> int:
        """How many rows may be written before the next kill; `driver` counts from 0."""
        return self.rows * (driver + 1) // (len(self.kills) + 1)

    @property
    def rows_per_file(self) -> int:
        """Small files, so that a portion makes several batches."""
        return max(1, self.rows // (len(self.kills) + 1) // FILES)

    @property
    def outage(self) -> tuple[int, int]:
        """The endpoint is down while the number of rows written is between these; it is back before the last kill."""
        before_last_kill = self.allowance(len(self.kills) - 1) if self.kills else self.rows
        return int(before_last_kill * 0.3), int(before_last_kill * 0.8)


def make_plan(seed: int, rows: int, kills: int) -> Plan:
    """The same plan for the same numbers. The last kill hits the delivery of the backlog after the outage."""
    rng = random.Random(seed)
    cycle = ("commit", "start", "batch")
    moments = [cycle[number % len(cycle)] for number in range(kills - 1)]
    rng.shuffle(moments)
    if kills:
        moments.append("send")
    return Plan(seed, rows, tuple(_kill(rng, moment) for moment in moments))


def _kill(rng: random.Random, moment: str) -> Kill:
    if moment == "start":
        return Kill(moment, 0, rng.uniform(0.2, 6))
    if moment == "send":
        return Kill(moment, rng.randint(0, 1), 0.0)
    return Kill(moment, rng.randint(1, 2), rng.uniform(0, 1) if moment == "batch" else rng.uniform(0, 0.15))
