"""Spark notices another driver at its checkpoint location before holdfast does: its advice is not left to stand."""

from __future__ import annotations

import pytest

from holdfast.spark.failures import QueryFailedError, failure_of

PLACE = "s3a://bucket/checkpoint"


@pytest.mark.parametrize(
    "said",
    [
        f"[STATE_STORE_CHECKPOINT_LOCATION_NOT_EMPTY] The checkpoint location {PLACE}/offsets should be empty on "
        "batch 0\nPlease either use a new checkpoint location, or delete the existing data in the checkpoint location.",
        "[CONCURRENT_STREAM_LOG_UPDATE] Concurrent update to the log. Multiple streaming jobs detected for 3.",
        "java.lang.IllegalStateException: Concurrent update to the log. Multiple streaming jobs detected for 0",
        f"Multiple streaming queries are concurrently using {PLACE}/sources/0",
        f"org.apache.hadoop.fs.FileAlreadyExistsException: {PLACE}/commits/3 already exists",
    ],
)
def test_that_another_driver_is_there_is_said_and_that_nothing_must_be_deleted(said: str) -> None:
    error = failure_of(said)
    assert isinstance(error, QueryFailedError)
    assert "Another driver is at this checkpoint location" in str(error) and "Delete nothing there" in str(error)


@pytest.mark.parametrize("said", ["FileAlreadyExistsException: /data/report.csv", "ValueError: no offsets/3"])
def test_other_failures_are_told_as_they_are(said: str) -> None:
    assert "Another driver" not in str(failure_of(said))
