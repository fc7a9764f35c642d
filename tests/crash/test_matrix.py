"""Every point of the fault matrix at least once for each sink; `make matrix` runs each in every way."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.cases import CASES, work_for
from tests.crash.scenarios import Case
from tests.servers.kafka import KafkaBroker


@pytest.mark.parametrize("case", [case for case in CASES if case.always], ids=lambda case: case.id)
def test_after_the_fault_every_row_is_delivered_once(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    def broker(mortal: bool) -> KafkaBroker:
        found: KafkaBroker = request.getfixturevalue("mortal_kafka" if mortal else "kafka")
        return found

    with work_for(case, tmp_path / "work", broker) as work:
        case.scenario(work)


def test_every_point_is_tried_for_each_sink() -> None:
    tried = {(case.point, case.sink) for case in CASES if case.always}
    files = {(p, s) for p in (1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13) for s in ("sqlite", "write-ahead")}
    # Both modes of the Kafka sink, under one decision.
    assert tried == files | {(point, "kafka-both") for point in range(1, 15)}


def test_every_point_is_tried_for_each_kafka_mode_in_the_matrix() -> None:
    tried = {(case.point, case.sink) for case in CASES}
    assert {(p, s) for p in range(1, 15) for s in ("kafka", "kafka-write-ahead")} <= tried
