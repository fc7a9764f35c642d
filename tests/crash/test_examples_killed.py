"""P9 and T8 end to end: the shipped Kafka examples, killed at every step, then audited."""

from __future__ import annotations

import json
import os
import shlex
import sqlite3
import subprocess
import sys
import uuid
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from holdfast.connectors.kafka.client.transactions import TransactionClient
from holdfast.testing import audit, faults
from tests import spark_conf
from tests.crash.harness import ROOT
from tests.crash.processes import end
from tests.integration.test_kafka_sink import consume
from tests.servers.kafka import KafkaBroker

#: In this order, one after another on the same pipeline; each run dies in its second checkpoint or in its recovery.
KILLS = [
    "task.write=kill@2",
    "decision=kill@2",
    "decision=kill-after@2",
    "recovery=kill-after",
    "commit.sink=kill@2",
    "commit.record=kill@2",
    "batch.return=kill@2",
    "offsets=kill@1",
]
ORDERS, MINUTES = 2000, 40
#: The example itself says nothing about these.
FAST = shlex.join([*(a for k, v in spark_conf.FAST.items() for a in ("--conf", f"{k}={v}")), "pyspark-shell"])


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(Path(tmp_path_factory.mktemp("kafka")))
    broker.start()
    yield broker
    broker.stop()


def make_topics(broker: KafkaBroker, *names: str) -> list[str]:
    made = [f"{name}-{uuid.uuid4().hex[:6]}" for name in names]
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    for future in admin.create_topics([NewTopic(name, 2, 1) for name in made]).values():
        future.result(60)
    return made


def produce(broker: KafkaBroker, topic: str) -> list[dict[str, object]]:
    """Orders over forty minutes, in order, and a last one so late that every other minute is over."""
    orders: list[dict[str, object]] = []
    for n in range(ORDERS):
        second = n * MINUTES * 60 // ORDERS
        at = f"2024-01-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}Z"
        orders.append({"id": n, "customer": ("ann", "bob", "eve")[n % 3], "amount": n % 7, "at": at})
    orders.append({"id": ORDERS, "customer": "zoe", "amount": 0, "at": "2024-01-01T10:00:00Z"})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for order in orders:
        producer.produce(topic, json.dumps(order), key=str(order["id"]), partition=int(str(order["id"])) % 2)
    assert producer.flush(30) == 0
    return orders


def run(example: str, folder: Path, arguments: list[str], fault: str = "") -> int:
    """One run of an example in a session of its own; nothing of it stays alive."""
    once = folder / "once"
    once.mkdir(exist_ok=True)
    for fired in once.iterdir():
        fired.unlink()
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYSPARK_SUBMIT_ARGS": FAST,
        faults.ONCE: str(once),
        faults.VARIABLE: fault,
    }
    command = [sys.executable, str(ROOT / "examples" / example), *arguments, "--once"]
    with (folder / "run.log").open("wb") as log:
        process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            code = process.wait(240)
        finally:
            end(process)
    if fault:
        assert code != 0 and list(once.iterdir()), f"{fault} did not kill the run\n{tail(folder)}"
    else:
        assert code == 0, tail(folder)
    return code


def tail(folder: Path) -> str:
    return (folder / "run.log").read_text(errors="replace")[-4000:]


def assert_nothing_open(broker: KafkaBroker) -> None:
    with TransactionClient({"bootstrap.servers": broker.bootstrap}) as client:
        assert client.ongoing("hf") == []


@pytest.mark.timeout(900)
def test_p9_window_totals_killed_at_every_step(kafka: KafkaBroker, tmp_path: Path) -> None:
    source, target = make_topics(kafka, "orders", "totals")
    orders = produce(kafka, source)
    arguments = ["--servers", kafka.bootstrap, "--source", source, "--target", target]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--rows", "100"]
    for kill in KILLS:
        run("window_totals.py", tmp_path, arguments, kill)
    run("window_totals.py", tmp_path, arguments)
    expected: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0])
    for order in orders[:-1]:
        total = expected[str(order["customer"]), str(order["at"])[11:16]]
        total[0] += 1
        total[1] += int(str(order["amount"]))
    found = [json.loads(row["value"]) for row in consume(kafka, target)]
    report = audit(list(expected), [(row["customer"], row["minute"][11:16]) for row in found])
    assert report.ok, report
    for row in found:
        assert [row["orders"], row["amount"]] == expected[row["customer"], row["minute"][11:16]], row
    assert_nothing_open(kafka)


@pytest.mark.timeout(600)
def test_t8_kafka_and_sqlite_with_one_decision_killed_between_the_two(kafka: KafkaBroker, tmp_path: Path) -> None:
    source, target = make_topics(kafka, "orders", "paid")
    orders = produce(kafka, source)
    database = tmp_path / "paid.db"
    arguments = ["--servers", kafka.bootstrap, "--source", source, "--target", target, "--database", str(database)]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--rows", "300"]
    # commit.sink is reached twice a checkpoint, by both sinks at once: the second of the two may be either.
    for kill in ("commit.sink=kill@4", "commit.record=kill@3"):
        run("kafka_and_sqlite.py", tmp_path, arguments, kill)
    run("kafka_and_sqlite.py", tmp_path, arguments)
    ids = [order["id"] for order in orders]
    out = [json.loads(row["value"])["id"] for row in consume(kafka, target)]
    with sqlite3.connect(database) as connection:
        stored = [json.loads(value)["id"] for (value,) in connection.execute("SELECT value FROM orders")]
    connection.close()
    assert audit(ids, out).ok and audit(ids, stored).ok, (audit(ids, out), audit(ids, stored))
    assert_nothing_open(kafka)
