"""The Kafka benchmark judges the right way round and tells every side the same."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from bench import kafka, kafka_flink, kafka_plot, report
from bench.kafka_job import ALIKE_SPARK, RAW, SPARK, TWO_PHASE, WRITE_AHEAD
from bench.kafka_topics import ALIKE, CHUNK, some_rows

OPTIONS = argparse.Namespace(rows=4000, batch=500)


def measured(**steady: float) -> dict[str, kafka.Measured]:
    """Ways by the seconds of their batches; 1,000 rows take as many tenths."""
    return {
        way: kafka.Measured([s], [2 * s], [10 * s], [5 * s], [100 * s], [[(1.0, 500), (2.0, 4000)]])
        for way, s in ((name.replace("_", "-"), s) for name, s in steady.items())
    }


@pytest.mark.parametrize(
    ("two_phase", "write_ahead", "met"),
    [(1.0, 1.6, [True] * 4), (1.01, 1.7, [False, True, False, True]), (3.1, 1.0, [False, False, True, True])],
)
def test_the_bars(two_phase: float, write_ahead: float, met: list[bool]) -> None:
    found = kafka.bars(measured(spark=1.0, two_phase=two_phase, write_ahead=write_ahead))
    assert [bar.met for bar in found] == met
    assert {str(bar).split()[0] for bar in found} <= {"ok", "OVER", "UNDER"}


def test_what_was_not_run_is_not_judged() -> None:
    assert kafka.bars(measured(two_phase=1.0)) == kafka.bars(measured(spark=1.0)) == []
    assert kafka.moonshots(measured(spark=1.0)) == []


def test_the_report_and_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bench" / "results"
    folder.mkdir(parents=True)
    monkeypatch.setattr(report, "RESULTS", folder)
    monkeypatch.setattr(kafka_plot, "RESULTS", folder)
    found = {
        **measured(spark=1.0, spark_alike=0.5, two_phase=0.8, librdkafka=0.2),
        kafka.FLINK: kafka.Measured(whole=[9.0], curves=[[(9.0, 1)]]),
    }
    assert kafka.report(found, OPTIONS).finish() == 0
    (saved,) = json.loads((folder / "kafka.json").read_text())["runs"]
    assert [row[3] for row in saved["rows"]] == ["1.00", "2.00", "1.25", "5.00", ""]
    assert [row[4] for row in saved["rows"]] == ["0.50", "1.00", "0.62", "2.50", ""]
    assert kafka.moonshots(found) == [
        "moonshot: 1.25 times Spark's own, wished for 1.2",
        "moonshot: the whole run takes 0.89 times Flink's, wished for 1",
    ]
    assert kafka_plot.plot(found, kafka.NAMES, OPTIONS.batch).read_bytes().startswith(b"\x89PNG")


def test_flink_is_told_what_the_others_are() -> None:
    script = kafka_flink.script("127.0.0.1:1", "in", "out")
    assert all(f"'properties.{key}' = '{value}'" in script for key, value in ALIKE.items())
    assert "'sink.delivery-guarantee' = 'exactly-once'" in script
    assert set(kafka.NAMES) == {SPARK, ALIKE_SPARK, TWO_PHASE, WRITE_AHEAD, kafka.FLINK, RAW}


def test_the_rows() -> None:
    batches = list(some_rows(CHUNK + 5))
    assert [batch.num_rows for batch in batches] == [CHUNK, 5]
    keys, values = batches[1]["key"].to_pylist(), batches[1]["value"].to_pylist()
    assert {len(key) for key in keys} == {16} and {len(value) for value in values} == {100}
    assert len(set(keys)) == len(set(values)) == 5
