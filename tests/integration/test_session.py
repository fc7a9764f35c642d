"""hf.session: the workers run the Python that runs the driver."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import errors
from holdfast.spark import checkpoint_files, class_archive, private
from holdfast.spark.session import _daemon, _sockets

pytestmark = pytest.mark.spark


def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    """Plain PySpark starts `python3` from PATH, which in a virtual environment is another one."""
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect() == [sys.executable]


def test_a_running_session_is_returned(spark: SparkSession) -> None:
    assert hf.session("another name") is spark


def test_a_running_session_is_returned_and_not_the_copy_that_worked_last(spark: SparkSession) -> None:
    """Spark works with a copy in each micro-batch, and PySpark calls the one that made the last DataFrame active."""
    copy = spark.newSession()
    copy.createDataFrame([(1,)], "id long")
    assert SparkSession.getActiveSession() is copy
    assert hf.session("another name") is spark


def test_a_running_session_with_another_python_is_refused(spark: SparkSession, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/other/bin/python")
    with pytest.raises(errors.ConfigError, match=r"not /opt/other/bin/python.*stop it first"):
        hf.session("x")


def test_java_options_of_the_user_are_added_to_the_defaults(spark: SparkSession) -> None:
    given = spark.conf.get("spark.driver.extraJavaOptions")
    assert given.startswith("-Darrow.enable_unsafe_memory_access=true ") and given.endswith("-Xshare:auto")
    java = spark.sparkContext._jvm.java.lang.System
    assert java.getProperty("arrow.enable_unsafe_memory_access") == "true"


def test_tasks_of_both_kinds_run_in_the_same_workers(spark: SparkSession) -> None:
    """Each worker has its imports to do; Spark keeps other ones for SQL if their environment differs."""
    plain = set(spark.sparkContext.parallelize(range(8), 8).map(lambda _: os.getpid()).collect())

    def pids(batches):
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"pid": [os.getpid()]})

    rows = spark.range(8, numPartitions=8).mapInArrow(pids, "pid long").collect()
    assert {row.pid for row in rows} & plain


@pytest.mark.parametrize(("folder", "used"), [("/tmp", True), ("/" + "x" * 60, True), ("/" + "x" * 61, False)])
def test_sockets_are_of_the_file_system_unless_their_names_get_too_long(folder, used) -> None:
    found = _sockets(folder)
    assert found["spark.python.unix.domain.socket.enabled"] == str(used).lower()
    assert found.get("spark.python.unix.domain.socket.dir") == (folder if used else None)


def test_a_session_needs_a_name() -> None:
    with pytest.raises(errors.ConfigError, match="app_name"):
        hf.session("")


SCRIPT = """
import holdfast as hf
spark = hf.session("submitted", conf={"spark.app.note": "mine"})
print("ANSWER", spark.sparkContext.master, spark.conf.get("spark.sql.shuffle.partitions"),
      spark.conf.get("spark.ui.enabled"), spark.conf.get("spark.app.note"))
"""


@pytest.mark.parametrize("way", ["submit", "arguments", "file"])
def test_what_was_submitted_wins_over_the_defaults(tmp_path, way) -> None:
    """Under spark-submit it ran `local[*]` with two shuffle partitions, whatever was submitted."""
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    asked = {"spark.master": "local[1]", "spark.sql.shuffle.partitions": "7"}
    words = ["--master", "local[1]", "--conf", "spark.sql.shuffle.partitions=7"]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK_")}
    if way == "submit":
        command = [str(Path(sys.executable).with_name("spark-submit")), *words, str(script)]
        environment["PYSPARK_PYTHON"] = sys.executable
    else:
        command = [sys.executable, str(script)]
        if way == "arguments":
            environment["PYSPARK_SUBMIT_ARGS"] = f"{shlex.join(words)} pyspark-shell"
        else:
            (tmp_path / "spark-defaults.conf").write_text("# mine\n" + "".join(f"{k} {v}\n" for k, v in asked.items()))
            environment["SPARK_CONF_DIR"] = str(tmp_path)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert "ANSWER local[1] 7 false mine" in done.stdout, done.stderr[-2000:]


def test_what_tasks_need_is_imported_before_workers_are_forked(spark: SparkSession) -> None:
    """A process with threads must not fork, and imports start some."""

    def look(_: int) -> tuple[str, int, bool]:
        parent = Path(f"/proc/{os.getppid()}")
        return (parent / "cmdline").read_text(), len(list((parent / "task").iterdir())), "numpy" in sys.modules

    [(command, threads, loaded)] = spark.sparkContext.parallelize([0], 1).map(look).collect()
    assert "holdfast.spark.daemon" in command and threads == 1 and loaded


def test_java_is_told_of_the_archive_of_classes_where_there_is_one(spark: SparkSession) -> None:
    arguments = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    archive = class_archive.location()
    assert archive is not None
    assert (f"-XX:SharedArchiveFile={archive}" in list(arguments)) == archive.exists()


def test_a_python_that_does_not_find_holdfast_by_itself_gets_sparks_own_daemon(monkeypatch) -> None:
    assert _daemon() == {"spark.python.daemon.module": "holdfast.spark.daemon"}
    monkeypatch.setattr(sys, "executable", "/bin/false")
    assert _daemon() == {}


class TestSparksOwnCheckpointFiles:
    def test_on_a_local_disk_they_are_written_the_quick_way(self, spark: SparkSession) -> None:
        found = checkpoint_files._class(spark, "file:/data/checkpoints")
        assert found is not None and found.endswith("FileSystemBasedCheckpointFileManager")

    @pytest.mark.parametrize("location", ["s3a://bucket/c", "hdfs://name/c"])
    def test_elsewhere_spark_chooses(self, spark: SparkSession, location: str) -> None:
        assert checkpoint_files._class(spark, location) is None

    def test_what_the_user_has_set_stays(self, spark: SparkSession) -> None:
        spark.conf.set(checkpoint_files.SETTING, "my.Manager")
        try:
            with checkpoint_files.quick_files(spark, "file:/data"):
                assert spark.conf.get(checkpoint_files.SETTING) == "my.Manager"
            assert spark.conf.get(checkpoint_files.SETTING) == "my.Manager"
        finally:
            spark.conf.unset(checkpoint_files.SETTING)

    def test_a_session_of_somebody_else_is_left_as_it_is(self, spark: SparkSession, monkeypatch) -> None:
        monkeypatch.setattr(checkpoint_files, "OURS", "spark.somebody.else")
        assert checkpoint_files._class(spark, "file:/data") is None

    def test_the_choice_is_for_this_query_only(self, spark: SparkSession, tmp_path, monkeypatch) -> None:
        """Spark is told while it starts the query: it complains of a class that is none of its kind."""
        monkeypatch.setattr(private.java, "_FILE_MANAGERS", ("org.apache.spark.SparkContext",))
        rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 1).load()
        writer = hf.write_stream(rows, hf.StdoutSink(), name="quick", checkpoint_location=tmp_path / "c")
        with pytest.raises(Exception, match=r"org\.apache\.spark\.SparkContext"):
            writer.start()
        assert spark.conf.get(checkpoint_files.SETTING, None) is None
