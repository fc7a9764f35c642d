"""The suite itself, when its tests run side by side."""

import os

import pytest


@pytest.mark.parametrize("server", ["", "[in brackets]"])
def test_tests_of_one_server_or_file_stay_with_one_worker(request: pytest.FixtureRequest, server: str) -> None:
    """Else each worker starts a Kafka, a Cassandra, a PostgreSQL and a Spark of its own."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        assert request.node.nodeid.rpartition("@")[2] == "tests/unit/test_side_by_side.py"
    marks = [mark.args for mark in request.node.iter_markers("xdist_group")]
    assert marks == [("tests/unit/test_side_by_side.py",)]
