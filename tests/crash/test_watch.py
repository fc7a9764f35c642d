"""The reader beside the drivers finds what it is there to find."""

from __future__ import annotations

import pytest

from tests.crash.harness import ROWS
from tests.crash.processes import wait_for
from tests.crash.stores import CHECKPOINT, Store
from tests.crash.watch import Watch

ONE, TWO = list(range(ROWS)), list(range(2 * ROWS))


class Memory(Store):
    """An endpoint that shows one view after another, the last one for ever; a view can be an error."""

    kind = "memory"
    whole = CHECKPOINT

    def __init__(self, *views: list[int] | Exception) -> None:
        self._views = list(views)
        self.looks = 0

    def received(self) -> list[int]:
        self.looks += 1
        view = self._views.pop(0) if len(self._views) > 1 else self._views[0]
        if isinstance(view, Exception):
            raise view
        return view

    def assert_nothing_left(self, name: str, checkpoints: int) -> None:
        assert len(self._views) == 1


def test_whole_checkpoints_that_stay_are_fine() -> None:
    store = Memory([], ONE, ONE, TWO)
    watching = Watch(store)
    wait_for(lambda: store.looks > 4, "all views are seen", 60)
    watching.assert_nothing_wrong()


@pytest.mark.parametrize(
    ("views", "wrong"),
    [
        (([], TWO, ONE, TWO), "rows were seen and vanished"),
        (([], [*ONE, 7], ONE), "rows are there twice"),
        (([], ONE, TWO[:-1], TWO), "seen in part"),
        (([], OSError("half a file"), ONE), "a reader failed: OSError: half a file"),
    ],
    ids=["vanished", "twice", "in part", "broken"],
)
def test_a_fault_that_a_later_look_would_not_show_is_remembered(views: tuple[list[int], ...], wrong: str) -> None:
    store = Memory(*views)
    watching = Watch(store)
    # It stops looking when it has found something.
    wait_for(lambda: not watching.looking, "the fault is seen", 60)
    with pytest.raises(AssertionError, match=wrong):
        watching.assert_nothing_wrong()
