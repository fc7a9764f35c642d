"""Local files: create-if-absent, durability, and names that stay below the root."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.object_store import ObjectStorage
from holdfast.checkpoint.storage import LocalStorage, open_storage
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


def test_any_other_failure_goes_up_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(OSError, match="No space left"):
        LocalStorage(str(tmp_path)).create("a", b"x")


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
    with pytest.raises(FileExistsError), storage.writer("wal/x"):
        pass
    assert storage.read("wal/x") == b"sealed"


def test_a_folder_swept_while_a_writer_opens_its_file_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, sweeps = Path.open, []

    def swept(self: Path, mode: str = "r", *arguments: Any, **options: Any) -> Any:
        if mode == "xb" and len(sweeps) < limit:
            sweeps.append(self.parent.rmdir())
        return real(self, mode, *arguments, **options)

    monkeypatch.setattr(Path, "open", swept)
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
