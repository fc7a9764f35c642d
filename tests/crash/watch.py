"""A reader beside the drivers: reads an endpoint again and again, in a thread, and remembers what was wrong with it."""

from __future__ import annotations

import threading
from collections import Counter

from tests.crash.stores import Store

#: seconds between two looks
PAUSE = 0.2


class Watch:
    """Rows never vanish, are never there twice, and are seen whole where the endpoint promises it."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._seen: set[int] = set()
        self._looks = 0
        self._problem: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"watch {store.kind}", daemon=True)
        self._thread.start()

    @property
    def looking(self) -> bool:
        """Until it is stopped or has found something."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """End it."""
        self._over.set()
        self._thread.join(60)

    def assert_nothing_wrong(self) -> None:
        """After a last look of its own."""
        self.stop()
        self._look()
        assert self._problem is None, f"{self._store.kind}: {self._problem}"
        assert self._looks > 3, "the reader hardly looked"

    def _run(self) -> None:
        while self._problem is None and not self._over.wait(PAUSE):
            try:
                self._look()
            except Exception as error:  # noqa: BLE001  told by assert_nothing_wrong
                if not self._store.away(error):
                    self._problem = f"a reader failed: {type(error).__name__}: {error}"

    def _look(self) -> None:
        view = self._store.received()
        self._looks += 1
        there = set(view)
        if self._problem is None:
            self._problem = self._judge(view, there)
        self._seen |= there

    def _judge(self, view: list[int], there: set[int]) -> str | None:
        if self._seen - there:
            return f"rows were seen and vanished: {sorted(self._seen - there)[:5]}"
        if len(view) != len(there):
            return f"rows are there twice: {[number for number, n in Counter(view).items() if n > 1][:5]}"
        if self._store.whole is not None:
            unit, size = self._store.whole
            torn = {name: n for name, n in Counter(map(unit, there)).items() if n != size}
            if torn:
                return f"seen in part: {torn}"
        return None
