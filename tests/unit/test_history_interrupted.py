"""`holdfast history` of batches that nobody is at any more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.model import Committable
from tests.unit.test_status_health import FAILED, beat, dead_pid, location, move, run, start

__all__ = ["dead_pid", "location"]  # fixtures


@pytest.mark.contract("S4")
class TestHistory:
    @pytest.fixture
    def planned(self, location: Path) -> Path:
        (location / "offsets").mkdir(parents=True)
        (location / "offsets" / "0").touch()
        return location

    def entry(self, location: Path) -> dict[str, Any]:
        [entry] = json.loads(run("history", location, "--json").stdout)["checkpoints"]
        return entry

    def test_a_batch_under_way_reads_running(self, planned) -> None:
        beat(start(planned))
        assert self.entry(planned)["status"] == "running"

    def test_one_whose_driver_died_reads_interrupted(self, planned, dead_pid) -> None:
        log = start(planned)
        beat(log)
        move(log, pid=dead_pid)
        found = self.entry(planned)
        assert (found["status"], found["error"]) == ("interrupted", "its driver is gone without a word")
        assert found["generation"] == 0

    def test_one_whose_run_failed_reads_interrupted_with_the_error(self, planned) -> None:
        beat(start(planned), "failed", error=FAILED)
        found = self.entry(planned)
        assert (found["status"], found["error"]) == ("interrupted", "LostError: rows are gone")

    def test_one_whose_run_was_stopped(self, planned) -> None:
        beat(start(planned), "ended")
        assert self.entry(planned)["error"] == "the query was stopped"

    def test_one_that_was_decided_when_its_driver_died(self, planned, dead_pid) -> None:
        """No statistics say so, its record does."""
        log = start(planned)
        log.decide(
            0, ["a", "b"], [Committable("a", 1, {}, rows=7), Committable("b", 1, {}, rows=5)], timestamp=1, state={}
        )
        beat(log)
        move(log, pid=dead_pid)
        found = self.entry(planned)
        assert (found["status"], found["rows"], found["subtasks"]) == ("decided", 7, 1)
        assert found["error"] == "its driver is gone without a word"
