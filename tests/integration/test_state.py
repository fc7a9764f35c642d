"""`hf.session(state="rocksdb")`, `holdfast state` and the state's size in the history, on real Spark (S1, S4)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli.app import app
from holdfast.errors import ConfigError
from holdfast.spark.session import STATES
from tests.integration.helpers import add_file, read_files

pytestmark = pytest.mark.spark


@pytest.fixture
def rocksdb(spark):
    before = {key: spark.conf.get(key, None) for key in STATES["rocksdb"]}
    yield hf.session("tests", state="rocksdb")
    for key, value in before.items():
        spark.conf.unset(key) if value is None else spark.conf.set(key, value)


def test_an_unknown_kind_of_state_is_refused() -> None:
    with pytest.raises(ConfigError, match="'rocksdb'"):
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
