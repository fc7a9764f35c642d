"""Transactional ids are bounded in number, whatever runs, retries and repairs there are (P4); no broker."""

from __future__ import annotations

import pytest

from holdfast.connectors.kafka.sink import ids
from holdfast.core.naming import Task

FEW, MANY = 5_000, 40_000


def distinct(part: str, numbers: range) -> int:
    """How many ids one subtask has when this part of its task takes these numbers."""
    given = {"generation": 0, "attempt": 0, "repair": 0}
    return len({str(ids.make(_task(**{**given, part: number}))) for number in numbers})


def _task(generation: int, attempt: int, repair: int) -> Task:
    return Task(
        pipeline="orders", lineage="a" * 32, generation=generation, sink="kafka", checkpoint_id=1, subtask=0,
        attempt=attempt, timestamp=0, location="", repair=repair,
    )  # fmt: skip


@pytest.mark.parametrize("part", ["generation", "attempt", "repair"])
def test_p4_ids_of_a_subtask_do_not_grow_with_runs_retries_and_repairs(part: str) -> None:
    assert 1 < distinct(part, range(FEW)) == distinct(part, range(MANY)) <= FEW


def test_p4_a_retry_and_the_next_runs_have_other_ids() -> None:
    mine = ids.make(_task(7, 100, 0))
    near = [_task(g, a, r) for g in (6, 7, 8) for a in range(90, 111) for r in (0, 1)]
    assert [str(ids.make(task)) for task in near].count(str(mine)) == 1
