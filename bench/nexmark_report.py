"""Table and bars of the Nexmark benchmark."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from bench import kafka_flink
from bench.kafka_job import ALIKE_SPARK, SPARK, TWO_PHASE
from bench.kafka_measure import BROKER, DRIVER, GROUPS, JVM, WORKERS, Measured
from bench.kafka_report import FIRST, FLINK, FLOOR, NAMES, ratio, shown
from bench.kafka_topics import ALIKE
from bench.report import Bar, Report, describe_machine

WAYS = (TWO_PHASE, ALIKE_SPARK, SPARK, FLINK)
#: ... and those that are killed: what Spark does then does not hang on how it is told to be quick.
KILLED = (TWO_PHASE, ALIKE_SPARK, FLINK)
HEADS = (
    "events/s", "a core", "to alike", "to Flink", "CPU s/M", "JVM", "workers", "broker",
    "first row s", "after a kill s", "lost", "doubled",
)  # fmt: skip


@dataclass(frozen=True)
class Killed:
    """A run that was killed in the middle: rows visible then, seconds from the next start to the first new one."""

    visible: int
    first: float
    lost: int
    doubled: int


@dataclass
class Found:
    """The rounds and the kills of one query in one way; rows are events."""

    measured: Measured = field(default_factory=Measured)
    kills: list[Killed] = field(default_factory=list)

    def killed(self, name: str, of: Any = statistics.median) -> float | None:
        return of([getattr(kill, name) for kill in self.kills]) if self.kills else None


Findings = Mapping[str, Mapping[str, Found]]


def report(found: Findings, options: argparse.Namespace) -> Report:
    made = Report("nexmark", ("median of all rounds", *HEADS))
    cores = describe_machine()["cores"]
    made.rows = [_row(name, ways, way, cores) for name, ways in found.items() for way in ways]
    made.bars = bars(found)
    made.rounds = {
        name: {
            way: {"runs": one.measured.rounds()["runs"], "kills": [asdict(kill) for kill in one.kills]}
            for way, one in ways.items()
        }
        for name, ways in found.items()
    }
    made.details = {
        **{name: getattr(options, name) for name in ("events", "rate", "batch", "checkpoint_ms")},
        "producers": ALIKE,
        "flink": kafka_flink.VERSION,
    }
    return made


def _row(name: str, ways: Mapping[str, Found], way: str, cores: int) -> Sequence[str]:
    one = ways[way]
    measured, steady = one.measured, one.measured.median("steady")
    return (
        f"{name}, {NAMES[way]}",
        shown(steady, ",.0f"),
        shown(None if steady is None else steady / cores, ",.0f"),
        *(shown(_ratio(ways, way, to), ".2f") for to in (ALIKE_SPARK, FLINK)),
        *(shown(measured.cpu(*groups), ".2f") for groups in (GROUPS, (JVM,), (WORKERS, DRIVER), (BROKER,))),
        shown(measured.median("first"), ".1f"),
        shown(one.killed("first"), ".1f"),
        *(shown(one.killed(which, sum), "d") for which in ("lost", "doubled")),
    )


def _ratio(ways: Mapping[str, Found], way: str, to: str) -> float | None:
    return ratio({name: one.measured for name, one in ways.items()}, way, to)


def _first_after_kill(ways: Mapping[str, Found], way: str) -> Any:
    return ways[way].killed("first") if way in ways else None


def bars(found: Findings) -> list[Bar]:
    """Judged only where both sides were run, and where something was killed."""
    made = []
    for name, ways in found.items():
        if (times := _ratio(ways, TWO_PHASE, ALIKE_SPARK)) is not None:
            made.append(Bar(f"{name}, to Spark's own told alike", times, FLOOR, "times", floor=True))
        if TWO_PHASE in ways and (kills := ways[TWO_PHASE].kills):
            wrong = sum(kill.lost + kill.doubled for kill in kills)
            made.append(Bar(f"{name}, lost and doubled after a kill", wrong, 0, "rows"))
            if (theirs := _first_after_kill(ways, ALIKE_SPARK)) is not None:
                mine = _first_after_kill(ways, TWO_PHASE)
                made.append(
                    Bar(f"{name}, first row after a kill, to Spark's own told alike", mine / theirs, FIRST, "times")
                )
    return made
