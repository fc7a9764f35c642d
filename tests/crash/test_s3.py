"""The checkpoint in a bucket, on a bad day: one case of `make s3`, which runs all of them on two servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.cases import CLOUDS, S3, work_for
from tests.crash.s3_scenarios import CLOUD_SINKS, POINTS, SINKS
from tests.crash.scenarios import Case
from tests.servers.s3_stores import Moto


@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", [case for case in S3 if case.always], ids=lambda case: case.id)
def test_r4_with_the_checkpoint_in_a_bucket_every_row_is_delivered_once(case: Case, tmp_path: Path, moto: Moto) -> None:
    with work_for(case, tmp_path / "work", lambda *_: moto) as work:
        case.scenario(work)
        files = {path.relative_to(work.log_folder).parts[0] for path in work.log_folder.rglob("*") if path.is_file()}
    assert {"lineage.json", "decisions", "commits", "generations"} <= files
    assert not (work.folder / "checkpoint").exists()


@pytest.mark.parametrize(("cases", "sinks"), [(S3, SINKS), (CLOUDS, CLOUD_SINKS)], ids=["s3", "clouds"])
def test_every_point_is_tried_on_each_server_in_the_matrix(cases: list[Case], sinks: tuple[str, ...]) -> None:
    assert {(case.point, case.sink) for case in cases} == {(point, sink) for point in POINTS for sink in sinks}
    assert {case.sink for case in cases if case.way == "race"} == set(sinks)
