"""Every job file of examples/jobs runs on real servers, is found good by the check, and delivers each row once."""

from __future__ import annotations

import json
import os
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.pipeline.build import Builder
from holdfast.pipeline.checks.examine import findings
from holdfast.pipeline.checks.registry import Level
from holdfast.pipeline.checks.situation import Situation
from holdfast.pipeline.problems import read_job
from holdfast.pipeline.runner import Runner
from holdfast.telemetry.names import METRICS
from tests.integration.helpers import ids, select
from tests.integration.test_jobs import NOW, Quiet
from tests.integration.test_kafka_sink import consume
from tests.servers.cassandra import CassandraServer
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer, execute
from tests.servers.receivers import Receiver, attributes

pytestmark = pytest.mark.spark
JOBS = Path(__file__).parents[2] / "examples" / "jobs"
ROWS = [
    {"id": i, "customer": f"c{i % 4}", "amount": float(i), "at": f"2026-01-0{1 + i % 2}T00:00:{i:02d}Z"}
    for i in range(20)
]


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOLDFAST_DATA", str(tmp_path))
    (tmp_path / "incoming").mkdir()
    (tmp_path / "incoming" / "0.json").write_text("\n".join(map(json.dumps, ROWS)))
    return tmp_path


def run(name: str) -> None:
    """Checked, run, checked again, run again: the second run finds nothing to do."""
    for _ in range(2):
        described, said = read_job(JOBS / f"{name}.yaml", (NOW,)), Quiet()
        builder = Builder(described)
        bad = [f for f in findings(Situation.of(builder.writer(builder.session()))) if f.level is Level.FATAL]
        assert bad == []
        assert (Runner(builder, said, restart=described.job.restart).run(), said.lines) == (0, [])


def test_there_is_one_for_each_sink() -> None:
    kinds = {item.kind for file in JOBS.glob("*.yaml") for item in read(file).sinks}
    assert kinds == {"kafka", "postgres", "files", "sqlite", "cassandra", "stdout", "python"}


def read(file: Path) -> object:
    os.environ.setdefault("SHOP_DSN", "postgresql://localhost/shop")
    return read_job(file).job


@pytest.mark.contract("R1", "R3")
def test_sqlite_its_metrics_lineage_and_traces(spark: SparkSession, data: Path) -> None:
    serving = hf.metrics(0)
    with Receiver() as receiver:
        watching = [hf.lineage(receiver.url), hf.traces(receiver.url)]
        try:
            run("sqlite")
            text = urllib.request.urlopen(serving.url, timeout=30).read().decode()
        finally:
            serving.close()
            for one in watching:
                one.close()
        events, spans = receiver.events(), [s for s in receiver.spans() if s.name == "holdfast.checkpoint"]
    # Two runs, the second with nothing to do.
    runs: dict[str, list[str]] = {}
    for event in events:
        runs.setdefault(event["run"]["runId"], []).append(event["eventType"])
    assert [(kinds[0], kinds[-1]) for kinds in runs.values()] == [("START", "COMPLETE")] * 2
    told = [e for e in events if e["eventType"] == "RUNNING"]
    assert {i["name"] for e in told for i in e["inputs"]} == {str(data / "incoming")}
    written = [o for e in told for o in e["outputs"]]
    assert {(o["namespace"], o["name"]) for o in written} == {("file", f"{data}/shop.db/orders")}
    assert sum(o["outputFacets"]["outputStatistics"]["rowCount"] for o in written) == len(ROWS)
    assert sum(attributes(span)["holdfast.rows"] for span in spans) == len(ROWS)
    assert all(attributes(span)["spark.run_id"] for span in spans)
    assert ids(data / "shop.db") == list(range(20))
    assert 'holdfast_health{pipeline="orders-sqlite"} 0.0' in text
    assert 'holdfast_rows_total{pipeline="orders-sqlite",sink="sqlite-orders"} 20.0' in text
    assert all(f"# HELP {metric.name} " in text for metric in METRICS)


@pytest.mark.contract("R1")
def test_files(spark: SparkSession, data: Path) -> None:
    run("files")
    assert sorted(pq.read_table(data / "orders")["id"].to_pylist()) == list(range(20))
    assert (data / "orders" / "date=2026-01-02").is_dir()


def test_stdout(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    run("stdout")
    printed = [json.loads(line) for line in capfd.readouterr().out.splitlines() if line.startswith("{")]
    assert sorted(row["id"] for row in printed) == list(range(10, 20))


def test_own_sink(spark: SparkSession, data: Path) -> None:
    run("own_sink")
    lines = sorted((data / "orders.txt").read_text().splitlines())
    assert lines == sorted(f"{row['id']} {row['customer'].upper()}" for row in ROWS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["kafka", "kafka_write_ahead"])
def test_kafka(
    spark: SparkSession, kafka: KafkaBroker, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("KAFKA", kafka.bootstrap)
    monkeypatch.setenv("TOPIC", topic("jobs"))
    run(name)
    found = consume(kafka, os.environ["TOPIC"])
    assert sorted(json.loads(row["value"])["id"] for row in found) == list(range(20))


def test_postgres(spark: SparkSession, postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DSN", postgres.new_database())
    run("postgres")
    totals = execute(os.environ["SHOP_DSN"], "SELECT customer, orders, amount FROM totals ORDER BY 1")
    assert totals == [(f"c{n}", 5, float(sum(range(n, 20, 4)))) for n in range(4)]


def test_cassandra(spark: SparkSession, cassandra: CassandraServer, monkeypatch: pytest.MonkeyPatch) -> None:
    keyspace = "example_jobs"
    copies = "{'class': 'SimpleStrategy', 'replication_factor': 1}"
    cassandra.execute(f"CREATE KEYSPACE IF NOT EXISTS {keyspace} WITH replication = {copies}")
    cassandra.execute(
        f"CREATE TABLE {keyspace}.orders (id bigint PRIMARY KEY, customer text, amount double, at timestamp)"
    )
    monkeypatch.setenv("CASSANDRA_PORT", str(cassandra.port))
    monkeypatch.setenv("KEYSPACE", keyspace)
    run("cassandra")
    assert sorted(row["id"] for row in cassandra.execute(f"SELECT id FROM {keyspace}.orders")) == list(range(20))


@pytest.mark.contract("R1")
def test_many_sinks(
    spark: SparkSession,
    kafka: KafkaBroker,
    topic: Callable[..., str],
    postgres: PostgresServer,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bad = {"id": 99, "customer": "c0", "amount": None, "at": "2026-01-03T00:00:00Z"}
    (data / "incoming" / "1.json").write_text(json.dumps(bad))
    for name, value in (("KAFKA", kafka.bootstrap), ("TOPIC", topic("jobs")), ("SHOP_DSN", postgres.new_database())):
        monkeypatch.setenv(name, value)
    run("many_sinks")
    messages = [json.loads(row["value"])["id"] for row in consume(kafka, os.environ["TOPIC"])]
    assert sorted(messages) == list(range(10, 20))
    assert execute(os.environ["SHOP_DSN"], "SELECT count(*), sum(id) FROM orders") == [(20, 190)]
    assert sorted(pq.read_table(data / "orders")["id"].to_pylist()) == [*range(20), 99]
    assert select(data / "shop.db", "SELECT count(*) FROM bad_orders") == [(1,)]
    last = select(data / "shop.db", "SELECT last_order FROM customers ORDER BY customer")
    assert last == [(99,), (17,), (18,), (19,)]
