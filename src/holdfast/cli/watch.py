"""`holdfast watch`: the live view of a pipeline that somebody else started."""

from __future__ import annotations

import json as json_module
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.checkpoint.health import DEGRADED, DOWN, HEALTHY
from holdfast.checkpoint.history import CheckpointStats, read_checkpoints
from holdfast.checkpoint.rates import RATE_OVER, rows_per_second
from holdfast.checkpoint.status import Status, read_status
from holdfast.cli.output import OK, JsonOption, LocationArgument, age, reporting
from holdfast.core.units import parse_duration
from holdfast.errors import ConfigError, RecordError
from holdfast.pipeline.table import SHOWN, checkpoint_line, checkpoint_table

_STYLES = {HEALTHY: "green", DEGRADED: "yellow", DOWN: "red"}
EveryOption = Annotated[str, typer.Option("--every", help="How often the files are looked at: 1s, 500ms, 1m.")]
TimesOption = Annotated[int | None, typer.Option("--times", min=1, help="End after so many looks; default: at Ctrl-C.")]


class Look:
    """What one look at the files found."""

    def __init__(self, location: str) -> None:
        self.status: Status = read_status(location)
        history: list[CheckpointStats] = []
        with suppress(RecordError):  # the status tells of a damaged history
            history = read_checkpoints(location, last=RATE_OVER + 1)
        self.newest = history[-SHOWN:]
        self.finished = [stats for stats in history if stats.durations]
        self.rate = rows_per_second(history) or 0.0
        self.pending = sum(p.checkpoints for p in self.status.pending)
        self.lag_rows = sum(p.rows for p in self.status.pending)

    def document(self) -> dict[str, Any]:
        """For programs: one line each time something changed."""
        found = self.status
        return {
            "at": found.at,
            "pipeline": found.pipeline,
            "health": found.health,
            "reasons": list(found.reasons),
            "driver": None if found.owner is None else found.owner.state,
            "rows_per_second": round(self.rate, 3),
            "pending": self.pending,
            "lag_rows": self.lag_rows,
            "last_complete": found.last_complete,
            "checkpoint": asdict(self.finished[-1]) if self.finished else None,
        }

    def line(self) -> str:
        """The newest checkpoint that is over, and how the pipeline is."""
        found = self.status
        if not self.finished:
            return f"{found.health}: no checkpoint yet"
        lag = self.lag_rows if self.pending else None
        told = checkpoint_line(self.finished[-1], self.rate, lag=lag, pending=self.pending)
        return f"{found.health}, {'no driver' if found.owner is None else found.owner.state}: {told}"

    def screen(self) -> RenderableType:
        """The whole view."""
        found, style = self.status, _STYLES[self.status.health]
        owner = found.owner
        driver = "no driver" if owner is None else f"{owner.state}, process {owner.pid} on {owner.host}"
        lag = f"  lag {self.lag_rows:,} rows" if self.pending else ""
        head = f"{found.pipeline or '?'}  {driver}  {self.rate:,.0f} rows/s{lag}  pending {self.pending}"
        if found.completed_at is not None:
            head += f"  last complete {found.last_complete}, {age(found.completed_at)} ago"
        parts: list[RenderableType] = [Text(found.health, style=f"bold {style}"), Text(head)]
        parts += [Text(f"- {reason}", style=style) for reason in found.reasons]
        parts.append(checkpoint_table(self.newest))
        for sink in found.sinks:
            owes = f"owes {sink.checkpoints:,}" if sink.checkpoints else "owes nothing"
            doing = "" if sink.doing is None else f", {sink.doing}"
            problem = "" if not sink.problem else f": {sink.problem[:300]}"
            parts.append(Text(f"{sink.sink}: {owes}{doing}{problem}", style="yellow" if sink.problem else ""))
        return Group(*parts)


def watch(
    location: LocationArgument, every: EveryOption = "1s", times: TimesOption = None, json: JsonOption = False
) -> None:
    """Watch a pipeline that somebody else started: health, rows a second, the newest checkpoints, each sink.

    Reads files only. On a terminal the view changes in place; anywhere else a line is printed when something changed,
    with --json one JSON object a line. Ctrl-C ends it, with exit code 0; so does --times.
    """
    with reporting(json=json) as out:
        pause = parse_duration("--every", every)
        if not pause or pause < 0.1:
            raise ConfigError("--every must be at least 100ms")
        console = Console(width=None if sys.stdout.isatty() else 220)
        try:
            if console.is_terminal and not json:
                _screen(location, console, pause, times)
            else:
                _lines(location, console, pause, times, json=json)
        except KeyboardInterrupt:
            pass  # how a person ends it
        out.exit(OK)


def _screen(location: str, console: Console, pause: float, times: int | None) -> None:
    looks = 0
    with Live(Look(location).screen(), console=console, auto_refresh=False) as live:
        while True:
            live.update(Look(location).screen(), refresh=True)
            looks += 1
            if looks == times:
                return
            time.sleep(pause)


def _lines(location: str, console: Console, pause: float, times: int | None, *, json: bool) -> None:
    looks, told = 0, ""
    while True:
        look = Look(location)
        key = _changing(look) if json else look.line()
        if key != told:
            told = key
            text = json_module.dumps(look.document(), default=str) if json else look.line()
            console.file.write(text + "\n")
            console.file.flush()
        looks += 1
        if looks == times:
            return
        time.sleep(pause)


def _changing(look: Look) -> str:
    """What makes a new line worth printing: not the time, and no age of anything."""
    document = {key: value for key, value in look.document().items() if key not in ("at", "reasons")}
    return json_module.dumps(document, default=str)
