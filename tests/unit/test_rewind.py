"""`holdfast rewind`: a stopped pipeline starts again from earlier on, with its state, and nothing is lost by it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint import rewind as rewinding
from holdfast.checkpoint.history import engine_position
from holdfast.checkpoint.history_pages import HistoryPages
from holdfast.checkpoint.origin import Ahead, read_origin
from holdfast.checkpoint.rewind import plan_rewind, rewind
from holdfast.cli.app import app
from holdfast.errors import CheckpointInUseError, ConfigError, RecordError, SavepointError, StaleCheckpointError
from tests.unit.inprocess import Endpoint
from tests.unit.sparkfiles import SavedEngine
from tests.unit.test_savepoint import Hashed, rows_in, sink, stopped


def command(*words: object) -> tuple[int, dict]:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    return result.exit_code, json.loads(result.stdout or "{}")


def test_it_goes_on_after_an_earlier_checkpoint(tmp_path) -> None:
    old = stopped(tmp_path, batches=4)
    plan = plan_rewind(str(tmp_path / "ck"), to=1, ahead=Ahead.REDELIVER)
    assert {s: (f.checkpoints, f.rows) for s, f in plan.further.items()} == {"sqlite-orders": (2, 4)}
    done = rewind(plan)
    assert engine_position(str(tmp_path / "ck")) == (1, 1)
    again = SavedEngine(tmp_path / "ck", sink(tmp_path))
    assert again.log.lineage != old.log.lineage
    assert again.log.last_decided == 1
    again.run(2, [20, 21, 30, 31])
    again.restart()
    again.run(3, [40])
    again.stop()
    assert rows_in(tmp_path / "shop.db") == [0, 1, 10, 11, 20, 20, 21, 21, 30, 30, 31, 31, 40]
    kept = {str(p.relative_to(tmp_path / "ck" / done.backup)) for p in (tmp_path / "ck" / done.backup).rglob("*")}
    assert kept >= {"offsets/2", "offsets/3", "commits/2", "commits/3", "holdfast/commits/3.sqlite.2dorders.json"}


def test_sinks_that_have_the_rows_are_told_of_and_refused(tmp_path) -> None:
    stopped(tmp_path, batches=3)
    before = sorted((tmp_path / "ck").rglob("*"))
    with pytest.raises(SavepointError, match="'sqlite-orders' has 2 checkpoints with 4 rows"):
        plan_rewind(str(tmp_path / "ck"), to=0)
    assert sorted((tmp_path / "ck").rglob("*")) == before


def test_a_dry_run_changes_nothing(tmp_path) -> None:
    stopped(tmp_path, batches=3)
    before = sorted((tmp_path / "ck").rglob("*"))
    code, told = command("rewind", tmp_path / "ck", "--to", 1, "--ahead", "redeliver", "--dry-run")
    assert (code, told["dry_run"], told["checkpoint_id"]) == (0, True, 1)
    assert {"offsets/2", "commits/2"} <= set(told["removes"])
    assert sorted((tmp_path / "ck").rglob("*")) == before


def test_the_command_asks_and_does_it(tmp_path) -> None:
    stopped(tmp_path, batches=3)
    location = tmp_path / "ck"
    assert command("rewind", location, "--to", 1)[0] == 1
    assert command("rewind", location, "--to", 1, "--ahead", "redeliver")[0] == 3  # nobody there to confirm it
    code, told = command("rewind", location, "--to", 1, "--ahead", "redeliver", "--yes")
    assert code == 0
    assert (location / told["backup"]).is_dir()
    assert (
        CliRunner().invoke(app, ["rewind", str(location), "--to", "0", "--ahead", "redeliver", "--yes"]).exit_code == 0
    )
    assert engine_position(str(location)) == (0, 0)


def test_a_live_query_is_left_alone(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(0, [1])
    engine.run(1, [2])
    with pytest.raises(CheckpointInUseError, match="stop it first"):
        plan_rewind(str(tmp_path / "ck"), to=0, ahead=Ahead.REDELIVER)


def test_the_state_of_a_live_query_is_not_read(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(0, [1])
    told = CliRunner().invoke(app, ["state", str(tmp_path / "ck")])
    assert told.exit_code == 1 and "stop it first" in " ".join(told.stderr.split())


@pytest.mark.parametrize("to", [2, 7])
def test_a_checkpoint_that_is_not_there_is_refused_with_those_that_are(tmp_path, to: int) -> None:
    stopped(tmp_path)
    with pytest.raises(ConfigError, match=r"can go back to 0 \.\.\. 1"):
        plan_rewind(str(tmp_path / "ck"), to=to)


def test_state_goes_back_too_and_later_versions_are_removed(tmp_path) -> None:
    """A snapshot of the abandoned future would else be taken for the new one's when its number comes again."""
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path), stateful=True)
    for number in range(4):
        engine.run(number, [number])
    for name in ("4.zip", "4_ab-cd.changelog", "3.changelog", "2.zip", "keep-1.sst"):
        engine.spark.replace(f"state/0/1/{name}", b"x")
    engine.stop()
    rewind(plan_rewind(str(tmp_path / "ck"), to=1, ahead=Ahead.REDELIVER))
    assert engine.spark.names("state/0/0") == ["1.delta", "2.delta"]
    assert engine.spark.names("state/0/1") == ["2.zip", "keep-1.sst"]


def test_state_that_spark_no_longer_keeps_is_refused(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path), stateful=True)
    for number in range(3):
        engine.run(number, [number])
    engine.stop()
    engine.spark.delete("state/0/0/1.delta")
    with pytest.raises(StaleCheckpointError, match="no longer has the state of checkpoint 0"):
        plan_rewind(str(tmp_path / "ck"), to=0, ahead=Ahead.REDELIVER)


def test_what_sinks_have_is_left_out_where_the_replay_proves_equal(tmp_path) -> None:
    endpoint = Endpoint()
    engine = SavedEngine(tmp_path / "ck", Hashed(endpoint))
    for number in range(3):
        engine.run(number, [number * 2, number * 2 + 1])
    engine.stop()
    rewind(plan_rewind(str(tmp_path / "ck"), to=0, ahead=Ahead.SKIP))
    again = SavedEngine(tmp_path / "ck", Hashed(endpoint))
    again.run(1, [5, 4], [3, 2])
    again.run(2, [6])
    assert endpoint.rows == list(range(7))


def test_the_history_no_longer_tells_of_what_was_left(tmp_path) -> None:
    stopped(tmp_path, batches=4)
    location = str(tmp_path / "ck")
    pages = HistoryPages(location)
    rewind(plan_rewind(location, to=1, ahead=Ahead.REDELIVER))
    assert [c.checkpoint_id for c in hf.checkpoints(location)] == [0, 1]
    assert [c.checkpoint_id for c in hf.checkpoints(location, last=1)] == [1]
    again = SavedEngine(tmp_path / "ck", sink(tmp_path))
    again.now += 3600  # when the one that was left began must not be told of the new one
    again.run(2, [20])
    again.stop()
    new = hf.checkpoints(location)
    assert [(c.checkpoint_id, c.rows, c.generation == 0) for c in new] == [(0, 2, True), (1, 2, True), (2, 1, False)]
    assert new[2].started is not None and new[1].started is not None and new[2].started > new[1].started
    assert pages.between(0, 9) == new
    rewind(plan_rewind(location, to=0, ahead=Ahead.REDELIVER))
    assert [c.checkpoint_id for c in hf.checkpoints(location)] == [c.checkpoint_id for c in pages.between(0, 9)] == [0]


class Interrupted(BaseException):
    """A kill."""


@pytest.mark.parametrize("after", [0, 3, 6, None], ids=str)
def test_a_rewind_that_is_interrupted_is_finished_before_anything_starts(tmp_path, monkeypatch, after) -> None:
    """None: when all is done but the removal of the plan."""
    engine = stopped(tmp_path, batches=3)
    kind = type(engine.spark)
    plan = plan_rewind(str(tmp_path / "ck"), to=0, ahead=Ahead.REDELIVER)
    delete, left = kind.delete, [len(plan.removes) if after is None else after]

    def breaking(self, name: str) -> None:
        if name.startswith(("offsets/", "commits/", "holdfast/", rewinding.PLAN)):
            left[0] -= 1
            if left[0] < 0:
                raise Interrupted
        delete(self, name)

    monkeypatch.setattr(kind, "delete", breaking)
    with pytest.raises(Interrupted):
        rewind(plan)
    monkeypatch.undo()
    with pytest.raises(RecordError, match="rewind"):
        SavedEngine(tmp_path / "ck", sink(tmp_path))
    code, told = command("rewind", tmp_path / "ck")
    assert (code, told["checkpoint_id"]) == (0, 0)
    origin = read_origin(engine.storage)
    assert origin is not None and origin.lineage == engine.log.lineage, "that of the ledgers"
    again = SavedEngine(tmp_path / "ck", sink(tmp_path))
    again.run(1, [10, 11, 20, 21])
    again.stop()
    assert sorted(set(rows_in(tmp_path / "shop.db"))) == [0, 1, 10, 11, 20, 21]


# -- to offsets ------------------------------------------------------------------------------------------------------


def test_the_next_batch_begins_at_other_offsets(tmp_path) -> None:
    engine = stopped(tmp_path, batches=3)
    engine.plan(3, 2)
    lineage = engine.log.lineage
    plan = plan_rewind(str(tmp_path / "ck"), offsets={"orders": {"0": 3}}, ahead=Ahead.REDELIVER)
    assert {s: (f.checkpoints, f.rows) for s, f in plan.further.items()} == {"sqlite-orders": (2, 4)}
    done = rewind(plan)
    assert engine.end(2) == 3
    assert engine_position(str(tmp_path / "ck")) == (2, 2)
    assert (tmp_path / "ck" / done.backup / "offsets" / "2").exists()
    again = SavedEngine(tmp_path / "ck", sink(tmp_path))
    assert again.log.lineage == lineage
    again.run(3, [11, 20, 21])
    again.stop()
    assert rows_in(tmp_path / "shop.db") == [0, 1, 10, 11, 11, 20, 20, 21, 21]


def test_messages_are_left_out_only_if_that_is_said(tmp_path) -> None:
    engine = stopped(tmp_path)
    location = str(tmp_path / "ck")
    with pytest.raises(SavepointError, match="6 messages"):
        plan_rewind(location, offsets={"orders": {"0": 10}})
    code, told = command("rewind", location, "--to-offsets", '{"orders": {"0": 10}}', "--leave-out", "--yes")
    assert (code, told["left_out"]) == (0, 6)
    assert engine.end(1) == 10


def test_state_knows_rows_up_to_where_it_stands(tmp_path) -> None:
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path), stateful=True)
    engine.run(0, [1])
    engine.stop()
    with pytest.raises(SavepointError, match="keeps state"):
        plan_rewind(str(tmp_path / "ck"), offsets={"orders": {"0": 0}}, ahead=Ahead.REDELIVER)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "{}", '{"orders": 3}', '{"orders": {}}', '{"other": {"0": 1}}', '{"orders": {"7": 1}}',
     '{"orders": {"0": -1}}', '{"orders": {"0": "x"}}'],
)  # fmt: skip
def test_offsets_that_mean_nothing_are_refused(tmp_path, text: str) -> None:
    stopped(tmp_path)
    assert CliRunner().invoke(app, ["rewind", str(tmp_path / "ck"), "--to-offsets", text, "--yes"]).exit_code == 3


def test_one_of_the_two_is_chosen(tmp_path) -> None:
    stopped(tmp_path)
    for words in ((), ("--to", 0, "--to-offsets", '{"orders": {"0": 1}}')):
        assert command("rewind", tmp_path / "ck", *words)[0] == 3


# -- the savepoint command -------------------------------------------------------------------------------------------


def test_the_savepoint_commands(tmp_path) -> None:
    stopped(tmp_path)
    saved = tmp_path / "saved"
    code, made = command("savepoint", "create", tmp_path / "ck", saved, "--name", "one", "--keep", 3)
    assert (code, made["checkpoint_id"], made["pipeline"]) == (0, 1, "orders")
    assert [s["path"] for s in command("savepoint", "list", saved)[1]["savepoints"]] == [made["path"]]
    code, shown = command("savepoint", "show", made["path"], "--verify")
    assert (code, shown["verified"], shown["offsets"]) == (0, True, [{"orders": {"0": 4}}])
    code, begun = command("savepoint", "start-from", made["path"], tmp_path / "new")
    assert (code, begun["checkpoint_id"], begun["further"]) == (0, 1, {})
    for words in (["list", saved], ["show", made["path"]], ["create", tmp_path / "new", saved]):
        assert CliRunner().invoke(app, ["savepoint", *map(str, words)]).exit_code == 0
    assert command("savepoint", "delete", made["path"], "--yes")[0] == 0
    assert command("savepoint", "show", made["path"])[0] == 3
    assert isinstance(hf.savepoint(tmp_path / "new", saved).path, str)
    assert rewinding.interrupted(str(tmp_path / "ck")) is None


def test_sinks_that_are_ahead_end_start_from_with_code_1(tmp_path) -> None:
    stopped(tmp_path)
    path = hf.savepoint(tmp_path / "ck", tmp_path / "saved").path
    engine = SavedEngine(tmp_path / "ck", sink(tmp_path))
    engine.run(2, [20])
    engine.stop()
    words = ("savepoint", "start-from", path, tmp_path / "new")
    assert command(*words)[0] == 1
    assert not Path(tmp_path / "new").exists()
    assert CliRunner().invoke(app, [*map(str, words), "--ahead", "redeliver"]).exit_code == 0
