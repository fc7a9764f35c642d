"""A failure is one for everybody, and an ordinary stop is none (rules 13 and 17; D2, D7, D8)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.crash.endpoint_scenarios import hung_endpoint
from tests.crash.harness import ROWS, Work, input_row, status

#: All that a stop at once may print, line by line, since two workers may say it at the same time: PySpark's words when
#: Spark hangs up on a worker in the middle of a task.
HUNG_UP = re.compile(
    r'Traceback \(most recent call last\):|  File "\S+/pyspark/daemon\.py", line \d+, in (manager|worker)|'
    r"BrokenPipeError: \[Errno 32\] Broken pipe"
)


class Failing(Work):
    """Runs tests.crash.failing_job."""

    module = "tests.crash.failing_job"

    def table(self, name: str = "orders") -> list[Any]:
        """The rows of a table."""
        return sorted(Work.received(self, name))


def restarted(work: Failing) -> Work:
    """The same folder for the ordinary driver, with the sinks that are left."""
    work.module = Work.module
    return work


@pytest.fixture
def work(tmp_path: Path) -> Failing:
    return Failing(tmp_path / "work", "beside")


def test_d7_an_endpoint_that_breaks_between_two_batches_fails_the_query_for_everybody(work: Failing) -> None:
    code = work.run(does="fails_between_batches")
    assert code != 0, f"the process ended well\n{work.log()}"
    seen = work.seen()
    assert seen["raised"]["type"] == "RowError" and seen["raised"]["action"] == "fix", seen
    assert "the endpoint takes no such rows" in seen["exception"], seen
    assert len(seen["listener"]) == 1 and seen["listener"][0], f"Spark's listeners saw a clean end: {seen}"
    told = status(work)
    assert told.returncode != 0, told.stdout + told.stderr
    assert "the endpoint takes no such rows" in told.stdout + told.stderr
    for file in ("down", "broken"):
        (work.folder / "endpoint" / file).unlink()
    restarted(work).run_clean()
    assert work.table() == [input_row(n) for n in work.sent()]
    work.assert_clean()


def test_d8_a_bounded_run_into_an_endpoint_that_is_down_fails_and_the_next_delivers(tmp_path: Path) -> None:
    work = Work(tmp_path / "work", "write-ahead")
    work.cold = True  # that its process ends by itself, with that code, is what this is about
    (work.folder / "endpoint").mkdir()
    down = work.folder / "endpoint" / "down"
    down.touch()
    code = work.run(drain_timeout=3)
    assert code == 1 and "UndeliveredError" in work.log(), f"exit code {code}\n{work.log()}"
    for text in ("sink 'folder'", "checkpoint 0", f"{ROWS} rows"):
        assert text in work.log(), f"{text}\n{work.log()}"
    assert work.received("endpoint") == []
    down.unlink()
    work.cold = False
    work.run_clean()
    work.assert_clean()


def test_d7_a_query_whose_java_process_dies_fails_with_our_error_and_can_start_again(
    work: Failing,
) -> None:
    work.run_clean(does="loses_spark")
    seen = work.seen()
    assert seen["raised"]["type"] == "SparkGoneError" and seen["raised"]["action"] == "restart", seen
    assert "Java process has ended" in seen["raised"]["text"], seen
    assert seen["active"] is False and "Java process has ended" in seen["exception"], seen
    assert seen["status"]["code"] != 0 and "Java process has ended" in seen["status"]["text"], seen
    assert work.table() == [input_row(n) for n in work.sent()]


def test_an_ordinary_stop_in_the_middle_of_a_batch_prints_nothing_and_leaves_nothing(work: Failing) -> None:
    work.run_clean(does="is_stopped")
    seen = work.seen()
    assert seen["left now=False"] == [] and seen["left now=True"] == [], seen
    # It waits ten seconds for the checkpoint under way, which takes two; on a machine that is too busy it may not.
    assert seen["decided now=False"] > 0 or seen["took now=False"] > 10, "the checkpoint under way was cut off"
    assert seen["took now=False"] < 30 and seen["took now=True"] < 30, seen
    printed = work.printed().partition("STOP now=False")[2].partition("STOPPED now=False")[0]
    assert printed.strip() == "", printed
    at_once = work.printed().partition("STOP now=True\n")[2]
    assert [line for line in at_once.splitlines() if not HUNG_UP.fullmatch(line)] == ["STOPPED now=True"], at_once
    assert seen["listener"] == [None, None], seen


@pytest.mark.timeout(400)
def test_d2_an_endpoint_that_hangs_holds_up_neither_the_stream_nor_a_stop_nor_another_pipeline(tmp_path: Path) -> None:
    hung_endpoint(Work(tmp_path / "work", "beside"))
