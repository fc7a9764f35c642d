"""The demo for real: Spark is killed twice and every row is counted; then the audit is shown to be able to fail."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.demo.audit import audit_folder
from holdfast.demo.files import Folder

COMMAND = [sys.executable, "-m", "holdfast.cli", "demo"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], Folder]]:
    """One run: its JSON document and its folder."""
    arguments = ["--rows", "2000", "--kills", "2", "--seed", "7", "--json", "--keep"]
    done = subprocess.run(
        COMMAND + arguments,
        capture_output=True,
        text=True,
        timeout=280,
        env={**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("demo"))},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads(done.stdout)
    yield document, Folder(Path(document["folder"]))


def test_every_row_arrives_once_although_the_driver_is_killed(kept: tuple[dict[str, Any], Folder]) -> None:
    document, _ = kept
    expected = {"in": 2000, "out": 2000, "lost": 0, "doubled": 0, "never_sent": 0, "ok": True}
    assert document["ok"] is True
    assert document["problems"] == []
    assert document["sqlite"] == expected
    assert {key: document["endpoint"][key] for key in expected} == expected
    assert document["kills"] == len({kill["pid"] for kill in document["killed"]}) == 2
    assert document["pending"] == document["log_files"] == 0
    assert document["most_pending"] > 0
    assert 0 < document["seconds"] < 270


def test_a_kill_between_send_and_mark_sends_again_and_the_endpoint_keeps_the_rows_once(
    kept: tuple[dict[str, Any], Folder],
) -> None:
    document, _ = kept
    assert document["killed"][-1]["moment"] == "send"
    assert document["endpoint"]["repeated"] >= 1
    assert document["endpoint"]["refused"] >= 1


def test_the_audit_of_the_same_run_fails_once_a_row_is_gone_or_there_twice(
    kept: tuple[dict[str, Any], Folder],
) -> None:
    _, folder = kept
    assert audit_folder(folder).problems == []
    with closing(sqlite3.connect(folder.database)) as connection, connection:
        connection.execute("DELETE FROM orders WHERE id = 17")
        connection.execute("INSERT INTO orders SELECT * FROM orders WHERE id = 18")
    found = audit_folder(folder)
    assert [row[0] for row in found.sqlite.lost] == [17]
    assert [row[0] for row in found.sqlite.doubled] == [18]
    assert found.endpoint.ok
    assert len(found.problems) == 1


def test_an_interrupted_demo_leaves_no_process_and_no_folder(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [*COMMAND, "--rows", "100", "--kills", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        # A shell starts what runs in the background with SIGINT ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob("holdfast-demo-*/driver.log")) and time.monotonic() < deadline:
            time.sleep(0.05)
        [folder] = tmp_path.glob("holdfast-demo-*")
        process.send_signal(signal.SIGINT)
        output, _ = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, output.decode()
    assert not folder.exists()
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    assert str(folder) not in listed
