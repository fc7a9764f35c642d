"""`holdfast history`: statistics of every checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint.history import CheckpointStats, checkpoints
from holdfast.checkpoint.status import require_used
from holdfast.cli.output import JsonOption, LocationArgument, moment, phases, reporting, size

_STYLES = {"complete": "green", "lagging": "yellow", "aborted": "red"}
LastOption = Annotated[int, typer.Option("--last", min=1, help="Show this many of the newest checkpoints.")]


def history(location: LocationArgument, last: LastOption = 20, json: JsonOption = False) -> None:
    """List checkpoints, oldest first: status, duration by phase, rows, bytes, sinks, errors.

    Reads files only. Statistics survive restarts.
    """
    with reporting(json=json) as out:
        require_used(location)
        found = checkpoints(location, last=last)
        out.result({"location": location, "checkpoints": [asdict(entry) for entry in found]}, lambda: _table(found))


def _told(details: Mapping[str, Any]) -> str:
    """What became of a sink's rows, and how many values of which columns it left out."""
    left_out = ", ".join(f"{count:,} of {column}" for column, count in details.get("discarded", {}).items())
    return str(details.get("outcome", "-")) + (f" (left out: {left_out})" if left_out else "")


def _table(found: list[CheckpointStats]) -> Table:
    table = Table("id", "status", "generation", "started", "trigger", "duration", "rows", "bytes", "subtasks", "state")
    for column in ("sinks", "restored", "error"):
        table.add_column(column)
    for entry in found:
        table.add_row(
            str(entry.checkpoint_id),
            Text(entry.status, style=_STYLES.get(entry.status, "")),
            "-" if entry.generation is None else str(entry.generation),
            moment(entry.started),
            Text(entry.trigger or "-"),
            phases(entry.durations),
            f"{entry.rows:,}",
            size(entry.bytes),
            str(entry.subtasks),
            _state(entry),
            Text(", ".join(f"{name}: {_told(details)}" for name, details in entry.sinks.items()) or "-"),
            "yes" if entry.restored else "",
            Text(entry.error or ""),
        )
    return table


def _state(entry: CheckpointStats) -> str:
    if not entry.state:
        return "-"
    told = entry.state
    return f"{told['rows']:,} rows, {size(told['bytes'])}, {told['snapshot_seconds']:.2f}s"
