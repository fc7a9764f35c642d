"""Nexmark's events are what they should be, each query is there for both engines, and outputs are compared as rows."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from bench import kafka_flink, nexmark_job, nexmark_plot, processes, report, tables
from bench.kafka_job import ALIKE_SPARK, TWO_PHASE
from bench.kafka_measure import JVM, Measured, Run
from bench.kafka_report import FLINK
from bench.kafka_topics import ALIKE, PARTITIONS
from bench.nexmark_events import BASE, FIRST_ID, FLUSH, KINDS, SIZES, batches
from bench.nexmark_output import Audit, Progress, audit, parse
from bench.nexmark_queries import FIELDS, LATE, QUERIES, flink_source, flink_views, spark_schema, spark_view
from bench.nexmark_report import Found, Killed, bars
from bench.nexmark_report import report as make_report

EVENTS, RATE = 20_000, 2_000


@pytest.fixture(scope="module")
def events() -> list[dict]:
    """All but the last ones, in order, each as its kind, number, partition and fields."""
    rows = [row for batch in batches(EVENTS, RATE) for row in batch.to_pylist()][:EVENTS]
    made = []
    for number, row in enumerate(rows):
        event = json.loads(row["value"])
        kind = KINDS[event["event_type"]]
        assert set(event) == {"event_type", kind}
        made.append({"kind": kind, "n": number, "partition": row["partition"], **event[kind]})
    return made


def of(events: list[dict], kind: str) -> list[dict]:
    return [event for event in events if event["kind"] == kind]


def test_of_each_fifty_events_one_is_a_person_three_are_auctions_and_the_rest_bids(events) -> None:
    for start in range(0, EVENTS, 50):
        kinds = [event["kind"] for event in events[start : start + 50]]
        assert kinds == ["person"] + ["auction"] * 3 + ["bid"] * 46


def test_ids_and_times_follow_from_the_number(events) -> None:
    assert [e["id"] for e in of(events, "person")] == list(range(FIRST_ID, FIRST_ID + EVENTS // 50))
    assert [e["id"] for e in of(events, "auction")] == list(range(FIRST_ID, FIRST_ID + 3 * EVENTS // 50))
    assert all(e["dateTime"] == BASE + e["n"] * 1000 // RATE and e["partition"] == e["n"] % PARTITIONS for e in events)


def test_bids_are_for_what_is_there_and_often_for_what_is_hot(events) -> None:
    later = [e for e in of(events, "bid") if e["n"] >= EVENTS // 2]
    for bid in later:
        assert FIRST_ID <= bid["auction"] < FIRST_ID + 3 * (bid["n"] // 50 + 1)
        assert FIRST_ID <= bid["bidder"] <= FIRST_ID + bid["n"] // 50
    hot = sum(bid["auction"] == FIRST_ID + (3 * (bid["n"] // 50) + 2) // 100 * 100 for bid in later)
    assert 0.48 < hot / len(later) < 0.54
    (_, often), (_, less) = Counter(bid["bidder"] for bid in later).most_common(2)
    assert (often + less) / len(later) > 0.7, "three quarters by two hot bidders in so short a time"
    prices = sorted(bid["price"] for bid in later)
    assert prices[0] >= 100 and prices[-1] <= 10**8 and 0.5e5 < prices[len(prices) // 2] < 2e5


def test_channels_are_hot_or_have_a_number(events) -> None:
    bids = of(events, "bid")
    hot = [bid for bid in bids if bid["channel"] in ("Google", "Facebook", "Baidu", "Apple")]
    assert 0.48 < len(hot) / len(bids) < 0.52
    others = [bid for bid in bids if bid["channel"].startswith("channel-")]
    assert len(hot) + len(others) == len(bids)
    assert 0.88 < sum("&channel_id=" in bid["url"] for bid in others) / len(others) < 0.92
    assert not any("channel_id" in bid["url"] for bid in hot)


@pytest.mark.parametrize("kind", KINDS)
def test_fields_and_sizes(events, kind: str) -> None:
    found = of(events, kind)
    sizes = []
    for event in found:
        values = {name: value for name, value in event.items() if name not in ("kind", "n", "partition")}
        assert {n: "BIGINT" if isinstance(v, int) else "STRING" for n, v in values.items()} == FIELDS[kind]
        sizes.append(sum(8 if isinstance(value, int) else len(value) for value in values.values()))
    assert 0.9 * SIZES[kind] < sum(sizes) / len(sizes) < 1.2 * SIZES[kind]


def test_a_seed_always_gives_the_same_and_every_partition_ends_with_one_of_each_kind() -> None:
    once, again, other = (list(batches(2000, RATE, seed)) for seed in (1, 1, 2))
    assert once == again != other
    for number in range(PARTITIONS):
        last = [json.loads(row["value"]) for row in once[-1].to_pylist() if row["partition"] == number]
        assert [event[kind]["dateTime"] for event, kind in zip(last, KINDS, strict=True)] == [FLUSH] * 3
    with pytest.raises(ValueError, match="multiple of 200"):
        next(batches(250, RATE))


@pytest.mark.parametrize("name", ["q0", "q1", "q2", "q7", "q8", "q11", "q21"])
def test_each_query_is_there_for_both_engines(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    query = QUERIES[name]
    assert query.due in query.columns and query.spark.strip().startswith("SELECT")
    monkeypatch.setattr(kafka_flink, "jars", list)
    folder = tmp_path / "run"
    nexmark_job.flink_command(query, "127.0.0.1:1", "in", "out", folder, 300)
    script = (folder / "job.sql").read_text()
    assert query.flink in script and "'sink.delivery-guarantee' = 'exactly-once'" in script
    assert all(f"'properties.{key}' = '{value}'" in script for key, value in ALIKE.items())
    assert "state-recovery" not in script, "there is no checkpoint yet"
    for number in (8, 9, 10):
        (folder / "checkpoints" / "job" / f"chk-{number}").mkdir(parents=True)
    for number in (8, 9):  # 10 was not finished
        (folder / "checkpoints" / "job" / f"chk-{number}" / "_metadata").write_text("")
    nexmark_job.flink_command(query, "127.0.0.1:1", "in", "out", folder, 300)
    assert (
        f"'execution.state-recovery.path' = 'file://{folder}/checkpoints/job/chk-9'" in (folder / "job.sql").read_text()
    )


def test_both_read_the_same_events() -> None:
    assert LATE == "4 seconds" and "rowtime - INTERVAL '4' SECOND" in flink_source()
    for kind, view in zip(KINDS, flink_views(), strict=True):
        where = f"event_type = {KINDS.index(kind)} AND rowtime <"
        assert where in view and where in spark_view(kind)
        assert all(f"`{name}`" in view and f"`{name}`: {of}" in spark_schema() for name, of in FIELDS[kind].items())


# -- outputs --------------------------------------------------------------------------------------------------------


def rows(*auctions: int, after: int = 0) -> list[bytes]:
    return [json.dumps({"price": 1, "dateTime": BASE + after + a, "auction": a}).encode() for a in auctions]


def test_outputs_are_compared_as_rows_in_no_order() -> None:
    query = QUERIES["q2"]
    wanted = parse(query, rows(1, 2, 2, 3))
    spaced = [b'{"auction": 3, "price":1, "dateTime": %d}' % (BASE + 3), *rows(2, 1, 2)]
    assert audit(wanted, parse(query, spaced)).equal
    assert audit(wanted, parse(query, rows(1, 1, 2, 7))) == Audit(lost=2, doubled=1, strange=1)
    assert audit(wanted, parse(query, [])) == Audit(lost=4, doubled=0, strange=0)
    with pytest.raises(Exception, match="unexpected field"):
        parse(query, [b'{"auction":1,"price":1,"dateTime":1,"more":1}'])


def test_visible_rows_stand_for_the_events_up_to_their_time() -> None:
    query = QUERIES["q2"]
    progress = Progress(query, parse(query, rows(100, 900, 200, 999_000)), events=2000, rate=1000)
    assert progress.points([(1.0, 0), (2.0, 1), (3.0, 3), (4.0, 4), (5.0, 6)]) == [
        (2.0, 100), (3.0, 900), (4.0, 2000), (5.0, 2000),
    ]  # fmt: skip


def test_a_kill_reaches_what_is_below(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'])"
    process = processes.start([sys.executable, "-c", child], {}, tmp_path / "log")
    while not (below := processes.children(process.pid, "")):
        assert process.poll() is None
    processes.kill(process)
    assert process.returncode == -9
    told = subprocess.run(["ps", "-o", "stat=", "-p", str(below[0])], capture_output=True, text=True, check=False)
    assert told.stdout.strip()[:1] in ("", "Z")


def test_a_run_that_failed_says_what_it_printed(tmp_path: Path) -> None:
    process = processes.start([sys.executable, "-c", "print('no'); raise SystemExit(3)"], {}, tmp_path / "log")
    with pytest.raises(RuntimeError, match=r"it failed:\nno"):
        processes.wait(process, tmp_path / "log", "it")


# -- the report -----------------------------------------------------------------------------------------------------


def found(two_phase: float, doubled: int = 0) -> dict[str, dict[str, Found]]:
    speeds = {TWO_PHASE: two_phase, ALIKE_SPARK: 1000.0, FLINK: 2000.0}
    return {
        "q0": {
            way: Found(Measured([Run(100, 5.0, 9.0, speed, {JVM: 2.0})]), [Killed(50, 3.0, 0, doubled)])
            for way, speed in speeds.items()
        },
        "q8": {ALIKE_SPARK: Found(Measured([Run(100, 5.0, 9.0, 10.0, {JVM: 2.0})]))},
    }


def test_the_bars() -> None:
    assert [bar.met for bar in bars(found(900.0))] == [True, True, True]
    slow = found(890.0, doubled=1)
    slow["q0"][TWO_PHASE].kills[0] = replace(slow["q0"][TWO_PHASE].kills[0], first=4.0)
    assert [bar.met for bar in bars(slow)] == [False, False, False]


def test_the_report_its_picture_and_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, page = tmp_path / "bench" / "results", tmp_path / "docs" / "speed.md"
    folder.parent.mkdir()
    monkeypatch.setattr(report, "RESULTS", folder)
    monkeypatch.setattr(nexmark_plot, "PICTURE", page.parent / "images" / "nexmark.png")
    assert "No run of `make bench-nexmark`" in tables.part("nexmark", folder, page)
    made = make_report(found(890.0), argparse.Namespace(events=100, rate=10, batch=10, checkpoint_ms=300))
    made.options = []
    assert made.finish() == 1
    (saved,) = json.loads((folder / "nexmark.json").read_text())["runs"]
    assert [row[3:5] for row in saved["rows"]] == [["0.89", "0.45"], ["1.00", "0.50"], ["2.00", "1.00"], ["1.00", ""]]
    assert [row[-3:] for row in saved["rows"]] == [["3.0", "0", "0"]] * 3 + [["", "", ""]]
    assert saved["rounds"]["q0"][FLINK]["kills"] == [{"visible": 50, "first": 3.0, "lost": 0, "doubled": 0}]
    text = tables.part("nexmark", folder, page)
    assert "q0, holdfast, two-phase | 890" in text and "told alike 0.89, at least 0.9 times" in text
    assert "nexmark.png" not in text
    assert nexmark_plot.plot(found(890.0), whole=True).read_bytes().startswith(b"\x89PNG")
    text = tables.part("nexmark", folder, page)
    assert "(images/nexmark.png)" in text
    whole = tables.with_part(f"# Speed\n\n{tables.PART}\nold\n{tables.END}\n\n## More\n", text)
    assert tables.with_part(whole, text) == whole and whole.endswith(f"{tables.END}\n\n## More\n")
    with pytest.raises(SystemExit, match="lacks"):
        tables.with_part("# Speed", text)
