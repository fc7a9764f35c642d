"""Each finding of `holdfast check` that needs no server but Spark, local files and SQLite, provoked (R2)."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.storage import LocalStorage
from holdfast.cli.app import app
from holdfast.cli.run import refuse
from holdfast.errors import RefusedError, RowError
from holdfast.pipeline.checks import log
from holdfast.pipeline.checks.examine import CHECKS, examine, findings
from holdfast.pipeline.checks.registry import Level
from holdfast.pipeline.checks.situation import Situation
from holdfast.pipeline.checks.spark import judge_connector, judge_version
from holdfast.spark.private import class_origin
from holdfast.testing.local import LocalBatch, LocalQuery
from tests.integration.checking import SCHEMA, deliver, found, one, situation
from tests.integration.helpers import add_file, ids, read_files

OK, WARNING, FATAL = Level.OK, Level.WARNING, Level.FATAL


def sqlite(folder: Path, **options: Any) -> hf.SqliteSink:
    return hf.SqliteSink(folder / "out.db", "orders", **options)


def planned(spark: SparkSession, folder: Path, sink: Any, sql: str = "SELECT id, word FROM source") -> Situation:
    """A query that Spark has planned."""
    if not (folder / "in").exists():
        add_file(folder / "in", 0, range(5))
    read_files(spark, folder / "in").createOrReplaceTempView("source")
    return Situation.of(written(spark.sql(sql), folder, sink))


def written(frame: Any, folder: Path, sink: Any) -> Any:
    return hf.write_stream(frame, sink, name="orders", checkpoint_location=folder / "checkpoint")


@pytest.mark.contract("R2")
def test_a_good_job_has_nothing_to_mend_and_nothing_is_left_behind(tmp_path: Path) -> None:
    home = Path("/var/tmp/holdfast-checks") / tmp_path.name  # not a folder that a restart empties
    sinks = (sqlite(home / "data"), hf.FileSink(str(home / "files")))
    for only in ("log-room", "log-lasting", "log-store", "log-same", "files", "sqlite"):
        assert {f.level for f in findings(situation(home / "checkpoint", *sinks), only=only)} == {OK}
    assert not home.parent.exists()


@pytest.mark.spark
class TestTheCommand:
    JOB = """\
name: orders
checkpoint_location: {folder}/checkpoint
source: {{files: {{path: {folder}/in, format: json, schema: "id long, word string"}}}}
sinks:
  - sqlite: {{path: {folder}/out.db, table: orders, mode: upsert, key: [id]}}
"""

    def run(self, folder: Path, *arguments: str) -> tuple[int, dict[str, str]]:
        (folder / "job.yaml").write_text(self.JOB.format(folder=folder))
        done = CliRunner().invoke(app, ["check", str(folder / "job.yaml"), "--json", *arguments])
        return done.exit_code, {f["check"]: f["level"] for f in json.loads(done.stdout)["findings"]}

    @pytest.mark.contract("R2")
    def test_levels_and_exit_codes(self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        add_file(tmp_path / "in", 0, range(5))
        code, levels = self.run(tmp_path)
        assert (code, levels["log-lasting"], levels["sqlite-table"]) == (1, "warning", "ok")
        monkeypatch.setattr(log, "lasting", lambda situation: ())
        with sqlite3.connect(tmp_path / "out.db") as connection:
            connection.execute("CREATE TABLE orders (id, word)")
        code, levels = self.run(tmp_path, "--quiet")
        assert (code, levels["sqlite-upsert-index"]) == (2, "fatal")
        assert "ok" not in levels.values()
        assert CliRunner().invoke(app, ["check", str(tmp_path / "none.yaml")]).exit_code == 3

    def test_a_table_for_people_has_level_remedy_and_the_page(self, spark: SparkSession, tmp_path: Path) -> None:
        add_file(tmp_path / "in", 0, range(5))
        (tmp_path / "job.yaml").write_text(self.JOB.format(folder=tmp_path))
        shown = CliRunner().invoke(app, ["check", str(tmp_path / "job.yaml")]).stdout
        assert "log-lasting" in shown and "docs/checks.md" in shown and "sqlite-orders" in shown

    def test_a_job_that_cannot_be_built_is_a_finding(self, spark: SparkSession, tmp_path: Path) -> None:
        add_file(tmp_path / "in", 0, range(5))
        (tmp_path / "job.py").write_text("def pipeline(spark):\n    raise KeyError('secret sauce')\n")
        done = CliRunner().invoke(app, ["check", str(tmp_path / "job.py"), "--json"])
        (job,) = [f for f in json.loads(done.stdout)["findings"] if f["check"] == "job"]
        assert done.exit_code == 2 and job["level"] == "fatal" and "KeyError" in job["text"]

    @pytest.mark.contract("R2")
    def test_run_refuses_what_is_fatal_and_tells_warnings(self, spark: SparkSession, tmp_path: Path) -> None:
        with sqlite3.connect(tmp_path / "out.db") as connection:
            connection.execute("CREATE TABLE orders (id)")
        add_file(tmp_path / "in", 0, range(5))
        rows = read_files(spark, tmp_path / "in").select("id", "word")
        writer, said = written(rows, tmp_path, sqlite(tmp_path)), list[str]()
        with pytest.raises(RefusedError, match=r"sqlite-table.*no column word.*ALTER TABLE"):
            refuse(writer, say=said.append)
        assert any(line.startswith("warning: log-lasting") for line in said)
        with sqlite3.connect(tmp_path / "out.db") as connection:
            connection.execute("ALTER TABLE orders ADD COLUMN word")
        refuse(writer, say=said.append)
        job = self.JOB.format(folder=tmp_path).replace("mode: upsert, key: [id]", "mode: ledger")
        (tmp_path / "job.yaml").write_text(job.replace("word string", "word string, more string"))
        arguments = [str(tmp_path / "job.yaml"), "--set", "trigger.available_now=true"]
        assert CliRunner().invoke(app, ["run", *arguments]).exit_code == 3
        assert ids(tmp_path / "out.db") == []
        (tmp_path / "job.yaml").write_text(job)
        assert CliRunner().invoke(app, ["run", *arguments]).exit_code == 0
        assert ids(tmp_path / "out.db") == list(range(5))


@pytest.mark.spark
class TestThePlan:
    KAFKA = hf.KafkaSink("127.0.0.1:1", "t")  # never asked: these checks look at the plan only

    @pytest.mark.parametrize("sql", ["rand()", "uuid()", "now()", "shuffle(array(id, 1, 2, 3))"])
    def test_plan_random(self, spark: SparkSession, tmp_path: Path, sql: str) -> None:
        about = planned(spark, tmp_path, self.KAFKA, f"SELECT string({sql}) AS value FROM source")
        one(about, "plan-random", WARNING, sql[:4], "kafka-t")

    def test_nobody_minds_where_no_replay_must_be_equal(self, spark: SparkSession, tmp_path: Path) -> None:
        one(planned(spark, tmp_path, sqlite(tmp_path), "SELECT uuid() AS value FROM source"), "plan-random", OK)
        counted = "SELECT round(r) AS word, count(*) AS n FROM (SELECT rand() AS r FROM source) GROUP BY 1"
        about = planned(spark, tmp_path, sqlite(tmp_path), counted)
        one(about, "plan-random", WARNING, "the state of Aggregate")

    def test_the_time_of_a_batch_is_the_same_when_it_is_run_again(self, spark: SparkSession, tmp_path: Path) -> None:
        """Spark keeps it in its checkpoint: the rows have it to the millisecond."""
        sql = "SELECT unix_millis(current_timestamp()) AS id, string(current_date()) AS word FROM source"
        one(planned(spark, tmp_path, self.KAFKA, sql), "plan-random", OK)
        written(spark.sql(sql), tmp_path, sqlite(tmp_path)).trigger(availableNow=True).start().awaitTermination()
        offsets = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()
        assert set(ids(tmp_path / "out.db")) == {json.loads(offsets[1])["batchTimestampMs"]}

    def test_plan_functions(self, spark: SparkSession, tmp_path: Path) -> None:
        spark.udf.register("dice", udf(lambda x: str(x), "string").asNondeterministic())
        spark.udf.register("fair", udf(lambda x: str(x), "string"))
        about = planned(spark, tmp_path, self.KAFKA, "SELECT dice(id) AS key, fair(id) AS value FROM source")
        said = one(about, "plan-functions", WARNING, "dice")
        assert "fair" not in said.text

    def test_plan_limit(self, spark: SparkSession, tmp_path: Path) -> None:
        about = planned(spark, tmp_path, sqlite(tmp_path), "SELECT id, word FROM source LIMIT 3")
        one(about, "plan-limit", WARNING, "LIMIT without ORDER BY")


@pytest.mark.spark
class TestSpark:
    def test_spark_speculation(self, spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
        conf = spark.sparkContext.getConf().set("spark.speculation", "true")
        monkeypatch.setattr(type(spark.sparkContext), "getConf", lambda self: conf)
        (finding,) = examine(lambda: spark, lambda s: pytest.fail("nothing can be built with it"))
        assert (finding.check, finding.level) == ("spark-speculation", FATAL)

    def test_spark_version(self, spark: SparkSession, tmp_path: Path) -> None:
        assert judge_version("3.5.1").level is WARNING  # type: ignore[union-attr]
        assert judge_version("5.0.0-preview").level is WARNING  # type: ignore[union-attr]
        one(planned(spark, tmp_path, sqlite(tmp_path)), "spark-version", OK)

    def test_spark_kafka_connector(self, spark: SparkSession) -> None:
        assert "spark-kafka-connector" in CHECKS
        jar = class_origin(spark.sparkContext, "org.apache.spark.sql.kafka010.KafkaSourceProvider")
        assert jar is not None and judge_connector(jar, spark.version) is None
        assert judge_connector(jar, "4.9.0").level is FATAL  # type: ignore[union-attr]
        patch = spark.version.rpartition(".")[0] + ".99"
        assert judge_connector(jar, patch).level is WARNING  # type: ignore[union-attr]
        assert class_origin(spark.sparkContext, "no.such.Class") is None

    def test_spark_packages(self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """What executors lack is seen on real ones in tests/cluster."""
        about = planned(spark, tmp_path, sqlite(tmp_path))
        one(about, "spark-packages", OK)
        monkeypatch.setattr(spark.sparkContext, "master", "spark://elsewhere:7077")
        one(about, "spark-packages", OK)
        monkeypatch.setattr("holdfast.spark.packages.ALWAYS", ("no_such_module",))
        one(about, "spark-packages", FATAL, "lack the module 'no_such_module'", "--py-files")

    def test_log_shared(self, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The proof itself is tested with executors of their own in test_shared.py."""
        about = planned(spark, tmp_path, sqlite(tmp_path))
        one(about, "log-shared", OK)
        monkeypatch.setattr(type(spark.sparkContext), "master", "spark://elsewhere:7077", raising=False)
        monkeypatch.setattr(spark.sparkContext, "master", "spark://elsewhere:7077")
        monkeypatch.setattr("holdfast.checkpoint.shared._there", lambda *_: False)
        one(about, "log-shared", FATAL, "not shared by driver and executors", "object store")
        assert not (tmp_path / "checkpoint").exists()


def log_only(about: Situation, check: str, level: Level, *words: str) -> None:
    """One of the checks of the log that need no Spark."""
    (finding,) = [f for f in findings(about, only=check) if f.check == check]
    assert finding.level is level, finding
    assert all(word in finding.text + finding.remedy for word in words), finding


class TestTheLog:
    def test_log_store_that_overwrites(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def overwrite(self: LocalStorage, name: str, data: bytes) -> bool:
            self.replace(name, data)
            return True

        monkeypatch.setattr(LocalStorage, "create", overwrite)
        about = situation(tmp_path / "checkpoint", hf.StdoutSink())
        log_only(about, "log-store", FATAL, "create only if absent", "object store")
        assert not (tmp_path / "checkpoint").exists()

    def test_log_store_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        log_only(situation(tmp_path / "file" / "checkpoint", hf.StdoutSink()), "log-store", FATAL, "file")

    def test_log_lasting(self, tmp_path: Path) -> None:
        log_only(situation(tmp_path / "checkpoint", hf.StdoutSink()), "log-lasting", WARNING, "temporary")

    def test_log_room(self, tmp_path: Path, small_disk: Path) -> None:
        log_only(situation(small_disk / "checkpoint", hf.StdoutSink()), "log-room", FATAL, "MB left", "larger disk")

    def test_log_same(self, tmp_path: Path) -> None:
        deliver(tmp_path, sqlite(tmp_path))
        (finding,) = findings(situation(tmp_path, sqlite(tmp_path), name="other"))
        assert finding.check == "log-same" and finding.level is FATAL
        assert "belongs to pipeline 'orders'" in finding.text
        # There is nothing of Spark's beside it, as after an rm of its folders.
        log_only(situation(tmp_path, sqlite(tmp_path)), "log-same", FATAL, "Spark's part was deleted")
        for folder in ("offsets", "commits"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "0").touch()
        log_only(situation(tmp_path, sqlite(tmp_path)), "log-same", OK)

    def test_log_sinks_records_driver_and_backlog(self, tmp_path: Path) -> None:
        """A driver that lives, a sink that is owed rows, then a record that is damaged."""
        run = LocalQuery(str(tmp_path), "orders", SCHEMA).start([Away(tmp_path)])
        row = pa.RecordBatch.from_pylist([{"id": 1, "word": "one"}], schema=SCHEMA)
        run.run(0, LocalBatch([[row]]))
        about = situation(tmp_path, Away(tmp_path))
        log_only(about, "log-driver", WARNING, f"process {os.getpid()}")
        log_only(about, "log-backlog", WARNING, "max_pending=1")
        log_only(about, "log-sinks", OK)
        log_only(situation(tmp_path, sqlite(tmp_path)), "log-sinks", FATAL, "'Away'", "catch up")
        log_only(about, "log-records", OK)
        run.close()
        (record,) = [
            p for p in (tmp_path / "holdfast" / "decisions").rglob("*.json") if b'"decision"' in p.read_bytes()
        ]
        record.write_bytes(b"{}")
        log_only(situation(tmp_path, Away(tmp_path)), "log-records", FATAL, record.name)

    def test_log_stuck(self, tmp_path: Path) -> None:
        run = LocalQuery(str(tmp_path), "orders", SCHEMA).start([Odd(tmp_path)])
        row = pa.RecordBatch.from_pylist([{"id": 1, "word": "one"}], schema=SCHEMA)
        with pytest.raises(RowError, match="no room"):
            run.run(0, LocalBatch([[row]]))
        run.close()
        log_only(situation(tmp_path, Odd(tmp_path)), "log-stuck", WARNING, "checkpoint 0", "holdfast resolve")


class Away(hf.WriteAheadSink):
    """Takes nothing."""

    def __init__(self, folder: Path) -> None:
        super().__init__(committer=hf.FileCheckpointCommitter(folder / "marks"), max_pending=1)

    def send_values(self, values: Any, checkpoint_id: int, timestamp: int) -> bool:
        return False


class Odd(Away):
    """Finds something after the decision that no trying mends."""

    def send_values(self, values: Any, checkpoint_id: int, timestamp: int) -> bool:
        raise RowError("no room")


class TestFilesAndSqlite:
    def test_files_folder(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        one(situation(tmp_path / "c", hf.FileSink(str(tmp_path / "file" / "out"))), "files-folder", FATAL, "file")

    def test_files_return(self, tmp_path: Path) -> None:
        for url in ("gs://bucket/out", "abfss://box@acme.dfs.core.windows.net/{word}"):
            said = CHECKS["files-return"].function
            assert said is not None
            (problem,) = said(situation(tmp_path / "c", hf.FileSink(url)), hf.FileSink(url))
            assert problem.level is WARNING and f"files in {url} are shown by a copy" in problem.text
        one(situation(tmp_path / "c", hf.FileSink(str(tmp_path / "out"))), "files-return", OK)

    def test_files_columns(self, tmp_path: Path) -> None:
        sink = hf.FileSink(str(tmp_path / "out"), bucket_by=["country"])
        one(situation(tmp_path / "c", sink), "files-columns", FATAL, "country")
        deliver(tmp_path / "c", hf.FileSink(str(tmp_path / "out")))
        changed = pa.schema([("id", pa.string()), ("word", pa.string())])
        said = found(situation(tmp_path / "c", hf.FileSink(str(tmp_path / "out")), schema=changed), "files-columns")
        assert any(f.level is FATAL and "'id'" in f.text for f in said)

    @pytest.mark.contract("R2")
    def test_ledgers_that_are_foreign_or_behind(self, tmp_path: Path) -> None:
        def about(location: str) -> Situation:
            return situation(tmp_path / location, sqlite(tmp_path), hf.FileSink(str(tmp_path / "files")))

        deliver(tmp_path / "first", sqlite(tmp_path), hf.FileSink(str(tmp_path / "files")))
        for check in ("sqlite-ledger", "files-ledger"):
            one(about("first"), check, OK)
            one(about("second"), check, FATAL, "another checkpoint location", "--take-over")
        (tmp_path / "out.db").unlink()
        shutil.rmtree(tmp_path / "files")
        for check in ("sqlite-ledger", "files-ledger"):
            one(about("first"), check, FATAL, "restored", "--accept-restored")
        assert not (tmp_path / "out.db").exists() and not (tmp_path / "files").exists()

    @pytest.mark.contract("R2")
    def test_a_ledger_that_is_ahead(self, tmp_path: Path) -> None:
        query = LocalQuery(str(tmp_path / "c"), "orders", SCHEMA)
        run = query.start([sqlite(tmp_path)])
        row = pa.RecordBatch.from_pylist([{"id": 1, "word": "one"}], schema=SCHEMA)
        run.run(0, LocalBatch([[row]]))
        shutil.copytree(tmp_path / "c", tmp_path / "copy")
        run.run(1, LocalBatch([[row]]))
        assert run.coordinator.drain(60.0)
        run.close()
        one(situation(tmp_path / "copy", sqlite(tmp_path)), "sqlite-ledger", FATAL, "it is an old copy")

    def test_sqlite_file(self, tmp_path: Path) -> None:
        (tmp_path / "out.db").write_bytes(b"this is no database of SQLite's, and it is longer than its header" * 20)
        one(situation(tmp_path / "c", sqlite(tmp_path)), "sqlite-file", FATAL, "not an SQLite database")

    def test_sqlite_table_and_upsert_index(self, tmp_path: Path) -> None:
        with sqlite3.connect(tmp_path / "out.db") as connection:
            connection.execute("CREATE TABLE orders (id)")
        one(situation(tmp_path / "c", sqlite(tmp_path)), "sqlite-table", FATAL, "no column word")
        with sqlite3.connect(tmp_path / "out.db") as connection:
            connection.execute("ALTER TABLE orders ADD COLUMN word")
        upsert = situation(tmp_path / "c", sqlite(tmp_path, mode="upsert", key=["id"]))
        one(upsert, "sqlite-upsert-index", FATAL, "unique index on (id)")
        with sqlite3.connect(tmp_path / "out.db") as connection:
            tables = connection.execute("SELECT name FROM sqlite_master").fetchall()
        assert tables == [("orders",)]  # what was tried was taken back


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 400 kB; only root can mount one."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def test_every_check_has_a_page_and_a_test() -> None:
    root = Path(__file__).parents[2]
    page = (root / "docs" / "checks.md").read_text()
    tests = "".join(file.read_text() for file in sorted((root / "tests" / "integration").glob("test_checks*.py")))
    for name, entry in CHECKS.items():
        assert f"\n### {name}\n" in page, f"{name} has no page"
        assert f'"{name}"' in tests, f"{name} has no test"
        assert entry.good and entry.remedy
