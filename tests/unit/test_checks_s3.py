"""`holdfast check` with the checkpoint location and the files in an object store: moto's S3 (R2)."""

from __future__ import annotations

import time

import fsspec
import pytest

import holdfast as hf
from holdfast.pipeline.checks.examine import findings
from holdfast.pipeline.checks.registry import Level
from holdfast.pipeline.checks.situation import Place
from tests.integration.checking import situation
from tests.unit.test_store_away import away  # noqa: F401


def test_a_bucket_is_tried_and_left_as_it_was(bucket: str) -> None:
    sink = hf.FileSink(f"s3://{bucket}/orders")
    for only in ("log-store", "log-same", "log-room", "log-lasting", "files"):
        said = findings(situation(f"s3://{bucket}/checkpoint", sink), only=only)
        assert {f.level for f in said} == {Level.OK}, said
    assert fsspec.filesystem("s3").find(bucket) == []


@pytest.mark.contract("R2")
def test_a_store_that_is_away_is_one_fatal_finding(away: None) -> None:  # noqa: F811
    (finding,) = findings(situation("s3://bucket/checkpoint", hf.StdoutSink()))
    assert (finding.check, finding.level, finding.action) == ("log-store", Level.FATAL, "restart")
    assert "does not answer" in finding.text and "object store" in finding.remedy


@pytest.mark.contract("R2")
def test_a_store_that_hangs_is_told_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Place, "used", property(lambda self: time.sleep(30)))
    (finding,) = findings(situation("/nowhere", hf.StdoutSink()), patience=1.0)
    assert (finding.check, finding.action) == ("no-answer", "restart")
