"""Which replayed subtask holds the rows of which lost one (rule 4)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.core.model import Committable


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

    @property
    def possible(self) -> bool:
        """Whether every lost committable was found in the replay."""
        return not self.unmatched


def plan_repair(lost: Iterable[Committable], replay: Iterable[Replayed]) -> RepairPlan:
    """Match lost committables to replayed subtasks by content, never by index: indexes move between runs.

    Equal content is interchangeable, so when a committed sibling holds the same rows as a lost one either replayed
    subtask will do; but a replayed subtask is used once.
    """
    free: dict[tuple[int, str | None], list[int]] = {}
    for subtask in sorted(replay, key=lambda r: r.subtask):
        free.setdefault((subtask.rows, subtask.digest), []).append(subtask.subtask)
    matches: list[tuple[Committable, int]] = []
    unmatched: list[Committable] = []
    for committable in sorted(lost, key=lambda c: c.subtask):
        candidates = free.get((committable.rows, committable.digest), [])
        if candidates:
            matches.append((committable, candidates.pop(0)))
        else:
            unmatched.append(committable)
    return RepairPlan(tuple(matches), tuple(unmatched))
