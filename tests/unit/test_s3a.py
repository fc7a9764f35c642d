"""`s3a://` is reached as Spark was told to reach it; `s3://` as the environment says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.checkpoint import hadoop
from holdfast.checkpoint.object_store import ObjectStorage
from holdfast.committers.sql import SqlCheckpointCommitter
from holdfast.connectors.files.rolling import Rolling
from holdfast.connectors.files.sink import FileSink
from holdfast.errors import HoldfastError
from tests.unit.inprocess import Endpoint, Engine, SendingSink

SECRET = "word-that-nobody-may-see"


@pytest.fixture(autouse=True)
def nothing_set() -> Iterator[None]:
    yield
    hadoop.use({})


def nothing_below(prefix: str) -> dict[str, str]:
    """No setting with an account's name in it."""
    return {}


def spark_conf(server: str) -> dict[str, str]:
    return {
        "fs.s3a.access.key": "from-spark",
        "fs.s3a.secret.key": SECRET,
        "fs.s3a.session.token": f"{SECRET}-token",
        "fs.s3a.endpoint": server,
        "fs.s3a.endpoint.region": "eu-central-1",
        "fs.s3a.path.style.access": "true",
    }


def test_a_pipeline_on_s3a_needs_nothing_but_sparks_settings(
    bucket: str, s3_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log, write-ahead rows in it, and the files; the environment would lead to a server that is not there."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    hadoop.use(hadoop.read_settings(spark_conf(s3_server).get, nothing_below))
    sink = FileSink(f"s3a://{bucket}/out", rolling=Rolling(age="0s"))
    endpoint = Endpoint()
    sending = SendingSink(endpoint, SqlCheckpointCommitter(f"sqlite:///{tmp_path}/marks.db"))
    engine = Engine(f"s3a://{bucket}/ck/holdfast", sink, sending)
    engine.run(0, [1, 2])
    assert sorted(endpoint.rows) == [1, 2]
    storage = ObjectStorage(f"s3a://{bucket}")
    names = storage.walk("")
    assert len([name for name in names if name.endswith(".parquet")]) == 1
    client = storage._fs
    assert (client.key, client.secret, client.token) == ("from-spark", SECRET, f"{SECRET}-token")
    assert client.s3.meta.endpoint_url == s3_server
    assert client.s3.meta.region_name == "eu-central-1"
    written = b"".join(storage.read(name) for name in names) + "".join(names).encode()
    assert SECRET.encode() not in written
    assert SECRET not in caplog.text + repr(sink) + repr(storage) + repr(sink.__getstate__())


def test_what_is_not_set_comes_from_the_environment(bucket: str, s3_server: str) -> None:
    told = {"fs.s3a.endpoint": "", "fs.s3a.path.style.access": "false"}
    hadoop.use(hadoop.read_settings(told.get, nothing_below))
    assert hadoop.s3_options() == {}
    assert ObjectStorage(f"s3a://{bucket}/x").create("a", b"1")
    hadoop.use({"fs.s3a.endpoint": "127.0.0.1:9", "fs.s3a.connection.ssl.enabled": "false"})
    assert hadoop.s3_options() == {"endpoint_url": "http://127.0.0.1:9"}
    assert ObjectStorage(f"s3://{bucket}/x").read("a") == b"1", "s3:// is the environment's"


def test_settings_of_a_bucket_go_before_those_of_all(bucket: str, s3_server: str) -> None:
    """As Hadoop has it; also for names with dots, and with nothing, which takes back what is set for all."""
    told = {**spark_conf("http://127.0.0.1:9"), "fs.s3a.connection.ssl.enabled": "false"}
    own = {
        f"{bucket}.endpoint": s3_server, f"{bucket}.access.key": "of-the-bucket", f"{bucket}.session.token": "",
        "my.data.endpoint": "other:1", "my.data.path.style.access": "false", "my.data.committer.name": "magic",
    }  # fmt: skip
    hadoop.use(hadoop.read_settings(told.get, lambda prefix: own if prefix == "fs.s3a.bucket." else {}))
    assert not any("committer" in name for name in hadoop.given()), "only what is used is handed on"
    storage = ObjectStorage(f"s3a://{bucket}/x")
    assert storage.create("a", b"1")
    assert (storage._fs.key, storage._fs.secret, storage._fs.token) == ("of-the-bucket", SECRET, None)
    assert storage._fs.s3.meta.region_name == "eu-central-1"
    of_all = hadoop.s3_options("third")
    assert of_all == hadoop.s3_options()
    assert (of_all["endpoint_url"], of_all["key"]) == ("http://127.0.0.1:9", "from-spark")
    dotted = hadoop.s3_options("my.data")
    assert dotted["endpoint_url"] == "http://other:1" and "config_kwargs" not in dotted
    assert ObjectStorage("s3a://third/x")._fs is ObjectStorage("s3a://fourth/y")._fs is not storage._fs


def test_a_server_that_is_away_is_told_without_the_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    hadoop.use({"fs.s3a.access.key": "me", "fs.s3a.secret.key": SECRET, "fs.s3a.endpoint": "http://127.0.0.1:9"})
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    with pytest.raises(HoldfastError) as error:
        ObjectStorage("s3a://bucket/x").create("a", b"1")
    assert SECRET not in repr(error.value) + str(error.value)
