"""Table and bars of the Kafka benchmark."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from bench import kafka_flink
from bench.kafka_job import ALIKE_SPARK, RAW, SPARK, TWO_PHASE, WRITE_AHEAD
from bench.kafka_measure import BROKER, DRIVER, GROUPS, JVM, WORKERS, Measured
from bench.kafka_topics import ALIKE
from bench.report import Bar, Report

FLINK = "flink"
NAMES = {
    SPARK: "Spark's own, at-least-once",
    ALIKE_SPARK: "Spark's own, told alike",
    TWO_PHASE: "holdfast, two-phase",
    WRITE_AHEAD: "holdfast, write-ahead",
    FLINK: "Flink, exactly-once",
    RAW: "librdkafka from memory",
}
#: Against Spark's own, told alike: rows a second and CPU; first row; a row of a small batch.
FLOOR, FIRST, FACTOR, EXTRA_MS = 0.9, 1.25, 1.2, 40.0
HEADS = (
    "rows/s", "to alike", "to Flink", "first row s", "whole s",
    "CPU s/M", "JVM", "workers", "broker", "p50 ms", "p99 ms",
)  # fmt: skip


def report(measured: Mapping[str, Measured], options: argparse.Namespace) -> Report:
    made = Report("kafka", ("median of all rounds", *HEADS))
    for way, found in measured.items():
        made.rows.append(
            (
                NAMES[way],
                shown(found.median("steady"), ",.0f"),
                *(shown(ratio(measured, way, to), ".2f") for to in (ALIKE_SPARK, FLINK)),
                *(shown(found.median(name), ".1f") for name in ("first", "whole")),
                *(shown(found.cpu(*groups), ".2f") for groups in (GROUPS, (JVM,), (WORKERS, DRIVER), (BROKER,))),
                *(shown(found.median(name), ".0f") for name in ("p50", "p99")),
            )
        )
    made.bars = list(bars(measured))
    made.rounds = {way: found.rounds() for way, found in measured.items()}
    made.details = {
        "rows": options.rows,
        "batch": options.batch,
        "producers": ALIKE,
        "flink": {"version": kafka_flink.VERSION, "checkpoint_ms": kafka_flink.CHECKPOINT_MS},
        "curves": {way: found.curves for way, found in measured.items()},
    }
    return made


def shown(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def ratio(measured: Mapping[str, Measured], way: str, to: str, name: str = "steady") -> float | None:
    """One way's figure, as a part of another's; None unless both were run."""
    mine, other = (measured[w].median(name) if w in measured else None for w in (way, to))
    return None if mine is None or not other else mine / other


def bars(measured: Mapping[str, Measured]) -> list[Bar]:
    """Judged only where both sides were run."""
    found, alike = [], measured.get(ALIKE_SPARK)
    for way in (TWO_PHASE, WRITE_AHEAD):
        mine = measured.get(way)
        if mine is None or alike is None:
            continue
        if (times := ratio(measured, way, ALIKE_SPARK)) is not None:
            found.append(
                Bar(f"throughput of {NAMES[way]}, to Spark's own told alike", times, FLOOR, "times", floor=True)
            )
        cost, theirs = mine.cpu(*GROUPS), alike.cpu(*GROUPS)
        if cost is not None and theirs:
            rule = f"{theirs:.2f} of Spark's own told alike / {FLOOR}"
            found.append(Bar(f"CPU a million rows, {NAMES[way]}", cost, theirs / FLOOR, "s", rule=rule))
        if (times := ratio(measured, way, ALIKE_SPARK, "first")) is not None:
            found.append(Bar(f"first row of {NAMES[way]}, to Spark's own told alike", times, FIRST, "times"))
        p50, other = mine.median("p50"), alike.median("p50")
        if way == TWO_PHASE and p50 is not None and other is not None:
            rule = f"{FACTOR} times Spark's own told alike plus {EXTRA_MS:.0f} ms"
            found.append(Bar(f"latency of {NAMES[way]}", p50, FACTOR * other + EXTRA_MS, "ms", rule=rule))
    return found
