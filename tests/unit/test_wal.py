"""The write-ahead log: sealed, checksummed, and removed only by those who may (W2, W8, rule 3)."""

from __future__ import annotations

import datetime
import decimal
import gc
import hashlib
import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.storage import LocalStorage, open_storage
from holdfast.core.naming import Task
from holdfast.core.recovery import may_undo
from holdfast.errors import ConfigError, HoldfastError, LostError, RecordError
from holdfast.sinks import wal
from holdfast.sinks.subtask import current_task, write_subtask
from tests.unit.inprocess import DAMAGES, Endpoint, PreparingSink, damage, record_batch


def task(location: str, *, sink: str = "target", generation: int = 0, checkpoint_id: int = 4) -> Task:
    return Task("orders", sink, "a" * 32, generation, checkpoint_id, 2, 77, timestamp=123, location=location)


def sealed(location: str, *batches: pa.RecordBatch, **options: Any) -> dict[str, Any]:
    writer = wal.LogWriter(task(location, **options))
    for batch in batches or (record_batch([1, 2]), record_batch([3])):
        writer.write(batch)
    return writer.seal()


def rows(location: str, handle: dict[str, Any]) -> list[int]:
    return [i for batch in wal.read_log(location, handle) for i in batch.column("id").to_pylist()]


def test_w2_the_handle_is_all_a_reader_needs(location: str) -> None:
    handle = sealed(location)
    assert handle["handle"].startswith("wal/target/4/0-2-77-")
    assert (handle["subtask"], handle["timestamp"], handle["rows"], handle["version"]) == (2, 123, 3, 1)
    assert handle["bytes"] == Path(location, handle["handle"]).stat().st_size
    assert rows(location, handle) == [1, 2, 3]
    assert rows(location, handle) == [1, 2, 3], "reading takes nothing away"


def test_w2_a_sealed_file_is_on_the_disk_whole_with_its_name_and_its_checksum(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, int]] = []
    fsync = os.fsync

    def noted(fd: int) -> None:
        synced.append((str(Path(f"/proc/self/fd/{fd}").readlink()), os.fstat(fd).st_size))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", noted)
    handle = sealed(location)
    path = Path(location, handle["handle"])
    content = path.read_bytes()
    assert (str(path), len(content)) in synced, "flushed when the last byte was written"
    last = max(n for n, (name, _) in enumerate(synced) if name == str(path))
    assert str(path.parent) in [name for name, _ in synced[last:]], "and its name after that"
    assert handle["sha256"] == hashlib.sha256(content).hexdigest()


def test_any_spark_type_comes_back_as_it_went_in(location: str) -> None:
    utc = datetime.UTC
    table = pa.table(
        {
            "i": pa.array([1, None]),
            "d": pa.array([decimal.Decimal("1.50"), None], pa.decimal128(38, 18)),
            "t": pa.array([datetime.datetime(2024, 1, 1, tzinfo=utc), None], pa.timestamp("us", "UTC")),
            "b": pa.array([b"\0\xff", b""]),
            "l": pa.array([[1, None], None]),
            "s": pa.array([{"x": "ä"}, None]),
            "m": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            "n": pa.nulls(2),
        }
    )
    handle = sealed(location, *table.to_batches())
    assert pa.Table.from_batches(wal.read_log(location, handle)).equals(table)


def test_two_attempts_of_one_task_never_share_a_file(location: str) -> None:
    assert sealed(location)["handle"] != sealed(location)["handle"]


def test_the_sinks_name_stays_one_folder(location: str) -> None:
    handle = sealed(location, sink="../a/b c")
    assert handle["handle"].startswith("wal/.2e.2e.2fa.2fb.20c/4/")


@pytest.mark.parametrize("when", ["empty", "begun", "sealed"])
def test_a_discarded_file_is_gone_with_its_folder(location: str, when: str) -> None:
    writer = wal.LogWriter(task(location))
    if when != "empty":
        writer.write(record_batch([1]))
    if when == "sealed":
        writer.seal()
    writer.discard()
    del writer
    gc.collect()
    assert LocalStorage(location).walk("") == []
    assert not Path(location, "wal/target/4").exists()


def _write_and_die(location: str) -> None:
    writer = wal.LogWriter(task(location))
    writer.write(record_batch([1]))
    os.kill(os.getpid(), signal.SIGKILL)


def test_w8_what_a_killed_task_leaves_is_swept(location: str) -> None:
    process = multiprocessing.get_context("fork").Process(target=_write_and_die, args=(location,))
    process.start()
    process.join()
    storage = LocalStorage(location)
    (left,) = storage.walk("wal")
    assert wal.sweep(storage, "target", 0, {}) == [left]
    assert storage.walk("wal") == []


def test_rule_3_a_sweep_removes_what_is_unnamed_and_of_its_own_or_an_older_generation(location: str) -> None:
    storage = LocalStorage(location)
    kept = sealed(location)
    old, own, newer = (sealed(location, generation=g)["handle"] for g in (0, 1, 2))
    other = sealed(location, sink="other")["handle"]
    storage.create("wal/target/4/readme", b"")
    removed = wal.sweep(storage, "target", 1, {4: [kept]})
    assert sorted(removed) == sorted([old, own])
    assert storage.walk("wal") == sorted([kept["handle"], newer, other, "wal/target/4/readme"])
    assert rows(location, kept) == [1, 2, 3]


def test_a_sink_whose_name_begins_like_anothers_is_not_swept_with_it(location: str) -> None:
    handle = sealed(location, sink="target2")["handle"]
    assert wal.sweep(LocalStorage(location), "target", 9, {}) == []
    assert LocalStorage(location).walk("wal") == [handle]


@pytest.mark.parametrize("how", DAMAGES)
def test_w2_damage_is_found_before_the_first_row_is_given_out(location: str, how: str) -> None:
    """A half-sent checkpoint would be worse than none."""
    handle = sealed(location, *[record_batch(range(n, n + 100)) for n in range(0, 1000, 100)])
    path = Path(location, handle["handle"])
    good = damage(path, how)
    with pytest.raises(RecordError, match=f"{path} is damaged.*nothing of it was delivered. Restore it from a copy"):
        wal.read_log(location, handle)
    path.write_bytes(good)
    assert rows(location, handle) == list(range(1000))


def test_a_missing_file_is_an_error_that_names_it(location: str) -> None:
    handle = sealed(location)
    Path(location, handle["handle"]).unlink()
    with pytest.raises(LostError, match=f"{handle['handle']} is missing: 3 rows .* not delivered. Restore") as caught:
        wal.read_log(location, handle)
    assert caught.value.lost == (handle,)


def test_a_handle_that_leaves_the_location_is_refused(location: str) -> None:
    with pytest.raises(ConfigError, match="is not a name below"):
        wal.read_log(location, {"handle": "../../etc/passwd", "bytes": 0, "sha256": ""})


def test_reading_is_a_stream(location: str) -> None:
    handle = sealed(location, *[record_batch([n]) for n in range(5)])
    values = wal.read_log(location, handle)
    assert next(values).column("id").to_pylist() == [0]
    values.close()  # type: ignore[attr-defined]
    wal.discard(open_storage(location), [handle])
    assert LocalStorage(location).walk("") == []


def test_discarding_may_be_repeated(location: str) -> None:
    handle = sealed(location)
    for _ in range(2):
        wal.discard(LocalStorage(location), [handle])
    wal.discard(LocalStorage(location), [])


# -- one task ---------------------------------------------------------------------------------------------------------


def test_there_is_a_current_task_only_inside_one(endpoint: Endpoint) -> None:
    with pytest.raises(HoldfastError, match="works only inside a sink's task methods; on the driver there is no task"):
        current_task()
    seen = []

    class Looking(PreparingSink):
        def write(self, txn: str, batch: pa.RecordBatch) -> None:
            seen.append(current_task().token == txn)
            super().write(txn, batch)

    write_subtask([Looking(endpoint)], [task("")], [record_batch([1])])
    assert seen == [True]
    with pytest.raises(HoldfastError):
        current_task()


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ({"x": object()}, "must return plain JSON data"),
        ({"x": float("inf")}, "must return plain JSON data"),
        ({"x": (1, 2)}, "a dict that JSON leaves unchanged"),
        ({1: 2}, "a dict that JSON leaves unchanged"),
        (["x"], "not list"),
    ],
)
def test_t1_a_committable_is_plain_data(endpoint: Endpoint, answer: Any, message: str) -> None:
    class Odd(PreparingSink):
        def pre_commit(self, txn: str) -> Any:
            return answer

    with pytest.raises(ConfigError, match=f"sink 'prepared': pre_commit.*{message}"):
        write_subtask([Odd(endpoint)], [task("")], [record_batch([1])])
    assert endpoint.prepared == {}


def test_the_iterator_is_drained_and_empty_batches_begin_nothing(endpoint: Endpoint) -> None:
    batches = iter([record_batch([]), record_batch([]), record_batch([])])
    report = write_subtask([PreparingSink(endpoint)], [task("")], batches)
    assert next(batches, None) is None
    assert (report.rows, report.committables, endpoint.called("begin")) == (0, (), [])


def test_w6_a_sweep_beside_a_long_backlog_looks_at_each_file_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every batch sweeps: with each file compared to each committable, a thousand checkpoints would stop the query."""
    compared = 0

    def counting(found: Any, own: int, decided: Any) -> bool:
        nonlocal compared
        compared += len(list(decided))
        return may_undo(found, own, decided)

    class Full(LocalStorage):
        def walk(self, folder: str) -> list[str]:
            return [*files, orphan]

        def delete(self, name: str) -> None:
            deleted.append(name)

    deleted: list[str] = []
    files = [f"wal/target/{n}/0-0-{n}-{n:032x}.arrow" for n in range(500)]
    orphan = f"wal/target/7/0-1-9999-{'f' * 32}.arrow"
    monkeypatch.setattr(wal, "may_undo", counting)
    assert wal.sweep(Full("/nowhere"), "target", 0, {n: [{"handle": f}] for n, f in enumerate(files)}) == [orphan]
    assert deleted == [orphan]
    assert compared <= len(files)
