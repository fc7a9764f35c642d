"""OpenLineage events and OpenTelemetry traces reach a receiver, hold no secret, and cost the query nothing (R3)."""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.core.states import State
from holdfast.errors import CommitError, ConfigError, MissingExtraError
from holdfast.spark.running import RunningQuery
from holdfast.telemetry import datasets
from holdfast.telemetry import newly as newly_module
from holdfast.telemetry.newly import Newly
from tests.servers.receivers import Receiver, attributes
from tests.unit import scenes

SECRET = "hunter2-is-the-password"


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as found:
        yield found


@pytest.fixture
def scene() -> Iterator[scenes.Scene]:
    with scenes.in_memory() as folder:
        yield scenes.Scene(folder, "orders", back=60)


def query_of(scene: scenes.Scene, **sources: str) -> RunningQuery:
    """The query as Spark's side would announce it."""
    query = RunningQuery(str(scene.location), scene.sinks())
    query.pipeline, query.delivery, query.sources = "orders", "exactly-once", [sources]
    return query


def end(query: RunningQuery, failure: Exception | None = None) -> None:
    query.never_started(failure) if failure is not None else None
    query._over = True


@pytest.mark.contract("R3")
def test_a_run_and_its_checkpoints_are_told_with_offsets_rows_and_the_guarantee(
    scene: scenes.Scene, receiver: Receiver
) -> None:
    scene.run(1)  # somebody else's
    following = hf.lineage(receiver.url, namespace="shop", api_key=SECRET)
    query = query_of(scene, **{"kafka.bootstrap.servers": "one:9092,two:9092", "kafka.sasl.jaas.config": SECRET})
    query.announce()
    scene.run(2)
    end(query)
    following.close()
    events = receiver.events()
    assert [e["eventType"] for e in events] == ["START", "RUNNING", "RUNNING", "COMPLETE"]
    assert len({uuid.UUID(e["run"]["runId"]) for e in events}) == 1
    assert {(e["job"]["namespace"], e["job"]["name"]) for e in events} == {("shop", "orders")}
    assert all(h["authorization"] == f"Bearer {SECRET}" for h in receiver.headers()), "in the header alone"
    first, second = events[1:3]
    assert first["run"]["facets"]["holdfast_checkpoint"]["checkpointId"] == 1
    promised = first["run"]["facets"]["holdfast_delivery"]
    assert promised["delivery"] == "exactly-once" and set(promised["guarantees"]) == {"warehouse", "search"}
    read = second["inputs"][0]
    assert (read["namespace"], read["name"]) == ("kafka://one:9092", "orders")
    offsets = read["inputFacets"]["holdfast_offsets"]
    before, after = (json.loads((scene.location / "offsets" / n).read_text().splitlines()[2]) for n in "12")
    assert (offsets["start"], offsets["end"]) == (before["orders"], after["orders"])
    rows = {o["name"]: o["outputFacets"]["outputStatistics"]["rowCount"] for o in second["outputs"]}
    history = hf.checkpoints(scene.location)[2]
    assert rows == {f"orders.{name}": history.sinks[name]["rows"] for name in ("warehouse", "search")}
    for event in events:
        facets = [*event["run"]["facets"].values(), *(f for i in event["inputs"] for f in i["inputFacets"].values())]
        assert all(f["_producer"] == event["producer"] and f["_schemaURL"] for f in facets)
        assert SECRET not in json.dumps(event)


def test_a_run_that_fails_is_told_without_its_secrets(scene: scenes.Scene, receiver: Receiver) -> None:
    following = hf.lineage(receiver.url, hide_also=lambda text: text.replace("joshua", "***"))
    query = query_of(scene)
    query.announce()
    end(query, CommitError(f"postgresql://shop:{SECRET}@db/shop said no to joshua"))
    following.close()
    failed = receiver.events()[-1]
    assert failed["eventType"] == "FAIL"
    assert "said no to ***" in failed["run"]["facets"]["errorMessage"]["message"]
    assert SECRET not in receiver.text and "joshua" not in receiver.text


@pytest.mark.contract("R3")
def test_each_checkpoint_is_a_trace_with_a_span_for_each_phase(scene: scenes.Scene, receiver: Receiver) -> None:
    following = hf.traces(receiver.url)
    query = query_of(scene)
    query.announce()
    scene.run(2)
    scene.warehouse.fail("pre_commit", ValueError(f"password={SECRET}"))
    with pytest.raises(Exception, match="password"):
        scene.run(1)
    end(query)
    following.close()
    spans = receiver.spans()
    whole = [s for s in spans if s.name == "holdfast.checkpoint"]
    told = [attributes(s) for s in whole]
    assert [t["holdfast.checkpoint_id"] for t in told] == [0, 1, 2]
    assert [t["holdfast.status"] for t in told] == [State.COMPLETE, State.COMPLETE, State.ABORTED]
    assert {t["holdfast.pipeline"] for t in told} == {"orders"}
    assert len({s.trace_id for s in whole}) == 3
    for span, stats in zip(whole, hf.checkpoints(scene.location), strict=True):
        assert span.start_time_unix_nano == (stats.started or 0) * 1_000_000
        parts = {s.name.removeprefix("holdfast."): s for s in spans if s.parent_span_id == span.span_id}
        assert set(parts) == set(stats.durations)
        for phase, seconds in stats.durations.items():
            took = (parts[phase].end_time_unix_nano - parts[phase].start_time_unix_nano) / 1e9
            assert took == pytest.approx(seconds, abs=1e-6)
    assert [s.status.code for s in whole] == [0, 0, 2]
    assert SECRET not in receiver.text


def test_a_receiver_that_refuses_is_complained_about_once_and_stops_nothing(
    scene: scenes.Scene, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.refuse = True
    following = hf.lineage(receiver.url)
    query = query_of(scene)
    query.announce()
    scene.run(2)
    end(query)
    following.close()
    following.close()
    warnings = [r for r in caplog.records if r.levelname == "WARNING" and "OpenLineage" in r.message]
    assert len(warnings) == 1 and "not told again" in warnings[0].message
    assert receiver.events() == []


def test_nothing_is_told_unless_somebody_asks_and_after_it_was_closed(scene: scenes.Scene, receiver: Receiver) -> None:
    hf.lineage(receiver.url).close()
    query = query_of(scene)
    query.announce()
    scene.run(1)
    assert receiver.text == ""


@pytest.mark.parametrize(("call", "extra"), [(hf.lineage, "openlineage"), (hf.traces, "opentelemetry")])
def test_wrong_use_and_a_missing_extra_are_named(call: Any, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="must be the http"):
        call("localhost:5000")
    gone = {
        "openlineage": ["openlineage.client.transport.http"],
        "opentelemetry": ["opentelemetry.exporter.otlp.proto.http.trace_exporter"],
    }
    for name in gone[extra]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=rf"holdfast\[{extra}\]"):
        call("http://127.0.0.1:1")


@pytest.mark.parametrize(
    ("sink", "named"),
    [
        (lambda: hf.KafkaSink("a:9092,b:9092", "totals"), ("kafka://a:9092", "totals")),
        (
            lambda: hf.PostgresSink(f"postgresql://u:{SECRET}@db:5433/shop", "sales.orders"),
            ("postgres://db:5433", "shop.sales.orders"),
        ),
        (lambda: hf.SqliteSink("/data/shop.db", "orders"), ("file", "/data/shop.db/orders")),
        (lambda: hf.FileSink("/data/out"), ("file", "/data/out")),
        (lambda: hf.FileSink("s3://bucket/out/orders"), ("s3://bucket", "out/orders")),
        (lambda: hf.StdoutSink(), ("holdfast", "orders.stdout")),
    ],
)  # fmt: skip
def test_datasets_have_the_names_that_catalogues_know(sink: Any, named: tuple[str, str]) -> None:
    found = datasets.of_sink(sink(), "orders")
    assert (found.namespace, found.name) == named
    assert datasets.guarantee(sink())


def test_a_source_of_files_is_its_folder(tmp_path: Path) -> None:
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "0").write_text('v1\n{}\n{"logOffset":3}\n')
    read = datasets.inputs(str(tmp_path), 0, [{}], ["FileStreamSource[file:/data/incoming]"], "orders")
    assert read == [datasets.Read(datasets.Named("file", "/data/incoming"), None, {"logOffset": 3})]
    assert datasets.inputs(str(tmp_path), 7, [{}], [], "orders") == []


def test_a_checkpoint_is_new_once_also_when_a_sink_completes_it_late(
    scene: scenes.Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(newly_module, "WINDOW", 4)
    scene.run(3)
    newly = Newly(str(scene.location))
    assert newly.look() == []
    scene.search.down = ConnectionError("away")
    scene.run(2)
    assert newly.look() == []
    scene.run(10, rows=4, every=0.1)
    assert newly.look() == []
    scene.search.down = None
    scene.clock.now += 3600
    scene.engine.coordinator.tick()
    assert [stats.checkpoint_id for stats in newly.look()] == list(range(3, 15))
    scene.restart()
    assert newly.look() == []
