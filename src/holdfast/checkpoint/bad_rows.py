"""Bad rows of a checkpoint: what sinks refused and routes rejected, and how many may go to the dead letters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.ports import SubtaskReport
from holdfast.core.model import CheckpointId
from holdfast.errors import RowError

#: bad rows that an error shows
SHOWN = 3
#: ... and how many characters of each: a row may have megabytes
_LONGEST = 60
#: a checkpoint of fewer rows counts as one of so many when `max_ratio` is looked at: one bad row of ten is no trend
SMALLEST = 1000


@dataclass(frozen=True)
class Letters:
    """Which sinks take dead letters, and how many there may be in a checkpoint."""

    sinks: tuple[str, ...]
    max_ratio: float | None = None
    max_rows: int | None = None


def check(checkpoint_id: CheckpointId, reports: Sequence[SubtaskReport], letters: Letters | None) -> None:
    """Refuse a checkpoint that has more bad rows than it may have; without dead letters that is none."""
    bad, rows = sum(report.bad for report in reports), sum(report.rows for report in reports)
    if not bad:
        return
    first = [one for report in reports for one in report.first_bad]
    told = f"{bad:,} of its {rows:,} rows, counted for each sink,"
    if letters is None:
        raise too_many(checkpoint_id, told, first)
    if letters.max_rows is not None and bad > letters.max_rows:
        raise too_many(checkpoint_id, told, first, f"max_rows={letters.max_rows}")
    if letters.max_ratio is not None and bad > letters.max_ratio * max(rows, SMALLEST):
        raise too_many(checkpoint_id, told, first, f"max_ratio={letters.max_ratio}")


def too_many(
    checkpoint_id: CheckpointId, count: str, first: Sequence[Mapping[str, Any]], limit: str | None = None
) -> RowError:
    """The error about bad rows: how many, and the first three."""
    several = len({one["sink"] for one in first[:SHOWN]}) > 1
    shown = "; ".join((f"sink {one['sink']!r}: " if several else "") + str(one["content"]) for one in first[:SHOWN])
    remedy = (
        "Correct the query, or set them aside: write_stream(..., dead_letters=hf.DeadLetters(...))"
        if limit is None
        else f"The dead letters allow {limit}: correct the query, or raise the limit"
    )
    return RowError(
        f"{str(first[0]['message']).rstrip('.')}. In checkpoint {checkpoint_id} {count} are bad, and nothing of it is "
        f"decided. The first: {shown}. {remedy}",
        column=first[0]["column"],
        reason=first[0]["reason"],
    )


def short(text: str) -> str:
    """A row's content as an error shows it; no more of it leaves the task."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"
