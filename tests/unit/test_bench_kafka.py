"""The Kafka benchmark judges the right way round and tells every side the same."""

from __future__ import annotations

import argparse
import json
import os
import struct
import time
from pathlib import Path

import pytest
from bench import kafka_flink, kafka_plot, report
from bench.kafka_job import ALIKE_SPARK, RAW, SPARK, TWO_PHASE, WRITE_AHEAD
from bench.kafka_live import judge, stamped
from bench.kafka_measure import BROKER, JVM, WORKERS, Live, Measured, Run, cpu_of, measure
from bench.kafka_report import FLINK, NAMES, bars
from bench.kafka_report import report as make_report
from bench.kafka_topics import ALIKE, CHUNK, some_rows

OPTIONS = argparse.Namespace(rows=4000, batch=500)


def measured(**slowness: float) -> dict[str, Measured]:
    """Ways that are so many times slower, and use so much more, than 1,000 rows/s, 2 s a million and 100 ms."""
    return {
        way: Measured(
            [Run(4000, 5 * s, 10 * s, 1000 / s, {JVM: 1.5 * s, WORKERS: 0.25 * s, BROKER: 0.25 * s})],
            [Live(100, 100 * s, 200 * s, 300 * s)],
            [[(1.0, 500), (2.0, 4000)]],
        )
        for way, s in ((name.replace("_", "-"), s) for name, s in slowness.items())
    }


@pytest.mark.parametrize(
    ("two_phase", "write_ahead", "met"),
    [
        (1.0, 1.1, [True] * 7),
        (1.2, 1.0, [False, False, True, True, True, True, True]),
        (1.0, 1.3, [True, True, True, True, False, False, False]),
        (1.7, 1.0, [False, False, False, False, True, True, True]),
    ],
)
def test_the_bars(two_phase: float, write_ahead: float, met: list[bool]) -> None:
    """Throughput, CPU, first row of both ways; latency of the first: in that order."""
    found = bars(measured(spark_alike=1.0, two_phase=two_phase, write_ahead=write_ahead))
    assert [bar.met for bar in found] == met
    assert {str(bar).split()[0] for bar in found} <= {"ok", "OVER", "UNDER"}


def test_what_was_not_run_is_not_judged() -> None:
    assert bars(measured(two_phase=1.0)) == bars(measured(spark=1.0)) == bars(measured(spark_alike=1.0)) == []


def test_the_report_and_its_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bench" / "results"
    folder.mkdir(parents=True)
    monkeypatch.setattr(report, "RESULTS", folder)
    monkeypatch.setattr(kafka_plot, "RESULTS", folder)
    found = measured(spark=1.0, spark_alike=0.5, two_phase=0.55, flink=0.4)
    found[FLINK].live.clear()
    assert make_report(found, OPTIONS).finish() == 0
    (saved,) = json.loads((folder / "kafka.json").read_text())["runs"]
    assert [row[1:4] for row in saved["rows"]] == [
        ["1,000", "0.50", "0.40"], ["2,000", "1.00", "0.80"], ["1,818", "0.91", "0.73"], ["2,500", "1.25", "1.00"],
    ]  # fmt: skip
    assert [row[6] for row in saved["rows"]] == ["2.00", "1.00", "1.10", "0.80"]
    assert [row[-2:] for row in saved["rows"]] == [["100", "200"], ["50", "100"], ["55", "110"], ["", ""]]
    assert saved["rounds"][TWO_PHASE]["runs"][0]["steady"] == 1000 / 0.55, "every round is kept"
    assert kafka_plot.plot(found, NAMES).read_bytes().startswith(b"\x89PNG")


def test_steady_is_the_slope_between_thirty_and_ninety_five_per_cent() -> None:
    points = [(10.0, 100), (12.0, 300), (17.0, 950), (30.0, 1000)]
    usage = [(10.0, {JVM: 1.0}), (14.0, {JVM: 5.0, BROKER: 1.0}), (18.0, {JVM: 13.0, BROKER: 3.0})]
    found = measure(points, usage, 1000, begin=8.0)
    assert (found.first, found.whole, found.steady) == (2.0, 22.0, 130)
    assert found.cpu[JVM] == pytest.approx((11.0 - 3.0) / 650 * 1e6)
    assert found.cpu[BROKER] == pytest.approx((2.5 - 0.5) / 650 * 1e6)
    with pytest.raises(ValueError, match="at once"):
        measure([(10.0, 1000)], usage, 1000, begin=8.0)


def test_cpu_seconds_are_told_apart() -> None:
    before = time.process_time()
    while time.process_time() < before + 0.1:
        pass
    found = cpu_of(os.getpid(), broker=-1)
    assert found["driver"] >= 0.1 and found[BROKER] == 0.0
    assert cpu_of(root=-1, broker=os.getpid())[BROKER] >= 0.1


def test_latency_is_that_of_rows_that_were_made_after_the_warm_up() -> None:
    assert judge([(1, 9.0), *((10, n / 1000) for n in range(1, 101))], 10) == Live(100, 50.5, 99.0, 100.0)
    made = struct.unpack_from("<q", stamped(3, 0)["value"][2].as_py())[0]
    assert 0 <= time.time_ns() - made < 60e9


def test_flink_is_told_what_the_others_are() -> None:
    script = kafka_flink.script("127.0.0.1:1", "in", "out")
    assert all(f"'properties.{key}' = '{value}'" in script for key, value in ALIKE.items())
    assert "'sink.delivery-guarantee' = 'exactly-once'" in script
    assert set(NAMES) == {SPARK, ALIKE_SPARK, TWO_PHASE, WRITE_AHEAD, FLINK, RAW}


def test_the_rows() -> None:
    batches = list(some_rows(CHUNK + 5))
    assert [batch.num_rows for batch in batches] == [CHUNK, 5]
    keys, values = batches[1]["key"].to_pylist(), batches[1]["value"].to_pylist()
    assert {len(key) for key in keys} == {16} and {len(value) for value in values} == {100}
    assert len(set(keys)) == len(set(values)) == 5
