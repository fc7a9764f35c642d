"""`resolve` ends whatever is decided and owed, and keeps the rows; orders are carried out once, kills or not (D4)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from holdfast.cli.app import app
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.errors import (
    ConfigError,
    HoldfastError,
    LostError,
    RowError,
    SinkError,
)
from tests.unit.inprocess import Endpoint, Engine, PreparingSink, SendingSink, record_batch


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def resolved(*arguments: object) -> dict[str, Any]:
    result = run("resolve", *arguments, "--yes", "--json")
    assert result.exit_code == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def ids_of(location: Path | str, number: int, sink: str) -> list[int]:
    result = run("resolve", location, "--rows", number, "--sink", sink)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line)["id"] for line in result.stdout.splitlines()]


class ReadableSink(PreparingSink):
    """Its endpoint gives prepared rows back."""

    def rows_of(self, committables: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch] | None:
        self.endpoint.call("rows_of", len(committables))
        return iter([record_batch(self.endpoint.prepared[c["token"]]) for c in committables])


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def sending(tmp_path: Path, endpoint: Endpoint) -> SendingSink:
    return SendingSink(endpoint, FileCheckpointCommitter(str(tmp_path / "marks")))


def stuck_at(engine: Engine, endpoint: Endpoint, error: Exception, *partitions: Sequence[int]) -> None:
    """Checkpoint 0 is decided, and this is what its commit says for ever."""
    endpoint.fail("commit", *[error] * 50)
    with pytest.raises(HoldfastError):
        engine.run(0, *(partitions or ([1, 2], [3])))


@pytest.mark.contract("D4")
class TestAnyError:
    @pytest.mark.parametrize(
        "error",
        [RowError("bad text"), ConfigError("bad option"), RuntimeError("bug"), OSError("away"), LostError("gone")],
        ids=lambda error: type(error).__name__,
    )
    @pytest.mark.parametrize("sink", [PreparingSink, ReadableSink])
    def test_a_checkpoint_stuck_by_any_error_is_shown_and_given_up(self, tmp_path, endpoint, error, sink) -> None:
        engine = Engine(tmp_path / "holdfast", sink(endpoint))
        stuck_at(engine, endpoint, error)
        assert run("status", tmp_path).exit_code == 1
        [stuck] = json.loads(run("resolve", tmp_path, "--json").stdout)["stuck"]
        assert (stuck["checkpoint_id"], stuck["rows"], stuck["subtasks"]) == (0, 3, [0, 1])
        assert ("produce-anyway" in stuck["ways"]) == isinstance(error, LostError)
        report = resolved(tmp_path, "--give-up")["report"]
        assert (report["carried_out"], report["rows_possibly_lost"]) == (False, 3)
        assert "carried out by the next start" in run("status", tmp_path).stdout
        endpoint.failures.clear()
        engine.restart()
        assert endpoint.prepared == {} and endpoint.rows == [] and not engine.pending
        engine.committed = 0
        engine.run(1, [4])
        assert endpoint.rows == [4]
        [report] = json.loads(run("resolve", tmp_path, "--reports", "--json").stdout)["reports"]
        assert report["carried_out"] is True
        if sink is ReadableSink:
            assert report["rows_kept"] == 3 and sorted(ids_of(tmp_path, 0, "prepared")) == [1, 2, 3]
        else:
            assert report["rows_kept"] == 0 and "cannot read prepared rows back" in report["not_kept"]
        assert run("status", tmp_path).exit_code == 0
        assert run("resolve", tmp_path).exit_code == 0

    def test_rows_are_read_before_the_sweep_undoes_them(self, tmp_path, endpoint) -> None:
        engine = Engine(tmp_path / "holdfast", ReadableSink(endpoint))
        stuck_at(engine, endpoint, RowError("bad"))
        resolved(tmp_path, 0, "--give-up")
        endpoint.calls.clear()
        engine.restart()
        names = [call[0] for call in endpoint.calls]
        assert names.index("rows_of") < names.index("recover") and "commit" not in names

    def test_an_endpoint_that_is_away_is_asked_again_and_one_that_cannot_is_not_waited_for(self, tmp_path) -> None:
        for error, kept in ((SinkError("away"), 3), (LostError("the rows are gone"), 0)):
            endpoint = Endpoint()
            folder = tmp_path / type(error).__name__
            engine = Engine(folder / "holdfast", ReadableSink(endpoint))
            stuck_at(engine, endpoint, RowError("bad"))
            resolved(folder, 0, "--give-up")
            endpoint.failures = {"rows_of": [error]}
            engine.restart()
            [report] = json.loads(run("resolve", folder, "--reports", "--json").stdout)["reports"]
            assert report["rows_kept"] == kept and not engine.pending
            if not kept:
                assert "the rows are gone" in report["not_kept"]

    def test_mark_delivered_and_try_again(self, tmp_path, endpoint) -> None:
        engine = Engine(tmp_path / "holdfast", PreparingSink(endpoint))
        stuck_at(engine, endpoint, RowError("bad"))
        result = run("resolve", tmp_path, 0, "--try-again", "--yes")
        assert result.exit_code == 0 and "it tries again" in result.stdout
        assert engine.storage.names("lost") == []
        with pytest.raises(RowError):
            engine.restart()
        assert resolved(tmp_path, 0, "--mark-delivered")["report"]["rows_claimed_delivered"] == 3
        endpoint.failures.clear()
        engine.restart()
        assert not engine.pending and endpoint.rows == []

    def test_try_again_when_the_endpoint_works_again(self, tmp_path, endpoint) -> None:
        engine = Engine(tmp_path / "holdfast", PreparingSink(endpoint))
        stuck_at(engine, endpoint, RowError("bad"))
        run("resolve", tmp_path, "--try-again", "--yes")
        endpoint.failures.clear()
        engine.restart()
        assert sorted(endpoint.rows) == [1, 2, 3] and not engine.pending

    def test_produce_anyway_is_refused_for_what_was_not_lost(self, tmp_path, endpoint) -> None:
        engine = Engine(tmp_path / "holdfast", PreparingSink(endpoint))
        stuck_at(engine, endpoint, RowError("bad"))
        result = run("resolve", tmp_path, 0, "--produce-anyway", "--yes")
        assert result.exit_code == 3 and "nothing to produce again" in result.stderr


@pytest.mark.contract("D4")
class TestWriteAhead:
    def backlog(self, tmp_path: Path, endpoint: Endpoint, sending: SendingSink) -> Engine:
        """Three checkpoints that the endpoint did not take; another sink took them."""
        engine = Engine(tmp_path / "ck" / "holdfast", sending, PreparingSink(self.other))
        endpoint.down = False
        for number in range(3):
            engine.run(number, [10 * number, 10 * number + 1], [10 * number + 2])
        return engine

    @pytest.fixture(autouse=True)
    def _other(self) -> None:
        self.other = Endpoint()

    def test_a_sink_that_is_gone_for_good_is_given_up_and_removed(self, tmp_path, endpoint, sending) -> None:
        engine, location = self.backlog(tmp_path, endpoint, sending), tmp_path / "ck"
        with pytest.raises(ConfigError, match="--sink sending --give-up"):
            engine.restart(PreparingSink(self.other))
        reports = resolved(location, "--sink", "sending", "--give-up")["reports"]
        assert [r["checkpoint_id"] for r in reports] == [0, 1, 2] and all(r["carried_out"] for r in reports)
        assert engine.files("wal") == []
        engine.restart(PreparingSink(self.other))
        engine.run(3, [30])
        assert not engine.pending and self.other.rows[-1] == 30 and endpoint.rows == []
        for number in range(3):
            assert ids_of(location, number, "sending") == [10 * number, 10 * number + 1, 10 * number + 2]
        history = json.loads(run("history", location, "--json").stdout)["checkpoints"]
        assert [entry["status"] for entry in history] == ["complete"] * 4
        assert history[0]["sinks"]["sending"]["outcome"] == "given up"

    def test_one_checkpoint_is_given_up_and_the_rest_is_delivered(self, tmp_path, endpoint, sending) -> None:
        engine, location = self.backlog(tmp_path, endpoint, sending), tmp_path / "ck"
        resolved(location, 1, "--sink", "sending", "--give-up")
        endpoint.down = None
        engine.restart()
        assert endpoint.rows == [0, 1, 2, 20, 21, 22] and not engine.pending
        assert ids_of(location, 1, "sending") == [10, 11, 12]

    def test_a_prepared_sink_that_is_gone_for_good_is_given_up_too(self, tmp_path) -> None:
        endpoints = [Endpoint(), Endpoint()]
        sinks = [PreparingSink(end, name) for end, name in zip(endpoints, ("gone", "here"), strict=True)]
        engine = Engine(tmp_path / "holdfast", *sinks)
        endpoints[0].fail("commit", *[RowError("bad")] * 9)
        with pytest.raises(RowError):
            engine.run(0, [1])
        [report] = resolved(tmp_path, "--sink", "gone", "--give-up")["reports"]
        assert report["carried_out"] is False
        engine.restart(sinks[1])
        assert not engine.pending and endpoints[1].rows == [1]
        [report] = json.loads(run("resolve", tmp_path, "--reports", "--json").stdout)["reports"]
        assert report["carried_out"] is True and "no longer in the pipeline" in report["not_kept"]

    @pytest.mark.parametrize("how", ["missing", "damaged"])
    def test_a_file_that_is_missing_or_damaged_can_be_given_up(self, tmp_path, endpoint, sending, how) -> None:
        engine, location = self.backlog(tmp_path, endpoint, sending), tmp_path / "ck"
        path = location / "holdfast" / engine.files("wal/sending/0")[0]
        if how == "missing":
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-8])
        [report] = resolved(location, 0, "--sink", "sending", "--give-up")["reports"]
        assert [how in f.get("problem", how) for f in report["files"]] == [True, True]
        endpoint.down = None
        engine.restart()
        assert endpoint.rows == [10, 11, 12, 20, 21, 22] and not engine.pending
        if how == "missing":
            assert ids_of(location, 0, "sending") == [2]
        else:
            assert run("resolve", location, "--rows", 0).exit_code in (0, 1)

    def test_rows_are_exported_as_json_lines_and_as_arrow(self, tmp_path, endpoint, sending) -> None:
        self.backlog(tmp_path, endpoint, sending)
        location = tmp_path / "ck"
        resolved(location, 0, "--sink", "sending", "--give-up")
        lines, arrow = tmp_path / "rows.jsonl", tmp_path / "rows.arrow"
        assert run("resolve", location, "--rows", 0, "--out", lines).exit_code == 0
        assert json.loads(lines.read_text().splitlines()[0]) == {"id": 0, "name": "n0"}
        assert run("resolve", location, "--rows", 0, "--out", arrow).exit_code == 0
        with pa.ipc.open_stream(arrow.read_bytes()) as stream:
            assert stream.read_all().column("id").to_pylist() == [0, 1, 2]
        assert run("resolve", location, "--rows", 7).exit_code == 3
        text = run("resolve", location, "--reports").stdout
        assert "give-up" in text and "sending" in text

    def test_text_that_is_not_utf8_is_shown_escaped(self, tmp_path, endpoint, sending) -> None:
        engine = Engine(tmp_path / "ck" / "holdfast", sending)
        endpoint.down = False
        bad = _not_utf8()
        engine.run(0, [pa.RecordBatch.from_arrays([pa.array([1, 2]), bad], names=["id", "name"])])
        resolved(tmp_path / "ck", 0, "--sink", "sending", "--give-up")
        rows = [json.loads(line) for line in run("resolve", tmp_path / "ck", "--rows", 0).stdout.splitlines()]
        assert rows == [{"id": 1, "name": "ab\\xff"}, {"id": 2, "name": "ok"}]

    def test_kept_rows_are_sent_again_once(self, tmp_path, endpoint, sending) -> None:
        engine, location = self.backlog(tmp_path, endpoint, sending), tmp_path / "ck"
        resolved(location, 0, "--sink", "sending", "--give-up")
        endpoint.down = None
        engine.restart()
        assert run("resolve", location, "--send-again", 0, "--yes").exit_code == 0
        again = run("resolve", location, "--send-again", 0, "--yes")
        assert again.exit_code == 3 and "already" in again.stderr
        engine.restart()
        engine.run(3, [30], [31])
        assert endpoint.rows == [10, 11, 12, 20, 21, 22, 30, 31, 0, 1, 2]
        assert engine.files("again") == [] and not engine.pending
        engine.restart()
        engine.run(4, [40])
        assert endpoint.rows[-2:] == [2, 40], "once"
        assert ids_of(location, 0, "sending") == [0, 1, 2], "the report keeps its own"

    def test_a_driver_that_dies_after_the_decision_does_not_send_them_twice(
        self, tmp_path, endpoint, sending, monkeypatch
    ) -> None:
        from holdfast.checkpoint.again import SendAgain

        engine, location = self.backlog(tmp_path, endpoint, sending), tmp_path / "ck"
        resolved(location, 0, "--sink", "sending", "--give-up")
        run("resolve", location, "--send-again", 0, "--yes")
        endpoint.down = None
        engine.restart()
        with monkeypatch.context() as patch:
            patch.setattr(SendAgain, "done", _raise)
            with pytest.raises(RuntimeError):
                engine.run(3, [30])
        engine.restart()
        engine.run(3, [30])
        engine.run(4, [40])
        assert sorted(endpoint.rows) == [0, 1, 2, 10, 11, 12, 20, 21, 22, 30, 40]


def _raise(*_: Any) -> None:
    raise RuntimeError("killed")


def _not_utf8() -> pa.Array:
    good = pa.array([b"ab\xff", b"ok"], pa.binary())
    return pa.Array.from_buffers(pa.string(), 2, good.buffers())


def test_rows_are_kept_and_sent_again_on_an_object_store(tmp_path: Path, endpoint: Endpoint, bucket: str) -> None:
    location = f"s3://{bucket}/ck"
    engine = Engine(f"{location}/holdfast", SendingSink(endpoint, FileCheckpointCommitter(str(tmp_path / "marks"))))
    endpoint.down = False
    engine.run(0, [1, 2], [3])
    report = resolved(location, 0, "--give-up")["report"]
    assert sum(file["rows"] for file in report["files"]) == 3 and engine.files("wal") == []
    assert run("resolve", location, "--send-again", 0, "--yes").exit_code == 0
    endpoint.down = None
    engine.restart()
    engine.run(1, [4])
    assert sorted(endpoint.rows) == [1, 2, 3, 4] and not engine.pending
    assert sorted(ids_of(location, 0, "sending")) == [1, 2, 3]
    assert run("status", location).exit_code == 0
