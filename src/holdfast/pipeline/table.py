"""The newest checkpoints as a table or as a line: for who runs a pipeline, and for who watches one."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from holdfast.checkpoint.history import CheckpointStats

#: how many are shown
SHOWN = 8


def checkpoint_table(newest: Sequence[CheckpointStats]) -> Table:
    """The newest at the top."""
    table = Table("checkpoint", "status", "rows", "tasks", "decide", "commit", "notify")
    for stats in reversed(newest):
        table.add_row(str(stats.checkpoint_id), Text(stats.status), f"{stats.rows:,}", *_phases(stats))
    return table


def checkpoint_line(last: CheckpointStats, rows_per_second: float, *, lag: int | None, pending: int) -> str:
    """One checkpoint that is over, in a line."""
    behind = "" if lag is None else f", lag {lag:,} rows"
    owed = f", {pending} pending" if pending else ""
    took = sum(last.durations.values()) * 1000
    rate = f"{rows_per_second:,.0f} rows/s"
    return f"checkpoint {last.checkpoint_id}: {last.status}, {last.rows:,} rows in {took:,.0f} ms, {rate}{behind}{owed}"


def _phases(stats: CheckpointStats) -> list[str]:
    return [
        f"{stats.durations[name] * 1000:,.0f} ms" if name in stats.durations else ""
        for name in ("tasks", "decide", "commit", "notify")
    ]
