"""Orders of `resolve` under kills at every write, and about endpoints that were restored (D4, D5)."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest

from holdfast.checkpoint import orders
from holdfast.checkpoint.storage import LocalStorage
from holdfast.committers.file import FileCheckpointCommitter
from holdfast.errors import RestoredEndpointError, RowError
from tests.unit.inprocess import Endpoint, Engine, PreparingSink, SendingSink
from tests.unit.test_orders import ReadableSink, ids_of, resolved, run, stuck_at

WRITES = ("create", "replace", "delete", "writer")


class TestKills:
    """Whatever write of the store is the last one, the next command or start does the rest, once."""

    def arm(self, patch: pytest.MonkeyPatch, at: int, *, after: bool) -> list[str]:
        calls: list[str] = []

        def wrap(method: str) -> None:
            real = getattr(LocalStorage, method)

            def call(self: Any, *arguments: Any) -> Any:
                calls.append(f"{method} {arguments[0]}")
                if len(calls) == at and not after:
                    raise KeyboardInterrupt
                result = real(self, *arguments)
                if len(calls) == at:
                    raise KeyboardInterrupt
                return result

            patch.setattr(LocalStorage, method, call)

        for method in WRITES:
            wrap(method)
        return calls

    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    def test_give_up_of_rows_in_the_log(self, tmp_path, after) -> None:
        count = 1
        while True:
            folder, endpoint = tmp_path / f"{after}{count}", Endpoint()
            sink = SendingSink(endpoint, FileCheckpointCommitter(str(folder / "marks")))
            engine = Engine(folder / "ck" / "holdfast", sink)
            endpoint.down = False
            engine.run(0, [1, 2], [3])
            engine.run(1, [4])
            with pytest.MonkeyPatch.context() as patch:
                calls = self.arm(patch, count, after=after)
                first = run("resolve", folder / "ck", 0, "--sink", "sending", "--give-up", "--yes")
            if len(calls) < count:
                assert first.exit_code == 0
                assert count > 8, calls
                return
            second = run("resolve", folder / "ck", 0, "--sink", "sending", "--give-up", "--yes")
            assert second.exit_code == 0 or "resolved already" in second.stderr or "not stuck" in second.stderr, calls
            endpoint.down = None
            engine.restart()
            engine.run(2, [5])
            assert endpoint.rows == [4, 5] and not engine.pending, calls
            assert sorted(ids_of(folder / "ck", 0, "sending")) == [1, 2, 3], calls
            assert engine.files("wal") == [] and engine.files("lost") == [], calls
            count += 1

    @pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
    def test_a_start_that_carries_out_an_order(self, tmp_path, after) -> None:
        count = 1
        while True:
            folder, endpoint = tmp_path / f"{after}{count}", Endpoint()
            engine = Engine(folder / "holdfast", ReadableSink(endpoint))
            stuck_at(engine, endpoint, RowError("bad"))
            endpoint.failures.clear()
            resolved(folder, 0, "--give-up")
            with pytest.MonkeyPatch.context() as patch:
                calls = self.arm(patch, count, after=after)
                with suppress(KeyboardInterrupt):
                    engine.restart()
            if len(calls) < count:
                assert count > 8, calls
                return
            engine.restart()
            engine.committed = 0
            engine.run(1, [4])
            assert endpoint.rows == [4] and not endpoint.prepared and not engine.pending, calls
            assert sorted(ids_of(folder, 0, "prepared")) == [1, 2, 3], calls
            [report] = json.loads(run("resolve", folder, "--reports", "--json").stdout)["reports"]
            assert report["carried_out"] is True and engine.files("lost") == [], calls
            count += 1

    def test_everything_of_a_sink_is_given_up_in_two_goes(self, tmp_path, endpoint) -> None:
        sink = SendingSink(endpoint, FileCheckpointCommitter(str(tmp_path / "marks")))
        engine = Engine(tmp_path / "ck" / "holdfast", sink, PreparingSink(Endpoint()))
        endpoint.down = False
        for number in range(3):
            engine.run(number, [number])
        with pytest.MonkeyPatch.context() as patch:
            self.arm(patch, 12, after=False)
            run("resolve", tmp_path / "ck", "--sink", "sending", "--give-up", "--yes")
        log = engine.log
        log.load()
        before = [n for n, decided in log.facts.decided.items() if "sending" in decided.resolution]
        assert 0 < len(before) < 3
        again = resolved(tmp_path / "ck", "--sink", "sending", "--give-up")["reports"]
        assert [r["checkpoint_id"] for r in again] == [n for n in range(3) if n not in before]
        engine.restart(engine.sinks[1])
        assert not engine.pending
        for number in range(3):
            assert ids_of(tmp_path / "ck", number, "sending") == [number]

    def test_orders_of_an_older_holdfast_have_no_id(self, tmp_path, endpoint) -> None:
        engine = Engine(tmp_path / "holdfast", PreparingSink(endpoint))
        stuck_at(engine, endpoint, RowError("bad"))
        old = {"how": "give-up", "by": "me", "host": "h", "at": 1, "rows": 3, "subtasks": [0, 1], "certain": True}
        order = {**old, "finding": "n", "expected": {"rows_lost": 3}}
        log = engine.log
        log.decide(0, ("prepared",), (), timestamp=0, state={}, kind="repair", resolution={"prepared": order})  # type: ignore[arg-type]
        orders.finish(log)
        [report] = json.loads(run("resolve", tmp_path, "--reports", "--json").stdout)["reports"]
        assert (report["rows_lost"], report["carried_out"]) == (3, True)


class RestoredSink(PreparingSink):
    """Refuses a start when its endpoint lacks what was committed."""

    lacks_from: int | None = None

    def open(self, run: Any) -> None:
        super().open(run)
        known = run.committed.get(self.name)
        if self.lacks_from is not None and known is not None and known.checkpoint_id >= self.lacks_from:
            raise RestoredEndpointError(
                f"restored: `holdfast resolve L --sink {self.name} --accept-restored`",
                behind=(self.lacks_from, known.checkpoint_id),
            )


class TestRestored:
    def test_accepting_a_restored_endpoint_goes_on_and_names_what_is_given_up(self, tmp_path, endpoint) -> None:
        from holdfast.checkpoint.pulse import Pulse

        sink = RestoredSink(endpoint)
        engine = Engine(tmp_path / "holdfast", sink)
        for number in range(3):
            engine.run(number, [number], [number + 10])
        sink.lacks_from = 1
        with pytest.raises(RestoredEndpointError) as caught:
            engine.restart()
        Pulse(engine.log).end([], caught.value)
        assert run("resolve", tmp_path, "--accept-restored", "--yes").exit_code == 3, "which sink?"
        asked = run("resolve", tmp_path, "--sink", "prepared", "--accept-restored")
        assert "checkpoints 1 to 2 of sink 'prepared' (4 rows) are not sent again" in asked.stderr
        report = resolved(tmp_path, "--sink", "prepared", "--accept-restored")["report"]
        assert (report["first"], report["through"], report["rows_possibly_lost"]) == (1, 2, 4)
        engine.restart()
        engine.run(3, [30])
        assert endpoint.rows[-1] == 30
        sink.lacks_from = 3
        with pytest.raises(RestoredEndpointError):
            engine.restart()

    def test_an_order_about_the_same_checkpoint_does_not_forget_it(self, tmp_path, endpoint) -> None:
        sink = RestoredSink(endpoint)
        engine = Engine(tmp_path / "holdfast", sink)
        engine.run(0, [0])
        endpoint.fail("commit", *[RowError("bad")] * 9)
        with pytest.raises(RowError):
            engine.run(1, [1])
        sink.lacks_from = 0
        with pytest.raises(RestoredEndpointError):
            engine.restart()
        resolved(tmp_path, "--sink", "prepared", "--accept-restored")
        resolved(tmp_path, 1, "--give-up")
        engine.restart()
        assert not engine.pending

    def test_accepting_it_does_not_forget_an_order_that_waits_for_the_next_start(self, tmp_path, endpoint) -> None:
        sink = RestoredSink(endpoint)
        engine = Engine(tmp_path / "holdfast", sink)
        engine.run(0, [0])
        endpoint.fail("commit", *[RowError("bad")] * 9)
        with pytest.raises(RowError):
            engine.run(1, [1])
        sink.lacks_from = 0
        with pytest.raises(RestoredEndpointError):
            engine.restart()
        assert resolved(tmp_path, 1, "--give-up")["report"]["carried_out"] is False
        resolved(tmp_path, "--sink", "prepared", "--accept-restored")
        engine.restart()
        assert not engine.pending
        assert endpoint.rows == [0], "what was given up came back"

    def test_a_sink_of_which_nothing_is_expected(self, tmp_path, endpoint) -> None:
        Engine(tmp_path / "holdfast", PreparingSink(endpoint)).run(0, [1])
        result = run("resolve", tmp_path, "--sink", "other", "--accept-restored", "--yes")
        assert result.exit_code == 3 and "committed nothing" in result.stderr
