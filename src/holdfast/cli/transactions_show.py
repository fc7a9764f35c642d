"""What `holdfast transactions` shows, as text and as JSON data."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from holdfast.cli.output import age, moment
from holdfast.connectors.kafka.sink.ending import refusal

if TYPE_CHECKING:
    from holdfast.connectors.kafka.sink.inspect import Seen

#: (servers, topic, partition) -> last stable offset and end, where consumers wait
Blocked = Mapping[tuple[str, str, int], tuple[int, int]]
_STYLES = {"decided": "green", "lost": "red", "too old to tell": "red", "foreign": "yellow"}


def document_of(seen: Seen, blocked: Blocked) -> dict[str, Any]:
    """One transaction as JSON data."""
    now = time.time() * 1000
    holds = [
        {"topic": topic, "partition": number, "last_stable": offsets[0], "end": offsets[1]}
        for topic, number in seen.partitions
        if (offsets := blocked.get((seen.servers, topic, number))) is not None
    ]
    old = None if seen.started is None else round((now - seen.started) / 1000, 3)
    left = seen.remaining_ms
    times = {"age_seconds": old, "remaining_seconds": None if left is None else round(left / 1000, 3)}
    return {**asdict(seen), **times, "holds_back": holds}


def list_of(location: str, seen: Sequence[Seen], lost: Sequence[Seen], blocked: Blocked) -> RenderableType:
    """The answer of `list`."""
    parts: list[RenderableType] = [Text("no transaction is open")]
    if seen:
        table = Table("id", "sink", "subtask", "checkpoint", "decided", "rows", "open for", "timeout in", "holds back")
        for s in seen:
            table.add_row(*_cells(s, blocked))
        parts = [table]
    parts += [Text(refusal(location, s), style="red") for s in lost]
    return Group(*parts)


def _cells(s: Seen, blocked: Blocked) -> tuple[RenderableType, ...]:
    held = [f"{h['topic']}[{h['partition']}]" for h in document_of(s, blocked)["holds_back"]]
    return (
        Text(s.transactional_id, overflow="fold"),
        Text(s.sink),
        str(s.subtask),
        _or_dash(s.checkpoint_id),
        Text(s.verdict.value, style=_STYLES.get(s.verdict.value, "")),
        _or_dash(s.rows),
        "-" if s.started is None else age(s.started),
        _or_dash(None if s.remaining_ms is None else f"{s.remaining_ms // 1000} s"),
        Text(", ".join(held) or "-"),
    )


def details(location: str, s: Seen, blocked: Blocked) -> RenderableType:
    """The answer of `describe`."""
    facts = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    held = [
        f"{h['topic']}[{h['partition']}] at {h['last_stable']} of {h['end']}"
        for h in document_of(s, blocked)["holds_back"]
    ]
    for name, value in (
        ("id", s.transactional_id),
        ("producer", f"{s.producer_id}, epoch {s.epoch}"),
        ("state", s.state),
        ("decided", s.verdict.value),
        ("checkpoint", _or_dash(s.checkpoint_id)),
        ("sink", f"{s.sink}, subtask {s.subtask}, generation {_or_dash(s.generation)}"),
        ("rows", _or_dash(s.rows)),
        ("opened", "-" if s.started is None else f"{moment(s.started)} ({age(s.started)} ago)"),
        ("timeout", "-" if s.remaining_ms is None else f"in {s.remaining_ms // 1000} s, of {s.timeout_ms // 1000} s"),
        ("partitions", ", ".join(f"{topic}[{number}]" for topic, number in s.partitions) or "-"),
        ("holds back", ", ".join(held) or "-"),
        ("brokers", s.servers),
    ):
        facts.add_row(Text(name, style="bold"), Text(value))
    lost = s.verdict in ("lost", "too old to tell")
    return Group(facts, *([Text(refusal(location, s), style="red")] if lost else []))


def _or_dash(value: object) -> str:
    return "-" if value is None else str(value)
