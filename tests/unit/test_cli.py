"""The command line on checkpoint locations made by hand; no Spark."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import holdfast
from holdfast.checkpoint.history import History, log_location
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.status import read_status
from holdfast.checkpoint.storage import open_storage
from holdfast.cli import main, manual, output
from holdfast.cli.app import app
from holdfast.core.model import Committable

COMMANDS = [command.callback.__name__ for command in app.registered_commands if command.callback is not None]


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="holdfast")


def decide(log: CheckpointLog, checkpoint_id: int, *committed: str) -> None:
    sinks = ["sqlite", "endpoint"]
    committables = [Committable(sink, 0, {"handle": "x"}, rows=10, bytes=100) for sink in sinks]
    log.decide(checkpoint_id, sinks, committables, timestamp=int(time.time() * 1000) - 5000, state={})
    for sink in committed:
        log.record_commit(checkpoint_id, sink, {})


@pytest.fixture
def location(tmp_path: Path) -> Path:
    """Two checkpoints complete, two pending for one sink, and Spark one batch ahead."""
    path = tmp_path / "checkpoint"
    for folder, last in (("offsets", 4), ("commits", 3)):
        (path / folder).mkdir(parents=True)
        for number in range(last + 1):
            (path / folder / str(number)).touch()
    log = CheckpointLog(open_storage(log_location(str(path))), "orders")
    log.start()
    history = History(log.storage, log.generation)
    for number in range(4):
        decide(log, number, *(["sqlite", "endpoint"] if number < 2 else ["sqlite"]))
        sinks = {"sqlite": {"rows": 10, "outcome": "committed"}}
        entry = {"status": "complete" if number < 2 else "lagging", "started": 1_700_000_000_000, "rows": 10}
        history.add(number, {**entry, "bytes": 100, "durations": {"tasks": 0.5, "decide": 0.01}, "sinks": sinks})
    history.add(4, {"status": "aborted", "started": 1_700_000_000_000, "error": "ValueError: [/bad] rows"})
    return path


# -- help, version, start-up -----------------------------------------------------------------------------------------


def test_there_are_commands() -> None:
    assert {"demo", "history", "status"} <= set(COMMANDS)


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=lambda c: " ".join(c) or "holdfast")
def test_every_help_says_what_it_does_and_gives_an_example(command: list[str]) -> None:
    result = run(*command, "--help")
    assert result.exit_code == 0
    assert result.stdout.startswith("NAME\n    holdfast") and "\nSYNOPSIS\n    holdfast" in result.stdout
    assert re.search(r"\nEXAMPLES?\n +.*holdfast", result.stdout, re.S)
    assert all(len(line) <= 120 for line in result.stdout.splitlines())


def test_the_whole_manual_names_every_command_once_and_every_exit_code() -> None:
    shown = run("--help").stdout
    chapters = [name for names in manual.CHAPTERS.values() for name in names]
    assert sorted(chapters) == sorted(typer.main.get_command(app).commands)
    for name in chapters:
        assert len(re.findall(rf"^    {name}  +\w", shown, re.M)) == 1, name
    for code in (output.OK, output.BROKEN, output.IS_DOWN, output.USAGE, output.BUG):
        assert re.search(rf"^    {code} +\w", shown, re.M), code
    assert "--install-completion" in shown


def test_an_error_is_a_sentence_and_with_debug_a_traceback_too(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "status", str(tmp_path)]
    plain, debug = (
        subprocess.run([*command, *more], capture_output=True, text=True, timeout=60) for more in ([], ["--debug"])
    )
    assert (plain.returncode, debug.returncode) == (3, 3)
    assert len(plain.stderr.splitlines()) == 1 and plain.stderr.startswith("error: ")
    assert debug.stderr.startswith("Traceback") and debug.stderr.splitlines()[-1] == plain.stderr.strip()


def test_a_bug_is_a_sentence_that_says_how_to_find_out_more(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["holdfast", "schema"])
    monkeypatch.setattr("holdfast.pipeline.model.job_model", lambda: 1 / 0)
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().err
    assert ended.value.code == output.BUG
    assert told.startswith("error: ZeroDivisionError: division by zero.") and "--debug" in told
    assert len(told.splitlines()) == 1


@pytest.mark.parametrize(("typed", "offered"), [("holdfast sta", "status"), ("holdfast savepoint cr", "create")])
def test_the_shell_completes_commands(typed: str, offered: str) -> None:
    asked = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(len(typed.split()) - 1)}
    code = "from holdfast.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **asked}, capture_output=True, text=True, timeout=60
    )
    assert offered in done.stdout.split(), done.stderr


def test_version() -> None:
    result = run("--version")
    assert (result.exit_code, result.stdout) == (0, f"holdfast {holdfast.__version__}\n")


def test_the_command_line_starts_without_spark_and_arrow(location: Path) -> None:
    code = (
        "import sys; from holdfast.cli.app import app\n"
        "app(['status', sys.argv[1]], standalone_mode=False)\n"
        "print(sorted({'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(location)], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_public_names_are_loaded_from_where_they_live() -> None:
    assert sorted(holdfast._HOMES) == sorted(holdfast.__all__)
    assert set(holdfast.__all__) <= set(dir(holdfast))
    assert all(getattr(holdfast, name).__module__ == home for name, home in holdfast._HOMES.items())
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        holdfast.nonsense  # noqa: B018


# -- status ----------------------------------------------------------------------------------------------------------


def test_status_as_json(location: Path) -> None:
    result = run("status", location, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert list(document) == [
        "health", "reasons", "at", "location", "pipeline", "lineage", "owner", "last_error", "starts_last_hour",
        "failures_last_10_minutes", "last_decided", "last_complete", "completed_at", "planned", "committed", "pending",
        "sinks", "last_checkpoint", "stuck", "resolutions", "damaged", "warnings", "healthy", "freshness_seconds",
        "lag_seconds", "lag_rows",
    ]  # fmt: skip
    assert (document["healthy"], document["health"], document["reasons"]) == (True, "healthy", [])
    assert document["pipeline"] == "orders"
    assert (document["last_decided"], document["last_complete"]) == (3, 1)
    assert (document["planned"], document["committed"]) == (4, 3)
    assert document["owner"]["generation"] == 0
    assert document["owner"]["alive"] is True
    [pending] = document["pending"]
    assert (pending["sink"], pending["checkpoints"], pending["rows"], pending["bytes"]) == ("endpoint", 2, 20, 200)
    assert pending["oldest_age_seconds"] >= 5
    assert document["lag_seconds"] >= 5 and document["lag_rows"] == 20 and document["freshness_seconds"] >= 5
    assert document["last_checkpoint"]["durations"] == {"tasks": 0.5, "decide": 0.01}


def test_status_as_text(location: Path) -> None:
    result = run("status", location)
    assert result.exit_code == 0
    for words in ("orders", "(starting)", "planned 4, committed 3", "tasks 0.50s decide 0.01s", "endpoint", "200 B"):
        assert words in result.stdout


def test_status_claims_nothing_and_changes_nothing(location: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in location.rglob("*")}
    run("status", location)
    run("history", location)
    assert {path: path.stat().st_mtime_ns for path in location.rglob("*")} == before


def test_status_shows_the_newest_owner(location: Path) -> None:
    CheckpointLog(open_storage(log_location(str(location))), "orders").start()
    found = read_status(str(location))
    assert found.owner is not None
    assert found.owner.generation == 1
    assert found.last_decided == 3


@pytest.mark.parametrize(
    "name", ["decisions/0.1.json", "commits/0.sqlite.json", "generations/0", "lineage.json", "history/0.0.jsonl"]
)
def test_a_damaged_record_is_named_and_the_exit_code_is_1(location: Path, name: str) -> None:
    path = location / "holdfast" / name
    path.write_bytes(path.read_bytes()[:-9])
    result = run("status", location, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 1
    assert document["healthy"] is False
    [damage] = document["damaged"]
    assert str(path) in damage["problem"]
    text = run("status", location)
    assert text.exit_code == 1
    assert str(path) in "".join(text.stdout.split("\n"))


def test_every_damaged_record_is_named_not_just_the_first(location: Path) -> None:
    for name in ("decisions/0.1.json", "decisions/0.2.json", "commits/0.sqlite.json"):
        (location / "holdfast" / name).write_bytes(b"")
    assert len(read_status(str(location)).damaged) == 3


def test_a_missing_lineage_and_a_foreign_file_are_damage(location: Path) -> None:
    (location / "holdfast" / "lineage.json").unlink()
    (location / "holdfast" / "decisions" / "notes.txt").touch()
    problems = [damage.problem for damage in read_status(str(location)).damaged]
    assert len(problems) == 2
    assert "it is missing" in problems[0]
    assert "notes.txt" in problems[1]


def test_what_a_live_query_prunes_meanwhile_is_neither_damage_nor_pending(
    location: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = type(open_storage(str(location))).names

    def prune_first(self: Any, folder: str) -> list[str]:
        found = names(self, folder)
        if folder == "commits" and "0.sqlite.json" in found:  # between our look at the slots and at the commits
            (location / "holdfast" / "decisions" / "0.0.json").unlink(missing_ok=True)
            for path in (location / "holdfast" / "commits").glob("0.*"):
                path.unlink()
        return found

    monkeypatch.setattr(type(open_storage(str(location))), "names", prune_first)
    found = read_status(str(location))
    assert found.damaged == ()
    assert [pending.sink for pending in found.pending] == ["endpoint"]


# -- history ---------------------------------------------------------------------------------------------------------


@pytest.mark.contract("S4", "R3")
def test_history_as_json(location: Path) -> None:
    result = run("history", location, "--last", 3, "--json")
    entries = json.loads(result.stdout)["checkpoints"]
    assert result.exit_code == 0
    assert [entry["checkpoint_id"] for entry in entries] == [2, 3, 4]
    assert [entry["status"] for entry in entries] == ["lagging", "lagging", "aborted"]
    columns = ("id", "status", "generation", "started", "durations", "rows", "bytes", "sinks", "restored", "error")
    assert set(entries[0]) >= {name if name != "id" else "checkpoint_id" for name in columns}


def test_history_as_text_shows_errors_as_they_are(location: Path) -> None:
    result = run("history", location)
    assert result.exit_code == 0
    assert "ValueError: [/bad] rows" in result.stdout
    assert "sqlite: committed" in result.stdout


# -- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["status", "history"])
def test_a_bad_location_is_one_line_and_exit_code_3(command: str, tmp_path: Path) -> None:
    result = run(command, tmp_path / "nothing")
    assert (result.exit_code, result.stdout) == (3, "")
    assert result.stderr.startswith("error: ")
    assert result.stderr.count("\n") == 1
    as_json = run(command, tmp_path / "nothing", "--json")
    assert as_json.exit_code == 3
    assert json.loads(as_json.stderr)["error"] == "ConfigError"


def test_the_log_itself_is_not_the_location(location: Path) -> None:
    result = run("status", location / "holdfast")
    assert result.exit_code == 3
    assert f"did you mean {location}?" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["status"],
        ["nonsense"],
        ["status", "x", "--max-age", "soon"],
        ["transactions", "abort"],
        ["history", "x", "--last", "0"],
        ["demo", "--rows", "0"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_3(arguments: list[str]) -> None:
    """Not 2: that means `down` to whoever watches `holdfast status`."""
    assert run(*arguments).exit_code == 3


def test_without_java_the_demo_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    result = run("demo", "--json")
    assert result.exit_code == 3
    assert "install" in json.loads(result.stderr)["message"]
