"""Every point of the fault matrix at least once for each sink; `make matrix` runs each in every way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.harness import Work
from tests.crash.scenarios import CASES, Case


@pytest.mark.parametrize("case", [case for case in CASES if case.always], ids=lambda case: case.id)
def test_after_the_fault_every_row_is_delivered_once(case: Case, tmp_path: Path) -> None:
    case.scenario(Work(tmp_path / "work", case.sink))


def test_every_point_is_tried_for_each_sink() -> None:
    tried = {(case.point, case.sink) for case in CASES if case.always}
    assert tried == {(p, s) for p in (1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13) for s in ("sqlite", "write-ahead")}
