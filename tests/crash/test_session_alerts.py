"""S3: keyed state with timers of both kinds, killed in the middle: each timer fires once, each alert arrives once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Producer

from holdfast.testing import audit, faults
from tests.crash.harness import ROOT
from tests.crash.processes import end, wait_for
from tests.crash.test_examples_killed import FAST, make_topics, tail
from tests.integration.test_kafka_sink import consume
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer, execute

USERS, PAGES = 8, ("/home", "/cart", "/home")


@pytest.fixture
def kafka(tmp_path: Path) -> Iterator[KafkaBroker]:
    broker = KafkaBroker(tmp_path / "kafka")
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def dsn() -> Iterator[str]:
    server = PostgresServer(fsync="off")
    server.start()
    yield server.new_database()
    server.close()


def produce(broker: KafkaBroker, topic: str) -> list[tuple[str, str]]:
    """Two sessions of each user, in order, and a click so late that all of them are over; (user, end) of each."""
    expected, clicks = [], []
    for session in (0, 1):
        for user in range(USERS):
            for n, page in enumerate(PAGES):
                at = f"2024-01-01T00:{session * 5:02d}:{user * 3 + n:02d}Z"
                clicks.append({"user": f"u{user}", "page": page, "at": at})
            expected.append((f"u{user}", f"00:{session * 5:02d}:{user * 3 + len(PAGES) - 1:02d}"))
    clicks.append({"user": "zoe", "page": "/late", "at": "2024-01-01T10:00:00Z"})
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for click in clicks:
        producer.produce(topic, json.dumps(click), partition=0)
    assert producer.flush(30) == 0
    return expected


def start(folder: Path, arguments: list[str], fault: str = "") -> subprocess.Popen[bytes]:
    (folder / "once").mkdir(exist_ok=True)
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT / "src"),
        "PYSPARK_SUBMIT_ARGS": FAST,
        faults.ONCE: str(folder / "once"),
        faults.VARIABLE: fault,
    }
    command = [sys.executable, str(ROOT / "examples" / "session_alerts.py"), *arguments]
    with (folder / "run.log").open("wb") as log:
        return subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)


def stored(dsn: str) -> list[tuple[object, ...]]:
    try:
        return execute(
            dsn, "SELECT kind, \"user\", to_char(ended AT TIME ZONE 'UTC', 'HH24:MI:SS'), clicks FROM alerts"
        )
    except psycopg.errors.UndefinedTable:
        return []


@pytest.mark.timeout(400)
@pytest.mark.contract("S3")
def test_each_timer_fires_once_and_each_alert_arrives_once(kafka: KafkaBroker, dsn: str, tmp_path: Path) -> None:
    source, target = make_topics(kafka, "clicks", "alerts")
    sessions = produce(kafka, source)
    arguments = ["--servers", kafka.bootstrap, "--source", source, "--target", target, "--dsn", dsn]
    arguments += ["--checkpoint", str(tmp_path / "checkpoint"), "--rows", "17", "--delay", "1"]
    # Decided, with timers of the first sessions in it, and nothing committed.
    killed = start(tmp_path, arguments, "decision=kill-after@4")
    try:
        assert killed.wait(180) != 0 and list((tmp_path / "once").iterdir()), tail(tmp_path)
    finally:
        end(killed)
    again = start(tmp_path, arguments)
    try:
        wanted = 2 * len(sessions)
        wait_for(lambda: again.poll() is not None or len(stored(dsn)) >= wanted, "all alerts")
        assert again.poll() is None, tail(tmp_path)
    finally:
        end(again)
    expected = [(kind, *session, len(PAGES)) for kind in ("session", "reminder") for session in sessions]
    found = [json.loads(row["value"]) for row in consume(kafka, target)]
    assert audit(expected, stored(dsn)).ok, audit(expected, stored(dsn))
    in_kafka = [(row["kind"], row["user"], row["ended"][11:19], row["clicks"]) for row in found]
    assert audit(expected, in_kafka).ok, audit(expected, in_kafka)
    assert {(row["pages"], row["favourite"]) for row in found} == {("/cart /home /home", "/home")}
