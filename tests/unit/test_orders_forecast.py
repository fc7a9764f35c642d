"""What `--produce-anyway` forecasts is what it does (P5, D4)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.core.model import Outcome
from holdfast.errors import CommitError, LostError
from tests.unit.inprocess import Endpoint, Engine, PreparingSink
from tests.unit.test_orders import resolved, run
from tests.unit.test_repair import LossySink, drop


class TestForecast:
    def test_one_of_three_lost_without_digests_forecasts_the_rest_as_doubled(self, tmp_path, endpoint) -> None:
        """The sink cannot match rows, so the whole replay is produced: what was committed is doubled."""

        class Coarse(LossySink):
            repairable = False

        engine = Engine(tmp_path / "holdfast", Coarse(endpoint))
        endpoint.fail("commit", *[RuntimeError("away")] * 3)
        with pytest.raises(CommitError):
            engine.run(0, [1, 2], [3], [4])
        drop(endpoint, 1)
        with pytest.raises(LostError):
            engine.restart()
        [stuck] = json.loads(run("resolve", tmp_path, "--json").stdout)["stuck"]
        assert (stuck["subtasks"], stuck["rows"], stuck["certain"]) == ([1], 1, True), "only the lost one is named"
        assert (stuck["produced"], stuck["possibly_doubled"], stuck["possibly_lost"]) == (4, 3, 0)
        told = resolved(tmp_path, 0, "--produce-anyway")["report"]["expected"]
        engine.restart()
        engine.run(0, [1, 2], [3], [4])
        doubled = len(endpoint.rows) - len(set(endpoint.rows))
        assert doubled == told["rows_possibly_doubled"] == 3

    def test_one_of_three_lost_with_digests_forecasts_none_doubled(self, tmp_path, endpoint) -> None:
        engine = Engine(tmp_path / "holdfast", LossySink(endpoint))
        endpoint.fail("commit", *[RuntimeError("away")] * 3)
        with pytest.raises(CommitError):
            engine.run(0, [1, 2], [3], [4])
        drop(endpoint, 1)
        engine.committed = 0  # Spark does not replay it
        with pytest.raises(LostError):
            engine.restart()
        [stuck] = json.loads(run("resolve", tmp_path, "--json").stdout)["stuck"]
        assert (stuck["subtasks"], stuck["produced"], stuck["possibly_doubled"]) == ([1], 1, 0)


def test_outcomes_are_enough_for_the_lost(tmp_path: Path, endpoint: Endpoint) -> None:
    """A sink that can only say LOST: everything is named, uncertain, and can be ended."""
    engine = Engine(tmp_path / "holdfast", PreparingSink(endpoint))
    endpoint.fail("commit", *[Outcome.LOST] * 9)
    with pytest.raises(LostError):
        engine.run(0, [1], [2])
    [stuck] = json.loads(run("resolve", tmp_path, "--json").stdout)["stuck"]
    assert stuck["certain"] is False and stuck["possibly_doubled"] == stuck["produced"] == 2
