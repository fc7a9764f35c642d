"""How far a sink got, told by names of empty files: `ledger/<lineage>/<checkpoint>-<roll>` (rule 10).

Names are only ever added, and the largest counts: a paused driver that wakes up cannot move it back. Older names are
removed, so it does not grow. Marks of a location that was taken over from are in `aside/`: they refuse nobody any more,
and still tell which of its hidden files hold decided rows.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from holdfast.connectors.files.parts import Folder

_MARK = re.compile(r"(?:ledger|aside)/([0-9a-f]{32})/(-1|\d+)_(-1|\d+)")


LEDGER, ASIDE = "ledger", "aside"


@dataclass(frozen=True, order=True)
class Mark:
    """Everything up to this checkpoint is committed, and every roll up to this number is done."""

    checkpoint: int = -1
    roll: int = -1

    def file(self, lineage: str, place: str = LEDGER) -> str:
        """Its name."""
        return f"{place}/{lineage}/{self.checkpoint}_{self.roll}"

    def join(self, other: Mark) -> Mark:
        """The further of both, in both."""
        return Mark(max(self.checkpoint, other.checkpoint), max(self.roll, other.roll))


def read_marks(folder: Folder, *places: str) -> dict[str, Mark]:
    """How far each lineage got, as the ledger says, or all of `places` together."""
    found: dict[str, Mark] = {}
    for place in places or (LEDGER,):
        for name in folder.storage.walk(folder.hidden(place)):
            match = _MARK.fullmatch(name.removeprefix(f"{folder.home}/"))
            if match is not None:
                found[match[1]] = found.get(match[1], Mark()).join(Mark(int(match[2]), int(match[3])))
    return found


def write_mark(folder: Folder, lineage: str, mark: Mark) -> None:
    """Add a mark, durably, then forget those it includes."""
    folder.storage.replace(folder.hidden(mark.file(lineage)), b"")
    for file in folder.storage.names(folder.hidden(f"ledger/{lineage}")):
        match = _MARK.fullmatch(f"ledger/{lineage}/{file}")
        if match is not None:
            other = Mark(int(match[2]), int(match[3]))
            if other != mark and mark.join(other) == mark:
                folder.storage.delete(folder.hidden(other.file(lineage)))


def move_aside(folder: Folder, lineages: Collection[str]) -> None:
    """Set the marks of these lineages aside: what a take-over does."""
    for lineage, mark in read_marks(folder).items():
        if lineage in lineages:
            folder.storage.replace(folder.hidden(mark.file(lineage, ASIDE)), b"")
            for file in folder.storage.names(folder.hidden(f"{LEDGER}/{lineage}")):
                folder.storage.delete(folder.hidden(f"{LEDGER}/{lineage}/{file}"))
