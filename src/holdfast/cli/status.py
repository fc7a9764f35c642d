"""`holdfast status`: where a pipeline stands, from its files alone."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint.health import DEGRADED, DOWN, HEALTHY
from holdfast.checkpoint.runs import Owner
from holdfast.checkpoint.status import SinkStatus, Status, read_status
from holdfast.cli.output import (
    BROKEN,
    IS_DOWN,
    OK,
    JsonOption,
    LocationArgument,
    age,
    moment,
    phases,
    reporting,
    size,
)
from holdfast.core.units import parse_duration

_CODES = {HEALTHY: OK, DEGRADED: BROKEN, DOWN: IS_DOWN}
_STYLES = {HEALTHY: "green", DEGRADED: "yellow", DOWN: "red"}
MaxAgeOption = Annotated[
    str | None,
    typer.Option("--max-age", help="No checkpoint complete for longer than this is a fault: 90s, 5m, 1h."),
]


def status(location: LocationArgument, max_age: MaxAgeOption = None, json: JsonOption = False) -> None:
    """Show where a pipeline stands: is it alive, how fresh, what each sink owes, what went wrong and what to do.

    Reads files only: it works while the query runs, after it was stopped and after a crash. Exit codes for alerting: 0
    healthy (running, or stopped with nothing owed), 1 degraded (a person should look), 2 down (rows do not move), 3
    wrong use or a bad location.
    """
    with reporting(json=json) as out:
        found = read_status(location, max_age=parse_duration("--max-age", max_age))
        out.result(_document(found), lambda: _text(found))
        out.exit(_CODES[found.health])


def _document(found: Status) -> dict[str, Any]:
    pending = [{**asdict(p), "oldest_age_seconds": _seconds(found.at, p.oldest)} for p in found.pending]
    oldest = min((p.oldest for p in found.pending), default=None)
    return {
        **asdict(found),
        "healthy": found.healthy,
        "freshness_seconds": _seconds(found.at, found.completed_at),
        "lag_seconds": _seconds(found.at, oldest) if found.pending else 0.0,
        "lag_rows": sum(p.rows for p in found.pending),
        "pending": pending,
    }


def _seconds(now: int, then: int | None) -> float | None:
    return None if then is None else max(0.0, round((now - then) / 1000, 3))


def _text(found: Status) -> RenderableType:
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in (
        ("pipeline", found.pipeline or "?"),
        ("lineage", found.lineage or "?"),
        ("driver", _owner(found.owner)),
        ("starts", f"{found.starts_last_hour} in the last hour"),
        ("last decided", _id(found.last_decided)),
        ("last complete", _complete(found)),
        ("Spark", f"planned {_id(found.planned)}, committed {_id(found.committed)}"),
        ("last checkpoint", _last(found)),
        ("pending", _pending(found)),
        ("last error", _error(found)),
    ):
        facts.add_row(Text(name, style="bold"), Text(value))
    style = _STYLES[found.health]
    parts: list[RenderableType] = [Text(_headline(found), style=f"bold {style}")]
    parts += [Text(f"- {reason}", style=style) for reason in found.reasons]
    parts.append(facts)
    if found.sinks:
        parts.append(_sinks(found.sinks))
    for sink in found.sinks:
        parts += [Text(line, style="yellow") for line in _membership(sink)]
    parts += [Text(f"warning: {text}", style="yellow") for text in found.warnings]
    for f in found.stuck:
        what = f"checkpoint {f.checkpoint_id}, sink {f.sink}: {f.rows:,} rows, found {age(f.since)} ago, {f.error}"
        parts.append(Text(f"stuck: {what}; see holdfast resolve {found.location}", style="red"))
    for r in found.resolutions:
        what = f"checkpoint {r['checkpoint_id']}, sink {r['sink']}: {r['how']} by {r['by']}, {moment(r['at'])}"
        later = "" if r.get("carried_out", True) else ", carried out by the next start"
        parts.append(Text(f"resolved: {what}{later}", style="yellow"))
    parts += [Text(f"damaged: {damage.problem}", style="red") for damage in found.damaged]
    return Group(*parts)


def _headline(found: Status) -> str:
    if found.health == HEALTHY and found.owner is not None and found.owner.state == "ended":
        return "healthy: stopped, nothing is owed"
    return found.health


def _sinks(sinks: tuple[SinkStatus, ...]) -> Table:
    columns = ("sink", "owes", "rows", "bytes", "oldest", "is", "since", "failures", "held back", "problem")
    table = Table(*columns, title="Sinks", title_justify="left")
    for s in sinks:
        held = "" if not s.held_back_rows else f"{s.held_back_rows:,} rows, {age(s.held_back_since)}"
        table.add_row(
            Text(s.sink),
            f"{s.checkpoints:,}" if s.checkpoints else "nothing",
            f"{s.rows:,}",
            size(s.bytes),
            "" if s.oldest is None else f"{age(s.oldest)} ago",
            Text(s.doing or ""),
            "" if s.since is None else f"{age(s.since)} ago",
            str(s.failures or ""),
            held,
            Text((s.problem or "")[:200]),
        )
    return table


def _membership(sink: SinkStatus) -> list[str]:
    lines = []
    if sink.from_checkpoint:
        lines.append(f"sink {sink.sink}: gets rows from checkpoint {sink.from_checkpoint} on; it was added later")
    for first, last in sink.gaps:
        lines.append(f"sink {sink.sink}: has a gap, checkpoints {first} to {last}: it was not in the pipeline")
    if sink.removed is not None:
        lines.append(f"sink {sink.sink}: not in the pipeline since checkpoint {sink.removed}")
    return lines


def _owner(owner: Owner | None) -> str:
    if owner is None:
        return "none"
    state = owner.state if owner.alive is not None else "on another host, no sign of life yet"
    seen = "" if owner.seen is None else f", last seen {age(owner.seen)} ago"
    started = moment(owner.started)
    return f"process {owner.pid} on {owner.host} ({state}), generation {owner.generation}, started {started}{seen}"


def _complete(found: Status) -> str:
    if found.last_complete is None:
        return "none"
    when = "" if found.completed_at is None else f", {age(found.completed_at)} ago"
    return f"{found.last_complete}{when}"


def _pending(found: Status) -> str:
    if not found.pending:
        return "none"
    oldest = min(p.oldest for p in found.pending)
    rows = sum(p.rows for p in found.pending)
    return f"{sum(p.checkpoints for p in found.pending)}, {rows:,} rows, the oldest {age(oldest)} old"


def _error(found: Status) -> str:
    error = found.last_error
    if error is None:
        return "none"
    return f"{error['type']} ({error['action']}), {age(error['at'])} ago: {str(error['message']).partition(chr(10))[0]}"


def _last(found: Status) -> str:
    last = found.last_checkpoint
    return "none" if last is None else f"{last.checkpoint_id}, {last.rows:,} rows, {phases(last.durations)}"


def _id(checkpoint_id: int | None) -> str:
    return "none" if checkpoint_id is None else str(checkpoint_id)
