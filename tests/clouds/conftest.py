"""Azure's and Google's stores by their emulators, each started once."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator

import pytest

from holdfast.checkpoint import hadoop
from tests.servers import s3_proxy
from tests.servers.clouds import Azurite, FakeGcs
from tests.servers.kafka import free_port
from tests.servers.object_store import StoreServer


@pytest.fixture(scope="session", params=[Azurite, FakeGcs], ids=lambda kind: kind.kind)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    """One after the other, on a good day."""
    made: StoreServer = request.param(tmp_path_factory.mktemp("cloud"))
    try:
        made.start(proxied=False)
        yield made
    finally:
        made.stop()


@pytest.fixture(autouse=True)
def environment(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """holdfast finds the server by environment, in child processes too; Spark has told nothing."""
    for name in [name for name in os.environ if name.startswith(("AZURE_", "GOOGLE_", "GCSFS_"))]:
        monkeypatch.delenv(name)
    lead_to(server, server.endpoint, monkeypatch)
    yield
    hadoop.use({})


def lead_to(server: StoreServer, endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the environment say that the store is there."""
    if isinstance(server, Azurite):
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", server.connection_string(endpoint))
    else:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", endpoint)


@pytest.fixture
def bucket(server: StoreServer) -> str:
    """The name of a new one."""
    name = f"b{uuid.uuid4().hex}"
    server.new_bucket(name)
    return name


@pytest.fixture
def location(server: StoreServer, bucket: str) -> str:
    """Somewhere in the store, as Spark names it."""
    return server.location(bucket, "ck")


@pytest.fixture
def answers_lost(server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every second request that changes something is done, and answered with 503."""
    monkeypatch.setattr(s3_proxy, "REFUSED", 10**9)
    monkeypatch.setattr(s3_proxy, "LOST", 2)
    port = free_port()
    proxy = s3_proxy.Proxy(port, server.endpoint.removeprefix("http://"))
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    lead_to(server, f"http://127.0.0.1:{port}", monkeypatch)
    try:
        yield
    finally:
        proxy.shutdown()
        proxy.server_close()
        thread.join()
