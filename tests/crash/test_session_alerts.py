"""S3: the shipped example with keyed state, an event-time and a processing-time timer, killed while timers fire."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

import holdfast as hf
from holdfast.testing import audit, faults
from tests.crash.harness import ROOT
from tests.crash.processes import end, wait_for
from tests.crash.test_examples_killed import FAST, assert_nothing_open, make_topics, tail
from tests.integration.test_kafka_sink import consume
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer, execute, left_behind

USERS, GAP = 8, 60
Alert = tuple[str, str, str, int | None]


def produce(broker: KafkaBroker, topic: str, number: int) -> set[Alert]:
    """A session of each user, ten minutes after the one before, and the alerts that come of it.

    Each user makes three orders: one is never paid, one is paid, the payment of one comes before it.
    """
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    expected: set[Alert] = set()
    for user in range(USERS):
        order = 100 * number + 10 * user
        steps = [("order", order), ("order", order + 1), ("pay", order + 1), ("pay", order + 2), ("order", order + 2)]
        for n, (step, about) in enumerate(steps):
            at = f"2024-01-01T00:{10 * number:02d}:{user + 5 * n:02d}Z"
            click = {"user": f"u{user}", "page": f"p{n % 2}", "step": step, "order": about, "at": at}
            producer.produce(topic, json.dumps(click), key=f"u{user}")
        expected.add(("session", f"u{user}", f"00:{10 * number:02d}:{user:02d} p0 p1", 5))
        expected.add(("unpaid", f"u{user}", str(order), None))
    assert producer.flush(30) == 0
    return expected


def in_postgres(dsn: str) -> list[Alert]:
    if execute(dsn, "SELECT to_regclass('alerts')") == [(None,)]:
        return []
    return execute(dsn, 'SELECT kind, "user", about, clicks FROM alerts')  # type: ignore[return-value]


def in_kafka(broker: KafkaBroker, topic: str) -> list[Alert]:
    rows = [json.loads(row["value"]) for row in consume(broker, topic)]
    return [(row["kind"], row["user"], row["about"], row.get("clicks")) for row in rows]


class Run:
    """The example in a process group of its own, until it is killed."""

    def __init__(self, folder: Path, arguments: list[str], fault: str = "") -> None:
        self.folder, self.once = folder, folder / f"once-{fault}"
        self.once.mkdir()
        env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYSPARK_SUBMIT_ARGS": FAST}
        env |= {faults.VARIABLE: fault, faults.ONCE: str(self.once)}
        with (folder / "run.log").open("wb") as log:
            command = [sys.executable, str(ROOT / "examples" / "session_alerts.py"), *arguments]
            self.process = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    def until_killed(self) -> None:
        try:
            code = self.process.wait(240)
        finally:
            end(self.process)
        assert code != 0 and list(self.once.iterdir()), f"the fault did not kill it\n{tail(self.folder)}"

    def until(self, condition, what: str) -> None:
        try:
            wait_for(lambda: self.process.poll() is not None or condition(), what)
            assert self.process.poll() is None, tail(self.folder)
        finally:
            end(self.process)


@pytest.mark.timeout(600)
def test_s3_each_timer_fires_once_and_each_alert_arrives_once(
    kafka: KafkaBroker, postgres: PostgresServer, tmp_path: Path
) -> None:
    """Rows are written only when timers fire: a kill in a task's write or at a sink's commit is a kill over timers."""
    source, target = make_topics(kafka, "clicks", "alerts")
    dsn, location = postgres.new_database(), tmp_path / "checkpoint"
    arguments = ["--servers", kafka.bootstrap, "--source", source, "--target", target, "--dsn", dsn]
    arguments += ["--checkpoint", str(location), "--gap", str(GAP), "--patience", "2"]
    expected = produce(kafka, source, 0)
    Run(tmp_path, arguments, "task.write=kill@1").until_killed()
    assert in_postgres(dsn) == [] == in_kafka(kafka, target)
    expected |= produce(kafka, source, 1)
    Run(tmp_path, arguments, "commit.sink=kill@4").until_killed()
    # The last session of all ends nobody's wait but that of the others: its own alerts are not waited for.
    last = produce(kafka, source, 5)

    def whole(alerts: list[Alert]) -> bool:
        return expected <= set(alerts)

    def all_there_and_two_more_checkpoints() -> bool:
        if not whole(in_postgres(dsn)) or not whole(in_kafka(kafka, target)):
            return False
        seen.append(hf.checkpoints(location, last=1)[0].checkpoint_id)
        return seen[-1] >= seen[0] + 3  # whatever fires twice has done so by now

    seen: list[int] = []
    Run(tmp_path, arguments).until(all_there_and_two_more_checkpoints, "the alerts")
    for found in (in_postgres(dsn), in_kafka(kafka, target)):
        report = audit(sorted(expected, key=str), [alert for alert in found if alert not in last])
        assert report.ok, report
        assert len(found) == len(set(found))
        assert {kind for kind, *_ in set(found) & last} <= {"unpaid"}, "the last sessions are not over"
    assert len(expected) == 32
    states = [c.state for c in hf.checkpoints(location) if c.state]
    assert all(state["operators"] == 2 for state in states) and states
    assert_nothing_open(kafka)
    assert left_behind(dsn) == []
