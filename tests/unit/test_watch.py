"""`holdfast watch`: the live view of a pipeline that somebody else started."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.cli.watch import Look, _screen
from tests.unit import scenes
from tests.unit.inprocess import damage


@pytest.fixture
def scene() -> Iterator[scenes.Scene]:
    with scenes.in_memory() as folder:
        made = scenes.Scene(folder, "orders", back=30)
        made.run(3)
        made.catch_up()
        yield made


def watched(location: Path, *options: str) -> str:
    found = CliRunner().invoke(app, ["watch", str(location), "--every", "100ms", *options])
    assert found.exit_code == 0, found.output
    return found.stdout


def test_anywhere_but_on_a_terminal_it_prints_a_line_when_something_changed(scene: scenes.Scene) -> None:
    assert watched(scene.location, "--times", "3").splitlines() == [
        line
        for line in [Look(str(scene.location)).line()]
        if line.startswith("healthy, running: checkpoint 2: complete, ")
    ]


def test_with_json_each_change_is_an_object(scene: scenes.Scene) -> None:
    lines = watched(scene.location, "--times", "2", "--json").splitlines()
    assert len(lines) == 1
    told = json.loads(lines[0])
    assert (told["health"], told["driver"], told["last_complete"]) == ("healthy", "running", 2)
    assert told["checkpoint"]["checkpoint_id"] == 2


@pytest.mark.contract("R3")
def test_it_follows_a_driver_that_dies_and_the_next_one(scene: scenes.Scene) -> None:
    seen = []
    for change in (
        lambda: None,
        lambda: scenes.disown(scene),
        lambda: (scene.restart(), scene.run(1), scene.catch_up()),
    ):
        change()
        look = Look(str(scene.location))
        seen.append((look.document()["health"], look.document()["driver"], look.finished[-1].checkpoint_id))
    assert seen == [("healthy", "running", 2), ("down", "dead", 2), ("healthy", "running", 3)]


def test_a_terminal_gets_the_whole_view(scene: scenes.Scene) -> None:
    scene.search.down = ConnectionError("search is away")
    scene.run(1)
    scene.catch_up()
    console = Console(record=True, width=160, force_terminal=True)
    _screen(str(scene.location), console, 0.0, 2)
    text = console.export_text()
    assert "orders  running, process" in text
    assert "search: owes 1" in text
    assert "search is away" in text
    assert "pending 1" in text


def test_what_is_damaged_is_told_and_not_the_end(scene: scenes.Scene) -> None:
    damage(scene.location / "holdfast" / "history" / "0.0.jsonl", "truncated")
    look = Look(str(scene.location))
    assert look.line() == "degraded: no checkpoint yet"
    assert "damaged" in str(look.status.reasons)


def test_wrong_use_is_told() -> None:
    for arguments in (["/nowhere"], ["/nowhere", "--every", "0s"]):
        found = CliRunner().invoke(app, ["watch", *arguments])
        assert found.exit_code == 3
    assert "--every must be at least 100ms" in found.stderr


def test_it_shows_what_happens_while_it_watches(scene: scenes.Scene) -> None:
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set() and scene.next < 40:
            scene.run(1, every=0.0)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        told = [json.loads(line) for line in watched(scene.location, "--times", "5", "--json").splitlines()]
    finally:
        stop.set()
        thread.join()
    numbers = [entry["checkpoint"]["checkpoint_id"] for entry in told]
    assert numbers == sorted(numbers)
