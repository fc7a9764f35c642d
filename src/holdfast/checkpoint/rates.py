"""How fast a pipeline is, from its history."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.checkpoint.history import CheckpointStats

#: checkpoints a rate is taken over
RATE_OVER = 20


def seconds_of(stats: CheckpointStats) -> float:
    """How long a checkpoint took, all phases together."""
    return float(sum(stats.durations.values()))


def finished(found: Sequence[CheckpointStats]) -> list[CheckpointStats]:
    """Those whose batch is over, with a start and durations."""
    return [s for s in found if s.durations and s.started is not None]


def rows_per_second(found: Sequence[CheckpointStats]) -> float | None:
    """Over the newest checkpoints, from the start of the first to the end of the last; None when nobody can tell."""
    newest = finished(found)[-RATE_OVER:]
    if not newest:
        return None
    begin = min(int(s.started or 0) for s in newest)
    end = max(int(s.started or 0) + seconds_of(s) * 1000 for s in newest)
    return sum(s.rows for s in newest) * 1000 / (end - begin) if end > begin else None
