"""Azure's and Google's stores that do not answer: one sentence, exit code 2. Their clients ask for half a minute."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.clouds.conftest import lead_to
from tests.servers.kafka import free_port
from tests.servers.object_store import StoreServer


def test_every_command_says_so_in_a_sentence_and_ends_with_2(
    server: StoreServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lead_to(server, f"http://127.0.0.1:{free_port()}", monkeypatch)
    location = server.location("bucket", "ck")
    commands = [["status", location], ["history", location], ["flush", location]]
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "holdfast.cli", *command],
            env=dict(os.environ), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )
        for command in commands
    ]  # fmt: skip
    for process in started:
        out, err = process.communicate(timeout=120)
        assert (process.returncode, out) == (2, ""), err
        assert "does not answer: see that its address" in err
        assert len(err.strip().splitlines()) == 1, err
