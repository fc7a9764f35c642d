"""Which replayed subtask holds the rows of which lost one (rule 4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.core.model import Committable

_WRAP = 1 << 64


@dataclass(frozen=True)
class Replayed:
    """What the hash pass saw in one subtask of the replay."""

    subtask: int
    rows: int
    digest: str


@dataclass(frozen=True)
class RepairPlan:
    """Which replayed subtask is produced again in place of which lost committable."""

    matches: tuple[tuple[Committable, int], ...]
    unmatched: tuple[Committable, ...]
    #: replayed subtasks that hold nothing recorded, lost or not
    rest: tuple[int, ...] = ()
    #: the rest together holds just the rows of the unmatched together: they were only split in another way
    rest_is_unmatched: bool = False

    @property
    def possible(self) -> bool:
        """Whether all lost rows were found in the replay, and nothing else would be produced with them."""
        return not self.unmatched or self.rest_is_unmatched


def plan_repair(
    lost: Iterable[Committable], replay: Iterable[Replayed], kept: Iterable[Committable] = ()
) -> RepairPlan:
    """Match lost committables to replayed subtasks by content, never by index: indexes move between runs.

    Equal content is interchangeable, so when a committed sibling (`kept`) holds the same rows as a lost one either
    replayed subtask will do; but a replayed subtask is used once. Digests are sums, so lost rows that the replay splits
    in another way are still recognised as a whole.
    """
    seen = {r.subtask: r for r in replay}
    free: dict[tuple[int, str | None], list[int]] = {}
    for subtask in sorted(seen):
        free.setdefault((seen[subtask].rows, seen[subtask].digest), []).append(subtask)

    def take(committable: Committable) -> int | None:
        candidates = free.get((committable.rows, committable.digest), [])
        return candidates.pop(0) if candidates else None

    for committable in sorted(kept, key=lambda c: c.subtask):
        take(committable)
    matches: list[tuple[Committable, int]] = []
    unmatched: list[Committable] = []
    for committable in sorted(lost, key=lambda c: c.subtask):
        found = take(committable)
        if found is None:
            unmatched.append(committable)
        else:
            matches.append((committable, found))
    rest = tuple(sorted(number for numbers in free.values() for number in numbers))
    same = total([(c.rows, c.digest) for c in unmatched]) == total([(seen[n].rows, seen[n].digest) for n in rest])
    return RepairPlan(tuple(matches), tuple(unmatched), rest, same and bool(unmatched))


def total(parts: Iterable[tuple[int, str | None]]) -> tuple[int, int] | None:
    """Rows and digest of all parts together; None when one of them has no digest."""
    rows = digest = 0
    for count, text in parts:
        if text is None:
            return None
        rows, digest = rows + count, (digest + int(text, 16)) % _WRAP
    return rows, digest
