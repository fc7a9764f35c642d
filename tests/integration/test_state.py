"""`hf.session(state="rocksdb")`, `holdfast state` and the state's size in the history, on real Spark (S1, S4)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from examples import session_alerts
from pyspark import cloudpickle
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.errors import ConfigError
from tests.integration.helpers import add_file, read_files, select

pytestmark = pytest.mark.spark


def test_an_unknown_kind_of_state_is_refused() -> None:
    with pytest.raises(ConfigError, match="state must be one of rocksdb, or None, not 'memory'"):
        hf.session("x", state="memory")


@pytest.mark.contract("S1", "S4")
def test_the_history_and_the_command_show_the_state(rocksdb, tmp_path: Path) -> None:
    for n in range(2):
        add_file(tmp_path / "in", n, range(n * 10, n * 10 + 10))
    counted = read_files(rocksdb, tmp_path / "in").groupBy("word").count()
    sink = hf.SqliteSink(tmp_path / "words.db", "words", mode="upsert", key=["word"])
    writer = hf.write_stream(counted, sink, name="state", checkpoint_location=tmp_path / "ck")
    writer.outputMode("update").trigger(availableNow=True).start().awaitTermination()
    stats = hf.checkpoints(tmp_path / "ck")
    assert [s.checkpoint_id for s in stats] == [0, 1]
    assert {s.trigger for s in stats} == {"availableNow"}
    assert all(s.state["rows"] == 3 and s.state["snapshot_seconds"] >= 0 for s in stats), stats
    assert sum(part["rows"] for part in stats[0].parts) == stats[0].rows
    assert list((tmp_path / "ck" / "state" / "0").rglob("*.changelog"))
    told = CliRunner().invoke(app, ["state", str(tmp_path / "ck"), "--sample", "2", "--json"])
    assert told.exit_code == 0, told.output
    (operator,) = json.loads(told.stdout)["operators"]
    assert operator["bytes"] > 0
    (part,) = operator["parts"]
    assert (part["rows"], len(part["sample"])) == (3, 2)
    assert part["sample"][0]["key"]["word"].startswith("w")
    assert CliRunner().invoke(app, ["state", str(tmp_path / "ck")]).exit_code == 0
    assert CliRunner().invoke(app, ["history", str(tmp_path / "ck")]).exit_code == 0


def click(user: str, step: str, order: int, at: str) -> str:
    return json.dumps({"user": user, "page": "cart", "step": step, "order": order, "at": f"2024-01-01T00:00:{at}Z"})


def parts(location: Path, *words: str) -> dict[str, dict[str, Any]]:
    """What the command says of each thing that is kept."""
    told = CliRunner().invoke(app, ["state", str(location), "--json", *words])
    assert told.exit_code == 0, told.output
    operators = json.loads(told.stdout)["operators"]
    assert [o["name"] for o in operators] == ["transformWithStateInPySparkExec"] * 2
    assert all(o["bytes"] > 0 and o["partitions"] == 2 for o in operators)
    return {part["name"]: part for operator in operators for part in operator["parts"]}


@pytest.mark.contract("S1")
def test_value_list_and_map_state_with_ttl_and_the_timers_that_wait_are_shown(rocksdb, tmp_path: Path) -> None:
    """The example's operators. What waits for the clock on the wall, timers and TTL, is gone when its time has come."""
    (tmp_path / "in").mkdir()
    cloudpickle.register_pickle_by_value(session_alerts)

    def run(name: str, *clicks: str) -> None:
        """One batch."""
        (tmp_path / "in" / name).write_text("\n".join(clicks))
        frame = rocksdb.readStream.schema(session_alerts.CLICK).json(str(tmp_path / "in"))
        alerts = session_alerts.alerts(frame, 60, patience=1, remember=1)
        sink = hf.SqliteSink(tmp_path / "shop.db", "alerts")
        query = hf.write_stream(alerts, sink, name="alerts", checkpoint_location=tmp_path / "ck")
        query.outputMode("append").trigger(once=True).start().awaitTermination()

    try:
        run("1", click("ann", "order", 1, "01"), click("ann", "pay", 9, "02"), click("bob", "order", 2, "03"))
        found = parts(tmp_path / "ck")
        assert {name: (part["kind"], part["rows"]) for name, part in found.items()} == {
            "session": ("value", 2),
            "pages": ("list", 3),
            "timers (event time)": ("timers", 2),
            "waiting": ("map", 2),
            "paid": ("map", 1),
            "timers (processing time)": ("timers", 2),
        }
        (ann,) = (row for row in found["session"]["sample"] if row["key"]["user"] == "ann")
        assert ann["value"] == {"first": 1_704_067_201_000, "last": 1_704_067_202_000, "clicks": 2}
        timers = found["timers (event time)"]["sample"]
        due = {row["key"]["user"]: row["expiration_timestamp_ms"] for row in timers}
        assert due == {"ann": 1_704_067_262_000, "bob": 1_704_067_263_000}
        assert found["paid"]["sample"][0]["user_map_key"] == {"order": 9}
        expiry = found["timers (processing time)"]["sample"][0]["expiration_timestamp_ms"]
        time.sleep(max(0.0, expiry / 1000 + 0.1 - time.time()))
        run("2", click("eve", "view", 0, "04"))
        left = {name: part["rows"] for name, part in parts(tmp_path / "ck", "--sample", "0").items()}
    finally:
        cloudpickle.unregister_pickle_by_value(session_alerts)
    gone = {"waiting": 0, "paid": 0, "timers (processing time)": 0}
    assert left == {"session": 3, "pages": 4, "timers (event time)": 3, **gone}
    assert len(select(tmp_path / "shop.db", "SELECT * FROM alerts WHERE kind = 'unpaid'")) == 2
    told = CliRunner().invoke(app, ["state", str(tmp_path / "ck")])
    assert told.exit_code == 0 and "timers (event time)" in told.stdout
