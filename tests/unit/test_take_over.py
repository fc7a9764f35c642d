"""A take-over that dies half way is finished by the next start: nothing of the old lineage stays prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast.checkpoint.ports import Run
from holdfast.errors import ForeignLineageError
from holdfast.testing.local import Died
from tests.unit.inprocess import Endpoint, Engine, PreparingSink


class Owned(PreparingSink):
    """An endpoint that knows whose it is; only a take-over sweeps what others prepared."""

    def open(self, run: Run) -> None:
        super().open(run)
        self.run = run
        owner = getattr(self.endpoint, "owner", None)
        if owner not in (None, run.lineage) and not run.take_over:
            raise ForeignLineageError("another location's")
        self.endpoint.owner = run.lineage  # type: ignore[attr-defined]

    def recover(self, pipeline: str, generation: int, decided: Mapping[int, Sequence[Mapping[str, Any]]]) -> None:
        answer = self.endpoint.call("recover", generation, self.run.take_over)
        if answer is None and self.run.take_over:
            self.endpoint.prepared.pop("of the old lineage", None)


def test_a_take_over_that_dies_before_its_sweep_is_finished_by_the_next_start(tmp_path) -> None:
    endpoint = Endpoint()
    endpoint.owner = "the old lineage"  # type: ignore[attr-defined]
    endpoint.prepared["of the old lineage"] = [1]
    endpoint.fail("recover", Died("in the middle of the sweep"))
    with pytest.raises(Died):
        Engine(tmp_path / "new", Owned(endpoint), take_over=True)
    engine = Engine(tmp_path / "new", Owned(endpoint))
    assert endpoint.prepared == {}, "swept, although nobody asked for a take-over any more"
    engine.run(0, [7])
    assert endpoint.rows == [7]
    engine.restart(Owned(endpoint))
    assert endpoint.called("recover")[-1][1] is False, "once is enough"
