"""The SQLite sink after the decision: D1, D3, D5, D6, lost logs, and failures told in words."""

from __future__ import annotations

import datetime
import os
import pickle
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.checkpoint.ports import Committed, LoopTasks, Run
from holdfast.connectors.sqlite import SqliteSink
from holdfast.connectors.sqlite.table import Ledger
from holdfast.core.model import Outcome
from holdfast.errors import (
    ConfigError,
    ForeignLineageError,
    HoldfastError,
    LostError,
    RestoredEndpointError,
    RowError,
    SinkError,
)
from holdfast.sinks import wal
from holdfast.sinks.subtask import make_task
from tests.unit.inprocess import SCHEMA, Engine, InProcessBatch, record_batch
from tests.unit.test_sqlite_sink import KEYED, Rig, keyed

LINEAGE = "0" * 32


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


def bad_text(*values: bytes) -> pa.Array:
    """Text that is not UTF-8, as Spark gives it for CAST(X'6162ff' AS STRING)."""
    raw = pa.array(values, pa.binary())
    return pa.StringArray.from_buffers(len(raw), raw.buffers()[1], raw.buffers()[2])


def run_info(rig: Rig, **options: Any) -> Run:
    return Run("orders", LINEAGE, 0, str(rig.folder / "ck" / "holdfast"), schema=SCHEMA, **options)


def prepared(sink: SqliteSink, run: Run, checkpoint_id: int, *ids: int, subtask: int = 0) -> Any:
    txn = sink.begin(make_task(run, sink.name, checkpoint_id, subtask, 0, 0))
    sink.write(txn, record_batch(ids))
    return sink.pre_commit(txn)


def opened(rig: Rig, run: Run, state: Any = None, path: Path | None = None, **options: Any) -> SqliteSink:
    sink = SqliteSink(str(path or rig.path), options.pop("table", "rows"), name="out", **options)
    sink.open(run)
    sink.initialize_state(state)
    return sink


# -- D1: what SQLite cannot take is refused in the task ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("column", "reason"),
    [
        (bad_text(b"ok", b"ab\xff"), r"is not UTF-8.*hex\(\).*The first is b'ab\\xff'"),
        (pa.StructArray.from_arrays([bad_text(b"ok", b"ab\xff")], ["s"]), "is not UTF-8"),
        (pa.ListArray.from_arrays([0, 1, 2], bad_text(b"ok", b"ab\xff")), "is not UTF-8"),
        (pa.array([1, 2**63], pa.uint64()), f"does not fit SQLite's whole numbers of 64 bits.*The first is {2**63}"),
        (pa.array([1.0, float("nan")]), "is not a number, which SQLite would store as NULL.*The first is nan"),
        (pa.array([0, 2**62], pa.timestamp("us")), f"years 0000 to 9999.*The first is {2**62} us since 1970"),
        (pa.array([0, -(2**31)], pa.date32()), f"years 0000 to 9999.*The first is {-(2**31)} days since 1970"),
        (pa.array([[0], [2**62]], pa.list_(pa.timestamp("us"))), "makes no JSON"),
    ],
)
def test_d1_a_value_sqlite_cannot_take_is_refused_by_column_and_reason(rig: Rig, column: pa.Array, reason: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("v", column.type)])
    engine = rig.engine(schema)
    batch = pa.RecordBatch.from_arrays([pa.array([1, 2]), column], schema=schema)
    with pytest.raises(RowError, match=rf"sink 'sqlite-rows': column 'v' has a value that .*{reason}"):
        engine.run(0, [batch])
    assert engine.files("decisions") == engine.files("wal") == []
    engine.restart()
    engine.run(0, [batch.slice(0, 1)])
    assert rig.execute("SELECT id FROM rows") == [(1,)]


def test_a_slice_is_not_blamed_for_what_is_outside_of_it(rig: Rig) -> None:
    schema = pa.schema([("v", pa.list_(pa.string()))])
    lists = pa.ListArray.from_arrays([0, 1, 2], bad_text(b"ok", b"ab\xff"))
    engine = rig.engine(schema)
    engine.run(0, [pa.RecordBatch.from_arrays([lists], schema=schema).slice(0, 1)])
    assert rig.execute("SELECT v FROM rows") == [('["ok"]',)]


def test_a_type_sqlite_has_no_value_for_is_refused_at_the_start(rig: Rig) -> None:
    with pytest.raises(ConfigError, match=r"column 'v' is of type month_day_nano_interval, which SQLite cannot hold"):
        rig.engine(pa.schema([("v", pa.month_day_nano_interval())]))


def test_nested_values_json_has_no_words_for_are_text(rig: Rig) -> None:
    schema = pa.schema([("v", pa.struct([("b", pa.binary()), ("f", pa.list_(pa.float64()))]))])
    engine = rig.engine(schema)
    engine.run(0, keyed(({"b": b"\x00\xff", "f": [1.5, float("nan"), float("inf"), float("-inf")]},), schema=schema))
    assert rig.execute("SELECT v FROM rows") == [('{"b": "AP8=", "f": [1.5, "NaN", "Infinity", "-Infinity"]}',)]
    # SQLite takes it for JSON, and finds its way in it.
    assert rig.execute("SELECT json_valid(v), v ->> '$.b', v ->> '$.f[1]' FROM rows") == [(1, "AP8=", "NaN")]


def test_a_nested_moment_has_the_text_it_has_in_a_column_of_its_own_whatever_the_sessions_time_zone(rig: Rig) -> None:
    moment = datetime.datetime(2026, 7, 1, 12, 30, tzinfo=datetime.UTC)
    kinds = [pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC"), pa.timestamp("us"), pa.time64("us")]
    values = [moment, moment, moment.replace(tzinfo=None), moment.time()]
    columns = [pa.array([value], kind) for value, kind in zip(values, kinds, strict=True)]
    lists = [pa.array([[value]], pa.list_(kind)) for value, kind in zip(values, kinds, strict=True)]
    batch = pa.RecordBatch.from_arrays([*columns, *lists], [*"abcd", *"wxyz"])
    rig.engine(batch.schema).run(0, [batch])
    ((a, b, c, d),) = rig.execute("SELECT a, b, c, d FROM rows")
    assert a == b == "2026-07-01 12:30:00.000000Z"
    assert rig.execute("SELECT w ->> 0, x ->> 0, y ->> 0, z ->> 0 FROM rows") == [(a, b, c, d)]


def test_rows_decided_by_the_first_version_are_still_committed(rig: Rig) -> None:
    """It sealed rows as they came, and said nothing about table and mode."""
    run = run_info(rig)
    sink = opened(rig, run)
    writer = wal.LogWriter(make_task(run, "out", 0, 0, 0, 0))
    writer.write(pa.RecordBatch.from_pylist([{"id": 1, "name": "a"}, {"id": 2, "name": None}], schema=SCHEMA))
    assert sink.commit(0, [writer.seal()], LoopTasks()) is Outcome.COMMITTED
    assert rig.execute("SELECT * FROM rows") == [(1, "a"), (2, None)]
    writer = wal.LogWriter(make_task(run, "out", 1, 0, 0, 0))
    bad = pa.RecordBatch.from_arrays([pa.array([3]), bad_text(b"\xff")], schema=SCHEMA)
    writer.write(bad)
    with pytest.raises(RowError, match="column 'name' has a value that is not UTF-8"):
        sink.commit(1, [writer.seal()], LoopTasks())


# -- D6: what was decided is committed as it was decided --------------------------------------------------------------


def test_d6_decided_as_ledger_and_restarted_as_upsert_keeps_both_rows(rig: Rig) -> None:
    rig.execute("CREATE TABLE rows (k TEXT, v INTEGER, at INTEGER)")
    run = replace(run_info(rig), schema=KEYED)
    sink = opened(rig, run)
    txn = sink.begin(make_task(run, "out", 0, 0, 0, 0))
    for batch in keyed(("a", 1, 1), ("a", 2, 2)):
        sink.write(txn, batch)
    committable = sink.pre_commit(txn)
    assert committable is not None
    assert committable["into"] == {
        "path": str(rig.path), "table": "rows", "mode": "ledger", "key": [], "order_by": None
    }  # fmt: skip
    later = SqliteSink(str(rig.path), "other", mode="upsert", key=["k"], order_by="at", name="out")
    later.open(run)
    assert later.commit(0, [committable], LoopTasks()) is Outcome.COMMITTED
    assert rig.execute("SELECT * FROM rows") == [("a", 1, 1), ("a", 2, 2)]
    assert rig.execute("SELECT * FROM other") == []


def test_d6_a_checkpoint_decided_for_another_file_is_committed_there(rig: Rig) -> None:
    run = run_info(rig)
    before = opened(rig, run)
    assert before.commit(0, [prepared(before, run, 0, 1)], LoopTasks()) is Outcome.COMMITTED
    owed, state = prepared(before, run, 1, 2), before.snapshot_state(1)
    elsewhere = Rig(rig.folder / "elsewhere")
    run = replace(run, committed={"out": Committed(0, 0)}, last_decided=1)
    after = opened(elsewhere, run, state)
    assert after.commit(1, [owed], LoopTasks()) is Outcome.COMMITTED
    assert rig.execute("SELECT id FROM rows") == [(1,), (2,)]
    assert elsewhere.execute("SELECT id FROM rows") == []
    # The new file knows that these are delivered: the next start does not take it for one that was restored.
    run = replace(run, committed={"out": Committed(1, 0)})
    opened(elsewhere, run, state)
    opened(elsewhere, run, after.snapshot_state(2))


# -- D5: a file that lacks what was committed -------------------------------------------------------------------------


def back_up(rig: Rig) -> None:
    with closing(sqlite3.connect(rig.path)) as source, closing(sqlite3.connect(rig.folder / "backup.db")) as to:
        source.backup(to)


def damage(rig: Rig, how: str) -> None:
    if how == "deleted":
        for path in rig.folder.glob("out.db*"):
            path.unlink()
    elif how == "ledger dropped":
        rig.execute("DROP TABLE holdfast_ledger")
    else:
        shutil.copy(rig.folder / "backup.db", rig.path)


@pytest.mark.parametrize(("how", "first"), [("deleted", 0), ("ledger dropped", 0), ("restored", 2)])
def test_d5_a_file_that_lacks_what_was_committed_is_refused(rig: Rig, how: str, first: int) -> None:
    run = run_info(rig)
    sink = opened(rig, run)
    for checkpoint_id in range(4):
        sink.commit(checkpoint_id, [prepared(sink, run, checkpoint_id, checkpoint_id)], LoopTasks())
        if checkpoint_id == 1:
            back_up(rig)
    state = sink.snapshot_state(3)
    run = replace(run, committed={"out": Committed(3, 0)}, last_decided=3)
    opened(rig, run, state)
    for path in rig.folder.glob("out.db-*"):
        path.unlink()
    damage(rig, how)
    with pytest.raises(RestoredEndpointError, match=rf"out\.db .*checkpoints {first} to 3 were committed") as caught:
        opened(rig, run, state)
    assert caught.value.behind == (first, 3)
    with pytest.raises(RestoredEndpointError):
        opened(rig, run, None)


def test_d5_a_file_that_becomes_an_older_copy_while_the_query_runs_is_refused_by_the_next_commit(rig: Rig) -> None:
    """Else the next rows and their ledger row hide the gap for ever."""
    run = run_info(rig)
    sink = opened(rig, run)
    for checkpoint_id in range(2):
        sink.commit(checkpoint_id, [prepared(sink, run, checkpoint_id, checkpoint_id)], LoopTasks())
        if checkpoint_id == 0:
            back_up(rig)
    for path in rig.folder.glob("out.db-*"):
        path.unlink()
    damage(rig, "restored")
    with pytest.raises(RestoredEndpointError, match="checkpoints 1 to 1 were committed there") as caught:
        sink.commit(2, [prepared(sink, run, 2, 2)], LoopTasks())
    assert caught.value.behind == (1, 1)
    assert rig.execute("SELECT id FROM rows ORDER BY id") == [(0,)]


def test_a_take_over_knows_what_this_location_has_committed(rig: Rig) -> None:
    run = run_info(rig, committed={"out": Committed(5, 0)}, last_decided=6, take_over=True)
    opened(rig, run)
    sink = opened(rig, replace(run, take_over=False))
    assert sink.commit(6, [prepared(sink, run, 6, 1)], LoopTasks()) is Outcome.COMMITTED


def test_a_commit_of_a_location_whose_name_another_has_taken_over_is_refused(rig: Rig) -> None:
    run = run_info(rig)
    sink = opened(rig, run)
    work = prepared(sink, run, 0, 1)
    opened(rig, replace(run, lineage="1" * 32, take_over=True))
    with pytest.raises(ForeignLineageError, match="made from another checkpoint location"):
        sink.commit(0, [work], LoopTasks())
    assert rig.execute("SELECT * FROM rows") == []


# -- two drivers, and a cut of the power ------------------------------------------------------------------------------


def test_of_two_drivers_that_commit_the_same_checkpoint_at_once_the_second_finds_it_done(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_info(rig)
    sink, other = opened(rig, run), opened(rig, run)
    work = prepared(sink, run, 0, 1)
    read, answers = Ledger.read, []
    thread = threading.Thread(target=lambda: answers.append(other.commit(0, [work], LoopTasks())))

    def look(ledger: Ledger, connection: sqlite3.Connection) -> dict[str, int]:
        found = read(ledger, connection)
        if threading.current_thread() is not thread:
            thread.start()
            thread.join(1)  # it must wait for the one that has looked; were it let in, it would be through by now
            assert answers == []
        return found

    monkeypatch.setattr(Ledger, "read", look)
    assert sink.commit(0, [work], LoopTasks()) is Outcome.COMMITTED
    thread.join(60)
    assert answers == [Outcome.ALREADY_COMMITTED]
    assert rig.execute("SELECT id FROM rows") == [(1,)]


def test_what_a_commit_has_acknowledged_is_on_the_disk(rig: Rig) -> None:
    with opened(rig, run_info(rig)).table.connect() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,), "FULL: the log is synced at each commit"


# -- rule 14, lost logs, reports --------------------------------------------------------------------------------------


def test_lost_logs_are_named_exactly_before_and_after_the_decision(rig: Rig) -> None:
    run = run_info(rig)
    sink = opened(rig, run)
    work = [prepared(sink, run, 0, n, subtask=n) for n in range(4)]
    assert list(sink.still_prepared(work)) == work
    Path(run.location, work[1]["handle"]).unlink()
    Path(run.location, work[3]["handle"]).unlink()
    assert list(sink.still_prepared(work)) == [work[0], work[2]]
    with pytest.raises(LostError, match=r"1-.*arrow and 1 more is missing: 2 rows of 2 subtasks.*resolve") as caught:
        sink.commit(0, work, LoopTasks())
    assert caught.value.lost == (work[1], work[3])
    assert pickle.loads(pickle.dumps(caught.value)).lost == (work[1], work[3])
    assert rig.execute("SELECT * FROM rows") == []
    rows = sink.rows_of(work)
    assert rows is not None
    assert [row["id"] for batch in rows for row in batch.to_pylist()] == [0, 2]
    Path(run.location, work[0]["handle"]).write_bytes(b"short")
    assert list(sink.still_prepared(work)) == [work[2]]


# -- overlap ----------------------------------------------------------------------------------------------------------


def test_a_commit_runs_beside_tasks_checks_sweeps_and_pickles(rig: Rig) -> None:
    sink = SqliteSink(str(rig.path), "rows", mode="upsert", key=["id"], name="out")
    assert sink.overlaps
    run = run_info(rig)
    sink.open(run)
    sink.initialize_state(None)
    failures: list[BaseException] = []
    decided: dict[int, Any] = {}
    ready, done = threading.Semaphore(0), threading.Event()

    def deliver() -> None:
        try:
            for checkpoint_id in range(60):
                ready.acquire()
                assert sink.commit(checkpoint_id, decided[checkpoint_id], LoopTasks()) is Outcome.COMMITTED
                del decided[checkpoint_id]
                sink.notify_checkpoint_complete(checkpoint_id)
        except BaseException as error:  # noqa: BLE001  looked at below
            failures.append(error)
        finally:
            done.set()

    thread = threading.Thread(target=deliver)
    thread.start()
    for checkpoint_id in range(60):
        # Copied as the kernel does; files that a commit has just removed are found gone.
        sink.recover("orders", 0, dict(decided))
        copy = pickle.loads(pickle.dumps(sink))
        assert copy._delivered._handles == {}
        work = [prepared(copy, run, checkpoint_id, checkpoint_id, subtask=n) for n in (0,)]
        sink.validate(checkpoint_id, work, LoopTasks())
        sink.snapshot_state(checkpoint_id)
        assert list(sink.still_prepared(work)) == work
        decided[checkpoint_id] = work
        ready.release()
    thread.join()
    assert failures == [] and done.is_set()
    assert rig.execute("SELECT count(*) FROM rows") == [(60,)]


# -- failures in words ------------------------------------------------------------------------------------------------


def test_a_file_of_another_kind_is_a_wrong_path(rig: Rig) -> None:
    rig.path.write_bytes(b"this is no database, it is text" * 100)
    with pytest.raises(ConfigError, match=r"sink 'sqlite-rows': .*out\.db is not an SQLite database"):
        rig.engine()


def test_a_locked_file_names_the_path_and_is_tried_again(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.connectors.sqlite.table._PATIENCE", 0.05)
    run = run_info(rig)
    sink = opened(rig, run)
    work = [prepared(sink, run, 0, 1)]
    with closing(sqlite3.connect(rig.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkError, match=r"sink 'out': .*out\.db: database is locked.*end that one's") as caught:
            sink.commit(0, work, LoopTasks())
        assert caught.value.action == "restart"
        with pytest.raises(SinkError, match=r"out\.db: database is locked"):
            opened(rig, replace(run, take_over=True))
    assert sink.commit(0, work, LoopTasks()) is Outcome.COMMITTED
    assert sink.address == str(rig.path)


def test_a_file_that_vanished_is_not_made_anew_by_a_commit(rig: Rig) -> None:
    run = run_info(rig)
    sink = opened(rig, run)
    for path in rig.folder.glob("out.db*"):
        path.unlink()
    with pytest.raises(SinkError, match=r"out\.db: unable to open database file. It is not there"):
        sink.commit(0, [prepared(sink, run, 0, 1)], LoopTasks())
    assert not rig.path.exists()


READONLY = """
import os, sys
from pathlib import Path
from holdfast.errors import SinkError
from tests.unit.test_sqlite_after_decision import Rig, opened, run_info
os.setgid(65534); os.setuid(65534)
try:
    opened(Rig(Path(sys.argv[1])), run_info(Rig(Path(sys.argv[1]))))
except SinkError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="root becomes somebody else here")
def test_a_read_only_file_says_whose_permissions_to_change() -> None:
    # Not below pytest's own folder, which every session closes to others again.
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        rig = Rig(Path(folder))
        opened(rig, run_info(rig))
        done = subprocess.run(
            [sys.executable, "-c", READONLY, folder], capture_output=True, text=True, cwd=Path(__file__).parents[2]
        )
    assert "out.db: attempt to write a readonly database. It is read-only: change its permissions" in done.stdout, done


def test_a_full_disk_under_the_database_is_told_and_the_restart_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    small = tmp_path / "small"
    small.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", small], capture_output=True, text=True)
    assert made.returncode == 0, f"cannot mount a small disk: {made.stderr.strip()}"
    try:
        engine = Engine(str(tmp_path / "ck"), SqliteSink(str(small / "out.db"), "rows"))
        engine.run(0, [1])
        ballast = small / "ballast"
        with ballast.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space left"):
            while True:
                file.write(b"x" * 1024)
        many = [record_batch(range(2, 20_000))]
        # Its failure goes up here, or with the next batch: a commit may overlap with it.
        said = ""
        try:
            engine.run(1, many)
        except HoldfastError as error:
            said = str(error)
        assert re.search(r"small/out\.db: .*(disk is full|disk I/O error|database or disk)", said + caplog.text)
        ballast.unlink()
        subprocess.run(["mount", "-o", "remount,size=20m", small], check=True)
        engine.restart()
        engine.coordinator.run(1, InProcessBatch(many))
        with closing(sqlite3.connect(small / "out.db")) as connection:
            assert connection.execute("SELECT count(*), count(DISTINCT id) FROM rows").fetchone() == (19_999, 19_999)
    finally:
        subprocess.run(["umount", "-l", small], check=True)
