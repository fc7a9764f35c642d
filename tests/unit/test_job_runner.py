"""`holdfast run`: signals, restarts, exit codes; a query that Spark does not know stands in for the real one (R1)."""

from __future__ import annotations

import configparser
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from holdfast.errors import FIX, OPERATOR, ConfigError, FencedError, HoldfastError, SinkError
from holdfast.pipeline import runner as module
from holdfast.pipeline.model import Restart
from holdfast.pipeline.runner import CODES, Runner


class FakeQuery:
    """Ends as its script says: an error, None for a clean end, or it runs until it is stopped."""

    def __init__(self, end: Any, progress: bool = False) -> None:
        self.end, self.stops, self.isActive = end, [], True
        coordinator = SimpleNamespace(complete_through=None)
        self.running = SimpleNamespace(coordinator=coordinator)
        self._progress = progress

    def awaitTermination(self, timeout: int) -> bool:
        if self._progress:
            self.running.coordinator.complete_through = 3
            self._progress = False
            return False
        if self.end == "runs":
            time.sleep(0.05)
            return not self.isActive
        self.isActive = False
        if self.end is not None:
            raise self.end
        return True

    def stop(self, now: bool = False) -> None:
        self.stops.append(now)
        while self.end == "hangs at stop" and not now:
            time.sleep(0.05)
        self.isActive = False


class FakeJob:
    def __init__(self, *queries: Any) -> None:
        self.queries, self.take_overs = list(queries), []

    def session(self) -> Any:
        return None

    def writer(self, spark: Any, *, take_over: bool = False) -> Any:
        self.take_overs.append(take_over)
        query = self.queries.pop(0)
        if isinstance(query, Exception):
            raise query
        return SimpleNamespace(start=lambda: query)


class Said:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.running = threading.Event()

    def started(self, query: Any, writer: Any) -> None:
        self.running.set()

    def look(self) -> None: ...

    def say(self, sentence: str) -> None:
        self.lines.append(sentence)

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def fakes_are_queries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "HoldfastQuery", FakeQuery)
    before = signal.getsignal(signal.SIGTERM)
    yield
    assert signal.getsignal(signal.SIGTERM) is before


def run(*queries: Any, attempts: int = 0, **options: Any) -> tuple[int, list[str], FakeJob]:
    said, job = Said(), FakeJob(*queries)
    code = Runner(job, said, restart=Restart(attempts=attempts, backoff="10ms..20ms"), **options).run()
    return code, said.lines, job


def send_when_running(said: Said, *numbers: int) -> None:
    def send() -> None:
        said.running.wait(60)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(0.3)

    threading.Thread(target=send, daemon=True).start()


def test_a_run_that_ends_by_itself_is_a_success() -> None:
    assert run(FakeQuery(None))[:2] == (0, [])


@pytest.mark.parametrize(
    ("error", "code"), [(SinkError("away"), 1), (FencedError("another"), 2), (ConfigError("wrong"), 3)]
)
def test_the_exit_code_is_what_to_do_about_the_error(error: HoldfastError, code: int) -> None:
    got, said, _ = run(FakeQuery(error))
    assert got == code
    assert said == [f"{type(error).__name__} ({error.action}): {error}"]


def test_errors_that_a_restart_may_mend_are_tried_again() -> None:
    code, said, job = run(FakeQuery(SinkError("a")), SinkError("at the start"), FakeQuery(None), attempts=2)
    assert code == 0 and job.queries == []
    assert [line.partition("; ")[2] for line in said] == [
        "starting again in 0.01 s, attempt 1 of 2",
        "starting again in 0.02 s, attempt 2 of 2",
    ]


def test_others_are_not_and_attempts_end() -> None:
    assert run(FakeQuery(FencedError("x")), FakeQuery(None), attempts=9)[0] == 2
    assert run(*[FakeQuery(SinkError("x")) for _ in range(3)], attempts=2)[0] == 1


def test_a_completed_checkpoint_begins_the_count_anew() -> None:
    failing = [FakeQuery(SinkError("x"), progress=True) for _ in range(3)]
    assert run(*failing, FakeQuery(None), attempts=1)[0] == 0


def test_a_take_over_is_for_the_first_start_only() -> None:
    _, _, job = run(FakeQuery(SinkError("x")), FakeQuery(None), attempts=1, take_over=True)
    assert job.take_overs == [True, False]


def test_what_the_users_code_raises_is_an_error_of_the_job() -> None:
    code, said, _ = run(KeyError("amount"))
    assert code == 3
    assert said == ["ConfigError (fix): the job could not be built: KeyError: 'amount'"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_after_the_current_checkpoint(number: int) -> None:
    query, said = FakeQuery("runs"), Said()
    send_when_running(said, number)
    assert Runner(FakeJob(query), said).run() == 0
    assert query.stops == [False]


@pytest.mark.parametrize("broken", [True, False], ids=["and Spark is gone", "and Spark is not"])
def test_a_signal_before_the_start_is_the_end_and_no_error_of_the_job(broken: bool) -> None:
    query, said = FakeQuery("runs"), Said()

    def session() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        if broken:
            raise OSError("Error while sending or receiving")

    job = FakeJob(query)
    job.session = session  # type: ignore[method-assign]
    assert Runner(job, said).run() == 0
    assert said.lines == ["stopped before the query was started"] and not said.running.is_set()


def test_a_second_signal_ends_it_at_once() -> None:
    query, said = FakeQuery("runs"), Said()
    send_when_running(said, signal.SIGTERM, signal.SIGTERM)
    query.stop = lambda now=False: _hang(query) if not now else _end(query)  # type: ignore[method-assign]
    assert Runner(FakeJob(query), said).run() == 128 + signal.SIGTERM
    assert said.lines[-1].startswith("stopped at once")


def _hang(query: FakeQuery) -> None:
    while query.isActive:
        time.sleep(0.05)


def _end(query: FakeQuery) -> None:
    query.isActive = False


def test_a_signal_while_it_waits_for_the_next_attempt_ends_it_with_the_errors_code() -> None:
    said, job = Said(), FakeJob(FakeQuery(SinkError("away")), FakeQuery(None))
    send_when_running(said, signal.SIGTERM)
    assert Runner(job, said, restart=Restart(attempts=5, backoff="30s")).run() == 1
    assert len(job.queries) == 1


def test_the_unit_and_the_manifest_of_the_docs_fit_the_exit_codes() -> None:
    page = (Path(__file__).parents[2] / "docs" / "job-files.md").read_text()
    unit = configparser.ConfigParser()
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(re.findall(r"```ini\n(.*?)```", page, re.S)[0])
    service = unit["Service"]
    assert service["Restart"] == "on-failure" and service["KillMode"] == "mixed"
    assert sorted(map(int, service["RestartPreventExitStatus"].split())) == [CODES[OPERATOR], CODES[FIX]]
    (manifest,) = (yaml.safe_load(t) for t in re.findall(r"```yaml\n(.*?)```", page, re.S) if "apiVersion" in t)
    assert (manifest["spec"]["replicas"], manifest["spec"]["strategy"]) == (1, {"type": "Recreate"})
    pod = manifest["spec"]["template"]
    assert pod["metadata"]["labels"] == manifest["spec"]["selector"]["matchLabels"]
    (container,) = pod["spec"]["containers"]
    mounted = {mount["name"] for mount in container["volumeMounts"]}
    assert mounted == {volume["name"] for volume in pod["spec"]["volumes"]}
    assert container["args"][:2] == service["ExecStart"].removeprefix("/opt/holdfast/bin/").split()[:2]
