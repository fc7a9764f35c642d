"""Savepoints: whole copies between two batches, and lineages that go on from them (S5)."""

from __future__ import annotations

import json
import shutil
import sqlite3
import threading
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.checkpoint import savepoint as savepoints
from holdfast.checkpoint import savepoint_orders
from holdfast.checkpoint.history import engine_position
from holdfast.checkpoint.origin import Ahead
from holdfast.checkpoint.savepoint_orders import ORDERS, Desk
from holdfast.checkpoint.start_from import start_from
from holdfast.checkpoint.storage import open_storage
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.sqlite import SqliteSink
from holdfast.errors import (
    CheckpointInUseError,
    ConfigError,
    ForeignLineageError,
    RecordError,
    SavepointError,
    StaleCheckpointError,
    UndeliveredError,
)
from tests.unit.inprocess import DAMAGES, Endpoint, Engine, PreparingSink, SendingSink, damage
from tests.unit.sparkfiles import SavedEngine


def rows_in(path: Path) -> list[int]:
    with sqlite3.connect(path) as connection:
        return sorted(row[0] for row in connection.execute("SELECT id FROM orders"))


def sink(path: Path) -> SqliteSink:
    return SqliteSink(path / "shop.db", "orders")


def stopped(path: Path, batches: int = 2) -> SavedEngine:
    engine = SavedEngine(path / "ck", sink(path))
    for number in range(batches):
        engine.run(number, [number * 10, number * 10 + 1])
    engine.stop()
    return engine


# -- taking ----------------------------------------------------------------------------------------------------------


def test_a_savepoint_of_a_stopped_query_holds_what_another_one_needs(tmp_path) -> None:
    stopped(tmp_path)
    found = hf.savepoint(tmp_path / "ck", tmp_path / "saved", name="first")
    assert found.path == str(tmp_path / "saved" / "first")
    assert (found.checkpoint_id, found.spark_committed) == (1, 1)
    assert found.offsets == [{"orders": {"0": 4}}]
    assert found.sinks == {"sqlite-orders": {"mark": 1}}
    names = {name.removeprefix("spark/") for name in found.files}
    assert names == {"metadata", "sources/0/0", "offsets/0", "offsets/1", "commits/0", "commits/1"}
    savepoints.verify(found)
    assert savepoints.read_savepoint(found.path) == found
    assert savepoints.list_savepoints(str(tmp_path / "saved")) == [found]


def test_a_plan_that_leads_the_commits_is_copied_and_later_ones_are_not(tmp_path) -> None:
    """In another order Spark would skip batches with no more than a warning."""
    engine = stopped(tmp_path)
    for number in (2, 3):
        engine.plan(number, 2)
    engine.spark.replace("state/0/0/2.delta", b"of batch 1")
    engine.spark.replace("state/0/0/3.delta", b"of batch 2")
    found = hf.savepoint(tmp_path / "ck", tmp_path / "saved")
    assert "spark/offsets/2" in found.files
    assert "spark/offsets/3" not in found.files
    assert "spark/state/0/0/2.delta" in found.files
    assert "spark/state/0/0/3.delta" not in found.files


def test_state_that_snapshots_have_replaced_stays_where_it_is(tmp_path) -> None:
    """A running query waits while it is copied."""
    engine = stopped(tmp_path, batches=9)
    names = [
        "2.zip",
        "3.changelog",
        "5.zip",
        "6_a-b.changelog",
        "7_a-b.zip",
        "8.changelog",
        "9.changelog",
        "10.changelog",
    ]
    for name in (*names, "12-ab.sst"):
        engine.spark.replace(f"state/0/0/{name}", b"x")
    for number in range(1, 10):
        engine.spark.replace(f"state/0/1/{number}.delta", b"x")
    found = hf.savepoint(tmp_path / "ck", tmp_path / "saved")
    state = {name.removeprefix("spark/state/0/") for name in found.files if "/state/" in name}
    assert {n for n in state if n.startswith("0/")} == {f"0/{n}" for n in (*names[2:7], "12-ab.sst")}
    assert len({n for n in state if n.startswith("1/")}) == 9


def test_half_a_savepoint_is_none(tmp_path) -> None:
    stopped(tmp_path)
    found = hf.savepoint(tmp_path / "ck", tmp_path / "saved", name="first")
    (tmp_path / "saved" / "first" / savepoints.MANIFEST).unlink()
    assert savepoints.list_savepoints(str(tmp_path / "saved")) == []
    assert savepoints.halves(str(tmp_path / "saved")) == [found.path]
    with pytest.raises(ConfigError, match="half of one"):
        start_from(found.path, str(tmp_path / "new"))
    assert savepoints.delete_savepoint(found.path) is None
    assert not (tmp_path / "saved" / "first").exists()


def test_a_folder_that_is_no_savepoint_is_never_deleted(tmp_path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(ConfigError, match="no savepoint"):
        savepoints.delete_savepoint(str(tmp_path / "photos"))
    assert (tmp_path / "photos" / "cat.jpg").exists()


@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["savepoint.json", "spark/offsets/1"])
def test_a_damaged_savepoint_is_refused_and_leaves_no_location(tmp_path, name: str, how: str) -> None:
    stopped(tmp_path)
    found = hf.savepoint(tmp_path / "ck", tmp_path / "saved")
    damage(Path(found.path) / name, how)
    with pytest.raises(RecordError, match="damaged"):
        start_from(found.path, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_file_that_is_missing_is_named(tmp_path) -> None:
    stopped(tmp_path)
    found = hf.savepoint(tmp_path / "ck", tmp_path / "saved")
    (Path(found.path) / "spark" / "commits" / "1").unlink()
    with pytest.raises(RecordError, match="commits/1 is missing"):
        savepoints.verify(found)


@pytest.mark.contract("S5")
def test_the_newest_are_kept(tmp_path) -> None:
    engine = stopped(tmp_path)
    for number in range(4):
        hf.savepoint(tmp_path / "ck", tmp_path / "saved", name=f"s{number}", keep=2)
    other = SavedEngine(tmp_path / "other", PreparingSink(Endpoint()), pipeline="other")
    other.run(0, [1])
    other.stop()
    hf.savepoint(tmp_path / "other", tmp_path / "saved", name="other", keep=1)
    names = [Path(s.path).name for s in savepoints.list_savepoints(str(tmp_path / "saved"))]
    assert names == ["s2", "s3", "other"]
    assert engine.end(1) == 4


def test_options_are_checked_first(tmp_path) -> None:
    stopped(tmp_path)
    for options in (
        {"keep": 0},
        {"keep": True},
        {"name": "../x"},
        {"name": ""},
        {"timeout": "soon"},
        {"timeout": None},
    ):
        with pytest.raises(ConfigError):
            hf.savepoint(tmp_path / "ck", tmp_path / "saved", **options)
    with pytest.raises(ConfigError, match="not a checkpoint location"):
        hf.savepoint(tmp_path / "nothing", tmp_path / "saved")
    hf.savepoint(tmp_path / "ck", tmp_path / "saved", name="x")
    with pytest.raises(ConfigError, match="there already"):
        hf.savepoint(tmp_path / "ck", tmp_path / "saved", name="x")


def test_nothing_decided_is_nothing_to_save(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", PreparingSink(Endpoint()))
    engine.stop()
    with pytest.raises(ConfigError, match="nothing to make a savepoint of"):
        hf.savepoint(tmp_path / "ck", tmp_path / "saved")


def test_offsets_in_a_format_that_nobody_here_knows_are_refused_not_misread(tmp_path, monkeypatch, caplog) -> None:
    """Spark has a second format for those who ask for it; its lines are not one for each source in their order."""
    from holdfast.spark import kafka, private

    engine = stopped(tmp_path)
    data = (tmp_path / "ck" / "offsets" / "0").read_bytes()
    for number in engine.spark.names("offsets"):
        engine.spark.replace(f"offsets/{number}", data.replace(b"v1", b"v2", 1))
    with pytest.raises(RecordError, match=r"offsets/\d+ is in a format of Spark's that holdfast does not read: 'v2'"):
        hf.savepoint(tmp_path / "ck", tmp_path / "saved")
    monkeypatch.setattr(private.interfaces, "missed", set())
    monkeypatch.setattr(kafka, "streaming_sources", lambda frame: [])
    progress = kafka.KafkaProgress(None, engine.spark)
    assert progress._offsets(0) is None and progress._offsets(0) is None
    assert caplog.text.count("group offsets are not committed") == 1


def test_what_a_sink_still_owes_is_not_saved(tmp_path) -> None:
    endpoint = Endpoint()
    endpoint.down = False
    engine = SavedEngine(tmp_path / "ck", SendingSink(endpoint, FileCheckpointCommitter(tmp_path / "marks")))
    engine.run(0, [1])
    engine.pulse.end(engine.coordinator.deliveries, None)
    with pytest.raises(UndeliveredError, match="'sending'"):
        hf.savepoint(tmp_path / "ck", tmp_path / "saved")
    assert savepoints.list_savepoints(str(tmp_path / "saved")) == []


# -- of a running query ----------------------------------------------------------------------------------------------


class Asked:
    """Somebody who asks in another thread, while this one is the driver's."""

    def __init__(self, tmp_path: Path, engine: SavedEngine, **options) -> None:
        self.result, self.error = None, None

        def ask() -> None:
            try:
                self.result = hf.savepoint(tmp_path / "ck", tmp_path / "saved", **options)
            except hf.HoldfastError as error:
                self.error = error

        self.thread = threading.Thread(target=ask)
        self.thread.start()
        while self.thread.is_alive() and not engine.storage.names(ORDERS):
            self.thread.join(0.01)

    def answer(self):
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def test_a_quiet_query_takes_it_on_its_timer(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(0, [1, 2])
    asked = Asked(tmp_path, engine)
    engine.tick()
    found = asked.answer()
    assert found.checkpoint_id == 0
    engine.run(1, [3])
    assert engine.storage.names(ORDERS) == []


def test_a_busy_query_takes_it_at_the_start_of_its_next_batch(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(0, [1, 2])
    asked: list[Asked] = []

    def in_the_middle(subtask: int) -> None:
        asked.append(Asked(tmp_path, engine))
        engine.tick()  # the timer, while tasks are at work
        assert asked[0].thread.is_alive()

    engine.run(1, [3], on_task=in_the_middle)
    engine.run(2, [4])
    found = asked[0].answer()
    assert found.checkpoint_id == 1
    assert "spark/offsets/2" in found.files  # planned, and not decided


def test_spark_commits_first(tmp_path) -> None:
    """Between our return and Spark's commit nothing is copied: a moment later it is simpler."""
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(0, [1])
    engine.plan(1, 1)
    Engine.run(engine, 1, [2])
    asked = Asked(tmp_path, engine)
    engine.tick()
    assert asked.thread.is_alive()
    engine.spark.replace("commits/1", b"v1\n{}")
    engine.tick()
    assert asked.answer().spark_committed == 1


def test_a_query_whose_sink_lags_takes_it_when_that_has_caught_up(tmp_path) -> None:
    endpoint = Endpoint()
    engine = SavedEngine(tmp_path / "ck", SendingSink(endpoint, FileCheckpointCommitter(tmp_path / "marks")))
    endpoint.down = False
    engine.run(0, [1])
    asked = Asked(tmp_path, engine)
    engine.tick()
    assert asked.thread.is_alive()
    endpoint.down = None
    engine.tick()
    engine.tick()
    assert asked.answer().checkpoint_id == 0
    assert endpoint.rows == [1]


def test_it_says_who_lags_when_time_is_up(tmp_path) -> None:
    endpoint = Endpoint()
    engine = SavedEngine(tmp_path / "ck", SendingSink(endpoint, FileCheckpointCommitter(tmp_path / "marks")))
    endpoint.down = False
    engine.run(0, [1])
    asked = Asked(tmp_path, engine, timeout=0.5)
    with pytest.raises(SavepointError, match="'sending' owes 1 checkpoints"):
        asked.answer()
    assert engine.storage.names(ORDERS) == []


def test_rows_that_a_file_sink_holds_back_are_published_first(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", FileSink(tmp_path / "out", "json"))
    engine.run(0, [1, 2])
    assert not list((tmp_path / "out").glob("*.json"))
    asked = Asked(tmp_path, engine)
    engine.tick()
    asked.answer()
    lines = [json.loads(x) for p in (tmp_path / "out").glob("*.json") for x in p.read_text().splitlines()]
    assert sorted(row["id"] for row in lines) == [1, 2]
    engine.run(1, [3])
    engine.stop()


def test_a_savepoint_that_fails_costs_the_query_nothing(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(0, [1])
    (tmp_path / "saved").write_text("in the way")
    asked = Asked(tmp_path, engine)
    engine.tick()
    with pytest.raises(SavepointError, match="could not take the savepoint"):
        asked.answer()
    engine.run(1, [2])
    engine.settle()
    assert rows_in(tmp_path / "shop.db") == [1, 2]


def test_a_damaged_order_is_removed(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(0, [1])
    engine.storage.replace(f"{ORDERS}/x.json", b"nonsense")
    engine.tick()
    assert engine.storage.names(ORDERS) == []
    engine.run(1, [2])


def test_a_driver_that_starts_meanwhile_is_noticed_before_the_manifest(tmp_path, monkeypatch) -> None:
    engine = stopped(tmp_path)
    copy = savepoints.copy

    def copy_and_start(*arguments):
        if not engine.storage.names("savepoint-started"):
            engine.storage.replace("savepoint-started/x", b"")
            engine.restart()
        return copy(*arguments)

    monkeypatch.setattr(savepoints, "copy", copy_and_start)
    with pytest.raises(hf.HoldfastError, match="taken over"):
        hf.savepoint(tmp_path / "ck", tmp_path / "saved")
    assert savepoints.list_savepoints(str(tmp_path / "saved")) == []


# -- starting from it ------------------------------------------------------------------------------------------------


def test_a_new_lineage_goes_on_with_the_same_sinks(tmp_path) -> None:
    engine = stopped(tmp_path)
    found = hf.savepoint(tmp_path / "ck", tmp_path / "saved")
    begun = start_from(found.path, str(tmp_path / "new"))
    assert (begun.checkpoint_id, begun.further, begun.unknown) == (1, {}, None)
    assert engine_position(str(tmp_path / "new")) == (1, 1)
    again = SavedEngine(tmp_path / "new", sink(tmp_path))
    assert again.log.lineage != engine.log.lineage
    again.run(2, [20, 21])
    again.restart()
    again.run(3, [30])
    again.stop()
    assert rows_in(tmp_path / "shop.db") == [0, 1, 10, 11, 20, 21, 30]
    with pytest.raises(ForeignLineageError):  # the old one has lost the name
        SavedEngine(tmp_path / "ck", sink(tmp_path))


def test_sparks_query_gets_another_id(tmp_path) -> None:
    stopped(tmp_path)
    found = hf.savepoint(tmp_path / "ck", tmp_path / "saved")
    start_from(found.path, str(tmp_path / "new"))
    ids = {(tmp_path / place / "metadata").read_text() for place in ("ck", "new")}
    assert len(ids) == 2


def test_operator_state_goes_along(tmp_path) -> None:
    kept = PreparingSink(Endpoint())
    engine = SavedEngine(tmp_path / "ck", kept)
    kept.state = {"seen": 7}
    engine.run(0, [1])
    engine.stop()
    start_from(hf.savepoint(tmp_path / "ck", tmp_path / "saved").path, str(tmp_path / "new"))
    again = PreparingSink(Endpoint())
    SavedEngine(tmp_path / "new", again)
    assert again.state == {"seen": 7}


def ahead_of_it(tmp_path: Path) -> str:
    """A savepoint of checkpoint 1, and a pipeline that has gone on to checkpoint 3."""
    stopped(tmp_path)
    found = hf.savepoint(tmp_path / "ck", tmp_path / "saved")
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(2, [20, 21])
    engine.run(3, [30])
    engine.stop()
    return found.path


def test_sinks_that_are_ahead_are_refused_by_checkpoints_and_rows(tmp_path) -> None:
    path = ahead_of_it(tmp_path)
    with pytest.raises(SavepointError, match="2 checkpoints with 3 rows of what comes after checkpoint 1"):
        start_from(path, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_rows_are_delivered_again_if_that_was_chosen(tmp_path) -> None:
    begun = start_from(ahead_of_it(tmp_path), str(tmp_path / "new"), ahead=Ahead.REDELIVER)
    assert begun.further["sqlite-orders"].rows == 3
    again = SavedEngine(tmp_path / "new", sink(tmp_path))
    again.run(2, [20, 21, 30])
    again.stop()
    assert rows_in(tmp_path / "shop.db") == [0, 1, 10, 11, 20, 20, 21, 21, 30, 30]


def test_when_the_old_location_is_gone_the_ledgers_tell(tmp_path) -> None:
    path = ahead_of_it(tmp_path)
    shutil.rmtree(tmp_path / "ck")
    begun = start_from(path, str(tmp_path / "new"))
    assert begun.unknown is not None
    with pytest.raises(StaleCheckpointError, match=r"up to checkpoint 3.*2 checkpoints more than the 1"):
        SavedEngine(tmp_path / "new", sink(tmp_path))
    assert rows_in(tmp_path / "shop.db") == [0, 1, 10, 11, 20, 21, 30]


def test_one_sink_that_is_ahead_forbids_the_take_over_of_all(tmp_path) -> None:
    """The first ledger must not be set aside before the second was looked at."""

    def sinks():
        return sink(tmp_path), SqliteSink(tmp_path / "b.db", "orders", name="b")

    engine = SavedEngine(tmp_path / "ck", *sinks())
    engine.run(0, [1])
    engine.stop()
    path = hf.savepoint(tmp_path / "ck", tmp_path / "saved").path
    shutil.copy(tmp_path / "shop.db", tmp_path / "shop.bak")
    engine = SavedEngine(tmp_path / "ck", *sinks())
    engine.run(1, [2])
    engine.stop()
    shutil.rmtree(tmp_path / "ck")
    for left in tmp_path.glob("shop.db*"):
        left.unlink()
    shutil.copy(tmp_path / "shop.bak", tmp_path / "shop.db")
    start_from(path, str(tmp_path / "new"))
    with pytest.raises(StaleCheckpointError, match="sink 'b'"):
        SavedEngine(tmp_path / "new", *sinks())
    with sqlite3.connect(tmp_path / "shop.db") as connection:
        assert connection.execute("SELECT count(DISTINCT lineage) FROM holdfast_ledger").fetchone() == (1,)
        (lineage,) = connection.execute("SELECT DISTINCT lineage FROM holdfast_ledger").fetchone()
    assert lineage == engine.log.lineage


def test_a_new_name_is_a_pipeline_of_its_own(tmp_path) -> None:
    path = ahead_of_it(tmp_path)
    start_from(path, str(tmp_path / "new"), name="copy")
    again = SavedEngine(tmp_path / "new", SqliteSink(tmp_path / "copy.db", "orders"), pipeline="copy")
    again.run(2, [20, 21, 30])
    again.stop()
    assert rows_in(tmp_path / "copy.db") == [20, 21, 30]
    assert rows_in(tmp_path / "shop.db") == [0, 1, 10, 11, 20, 21, 30]


def test_a_pipeline_that_runs_keeps_its_name(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(0, [1])
    asked = Asked(tmp_path, engine)
    engine.tick()
    path = asked.answer().path
    with pytest.raises(CheckpointInUseError, match="--name"):
        start_from(path, str(tmp_path / "new"))
    start_from(path, str(tmp_path / "new"), name="copy")


def test_a_location_that_is_used_is_refused(tmp_path) -> None:
    stopped(tmp_path)
    path = hf.savepoint(tmp_path / "ck", tmp_path / "saved").path
    with pytest.raises(ConfigError, match="not empty"):
        start_from(path, str(tmp_path / "ck"))


@pytest.mark.parametrize("after", (1, 3, 5, 8, 11))
def test_a_start_from_that_is_interrupted_starts_nothing(tmp_path, monkeypatch, after: int) -> None:
    """Whatever was written last: the location is whole, or refused, and never a pipeline from the beginning."""
    stopped(tmp_path)
    path = hf.savepoint(tmp_path / "ck", tmp_path / "saved").path
    left = [after]

    def breaking(method):
        def write(self, *arguments):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
            return method(self, *arguments)

        return write

    kind = type(open_storage(str(tmp_path)))
    for name in ("replace", "create", "writer"):
        monkeypatch.setattr(kind, name, breaking(getattr(kind, name)))
    whole = True
    try:
        start_from(path, str(tmp_path / "new"))
    except KeyboardInterrupt:
        whole = False
    monkeypatch.undo()
    assert not whole or after > 8
    if not whole:
        with pytest.raises(hf.HoldfastError):
            SavedEngine(tmp_path / "new", sink(tmp_path))


# -- skipping --------------------------------------------------------------------------------------------------------


class Hashed(PreparingSink):
    """Its records hold digests, as those of a Kafka sink do."""

    repairable = True


def two_ahead(tmp_path: Path, endpoint: Endpoint) -> str:
    engine = SavedEngine(tmp_path / "ck", Hashed(endpoint))
    engine.run(0, [1, 2])
    engine.stop()
    path = hf.savepoint(tmp_path / "ck", tmp_path / "saved").path
    engine = SavedEngine(tmp_path / "ck", Hashed(endpoint))
    engine.run(1, [3, 4], [5])
    engine.run(2, [6])
    engine.stop()
    return path


def test_what_sinks_have_is_left_out_where_the_replay_proves_equal(tmp_path) -> None:
    """The batches since then come again as one, with the same end: its rows are the same, however they are split."""
    endpoint = Endpoint()
    path = two_ahead(tmp_path, endpoint)
    begun = start_from(path, str(tmp_path / "new"), ahead=Ahead.SKIP)
    assert begun.further["prepared"].rows == 4
    again = SavedEngine(tmp_path / "new", Hashed(endpoint))
    assert again.end(1) == 6  # where the old one had got to
    again.run(1, [6, 5], [4], [3])
    assert endpoint.rows == [1, 2, 3, 4, 5, 6]
    again.run(2, [7])
    again.restart()
    again.run(3, [8])
    assert endpoint.rows == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_replay_that_differs_is_refused_and_delivers_nothing(tmp_path) -> None:
    endpoint = Endpoint()
    start_from(two_ahead(tmp_path, endpoint), str(tmp_path / "new"), ahead=Ahead.SKIP)
    for rows in ([3, 4, 5, 7], [3, 4, 5], []):
        again = SavedEngine(tmp_path / "new", Hashed(endpoint))
        with pytest.raises(StaleCheckpointError, match="not the same"):
            again.run(1, rows)
    assert endpoint.rows == [1, 2, 3, 4, 5, 6]
    again = SavedEngine(tmp_path / "new", Hashed(endpoint))
    again.run(1, [3, 4, 5, 6])
    assert endpoint.rows == [1, 2, 3, 4, 5, 6]


def test_other_sinks_than_those_that_are_ahead_prove_nothing(tmp_path) -> None:
    endpoint = Endpoint()
    start_from(two_ahead(tmp_path, endpoint), str(tmp_path / "new"), ahead=Ahead.SKIP)
    again = SavedEngine(tmp_path / "new", Hashed(endpoint), PreparingSink(Endpoint(), "more"))
    with pytest.raises(StaleCheckpointError, match="'more' is new or gone"):
        again.run(1, [3, 4, 5, 6])


def test_a_sink_without_digests_cannot_be_skipped(tmp_path) -> None:
    with pytest.raises(SavepointError, match="no digests"):
        start_from(ahead_of_it(tmp_path), str(tmp_path / "new"), ahead=Ahead.SKIP)


# -- on S3 -----------------------------------------------------------------------------------------------------------


def test_a_running_query_asks_an_object_store_seldom_whether_one_is_ordered(tmp_path, bucket: str) -> None:
    """Each look is a request that is paid for; on a local disk it costs nothing, and every tick looks."""
    looks = []

    def looked(where: str) -> list[float]:
        engine = SavedEngine(where, sink(tmp_path))
        clock, names = [0.0], engine.log.storage.names
        desk = Desk(engine.log, where, lambda: clock[0])
        looks.clear()
        engine.log.storage.names = lambda folder: looks.append(clock[0]) or names(folder)  # type: ignore[method-assign]
        for _ in range(31):
            desk.look()
            clock[0] += 2.0
        engine.log.storage.names = names  # type: ignore[method-assign]
        engine.stop()
        return list(looks)

    assert looked(f"s3://{bucket}/seldom") == [0.0, 20.0, 40.0, 60.0]
    assert len(looked(str(tmp_path / "ck"))) == 31


def test_savepoints_on_s3_and_back(tmp_path, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(savepoint_orders, "LOOK_FOR_ORDERS_FAR", 0.0)
    root = f"s3://{bucket}/savepoints"
    engine = SavedEngine(f"{root}/ck", sink(tmp_path))
    engine.run(0, [1, 2])
    asked: list = []

    def ask() -> None:
        asked.append(hf.savepoint(f"{root}/ck", f"{root}/saved", name="s3", keep=1))

    thread = threading.Thread(target=ask)
    thread.start()
    while thread.is_alive():
        engine.tick()
        thread.join(0.05)
    assert [s.path for s in savepoints.list_savepoints(f"{root}/saved")] == [f"{root}/saved/s3"]
    engine.stop()
    start_from(asked[0].path, f"{root}/new")
    again = SavedEngine(f"{root}/new", sink(tmp_path))
    again.run(1, [3])
    again.stop()
    assert rows_in(tmp_path / "shop.db") == [1, 2, 3]
    start_from(hf.savepoint(f"{root}/new", tmp_path / "local").path, str(tmp_path / "here"))
    here = SavedEngine(tmp_path / "here", sink(tmp_path))
    here.run(2, [4])
    here.stop()
    assert rows_in(tmp_path / "shop.db") == [1, 2, 3, 4]
    savepoints.delete_savepoint(f"{root}/saved/s3")
    assert savepoints.list_savepoints(f"{root}/saved") == []
