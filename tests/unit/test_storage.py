"""Local files: create-if-absent, durability, and names that stay below the root."""

from __future__ import annotations

import errno
import io
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.object_store import ObjectStorage
from holdfast.checkpoint.storage import LocalStorage, open_storage
from holdfast.checkpoint.trouble import LocalFile
from holdfast.errors import ConfigError, StorageError, UnsafeStorageError


def _create(root: str, barrier: Any, number: int, results: Any) -> None:
    storage = LocalStorage(root)
    barrier.wait()
    for round_ in range(50):
        if storage.create(f"decisions/0.{round_}.json", b"%d" % number * 1000):
            results.put((round_, number))


def test_of_racing_processes_exactly_one_creates_each_name(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(4), context.SimpleQueue()
    racers = [context.Process(target=_create, args=(str(tmp_path), barrier, n, results)) for n in range(4)]
    for racer in racers:
        racer.start()
    winners = dict(results.get() for _ in range(50))
    for racer in racers:
        racer.join()
        assert racer.exitcode == 0
    assert results.empty(), "two racers were told that they made the same name"
    assert sorted(winners) == list(range(50))
    for round_, winner in winners.items():
        assert LocalStorage(str(tmp_path)).read(f"decisions/0.{round_}.json") == b"%d" % winner * 1000


def _die_in(function: str, root: str, method: str) -> None:
    setattr(os, function, lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    getattr(LocalStorage(root), method)("decisions/0.0.json", b"new content")


@pytest.mark.parametrize("method", ["create", "replace"])
@pytest.mark.parametrize("function", ["fsync", "link", "replace"])
def test_a_kill_in_the_middle_leaves_the_name_absent_or_whole(tmp_path: Path, function: str, method: str) -> None:
    """Never an empty slot: that would be a decision nobody can read."""
    process = multiprocessing.get_context("fork").Process(target=_die_in, args=(function, str(tmp_path), method))
    process.start()
    process.join()
    storage = LocalStorage(str(tmp_path))
    reached = function in ("fsync", "link" if method == "create" else "replace")
    assert process.exitcode == (-signal.SIGKILL if reached else 0)
    assert storage.names("decisions") == ([] if reached else ["0.0.json"])
    assert storage.walk("") == ([] if reached else ["decisions/0.0.json"])
    assert storage.create("decisions/0.0.json", b"second") is reached


class _Recorder:
    """Writes down what is synced, linked and renamed, by path and in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.calls: list[tuple[str, str]] = []
        self._root = root
        fsync, link, replace = os.fsync, os.link, os.replace

        def recorded(name: str, real: Callable[..., Any], path_of: Callable[..., str]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                result = real(*arguments, **options)
                self.calls.append((name, self._short(path_of(*arguments))))
                return result

            return call

        monkeypatch.setattr(
            os, "fsync", recorded("fsync", fsync, lambda fd: os.fspath(Path(f"/proc/self/fd/{fd}").readlink()))
        )
        monkeypatch.setattr(os, "link", recorded("link", link, lambda _, target: os.fspath(target)))
        monkeypatch.setattr(os, "replace", recorded("replace", replace, lambda _, target: os.fspath(target)))

    def _short(self, path: str) -> str:
        name = Path(path).relative_to(self._root).as_posix()
        return "temporary" if ".tmp-" in name else name


@pytest.mark.parametrize(("method", "step"), [("create", "link"), ("replace", "replace")])
def test_the_file_is_synced_before_it_gets_its_name_and_the_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, step: str
) -> None:
    """Without the first a crash of the machine leaves an empty record, without the second it takes the record back."""
    (tmp_path / "decisions").mkdir()
    recorder = _Recorder(monkeypatch, tmp_path)
    getattr(LocalStorage(str(tmp_path)), method)("decisions/0.0.json", b"x")
    assert recorder.calls == [("fsync", "temporary"), (step, "decisions/0.0.json"), ("fsync", "decisions")]


def test_a_new_folder_is_durable_before_anything_is_put_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorder = _Recorder(monkeypatch, tmp_path)
    LocalStorage(str(tmp_path)).create("wal/sink/0", b"x")
    assert recorder.calls[:2] == [("fsync", "."), ("fsync", "wal")]
    assert recorder.calls[2:] == [("fsync", "temporary"), ("link", "wal/sink/0"), ("fsync", "wal/sink")]


def test_a_stream_is_synced_before_its_writer_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """W2: a sealed handle is durable, its content, its name and its folder's, which a killed task may have made."""
    (tmp_path / "wal").mkdir()
    recorder = _Recorder(monkeypatch, tmp_path)
    with LocalStorage(str(tmp_path)).writer("wal/x.arrow") as file:
        file.write(b"rows")
        assert recorder.calls == []
    assert recorder.calls == [("fsync", "wal/x.arrow"), ("fsync", "wal"), ("fsync", ".")]


def test_who_is_told_that_a_name_exists_can_rely_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its writer may have died between its link and its sync; what is acted on must survive the machine."""
    storage = LocalStorage(str(tmp_path))
    storage.create("decisions/0.0.json", b"first")
    recorder = _Recorder(monkeypatch, tmp_path)
    assert not storage.create("decisions/0.0.json", b"second")
    assert recorder.calls[-1] == ("fsync", "decisions")
    assert storage.read("decisions/0.0.json") == b"first"


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_hard_links_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def no_links(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", no_links)
    with pytest.raises(UnsafeStorageError, match=r"without hard links.*local disk or an object store") as caught:
        LocalStorage(str(tmp_path)).create("decisions/0.0.json", b"x")
    assert str(tmp_path / "decisions") in str(caught.value)
    assert list((tmp_path / "decisions").iterdir()) == [], "the temporary file is still there"


def test_any_other_failure_names_the_path_and_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(
        StorageError, match=r"/a cannot be written: No space left on device\. The disk is full"
    ) as caught:
        LocalStorage(str(tmp_path)).create("a", b"x")
    assert caught.value.action == "restart"
    assert isinstance(caught.value.__cause__, OSError)


METHODS: dict[str, Callable[[LocalStorage], object]] = {
    "create": lambda s: s.create("d/a", b"x"),
    "replace": lambda s: s.replace("d/a", b"x"),
    "writer": lambda s: s.writer("d/a").__enter__(),
    "read": lambda s: s.read("d/a"),
    "reader": lambda s: s.reader("d/a"),
    "size": lambda s: s.size("d/a"),
    "delete": lambda s: s.delete("d/a"),
    "names": lambda s: s.names("d/a"),
    "walk": lambda s: s.walk("d"),
    "sync": lambda s: s.sync("d/a"),
    "tidy": lambda s: s.tidy("d/a"),
    "remove_folder": lambda s: s.remove_folder("d/a"),
}


@pytest.mark.parametrize("method", METHODS)
def test_no_raw_os_error_leaves_the_storage(tmp_path: Path, method: str) -> None:
    """A file where a folder should be fails for root too, whom permissions do not stop."""
    (tmp_path / "d").write_bytes(b"not a folder")
    with pytest.raises(StorageError, match=r"/d(/a)? cannot be .*is where a folder should be: move"):
        METHODS[method](LocalStorage(str(tmp_path)))


@pytest.mark.parametrize("method", ["read", "reader", "size"])
def test_what_is_not_there_stays_file_not_found(tmp_path: Path, method: str) -> None:
    with pytest.raises(FileNotFoundError):
        getattr(LocalStorage(str(tmp_path)), method)("a")


def test_a_disk_that_fills_up_while_a_file_is_written_is_told_through_arrow_too() -> None:
    """/dev/full takes nothing."""
    file = io.BufferedWriter(LocalFile("/dev/full", "wb"))
    batch = pa.RecordBatch.from_pydict({"a": list(range(100_000))})
    stream = pa.ipc.new_stream(pa.PythonFile(file, mode="w"), batch.schema)
    with pytest.raises(StorageError, match=r"/dev/full cannot be written: No space left on device"):
        stream.write_batch(batch)
    file.raw.close()


def test_the_size_of_a_file(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.create("a", b"12345")
    assert storage.size("a") == 5


@pytest.mark.parametrize("name", ["/etc/passwd", "../outside", "wal/../../outside", ".."])
@pytest.mark.parametrize("method", ["read", "delete", "reader", "names", "walk", "remove_folder"])
def test_names_that_leave_the_root_are_refused(tmp_path: Path, name: str, method: str) -> None:
    with pytest.raises(ConfigError, match="is not a name below"):
        getattr(LocalStorage(str(tmp_path / "root")), method)(name)
    with pytest.raises(ConfigError, match="is not a name below"):
        LocalStorage(str(tmp_path / "root")).create(name, b"x")


def test_names_are_sorted_files_of_one_folder_without_temporaries(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    for name in ("b", "a", "deep/c"):
        storage.create(f"commits/{name}", b"x")
    (tmp_path / "commits" / ".tmp-123").write_bytes(b"half")
    assert storage.names("commits") == ["a", "b"]
    assert storage.walk("commits") == ["commits/a", "commits/b", "commits/deep/c"]
    assert storage.names("nothing") == storage.walk("nothing") == []


def test_a_writer_that_raises_leaves_no_file(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    with pytest.raises(RuntimeError), storage.writer("wal/x") as file:
        file.write(b"half")
        raise RuntimeError("task failed")
    assert storage.walk("") == []


def test_a_writer_never_writes_over_a_file(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.create("wal/x", b"sealed")
    with pytest.raises(StorageError, match="wal/x cannot be created: File exists"), storage.writer("wal/x"):
        pass
    assert storage.read("wal/x") == b"sealed"


def test_a_folder_swept_while_a_writer_opens_its_file_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sweeps = []

    def swept(path: str, mode: str) -> Any:
        if mode == "xb" and len(sweeps) < limit:
            sweeps.append(Path(path).parent.rmdir())
        return LocalFile(path, mode)

    monkeypatch.setattr("holdfast.checkpoint.storage.LocalFile", swept)
    limit = 3
    with LocalStorage(str(tmp_path)).writer("wal/x") as file:
        file.write(b"rows")
    assert (tmp_path / "wal" / "x").read_bytes() == b"rows"
    limit = 1000
    with pytest.raises(StorageError, match="again2 is removed again and again while y"):
        LocalStorage(str(tmp_path)).writer("again2/y").__enter__()


def test_deleting_may_be_repeated_and_only_empty_folders_go(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.create("wal/0/a", b"x")
    storage.remove_folder("wal/0")
    assert storage.walk("") == ["wal/0/a"]
    storage.delete("wal/0/a")
    storage.delete("wal/0/a")
    storage.remove_folder("wal/0")
    storage.remove_folder("wal/0")
    assert not (tmp_path / "wal" / "0").exists()
    with pytest.raises(FileNotFoundError):
        storage.read("wal/0/a")


@pytest.mark.parametrize(
    ("location", "root"),
    [
        ("/data/ck", "/data/ck"),
        ("file:/data/ck", "/data/ck"),
        ("file:///data/ck", "/data/ck"),
        ("file://localhost/data/ck", "/data/ck"),
        ("file:/data/run#1/holdfast", "/data/run#1/holdfast"),
        ("file:/data/a?b", "/data/a?b"),
        ("file:/data/100%25", "/data/100%25"),
        ("file:/data/a b", "/data/a b"),
        ("/data/run#1", "/data/run#1"),
    ],
)
def test_a_location_is_the_folder_spark_means(location: str, root: str) -> None:
    """Hadoop's Path takes these characters literally; two locations must never share a log."""
    storage = open_storage(location)
    assert isinstance(storage, LocalStorage)
    assert storage.url == root


def test_another_scheme_is_an_object_store() -> None:
    assert isinstance(open_storage("memory://bucket/ck"), ObjectStorage)


def test_what_killed_writers_left_is_removed_once_nobody_can_be_writing_it(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path))
    storage.create("decisions/0.0.json", b"x")
    old, new = tmp_path / "decisions" / ".tmp-old", tmp_path / "decisions" / ".tmp-new"
    old.write_bytes(b"half"), new.write_bytes(b"half")
    os.utime(old, (1, 1))
    storage.tidy("decisions")
    assert sorted(path.name for path in (tmp_path / "decisions").iterdir()) == [".tmp-new", "0.0.json"]


@pytest.mark.parametrize(
    "location", ["hdfs://namenode/ck", "hdfs:/ck", "viewfs://cluster/ck", "wasbs://c@a.example/ck"]
)
def test_what_only_java_reaches_is_refused_with_a_way_out(location: str) -> None:
    with pytest.raises(UnsafeStorageError, match=r"do not reach \w+:// as Spark's Java does.*s3a://bucket"):
        open_storage(location)


def test_a_folder_may_have_the_name_of_a_scheme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    open_storage("hdfs").create("a", b"x")
    assert (tmp_path / "hdfs" / "a").read_bytes() == b"x"
