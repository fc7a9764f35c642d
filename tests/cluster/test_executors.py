"""Point 15 of the fault matrix, each way once; `make cluster` runs each for every sink."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.crash.cases import CLUSTER, work_for
from tests.crash.cluster_scenarios import SINKS
from tests.crash.scenarios import Case
from tests.servers.spark_cluster import SparkCluster


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", [case for case in CLUSTER if case.always], ids=lambda case: case.id)
def test_r4_whatever_happens_to_executors_every_row_is_delivered_once(
    case: Case, tmp_path: Path, request: pytest.FixtureRequest, spark_cluster: SparkCluster
) -> None:
    def server(name: str, mortal: bool) -> Any:
        assert not mortal
        return request.getfixturevalue(name)

    with work_for(case, tmp_path / "work", server) as work:
        case.scenario(work)


def test_every_way_is_tried_once_and_for_every_sink_in_the_matrix() -> None:
    ways = {case.way for case in CLUSTER if case.sink == "write-ahead"}
    single = ways - {"both", "in a task", "prepared", "decommissioned", "driver killed", "delivered, not marked"}
    assert single <= {case.way for case in CLUSTER if case.always}
    assert {case.sink for case in CLUSTER} == set(SINKS)
