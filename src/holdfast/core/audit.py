"""Counting rows: each delivered, and once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class AuditReport:
    """What came out against what went in; ids stand for rows."""

    rows_in: int
    rows_out: int
    lost: tuple[Any, ...] = field(repr=False, default=())
    doubled: tuple[Any, ...] = field(repr=False, default=())
    #: ids that came out but never went in
    strangers: tuple[Any, ...] = field(repr=False, default=())

    @property
    def ok(self) -> bool:
        """Every row once, and nothing else."""
        return not (self.lost or self.doubled or self.strangers)

    @property
    def nothing_lost(self) -> bool:
        """Every row at least once, and nothing that never went in."""
        return not (self.lost or self.strangers)

    def __str__(self) -> str:
        text = f"in {self.rows_in}, out {self.rows_out}, lost {len(self.lost)}, doubled {len(self.doubled)}"
        return text + (f", never sent {len(self.strangers)}" if self.strangers else "")


def audit(sent: Iterable[Hashable], received: Iterable[Hashable]) -> AuditReport:
    """Compare the ids that went in with those that came out, as multisets.

    An id that came out more often than it went in is listed in `doubled` once for each time too many.
    """
    into, out = Counter(sent), Counter(received)
    doubled = {row: count - into[row] for row, count in out.items() if into[row] and count > into[row]}
    return AuditReport(
        rows_in=into.total(),
        rows_out=out.total(),
        lost=tuple((into - out).elements()),
        doubled=tuple(Counter(doubled).elements()),
        strangers=tuple(row for row in out if row not in into),
    )
