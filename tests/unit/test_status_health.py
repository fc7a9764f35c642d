"""`holdfast status` for a pager: alive, fresh, owed, stuck, crash-looping; healthy, degraded, down (R7)."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.checkpoint import records
from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.pulse import Pulse
from holdfast.checkpoint.runs import note_command
from holdfast.checkpoint.storage import open_storage
from holdfast.cli.app import app
from holdfast.connectors.files.rolling import Rolling
from holdfast.connectors.files.sink import FileSink
from holdfast.core.model import Committable
from holdfast.errors import LostError, SinkError
from tests.unit.inprocess import Engine


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def shown(location: Path, *options: str) -> tuple[int, dict[str, Any]]:
    result = run("status", location, "--json", *options)
    return result.exit_code, json.loads(result.stdout)


def start(location: Path) -> CheckpointLog:
    log = CheckpointLog(open_storage(log_location(str(location))), "orders")
    log.start()
    return log


def decide(log: CheckpointLog, number: int, *committed: str, ago: float = 1.0, took: float = 0.5) -> None:
    at = int((time.time() - ago) * 1000)
    committables = [Committable(sink, 0, {"x": number}, rows=10, bytes=100) for sink in ("db", "web")]
    log.decide(number, ("db", "web"), committables, timestamp=at, state={})
    for sink in committed:
        log.record_commit(number, sink, {"at": at + int(took * 1000)})


def beat(log: CheckpointLog, state: str = "running", *, ago: float = 0.0, error: Any = None, **sinks: Any) -> None:
    now = int((time.time() - ago) * 1000)
    body = {"generation": log.generation, "state": state, "started": now, "at": now, "every": 5.0}
    data = records.encode("run", records.new_nonce(), {**body, "sinks": sinks, "error": error})
    log.storage.replace(f"runs/{log.generation}.json", data)


def move(log: CheckpointLog, *, host: str | None = None, pid: int | None = None, ago: float = 0.0) -> None:
    """Make the claim of a generation another process's."""
    path = f"generations/{log.generation}"
    body = records.decode(log.storage.read(path), "", "generation")
    new = {"host": host or body["host"], "pid": pid or body["pid"], "started": body["started"] - int(ago * 1000)}
    log.storage.replace(path, records.encode("generation", body["nonce"], {**body, **new}))


@pytest.fixture
def location(tmp_path: Path) -> Path:
    return tmp_path / "checkpoint"


@pytest.fixture
def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
        return child.pid


FAILED = {"type": "LostError", "message": "rows are gone\nlong story", "action": "operator"}


@pytest.mark.contract("R7")
class TestDriver:
    def test_one_that_runs_and_keeps_up_is_healthy(self, location) -> None:
        log = start(location)
        decide(log, 0, "db", "web", ago=2000.0, took=1000.0)
        beat(log)
        code, found = shown(location)
        assert (code, found["health"], found["reasons"]) == (0, "healthy", [])
        assert (found["owner"]["alive"], found["owner"]["state"]) == (True, "running")
        assert 1000 <= found["freshness_seconds"] < 1500, "complete is when the last sink had committed"
        assert "(running)" in run("status", location).stdout

    def test_a_run_that_ended_with_nothing_owed_is_healthy_and_stopped(self, location, dead_pid) -> None:
        log = start(location)
        decide(log, 0, "db", "web")
        beat(log, "ended", ago=3600.0)
        move(log, pid=dead_pid)
        code, found = shown(location)
        assert (code, found["health"], found["owner"]["state"]) == (0, "healthy", "ended")
        assert "healthy: stopped, nothing is owed" in run("status", location).stdout

    def test_a_run_that_ended_and_owes_is_down(self, location) -> None:
        log = start(location)
        decide(log, 0, "db")
        beat(log, "ended")
        code, found = shown(location)
        assert (code, found["health"]) == (2, "down")
        assert "sinks owe checkpoints (web 1)" in found["reasons"][0]

    def test_a_run_that_failed_is_down_with_its_error_and_what_to_do(self, location) -> None:
        log = start(location)
        decide(log, 0, "db", "web")
        beat(log, "failed", ago=90.0, error=FAILED)
        code, found = shown(location)
        assert (code, found["health"]) == (2, "down")
        assert "a person has to look and decide: LostError: rows are gone" in found["reasons"][0]
        error = found["last_error"]
        assert (error["type"], error["action"], error["generation"]) == ("LostError", "operator", 0)
        assert "LostError (operator), 1 min ago: rows are gone" in run("status", location).stdout
        assert "long story" not in run("status", location).stdout.split("last error")[1]

    def test_a_process_that_is_gone_without_a_word_is_down(self, location, dead_pid) -> None:
        log = start(location)
        decide(log, 0, "db", "web")
        beat(log)
        move(log, pid=dead_pid)
        code, found = shown(location)
        assert (code, found["owner"]["alive"], found["owner"]["state"]) == (2, False, "dead")
        assert f"process {dead_pid}" in found["reasons"][0] and "gone without a word" in found["reasons"][0]

    @pytest.mark.parametrize(
        ("ago", "alive", "code"), [(2.0, True, 0), (14.0, True, 0), (16.0, False, 2)], ids=["young", "late", "old"]
    )
    def test_on_another_host_the_age_of_its_last_beat_tells(self, location, ago, alive, code) -> None:
        log = start(location)
        decide(log, 0, "db", "web")
        beat(log, ago=ago)
        move(log, host="elsewhere")
        result, found = shown(location)
        assert (result, found["owner"]["alive"]) == (code, alive)

    def test_on_another_host_one_that_starts_is_not_known_and_then_dead(self, location) -> None:
        log = start(location)
        move(log, host="elsewhere")
        code, found = shown(location)
        assert (code, found["owner"]["alive"], found["owner"]["state"]) == (0, None, "starting")
        move(log, ago=700.0)
        assert shown(location)[0] == 2

    def test_a_process_that_is_there_but_silent_is_degraded_and_later_taken_for_another(self, location) -> None:
        log = start(location)
        beat(log, ago=40.0)
        code, found = shown(location)
        assert (code, found["owner"]["state"]) == (1, "silent")
        assert "no sign of life for 40 s" in found["reasons"][0]
        beat(log, ago=400.0)
        assert shown(location)[0] == 2, "its number belongs to another process now"

    def test_a_command_that_claimed_a_generation_is_no_driver(self, location) -> None:
        log = start(location)
        decide(log, 0, "db", "web")
        beat(log, "ended")
        other = start(location)
        note_command(other.storage, other.generation, "resolve")
        code, found = shown(location)
        assert (code, found["owner"]["generation"], found["starts_last_hour"]) == (0, 0, 1)

    def test_a_damaged_sign_of_life_is_as_none(self, location) -> None:
        log = start(location)
        log.storage.replace("runs/0.json", b"nonsense")
        assert shown(location)[1]["owner"]["state"] == "starting"


@pytest.mark.contract("R7")
class TestTrouble:
    def test_a_crash_loop_is_degraded_even_while_it_runs(self, location) -> None:
        for _ in range(3):
            beat(start(location), "failed", ago=60.0, error=FAILED)
        beat(start(location))
        code, found = shown(location)
        assert (code, found["health"], found["failures_last_10_minutes"]) == (1, "degraded", 3)
        assert found["starts_last_hour"] == 4
        assert "3 runs failed or died in the last 10 minutes: a crash loop" in found["reasons"]
        assert found["last_error"]["type"] == "LostError"
        assert "4 in the last hour" in run("status", location).stdout

    def test_runs_that_were_killed_count_too(self, location) -> None:
        beat(start(location))
        start(location)  # killed before its first sign of life
        beat(start(location))
        beat(start(location))
        assert shown(location)[1]["failures_last_10_minutes"] == 3

    def test_clean_restarts_and_failures_of_long_ago_are_none(self, location) -> None:
        for _ in range(4):
            beat(start(location), "ended", ago=60.0)
        beat(start(location), "failed", ago=7200.0, error=FAILED)
        beat(start(location))
        code, found = shown(location)
        assert (code, found["failures_last_10_minutes"], found["starts_last_hour"]) == (0, 0, 1)
        assert found["last_error"]["type"] == "LostError", "shown, with its age"

    def test_a_sink_that_hangs_is_named_with_since_when(self, location) -> None:
        log = start(location)
        decide(log, 0, "db", ago=120.0)
        loop = {"doing": "committing checkpoint 0", "since": time.time() - 100, "failures": 0, "problem": None}
        beat(log, web={**loop, "may_lag": True}, db={**loop, "doing": "idle"})
        code, found = shown(location)
        assert (code, found["health"]) == (1, "degraded")
        assert found["reasons"] == ["sink 'web' is committing checkpoint 0 for 100 s, without an answer"]
        web = next(s for s in found["sinks"] if s["sink"] == "web")
        assert (web["checkpoints"], web["rows"], web["bytes"], web["may_lag"]) == (1, 10, 100, True)
        assert abs(web["since"] / 1000 - time.time() + 100) < 5 and web["oldest"] is not None

    def test_a_sink_that_fails_again_and_again_is_named_with_its_problem(self, location) -> None:
        log = start(location)
        loop = {"doing": "waiting to try commit of checkpoint 0 again", "since": time.time() - 9, "failures": 3}
        beat(log, web={**loop, "problem": "connection refused", "may_lag": True})
        code, found = shown(location)
        assert code == 1 and "3 failures in a row: connection refused" in found["reasons"][0]
        assert "connection refused" in run("status", location).stdout
        beat(log, web={**loop, "failures": 1, "problem": "connection refused", "may_lag": True})
        assert shown(location)[0] == 0, "one hiccup is no alarm"

    def test_nothing_is_complete_yet_is_said_as_none(self, location) -> None:
        log = start(location)
        decide(log, 0)
        beat(log)
        code, found = shown(location)
        assert (code, found["last_complete"], found["freshness_seconds"]) == (0, None, None)
        assert re.search(r"last complete +none", run("status", location).stdout)

    def test_damage_is_down_when_nobody_is_at_it(self, location) -> None:
        log = start(location)
        decide(log, 0, "db", "web")
        beat(log, "ended")
        log.storage.replace("commits/0.db.json", b"")
        assert shown(location)[0] == 2
        beat(log)
        assert shown(location)[0] == 1


class TestMaxAge:
    @pytest.mark.parametrize(("max_age", "code"), [("5m", 1), ("20m", 0), ("900s", 0)])
    def test_freshness_is_a_fault_only_past_it(self, location, max_age, code) -> None:
        log = start(location)
        decide(log, 0, "db", "web", ago=600.0)
        beat(log)
        result, found = shown(location, "--max-age", max_age)
        assert result == code
        if code:
            assert found["reasons"] == ["no checkpoint was completed for 600 s, and --max-age is 300 s"]

    def test_it_is_down_when_the_driver_is_gone_too(self, location) -> None:
        log = start(location)
        decide(log, 0, "db", "web", ago=600.0)
        beat(log, "ended")
        assert (shown(location)[0], shown(location, "--max-age", "5m")[0]) == (0, 2)

    def test_none_was_ever_complete(self, location) -> None:
        log = start(location)
        beat(log)
        assert shown(location, "--max-age", "5m")[0] == 0, "it has just started"
        move(log, ago=400.0)
        code, found = shown(location, "--max-age", "5m")
        assert code == 1 and "ever completed" in found["reasons"][0]

    @pytest.mark.parametrize("text", ["soon", "-3s", "5 parsecs"])
    def test_nonsense_is_wrong_use(self, location, text) -> None:
        start(location)
        assert run("status", location, "--max-age", text).exit_code == 3


def test_rows_in_files_that_are_not_rolled_yet_are_shown_as_held_back(tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    engine = Engine(tmp_path / "ck" / "holdfast", FileSink(out, rolling=Rolling(age="1h"), name="files"))
    engine.run(0, [1, 2], [3])
    _, found = shown(tmp_path / "ck")
    [sink] = found["sinks"]
    assert (sink["sink"], sink["checkpoints"], sink["held_back_rows"]) == ("files", 0, 3)
    assert sink["held_back_since"] is not None
    assert "3 rows" in run("status", tmp_path / "ck").stdout


def test_a_real_pulse_is_read_back(location: Path) -> None:
    log = start(location)
    pulse = Pulse(log)
    pulse.beat([], now=True)
    assert shown(location)[1]["owner"]["state"] == "running"
    pulse.end([], LostError("gone"))
    code, found = shown(location)
    assert (code, found["last_error"]["type"], found["last_error"]["action"]) == (2, "LostError", "operator")
    pulse = Pulse(start(location))
    pulse.end([], SinkError("away"))
    assert "start it again; it may well work: SinkError: away" in shown(location)[1]["reasons"][0]


def test_this_process_is_alive() -> None:
    """What the other tests rest on."""
    from holdfast.checkpoint.runs import lives, owner_of

    assert lives(os.getpid())
    now = int(time.time() * 1000)
    owner = owner_of({"host": socket.gethostname(), "pid": os.getpid(), "started": now}, 0, None)
    assert (owner.alive, owner.state) == (True, "starting")


def test_a_start_that_never_ends_is_not_healthy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process lives, and it has said nothing yet: an endpoint hangs when it is opened."""
    log = start(tmp_path)
    assert shown(tmp_path)[0] == 0
    monkeypatch.setattr("holdfast.checkpoint.runs.LONG_START", 0.0)
    code, status = shown(tmp_path)
    assert code == 1 and status["health"] == "degraded"
    assert "is still starting and has given no sign of life for" in status["reasons"][0]
    beat(log, "starting")
    code, status = shown(tmp_path)
    assert (code, status["owner"]["state"]) == (1, "starting")
    assert "is still starting after" in status["reasons"][0]


@pytest.mark.parametrize(
    ("path", "pattern"),
    [("gs://bucket/out", None), ("abfss://box@acme.dfs.core.windows.net/out", None), ("gs://b/DE", "gs://b/{country}")],
)
def test_files_that_can_come_back_are_warned_of_and_change_no_exit_code(
    tmp_path: Path, path: str, pattern: str | None
) -> None:
    """On stores where a file is shown by a copy; on the others there is nothing to say."""
    log = start(tmp_path)
    state: dict[str, Any] = {"kind": "holdfast.files", "options": {"path": path}, "waiting": []}
    if pattern is not None:
        state = {"version": 1, "pattern": pattern, "targets": {"DE": {"seen": [], "state": state}}}
    local = {"kind": "holdfast.files", "options": {"path": "/data/out"}, "waiting": []}
    log.decide(0, ("copies", "local"), [], timestamp=0, state={"copies": state, "local": local, "other": None})
    for sink in ("copies", "local"):
        log.record_commit(0, sink, {"at": 1})
    beat(log)
    code, document = shown(tmp_path)
    assert (code, document["health"]) == (0, "healthy")
    (text,) = document["warnings"]
    assert text.startswith(f"sink 'copies': files in {pattern or path} are shown by a copy")
    assert "warning: sink 'copies': files in" in run("status", tmp_path).stdout.replace("\n", " ")
