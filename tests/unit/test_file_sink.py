"""FileSink without Spark: files that span checkpoints, and everything that can happen to them (F1-F6, T9)."""

from __future__ import annotations

import copy
import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pandas
import pyarrow as pa
import pyarrow.dataset
import pytest

from holdfast.connectors.files import perform, rolling
from holdfast.connectors.files.buckets import TimeBucket
from holdfast.connectors.files.flush import flush
from holdfast.connectors.files.rolling import Rolling
from holdfast.connectors.files.sink import FileSink
from holdfast.core.retry import Retry
from holdfast.errors import (
    CommitError,
    ConfigError,
    FencedError,
    ForeignLineageError,
    InjectedFault,
    RecordError,
    RestoredEndpointError,
    StaleCheckpointError,
    UndeliveredError,
)
from holdfast.testing.audit import audit
from holdfast.testing.local import armed
from tests.unit.inprocess import SCHEMA, Endpoint, Engine, InProcessBatch, PreparingSink, damage

EACH = Rolling(age="0s")
LATER = Rolling(size="128MB", age="15m", inactivity="1m")


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def start(location: str, out: Path, clock: Clock) -> Callable[..., Engine]:
    def make(rolling: Rolling = LATER, **options: Any) -> Engine:
        return Engine(location, FileSink(str(out), rolling=rolling, **options), clock=clock, retain=3)

    return make


def files(out: Path, suffix: str = "parquet") -> list[Path]:
    """What a reader that skips hidden names sees."""
    return sorted(path for path in out.rglob(f"*.{suffix}") if "_holdfast" not in path.parts)


def ids(out: Path) -> list[int]:
    if not out.exists():
        return []
    table = pa.dataset.dataset(out, format="parquet", schema=pa.schema([("id", pa.int64())])).to_table()
    return sorted(table["id"].to_pylist())


def parts(out: Path) -> list[Path]:
    return sorted(out.rglob("*.arrow"))


def finished(engine: Engine) -> None:
    engine.coordinator.finish(0.0)
    engine.coordinator.close(0.0)


# -- rolling over checkpoints -----------------------------------------------------------------------------------------


@pytest.mark.contract("F3")
def test_ten_minutes_of_one_second_triggers_leave_one_file_and_not_six_hundred(
    start: Callable[..., Engine], out: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F3: and what is remembered of them stays small, on disk and in each decision record."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # 600 checkpoints; nothing here crashes the machine
    engine = start()
    for number in range(600):
        engine.run(number, [2 * number], [2 * number + 1])
        engine.tick()
        clock.now += 1.0
        if number % 100 == 99:
            assert files(out) == []
            assert len(parts(out)) < 80
            newest = max(Path(engine.location, "decisions").iterdir(), key=os.path.getmtime)
            assert newest.stat().st_size < 60_000
    finished(engine)
    assert len(files(out)) == 1
    assert ids(out) == list(range(1200))
    assert parts(out) == []


@pytest.mark.contract("F3")
def test_size_completes_files_while_the_query_runs(start: Callable[..., Engine], out: Path) -> None:
    engine = start(Rolling(size=4000, age=None, inactivity=None))
    for number in range(30):
        engine.run(number, list(range(number * 50, number * 50 + 50)))
    seen = len(files(out))
    assert 5 <= seen <= 15
    finished(engine)
    assert ids(out) == list(range(1500))


@pytest.mark.contract("F3")
def test_age_and_inactivity_count_while_the_source_is_quiet(
    start: Callable[..., Engine], out: Path, clock: Clock
) -> None:
    """Rule 7: the timer completes what is due, and no batch is needed."""
    engine = start()
    engine.run(0, [1])
    clock.now += 59
    engine.tick()
    assert ids(out) == []
    clock.now += 1
    engine.tick()
    assert ids(out) == [1]
    assert parts(out) == []
    for number in range(1, 30):
        engine.run(number, [number + 1])
        clock.now += 30
        engine.tick()
    assert ids(out) == [1], "neither old nor quiet enough"
    clock.now += 30
    engine.tick()
    assert ids(out) == list(range(1, 31))
    assert len(files(out)) == 2


def test_rows_are_seen_within_a_minute_by_default_while_more_come(
    location: str, out: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the word for buckets may be Spark's."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    engine = Engine(location, FileSink(str(out), partition_by=["name"]), clock=clock)
    engine.run(0, [7])
    for number in range(1, 28):
        clock.now += 2
        engine.run(number, [7])
    assert 7 in ids(out)
    assert [file.parent.name for file in files(out)] == ["name=n7"]
    with pytest.raises(ConfigError, match="bucket_by and partition_by are two words"):
        FileSink(str(out), bucket_by="name", partition_by="name")


def test_the_timer_plans_nothing_while_a_batch_is_being_written(
    start: Callable[..., Engine], out: Path, clock: Clock
) -> None:
    """Its state is made before its decision: a plan in between would complete the same rows twice."""
    engine = start()
    engine.run(0, [1])

    def meanwhile(_: int) -> None:
        clock.now += 10_000
        engine.tick()
        assert ids(out) == []

    def the_end(_: int) -> None:
        clock.now += 10_000
        engine.coordinator.finish(0.0)
        assert ids(out) == []

    engine.run(1, [2], on_task=meanwhile)
    with pytest.raises(UndeliveredError, match="'files-out': checkpoint 2, 1 rows"):
        engine.run(2, [3], on_task=the_end)
    assert ids(out) == []
    engine.restart(FileSink(str(out), rolling=LATER))
    finished(engine)
    assert ids(out) == [1, 2, 3]


def test_the_timer_completes_nothing_of_a_checkpoint_whose_decision_failed(
    start: Callable[..., Engine], out: Path, clock: Clock
) -> None:
    """Its rows will come again: a plan made of them would show them twice (T2)."""
    engine = start()
    engine.run(0, [1])
    with armed("decision=error"), pytest.raises(InjectedFault):
        engine.run(1, [2])
    clock.now += 3600
    engine.tick()
    assert ids(out) == [1]
    engine.coordinator.finish(0.0)
    assert ids(out) == [1]
    engine.restart(FileSink(str(out), rolling=EACH))
    engine.run(1, [2])
    assert ids(out) == [1, 2]


def test_files_of_every_checkpoint_are_there_when_its_batch_returns(start: Callable[..., Engine], out: Path) -> None:
    engine = start(EACH)
    for number in range(3):
        engine.run(number, [number], [number + 10])
        assert len(files(out)) == number + 1
    assert parts(out) == []
    engine.run(3)
    assert len(files(out)) == 3


def test_a_quiet_bucket_is_completed_while_another_is_busy(
    start: Callable[..., Engine], out: Path, clock: Clock
) -> None:
    engine = start(bucket_by="name")
    engine.run(0, [1])
    for number in range(1, 4):
        clock.now += 30
        engine.run(number, [2])
    assert [file.parent.name for file in files(out)] == ["name=n1"]


@pytest.mark.contract("F5")
def test_what_waited_when_the_driver_died_is_completed_by_its_successor(
    start: Callable[..., Engine], out: Path, clock: Clock
) -> None:
    """F5; the decision records of the first checkpoints are pruned by then, the state of the last one knows them."""
    engine = start()
    for number in range(8):
        engine.run(number, [number])
    engine.restart(FileSink(str(out), rolling=LATER))
    assert ids(out) == []
    clock.now += 3600
    engine.restart(FileSink(str(out), rolling=LATER))
    assert ids(out) == list(range(8))
    engine.run(8, [8])
    finished(engine)
    assert ids(out) == list(range(9))


# -- crashes ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("F4", "F5")
@pytest.mark.parametrize(
    "fault", ["commit.subtask=error", "commit.subtask=lost", "commit.mark=error", "commit.mark=lost"]
)
@pytest.mark.parametrize("when", ["end", "timer", "commit"])
def test_dying_in_the_middle_of_a_roll_leaves_each_row_in_one_file(
    start: Callable[..., Engine], out: Path, clock: Clock, fault: str, when: str
) -> None:
    """F4, F5: before the file is there, after it, before the mark, after it; three buckets, so that some are done."""
    engine = start(bucket_by="name")
    for number in range(3):
        engine.run(number, [1, 2], [3])
    zombie = copy.copy(engine)
    point, _, mode = fault.partition("=")
    if when == "commit":
        engine.restart(FileSink(str(out), bucket_by="name", rolling=Rolling(age="1s")))
        clock.now += 5
        # The delivery tries three times: dying means that all of them fail.
        with armed(f"{point}={mode}"), pytest.raises(SystemExit):
            for attempt in engine.sinks:
                attempt.commit = _dying(attempt.commit)
            engine.run(3, [1, 2])
    else:
        clock.now += 3600 if when == "timer" else 0
        with armed(fault):
            if when == "timer":
                engine.tick()
            else:
                with pytest.raises(InjectedFault):
                    engine.coordinator.finish(0.0)
    seen = ids(out)
    assert max(seen.count(i) for i in (1, 2, 3)) <= 4
    engine.restart(FileSink(str(out), bucket_by="name", rolling=LATER))
    assert all(ids(out).count(i) >= seen.count(i) for i in (1, 2, 3)), "what a reader saw stays"
    if when == "commit":
        engine.run(3, [1, 2])
    finished(engine)
    extra = [1, 2] if when == "commit" else []
    assert ids(out) == sorted([1, 2, 3] * 3 + extra)
    assert parts(out) == []
    with pytest.raises(FencedError):
        zombie.run(9, [9])


def _dying(commit: Callable[..., Any]) -> Callable[..., Any]:
    def once(*arguments: Any) -> Any:
        try:
            return commit(*arguments)
        except InjectedFault as error:
            raise SystemExit from error

    return once


def test_a_zombie_that_completes_the_same_files_changes_nothing(
    start: Callable[..., Engine], out: Path, clock: Clock
) -> None:
    """g1 has recorded its plan and pauses; g2 does it; g1 wakes up and does it again."""
    engine = start(bucket_by="name")
    engine.run(0, [1, 2], [3])
    old = engine.sinks[0]
    with armed("commit.subtask=error"), pytest.raises(InjectedFault):
        engine.coordinator.finish(0.0)
    zombie = engine.coordinator
    engine.restart(FileSink(str(out), bucket_by="name", rolling=LATER))
    before = {file: file.read_bytes() for file in files(out)}
    assert len(before) == 3
    old.act_on_state(zombie._tasks)
    assert {file: file.read_bytes() for file in files(out)} == before
    old.recover("orders", 0, {})
    engine.run(1, [4])
    finished(engine)
    assert ids(out) == [1, 2, 3, 4]
    with pytest.raises(FencedError):
        old.revise_state(clock.now, last=True)
        zombie._log.amend_state(old.name, {})


def test_a_zombie_cannot_plan_and_does_not_act_on_what_it_could_not_record(
    start: Callable[..., Engine], out: Path, clock: Clock
) -> None:
    engine = start()
    engine.run(0, [1])
    zombie = copy.copy(engine)
    engine.restart(FileSink(str(out), rolling=LATER))
    clock.now += 3600
    zombie.coordinator.tick()
    assert isinstance(zombie.coordinator.failure, FencedError)
    assert ids(out) == []
    engine.tick()
    assert ids(out) == [1]
    zombie.sinks[0].act_on_state(zombie.coordinator._tasks)
    assert ids(out) == [1]


def test_a_file_someone_took_away_is_not_made_again(start: Callable[..., Engine], out: Path) -> None:
    """A committed file belongs to its readers: they may move it on at once, and the driver may die just then."""
    engine = start(EACH)
    engine.restart(FileSink(str(out), rolling=EACH), retry=Retry(for_=0))
    with armed("commit.record=error"), pytest.raises(CommitError, match=r"commit.record: raised before the effect"):
        engine.run(0, [1])
    (file,) = files(out)
    file.unlink()
    engine.restart(FileSink(str(out), rolling=EACH))
    assert files(out) == []
    engine.run(0, [1])
    engine.run(1, [2])
    assert ids(out) == [2]


@pytest.mark.parametrize("taken", ["one", "all"])
@pytest.mark.parametrize("fault", ["commit.subtask=lost@2", "commit.mark=error", "commit.mark=lost"])
def test_a_file_that_was_seen_and_taken_away_before_the_driver_died_is_never_published_again(
    start: Callable[..., Engine],
    out: Path,
    fault: str,
    taken: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody compacts at once: the rows would be there twice. Known by the announcement and the hidden file gone."""
    engine = start(EACH, bucket_by="name")
    engine.sinks[0].commit = _dying(engine.sinks[0].commit)
    with armed(fault), pytest.raises(SystemExit):
        engine.run(0, [1, 2], [3])
    seen = files(out)
    victims = seen[:1] if taken == "one" else seen
    moved = sorted(i for file in victims for i in pa.parquet.read_table(file, partitioning=None)["id"].to_pylist())
    for file in victims:
        file.unlink()
        file.parent.rmdir()
    engine.restart(FileSink(str(out), rolling=EACH, bucket_by="name"))
    engine.run(0, [1, 2], [3])
    assert sorted(ids(out) + moved) == [1, 2, 3]
    if fault != "commit.mark=lost":
        assert f"{victims[0]} was completed before this start and is not there any more" in caplog.text
    engine.run(1, [4])
    assert sorted(ids(out) + moved) == [1, 2, 3, 4]
    left = [path for path in (out / "_holdfast").rglob("*") if path.is_file()]
    assert [path.parent.parent.name for path in left] == ["ledger"]


@pytest.mark.parametrize("where", ["announce", "read_marks", "Show"])
def test_a_paused_driver_that_goes_on_shows_nothing_that_a_reader_has_taken(
    start: Callable[..., Engine], out: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """g1 pauses before it announces, before it looks at the mark, before it shows; meanwhile g2 does all of it."""
    engine = start(EACH)
    step = getattr(perform, where)
    taken: list[Path] = []

    def pausing(*arguments: Any) -> Any:
        monkeypatch.setattr(perform, where, step)
        engine.restart(FileSink(str(out), rolling=EACH))
        engine.run(0, [1])
        taken.extend(files(out))
        taken[0].unlink()
        return step(*arguments)

    monkeypatch.setattr(perform, where, pausing)
    zombie = engine.coordinator
    engine.planned = 0
    with pytest.raises(FencedError):
        zombie.run(0, InProcessBatch([1]))
    assert len(taken) == 1
    assert files(out) == []
    engine.run(1, [2])
    assert ids(out) == [2]
    left = [path for path in (out / "_holdfast").rglob("*") if path.is_file()]
    assert [path.parent.parent.name for path in left] == ["ledger"]


def test_merging_that_dies_is_repeated(start: Callable[..., Engine], out: Path) -> None:
    """Parts are merged while they wait; a part that is merged twice or not at all would show."""
    engine = start()
    for number in range(9):
        engine.run(number, [2 * number], [2 * number + 1])
    for fault in ("commit.subtask=error", "commit.subtask=lost", "commit.mark=lost"):
        engine.sinks[0].commit = _dying(engine.sinks[0].commit)
        with armed(fault), pytest.raises(SystemExit):
            for number in range(engine.committed + 1, engine.committed + 12):
                engine.run(number, [2 * number], [2 * number + 1])
        engine.restart(FileSink(str(out), rolling=LATER))
        engine.run(number, [2 * number], [2 * number + 1])
    last = engine.committed
    assert any("merged" in part.name for part in parts(out))
    finished(engine)
    assert ids(out) == list(range(2 * last + 2))
    assert parts(out) == []


@pytest.mark.parametrize(
    ("first", "then"),
    [
        ({}, {"format": "json", "compression": "gzip"}),
        ({"format": "csv"}, {"format": "csv", "compression": "gzip"}),
        ({"format": "json", "compression": "gzip"}, {}),
    ],
)
def test_a_planned_file_is_what_its_name_says_also_when_the_options_change(
    location: str, out: Path, first: dict[str, Any], then: dict[str, Any]
) -> None:
    engine = Engine(location, FileSink(str(out), rolling=EACH, **first))
    with armed("decision=lost"), pytest.raises(InjectedFault):
        engine.run(0, [1])
    engine.restart(FileSink(str(out), rolling=EACH, **then))
    engine.run(0, [1])
    engine.run(1, [2])
    made = [path for path in out.iterdir() if path.is_file()]
    starts = {".parquet": b"PAR1", ".csv": b'"id"', ".gz": b"\x1f\x8b"}
    assert len(made) == 2
    assert all(path.read_bytes().startswith(starts[path.suffix]) for path in made)


class Backwards:
    """Tasks have no order."""

    def map(self, function: Callable[[Any], Any], items: Sequence[Any]) -> list[Any]:
        return [function(item) for item in reversed(items)][::-1]


def test_a_file_waits_for_the_part_it_is_made_of(
    start: Callable[..., Engine], out: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge that is recorded and failed on the timer is done by the next batch, beside the file that needs it."""
    monkeypatch.setattr(rolling, "FAN_IN", 2)
    engine = start(Rolling(size=None, age="1h", inactivity=None))
    engine.coordinator._tasks = engine.coordinator.deliveries[0].tasks = Backwards()
    for number in range(4):
        engine.run(number, [number])
    with armed("commit.subtask=error"):
        engine.tick()
    clock.now += 3700
    engine.run(4, [4])
    finished(engine)
    assert ids(out) == [0, 1, 2, 3, 4]


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["truncated", "bit flipped", "gone"])
def test_a_waiting_part_that_is_damaged_or_gone_is_named_and_never_skipped(
    start: Callable[..., Engine], out: Path, how: str
) -> None:
    engine = start()
    engine.run(0, [1, 2], [3])
    victim = parts(out)[0]
    good = victim.read_bytes()
    victim.unlink() if how == "gone" else damage(victim, how)
    error = RestoredEndpointError if how == "gone" else RecordError
    with pytest.raises(error, match=rf"{victim} is (damaged|missing).* from a copy of the folder"):
        engine.coordinator.finish(0.0)
    assert files(out) == []
    victim.write_bytes(good)
    engine.restart(FileSink(str(out), rolling=LATER))
    assert ids(out) == [1, 2, 3]


def test_a_deleted_checkpoint_is_refused_and_can_be_taken_over(
    start: Callable[..., Engine], out: Path, tmp_path: Path, clock: Clock
) -> None:
    """Fault 12, rule 10."""
    engine = start(EACH)
    engine.run(0, [1])
    other = str(tmp_path / "other" / "holdfast")
    with pytest.raises(
        ForeignLineageError, match=f"'files-out' in {out} holds deliveries.*'orders' up to checkpoint 0"
    ):
        Engine(other, FileSink(str(out), rolling=EACH), clock=clock)
    taken = Engine(other, FileSink(str(out), rolling=EACH), clock=clock, take_over=True)
    taken.run(0, [2])
    assert ids(out) == [1, 2]
    with pytest.raises(ForeignLineageError):
        engine.restart(FileSink(str(out), rolling=EACH))
    taken.restart(FileSink(str(out), rolling=EACH), take_over=False)
    taken.run(1, [3])
    assert ids(out) == [1, 2, 3]


@pytest.mark.parametrize("rolled_by", ["checkpoint", "timer"])
def test_an_old_copy_of_the_checkpoint_is_refused_and_can_be_taken_over(
    start: Callable[..., Engine], out: Path, tmp_path: Path, clock: Clock, rolled_by: str
) -> None:
    engine = start()
    engine.run(0, [1])
    shutil.copytree(engine.location, tmp_path / "copy")
    if rolled_by == "checkpoint":
        engine.run(1, [2])
    finished(engine)
    shutil.rmtree(engine.location)
    shutil.copytree(tmp_path / "copy", engine.location)
    engine.planned = engine.committed = 0
    with pytest.raises(StaleCheckpointError, match="old copy"):
        engine.restart(FileSink(str(out), rolling=LATER))
    engine.restart(FileSink(str(out), rolling=LATER), take_over=True)
    engine.run(1, [2])
    finished(engine)
    assert ids(out) == ([1, 2, 2] if rolled_by == "checkpoint" else [1, 2])


def test_another_path_is_refused_while_rows_wait_under_the_old_one(
    start: Callable[..., Engine], out: Path, tmp_path: Path
) -> None:
    engine = start()
    engine.run(0, [1])
    moved = FileSink(str(tmp_path / "new"), name="files-out", rolling=EACH)
    with pytest.raises(ConfigError, match=f"had path '{out}', and 1 decided rows wait there.*holdfast flush"):
        engine.restart(moved)
    flush(engine.storage, "orders", engine.log.lineage)
    engine.restart(FileSink(str(tmp_path / "new"), name="files-out", rolling=EACH))
    engine.run(1, [2])
    assert (ids(out), ids(tmp_path / "new")) == ([1], [2])


def test_a_sink_that_is_removed_leaves_its_rows_to_flush(
    start: Callable[..., Engine], out: Path, endpoint: Endpoint
) -> None:
    engine = start()
    engine.run(0, [1])
    engine.restart(PreparingSink(endpoint))
    engine.run(1, [2])
    engine.run(2, [3])
    (done,) = flush(engine.storage, "orders", engine.log.lineage)
    assert (done.sink, done.path, done.files, done.rows) == ("files-out", str(out), 1, 1)
    assert ids(out) == [1]


@pytest.mark.parametrize(
    ("options", "option"),
    [
        ({"path": ""}, "path"),
        ({"path": 7}, "path"),
        ({"path": "hdfs://namenode/data"}, "path"),
        ({"format": "orc"}, "format"),
        ({"rolling": "15m"}, "rolling"),
        ({"compression": "zip"}, "compression"),
        ({"bucket_by": [1]}, "bucket_by"),
        ({"name": " "}, "name"),
    ],
)
def test_a_wrong_option_is_refused_when_the_sink_is_made(options: dict[str, Any], option: str) -> None:
    with pytest.raises(ConfigError, match=option):
        FileSink(**{"path": "/data/x", **options})


def test_the_name_is_made_from_the_folder() -> None:
    assert FileSink("/data/orders").name == "files-orders"
    assert FileSink("s3://bucket/a b/öl!").name == "files-öl"
    assert FileSink("relative/x").path == str(Path("relative/x").absolute())
    assert FileSink("s3a://bucket/x/").path == "s3a://bucket/x"


# -- schemas ----------------------------------------------------------------------------------------------------------


def rows(schema: pa.Schema, *values: dict[str, Any]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist(list(values), schema=schema)]


@pytest.mark.parametrize("form", ["parquet", "json", "csv"])
def test_new_columns_begin_a_new_file(start: Callable[..., Engine], out: Path, form: str, clock: Clock) -> None:
    engine = start(format=form)
    engine.run(0, [1])
    wider = pa.schema([*SCHEMA, ("more", pa.int64())])
    engine.restart(FileSink(str(out), form, rolling=LATER))
    engine.run(1, rows(wider, {"id": 2, "name": "n2", "more": 5}))
    engine.run(2, [3])
    finished(engine)
    suffix = {"json": "json"}.get(form, form)
    found = files(out, suffix)
    assert len(found) == 2, "one for each schema"
    if form == "parquet":
        table = pa.dataset.dataset([str(f) for f in found], schema=wider).to_table()
        assert sorted(table["id"].to_pylist()) == [1, 2, 3]
    elif form == "json":
        lines = [json.loads(line) for file in found for line in file.read_text().splitlines()]
        assert sorted(line["id"] for line in lines) == [1, 2, 3]
        assert {line["id"]: line.get("more") for line in lines} == {1: None, 2: 5, 3: None}
    else:
        assert sorted(file.read_text().splitlines()[0] for file in found) == ['"id","name"', '"id","name","more"']


def test_a_parquet_column_that_changes_its_type_is_refused(
    start: Callable[..., Engine], out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = start(EACH)
    engine.run(0, [1])
    changed = pa.schema([("id", pa.string()), ("name", pa.string())])
    monkeypatch.setattr("tests.unit.inprocess.SCHEMA", changed)
    with pytest.raises(ConfigError, match=r"column 'id' is string now and was int64 in the files of .*Cast it back"):
        engine.restart(FileSink(str(out), rolling=EACH))
    monkeypatch.undo()
    engine.restart(FileSink(str(out), rolling=EACH))


@pytest.mark.parametrize(
    ("form", "kind"), [("json", pa.binary()), ("csv", pa.list_(pa.int64())), ("parquet", pa.null())]
)
def test_what_the_format_cannot_hold_is_refused_at_the_start(
    start: Callable[..., Engine], form: str, kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.unit.inprocess.SCHEMA", pa.schema([("id", pa.int64()), ("odd", kind)]))
    with pytest.raises(ConfigError, match="'files-out': column 'odd'"):
        start(format=form)


# -- readers ----------------------------------------------------------------------------------------------------------


@pytest.mark.contract("F1")
def test_arrow_duckdb_and_pandas_see_committed_rows_only(start: Callable[..., Engine], out: Path, clock: Clock) -> None:
    """F1: at any moment, hidden files of every kind around."""
    engine = start(Rolling(size=None, age="30s", inactivity=None), bucket_by=["name", TimeBucket("day=%d")])

    def look(_: int = 0) -> None:
        if not files(out):
            return
        seen = ids(out)
        assert sorted(pandas.read_parquet(out)["id"]) == seen
        pattern = f"{out}/**/*.parquet"
        with duckdb.connect() as connection:
            found = connection.execute(f"SELECT id, name FROM read_parquet('{pattern}', hive_partitioning=true)")
            assert sorted(found.fetchall()) == [(i, f"n{i}") for i in seen]
        assert seen == list(range(len(seen))), "whole checkpoints, in order"

    for number in range(12):
        engine.run(number, [3 * number, 3 * number + 1], [3 * number + 2], on_task=look)
        clock.now += 20
        look()
    assert parts(out)
    finished(engine)
    look()
    assert ids(out) == list(range(36))


def test_many_buckets_do_not_need_many_open_files(start: Callable[..., Engine], out: Path) -> None:
    engine = start(bucket_by="name")
    engine.run(0, list(range(150)) * 2)
    finished(engine)
    assert len(files(out)) == 150
    assert ids(out) == sorted(list(range(150)) * 2)


@pytest.mark.contract("F5")
def test_two_sinks_of_one_pipeline_may_share_a_folder(location: str, out: Path, clock: Clock) -> None:
    engine = Engine(location, *(FileSink(str(out), name=n, rolling=EACH) for n in ("a", "b")), clock=clock)
    engine.run(0, [1])
    engine.run(1, [2])
    assert ids(out) == [1, 1, 2, 2]


# -- flush ------------------------------------------------------------------------------------------------------------


@pytest.mark.contract("F6")
def test_flush_completes_what_a_dead_driver_left_and_its_successor_goes_on(
    start: Callable[..., Engine], out: Path, clock: Clock
) -> None:
    """F6: from the log alone, once, and only what is decided."""
    engine = start(bucket_by="name")
    engine.run(0, [1], [2])
    with armed("decision=error"), pytest.raises(InjectedFault):
        engine.run(1, [3])
    with armed("commit.subtask=error"), pytest.raises(InjectedFault):
        flush(engine.storage, "orders", engine.log.lineage)
    (done,) = flush(engine.storage, "orders", engine.log.lineage)
    assert (done.files, done.rows) == (2, 2)
    assert flush(engine.storage, "orders", engine.log.lineage) == []
    assert ids(out) == [1, 2]
    engine.restart(FileSink(str(out), bucket_by="name", rolling=EACH))
    engine.run(1, [3])
    assert ids(out) == [1, 2, 3]
    assert audit([1, 2, 3], ids(out)).ok


def test_flush_after_a_decision_that_was_never_committed(start: Callable[..., Engine], out: Path) -> None:
    engine = start(EACH)
    with armed("decision=lost"), pytest.raises(InjectedFault):
        engine.run(0, [1])
    flush(engine.storage, "orders", engine.log.lineage)
    assert ids(out) == [1]
    engine.restart(FileSink(str(out), rolling=EACH))
    engine.run(0, [1])
    assert ids(out) == [1]
    assert engine.pending == []


# -- object stores ----------------------------------------------------------------------------------------------------


def test_on_s3(bucket: str, clock: Clock) -> None:
    """The log and the files in a bucket: rolling, a crash in a roll, a restart, buckets, flush."""
    url = f"s3://{bucket}/out"

    def sink() -> FileSink:
        return FileSink(url, bucket_by="name", rolling=LATER)

    def seen() -> list[int]:
        storage = FileSink(url)._folder("orders").storage
        names = [n for n in storage.walk("") if n.endswith(".parquet")]
        assert not any(n.startswith("_") for n in names)
        tables = [pa.parquet.read_table(storage.reader(name)) for name in names]
        return sorted(i for table in tables for i in table["id"].to_pylist())

    engine = Engine(f"s3://{bucket}/ck/holdfast", sink(), clock=clock)
    engine.run(0, [1, 2], [3])
    engine.run(1, [1], [2])
    clock.now += 100
    with armed("commit.subtask=lost@2"):
        engine.tick()
    assert len(seen()) in (3, 4)
    engine.restart(sink())
    assert seen() == [1, 1, 2, 2, 3]
    engine.run(2, [4, 5])
    assert seen() == [1, 1, 2, 2, 3]
    with pytest.raises(ForeignLineageError):
        Engine(f"s3://{bucket}/other/holdfast", sink(), clock=clock)
    flush(engine.storage, "orders", engine.log.lineage)
    assert seen() == [1, 1, 2, 2, 3, 4, 5]
    left = FileSink(url)._folder("orders").storage.walk("_holdfast")
    assert [name for name in left if "/ledger/" not in name] == []


def test_on_s3_an_object_that_was_seen_and_deleted_is_never_put_again(
    bucket: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """S3 has no rename: the object is a multipart upload until it is announced, and an upload is completed once."""
    sink = FileSink(f"s3://{bucket}/out", rolling=EACH, bucket_by="name")
    engine = Engine(f"s3://{bucket}/ck/holdfast", sink, clock=clock)
    sink.commit = _dying(sink.commit)
    with armed("commit.subtask=lost@2"), pytest.raises(SystemExit):
        engine.run(0, [1, 2, 3])
    storage = sink._folder("orders").storage
    seen = [name for name in storage.walk("") if name.endswith(".parquet")]
    assert len(seen) == 2, "two of three are shown, the third is an upload that is whole"
    storage.delete(seen[0])
    engine.restart(FileSink(f"s3://{bucket}/out", rolling=EACH, bucket_by="name"))
    engine.run(0, [1, 2, 3])
    left = [name for name in storage.walk("") if name.endswith(".parquet")]
    assert len(left) == 2 and seen[0] not in left
    assert f"{seen[0]} was completed before this start" in caplog.text
    assert [name for name in storage.walk("_holdfast") if "/ledger/" not in name] == []
    assert "Uploads" not in storage._fs.call_s3("list_multipart_uploads", Bucket=bucket)
