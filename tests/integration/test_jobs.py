"""Job files on a real Spark and real servers: every template runs, and a wrong one is told where (R1)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from pyspark.sql import SparkSession

from holdfast.pipeline.build import Builder
from holdfast.pipeline.document import JobError
from holdfast.pipeline.plan import describe
from holdfast.pipeline.problems import read_job
from holdfast.pipeline.runner import Runner
from holdfast.pipeline.templates import find
from tests.integration.helpers import ids, select
from tests.integration.test_kafka_sink import consume
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer, execute

pytestmark = pytest.mark.spark
NOW = "trigger={available_now: true}"


class Quiet:
    """Shows nothing; keeps what was said."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def started(self, query: object, writer: object) -> None: ...

    def look(self) -> None: ...

    def say(self, sentence: str) -> None:
        self.lines.append(sentence)

    def close(self) -> None: ...


def write(folder: Path, text: str) -> Path:
    (folder / "job.yaml").write_text(text)
    return folder / "job.yaml"


def run(job: Path, *settings: str) -> tuple[int, list[str]]:
    described, said = read_job(job, (NOW, *settings)), Quiet()
    return Runner(Builder(described), said, restart=described.job.restart).run(), said.lines


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    (tmp_path / "incoming").mkdir()
    return tmp_path


@pytest.fixture
def orders(kafka: KafkaBroker, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> str:
    """A topic with forty orders."""
    monkeypatch.setenv("KAFKA", kafka.bootstrap)
    name, producer = topic("orders"), Producer({"bootstrap.servers": kafka.bootstrap})
    for i in range(40):
        row = {"id": i, "amount": i / 2, "at": f"2026-01-0{1 + i % 2}T00:00:{i:02d}Z"}
        producer.produce(name, json.dumps(row).encode())
    assert producer.flush(30) == 0
    return f"source.kafka.topics=[{name}]"


@pytest.mark.contract("R1")
def test_files_to_sqlite_goes_on_where_it_stopped(spark: SparkSession, data: Path) -> None:
    incoming = data / "incoming"
    job = write(data, find("files-to-sqlite"))
    for first in (0, 10):
        lines = [json.dumps({"id": i, "amount": i / 2}) for i in range(first, first + 10)]
        (incoming / f"{first}.json").write_text("\n".join(lines))
        assert run(job) == (0, [])
    assert ids(data / "shop.db") == list(range(20))


def test_a_schema_that_was_inferred_is_kept(spark: SparkSession, data: Path) -> None:
    incoming = data / "incoming"
    job = write(data, re.sub(r"schema: .*\n", "\n", find("files-to-sqlite")))
    assert run(job)[1] != [] and "put a file there first" in run(job)[1][0]
    (incoming / "0.json").write_text('{"id": 1, "amount": 1.5}\n')
    assert run(job) == (0, [])
    (incoming / "1.json").write_text('{"id": "two", "amount": 2.5, "more": 1}\n')
    assert run(job) == (0, [])
    # A number stays one: what is none is null, and a column nobody knew at first is left out.
    assert select(data / "shop.db", "SELECT id, amount FROM orders ORDER BY amount") == [(1, 1.5), (None, 2.5)]


@pytest.mark.contract("R1")
def test_kafka_to_kafka(
    spark: SparkSession, kafka: KafkaBroker, topic: Callable[..., str], data: Path, orders: str
) -> None:
    out = topic("totals")
    assert run(write(data, find("kafka-to-kafka")), orders, f"sinks.0.kafka.topic={out}") == (0, [])
    found = {row["key"].decode(): json.loads(row["value"])["orders"] for row in consume(kafka, out)}
    assert found == {"2026-01-01 00:00:00": 20, "2026-01-02 00:00:00": 20}


def test_kafka_to_postgres(
    spark: SparkSession, postgres: PostgresServer, data: Path, orders: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_DSN", postgres.new_database())
    job = write(data, find("kafka-to-postgres"))
    assert run(job, orders) == (0, [])
    assert run(job, orders) == (0, [])
    assert execute(os.environ["SHOP_DSN"], "SELECT count(*), count(DISTINCT id) FROM orders") == [(40, 40)]


def test_kafka_to_files(spark: SparkSession, data: Path, orders: str) -> None:
    assert run(write(data, find("kafka-to-files")), orders) == (0, [])
    assert sorted(pq.read_table(data / "orders")["id"].to_pylist()) == list(range(40))
    assert (data / "orders" / "date=2026-01-01").is_dir()


OWN = """\
import pyarrow as pa
from pyspark.sql.functions import udf
import holdfast as hf

@udf("string")
def shout(text):
    return text.upper()

class Lines(hf.WriteAheadSink):
    def __init__(self, path):
        super().__init__(committer=hf.FileCheckpointCommitter(path + ".marks"))
        self.path = path

    def send_values(self, values, checkpoint_id, timestamp):
        with open(self.path, "a") as file:
            for batch in values:
                file.writelines(f"{row['word']}\\n" for row in batch.to_pylist())
        return True
"""


def test_own_functions_and_sinks_beside_the_job_file(spark: SparkSession, data: Path) -> None:
    (data / "my_own_words.py").write_text(OWN)
    (data / "in").mkdir()
    (data / "in" / "a.txt").write_text("one\ntwo\n")
    text = f"""\
name: words
checkpoint_location: {data}/checkpoint
functions: my_own_words
source: {{files: {{path: {data}/in, format: text}}}}
transform:
  - words: SELECT shout(value) AS word FROM source
sinks:
  - python: {{class: my_own_words.Lines, options: {{path: {data}/out.txt}}}}
"""
    assert run(write(data, text)) == (0, [])
    assert sorted((data / "out.txt").read_text().split()) == ["ONE", "TWO"]
    code, said = run(write(data, text.replace("{path: ", "{file: ").replace("files: {file: ", "files: {path: ")))
    assert code == 3
    assert "job.yaml:8:13: sinks.0.python: my_own_words.Lines does not take these options" in said[0]


def test_each_sink_has_its_own_rows_and_bad_ones_go_to_dead_letters(spark: SparkSession, data: Path) -> None:
    rows = [{"id": i, "amount": None if i == 7 else i} for i in range(10)]
    (data / "incoming" / "0.json").write_text("\n".join(map(json.dumps, rows)))
    text = f"""\
name: split
checkpoint_location: {data}/checkpoint
source: {{files: {{path: {data}/incoming, format: json, schema: "id long, amount double"}}}}
sinks:
  - sqlite: {{path: {data}/out.db, table: large}}
    where: amount > 4
    select: [id, amount * 2 AS twice]
  - sqlite: {{path: {data}/out.db, table: orders}}
    reject: amount IS NULL
dead_letters:
  sink: {{sqlite: {{path: {data}/out.db, table: bad}}}}
"""
    assert run(write(data, text)) == (0, [])
    assert sorted(select(data / "out.db", "SELECT id, twice FROM large")) == [
        (5, 10.0),
        (6, 12.0),
        (8, 16.0),
        (9, 18.0),
    ]
    assert ids(data / "out.db") == [0, 1, 2, 3, 4, 5, 6, 8, 9]
    assert select(data / "out.db", "SELECT count(*) FROM bad") == [(1,)]
    with pytest.raises(JobError, match=r"job.yaml:.*amuont"):
        Builder(read_job(write(data, text.replace("amount > 4", "amuont > 4")))).writer(spark)


def test_a_step_that_spark_refuses_is_told_with_its_line(spark: SparkSession, data: Path) -> None:
    text = find("files-to-sqlite").replace("SELECT id, amount", "SELECT id, amuont")
    with pytest.raises(JobError, match=r"job.yaml:13:5: transform.0: .*amuont"):
        Builder(read_job(write(data, text))).writer(spark)


def test_a_dry_run_shows_columns_and_guarantees_and_starts_nothing(spark: SparkSession, data: Path) -> None:
    described = read_job(write(data, find("files-to-sqlite")))
    found = describe(Builder(described).writer(spark))
    assert found["columns"] == {"id": "bigint", "amount": "double"}
    assert [sink["guarantee"].partition(":")[0] for sink in found["sinks"]] == [
        "Exactly-once into a table of an SQLite file"
    ]
    assert not (data / "checkpoints").exists()


@pytest.mark.contract("R1")
def test_sigterm_ends_a_real_run_after_its_checkpoint(data: Path) -> None:
    """The command itself, as a process: rows printed once over two runs, exit code 0, logs as JSON."""
    job = write(data, find("rate-to-stdout"))
    printed: list[int] = []
    for _ in range(2):
        command = [sys.executable, "-m", "holdfast.cli", "run", str(job), "--log-json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
            assert process.stdout is not None
            seen = 0
            for line in process.stdout:
                if line.startswith("{"):
                    printed.append(json.loads(line)["id"])
                    seen += 1
                    if seen == 3:
                        process.send_signal(signal.SIGTERM)
            deadline = time.monotonic() + 60
            while process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.1)
            assert process.returncode == 0
    assert len(printed) == len(set(printed))
    assert sorted(printed) == list(range(max(printed) + 1))
