"""write_stream on real Spark: triggers, output modes, empty batches, replay, refusals."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql import functions as f

import holdfast as hf
from holdfast import errors
from tests.integration.helpers import add_file, ids, read_files, select

pytestmark = pytest.mark.spark


class Recorder(hf.WriteAheadSink):
    """Writes what it is sent into files; says no while the file `down` exists."""

    def __init__(self, folder: Path, **options: int) -> None:
        super().__init__(committer=hf.FileCheckpointCommitter(str(folder / "marks")), **options)
        self.folder = str(folder)

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: int, timestamp: int) -> bool:
        if Path(self.folder, "down").exists():
            return False
        task = hf.current_task()
        numbers = [n for batch in values for n in batch.column("id").to_pylist()]
        with Path(self.folder, "sent").open("a") as file:
            file.writelines(f"{checkpoint_id} {task.subtask} {n}\n" for n in numbers)
        return True

    def sent(self) -> list[int]:
        path = Path(self.folder, "sent")
        return sorted(int(line.split()[2]) for line in path.read_text().splitlines()) if path.exists() else []


def run(frame, sinks, folder: Path, *, mode: str = "append", name: str = "test-pipe", **options) -> None:  # type: ignore[no-untyped-def]
    # As a Path: every other test of this folder gives text.
    writer = hf.write_stream(frame, sinks, name=name, checkpoint_location=folder / "checkpoint", **options)
    writer.outputMode(mode).trigger(availableNow=True).start().awaitTermination()


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "out.db"


@pytest.mark.contract("S4")
def test_two_sinks_share_one_decision_and_a_second_run_adds_only_new_rows(spark, tmp_path, database) -> None:
    add_file(tmp_path / "in", 0, range(100))
    recorder = Recorder(tmp_path)
    sinks = [hf.SqliteSink(str(database), "orders"), recorder]
    run(read_files(spark, tmp_path / "in"), sinks, tmp_path)
    add_file(tmp_path / "in", 1, range(100, 150))
    run(read_files(spark, tmp_path / "in"), sinks, tmp_path)
    assert ids(database) == list(range(150)) == recorder.sent()
    statuses = [(c.checkpoint_id, c.status, c.rows) for c in hf.checkpoints(str(tmp_path / "checkpoint"))]
    assert statuses == [(0, "complete", 100), (1, "complete", 50)]


class BatchSizes(hf.IdempotentSink):
    """Notes how many rows each Arrow batch has."""

    name = "sizes"

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def upsert(self, connection: None, batch: pa.RecordBatch) -> None:
        with Path(self.folder, "sizes").open("a") as file:
            file.write(f"{hf.current_task().checkpoint_id} {batch.num_rows}\n")


def test_small_rows_come_in_larger_batches_from_checkpoint_to_checkpoint_and_never_without_a_limit(
    spark, tmp_path
) -> None:
    for number in range(4):
        add_file(tmp_path / "in", number, range(25_000))
    run(read_files(spark, tmp_path / "in"), BatchSizes(tmp_path), tmp_path)
    sizes = [tuple(map(int, line.split())) for line in (tmp_path / "sizes").read_text().splitlines()]
    largest = [max(size for number, size in sizes if number == checkpoint) for checkpoint in range(4)]
    assert largest == [1_000, 4_000, 16_000, 20_000]
    assert sum(size for _, size in sizes) == 100_000


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"once": True}, {"processingTime": "0 seconds"}])
def test_every_trigger_of_micro_batches_works(spark, tmp_path, database, trigger) -> None:
    add_file(tmp_path / "in", 0, range(20))
    frame = read_files(spark, tmp_path / "in")
    sink = hf.SqliteSink(str(database), "orders")
    writer = hf.write_stream(frame, sink, name="triggers", checkpoint_location=str(tmp_path / "c"))
    query = writer.trigger(**trigger).start()
    if "processingTime" in trigger:
        query.processAllAvailable()
        query.stop()
    query.awaitTermination()
    assert ids(database) == list(range(20))


@pytest.mark.parametrize("mode", ["append", "update", "complete"])
def test_every_output_mode_gives_the_totals_of_a_batch_query(spark, tmp_path, database, mode) -> None:
    for number in range(3):
        add_file(tmp_path / "in", number, range(number * 60, number * 60 + 60), minute=number * 5)
    source = read_files(spark, tmp_path / "in").withWatermark("at", "1 minute")
    keys = [f.window("at", "1 minute"), "word"] if mode != "complete" else ["word"]
    totals = source.groupBy(*keys).count()
    if mode != "complete":
        totals = totals.select(f.col("window.start").cast("string").alias("start"), "word", "count")
    key = ["word"] if mode == "complete" else ["start", "word"]
    run(totals, hf.SqliteSink(str(database), "totals", mode="upsert", key=key), tmp_path, mode=mode)
    found = select(database, "SELECT sum(count), count(*) FROM totals")
    # Append holds back windows the watermark has not passed: the last of the three.
    assert found == {"append": [(120, 6)], "update": [(180, 9)], "complete": [(180, 3)]}[mode]


@pytest.mark.contract("P7")
def test_batches_without_rows_and_partitions_without_rows_open_nothing(spark, tmp_path, database) -> None:
    add_file(tmp_path / "in", 0, range(10))
    add_file(tmp_path / "in", 1, range(10, 20))
    frame = read_files(spark, tmp_path / "in").where("id >= 15").repartition(4, "word")
    recorder = Recorder(tmp_path)
    run(frame, [hf.SqliteSink(str(database), "orders"), recorder], tmp_path)
    assert ids(database) == [15, 16, 17, 18, 19] == recorder.sent()
    first, second = hf.checkpoints(str(tmp_path / "checkpoint"))
    assert (first.rows, first.status) == (0, "complete")
    assert second.sinks["Recorder"]["subtasks"] < 4


def test_a_query_whose_batches_have_no_partitions_at_all_completes(spark, tmp_path, database) -> None:
    add_file(tmp_path / "in", 0, range(10))
    empty = read_files(spark, tmp_path / "in").where("false")
    run(empty, hf.SqliteSink(str(database), "orders"), tmp_path)
    assert ids(database) == []
    assert [c.status for c in hf.checkpoints(str(tmp_path / "checkpoint"))] == ["complete"]


@pytest.mark.contract("W6")
def test_a_sink_that_is_down_does_not_stop_the_stream_and_catches_up_by_itself(spark, tmp_path, database) -> None:
    """W6, and rule 7: the source is quiet when the endpoint comes back."""
    (tmp_path / "down").touch()
    recorder = Recorder(tmp_path)
    sinks = [hf.SqliteSink(str(database), "orders"), recorder]
    add_file(tmp_path / "in", 0, range(50))
    frame = read_files(spark, tmp_path / "in")
    writer = hf.write_stream(frame, sinks, name="lagging", checkpoint_location=str(tmp_path / "c"))
    query = writer.trigger(processingTime="100 milliseconds").start()
    try:
        query.processAllAvailable()
        add_file(tmp_path / "in", 1, range(50, 80))
        query.processAllAvailable()
        assert ids(database) == list(range(80))
        assert recorder.sent() == []
        assert [c.status for c in hf.checkpoints(str(tmp_path / "c"))][:2] == ["lagging", "lagging"]
        (tmp_path / "down").unlink()
        deadline = time.monotonic() + 60
        while recorder.sent() != list(range(80)) and time.monotonic() < deadline:
            time.sleep(0.2)
        assert recorder.sent() == list(range(80))
    finally:
        query.stop()


def test_damage_found_while_the_source_is_quiet_fails_the_query(spark, tmp_path) -> None:
    """No batch comes that could raise it, so the timer stops the query and awaitTermination raises."""
    (tmp_path / "down").touch()
    add_file(tmp_path / "in", 0, range(10))
    recorder = Recorder(tmp_path)
    writer = hf.write_stream(
        read_files(spark, tmp_path / "in"), recorder, name="quiet", checkpoint_location=str(tmp_path / "checkpoint")
    )
    query = writer.trigger(processingTime="100 milliseconds").start()
    query.processAllAvailable()
    (handle,) = (tmp_path / "checkpoint" / "holdfast" / "wal").rglob("*.arrow")
    right = handle.read_bytes()
    handle.write_bytes(right[:-1])
    (tmp_path / "down").unlink()
    with pytest.raises(errors.RecordError, match=rf"{handle.name} is damaged.*Restore it"):
        query.awaitTermination(60)
    assert recorder.sent() == []
    handle.write_bytes(right)
    run(read_files(spark, tmp_path / "in"), recorder, tmp_path, name="quiet")
    assert recorder.sent() == list(range(10))


def test_a_restart_without_new_data_delivers_what_lagged(spark, tmp_path) -> None:
    (tmp_path / "down").touch()
    add_file(tmp_path / "in", 0, range(30))
    recorder = Recorder(tmp_path)
    with pytest.raises(
        errors.UndeliveredError, match=r"'Recorder': checkpoint 0, 30 rows.*next start delivers"
    ) as left:
        run(read_files(spark, tmp_path / "in"), recorder, tmp_path, drain_timeout=1)
    assert isinstance(left.value.__cause__, StreamingQueryException), (
        "a bounded run that owes rows failed for Spark too"
    )
    assert recorder.sent() == []
    (tmp_path / "down").unlink()
    run(read_files(spark, tmp_path / "in"), recorder, tmp_path)
    assert recorder.sent() == list(range(30))
    assert not list((tmp_path / "checkpoint" / "holdfast" / "wal").rglob("*.arrow"))


def test_a_full_backlog_fails_the_query_and_loses_nothing(spark, tmp_path) -> None:
    (tmp_path / "down").touch()
    for number in range(4):
        add_file(tmp_path / "in", number, range(number * 10, number * 10 + 10))
    writer = hf.write_stream(
        read_files(spark, tmp_path / "in"),
        Recorder(tmp_path, max_pending=2),
        name="test-pipe",
        checkpoint_location=str(tmp_path / "checkpoint"),
    )
    with pytest.raises(errors.BacklogFullError, match="max_pending=2"):
        writer.start().awaitTermination()
    (tmp_path / "down").unlink()
    recorder = Recorder(tmp_path, max_pending=2)
    run(read_files(spark, tmp_path / "in"), recorder, tmp_path)
    assert recorder.sent() == list(range(40))


@pytest.mark.parametrize(("problem", "again"), [(ConnectionError("away"), True), (ValueError("no such thing"), False)])
def test_task_retries_leave_nothing_behind(tmp_path, spark, database, problem, again) -> None:
    """A failing attempt aborts its own work; the checkpoint fails as a whole and is run again, in the same query if
    the endpoint may come back (T5)."""

    class Flaky(hf.SqliteSink):
        def pre_commit(self, txn):  # type: ignore[no-untyped-def]
            if not (tmp_path / "failed").exists():
                (tmp_path / "failed").touch()
                raise problem
            return super().pre_commit(txn)

    add_file(tmp_path / "in", 0, range(40))
    frame = read_files(spark, tmp_path / "in").repartition(2)
    recorder = Recorder(tmp_path)
    if not again:
        with pytest.raises(errors.SinkError, match="pre-commit failed: ValueError: no such thing"):
            run(frame, [recorder, Flaky(str(database), "orders")], tmp_path)
        assert recorder.sent() == [] and ids(database) == []
        assert not list((tmp_path / "checkpoint" / "holdfast" / "wal").rglob("*.arrow"))
    run(frame, [recorder, Flaky(str(database), "orders")], tmp_path)
    assert (tmp_path / "failed").exists()
    assert recorder.sent() == list(range(40)) == ids(database)


class TestRefusals:
    """Each names the thing and the way out, before a row is written."""

    def frame(self, spark: SparkSession, tmp_path: Path):  # type: ignore[no-untyped-def]
        add_file(tmp_path / "in", 0, range(5))
        return read_files(spark, tmp_path / "in")

    def test_two_sinks_of_one_name(self, spark, tmp_path, database) -> None:
        sinks = [hf.SqliteSink(str(database), "orders"), hf.SqliteSink(str(database), "orders")]
        with pytest.raises(errors.ConfigError, match=r"two sinks have the name 'sqlite-orders'.*another name"):
            run(self.frame(spark, tmp_path), sinks, tmp_path)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"name": ""}, "name must have 1 to 100 bytes"),
            ({"name": " x"}, "no blanks at its ends"),
            ({"delivery": "at-most-once"}, "exactly-once, at-least-once"),
            ({"checkpoint_location": ""}, "checkpoint_location must be a path"),
            ({"checkpoint_location": 5}, "checkpoint_location must be text or a path, not 5"),
            ({"take_over": "yes"}, "take_over must be True or False, not 'yes'"),
            ({"retry": "5m"}, r'retry must be hf.Retry\(for_="5m", ...\), or None, not .5m'),
            ({"drain_timeout": None}, 'drain_timeout must be a duration such as "90s".* not None'),
            ({"history_retain": 0}, "history_retain must be a whole number of at least 1, not 0"),
            ({"dead_letters": "there"}, r"dead_letters must be hf.DeadLetters\(sink, ...\), or None, not "),
        ],
    )
    def test_bad_options(self, spark, tmp_path, database, options, message) -> None:
        given = {"name": "x", "checkpoint_location": str(tmp_path / "c"), **options}
        with pytest.raises(errors.ConfigError, match=message):
            hf.write_stream(self.frame(spark, tmp_path), hf.SqliteSink(str(database), "orders"), **given)

    def test_no_sinks_wrong_sinks_and_batch_frames(self, spark, tmp_path) -> None:
        frame = self.frame(spark, tmp_path)
        for sinks in ([], ["kafka"]):
            with pytest.raises(errors.ConfigError, match=r"^sinks must "):
                hf.write_stream(frame, sinks, name="x", checkpoint_location=str(tmp_path / "c"))
        with pytest.raises(errors.ConfigError, match="streaming DataFrame"):
            hf.write_stream(spark.range(3), hf.StdoutSink(), name="x", checkpoint_location=str(tmp_path / "c"))

    def test_speculation(self, spark, tmp_path, monkeypatch) -> None:
        conf = spark.sparkContext.getConf().set("spark.speculation", "true")
        monkeypatch.setattr(type(spark.sparkContext), "getConf", lambda self: conf)
        with pytest.raises(errors.ConfigError, match=r"spark.speculation=false"):
            hf.write_stream(
                self.frame(spark, tmp_path), hf.StdoutSink(), name="x", checkpoint_location=str(tmp_path / "c")
            )

    def test_a_location_or_sink_that_a_live_query_uses(self, spark, tmp_path, database) -> None:
        frame, sink = self.frame(spark, tmp_path), hf.SqliteSink(str(database), "orders")
        location = str(tmp_path / "c")
        query = hf.write_stream(frame, sink, name="x", checkpoint_location=location).start()
        try:
            other = hf.SqliteSink(str(database), "other")
            with pytest.raises(errors.CheckpointInUseError, match="stop it first"):
                hf.write_stream(frame, other, name="x", checkpoint_location=location).start()
            with pytest.raises(errors.CheckpointInUseError, match="make a new sink"):
                hf.write_stream(frame, sink, name="y", checkpoint_location=str(tmp_path / "d")).start()
            query.processAllAvailable()
        finally:
            query.stop()
        assert ids(database) == list(range(5))

    def test_the_checkpoint_location_of_another_pipeline(self, spark, tmp_path, database) -> None:
        frame = self.frame(spark, tmp_path)
        run(frame, hf.SqliteSink(str(database), "orders"), tmp_path, name="first")
        with pytest.raises(errors.ConfigError, match=r"belongs to pipeline 'first', not 'second'.*of its own"):
            run(frame, hf.SqliteSink(str(database), "orders"), tmp_path, name="second")

    def test_spark_options_that_would_go_around_the_protocol(self, spark, tmp_path) -> None:
        writer = hf.write_stream(
            self.frame(spark, tmp_path), hf.StdoutSink(), name="x", checkpoint_location=str(tmp_path / "c")
        )
        for call in (
            lambda: writer.option("checkpointLocation", "elsewhere"),
            lambda: writer.options(checkpointLocation="elsewhere"),
            lambda: writer.format("kafka"),
            lambda: writer.toTable("t"),
            lambda: writer.foreach(print),
            lambda: writer.foreachBatch(print),
            lambda: writer.start("path"),
            lambda: writer.start(format="kafka"),
        ):
            with pytest.raises(errors.ConfigError):
                call()

    def test_duplicate_keys_without_an_order_column(self, spark, tmp_path, database) -> None:
        """I1: an error before the decision; with order_by the last row wins and nothing is lost."""
        add_file(tmp_path / "in", 0, range(12))
        frame = read_files(spark, tmp_path / "in").repartition(3, "id")
        sink = hf.SqliteSink(str(database), "orders", mode="upsert", key=["word"])
        with pytest.raises(errors.RowError, match="order_by='column'"):
            run(frame, sink, tmp_path)
        run(frame, hf.SqliteSink(str(database), "orders", mode="upsert", key=["word"], order_by="id"), tmp_path)
        assert ids(database) == [9, 10, 11]


def test_a_deleted_checkpoint_is_refused_and_taken_over_on_request(spark, tmp_path, database) -> None:
    add_file(tmp_path / "in", 0, range(10))
    frame = read_files(spark, tmp_path / "in")
    run(frame, hf.SqliteSink(str(database), "orders"), tmp_path)
    (tmp_path / "checkpoint").rename(tmp_path / "gone")
    with pytest.raises(errors.ForeignLineageError, match=r"another checkpoint location.*take_over=True"):
        run(frame, hf.SqliteSink(str(database), "orders"), tmp_path)
    assert ids(database) == list(range(10))
    run(frame, hf.SqliteSink(str(database), "orders"), tmp_path, take_over=True)
    assert ids(database) == sorted([*range(10), *range(10)])
    # The name is this location's now: it starts without asking, and the old one is refused.
    run(frame, hf.SqliteSink(str(database), "orders"), tmp_path)
    (tmp_path / "checkpoint").rename(tmp_path / "new")
    (tmp_path / "gone").rename(tmp_path / "checkpoint")
    with pytest.raises(errors.ForeignLineageError):
        run(frame, hf.SqliteSink(str(database), "orders"), tmp_path)


@pytest.mark.contract("S2")
def test_at_least_once_goes_on_where_exactly_once_refuses(spark, tmp_path, database) -> None:
    add_file(tmp_path / "in", 0, range(10))
    frame = read_files(spark, tmp_path / "in")
    run(frame, hf.SqliteSink(str(database), "orders"), tmp_path)
    (tmp_path / "checkpoint").rename(tmp_path / "gone")
    add_file(tmp_path / "in", 1, range(10, 15))
    with pytest.raises(errors.ForeignLineageError):
        run(frame, hf.SqliteSink(str(database), "orders"), tmp_path)
    run(frame, hf.SqliteSink(str(database), "orders"), tmp_path, delivery="at-least-once")
    assert ids(database) == sorted([*range(10), *range(10), *range(10, 15)]), "some twice, none lost"


def test_stdout_prints_each_row_on_the_driver(spark, tmp_path, capsys) -> None:
    add_file(tmp_path / "in", 0, range(3))
    run(read_files(spark, tmp_path / "in"), hf.StdoutSink(), tmp_path)
    printed = capsys.readouterr().out.splitlines()
    assert len(printed) == 3 and all('"word"' in line for line in printed)


def test_a_failed_start_leaves_the_query_startable(spark, tmp_path, database, caplog) -> None:
    caplog.set_level(logging.WARNING, "holdfast")
    add_file(tmp_path / "in", 0, range(10))
    frame = read_files(spark, tmp_path / "in")
    counted = frame.groupBy("word").count()
    with pytest.raises(Exception, match=r"(?i)append"):
        run(counted, hf.SqliteSink(str(database), "orders"), tmp_path, mode="append")
    run(frame, hf.SqliteSink(str(tmp_path / "second.db"), "orders"), tmp_path)
    assert ids(tmp_path / "second.db") == list(range(10))
