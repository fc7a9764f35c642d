"""Azure's and Google's stores without a server: what their clients are told, and what is made of what they raise.

`make clouds` has the servers.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from socket import gaierror
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import ClientConnectorDNSError
from aiohttp.client_reqrep import ConnectionKey
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ResourceNotFoundError,
    ServiceRequestError,
)
from gcsfs.retry import ChecksumError, HttpError
from google.auth.exceptions import DefaultCredentialsError, TransportError

import holdfast as hf
from holdfast.checkpoint import clients, hadoop
from holdfast.checkpoint.clients import Place, copy, place_of
from holdfast.checkpoint.object_store import ObjectStorage
from holdfast.checkpoint.storage import open_storage
from holdfast.core.hiding import hide_text
from holdfast.errors import ConfigError, MissingExtraError, StorageError, UnsafeStorageError
from holdfast.spark.packages import extras_of
from holdfast.telemetry.datasets import Named, of_path

HOST = "acme.dfs.core.windows.net"
SECRET = "c2VjcmV0"
KEY = ConnectionKey("nowhere", 443, True, True, None, None, None)


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith(clients._VARIABLES)]:
        monkeypatch.delenv(name)
    yield
    hadoop.use({})


@pytest.mark.parametrize(
    ("location", "place"),
    [
        (f"abfs://box@{HOST}/a/b/", Place("abfs", f"abfs://box@{HOST}/a/b", "box/a/b", HOST, True)),
        (f"abfss://box@{HOST}", Place("abfs", f"abfss://box@{HOST}", "box", HOST, True)),
        ("az://box/a", Place("abfs", "az://box/a", "box/a")),
        ("gs://bucket/a", Place("gs", "gs://bucket/a", "bucket/a", hadoop=True)),
        ("gcs://bucket/a", Place("gs", "gs://bucket/a", "bucket/a", hadoop=True)),
        ("s3a://bucket/a", Place("s3", "s3a://bucket/a", "bucket/a", hadoop=True)),
        ("s3n://bucket/a", Place("s3", "s3://bucket/a", "bucket/a")),
    ],
)
def test_a_location_is_taken_apart(location: str, place: Place) -> None:
    assert place_of(location) == place


def told(settings: dict[str, str]) -> None:
    def below(prefix: str) -> dict[str, str]:
        return {name.removeprefix(prefix): value for name, value in settings.items() if name.startswith(prefix)}

    hadoop.use(hadoop.read_settings(settings.get, below))


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        (
            {f"fs.azure.account.key.{HOST}": SECRET, "fs.azure.account.key.other.dfs.core.windows.net": "x"},
            {
                "connection_string": f"AccountName=acme;AccountKey={SECRET};BlobEndpoint=https://acme.blob.core.windows.net"
            },
        ),
        (
            {"fs.azure.account.key.acme.blob.core.windows.net": SECRET, "fs.azure.abfs.endpoint": "127.0.0.1:9"},
            {"connection_string": f"AccountName=acme;AccountKey={SECRET};BlobEndpoint=http://127.0.0.1:9/acme"},
        ),
        (
            {f"fs.azure.sas.fixed.token.{HOST}": "?sv=1&sig=2"},
            {"connection_string": "BlobEndpoint=https://acme.blob.core.windows.net;SharedAccessSignature=sv=1&sig=2"},
        ),
        (
            {
                "fs.azure.account.oauth2.client.id": "me",
                f"fs.azure.account.oauth2.client.secret.{HOST}": SECRET,
                "fs.azure.account.oauth2.client.endpoint": "https://login.example/tenant-1/oauth2/token",
            },
            {"client_id": "me", "client_secret": SECRET, "tenant_id": "tenant-1"},
        ),
    ],
    ids=["nothing", "key", "emulator", "token", "client"],
)
def test_an_account_is_reached_as_spark_was_told(settings: dict[str, str], options: dict[str, str]) -> None:
    told(settings)
    assert hadoop.azure_options(HOST) == {"account_name": "acme", **options}


def test_an_account_of_another_cloud_has_another_host() -> None:
    found = hadoop.azure_options("acme.dfs.core.chinacloudapi.cn")
    assert found == {"account_name": "acme", "account_host": "acme.blob.core.chinacloudapi.cn"}


@pytest.mark.parametrize(
    ("settings", "options"),
    [
        ({}, {}),
        ({"fs.gs.auth.type": "COMPUTE_ENGINE", "fs.gs.project.id": "p"}, {"project": "p"}),
        ({"fs.gs.auth.service.account.json.keyfile": "/k.json"}, {"token": "/k.json"}),
        (
            {"fs.gs.auth.type": "UNAUTHENTICATED", "fs.gs.storage.root.url": "http://127.0.0.1:9/"},
            {"token": "anon", "endpoint_url": "http://127.0.0.1:9"},
        ),
    ],
    ids=["nothing", "machine", "key file", "emulator"],
)
def test_google_is_reached_as_spark_was_told(settings: dict[str, str], options: dict[str, str]) -> None:
    told(settings)
    assert hadoop.gcs_options() == options


def test_what_spark_was_told_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "AZURE_STORAGE_CONNECTION_STRING", f"AccountName=acme;AccountKey={SECRET};BlobEndpoint=http://x/"
    )
    told({f"fs.azure.account.key.{HOST}": SECRET})
    store = ObjectStorage(f"abfs://box@{HOST}/ck")
    assert store._fs.service_client.url == "https://acme.blob.core.windows.net/"
    assert SECRET not in repr(store) + store.url


def test_a_connection_string_of_another_account_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would win, and the log would be in another account than the one that was asked for."""
    text = f"AccountName=other;AccountKey={SECRET};BlobEndpoint=https://other.blob.core.windows.net"
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", text)
    with pytest.raises(ConfigError, match="in the account 'acme', and AZURE_STORAGE_CONNECTION_STRING is for 'other'"):
        ObjectStorage(f"abfs://box@{HOST}/ck")


def test_a_location_without_an_account_asks_for_one() -> None:
    with pytest.raises(ConfigError, match=r"az://box/ck.*abfs://container@account"):
        ObjectStorage("az://box/ck")


def test_googles_client_is_the_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one asks by gRPC, which no forked worker of Spark's could."""
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    first, second = ObjectStorage("gs://bucket/a"), ObjectStorage("gcs://bucket/b")
    assert type(first._fs).__module__ == "gcsfs.core"
    assert first._fs is second._fs
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:10")
    assert ObjectStorage("gs://bucket/a")._fs is not first._fs


@pytest.mark.parametrize(
    ("location", "module", "extra"), [("gs://b/ck", "gcsfs.core", "gcs"), (f"abfs://b@{HOST}/ck", "adlfs", "azure")]
)
def test_a_missing_client_names_the_extra(
    location: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    monkeypatch.delitem(importlib.import_module("fsspec.registry")._registry, "abfs", raising=False)
    monkeypatch.setenv("AZURE_GOOGLE", "another client, so that none is left from another test")
    with pytest.raises(MissingExtraError, match=rf"pip install 'holdfast\[{extra}\]'"):
        open_storage(location)


def test_executors_need_the_client_of_the_location() -> None:
    sink = hf.FileSink(f"abfs://box@{HOST}/out")
    assert extras_of([sink], "/ck") == ["azure"]
    assert extras_of([hf.FileSink("gs://bucket/out")], "/ck") == ["gcs"]


def answer(status: int, reason: str) -> Any:
    return SimpleNamespace(status_code=status, reason=reason, headers={}, text=lambda: f"<Error>{SECRET}</Error>")


@pytest.mark.parametrize(
    ("error", "words", "reached"),
    [
        (HttpResponseError("Server busy\nRequestId:1", response=answer(503, "busy")), "Server busy. See that", True),
        (
            HttpResponseError("No.\nTime:2", response=answer(403, "no")),
            "HttpResponseError: No. This user may not",
            True,
        ),
        (ResourceNotFoundError("no container", response=answer(404, "none")), "ResourceNotFoundError: no", True),
        (ServiceRequestError("Cannot connect to host"), "Cannot connect to host. The store does not answer", False),
        (HttpError({"code": 401, "message": "Invalid Credentials"}), "Invalid Credentials, 401. This user may", True),
        (HttpError({"code": 429, "message": "slow down"}), "slow down, 429. See that", True),
        (OSError("Forbidden: https://x\nno access"), "Forbidden: https://x. This user may not", True),
        (ChecksumError(), "ChecksumError. See that", True),
        (DefaultCredentialsError("none found"), "none found. No credentials were found: give them to Spark", True),
        (ClientAuthenticationError("no token"), "no token. No credentials were found", True),
        (
            ClientConnectorDNSError(KEY, gaierror(-2, "Name not known")),
            "ClientConnectorDNSError: Cannot connect",
            False,
        ),
        (TransportError("no route"), "The store does not answer", False),
    ],
)
@pytest.mark.parametrize("method", ["read", "names", "create", "writer"])
def test_what_their_clients_raise_is_told_in_one_line(error: Exception, words: str, reached: bool, method: str) -> None:
    class Fails:
        def __getattr__(self, name: str) -> Any:
            def fail(*_: Any, **__: Any) -> Any:
                raise error

            return fail

    store = ObjectStorage("memory://bucket/ck")
    store._fs = Fails()
    with pytest.raises(StorageError) as caught:
        if method == "writer":
            store.writer("a").__enter__()
        else:
            getattr(store, method)("a", *([b"x"] if method == "create" else []))
    text = str(caught.value)
    assert words in text and "memory://bucket/ck/a cannot be" in text
    assert SECRET not in text and "\n" not in text
    assert caught.value.reached is reached


def test_what_adlfs_wraps_is_unwrapped() -> None:
    class Fails:
        def open(self, *_: Any) -> Any:
            raise RuntimeError("Failed to upload block") from ServiceRequestError("gone")

    store = ObjectStorage("memory://bucket/ck")
    store._fs = Fails()
    with pytest.raises(StorageError, match=r"a cannot be written: ServiceRequestError: gone\. The store does not"):
        store.writer("a").__enter__()


class _Says:
    def __init__(self, error: Exception) -> None:
        self.error = error

    def pipe_file(self, *_: Any, **__: Any) -> Any:
        raise self.error


def test_a_bad_request_is_not_taken_for_a_store_without_conditions() -> None:
    store = ObjectStorage("memory://bucket/ck")
    store._fs = _Says(ValueError("Bad Request: b/bucket\ninvalid name"))
    with pytest.raises(StorageError, match="Bad Request") as caught:
        store.create("a", b"1")
    assert not isinstance(caught.value, UnsafeStorageError)
    store._fs = _Says(ValueError("mode not supported"))
    with pytest.raises(UnsafeStorageError, match="cannot create a file only if it is absent"):
        store.create("a", b"1")


@pytest.mark.parametrize(("end", "fails"), [("success", False), (None, False), ("failed", True), ("aborted", True)])
def test_a_copy_is_waited_for(end: str | None, fails: bool) -> None:
    """Azure may answer that it has begun: the source may not be removed before it has ended."""
    from fsspec.asyn import get_loop

    states, waits, asked = ["pending", "pending", end], [], []

    class Blob:
        async def __aenter__(self) -> Blob:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

        async def get_blob_properties(self) -> Any:
            return SimpleNamespace(copy=SimpleNamespace(status=states.pop(0)))

    def get_blob_client(container: str, name: str) -> Blob:
        asked.append((container, name))
        return Blob()

    fs = SimpleNamespace(
        cp_file=lambda source, target: None,
        loop=get_loop(),
        split_path=lambda path: (*path.split("/", 1), None),
        service_client=SimpleNamespace(get_blob_client=get_blob_client),
    )
    if fails:
        with pytest.raises(OSError, match=f"ended with '{end}'"):
            copy(fs, "box/a", "box/d/b", waits.append)
    else:
        copy(fs, "box/a", "box/d/b", waits.append)
    assert len(waits) == 2 and set(asked) == {("box", "d/b")}


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"AccountName=acme;AccountKey={SECRET};BlobEndpoint=x", "AccountName=acme;AccountKey=***;BlobEndpoint=x"),
        (f"fs.azure.account.key.{HOST}={SECRET} x", f"fs.azure.account.key.{HOST}=*** x"),
        ("SharedAccessSignature=sv=1&sig=2;y", "SharedAccessSignature=***&sig=***;y"),
        (f"fs.azure.sas.fixed.token.{HOST}: sv", f"fs.azure.sas.fixed.token.{HOST}: ***"),
        (f"abfs://box@{HOST}/ck", f"abfs://box@{HOST}/ck"),
    ],
)
def test_what_opens_an_account_is_hidden(text: str, shown: str) -> None:
    assert hide_text(text) == shown


def test_lineage_names_the_container() -> None:
    assert of_path(f"abfss://box@{HOST}/orders/") == Named(f"abfss://box@{HOST}", "orders")
    assert of_path("gs://bucket/orders") == Named("gs://bucket", "orders")
