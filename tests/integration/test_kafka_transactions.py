"""`holdfast transactions` and `holdfast resolve` on a real broker: what is open, whose it is, ending it by hand."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

import holdfast as hf
from holdfast import errors
from holdfast.cli import transactions
from holdfast.cli.app import app
from holdfast.connectors.kafka.client.transactions import TransactionClient, TransactionRef
from holdfast.connectors.kafka.sink import ids
from holdfast.core.model import Committable
from holdfast.dashboard.places import Places
from holdfast.dashboard.web import Site
from holdfast.testing.local import LocalBatch, LocalQuery, LocalRun, armed
from tests.integration.test_kafka_sink import OneTransaction, consume
from tests.servers.kafka import KafkaBroker

Make = Callable[..., str]
SCHEMA = pa.schema([("value", pa.string())])


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def document(*arguments: object, code: int = 0) -> dict[str, Any]:
    result = run("transactions", *arguments, "--json")
    assert result.exit_code == code, result.output + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


class Pipeline:
    """A query without Spark that writes to one topic, killed at will."""

    def __init__(self, broker: KafkaBroker, topic: str, folder: Path, name: str | None = None) -> None:
        self.broker, self.topic, self.location = broker, topic, folder
        self.name = name or f"pipe-{uuid.uuid4().hex[:8]}"
        self.query = LocalQuery(str(folder), self.name, SCHEMA)
        self._runs: list[LocalRun] = []

    def start(self) -> LocalRun:
        self._runs.append(self.query.start([hf.KafkaSink(self.broker.bootstrap, self.topic, name="out")]))
        return self._runs[-1]

    def batch(self, *partitions: Sequence[str]) -> LocalBatch:
        return LocalBatch([[pa.RecordBatch.from_pydict({"value": list(p)}, SCHEMA)] for p in partitions])

    def die(self, point: str, checkpoint_id: int, *partitions: Sequence[str]) -> None:
        """The driver is killed at the decision: `lost` after it is durable, `error` before."""
        driver = self.start()
        with armed(f"decision={point}"), pytest.raises(errors.InjectedFault):
            driver.run(checkpoint_id, self.batch(*partitions))

    def values(self) -> list[str]:
        return sorted(row["value"].decode() for row in consume(self.broker, self.topic))

    def close(self) -> None:
        for driver in self._runs:
            driver.close()


@pytest.fixture
def pipeline(kafka: KafkaBroker, topic: Make, tmp_path: Path) -> Any:
    made = Pipeline(kafka, topic("out", 2), tmp_path / "c")
    yield made
    made.close()


def abort_all(pipeline: Pipeline) -> None:
    """What Kafka's timeout does."""
    with TransactionClient({"bootstrap.servers": pipeline.broker.bootstrap}) as client:
        refs = [t.ref for prefix in ids.prefixes(pipeline.name) for t in client.ongoing(prefix)]
        client.end(refs, commit=False)
        while any(client.ongoing(prefix) for prefix in ids.prefixes(pipeline.name)):
            time.sleep(0.05)


@pytest.mark.contract("P3")
def test_what_is_decided_can_be_committed_and_not_aborted(pipeline) -> None:
    """P3, P4: by the whole identity, repeatably; the query then finds it done."""
    pipeline.die("lost", 0, ["a", "b"], ["c"])
    listed = document("list", pipeline.location)
    assert listed["servers"] == [pipeline.broker.bootstrap] and listed["lost"] == []
    assert [(t["verdict"], t["checkpoint_id"], t["sink"]) for t in listed["transactions"]] == [
        ("decided", 0, "out")
    ] * 2
    assert sorted((t["subtask"], t["rows"]) for t in listed["transactions"]) == [(0, 2), (1, 1)]
    first = listed["transactions"][0]
    assert 0 <= first["age_seconds"] < 120 and 700 < first["remaining_seconds"] < 900
    assert all(h["topic"] == pipeline.topic and h["last_stable"] < h["end"] for h in first["holds_back"])
    assert first["holds_back"]
    text = run("transactions", "list", pipeline.location)
    assert text.exit_code == 0 and "decided" in text.stdout and f"{pipeline.topic}[" in text.stdout
    name = first["transactional_id"]
    shown = run("transactions", "describe", pipeline.location, name)
    assert shown.exit_code == 0 and "Ongoing" in shown.stdout and " at 0 of " in shown.stdout
    refused = run("transactions", "abort", pipeline.location, name, "--yes")
    assert refused.exit_code == 1 and "would lose them" in refused.stderr
    unconfirmed = run("transactions", "commit", pipeline.location, name)
    assert unconfirmed.exit_code == 3 and "become visible" in unconfirmed.stderr
    for number, t in enumerate(listed["transactions"]):
        for outcome in ("committed", "already committed"):
            done = document("commit", pipeline.location, t["transactional_id"], "--yes")
            assert done["outcome"] == outcome
        assert len(document("list", pipeline.location)["transactions"]) == 1 - number
    assert pipeline.values() == ["a", "b", "c"]
    assert run("transactions", "abort", pipeline.location, name, "--yes").exit_code == 1
    pipeline.start().run(0, pipeline.batch(["a", "b"], ["c"]))
    assert pipeline.values() == ["a", "b", "c"]
    assert document("describe", pipeline.location, name)["verdict"] == "committed"


def test_what_is_not_decided_can_be_aborted_and_not_committed(pipeline, kafka) -> None:
    pipeline.die("error", 0, ["a"], ["b"])
    needs = run("transactions", "list", pipeline.location)
    assert needs.exit_code == 3 and "Pass --bootstrap-servers" in needs.stderr
    options = ["--bootstrap-servers", kafka.bootstrap]
    found = document("list", pipeline.location, *options)["transactions"]
    assert [(t["verdict"], t["checkpoint_id"]) for t in found] == [("undecided", None)] * 2
    name = found[0]["transactional_id"]
    refused = run("transactions", "commit", pipeline.location, name, *options, "--yes")
    assert refused.exit_code == 1 and "is not decided" in refused.stderr
    asked = run("transactions", "abort", pipeline.location, name, *options)
    assert asked.exit_code == 3 and "fails, and is run again" in asked.stderr, "its driver seems to run: this process"
    for outcome in ("aborted", "not open"):
        assert document("abort", pipeline.location, name, *options, "--yes")["outcome"] == outcome
    assert len(document("list", pipeline.location, *options)["transactions"]) == 1
    refused = run("transactions", "commit", pipeline.location, name, *options, "--yes")
    assert refused.exit_code == 1 and "not open" in refused.stderr
    pipeline.start().run(0, pipeline.batch(["a"], ["b"]))
    assert pipeline.values() == ["a", "b"]
    assert document("list", pipeline.location)["transactions"] == []


@pytest.mark.contract("R3")
def test_the_dashboard_aborts_what_is_not_decided_with_word_and_confirmation(pipeline, kafka) -> None:
    pipeline.die("lost", 0, ["kept"])
    driver = pipeline.start()
    with armed("decision=error"), pytest.raises(errors.InjectedFault):
        driver.run(1, pipeline.batch(["a"], ["b"]))
    site = Site(Places([str(pipeline.location)]), allow_actions=True, kafka={"bootstrap.servers": kafka.bootstrap})
    browser = TestClient(site.app(), base_url="http://localhost")
    place, word = next(iter(site.places)).slug, site.actions.word
    shown = browser.get(f"/api/pipelines/{place}/transactions").json()["transactions"]
    [first, second] = [t["transactional_id"] for t in shown if t["verdict"] == "undecided"]
    page = browser.get(f"/p/{place}/transactions").text
    assert page.count('class="act"') == 2 and "data-until" in page

    def post(path: str, body: Any, word: str = word) -> Any:
        headers = {"Origin": "http://localhost", "Authorization": f"Bearer {word}"}
        return browser.post(f"/api/pipelines/{place}/actions/{path}", json=body, headers=headers)

    assert post("abort", {"transactional_id": first}, "guess").status_code == 401
    planned = post("abort", {"transactional_id": first})
    assert planned.status_code == 200 and "run again" in planned.json()["question"], planned.text
    assert len(document("list", pipeline.location)["transactions"]) == 2, "a question ends nothing"
    done = post("confirm", {"token": planned.json()["token"]})
    assert done.json()["message"] == f"{first}: aborted"
    assert post("confirm", {"token": planned.json()["token"]}).status_code == 409
    assert [t["transactional_id"] for t in document("list", pipeline.location)["transactions"]] == [second]
    told = browser.get(f"/api/pipelines/{place}").json()["actions"]
    assert [(a["what"], a["through"], a["details"]["transactional_id"]) for a in told] == [
        ("transaction aborted", "dashboard", first)
    ]
    # The command line writes the same journal; what is decided is aborted by neither.
    document("abort", pipeline.location, second, "--yes")
    assert [a["through"] for a in browser.get(f"/api/pipelines/{place}").json()["actions"]] == [
        "command line",
        "dashboard",
    ]
    pipeline.close()
    pipeline.die("lost", 1, ["a"], ["b"])
    decided = document("list", pipeline.location)["transactions"][0]["transactional_id"]
    refused = post("abort", {"transactional_id": decided})
    assert refused.status_code == 409 and "would lose them" in refused.json()["message"]


def test_a_decision_while_the_operator_thinks_is_respected(pipeline, monkeypatch) -> None:
    """The log is read again after the answer."""
    pipeline.die("error", 0, ["a"])
    options = ["--bootstrap-servers", pipeline.broker.bootstrap, "--yes"]
    [open_one] = document("list", pipeline.location, *options[:2])["transactions"]
    log = pipeline._runs[-1].coordinator._log
    ref = {key: open_one[key] for key in ("transactional_id", "producer_id", "epoch")}
    data = {**ref, "rows": 1, "subtask": 0, "at": 1, "mark": "m", "nonce": "n"}

    def decide(*_: object, **__: object) -> bool:
        log.decide(0, ["out"], [Committable("out", 0, data, 1)], timestamp=1, state={})
        return True

    monkeypatch.setattr(transactions, "confirm", decide)
    result = run("transactions", "abort", pipeline.location, open_one["transactional_id"], *options)
    assert result.exit_code == 1 and "decided meanwhile" in result.stderr
    assert len(document("list", pipeline.location, *options[:2])["transactions"]) == 1
    abort_all(pipeline)


@pytest.mark.contract("P5")
def test_lost_ones_are_told_and_resolved(pipeline) -> None:
    """P5: timed out after the decision, and a replay that differs; one is given up, the next is produced anyway."""
    pipeline.start().run(0, pipeline.batch(["a"]))
    pipeline.die("lost", 1, ["b", "c"], ["d"])
    first = document("list", pipeline.location)["transactions"]
    name = next(t["transactional_id"] for t in first if t["subtask"] == 0)
    kept = next(t for t in first if t["subtask"] == 1)
    with TransactionClient({"bootstrap.servers": pipeline.broker.bootstrap}) as client:
        gone = next(t for t in first if t["subtask"] == 0)
        client.end([TransactionRef(*(gone[k] for k in ("transactional_id", "producer_id", "epoch")))], commit=False)
    listed = document("list", pipeline.location, code=1)
    assert [t["transactional_id"] for t in listed["transactions"]] == [kept["transactional_id"]]
    assert [(t["transactional_id"], t["verdict"], t["rows"]) for t in listed["lost"]] == [(name, "lost", 2)]
    assert "holdfast resolve" in run("transactions", "list", pipeline.location).stdout
    assert document("describe", pipeline.location, name, code=1)["verdict"] == "lost"
    for command in ("commit", "abort"):
        result = run("transactions", command, pipeline.location, name, "--yes")
        assert result.exit_code == 1 and "decided and lost" in result.stderr and "resolve" in result.stderr
    refused = run("resolve", pipeline.location, 1, "--produce-anyway", "--yes")
    assert refused.exit_code == 3 and "was not lost" in refused.stderr, "the query has not found out yet"
    with pytest.raises(errors.LostError, match="holdfast resolve"):
        pipeline.start().run(1, pipeline.batch(["b", "x"], ["d"]))
    result = run("resolve", pipeline.location, 1, "--give-up", "--yes", "--json")
    assert result.exit_code == 0 and json.loads(result.stdout)["report"]["rows_lost"] == 2, result.stderr
    pipeline.start().run(1, pipeline.batch(["b", "x"], ["d"]))
    assert pipeline.values() == ["a", "d"]

    pipeline.die("lost", 2, ["e", "f"], ["g"])
    abort_all(pipeline)
    driver = pipeline.start()
    with pytest.raises(errors.LostError, match="holdfast resolve"):
        driver.run(2, pipeline.batch(["e", "y"], ["g"]))
    assert run("resolve", pipeline.location, "--produce-anyway", "--yes").exit_code == 0
    pipeline.start().run(2, pipeline.batch(["g"], ["e", "y"]))
    assert pipeline.values() == ["a", "d", "e", "g", "y"]
    [*_, report] = json.loads(run("status", pipeline.location, "--json").stdout)["resolutions"]
    assert (report["rows_produced"], report["rows_proven_equal"], report["rows_possibly_doubled"]) == (3, 1, 2)
    listed = document("list", pipeline.location)
    assert listed["transactions"] == [] and listed["lost"] == []


def test_the_same_name_at_another_location_is_left_alone(pipeline, kafka, tmp_path) -> None:
    pipeline.die("lost", 0, ["a"])
    other = Pipeline(kafka, pipeline.topic, tmp_path / "other", pipeline.name)
    other.die("lost", 0, ["b"])
    found = document("list", pipeline.location)["transactions"]
    assert sorted(t["verdict"] for t in found) == ["decided", "foreign"]
    foreign = next(t["transactional_id"] for t in found if t["verdict"] == "foreign")
    for command in ("abort", "commit"):
        result = run("transactions", command, pipeline.location, foreign, "--yes")
        assert result.exit_code == 1 and "another checkpoint location" in result.stderr
    abort_all(pipeline)
    other.close()


def test_a_write_ahead_sinks_transaction_may_be_aborted_only(pipeline, kafka) -> None:
    pipeline.die("lost", 0, ["a"])
    lineage = pipeline._runs[0].info.lineage
    publisher = OneTransaction(kafka, pipeline.topic, name=ids.publisher(pipeline.name, "out", lineage, 3))
    found = {t["verdict"]: t for t in document("list", pipeline.location)["transactions"]}
    assert set(found) == {"decided", "publishing"} and found["publishing"]["subtask"] == 3
    refused = run("transactions", "commit", pipeline.location, publisher.id, "--yes")
    assert refused.exit_code == 1 and "only an abort is safe" in refused.stderr
    assert document("abort", pipeline.location, publisher.id, "--yes")["outcome"] == "aborted"
    abort_all(pipeline)


def test_ids_that_are_not_this_pipelines(pipeline) -> None:
    pipeline.die("lost", 0, ["a"])
    unused = ids.publisher(pipeline.name, "out", pipeline._runs[0].info.lineage, 77)
    for name in ("other", "hfk1-a-b-0123456789ab-0-0-0", unused):
        result = run("transactions", "abort", pipeline.location, name, "--yes")
        assert result.exit_code == 3, result.stderr
    abort_all(pipeline)


def test_a_wrong_password_is_told_without_the_password(pipeline, tmp_path) -> None:
    pipeline.die("lost", 0, ["a"])
    config = tmp_path / "client.properties"
    config.write_text(
        "# login\nsecurity.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\nsasl.username=u\nsasl.password=geheim\n"
    )
    result = run("transactions", "list", pipeline.location, "--config", config)
    assert result.exit_code in (1, 3) and result.stderr.startswith("error: ") and "geheim" not in result.output
    abort_all(pipeline)
