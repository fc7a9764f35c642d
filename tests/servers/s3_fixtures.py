"""A real S3 server as fixtures: import the names into the conftest of the tests that need them."""

from __future__ import annotations

import os
import urllib.request
import uuid
from collections.abc import Iterator

import pytest

from tests.servers.s3_stores import Moto


@pytest.fixture(scope="session")
def moto(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Moto]:
    """moto on a bad day: slow, and now and then it answers 503."""
    yield from _started(Moto(tmp_path_factory.mktemp("moto")), proxied=True)


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of moto on a good day."""
    for server in _started(Moto(tmp_path_factory.mktemp("moto")), proxied=False):
        yield server.endpoint


def _started(server: Moto, *, proxied: bool) -> Iterator[Moto]:
    try:
        server.start(proxied=proxied)
        yield server
    finally:
        server.stop()


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
