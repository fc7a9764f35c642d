"""What cannot be had through `format("holdfast")` is refused with a sentence that names the way out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast as hf
from holdfast.checkpoint.ports import Run
from holdfast.core.passes import Passes
from holdfast.doors import default_files
from holdfast.doors import jvm as jvms
from holdfast.doors.handed import HandedBatch
from holdfast.doors.location import checkpoint_location
from holdfast.errors import ConfigError, EngineError, UnsafeStorageError
from holdfast.spark import private
from holdfast.spark.connect import check_server
from holdfast.spark.stream import HoldfastWriter, write_stream
from tests.unit.door_spark import SCHEMA, Spark

RUN = Run("door", "0" * 32, 0, "/tmp/cp/holdfast")
JVM = jvms.Jvm(20, "when it was")
CORE_SITE = "<configuration><property><name>{}</name><value>{}</value></property></configuration>"


@pytest.fixture
def batch() -> HandedBatch:
    """One whose tasks answer at once."""
    made = HandedBatch(4, RUN, Passes(), None, lambda: None)
    made.answers.set_result([])
    return made


@pytest.fixture
def spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Spark]:
    with closing(Spark(tmp_path, monkeypatch)) as made:
        yield made


@pytest.fixture
def java(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The words of Spark's Java process; nothing is set elsewhere."""
    words = ["/jre/bin/java"]
    monkeypatch.setattr(jvms, "_command", lambda pid: words)
    monkeypatch.setattr(jvms, "submitted", dict)
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("CLASSPATH", raising=False)
    return words


@pytest.mark.parametrize(
    ("ask", "what"),
    [
        (lambda b: b.write(RUN, [], 4, 0, only=[1]), "To produce lost rows again"),
        (lambda b: b.write(RUN, [], 4, 0, repair=1), "To produce lost rows again"),
        (lambda b: b.digests("kafka-out"), "To compare its rows with what sink 'kafka-out' has lost"),
    ],
)
def test_lost_rows_are_for_write_stream_or_resolve(batch, ask, what: str) -> None:
    with pytest.raises(EngineError) as refused:
        ask(batch)
    said = str(refused.value)
    assert said.startswith("checkpoint 4 is decided and an endpoint has dropped rows of it") and what in said
    assert "start the query with hf.write_stream, with the same name, checkpoint location and sinks" in said
    assert "`holdfast resolve`" in said
    assert not batch.order.done(), "no task was told to write"


def test_tasks_do_not_run_twice(batch) -> None:
    batch.write(RUN, [], 4, 0)
    with pytest.raises(EngineError, match=r"checkpoint 4 would have to run again, .* start the query again") as refused:
        batch.write(RUN, [], 4, 0)
    assert "Nothing is decided" in str(refused.value)


@pytest.mark.parametrize("place", ["command line", "defaults file"])
def test_speculation_is_refused_wherever_it_shows(java, monkeypatch, place: str) -> None:
    jvms.refuse_speculation(JVM)
    if place == "command line":
        java += ["--conf", "spark.speculation=TRUE"]
    else:
        monkeypatch.setattr(jvms, "submitted", lambda: {"spark.speculation": "true"})
    with pytest.raises(ConfigError, match=r"^spark\.speculation=true .*: set spark\.speculation=false"):
        jvms.refuse_speculation(JVM)


def test_a_location_where_spark_writes_no_offsets_is_refused_before_anything_is_claimed(spark, monkeypatch) -> None:
    monkeypatch.setattr(jvms, "driver_of", lambda worker: spark.jvm)
    with pytest.raises(EngineError, match=r"checkpoint/offsets names none") as refused:
        spark.source.streamWriter(SCHEMA, False)
    said = str(refused.value)
    assert "Give checkpointLocation with its scheme (file:///..., s3a://...)" in said and "hf.write_stream" in said
    assert not (spark.location / "holdfast").exists()


# -- where the default file system is not the machine's ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["fs.defaultFS", "fs.default.name"])
@pytest.mark.parametrize("place", ["setting", "class path", "environment"])
def test_a_bare_location_is_refused_where_spark_would_take_it_for_hdfs(
    java, monkeypatch, tmp_path, place: str, name: str
) -> None:
    (tmp_path / "core-site.xml").write_text(CORE_SITE.format(name, "hdfs://namenode:8020"))
    if place == "setting":
        java += ["--conf", f"spark.hadoop.{name}=hdfs://namenode:8020"]
    elif place == "class path":
        java += ["-cp", f"/spark/jars/*:{tmp_path}", "org.apache.spark.deploy.SparkSubmit"]
    else:
        monkeypatch.setenv("CLASSPATH", f"/spark/jars/*:{tmp_path}")
    with pytest.raises(ConfigError) as refused:
        default_files.refuse_elsewhere({"checkpointlocation": "/data/ck"}, JVM)
    said = str(refused.value)
    assert "checkpointLocation '/data/ck' has no scheme" in said and "is hdfs://namenode:8020 (so says " in said
    assert "s3a://bucket/..." in said and "file:///..." in said
    for named in ("file:/data/ck", "file:///data/ck", "s3a://bucket/ck", "hdfs:/data/ck"):
        default_files.refuse_elsewhere({"checkpointlocation": named}, JVM)  # each says by itself where it is


@pytest.mark.parametrize("text", ["", "<configuration/>", "no XML", CORE_SITE.format("fs.defaultFS", "file:///")])
def test_a_bare_location_is_one_of_the_machine_where_that_is_the_default(java, tmp_path, text: str) -> None:
    (tmp_path / "core-site.xml").write_text(text)
    java += ["-cp", str(tmp_path)]
    default_files.refuse_elsewhere({"checkpointlocation": "/data/ck"}, JVM)


def test_of_two_files_java_takes_the_first_and_a_setting_before_both(java, tmp_path) -> None:
    for host in ("one", "two"):
        (tmp_path / host).mkdir()
        (tmp_path / host / "core-site.xml").write_text(CORE_SITE.format("fs.defaultFS", f"hdfs://{host}"))
    java += ["-cp", f"{tmp_path}/one:{tmp_path}/two"]
    assert default_files.default_files(JVM) == ("hdfs://one", f"{tmp_path}/one/core-site.xml")
    java += ["--conf", "spark.hadoop.fs.defaultFS=file:///"]
    assert default_files.default_files(JVM) is None


def test_the_door_refuses_a_bare_location_before_its_process_starts(spark, monkeypatch) -> None:
    monkeypatch.setattr(jvms, "_command", lambda pid: ["java", "--conf", "spark.hadoop.fs.defaultFS=hdfs://namenode"])
    with pytest.raises(ConfigError, match=r"the default file system of this Spark is hdfs://namenode"):
        spark.plan(0)
    assert not spark.place.exists() and not (spark.location / "holdfast").exists()


@pytest.mark.parametrize("location", ["hdfs://namenode/ck", "hdfs:/ck"])
def test_the_door_refuses_hdfs(spark, location: str) -> None:
    assert checkpoint_location({"checkpointlocation": location}) == location
    spark.options["checkpointlocation"] = location
    with pytest.raises(UnsafeStorageError, match=r"do not reach hdfs:// as Spark's Java does.*s3a://bucket"):
        spark.plan(0)


def test_write_stream_refuses_a_bare_location_that_spark_takes_for_hdfs(monkeypatch) -> None:
    """As Spark itself resolves it, which private.qualified asks its Java for."""

    class Path:
        def __init__(self, text: str) -> None:
            self.text = text

        def toUri(self) -> Any:
            return SimpleNamespace(getScheme=lambda: None)

        def getFileSystem(self, configuration: str) -> Any:
            assert configuration == "Hadoop's"
            return SimpleNamespace(makeQualified=lambda path: SimpleNamespace(toString=lambda: f"hdfs://nn{path.text}"))

    fs = SimpleNamespace(fs=SimpleNamespace(Path=Path))
    jvm = SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=fs)))
    context: Any = SimpleNamespace(_jvm=jvm, _jsc=SimpleNamespace(hadoopConfiguration=lambda: "Hadoop's"))
    found = private.qualified(context, "/data/ck/")
    assert found == "hdfs://nn/data/ck"
    writer: Any = HoldfastWriter.__new__(HoldfastWriter)
    monkeypatch.setattr("holdfast.spark.stream.refuse_speculation", lambda spark: None)
    writer._df, writer._location, writer._sinks = SimpleNamespace(sparkSession=None), found, []
    with pytest.raises(UnsafeStorageError, match=r"^hdfs://nn/data/ck.* do not reach hdfs://"):
        writer.start()


# -- an older Spark ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["4.0.1", "3.5.6", "4.0.0-SNAPSHOT"])
def test_over_connect_an_older_server_is_refused_when_the_writer_is_made(monkeypatch, version: str) -> None:
    class Connect:
        """A frame without a JVM, as its class says."""

        __module__ = "pyspark.sql.connect.dataframe"
        isStreaming = True
        sparkSession = SimpleNamespace(version=version)

    monkeypatch.setattr("holdfast.spark.stream.refuse_speculation", lambda spark: None)
    with pytest.raises(ConfigError) as refused:
        write_stream.__wrapped__(Connect(), hf.SqliteSink("/tmp/o.db", "o"), name="door", checkpoint_location="/ck")
    said = str(refused.value)
    assert f"needs a server with Spark 4.1 or newer, and this one has {version}" in said
    assert "Use a newer server, or a classic SparkSession" in said


@pytest.mark.parametrize("version", ["4.1.0", "4.1.0.dev2", "4.2.0-SNAPSHOT", "5.0.0", "of somebody's own"])
def test_over_connect_a_newer_server_is_not(version: str) -> None:
    check_server(version)
