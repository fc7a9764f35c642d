"""A real S3 server as fixtures: import both names into the conftest of the tests that need them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.testing.servers.kafka import free_port

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a real S3 server; one that does not start is a failure, never a skip."""
    port = free_port()
    log = tmp_path_factory.mktemp("moto") / "moto.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "tests.servers.s3", str(port)]
        server = subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_up(server, url, log)
        yield url
    finally:
        server.kill()
        server.wait()


def _wait_until_up(server: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError as error:
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"moto_server did not start ({error}): {log.read_text()}")
        time.sleep(0.1)


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """A new bucket; s3fs finds the server by environment, in child processes too."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "AWS_ENDPOINT_URL": s3_server,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    bucket = f"b{uuid.uuid4().hex}"
    request = urllib.request.Request(f"{s3_server}/{bucket}", method="PUT")
    with urllib.request.urlopen(request, timeout=10):
        return bucket
