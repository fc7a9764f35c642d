"""Metrics come from the files of a checkpoint location, and count from the start of the process (R3)."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.connectors.sqlite import SqliteSink
from holdfast.errors import ConfigError, HoldfastError
from holdfast.spark.running import RunningQuery
from holdfast.telemetry.names import BY_NAME, METRICS
from holdfast.telemetry.samples import Metrics
from holdfast.telemetry.serve import serve
from holdfast.testing.local import LocalQuery
from tests.integration.checking import SCHEMA
from tests.integration.pg import batch
from tests.unit import scenes


def values(metrics: Metrics) -> dict[str, float]:
    """{name{labels}: value}, without the pipeline."""
    found = {}
    for sample in metrics.samples():
        assert sample.labels["pipeline"] == "orders"
        labels = ",".join(value for label, value in sample.labels.items() if label != "pipeline")
        assert f"{sample.name}/{labels}" not in found
        found[f"{sample.name}/{labels}"] = sample.value
    return found


def test_names_are_prometheus_names_and_each_is_explained_once() -> None:
    assert len(BY_NAME) == len(METRICS)
    for metric in METRICS:
        assert metric.name.startswith("holdfast_") and metric.help.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind == "counter")


@pytest.mark.contract("R3")
def test_checkpoints_are_counted_once_and_what_was_there_before_is_not(tmp_path: Path) -> None:
    query = LocalQuery(str(tmp_path / "c"), "orders", SCHEMA)
    rows = [{"id": 1, "word": "one"}, {"id": 2, "word": "two"}]
    run = query.start([SqliteSink(tmp_path / "out.db", "orders")])
    run.run(0, batch(rows, schema=SCHEMA))
    assert run.coordinator.drain(60.0)
    metrics = Metrics("orders", str(tmp_path / "c"))
    assert "holdfast_rows_total/sqlite-orders" not in values(metrics)
    for number in (1, 2):
        run.run(number, batch(rows, rows, schema=SCHEMA))
    assert run.coordinator.drain(60.0)
    run.close()
    for _ in range(2):  # asking counts nothing
        found = values(metrics)
        assert found["holdfast_checkpoints_total/complete"] == 2
        assert found["holdfast_rows_total/sqlite-orders"] == 8
        assert found["holdfast_commits_total/sqlite-orders,committed"] == 2
        assert found["holdfast_last_complete_checkpoint/"] == 2
        assert found["holdfast_pending_rows/sqlite-orders"] == 0
        assert found["holdfast_up/"] == 1
        assert found["holdfast_checkpoint_seconds_total/tasks"] > 0


def test_a_location_that_nobody_has_used_or_that_is_gone(tmp_path: Path) -> None:
    assert values(Metrics("orders", str(tmp_path / "new"))) == {"holdfast_up/": 1}
    (tmp_path / "file").write_text("")
    assert values(Metrics("orders", str(tmp_path / "file" / "c"))) == {"holdfast_up/": 0}


def test_sparks_progress_is_told_while_there_is_one(tmp_path: Path) -> None:
    progress = {
        "inputRowsPerSecond": 12.5,
        "sources": [{"metrics": {"maxOffsetsBehindLatest": "7"}}, {}],
        "stateOperators": [{"numRowsTotal": 3, "memoryUsedBytes": 400}],
    }
    found = values(Metrics("orders", str(tmp_path), lambda: progress))
    assert found["holdfast_source_lag_rows/"] == 7
    assert found["holdfast_input_rows_per_second/"] == 12.5
    assert (found["holdfast_state_rows/"], found["holdfast_state_bytes/"]) == (3, 400)


@pytest.mark.contract("R3")
def test_prometheus_is_answered_and_a_port_that_is_taken_is_told(tmp_path: Path) -> None:
    serving = serve(lambda: [Metrics("orders", str(tmp_path))], 0)
    try:
        text = urllib.request.urlopen(serving.url, timeout=30).read().decode()
        assert 'holdfast_up{pipeline="orders"} 1.0' in text
        with pytest.raises(ConfigError, match="Choose another port"):
            serve(list, serving.port)
    finally:
        serving.close()


@pytest.mark.contract("R3")
def test_one_endpoint_serves_every_query_of_the_process_until_it_is_closed(tmp_path: Path) -> None:
    serving = hf.metrics(0)
    try:
        for name in ("orders", "invoices"):
            query = RunningQuery(str(tmp_path / name), [])
            query.pipeline = name
            query.announce()
        text = urllib.request.urlopen(serving.url, timeout=30).read().decode()
        assert 'holdfast_up{pipeline="orders"} 1.0' in text and 'holdfast_up{pipeline="invoices"} 1.0' in text
        assert all(f"# TYPE {metric.name} {metric.kind}" in text for metric in METRICS)
    finally:
        serving.close()
        serving.close()
    with pytest.raises(urllib.error.URLError):
        urllib.request.urlopen(serving.url, timeout=5)
    with pytest.raises(ConfigError, match="port must be"):
        hf.metrics(70000)


def test_how_a_checkpoint_ended_is_told_apart(tmp_path: Path) -> None:
    with scenes.in_memory() as folder:
        scene = scenes.Scene(folder, "orders", back=60)
        metrics = Metrics("orders", str(scene.location))
        scene.run(2)
        scene.warehouse.fail("pre_commit", ValueError("no"))
        with pytest.raises(HoldfastError):
            scene.run(1)
        scene.search.down = ConnectionError("away")
        scene.run(2)
        scene.plan()
        scene.clock.now += 60
        scene.engine.coordinator.tick()
        scene.catch_up()
        found = values(metrics)
        assert found["holdfast_checkpoints_total/complete"] == 2
        assert found["holdfast_checkpoints_total/failed"] == 1
        assert found["holdfast_checkpoints_in_progress/"] == 1
        assert found["holdfast_committables_total/warehouse,committed"] == 8
        assert found["holdfast_pending_checkpoints/search"] == 2
        assert found["holdfast_commit_retries_total/search"] >= 2
        assert found["holdfast_commit_retries_total/warehouse"] == 0
        scene.restart()
        scene.run(1)
        again = values(metrics)
        assert again["holdfast_fenced_runs/"] == 1
        assert again["holdfast_checkpoints_total/failed"] == 1, "counted once, although it is complete by now"
