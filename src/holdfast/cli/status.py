"""`holdfast status`: where a pipeline stands, from its files alone."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.checkpoint.status import Owner, Status, read_status
from holdfast.cli.output import BROKEN, OK, JsonOption, LocationArgument, age, moment, phases, reporting, size


def status(location: LocationArgument, json: JsonOption = False) -> None:
    """Show where a pipeline stands: who runs it, what is decided, what is pending, damaged or stuck.

    Reads files only: it works while the query runs, after it was stopped and after a crash. Exit code 1 when a record
    is damaged, or a checkpoint is stuck: `holdfast resolve` shows the ways out.
    """
    with reporting(json=json) as out:
        found = read_status(location)
        out.result(_document(found), lambda: _text(found))
        out.exit(OK if found.healthy and not found.stuck else BROKEN)


def _document(found: Status) -> dict[str, Any]:
    now = time.time() * 1000
    pending = [{**asdict(p), "oldest_age_seconds": round((now - p.oldest) / 1000, 3)} for p in found.pending]
    return {"healthy": found.healthy, **asdict(found), "pending": pending}


def _text(found: Status) -> RenderableType:
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in (
        ("pipeline", found.pipeline or "?"),
        ("lineage", found.lineage or "?"),
        ("generation", _owner(found.owner)),
        ("last decided", _id(found.last_decided)),
        ("last complete", _id(found.last_complete)),
        ("Spark", f"planned {_id(found.planned)}, committed {_id(found.committed)}"),
        ("last checkpoint", _last(found)),
        ("pending", "none" if not found.pending else f"{sum(p.checkpoints for p in found.pending)}"),
    ):
        facts.add_row(Text(name, style="bold"), Text(value))
    parts: list[RenderableType] = [facts]
    if found.pending:
        table = Table("sink", "checkpoints", "rows", "bytes", "oldest", title="Pending", title_justify="left")
        for p in found.pending:
            table.add_row(Text(p.sink), f"{p.checkpoints:,}", f"{p.rows:,}", size(p.bytes), f"{age(p.oldest)} ago")
        parts.append(table)
    for f in found.stuck:
        what = f"checkpoint {f.checkpoint_id}, sink {f.sink}: {f.rows:,} rows lost, found {age(f.since)} ago"
        parts.append(Text(f"stuck: {what}; see holdfast resolve {found.location}", style="red"))
    for r in found.resolutions:
        what = f"checkpoint {r['checkpoint_id']}, sink {r['sink']}: {r['how']} by {r['by']}, {moment(r['at'])}"
        parts.append(Text(f"resolved: {what}", style="yellow"))
    parts += [Text(f"damaged: {damage.problem}", style="red") for damage in found.damaged]
    return Group(*parts)


def _owner(owner: Owner | None) -> str:
    if owner is None:
        return "none"
    state = {True: "running", False: "ended", None: "on another host"}[owner.alive]
    started = moment(owner.started)
    return f"{owner.generation}, process {owner.pid} on {owner.host} ({state}), started {started}"


def _last(found: Status) -> str:
    last = found.last_checkpoint
    return "none" if last is None else f"{last.checkpoint_id}, {last.rows:,} rows, {phases(last.durations)}"


def _id(checkpoint_id: int | None) -> str:
    return "none" if checkpoint_id is None else str(checkpoint_id)
