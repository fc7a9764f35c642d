"""FileSink after the decision: D1, D3, D5, D6, lost parts, take-over, and failures told in words."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest

from holdfast.checkpoint.object_store import ObjectStorage
from holdfast.checkpoint.ports import Committed, LoopTasks, Run
from holdfast.connectors.files import formats, jsonlines
from holdfast.connectors.files.buckets import Buckets, TimeBucket
from holdfast.connectors.files.proof import Proof
from holdfast.connectors.files.rolling import Rolling
from holdfast.connectors.files.sink import FileSink
from holdfast.core.model import Outcome
from holdfast.errors import (
    ConfigError,
    LostError,
    RestoredEndpointError,
    RowError,
    SinkError,
)
from holdfast.sinks.subtask import make_task
from tests.unit.inprocess import SCHEMA, Engine, record_batch
from tests.unit.test_sqlite_after_decision import bad_text

LINEAGE, OTHER = "a" * 32, "b" * 32
EACH, LATER = Rolling(age="0s"), Rolling(size="1GB", age="10h", inactivity=None)


class Rig:
    """One FileSink over a folder, driven as the kernel drives it."""

    def __init__(self, tmp_path: Path) -> None:
        self.out = tmp_path / "out"
        self.run = Run("orders", LINEAGE, 0, str(tmp_path / "ck" / "holdfast"), schema=SCHEMA)
        self.state: Any = None
        self.decided: dict[int, list[Any]] = {}

    def start(self, *, path: Path | None = None, committed: int | None = None, **options: Any) -> FileSink:
        options.setdefault("rolling", LATER)
        known = {} if committed is None else {"files-out": Committed(committed, 0)}
        take_over = options.pop("take_over", False)
        self.run = replace(
            self.run,
            generation=self.run.generation + 1,
            committed=known,
            last_decided=committed if self.state is None else self.state["checkpoint"],
            take_over=take_over,
            lineage=options.pop("lineage", self.run.lineage),
        )
        sink = FileSink(str(path or self.out), options.pop("format", "parquet"), name="files-out", **options)
        sink.open(self.run)
        sink.initialize_state(self.state)
        sink.recover("orders", self.run.generation, self.decided)
        return sink

    def prepare(self, sink: FileSink, checkpoint_id: int, *subtasks: Sequence[int]) -> list[Any]:
        work = []
        for number, numbers in enumerate(subtasks):
            txn = sink.begin(make_task(self.run, sink.name, checkpoint_id, number, 0, 1000 * checkpoint_id))
            sink.write(txn, record_batch(numbers))
            work.append(json.loads(json.dumps(sink.pre_commit(txn))))
        return work

    def decide(self, sink: FileSink, checkpoint_id: int, *subtasks: Sequence[int]) -> list[Any]:
        work = self.prepare(sink, checkpoint_id, *subtasks)
        sink.validate(checkpoint_id, work, LoopTasks())
        self.state = json.loads(json.dumps(sink.snapshot_state(checkpoint_id)))
        self.decided[checkpoint_id] = work
        return work

    def commit(self, sink: FileSink, checkpoint_id: int) -> Outcome | None:
        outcome = sink.commit(checkpoint_id, self.decided[checkpoint_id], LoopTasks())
        del self.decided[checkpoint_id]
        return outcome

    def flush(self, sink: FileSink) -> None:
        state = sink.revise_state(1e12, last=True)
        if state is not None:
            self.state = json.loads(json.dumps(state))
            sink.initialize_state(self.state)
        sink.act_on_state(LoopTasks())

    def ids(self, form: str = "parquet", out: Path | None = None) -> list[int]:
        found = [p for p in (out or self.out).rglob(f"*.{form}") if "_holdfast" not in p.parts]
        return sorted(pa.dataset.dataset(found, format=form).to_table()["id"].to_pylist()) if found else []

    def part(self, committable: Any) -> Path:
        return self.out / "_holdfast" / "orders" / "files.2dout" / committable["parts"][0]["file"]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


# -- D1 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", formats.FORMATS)
@pytest.mark.parametrize("nested", [False, True])
def test_d1_text_that_is_not_utf8_is_refused_in_the_task(rig: Rig, form: str, nested: bool, location: str) -> None:
    text = bad_text(b"ok", b"ab\xff")
    if nested and form != "csv":
        text = pa.StructArray.from_arrays([text], ["s"])
    schema = pa.schema([("id", pa.int64()), ("v", text.type)])
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), text], schema=schema)
    engine = Engine(location, FileSink(str(rig.out), form, rolling=EACH))
    with pytest.raises(RowError, match=r"sink 'files-out': column 'v' has a value that is not UTF-8"):
        engine.run(0, [batch])
    assert engine.files("decisions") == [] and list(rig.out.rglob("*.arrow")) == []
    engine.restart()
    engine.run(0, [batch.slice(0, 1)])
    assert engine.pending == []


def test_d1_what_a_format_cannot_hold_is_refused_at_the_start_at_any_depth(rig: Rig) -> None:
    for kind in (pa.struct([]), pa.list_(pa.struct([])), pa.list_(pa.null()), pa.struct([("d", pa.duration("us"))])):
        rig.run = replace(rig.run, schema=pa.schema([("id", pa.int64()), ("v", kind)]))
        with pytest.raises(ConfigError, match=r"column 'v' is of type .*, which parquet cannot hold"):
            rig.start()
    rig.run = replace(rig.run, schema=pa.schema([("v", pa.struct([("a", pa.int64()), ("a", pa.int64())]))]))
    with pytest.raises(ConfigError, match="column 'v' has a struct with two fields of one name"):
        rig.start()


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.parametrize("array", [pa.array([2**62], pa.timestamp("us")), pa.array([2**30], pa.date32())])
def test_d1_a_year_that_no_reader_takes_as_text_is_refused(rig: Rig, form: str, array: pa.Array) -> None:
    """Arrow writes such a year wrongly, or as "<value out of range>", and says nothing."""
    proof = Proof("out", form, Buckets(), 1000)
    batch = pa.RecordBatch.from_arrays([pa.array([1]), array], ["id", "v"])
    with pytest.raises(RowError, match=r"column 'v' has a value that is not within the years 0000 to 9999.*since 1970"):
        proof.check_rows(batch)
    Proof("out", "parquet", Buckets(), 1000).check_rows(batch)
    by_time = Buckets.of([TimeBucket("day=%Y-%m-%d", column="v")])
    with pytest.raises(RowError, match="no reader takes it from the name of a folder"):
        Proof("out", "parquet", by_time, 1000).check_rows(batch)


def test_d1_a_line_that_readers_would_skip_is_refused(rig: Rig) -> None:
    batch = pa.RecordBatch.from_arrays([pa.array(["a", None])], ["v"])
    with pytest.raises(RowError, match=r"column 'v' has a value that would be an empty line in a CSV file"):
        Proof("out", "csv", Buckets(), 1000).check_rows(batch)


def test_d1_a_row_that_is_too_long_for_a_line_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.connectors.files.proof._LARGE_ROW", 1000)
    monkeypatch.setattr("holdfast.connectors.files.proof._LONGEST_ROW", 2000)
    rows = pa.RecordBatch.from_pydict({"a": ["x" * 100] * 50 + ["y" * 1500]})
    Proof("out", "json", Buckets(), 1000).check_rows(rows)
    with pytest.raises(RowError, match=r"a row has \d+ bytes, which is too long for a line of json"):
        Proof("out", "json", Buckets(), 1000).check_rows(pa.RecordBatch.from_pydict({"a": ["x", "y" * 3000]}))
    Proof("out", "parquet", Buckets(), 1000).check_rows(pa.RecordBatch.from_pydict({"a": ["x", "y" * 3000]}))


def test_lines_that_are_too_long_together_are_written_in_pieces(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, sizes = jsonlines.encode, []

    def limited(batch: pa.RecordBatch) -> bytes:
        if batch.num_rows > 3:
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        sizes.append(batch.num_rows)
        return real(batch)

    monkeypatch.setattr(jsonlines, "encode", limited)
    batch = record_batch(range(10))
    with (tmp_path / "f").open("wb") as file:
        formats.FORMATS["json"].write(file, batch.schema, [batch], "none")
    assert [json.loads(line)["id"] for line in (tmp_path / "f").read_text().splitlines()] == list(range(10))
    assert max(sizes) <= 3


def test_d1_names_too_long_for_an_object_store_are_refused_in_the_task(
    bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """S3 takes keys of 1,024 bytes; a put of a longer one fails only when the file is completed."""
    path = f"s3://{bucket}/" + "p" * 100
    schema = pa.schema([("id", pa.int64()), *((f"k{n}", pa.string()) for n in range(4))])
    by = [f"k{n}" for n in range(4)]
    run = Run("orders", LINEAGE, 0, str(tmp_path), schema=schema)

    def write(length: int) -> FileSink:
        sink = FileSink(path, bucket_by=by, rolling=EACH, name="out")
        sink.open(run)
        sink.initialize_state(None)
        row = {"id": 1} | dict.fromkeys(by, "v" * length)
        txn = sink.begin(make_task(run, "out", 0, 0, 0, 0))
        sink.write(txn, pa.RecordBatch.from_pylist([row], schema=schema))
        sink.validate(0, [sink.pre_commit(txn)], LoopTasks())  # type: ignore[list-item]
        sink.snapshot_state(0)
        assert sink.commit(0, [], LoopTasks()) is Outcome.COMMITTED
        return sink

    with pytest.raises(RowError, match=r"a folder that is too long for the store \(\d+ bytes, 79\d are allowed\)"):
        write(197)
    write(190)
    assert ObjectStorage(path).longest == 1024 - 101
    with pytest.raises(ConfigError, match=r"path .* is too long.*Choose a shorter path"):
        FileSink(f"s3://{bucket}/" + "p" * 900, name="out").open(run)


# -- D6 ---------------------------------------------------------------------------------------------------------------


def test_d6_rows_decided_for_one_format_do_not_change_it_with_the_options(rig: Rig) -> None:
    sink = rig.start(format="json")
    work = rig.decide(sink, 0, [1])
    assert {k: work[0][k] for k in ("version", "path", "format", "compression")} == {
        "version": 2, "path": str(rig.out), "format": "json", "compression": "none"
    }  # fmt: skip
    rig.commit(sink, 0)
    rig.decide(sink, 1, [2])
    sink = rig.start(format="csv", compression="gzip", committed=0)
    rig.commit(sink, 1)
    rig.decide(sink, 2, [3])
    rig.commit(sink, 2)
    rig.flush(sink)
    assert rig.ids("json") == [1, 2]
    assert [p.name[-7:] for p in rig.out.glob("*.gz")] == [".csv.gz"]


def test_d6_compression_of_waiting_rows_is_the_one_they_were_decided_with(rig: Rig) -> None:
    sink = rig.start(compression="zstd")
    rig.decide(sink, 0, [1])
    sink = rig.start(compression="none")
    rig.commit(sink, 0)
    rig.flush(sink)
    (file,) = rig.out.glob("*.parquet")
    assert pa.parquet.ParquetFile(file).metadata.row_group(0).column(0).compression == "ZSTD"


def test_the_state_of_the_first_version_is_read(rig: Rig) -> None:
    sink = rig.start(format="json")
    work = rig.decide(sink, 0, [1])
    rig.state["version"] = 1
    for part in (*rig.state["waiting"], *work[0]["parts"]):
        part.pop("format", None), part.pop("compression", None)
    for key in ("path", "format", "compression"):
        del work[0][key]
    work[0]["version"] = 1
    sink = rig.start(format="parquet")
    rig.commit(sink, 0)
    rig.flush(sink)
    assert rig.ids("json") == [1]


# -- D5 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "first"), [("marks deleted", 0), ("folder deleted", 0), ("restored", 2)])
def test_d5_a_folder_that_lacks_what_was_committed_is_refused(rig: Rig, tmp_path: Path, how: str, first: int) -> None:
    sink = rig.start(rolling=EACH)
    for checkpoint_id in range(4):
        rig.decide(sink, checkpoint_id, [checkpoint_id])
        rig.commit(sink, checkpoint_id)
        if checkpoint_id == 1:
            shutil.copytree(rig.out, tmp_path / "backup")
    rig.start(rolling=EACH, committed=3)
    if how == "marks deleted":
        shutil.rmtree(rig.out / "_holdfast")
    else:
        shutil.rmtree(rig.out)
    if how == "restored":
        shutil.copytree(tmp_path / "backup", rig.out)
    with pytest.raises(RestoredEndpointError, match=rf"files-out.*checkpoints {first} to 3 were committed") as caught:
        rig.start(rolling=EACH, committed=3)
    assert caught.value.behind == (first, 3)
    sink = rig.start(rolling=EACH)  # accepted: then the log expects nothing there any more
    rig.decide(sink, 4, [4])
    rig.commit(sink, 4)
    rig.start(rolling=EACH, committed=4)


@pytest.mark.parametrize("rolled", [True, False], ids=["files", "waiting"])
def test_d5_a_folder_that_becomes_an_older_copy_while_the_query_runs_is_refused_by_the_next_commit(
    rig: Rig, tmp_path: Path, rolled: bool
) -> None:
    """Else the next mark hides the gap for ever."""
    sink = rig.start(rolling=EACH) if rolled else rig.start()
    for checkpoint_id in range(3):
        rig.decide(sink, checkpoint_id, [checkpoint_id])
        rig.commit(sink, checkpoint_id)
        if checkpoint_id == 0:
            shutil.copytree(rig.out, tmp_path / "backup")
    shutil.rmtree(rig.out)
    shutil.copytree(tmp_path / "backup", rig.out)
    rig.decide(sink, 3, [3])
    with pytest.raises(RestoredEndpointError, match="checkpoints 1 to 2 were committed there") as caught:
        rig.commit(sink, 3)
    assert caught.value.behind == (1, 2)


def test_d5_a_copy_from_between_a_commit_and_the_files_of_its_rows_is_refused_too(rig: Rig, tmp_path: Path) -> None:
    sink = rig.start()
    rig.decide(sink, 0, [0])
    rig.commit(sink, 0)
    shutil.copytree(rig.out, tmp_path / "backup")
    rig.flush(sink)
    shutil.rmtree(rig.out)
    shutil.copytree(tmp_path / "backup", rig.out)
    rig.decide(sink, 1, [1])
    with pytest.raises(RestoredEndpointError, match="checkpoints 0 to 0 were committed there"):
        rig.commit(sink, 1)


def test_d5_committed_files_that_a_user_takes_away_are_no_error(rig: Rig) -> None:
    sink = rig.start(rolling=EACH)
    rig.decide(sink, 0, [1])
    rig.commit(sink, 0)
    for file in rig.out.glob("*.parquet"):
        file.unlink()
    rig.start(rolling=EACH, committed=0)


def test_d5_waiting_rows_of_committed_checkpoints_that_are_gone_are_named_and_can_be_given_up(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    sink = rig.start()
    first, _ = rig.decide(sink, 0, [1, 2], [3])
    rig.commit(sink, 0)
    rig.decide(sink, 1, [4])
    rig.commit(sink, 1)
    rig.part(first).unlink()
    with pytest.raises(RestoredEndpointError, match=r"is missing, and with it 2 rows of checkpoints 0 to 0") as caught:
        rig.flush(sink)
    assert caught.value.behind == (0, 1)
    with pytest.raises(RestoredEndpointError, match="accept-restored") as caught:
        rig.start(committed=1)
    assert caught.value.behind == (0, 1)
    sink = rig.start()  # accepted
    assert "2 rows that were given up or are gone are left out" in caplog.text
    rig.decide(sink, 2, [5])
    rig.commit(sink, 2)
    rig.flush(sink)
    assert rig.ids() == [3, 4, 5]
    rig.start(committed=2)


def test_a_new_path_is_no_restored_folder(rig: Rig, tmp_path: Path) -> None:
    sink = rig.start(rolling=EACH)
    rig.decide(sink, 0, [1])
    rig.commit(sink, 0)
    sink = rig.start(rolling=EACH, path=tmp_path / "new", committed=0)
    rig.start(rolling=EACH, path=tmp_path / "new", committed=0)
    rig.decide(sink, 1, [2])
    rig.commit(sink, 1)
    rig.start(rolling=EACH, path=tmp_path / "new", committed=1)
    assert rig.ids() == [1] and rig.ids(out=tmp_path / "new") == [2]


# -- lost parts -------------------------------------------------------------------------------------------------------


def test_lost_parts_are_named_before_and_after_the_decision_and_can_be_given_up(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    sink = rig.start(rolling=EACH)
    rig.decide(sink, 0, [0])
    rig.commit(sink, 0)
    work = rig.decide(sink, 1, [1], [2], [3])
    assert list(sink.still_prepared(work)) == work
    rig.part(work[1]).unlink()
    assert list(sink.still_prepared(work)) == [work[0], work[2]]
    with pytest.raises(LostError, match=r"is missing, and with it 1 rows of checkpoints 1 to 1.*resolve") as caught:
        sink.commit(1, work, LoopTasks())
    assert caught.value.lost == (work[1],)
    rows = sink.rows_of(work)
    assert rows is not None
    assert [row["id"] for batch in rows for row in batch.to_pylist()] == [1, 3]
    assert "1 rows cannot be read back" in caplog.text
    with pytest.raises(LostError):
        rig.commit(rig.start(rolling=EACH, committed=0), 1)
    # `resolve` gives up what is lost: the rest of the checkpoint is committed.
    rig.decided[1] = [work[0], work[2]]
    sink = rig.start(rolling=EACH, committed=0)
    rig.commit(sink, 1)
    rig.decide(sink, 2, [4])
    rig.commit(sink, 2)
    assert rig.ids() == [0, 1, 3, 4]
    rig.start(rolling=EACH, committed=2)


def test_a_checkpoint_that_was_given_up_as_a_whole_leaves_no_rows_behind(rig: Rig) -> None:
    sink = rig.start()
    rig.decide(sink, 0, [0])
    rig.commit(sink, 0)
    rig.decide(sink, 1, [1])
    rig.decided.clear()
    sink = rig.start(committed=0)
    assert len(list(rig.out.rglob("*.arrow"))) == 1
    rig.flush(sink)
    rig.decide(sink, 2, [2])
    rig.commit(sink, 2)
    rig.flush(sink)
    assert rig.ids() == [0, 2]


def test_a_short_part_is_not_prepared_any_more(rig: Rig) -> None:
    sink = rig.start()
    work = rig.prepare(sink, 0, [1], [2])
    rig.part(work[0]).write_bytes(b"short")
    assert list(sink.still_prepared(work)) == [work[1]]


# -- take-over --------------------------------------------------------------------------------------------------------


def test_a_take_over_undoes_what_others_prepared_and_keeps_what_is_decided(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    sink = rig.start()
    rig.decide(sink, 0, [0])
    rig.commit(sink, 0)
    (kept,) = rig.out.rglob("*.arrow")
    owed = rig.decide(sink, 1, [1])
    stray = rig.prepare(sink, 2, [2])
    (rig.out / "_holdfast/orders/files.2dout/tmp" / LINEAGE).mkdir(parents=True)
    half = rig.out / "_holdfast/orders/files.2dout/tmp" / LINEAGE / f"0-{'0' * 32}.tmp"
    half.write_bytes(b"half")
    sink = rig.start(take_over=True, lineage=OTHER)
    assert not rig.part(stray[0]).exists() and not half.exists()
    assert rig.part(owed[0]).exists() and kept.exists()
    rig.commit(sink, 1)
    rig.flush(sink)
    assert rig.ids() == [0, 1]
    rig.start()
    # From another location, which knows nothing of all that.
    sink = rig.start()
    rig.decide(sink, 2, [2])
    rig.commit(sink, 2)
    stray = rig.prepare(sink, 3, [3])
    rig.state, rig.decided = None, {}
    rig.start(take_over=True, lineage="c" * 32)
    assert not rig.part(stray[0]).exists()
    assert len(list(rig.out.rglob("*.arrow"))) == 1, "rows that the other location has committed and not completed"
    assert "1 hidden files below" in caplog.text


def test_what_a_take_over_leaves_stays_and_what_comes_late_goes_in_every_later_sweep_and_run(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    """Rows that the other location committed and has not completed are all that is left of them."""
    other = rig.start()
    rig.decide(other, 0, [0])
    rig.commit(other, 0)
    (kept,) = rig.out.rglob("*.arrow")
    theirs, rig.state, rig.decided = rig.run, None, {}
    sink = taker = rig.start(take_over=True, lineage=OTHER)
    for late in ("in the same run", "in a later one"):
        stray = Rig.prepare(SimpleNamespace(run=theirs), other, 1, [1])  # type: ignore[arg-type]
        sink.recover("orders", rig.run.generation, {})
        assert not rig.part(stray[0]).exists(), late
        assert kept.exists(), late
        rig.run = replace(rig.run, set_aside=(LINEAGE,))
        sink = rig.start()
    assert caplog.text.count("hidden files below") == 1
    # Who takes the name from this one while it still runs keeps what it prepares.
    successor = Rig(rig.out.parent)
    newer = successor.start(take_over=True, lineage="c" * 32)
    work = successor.prepare(newer, 0, [5])
    taker.recover("orders", rig.run.generation, {})
    assert successor.part(work[0]).exists()


# -- failures in words ------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_names_sink_path_and_remedy(rig: Rig) -> None:
    rig.out.mkdir()
    (rig.out / "_holdfast").write_bytes(b"")
    with pytest.raises(SinkError, match=rf"sink 'files-out' \({rig.out}\): .* cannot be .*") as caught:
        rig.decide(rig.start(), 0, [1])
    assert caught.value.action == "restart"
    assert FileSink(str(rig.out)).address == str(rig.out)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_full_disk_under_the_folder_is_told_and_the_restart_completes_the_file(rig: Rig, location: str) -> None:
    rig.out.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", rig.out], check=True)
    try:
        engine = Engine(location, FileSink(str(rig.out), "csv", rolling=EACH))
        engine.run(0, [1])
        many = [record_batch(range(2, 60_000))]
        with pytest.raises(SinkError, match=rf"sink 'files-out' \({rig.out}\).*No space left.*The disk is full"):
            engine.run(1, many)
        assert list(rig.out.rglob("*.arrow")) == []
        # Room for the part, but not for the file that is made of it.
        subprocess.run(["mount", "-o", "remount,size=600k", rig.out], check=True)
        with pytest.raises(Exception, match=r"No space left on device\. The disk is full"):
            engine.run(1, many)
        subprocess.run(["mount", "-o", "remount,size=20m", rig.out], check=True)
        engine.restart()
        engine.run(1, many)
        assert rig.ids("csv") == list(range(1, 60_000))
    finally:
        subprocess.run(["umount", "-l", rig.out], check=True)
