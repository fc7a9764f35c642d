"""A stateful query killed between the sink's commit and Spark's gives the totals of an undisturbed run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.harness import Work


def totals(work: Work) -> list[tuple[object, ...]]:
    return work.query("SELECT start, word, n, total FROM orders ORDER BY start, word")


@pytest.mark.contract("S1")
@pytest.mark.parametrize("mode", ["update", "append"])
def test_windows_with_a_watermark_survive_a_kill_before_sparks_commit(tmp_path: Path, mode: str) -> None:
    """Point 6: the replay writes nothing, but state and watermark advance; skipping it would brick the query."""
    undisturbed = Work(tmp_path / "undisturbed", "stateful")
    undisturbed.run_clean(output_mode=mode)
    killed = Work(tmp_path / "killed", "stateful")
    killed.crash("batch.return=kill@2", output_mode=mode)
    killed.run_clean(output_mode=mode)
    assert len(totals(undisturbed)) >= 8
    assert totals(killed) == totals(undisturbed)


def test_a_task_that_is_killed_and_retried_within_the_batch_delivers_once(tmp_path: Path) -> None:
    """With task retries (not Spark's local default) the query itself survives; the first attempt's file is swept."""
    work = Work(tmp_path / "work", "write-ahead")
    work.run_clean(fault="task.write=kill@1", master="local[2,3]")
    work.assert_clean()
