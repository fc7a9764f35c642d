"""`holdfast resolve`: the three ways out of a checkpoint that cannot be committed or repaired (P5)."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from holdfast.checkpoint import records, resolve
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.orders import finish
from holdfast.checkpoint.storage import open_storage
from holdfast.checkpoint.stuck import owed_findings
from holdfast.cli.app import app
from holdfast.core.model import RecordKind
from holdfast.errors import CommitError, LostError
from holdfast.testing.local import armed
from tests.unit.inprocess import DAMAGES, Endpoint, Engine, InProcessBatch, damage, snapshot
from tests.unit.test_repair import LossySink, decide_only, drop


def run(*arguments: object, **options: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], **options)


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def engine(tmp_path: Path, endpoint: Endpoint) -> Engine:
    return Engine(tmp_path / "holdfast", LossySink(endpoint))


def get_stuck(engine: Engine, endpoint: Endpoint, *replay: Sequence[int]) -> None:
    """Checkpoint 0 is decided as [1, 2], [3], [4]; the first two are lost; the replay differs."""
    decide_only(engine, [1, 2], [3], [4])
    drop(endpoint, 0, 1)
    engine.restart()
    with pytest.raises(LostError):
        engine.run(0, *(replay or ([3], [1, 9], [4])))


def repair_records(location: Path) -> list[Any]:
    log = CheckpointLog(open_storage(f"{location}/holdfast"), "orders")
    log.load()
    return [r for r in log._records.values() if r.kind is RecordKind.REPAIR]


def report(location: Path, sink: str = "prepared") -> dict[str, Any]:
    path = location / "holdfast" / "reports" / f"0.{sink}.json"
    return records.decode(path.read_bytes(), str(path), "report")


def test_a_driver_that_was_paused_in_its_start_leaves_the_finding_of_its_successor(tmp_path, engine, endpoint) -> None:
    """Found by the model (tests/unit/model): it knew no such checkpoint, and took that for done."""
    paused = CheckpointLog(open_storage(engine.location), "orders")
    paused.start()
    engine.restart()
    get_stuck(engine, endpoint)
    finish(paused)
    assert run("resolve", tmp_path).exit_code == 1 and engine.files("lost") != []


class TestShow:
    def test_nothing_is_stuck(self, engine, tmp_path) -> None:
        engine.run(0, [1])
        result = run("resolve", tmp_path)
        assert (result.exit_code, result.stdout) == (0, "nothing is stuck\n")
        assert run("status", tmp_path).exit_code == 0

    def test_what_is_stuck_and_the_ways_out_without_changing_anything(self, engine, endpoint, tmp_path) -> None:
        get_stuck(engine, endpoint)
        before = snapshot(engine.location)
        result = run("resolve", tmp_path)
        assert result.exit_code == 1
        for words in ("checkpoint", "prepared", "3 rows of subtasks 0, 1", "4 rows in 3 subtasks", "transactions of"):
            assert words in result.stdout
        for way in ("--produce-anyway", "--give-up", "--mark-delivered"):
            assert f"holdfast resolve {tmp_path} 0 --sink prepared {way}" in result.stdout
        [stuck] = json.loads(run("resolve", tmp_path, "--json").stdout)["stuck"]
        assert (stuck["checkpoint_id"], stuck["sink"], stuck["subtasks"], stuck["rows"]) == (0, "prepared", [0, 1], 3)
        assert (stuck["produced"], stuck["possibly_doubled"], stuck["possibly_lost"]) == (3, 2, 2)
        assert "3 rows of checkpoint 0 are missing in sink 'prepared' for ever" in stuck["ways"]["give-up"]
        assert snapshot(engine.location) == before

    @pytest.mark.contract("D4")
    def test_status_shows_it_and_exits_with_1(self, engine, endpoint, tmp_path) -> None:
        get_stuck(engine, endpoint)
        result = run("status", tmp_path, "--json")
        document = json.loads(result.stdout)
        assert (result.exit_code, document["health"], len(document["stuck"])) == (1, "degraded", 1)
        assert f"see holdfast resolve {tmp_path}" in run("status", tmp_path).stdout
        run("resolve", tmp_path, "--give-up", "--yes")
        result = run("status", tmp_path, "--json")
        document = json.loads(result.stdout)
        assert (result.exit_code, document["stuck"]) == (0, [])
        assert document["resolutions"][0]["rows_lost"] == 3
        assert "give-up by" in run("status", tmp_path).stdout


class TestWaysOut:
    @pytest.mark.parametrize(
        ("way", "key"), [("give-up", "rows_lost"), ("mark-delivered", "rows_claimed_delivered")], ids=lambda x: x
    )
    def test_without_the_lost_rows(self, engine, endpoint, tmp_path, way, key) -> None:
        get_stuck(engine, endpoint)
        result = run("resolve", tmp_path, 0, f"--{way}", "--yes", "--json")
        assert result.exit_code == 0, result.stderr
        told = json.loads(result.stdout)["report"]
        assert (told["how"], told["rows"], told["subtasks"], told[key]) == (way, 3, [0, 1], 3)
        assert told["by"] and told["host"] and told["at"] > 1_600_000_000_000 and told["carried_out"] is True
        assert report(tmp_path)[key] == 3
        [record] = repair_records(tmp_path)
        assert record.resolution["prepared"]["how"] == way
        assert [(c.subtask, c.data) for c in record.committables] == [(0, None), (1, None)]
        assert engine.storage.names("lost") == []
        engine.restart()
        batch = engine.run(0, [3], [1, 9], [4])
        assert batch.writes == 0 and batch.drained == 1
        engine.run(1, [5])
        assert sorted(endpoint.rows) == [4, 5] and not engine.pending
        assert report(tmp_path)[key] == 3
        again = run("resolve", tmp_path, 0, f"--{way}", "--yes")
        assert again.exit_code == 1 and "resolved already" in again.stderr

    def test_produce_anyway(self, engine, endpoint, tmp_path) -> None:
        get_stuck(engine, endpoint)
        result = run("resolve", tmp_path, "--produce-anyway", "--yes", "--json")
        assert result.exit_code == 0, result.stderr
        told = json.loads(result.stdout)["report"]
        assert told["carried_out"] is False
        assert told["expected"] == {"rows_produced": 3, "rows_possibly_doubled": 2, "rows_possibly_lost": 2}
        again = run("resolve", tmp_path, 0, "--give-up", "--yes")
        assert again.exit_code == 1 and "resolved already: produce-anyway" in again.stderr
        engine.restart()
        engine.run(0, [4], [1, 9], [3])
        assert sorted(endpoint.rows) == [1, 3, 4, 9] and not engine.pending and not endpoint.prepared
        assert [(r.kind, bool(r.resolution)) for r in repair_records(tmp_path)] == [("repair", True), ("repair", False)]
        body = report(tmp_path)
        assert (body["carried_out"], body["rows_produced"], body["rows_proven_equal"]) == (True, 3, 1)
        assert (body["rows_possibly_doubled"], body["rows_possibly_lost"]) == (2, 2)
        engine.run(1, [5])
        assert run("resolve", tmp_path, 0, "--produce-anyway", "--yes").exit_code == 1

    def test_produce_anyway_and_then_the_replay_is_equal(self, engine, endpoint, tmp_path) -> None:
        """What is proven is not told as doubtful, and nothing beside it is produced."""
        get_stuck(engine, endpoint)
        run("resolve", tmp_path, "--produce-anyway", "--yes")
        engine.restart()
        engine.run(0, [3, 1, 2], [4])
        assert sorted(endpoint.rows) == [1, 2, 3, 4]
        body = report(tmp_path)
        assert (body["rows_proven_equal"], body["rows_possibly_doubled"], body["rows_possibly_lost"]) == (3, 0, 0)

    def test_produce_anyway_takes_a_replay_that_differs_from_pass_to_pass(self, engine, endpoint, tmp_path) -> None:
        """A query with rand() gives other rows each time: the order must end it all the same."""

        class Restless(InProcessBatch):
            def digests(self, sink):  # type: ignore[no-untyped-def]
                seen = super().digests(sink)
                self.partitions = ([3], [1, 8], [4])
                return seen

        get_stuck(engine, endpoint)
        run("resolve", tmp_path, "--produce-anyway", "--yes")
        engine.restart()
        engine.coordinator.run(0, Restless([3], [1, 9], [4]))
        assert sorted(endpoint.rows) == [1, 3, 4, 8] and not engine.pending
        told = report(tmp_path)
        assert (told["rows_produced"], told["rows_proven_equal"], told["rows_possibly_doubled"]) == (3, 0, 3)
        assert told["rows_possibly_lost"] == 3

    def test_produce_anyway_is_refused_where_spark_does_not_replay(self, engine, endpoint, tmp_path) -> None:
        decide_only(engine, [1, 2], [3])
        drop(endpoint, 0)
        engine.committed = 0
        with pytest.raises(LostError, match="holdfast resolve"):
            engine.restart()
        for folder in ("offsets", "commits"):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "0").touch()
        result = run("resolve", tmp_path, "--produce-anyway", "--yes")
        assert result.exit_code == 3 and "does not replay it" in result.stderr
        assert run("resolve", tmp_path, "--mark-delivered", "--yes").exit_code == 0
        engine.restart()
        assert endpoint.rows == [3] and not engine.pending

    def test_one_sink_of_two(self, tmp_path) -> None:
        ends = {name: Endpoint() for name in ("first", "second")}
        engine = Engine(tmp_path / "holdfast", *(LossySink(end, name) for name, end in ends.items()))
        for end in ends.values():
            end.fail("commit", *[RuntimeError("away")] * 3)
        with pytest.raises(Exception, match="did not commit"):
            engine.run(0, [1], [2])
        for end in ends.values():
            drop(end, 0)
        engine.committed = 0
        result = run("resolve", tmp_path, 0, "--give-up", "--yes")
        assert result.exit_code == 3 and "0 --sink first, 0 --sink second" in result.stderr
        for name in ends:  # each start finds one
            with pytest.raises(LostError):
                engine.restart()
            result = run("resolve", tmp_path, 0, "--sink", name, "--give-up", "--yes")
            assert result.exit_code == 0, result.stderr
        engine.restart()
        assert [end.rows for end in ends.values()] == [[2], [2]] and not engine.pending

    def test_a_kill_between_the_record_and_the_report(self, engine, endpoint, tmp_path, monkeypatch) -> None:
        get_stuck(engine, endpoint)
        from holdfast.checkpoint import resolve as module

        real = module.finish
        monkeypatch.setattr(module, "finish", lambda log: None)
        run("resolve", tmp_path, "--give-up", "--yes")
        assert engine.storage.names("lost") and not engine.storage.names("reports")
        assert json.loads(run("status", tmp_path, "--json").stdout)["resolutions"][0]["rows_lost"] == 3
        monkeypatch.setattr(module, "finish", real)
        result = run("resolve", tmp_path, 0, "--give-up", "--yes")
        assert result.exit_code == 1 and "resolved already" in result.stderr
        assert report(tmp_path)["rows_lost"] == 3 and not engine.storage.names("lost")


class TestRefusals:
    def test_a_checkpoint_that_is_not_stuck_says_so(self, engine, endpoint, tmp_path) -> None:
        engine.run(0, [1], [2])
        for arguments, words in (
            ([99], "checkpoint 99 is not stuck: it is not decided (the newest is 0)"),
            ([0], "checkpoint 0 is not stuck: it was committed by every sink"),
            ([0, "--sink", "prepared"], "checkpoint 0 is not stuck: it was committed by sink 'prepared'"),
            ([0, "--sink", "other"], "checkpoint 0 has no rows for a sink 'other'; its sinks: prepared"),
            ([], "nothing is stuck: everything that is decided was committed by every sink"),
        ):
            for way in ([], ["--give-up", "--yes"], ["--try-again", "--yes"]):
                if arguments or way:
                    result = run("resolve", tmp_path, *arguments, *way)
                    assert result.exit_code == 3 and words in result.stderr, (arguments, way, result.stderr)

    def test_one_so_old_that_its_record_is_gone(self, tmp_path, endpoint) -> None:
        engine = Engine(tmp_path / "holdfast", LossySink(endpoint), retain=1)
        for number in range(4):
            engine.run(number, [number])
        assert "its record is gone" in run("resolve", tmp_path, 0, "--give-up", "--yes").stderr

    def test_a_finding_that_no_longer_applies(self, engine, endpoint, tmp_path) -> None:
        """What it was about was replaced: nothing is stuck. But it is owed, so it can be given up all the same."""
        get_stuck(engine, endpoint)
        engine.restart()
        with armed("repair=lost"), pytest.raises(Exception, match="fault repair"):  # recorded, then killed
            engine.run(0, [3], [1, 2], [4])
        assert engine.storage.names("lost") == ["0.prepared.json"]
        assert run("resolve", tmp_path).exit_code == 0
        result = run("resolve", tmp_path, 0, "--give-up", "--yes", "--json")
        assert json.loads(result.stdout)["report"]["rows_possibly_lost"] == 4

    def test_committed_since(self, engine, endpoint, tmp_path) -> None:
        get_stuck(engine, endpoint)
        finding = engine.storage.read("lost/0.prepared.json")
        engine.restart()
        engine.run(0, [3], [1, 2], [4])
        assert engine.storage.names("lost") == [], "what was repaired is not offered"
        engine.storage.replace("lost/0.prepared.json", finding)
        assert run("resolve", tmp_path).exit_code == 0
        assert run("resolve", tmp_path, 0, "--give-up", "--yes").exit_code == 3
        assert sorted(endpoint.rows) == [1, 2, 3, 4]

    def test_something_changed_since_the_operator_looked(self, engine, endpoint, tmp_path) -> None:
        """A driver repairs it after the question and before the answer: the answer is to another question."""
        get_stuck(engine, endpoint)
        [seen] = owed_findings(engine.log).values()
        engine.restart()
        engine.run(0, [3], [1, 2], [4])
        with pytest.raises(CommitError, match="checkpoint 0 of sink 'prepared': something changed meanwhile"):
            resolve.record_orders(str(tmp_path), "orders", [seen], "give-up", {"by": "me", "host": "h", "at": 1})
        assert sorted(endpoint.rows) == [1, 2, 3, 4] and engine.storage.names("reports") == []

    def test_a_driver_that_is_alive(self, engine, endpoint, tmp_path) -> None:
        get_stuck(engine, endpoint)
        other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        try:
            path = tmp_path / "holdfast" / "generations" / str(engine.log.generation)
            body = records.decode(path.read_bytes(), "", "generation")
            path.write_bytes(records.encode("generation", body["nonce"], {**body, "pid": other.pid}))
            before = snapshot(engine.location)
            result = run("resolve", tmp_path, "--give-up", "--yes")
            assert result.exit_code == 1 and f"process {other.pid}" in result.stderr
            assert snapshot(engine.location) == before
            assert run("resolve", tmp_path, "--give-up", "--yes", "--fence").exit_code == 0
        finally:
            other.kill()
            other.wait()

    @pytest.mark.parametrize("how", DAMAGES)
    @pytest.mark.parametrize("name", ["lost/0.prepared.json", "decisions/0.0.json"])
    def test_a_damaged_record(self, engine, endpoint, tmp_path, how, name) -> None:
        get_stuck(engine, endpoint)
        damage(tmp_path / "holdfast" / name, how)
        result = run("resolve", tmp_path, "--give-up", "--yes")
        assert result.exit_code == 1 and name in result.stderr
        assert run("status", tmp_path).exit_code == 1

    def test_more_than_one_without_naming_which(self, tmp_path) -> None:
        endpoint = Endpoint()
        engine = Engine(tmp_path / "holdfast", LossySink(endpoint))
        get_stuck(engine, endpoint)
        path = tmp_path / "holdfast" / "lost" / "0.prepared.json"
        body = records.decode(path.read_bytes(), "", "lost")
        log = CheckpointLog(open_storage(engine.location), "orders")
        log.start()
        decided = log.facts.decided[0]
        log.decide(1, decided.sinks, decided.committables, timestamp=1, state={})
        other = records.encode("lost", "n", {**body, "checkpoint_id": 1, "nonce": "n"})
        path.with_name("1.prepared.json").write_bytes(other)
        result = run("resolve", tmp_path, "--give-up", "--yes")
        assert result.exit_code == 3 and "0 --sink prepared, 1 --sink prepared" in result.stderr
        assert run("resolve", tmp_path, 1, "--give-up", "--yes").exit_code == 0

    def test_two_choices(self, engine, endpoint, tmp_path) -> None:
        get_stuck(engine, endpoint)
        assert run("resolve", tmp_path, "--give-up", "--mark-delivered", "--yes").exit_code == 3

    def test_without_a_terminal_and_without_yes(self, engine, endpoint, tmp_path) -> None:
        get_stuck(engine, endpoint)
        before = snapshot(engine.location)
        result = run("resolve", tmp_path, "--give-up")
        assert result.exit_code == 3 and "pass --yes" in result.stderr
        assert snapshot(engine.location) == before

    @pytest.mark.parametrize("answer", ["y", "n"])
    def test_a_person_is_asked_at_a_terminal(self, engine, endpoint, tmp_path, answer) -> None:
        get_stuck(engine, endpoint)
        main, terminal = pty.openpty()
        command = [sys.executable, "-m", "holdfast.cli", "resolve", str(tmp_path), "--give-up", "--fence", "--json"]
        with subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            os.write(main, f"{answer}\n".encode())
            out, err = child.communicate(timeout=60)
        os.close(main)
        os.close(terminal)
        assert b"3 rows of checkpoint 0 are missing in sink 'prepared' for ever. Go on?" in err
        assert child.returncode == (0 if answer == "y" else 1)
        assert bool(engine.storage.names("lost")) == (answer == "n")
        if answer == "y":
            assert json.loads(out)["report"]["how"] == "give-up"
