"""Drivers of the crash tests that outlive the end of their query: no pipeline comes to the same one twice."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.core import faults
from tests.crash import warm
from tests.crash.processes import end

#: What tests.crash.job does, without Spark.
JOB = """
import json, os, signal, sys
for line in sys.stdin:
    says = json.loads(line)["says"]
    with open(os.environ["HOLDFAST_FAULT"].removeprefix("@")) as file:
        print(os.getpid(), says, file.read().split("\\n"), flush=True)
    if says == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    os.write(int(sys.argv[1]), b"1" if says == "fail" else b"0")
"""
Start = Callable[..., warm.WarmRun]


@pytest.fixture
def pool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[warm.Pool]:
    made = warm.Pool(tmp_path)
    monkeypatch.setattr(warm, "POOL", made)
    yield made
    made.close()


@pytest.fixture
def start(pool: warm.Pool, tmp_path: Path) -> Start:
    def start(
        says: str = "fine", before: tuple[int, ...] = (), conf: dict[str, str] | None = None, **env: str
    ) -> warm.WarmRun:
        command, log = [sys.executable, "-c", JOB], tmp_path / f"{says}.log"
        spec = {"says": says, **({"conf": conf} if conf else {})}
        return pool.start(command, {**os.environ, **env}, tmp_path, log, spec, before)

    return start


def test_one_that_has_ended_serves_the_next_and_its_end_is_told(start: Start, tmp_path: Path) -> None:
    first = start("fine")
    assert first.wait(60) == 0
    end(first)
    second = start("fail")
    assert second.wait(60) == 1
    assert second.pid == first.pid
    end(second)
    assert (tmp_path / "fine.log").read_text() == f"{first.pid} fine ['', '']\n"
    assert (tmp_path / "fail.log").read_text() == f"{first.pid} fail ['', '']\n", "and nothing of the run before"


def test_no_pipeline_comes_to_the_same_process_twice(start: Start) -> None:
    first = start("fail")
    first.wait(60)
    end(first)
    second = start(before=(first.pid,))
    second.wait(60)
    end(second)
    assert second.pid != first.pid
    third = start()
    third.wait(60)
    end(third)
    assert third.pid == first.pid, "the one that has waited longest"


def test_one_that_is_killed_is_gone(start: Start) -> None:
    run = start("die")
    assert run.wait(60) == -signal.SIGKILL
    end(run)
    again = start()
    assert again.wait(60) == 0 and again.pid != run.pid
    end(again)


def test_one_that_is_busy_is_not_taken(start: Start) -> None:
    runs = [start(), start()]
    assert len({run.pid for run in runs}) == 2
    for run in runs:
        run.wait(60)
        end(run)


def test_a_fault_is_that_of_its_run_and_not_of_the_process(start: Start, tmp_path: Path) -> None:
    armed = start("armed", **{faults.VARIABLE: "decision=error", faults.ONCE: str(tmp_path)})
    armed.wait(60)
    end(armed)
    plain = start("plain", **{faults.ONCE: str(tmp_path)})
    plain.wait(60)
    end(plain)
    assert plain.pid == armed.pid
    assert (tmp_path / "armed.log").read_text().endswith(f"armed ['decision=error', '{tmp_path}']\n")
    assert (tmp_path / "plain.log").read_text().endswith(f"plain ['', '{tmp_path}']\n")


def test_one_whose_spark_was_told_otherwise_is_not_taken(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "WAITING", 2)

    def served(conf: dict[str, str]) -> int:
        run = start(conf=conf)
        run.wait(60)
        end(run)
        return run.pid

    plain, azure = served({}), served({"store": "azure"})
    assert plain != azure
    assert (served({}), served({"store": "azure"})) == (plain, azure)
    google = served({"store": "google"})
    assert served({"store": "azure"}) == azure and served({"store": "google"}) == google
    assert served({}) != plain, "it had waited longest when room was needed"


def test_after_some_runs_it_is_replaced(start: Start) -> None:
    pids = set()
    for _ in range(warm.RUNS + 1):
        run = start()
        run.wait(60)
        end(run)
        pids.add(run.pid)
    assert len(pids) == 2
