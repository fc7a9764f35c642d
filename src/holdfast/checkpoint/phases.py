"""What the history says of one checkpoint: how long each phase took, and what went where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from holdfast.checkpoint.delivery import totals
from holdfast.checkpoint.ports import SubtaskReport
from holdfast.core.model import Decided

#: subtasks of a checkpoint that the history tells of one by one
PARTS = 100


class Phases:
    """Measures the phases of one checkpoint."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.started = int(clock() * 1000)
        self.durations: dict[str, float] = {}

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Add the time of this block to a phase."""
        begin = self._clock()
        try:
            yield
        finally:
            self.durations[name] = round(self.durations.get(name, 0.0) + self._clock() - begin, 6)

    def told(self) -> dict[str, Any]:
        """For the history."""
        return {"started": self.started, "durations": self.durations}


def summary(reports: Sequence[SubtaskReport], decided: Decided, outcomes: Mapping[str, Any]) -> dict[str, Any]:
    """Rows, bytes and subtasks, and what became of them in each sink."""
    largest = sorted(reports, key=lambda r: (-r.rows, r.subtask))
    return {
        "rows": sum(r.rows for r in reports),
        "bytes": sum(r.bytes for r in reports),
        "subtasks": len(reports),
        "parts": [{"subtask": r.subtask, "rows": r.rows, "bytes": r.bytes} for r in largest[:PARTS]],
        "sinks": {
            name: {
                **totals(decided.of(name)),
                "outcome": outcomes.get(name, "pending"),
                **_discarded(reports, name),
            }
            for name in decided.sinks
        },
    }


def _discarded(reports: Sequence[SubtaskReport], sink: str) -> dict[str, Any]:
    """How many values of which columns a sink left out, if it did."""
    found: Counter[str] = Counter()
    for report in reports:
        found.update(report.discarded.get(sink, {}))
    return {"discarded": dict(found)} if found else {}
