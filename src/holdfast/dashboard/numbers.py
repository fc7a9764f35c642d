"""What many checkpoints say together: quantiles, and series short enough to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.checkpoint.history import CheckpointStats
from holdfast.checkpoint.rates import finished, seconds_of

PHASES = ("tasks", "decide", "commit", "notify")


def quantiles(values: Sequence[float]) -> dict[str, float] | None:
    """Least, median, 99th percentile (nearest rank) and greatest; None of nothing."""
    if not values:
        return None
    ordered = sorted(values)

    def rank(share: float) -> float:
        return ordered[max(0, math.ceil(share * len(ordered)) - 1)]

    return {"min": ordered[0], "median": rank(0.5), "p99": rank(0.99), "max": ordered[-1]}


def summary(found: Sequence[CheckpointStats]) -> dict[str, Any]:
    """Counts by status, and quantiles of everything that is measured."""
    over = finished(found)
    measured: dict[str, Callable[[CheckpointStats], float | None]] = {
        "duration": seconds_of,
        **{phase: lambda s, p=phase: s.durations.get(p) for phase in PHASES},  # type: ignore[misc]
        "rows": lambda s: s.rows,
        "bytes": lambda s: s.bytes,
        "subtasks": lambda s: s.subtasks,
        "rows_per_second": lambda s: s.rows / seconds_of(s) if seconds_of(s) > 0 else None,
    }
    statuses: dict[str, int] = {}
    for stats in found:
        statuses[stats.status] = statuses.get(stats.status, 0) + 1
    return {
        "checkpoints": len(found),
        "first": found[0].checkpoint_id if found else None,
        "last": found[-1].checkpoint_id if found else None,
        "statuses": statuses,
        "restored": sum(s.restored for s in found),
        "repaired": sum(bool(s.repaired) for s in found),
        "rows": sum(s.rows for s in found),
        "bytes": sum(s.bytes for s in found),
        "measures": {
            name: quantiles([v for v in map(measure, over) if v is not None]) for name, measure in measured.items()
        },
    }


def series(found: Sequence[CheckpointStats], points: int = 60) -> list[dict[str, Any]]:
    """Rows a second and the longest checkpoint in each of at most `points` equal parts of the time that they span."""
    over = finished(found)
    if not over:
        return []
    # Two checkpoints in each part at least: shorter parts would show the pauses between them.
    points = max(2, min(points, len(over) // 2))
    begin = min(int(s.started or 0) for s in over)
    end = max(int(s.started or 0) + int(seconds_of(s) * 1000) for s in over)
    width = max(1.0, (end - begin) / points)
    parts: list[dict[str, Any]] = [
        {"at": int(begin + n * width), "rows_per_second": 0.0, "seconds": None} for n in range(points)
    ]
    for stats in over:
        # Its rows were processed over its whole length, not at its end: else a long one would look like a burst.
        first = (int(stats.started or 0) - begin) / width
        last = max(first, (int(stats.started or 0) + seconds_of(stats) * 1000 - begin) / width)
        touched = range(int(first), min(points - 1, int(last)) + 1)
        for n in touched:
            share = 1.0 if last == first else (min(n + 1, last) - max(n, first)) / (last - first)
            parts[min(n, points - 1)]["rows_per_second"] += stats.rows * max(0.0, share) * 1000 / width
        slot = parts[min(points - 1, int(last))]
        slot["seconds"] = max(slot["seconds"] or 0.0, seconds_of(stats))
    return parts
