"""Azure's and Google's stores as holdfast's own storage: what tests/unit/test_object_store.py shows of S3."""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from azure.storage.blob import BlobServiceClient

import holdfast as hf
from holdfast.checkpoint import hadoop
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.object_store import ObjectStorage
from holdfast.checkpoint.storage import open_storage
from holdfast.committers.sql import SqlCheckpointCommitter
from holdfast.connectors.files.rolling import Rolling
from holdfast.connectors.sqlite import SqliteSink
from holdfast.errors import FencedError, RecordError, StorageError
from holdfast.pipeline.checks.examine import findings
from holdfast.pipeline.checks.registry import Level
from holdfast.testing.audit import audit
from tests.integration.checking import situation
from tests.servers.clouds import HOST, KEY, Azurite
from tests.servers.object_store import StoreServer
from tests.servers.races import race_processes, race_threads
from tests.unit.inprocess import Endpoint, Engine, SendingSink

MEGABYTE = 1 << 20
#: aiohttp's advice to the clients of the stores
large = pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")


def test_r4_of_sixteen_racing_threads_one_creates_the_name(location: str) -> None:
    race_threads(location, (f"decisions/0.{number}.json" for number in range(30)))


def test_r4_of_racing_processes_one_creates_the_name(location: str) -> None:
    race_processes(location)


def test_a_forked_process_has_a_client_of_its_own(location: str) -> None:
    """Spark's Python workers are forks; one that shared its parent's connections or event loop would hang."""
    store = open_storage(location)
    assert store.create("parent", b"1")
    child = multiprocessing.get_context("fork").Process(target=_in_a_fork, args=(location,))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert store.read("child") == b"2"
    assert not store.create("child", b"3")


def _in_a_fork(location: str) -> None:
    store = open_storage(location)
    done = store.create("child", b"2") and not store.create("parent", b"2") and store.names("") == ["child", "parent"]
    os._exit(0 if done else 1)


def test_r4_whose_answer_was_lost_finds_its_own_record(location: str, answers_lost: None) -> None:
    store = open_storage(location)
    told = [store.create(f"decisions/{i}", b"%d" % i) for i in range(3)]
    assert False in told, "no answer was lost"
    assert [store.read(f"decisions/{i}") for i in range(3)] == [b"0", b"1", b"2"]
    log = CheckpointLog(open_storage(f"{location}/log"), "orders")
    log.start()
    again = CheckpointLog(open_storage(f"{location}/log"), "orders")
    again.start()
    assert (again.lineage, again.generation) == (log.lineage, log.generation + 1)


def test_a_stream_is_there_when_its_writer_ends_and_not_before(location: str) -> None:
    store = open_storage(location)
    with store.writer("wal/s/0/x.arrow") as file:
        file.write(b"a" * 1000)
        assert store.walk("wal") == []
    with store.reader("wal/s/0/x.arrow") as file:
        assert file.read() == b"a" * 1000
    with store.writer("wal/s/0/empty"):
        pass
    assert store.size("wal/s/0/empty") == 0


@large
def test_a_file_of_many_pieces_comes_back_as_it_was(location: str) -> None:
    store = open_storage(location)
    pieces = [bytes([number]) * MEGABYTE for number in range(60)]
    with store.writer("wal/s/0/large") as file:
        for piece in pieces:
            file.write(piece)
    assert store.size("wal/s/0/large") == 60 * MEGABYTE
    found = hashlib.sha256()
    with store.reader("wal/s/0/large") as file:
        while part := file.read(7 * MEGABYTE):
            found.update(part)
        file.seek(30 * MEGABYTE)
        assert file.read(4) == bytes([30]) * 4
    assert found.digest() == hashlib.sha256(b"".join(pieces)).digest()


@large
@pytest.mark.parametrize("size", [10, 60 * MEGABYTE], ids=["small", "large"])
def test_a_writer_that_raises_leaves_nothing(location: str, size: int) -> None:
    """Neither when it raises nor when its file object is collected later, which closes an open file."""
    store = open_storage(location)
    with pytest.raises(RuntimeError, match="stop"), store.writer("wal/s/0/x.arrow") as file:
        file.write(b"a" * size)
        raise RuntimeError("stop")
    del file
    gc.collect()
    assert store.walk("wal") == store.names("wal/s/0") == []


def test_names_lists_one_folder_and_walk_all_below(location: str) -> None:
    store = open_storage(location)
    for name in ("commits/2", "commits/10", "commits/deep/3", "commitsx/4", "commits.5"):
        store.replace(name, b".")
    assert store.names("commits") == ["10", "2"]
    assert store.walk("commits") == ["commits/10", "commits/2", "commits/deep/3"]
    assert len(store.walk("")) == 5
    assert store.names("none") == store.walk("none") == []


def test_more_files_than_one_answer_lists_are_all_found(location: str) -> None:
    store = open_storage(location)
    wanted = [f"{number:05d}" for number in range(5100)]
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda name: store.replace(f"commits/{name}", b""), wanted))
    assert store.names("commits") == wanted
    assert len(store.walk("")) == 5100


def test_the_folder_markers_hadoop_leaves_are_not_files(server: StoreServer, bucket: str, location: str) -> None:
    store = open_storage(location)
    store.replace("offsets/0", b"v1")
    for folder in ("offsets", "wal", "wal/s"):
        if isinstance(server, Azurite):
            with BlobServiceClient.from_connection_string(server.connection_string()) as client:
                client.get_blob_client(bucket, f"ck/{folder}").upload_blob(b"", metadata={"hdi_isfolder": "true"})
        else:
            server.client().pipe_file(f"{bucket}/ck/{folder}/", b"")
    assert store.names("offsets") == ["0"]
    assert store.walk("") == ["offsets/0"]
    assert store.walk("wal") == store.names("wal") == store.names("") == []


@pytest.mark.parametrize(
    "name", ["a b", "x=ä", "100%", "50%25", "a#b", "q?x", "c:d+e", "[x]&y", "~'\"!", "day=2024-01-01"]
)
def test_any_name_means_itself(location: str, name: str) -> None:
    store = open_storage(location)
    assert store.create(f"f/{name}", b"1")
    assert not store.create(f"f/{name}", b"2")
    assert store.names("f") == [name]
    assert store.walk("f") == [f"f/{name}"]
    assert store.read(f"f/{name}") == b"1"
    store.delete(f"f/{name}")
    assert store.names("f") == []


def test_what_one_process_writes_another_lists_at_once(location: str) -> None:
    """No listing may come from a cache: a generation that is not seen is a driver that is not fenced."""
    first, second = (ObjectStorage(location) for _ in range(2))
    second._fs = ObjectStorage(location)._fs
    assert first.names("generations") == first.walk("") == []
    second.create("generations/0", b"x")
    assert first.names("generations") == ["0"]
    assert first.walk("") == ["generations/0"]
    second.delete("generations/0")
    assert first.names("generations") == first.walk("") == []


def test_deleting_is_final_and_may_be_repeated(location: str) -> None:
    store = open_storage(location)
    store.replace("a", b"1")
    store.replace("a", b"2")
    assert store.read("a") == b"2"
    store.delete("a")
    store.delete("a")
    store.remove_folder("nothing")
    for ask in (store.read, store.reader, store.size):
        with pytest.raises(FileNotFoundError):
            ask("a")


def test_a_move_may_be_repeated(location: str) -> None:
    store = ObjectStorage(location)
    store.replace("hidden/a", b"1")
    assert store.move("hidden/a", "a")
    assert not store.move("hidden/a", "a")
    assert store.walk("") == ["a"]
    assert store.read("a") == b"1"


def test_the_whole_cycle_runs_there(location: str, tmp_path: Path) -> None:
    """Two sinks, an outage of one, a restart, a replay, and a second driver that fences the first."""
    endpoint, committer = Endpoint(), SqlCheckpointCommitter(f"sqlite:///{tmp_path}/marks.db")

    def sinks() -> tuple[SendingSink, SqliteSink]:
        return SendingSink(endpoint, committer), SqliteSink(str(tmp_path / "out.db"), "orders")

    engine = Engine(f"{location}/holdfast", *sinks())
    engine.run(0, [1, 2], [3])
    endpoint.fail("send", False, False, False, False)
    engine.run(1, [4], [], [5, 6])
    assert engine.pending == [1]
    first = engine.coordinator
    engine.restart(*sinks())
    replay = engine.run(1, [4], [], [5, 6])
    engine.run(2, [7])
    for _ in range(4):
        engine.tick()
    with pytest.raises(FencedError):
        first.run(3, replay)
    connection = sqlite3.connect(tmp_path / "out.db")
    stored = [row[0] for row in connection.execute("SELECT id FROM orders")]
    connection.close()
    assert audit(range(1, 8), stored).ok
    assert audit(range(1, 8), endpoint.rows).ok
    assert engine.pending == []
    assert engine.files("wal") == []


def test_files_get_their_names_once(server: StoreServer, bucket: str, location: str) -> None:
    """Without uploads that wait to be finished, a file is copied to its name."""
    out = server.location(bucket, "out")
    engine = Engine(f"{location}/holdfast", hf.FileSink(out, rolling=Rolling(age="0s")))
    engine.run(0, [1, 2], [3])
    engine.restart(hf.FileSink(out, rolling=Rolling(age="0s")))
    engine.run(1, [4])
    store = ObjectStorage(out)
    seen = [name for name in store.walk("") if name.endswith(".parquet") and not name.startswith((".", "_"))]
    rows = [row["id"] for name in seen for row in pq.read_table(store.reader(name)).to_pylist()]
    assert audit(range(1, 5), rows).ok


def test_a_damaged_record_is_named_by_its_url(location: str, tmp_path: Path) -> None:
    engine = Engine(f"{location}/holdfast", SqliteSink(str(tmp_path / "out.db"), "orders"))
    engine.run(0, [1])
    engine.storage.replace("decisions/0.0.json", b"{}")
    with pytest.raises(RecordError, match=rf"{location}/holdfast/decisions/0.0.json is damaged"):
        engine.restart()


def test_a_bucket_that_is_not_there_is_told(server: StoreServer) -> None:
    store = open_storage(server.location("no-such-bucket", "ck"))
    with pytest.raises(StorageError, match=r"no-such-bucket.*cannot be written"):
        store.create("a", b"1")
    with pytest.raises(StorageError, match=r"no-such-bucket.*cannot be written"), store.writer("a") as file:
        file.write(b"1")


def test_a_bucket_is_tried_and_left_as_it_was(server: StoreServer, bucket: str, location: str) -> None:
    """All is well but what a copy cannot give: these stores have no uploads that wait to be finished."""
    sink = hf.FileSink(server.location(bucket, "orders"))
    for only in ("log-store", "log-same", "log-room", "log-lasting", "files"):
        said = findings(situation(location, sink), only=only)
        short = [(f.check, f.level) for f in said if f.level is not Level.OK]
        assert said and short == ([("files-return", Level.WARNING)] if only == "files" else []), said
    assert server.client().find(bucket) == []


def test_what_spark_was_told_is_all_that_is_needed(
    server: StoreServer,
    location: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The environment would lead to a server that is not there; and nothing of the key is said or written."""
    caplog.set_level("DEBUG")
    if isinstance(server, Azurite):
        elsewhere = server.connection_string("http://127.0.0.1:9")
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", elsewhere)
    else:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    conf = {name.removeprefix("spark.hadoop."): value for name, value in server.spark_conf().items()}
    hadoop.use(hadoop.read_settings(conf.get, lambda prefix: _below(conf, prefix)))
    committer = SqlCheckpointCommitter(f"sqlite:///{tmp_path}/marks.db")
    engine = Engine(f"{location}/holdfast", SendingSink(Endpoint(), committer))
    engine.run(0, [1, 2])
    store = ObjectStorage(f"{location}/holdfast")
    names = store.walk("")
    written = b"".join(store.read(name) for name in names) + "".join(names).encode()
    assert b"decision" in written
    assert KEY.encode() not in written
    assert KEY not in caplog.text + repr(store) + repr(store.url) + repr(store._fs)


def _below(conf: dict[str, str], prefix: str) -> dict[str, str]:
    return {name.removeprefix(prefix): value for name, value in conf.items() if name.startswith(prefix)}


def test_a_wrong_key_is_told_without_it(server: StoreServer, location: str) -> None:
    if not isinstance(server, Azurite):
        return  # Google's emulator takes everybody
    wrong = "d3JvbmctYW5kLXNlY3JldA=="
    address = server.endpoint.removeprefix("http://")
    hadoop.use({f"fs.azure.account.key.{HOST}": wrong, "fs.azure.abfs.endpoint": address})
    for ask in (lambda s: s.create("a", b"1"), lambda s: s.read("a"), lambda s: s.names("a"), lambda s: s.walk("a")):
        with pytest.raises(StorageError) as caught:
            ask(open_storage(location))
        assert "This user may not do that" in str(caught.value)
        assert wrong not in str(caught.value) + repr(caught.value)
        assert len(str(caught.value).splitlines()) == 1
        assert caught.value.reached
