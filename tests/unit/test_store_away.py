"""A store that does not answer: one sentence, exit code 2, and a HoldfastError; never a traceback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest
from botocore.exceptions import ClientError, ConnectTimeoutError, EndpointConnectionError, NoCredentialsError
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.trouble import storage_error
from holdfast.cli.app import app
from holdfast.errors import StorageError

LOCATION = "s3://bucket/ck"
COMMANDS = [
    ["status", LOCATION],
    ["history", LOCATION],
    ["resolve", LOCATION],
    ["resolve", LOCATION, "3", "--give-up"],
    ["flush", LOCATION],
    ["transactions", "list", LOCATION],
    ["resolve", LOCATION, "--sink", "files", "--accept-restored", "--yes"],
    ["rewind", LOCATION, "--to", "3"],
    ["dead-letters", "list", LOCATION],
    ["dead-letters", "show", LOCATION, "--checkpoint", "3"],
    ["watch", LOCATION],
    ["savepoint", "create", LOCATION, "s3://bucket/savepoints"],
    ["savepoint", "list", "s3://bucket/savepoints"],
    ["savepoint", "show", "s3://bucket/savepoints/one"],
    ["savepoint", "delete", "s3://bucket/savepoints/one", "--yes"],
    ["savepoint", "start-from", "s3://bucket/savepoints/one", "s3://bucket/new", "--name", "new"],
]


@pytest.fixture
def away(monkeypatch: pytest.MonkeyPatch) -> None:
    """An S3 at a port that nobody listens at."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 1)


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_says_so_in_a_sentence_and_ends_with_2(away: None, command: list[str]) -> None:
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == 2, answer.output
    assert "Traceback" not in answer.output
    assert "does not answer: see that its address" in answer.output
    assert len(answer.output.strip().splitlines()) == 1


def test_with_json_it_is_a_document(away: None) -> None:
    answer = CliRunner().invoke(app, ["status", LOCATION, "--json"])
    assert answer.exit_code == 2
    assert json.loads(answer.stderr)["error"] == "StorageError"


def test_in_a_process_of_its_own_nothing_else_is_printed(away: None) -> None:
    """Clients that are left open tell of it when the process ends."""
    command = [sys.executable, "-m", "holdfast.cli", "status", LOCATION]
    done = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ), timeout=60)
    assert (done.returncode, done.stdout) == (2, "")
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr


def test_the_library_raises_its_own_error(away: None) -> None:
    with pytest.raises(hf.HoldfastError) as caught:
        hf.checkpoints(LOCATION)
    assert isinstance(caught.value, StorageError)
    assert (caught.value.reached, caught.value.action) == (False, "restart")


@pytest.mark.parametrize(
    ("error", "reached"),
    [
        (EndpointConnectionError(endpoint_url="http://nowhere"), False),
        (ConnectTimeoutError(endpoint_url="http://nowhere"), False),
        (aiohttp.ServerDisconnectedError(), False),
        (TimeoutError(), False),
        (ConnectionResetError(), False),
        (socket.gaierror(-2, "Name or service not known"), False),
        (NoCredentialsError(), True),
        (PermissionError(13, "Access Denied"), True),
        (ClientError({"Error": {"Code": "NoSuchBucket"}}, "ListObjectsV2"), True),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_answer_is_told_from_an_answer(error: Exception, reached: bool) -> None:
    assert storage_error("s3://bucket/ck/x", "read", error).reached is reached


def test_a_local_path_that_may_not_be_read_is_still_a_bad_location(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    answer = CliRunner().invoke(app, ["status", str(tmp_path / "file" / "below")])
    assert answer.exit_code == 3, answer.output
