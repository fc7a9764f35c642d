"""Real executors on another disk: a start notices it, before a generation is claimed."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("kind", ["log", "files"])
def test_a_path_that_executors_see_another_disk_at_is_refused(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-m", "tests.integration.shared_job", str(tmp_path), kind]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=180)
    path = tmp_path / "here" / {"log": "checkpoint/holdfast", "files": "out"}[kind]
    assert f"REFUSED ConfigError: {path} is not shared by driver and executors" in done.stdout, done.stderr[-3000:]
    assert f"a task on {socket.gethostname()} does not see what the driver wrote there" in done.stdout
    assert "CLAIMED False" in done.stdout
