"""The interfaces of Spark that are not public: this Spark has them all, and without any of them rows still arrive."""

from __future__ import annotations

import importlib
import pickle
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import StructType

import holdfast as hf
from holdfast import errors
from holdfast.errors import ConfigError
from holdfast.spark import private
from holdfast.spark.checkpoint_files import SETTING, quick_files
from holdfast.spark.query import HoldfastQuery
from holdfast.spark.stream import HoldfastWriter
from tests.integration.helpers import add_file, ids, read_files
from tests.integration.test_failures import Slow, until

SOURCE = Path(private.__file__).parents[2]
NESTED = (
    "named_struct('at', at) AS s, array(at) AS a, map(id, at) AS m, at, CAST(at AS timestamp_ntz) AS ntz, id, word, "
    "CAST(id AS decimal(9, 2)) AS d"
)


def deliver(spark: Any, folder: Path, location: str = "") -> list[int]:
    """Two micro-batches into SQLite."""
    sink = hf.SqliteSink(str(folder / "out.db"), "orders")
    frame = read_files(spark, folder / "in").select("id", "word")
    writer = hf.write_stream(frame, sink, name="private", checkpoint_location=location or str(folder / "c"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    assert isinstance(query, HoldfastQuery)
    return ids(folder / "out.db")


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    add_file(tmp_path / "in", 0, range(50))
    add_file(tmp_path / "in", 1, range(50, 80))
    return tmp_path


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], list[str]]:
    """Makes one interface missing; gives the list of the times it was asked for."""
    real = private.interfaces.use

    def remove(name: str) -> list[str]:
        asked: list[str] = []

        def use(wanted: str, use: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
            if wanted != name:
                return real(wanted, use, otherwise)
            asked.append(wanted)
            return otherwise()

        monkeypatch.setattr(private.interfaces, "use", use)
        return asked

    return remove


@pytest.mark.contract("R5")
def test_this_spark_has_every_interface(spark, rows, monkeypatch) -> None:
    used: set[str] = set()
    real = private.interfaces.use

    def use(wanted: str, use: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        used.add(wanted)
        return real(wanted, use, otherwise)

    monkeypatch.setattr(private.interfaces, "use", use)
    monkeypatch.setattr(private.interfaces, "missed", set())
    kinds: list[object] = []
    ours = HoldfastWriter._sq
    monkeypatch.setattr(HoldfastWriter, "_sq", lambda writer, query: kinds.append(query) or ours(writer, query))
    assert deliver(spark, rows) == list(range(80))
    assert len(kinds) == 1, "Spark no longer asks DataStreamWriter._sq for the kind of query"
    writer = read_files(spark, rows / "in").writeStream.format("noop")
    query = writer.option("checkpointLocation", f"{rows}/noop").start()
    query.processAllAvailable()
    private.interrupt(query)
    until(lambda: not query.isActive)
    assert "interrupted" in (private.failure_text(query) or "").lower()
    private.pause(spark.sparkContext)
    assert "FileSource" in private.plan_text(read_files(spark, rows / "in"))
    assert private.submitted()["spark.app.name"] == "tests"
    assert any(part.is_node for part in private.plan_parts(read_files(spark, rows / "in")))
    assert "spark-core" in (private.class_origin(spark.sparkContext, "org.apache.spark.SparkContext") or "")
    assert hf.session("one that runs") is spark
    assert private.file_manager(spark.sparkContext)
    private.pickle_by_value(errors)
    assert private.java_query(query) is not None
    assert callable(importlib.import_module("pyspark.daemon").manager)
    made = SimpleNamespace()
    private.fill_writer(made, read_files(spark, rows / "in").writeStream)
    assert vars(made)
    assert private.interfaces.missed == set(), "a fallback does its work: see what changed"
    elsewhere = {"DataStreamWriter._sq", "pyspark.daemon.manager", "MicroBatchScanExec.start"}
    assert used | elsewhere == set(private.INTERFACES)


@pytest.mark.parametrize(
    "name",
    ["StreamExecution.lastExecution", "SparkPlan.schema", "Dataset.toArrowBatchRdd", "to_arrow_schema",
     "StatusTracker._jtracker", "StreamingQuery.exception", "LogicalPlan.collectLeaves",
     "SparkContext.hadoopConfiguration"],
)  # fmt: skip
def test_without_it_the_same_rows_arrive(spark, rows, without, name) -> None:
    asked = without(name)
    assert deliver(spark, rows) == list(range(80))
    assert asked


def test_without_sparks_choice_of_query_it_is_wrapped(spark, rows, monkeypatch) -> None:
    monkeypatch.delattr(HoldfastWriter, "_sq")
    assert deliver(spark, rows) == list(range(80))


def test_without_what_a_query_is_made_of_a_start_says_so_and_nothing_runs(spark, rows, without, monkeypatch) -> None:
    monkeypatch.delattr(HoldfastWriter, "_sq")
    without("StreamingQuery._jsq")
    with pytest.raises(ConfigError, match="cannot follow the queries of this version of Spark"):
        deliver(spark, rows)
    assert spark.streams.active == []


def test_without_its_plan_none_is_shown_and_routes_say_so(spark, rows, without) -> None:
    frame = read_files(spark, rows / "in")
    without("QueryExecution.analyzed")
    assert private.plan_text(frame) == "this Spark does not show its plan"
    sink = hf.route(hf.SqliteSink(str(rows / "out.db"), "orders"), where="id > 1")
    with pytest.raises(ConfigError, match=r"does not show its plan, which hf\.route needs"):
        hf.write_stream(frame, sink, name="private", checkpoint_location=str(rows / "c"))


def test_without_what_was_submitted_the_defaults_are_ours(without) -> None:
    without("SparkContext._ensure_initialized")
    assert private.submitted() == {}


def test_without_its_java_process_spark_is_taken_as_it_is(spark, without) -> None:
    without("SparkContext._gateway")
    private.forget_dead_spark()
    assert spark.range(1).count() == 1
    with pytest.raises(errors.HoldfastError, match="does not show the Java process"):
        private.stop_java(spark, 1.0)


def test_without_the_quick_way_spark_writes_its_files_in_its_own(spark, rows, without) -> None:
    without("FileSystemBasedCheckpointFileManager")
    with quick_files(spark, f"file://{rows}"):
        assert spark.conf.get(SETTING, None) is None
    assert private.file_manager(spark.sparkContext) is None


def test_without_a_writer_to_extend_connect_has_another_way(without) -> None:
    without("connect.DataStreamWriter")
    with pytest.raises(ConfigError, match=r"df\.writeStream\.format\('holdfast'\)"):
        private.fill_writer(object(), object())


def test_without_sparks_cloudpickle_that_of_pypi_pickles(without) -> None:
    asked = without("pyspark.cloudpickle")
    module = ModuleType("beside_a_job_file")
    exec("def double(number): return 2 * number", vars(module))
    sys.modules[module.__name__] = module
    try:
        with private.by_value(module):
            made = private.pickled(module.double)
    finally:
        del sys.modules[module.__name__]
    assert pickle.loads(made)(4) == 8
    assert set(asked) == {"pyspark.cloudpickle"}


def test_without_sparks_serializer_of_bytes_the_same_rows_arrive(spark, rows, monkeypatch) -> None:
    monkeypatch.setattr(private.interfaces, "missed", set())
    monkeypatch.delattr("pyspark.serializers.NoOpSerializer")
    assert deliver(spark, rows) == list(range(80))
    assert private.interfaces.missed == {"Dataset.toArrowBatchRdd"}


def test_without_an_interrupt_the_query_ends_and_tells(spark, rows, without) -> None:
    asked = without("StreamExecution.queryExecutionThread")
    (rows / "hang").touch()
    writer = hf.write_stream(read_files(spark, rows / "in"), Slow(rows), name="p", checkpoint_location=str(rows / "c"))
    query = writer.trigger(processingTime="1 hour").start()
    until(lambda: query.lastProgress is not None and not query.status["isTriggerActive"])
    (rows / "bad").touch()
    query.running.coordinator.deliveries[0].tasks.cancel()  # ends the attempt that hangs; the next one raises for good
    with pytest.raises(errors.RowError, match="nobody takes this row"):
        query.awaitTermination()
    assert asked


def test_without_hadoops_paths_a_scheme_is_asked_for(spark, rows, without) -> None:
    without("hadoop.fs.Path")
    with pytest.raises(ConfigError, match=f"file://{rows}/c"):
        deliver(spark, rows)
    assert deliver(spark, rows, f"file://{rows}/c") == list(range(80))


def test_without_the_plan_or_its_jar_a_check_finds_nothing(spark, rows, without) -> None:
    without("LogicalPlan.expressions")
    assert private.plan_parts(read_files(spark, rows / "in").selectExpr("rand()")) == []
    without("ClassLoader.loadClass")
    assert private.class_origin(spark.sparkContext, "org.apache.spark.SparkContext") is None


def test_without_an_interruptible_wait_it_is_a_plain_one(spark, without) -> None:
    without("java.lang.Thread.sleep")
    began = time.monotonic()
    private.pause(spark.sparkContext)
    assert time.monotonic() - began >= 0.05


def test_the_arrow_schema_is_the_one_that_tasks_see(spark, rows, without) -> None:
    """Also where Spark 4.0 and 4.1 answer in UTC, and where Spark does not tell at all."""
    frame = spark.read.schema("id long, word string, at timestamp").json(str(rows / "in")).selectExpr(*_split(NESTED))

    def schema(batches: Any) -> Any:
        for batch in batches:
            yield pa.RecordBatch.from_pylist([{"schema": batch.schema.serialize().to_pybytes()}])

    seen = pa.ipc.read_schema(pa.py_buffer(frame.mapInArrow(schema, "schema binary").first()[0]))
    assert [f.type for f in private.arrow_schema(frame)] == [f.type for f in seen]
    in_utc = pa.schema([pa.field("a", pa.list_(pa.timestamp("us", "UTC"))), pa.field("b", pa.timestamp("us"))])
    moved = private.in_zone(in_utc, "Asia/Tokyo")
    assert [str(field.type) for field in moved] == ["list<item: timestamp[us, tz=Asia/Tokyo]>", "timestamp[us]"]
    without("to_arrow_schema")
    assert [f.type for f in private.arrow_schema(frame)] == [f.type for f in seen]


def _split(text: str) -> list[str]:
    return re.split(r", (?![^()]*\))", text)


def test_what_is_missing_is_told_once_and_what_spark_says_goes_up(spark, caplog, monkeypatch) -> None:
    monkeypatch.setattr(private.interfaces, "missed", set())
    name = "hadoop.fs.Path"
    context = spark.sparkContext
    for missing in (
        lambda: context._jsc.noSuchMethod(),
        lambda: context._jvm.no.such.Thing(),
        lambda: context._nothing,
    ):
        assert private.interfaces.use(name, missing, lambda: "fallback") == "fallback"
    assert caplog.text.count("this Spark has no hadoop.fs.Path") == 1
    with pytest.raises(Exception, match="For input string"):
        private.interfaces.use(name, lambda: context._jvm.java.lang.Long.parseLong("x"), lambda: "fallback")


def test_without_an_arrow_schema_a_door_says_so(without) -> None:
    without("to_arrow_schema")
    with pytest.raises(ConfigError, match=r"use hf\.write_stream"):
        private.arrow_schema_of(StructType(), "UTC")


def test_a_frame_is_one_of_connect_by_its_class_alone(spark) -> None:
    """Nothing private tells; the real ones of Connect are in tests/crash/test_doors.py."""

    class Session:
        __module__ = "pyspark.sql.connect.session"

    class Own(Session):
        pass

    assert private.has_jvm(spark) and private.is_classic(spark.range(1))
    assert not private.has_jvm(Session()) and not private.is_classic(Own())


def test_what_spark_does_by_habit_is_relied_on_in_few_places() -> None:
    """See HABITS: who adds a place adds what is done where Spark does otherwise."""
    habits = re.compile(r"getLocalProperty|/ \"cmdline\"|self\._sent\b|ClosedByInterrupt|SPARK_JOB_CANCELLED")
    found = {
        (match[0], str(file.relative_to(SOURCE)))
        for file in SOURCE.rglob("*.py")
        for match in habits.finditer(file.read_text(encoding="utf-8"))
    }
    assert found == {
        ("getLocalProperty", "spark/partitions.py"),
        ("getLocalProperty", "doors/orders.py"),
        ('/ "cmdline"', "doors/jvm.py"),
        ("self._sent", "doors/source.py"),
        ("ClosedByInterrupt", "spark/failures.py"),
        ("SPARK_JOB_CANCELLED", "spark/failures.py"),
    }
    assert len(private.HABITS) == 5


def test_nothing_else_of_holdfast_touches_what_is_private() -> None:
    names = re.compile(
        r"\._(?:j[a-z]+|sc|sq|gateway|ensure_initialized|active_spark_context|instantiatedSession|activeSession)\b"
        r"|to_arrow_schema|NoOpSerializer|pyspark(?:\.| import )cloudpickle|FileSystemBasedCheckpointFileManager"
        r"|pyspark\.daemon import|\bvars\([^)]*writeStream|\.splitlines\(\)\[2:\]"
    )
    found = {
        f"{file.relative_to(SOURCE)}: {match[0]}"
        for file in SOURCE.rglob("*.py")
        for match in names.finditer(file.read_text(encoding="utf-8"))
        if file.parent.name != "private" and not match[0].startswith(("._json", "._judge", "._joined"))
    }
    assert found == {
        # Spark's daemon starts it, before there is anything else of holdfast.
        "spark/daemon.py: pyspark.daemon import",
    }
