"""Many buckets in a batch: bounded memory, few hidden files, a small record (F2, F3)."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from holdfast.connectors.files import pack, task
from holdfast.connectors.files.flush import flush
from holdfast.connectors.files.rolling import Rolling
from holdfast.connectors.files.sidecar import put_parts
from holdfast.connectors.files.sink import FileSink
from holdfast.errors import RestoredEndpointError
from holdfast.sinks.fan import fanned
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.testing.local import armed
from tests.unit.inprocess import Engine

BUCKETS = 200
EACH, LATER = Rolling(age="0s"), Rolling(size="128MB", age="1h", inactivity=None)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds of files; nothing here crashes the machine


def sink(out: Path, rolling: Rolling = LATER) -> FileSink:
    return FileSink(str(out), bucket_by="name", rolling=rolling)


def spread(number: int) -> list[pa.RecordBatch]:
    found = []
    for j in range(3):
        ids = pa.array([number * 10_000_000 + j * 1_000_000 + i for i in range(BUCKETS)], pa.int64())
        names = pa.array([f"n{i}" for i in range(BUCKETS)])
        found.append(pa.RecordBatch.from_arrays([ids, names], names=["id", "name"]))
    return found


def seen(out: Path) -> list[int]:
    files = [p for p in out.rglob("*.parquet") if "_holdfast" not in p.parts]
    return sorted(i for f in files for i in pa.parquet.read_table(f, partitioning=None)["id"].to_pylist())


def wanted(*numbers: int) -> list[int]:
    return sorted(i for n in numbers for batch in spread(n) for i in batch["id"].to_pylist())


def hidden(out: Path, pattern: str = "*") -> list[Path]:
    return [p for p in (out / "_holdfast").rglob(pattern) if p.is_file() and p.parent.parent.name != "ledger"]


def file_sink(engine: Engine) -> FileSink:
    (found,) = engine.sinks
    assert isinstance(found, FileSink)
    return found


def newest_record(engine: Engine) -> int:
    return max(Path(engine.location, "decisions").iterdir(), key=os.path.getmtime).stat().st_size


def test_many_buckets_cost_few_hidden_files_and_a_small_record(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And memory has a limit: a pack is written whenever it is reached."""
    monkeypatch.setattr(pack, "LIMIT", 3_000)
    out = tmp_path / "out"
    engine = Engine(location, sink(out))
    for number in range(3):
        engine.run(number, spread(number))
        assert newest_record(engine) < 4_000
    assert len(hidden(out, "*.arrow")) == 3 * 17
    pieces = Counter((part.file, part.bucket) for part in file_sink(engine).state.parts if part.offset >= 0)
    assert {*pieces.values()} == {3}, "each task has passed the limit twice before its end"
    assert len({file for file, _ in pieces}) == 3, "and went on in the same file"
    assert len(hidden(out, "*.json")) <= 4, "a state, and lists that are swept"
    engine.restart(sink(out))
    engine.run(3, spread(3))
    engine.coordinator.finish(0.0)
    engine.coordinator.close(0.0)
    assert seen(out) == wanted(0, 1, 2, 3)
    files = [p for p in out.rglob("*.parquet") if "_holdfast" not in p.parts]
    assert len(files) == BUCKETS
    assert hidden(out, "*.arrow") == []
    engine.restart(sink(out))
    assert len(hidden(out)) == 1, "the state that the newest record names"


def test_many_subtasks_with_some_buckets_leave_a_small_record(location: str, tmp_path: Path) -> None:
    """What a record has of a subtask has a bound, however many buckets that has; 100 of them have 100 times as much."""
    out = tmp_path / "out"
    engine = Engine(location, sink(out))
    subtasks = [[batch.slice(0, 16) for batch in spread(number)] for number in range(100)]
    engine.run(0, *subtasks)
    assert newest_record(engine) < 100 * 600
    engine.restart(sink(out, EACH))
    engine.run(1, *[[batch.slice(0, 16) for batch in spread(100)]])
    engine.coordinator.finish(0.0)
    wanted_ids = [
        i for part in [*subtasks, [b.slice(0, 16) for b in spread(100)]] for b in part for i in b["id"].to_pylist()
    ]
    assert seen(out) == sorted(wanted_ids)


def test_many_folders_of_a_pattern_leave_a_small_record(location: str, tmp_path: Path) -> None:
    def made() -> TwoPhaseCommitSink:
        return fanned(FileSink(str(tmp_path / "out" / "{name}"), rolling=LATER))

    engine = Engine(location, made())
    for number in range(15):
        engine.run(number, [batch.slice(0, 20) for batch in spread(number)])
    assert newest_record(engine) < 60_000, "each of the 20 folders has a state of 6 kB"
    engine.restart(made())
    engine.coordinator.finish(0.0)
    files = list((tmp_path / "out").glob("n*/*.parquet"))
    ids = [i for file in files for i in pa.parquet.read_table(file, partitioning=None)["id"].to_pylist()]
    assert sorted(ids) == sorted(i for n in range(15) for b in spread(n) for i in b.slice(0, 20)["id"].to_pylist())


def decide(engine: Engine, number: int, *subtasks: list[pa.RecordBatch]) -> None:
    """Decide a checkpoint, and die before its commit."""
    with armed("decision=lost"), pytest.raises(BaseException, match="fault decision"):
        engine.run(number, *subtasks)


def test_rows_whose_list_is_gone_after_the_decision_are_not_lost(location: str, tmp_path: Path) -> None:
    """The state of the record knows the parts; and no sweep takes them for nobody's."""
    out = tmp_path / "out"
    engine = Engine(location, sink(out, EACH))
    engine.run(0, spread(0))
    decide(engine, 1, spread(1))
    (found,) = hidden(out, "1-*.json")
    found.unlink()
    engine.restart(sink(out, EACH))
    engine.run(2, spread(2))
    assert seen(out) == wanted(0, 1, 2)


def test_rule_16_what_an_earlier_version_decided_is_completed(
    location: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had up to 64 parts in the record, and the names of all files beside the list of more."""
    out = tmp_path / "out"

    def before(folder: Any, name: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
        if len(parts) <= 64:
            return {"parts": parts}
        return {**put_parts(folder, name, parts), "files": sorted({part["file"] for part in parts})}

    monkeypatch.setattr(task, "put_parts", before)
    engine = Engine(location, sink(out, EACH))
    engine.run(0, spread(0))
    decide(engine, 1, spread(1), [batch.slice(0, 16) for batch in spread(2)])
    monkeypatch.undo()
    monkeypatch.setattr(os, "fsync", lambda _: None)
    engine.restart(sink(out, EACH))
    engine.run(2, spread(3))
    assert seen(out) == sorted([*wanted(0, 1, 3), *(i for b in spread(2) for i in b.slice(0, 16)["id"].to_pylist())])


@pytest.mark.parametrize("fault", ["decision=lost", "commit.subtask=lost@70", "commit.mark=error", "commit.mark=lost"])
def test_a_crash_with_many_buckets_leaves_each_row_in_one_file(location: str, tmp_path: Path, fault: str) -> None:
    out = tmp_path / "out"
    engine = Engine(location, sink(out, EACH))
    engine.run(0, spread(0))
    with armed(fault):
        try:
            engine.run(1, spread(1))
        except Exception as error:  # noqa: BLE001  the restart is what is looked at
            assert "fault" in repr(error).lower() or "commit" in repr(error).lower()
    engine.restart(sink(out, EACH))
    engine.run(1, spread(1))
    engine.run(2, spread(2))
    assert seen(out) == wanted(0, 1, 2)


def test_flush_reads_a_state_that_is_in_a_file(location: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    engine = Engine(location, sink(out))
    engine.run(0, spread(0))
    (done,) = flush(engine.storage, "orders", engine.log.lineage)
    assert (done.files, done.rows) == (BUCKETS, 3 * BUCKETS)
    assert seen(out) == wanted(0)


def test_a_pack_that_is_gone_is_told(location: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    engine = Engine(location, sink(out))
    engine.run(0, spread(0))
    largest = max(hidden(out, "*.arrow"), key=lambda p: p.stat().st_size)
    largest.unlink()
    with pytest.raises(RestoredEndpointError, match=f"{largest.name} is missing"):
        engine.restart(sink(out))


def test_undecided_packs_and_lists_are_swept(location: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    engine = Engine(location, sink(out))

    def fail(subtask: int) -> None:
        if subtask == 1:
            raise RuntimeError("task")

    with pytest.raises(RuntimeError):
        engine.run(0, spread(0), spread(1), on_task=fail)
    engine.restart(sink(out))
    left: list[Any] = hidden(out)
    assert left == []
