"""Object stores, against a real S3 server."""

from __future__ import annotations

import errno
import gc
import importlib
import os
import sqlite3
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.object_store import ObjectStorage
from holdfast.checkpoint.storage import open_storage
from holdfast.committers.sql import SqlCheckpointCommitter
from holdfast.connectors.sqlite import SqliteSink
from holdfast.errors import ConfigError, FencedError, MissingExtraError, RecordError, StorageError, UnsafeStorageError
from holdfast.testing.audit import audit
from tests.servers.races import race_processes, race_threads
from tests.unit.inprocess import Endpoint, Engine, SendingSink


def test_of_sixteen_racing_threads_one_creates_the_name(bucket: str) -> None:
    race_threads(f"s3://{bucket}/ck", ("decisions/0.0.json", "decisions/0.1.json", "decisions/0.2.json"))


def test_a_client_is_shared_until_the_environment_points_elsewhere(
    bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Making one costs hundreds of milliseconds; keeping an old one would read and write the wrong store."""
    first, second = (ObjectStorage(f"s3://{bucket}/{name}") for name in ("a", "b"))
    assert first._fs is second._fs
    assert first.create("x", b"1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    elsewhere = ObjectStorage(f"s3://{bucket}/a")
    assert elsewhere._fs is not first._fs
    assert "127.0.0.1:9" in elsewhere._fs.s3.meta.endpoint_url
    assert "127.0.0.1:9" not in first._fs.s3.meta.endpoint_url


def test_of_racing_processes_one_creates_the_name(bucket: str) -> None:
    race_processes(f"s3://{bucket}/ck")


@pytest.mark.parametrize("scheme", ["s3a", "s3n"])
def test_hadoops_schemes_are_the_same_place_as_s3(bucket: str, scheme: str) -> None:
    hadoop, plain = open_storage(f"{scheme}://{bucket}/ck/"), open_storage(f"s3://{bucket}/ck")
    assert hadoop.create("lineage.json", b"one")
    assert not plain.create("lineage.json", b"two")
    assert plain.read("lineage.json") == b"one"
    # Opened again by its URL, `s3a` is reached as Spark was told to.
    assert hadoop.url == f"{'s3a' if scheme == 's3a' else 's3'}://{bucket}/ck"
    assert plain.url == f"s3://{bucket}/ck"


def test_a_stream_is_there_when_its_writer_ends_and_not_before(bucket: str) -> None:
    store = open_storage(f"s3://{bucket}/ck")
    with store.writer("wal/s/0/x.arrow") as file:
        file.write(b"a" * 1000)
        assert store.walk("wal") == []
    with store.reader("wal/s/0/x.arrow") as file:
        assert file.read() == b"a" * 1000


@pytest.mark.parametrize("size", [10, 6 * 1024 * 1024], ids=["small", "multipart"])
def test_a_writer_that_raises_leaves_nothing(bucket: str, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither when it raises nor when its file object is collected later, which closes an open file."""
    store = open_storage(f"s3://{bucket}/ck")
    assert isinstance(store, ObjectStorage)
    monkeypatch.setattr(store._fs, "default_block_size", 5 * 1024 * 1024)
    with pytest.raises(RuntimeError, match="stop"), store.writer("wal/s/0/x.arrow") as file:
        file.write(b"a" * size)
        raise RuntimeError("stop")
    del file
    gc.collect()
    assert store.walk("wal") == []
    with urllib.request.urlopen(f"{_endpoint()}/{bucket}?uploads", timeout=10) as answer:
        assert b"<Upload>" not in answer.read()


def _endpoint() -> str:
    return os.environ["AWS_ENDPOINT_URL"]


def test_names_lists_one_folder_and_walk_all_below(bucket: str) -> None:
    store = open_storage(f"s3://{bucket}/ck")
    for name in ("commits/2", "commits/10", "commits/deep/3", "commitsx/4"):
        store.replace(name, b".")
    assert store.names("commits") == ["10", "2"]
    assert store.walk("commits") == ["commits/10", "commits/2", "commits/deep/3"]
    assert store.names("none") == store.walk("none") == []


def test_the_folder_markers_hadoop_leaves_are_not_files(bucket: str) -> None:
    store = open_storage(f"s3://{bucket}/ck")
    store.replace("offsets/0", b"v1")
    for marker in ("ck/offsets/", "ck/wal/", "ck/wal/s/"):
        request = urllib.request.Request(f"{_endpoint()}/{bucket}/{marker}", data=b"", method="PUT")
        with urllib.request.urlopen(request, timeout=10):
            pass
    assert store.names("offsets") == ["0"]
    assert store.walk("wal") == store.names("wal") == []


def test_what_one_process_writes_another_lists_at_once(bucket: str) -> None:
    """No listing may come from a cache: a generation that is not seen is a driver that is not fenced."""
    first, second = (open_storage(f"s3://{bucket}/ck") for _ in range(2))
    assert first.names("generations") == []
    second.create("generations/0", b"x")
    assert first.names("generations") == ["0"]
    second.delete("generations/0")
    assert first.names("generations") == []


def test_deleting_is_final_and_may_be_repeated(bucket: str) -> None:
    store = open_storage(f"s3://{bucket}/ck")
    store.replace("a", b"1")
    store.replace("a", b"2")
    assert store.read("a") == b"2"
    store.delete("a")
    store.delete("a")
    store.remove_folder("nothing")
    with pytest.raises(FileNotFoundError):
        store.read("a")
    with pytest.raises(FileNotFoundError):
        store.reader("a")


@pytest.mark.parametrize("name", ["../other", "/etc/passwd", "wal/../../other"])
def test_names_that_leave_the_root_are_refused(bucket: str, name: str) -> None:
    with pytest.raises(ConfigError, match="is not a name below"):
        open_storage(f"s3://{bucket}/ck").delete(name)


def test_the_whole_cycle_runs_on_s3(bucket: str, tmp_path: Path, endpoint: Endpoint) -> None:
    """Two sinks, an outage of one, a restart, a replay, and a second driver that fences the first."""
    committer = SqlCheckpointCommitter(f"sqlite:///{tmp_path}/marks.db")

    def sinks() -> tuple[SendingSink, SqliteSink]:
        return SendingSink(endpoint, committer), SqliteSink(str(tmp_path / "out.db"), "orders")

    engine = Engine(f"s3a://{bucket}/ck/holdfast", *sinks())
    engine.run(0, [1, 2], [3])
    endpoint.fail("send", False, False, False, False)
    engine.run(1, [4], [], [5, 6])
    assert engine.pending == [1]
    assert len(engine.files("wal/sending")) == 2
    first = engine.coordinator
    engine.restart(*sinks())
    assert engine.pending == [1]
    replay = engine.run(1, [4], [], [5, 6])
    assert (replay.writes, replay.drained) == (0, 1)
    engine.run(2, [7])
    for _ in range(4):
        engine.tick()
    with pytest.raises(FencedError):
        first.run(3, replay)
    sent = range(1, 8)
    with sqlite3.connect(tmp_path / "out.db") as connection:
        stored = [row[0] for row in connection.execute("SELECT id FROM orders")]
    connection.close()
    assert audit(sent, stored).ok
    assert audit(sent, endpoint.rows).ok
    assert engine.pending == []
    assert engine.files("wal") == []


def test_a_damaged_record_on_s3_is_named_by_its_url(bucket: str, tmp_path: Path) -> None:
    engine = Engine(f"s3://{bucket}/ck/holdfast", SqliteSink(str(tmp_path / "out.db"), "orders"))
    engine.run(0, [1])
    engine.storage.replace("decisions/0.0.json", b"{}")
    with pytest.raises(RecordError, match=f"s3://{bucket}/ck/holdfast/decisions/0.0.json is damaged"):
        engine.restart()


class _Overwrites:
    """An S3 without conditional writes: the mode is taken and ignored."""

    def __init__(self, fs: Any) -> None:
        self._fs = fs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> Any:
        return self._fs.pipe_file(path, data)


def test_a_store_that_overwrites_is_refused(bucket: str) -> None:
    store = ObjectStorage(f"s3://{bucket}/ck")
    store._fs = _Overwrites(store._fs)
    with pytest.raises(UnsafeStorageError, match=r"does not honour 'create only if absent'.*Use local disk, S3"):
        CheckpointLog(store, "orders").start()
    assert store.names("generations") == []


def test_a_store_that_begins_to_overwrite_does_not_lose_its_lineage(bucket: str) -> None:
    """The lineage is read before it is created: the check for a safe store comes after it."""
    log = CheckpointLog(open_storage(f"s3://{bucket}/ck"), "orders")
    log.start()
    store = ObjectStorage(f"s3://{bucket}/ck")
    store._fs = _Overwrites(store._fs)
    with pytest.raises(UnsafeStorageError):
        CheckpointLog(store, "orders").start()
    again = CheckpointLog(open_storage(f"s3://{bucket}/ck"), "orders")
    again.start()
    assert again.lineage == log.lineage


class _AnswersInvalid(_Overwrites):
    """A store that answers a failed precondition with EINVAL, as some do."""

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> Any:
        try:
            return self._fs.pipe_file(path, data, mode=mode)
        except FileExistsError:
            raise OSError(22, "Invalid argument") from None


def test_a_store_that_answers_invalid_for_exists_is_understood(bucket: str) -> None:
    store = ObjectStorage(f"s3://{bucket}/ck")
    store._fs = _AnswersInvalid(store._fs)
    assert store.create("a", b"1")
    assert not store.create("a", b"2")
    assert store.read("a") == b"1"


class _Conflicts(_Overwrites):
    """A store that answers "conflict" while somebody else writes the name."""

    times = 0

    def pipe_file(self, path: str, data: bytes, mode: str = "overwrite") -> Any:
        if self.times:
            self.times -= 1
            raise OSError(errno.EBUSY, "ConditionalRequestConflict")
        return self._fs.pipe_file(path, data, mode=mode)


def test_a_conflict_with_another_writer_is_asked_again(bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.checkpoint.object_store._CONFLICT_WAITS", (0.0, 0.0))
    store = ObjectStorage(f"s3://{bucket}/ck")
    store._fs = _Conflicts(store._fs)
    store._fs.times = 2
    assert store.create("a", b"1")
    store._fs.times = 2
    assert not store.create("a", b"2")
    store._fs.times = 3
    with pytest.raises(StorageError, match=rf"s3://{bucket}/ck/b cannot be written.*ConditionalRequestConflict"):
        store.create("b", b"3")


def test_a_writer_that_raises_says_why_on_any_store() -> None:
    store = open_storage("memory://bucket/ck")
    with pytest.raises(RuntimeError, match="stop"), store.writer("x") as file:
        file.write(b"a")
        raise RuntimeError("stop")


def test_a_missing_s3fs_names_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    # None is how Python remembers a module that cannot be imported; fsspec has a memory of its own
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(importlib.import_module("fsspec.registry")._registry, "s3", raising=False)
    monkeypatch.setenv("AWS_REGION", "another client, so that none is left from another test")
    with pytest.raises(MissingExtraError, match=r"s3://b/ck.*pip install 'holdfast\[s3\]'"):
        open_storage("s3://b/ck")


def test_an_unknown_scheme_is_a_config_error() -> None:
    with pytest.raises(ConfigError, match="nosuch://b/ck"):
        open_storage("nosuch://b/ck")


class _Fails:
    """A store whose every call fails."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        def fail(*_: Any, **__: Any) -> Any:
            raise self._error

        return (lambda path: path) if name == "_strip_protocol" else fail


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            EndpointConnectionError(endpoint_url="http://nowhere"),
            "Could not connect to the endpoint.*does not answer: see",
        ),
        (PermissionError(errno.EACCES, "Access Denied"), "Permission denied.*Access Denied.*change the owner"),
        (OSError(errno.EIO, "SlowDown"), r"Input/output error \(.*SlowDown"),
    ],
)
@pytest.mark.parametrize("method", ["read", "reader", "size", "delete", "names", "walk", "create", "replace", "writer"])
def test_no_raw_error_of_a_client_leaves_the_storage(error: Exception, words: str, method: str) -> None:
    store = open_storage("memory://bucket/ck")
    store._fs = _Fails(error)  # type: ignore[attr-defined]
    with pytest.raises(StorageError, match=rf"(?s)memory://bucket/ck/a cannot be .*{words}"):
        if method == "writer":
            store.writer("a").__enter__()
        else:
            getattr(store, method)("a", *([b"x"] if method in ("create", "replace") else []))
