"""Every point of the fault matrix at least once; `make matrix` runs each for every sink and in every way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.crash.cases import CASES, SINKS, work_for
from tests.crash.scenarios import Case
from tests.crash.stores_work import STORES

#: Several endpoints under one decision; each of them has a column of its own.
TOGETHER = ("beside", "stores", "kafka-both", "kafka-three", "kafka-few", "routes")


def in_make_test() -> Iterator[Any]:
    """Its cases; those with a Cassandra where the other tests of one are, since each worker would start its own."""
    for case in CASES:
        if case.always:
            needs = "cassandra" in STORES.get(case.sink, ())
            yield pytest.param(case, id=case.id, marks=[pytest.mark.xdist_group("cassandra")] if needs else [])


@pytest.mark.contract("T2")
@pytest.mark.parametrize("case", in_make_test())
def test_after_the_fault_every_row_is_delivered_once(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def server(name: str, mortal: bool) -> Any:
        return request.getfixturevalue(f"mortal_{name}" if mortal else name)

    with work_for(case, tmp_path / "work", server) as work:
        case.scenario(work)


def test_every_point_is_tried() -> None:
    tried = {(point, case.sink) for case in CASES if case.always for point in case.points}
    points = {1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13}
    assert points <= {point for point, sink in tried if sink in ("sqlite", "write-ahead")}
    # Both modes of the Kafka sink, under one decision.
    assert {(point, "kafka-both") for point in range(1, 15)} <= tried
    # Files, both modes of PostgreSQL, and Cassandra: under one decision where they do the same.
    assert {(12, s) for s in ("files", "postgres-two-phase", "cassandra")} <= tried
    assert {4, 5} <= {
        point for point, sink in tried if sink in ("files", "postgres", "postgres-two-phase", "cassandra")
    }
    assert {(point, "stores") for point in (1, 2, 3, 6, 8, 9, 11, 13, 14)} <= tried


def test_every_point_is_tried_for_each_sink_in_the_matrix() -> None:
    tried = {(case.point, case.sink) for case in CASES}
    assert {(p, s) for p in range(1, 15) for s in ("kafka", "kafka-write-ahead")} <= tried
    points = {1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13}
    assert {(p, s) for p in points for s in ("files", "sqlite", "write-ahead")} <= tried
    assert {(16, "beside"), (18, "beside"), (19, "kafka-three")} <= tried
    assert {(17, s) for s in SINKS if s not in TOGETHER} <= tried
    assert {
        (p, s) for p in points | {14} for s in ("postgres", "postgres-log", "postgres-two-phase", "cassandra")
    } <= tried
