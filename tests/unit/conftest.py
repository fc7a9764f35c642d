"""Fixtures of the unit tests: no Spark, and the only server is moto's S3."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.loops import Threads
from holdfast.core.retry import Retry
from tests.unit.inprocess import Endpoint, Engine


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint" / "holdfast")


@pytest.fixture
def threaded() -> Iterator[Callable[..., Engine]]:
    """Engines with a thread for each sink, and the real time; ended after the test."""
    made: list[Engine] = []

    def make(location: str, *sinks: Any, **options: Any) -> Engine:
        settings = {"loops": Threads(), "clock": time.time, "retry": Retry(for_=0.5, first_wait=0.02), **options}
        made.append(Engine(location, *sinks, **settings))
        return made[-1]

    yield make
    for engine in made:
        engine.coordinator.close(0.0)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a real S3 server; one that does not start is a failure, never a skip."""
    port = _free_port()
    log = tmp_path_factory.mktemp("moto") / "moto.log"
    with log.open("wb") as output:
        command = [sys.executable, "-m", "tests.servers.s3", str(port)]
        server = subprocess.Popen(command, cwd=Path(__file__).parents[2], stdout=output, stderr=subprocess.STDOUT)
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
