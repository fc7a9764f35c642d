"""Where the sink's state is kept: in the record while it is small, else in a file that the record names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.checkpoint.ports import Run
from holdfast.connectors.files.parts import Folder
from holdfast.connectors.files.sidecar import put_state, sweep_states
from holdfast.connectors.files.state import PartsState


class Kept:
    """The states of one query run; empty text stands for one that is in its record."""

    def __init__(self, most: int) -> None:
        #: bytes of a state that its record may have
        self._most = most
        self._recorded = self._newest = ""
        self._number = 0
        self._sweep = True
        self._last: tuple[PartsState | None, dict[str, Any]] = (None, {})

    def put(self, folder: Folder, run: Run, state: PartsState, options: Mapping[str, Any]) -> dict[str, Any]:
        """As the record will have it; the same again for the same state."""
        if state is self._last[0]:
            return self._last[1]
        data = put_state(folder, run.lineage, run.generation, self._number, state.to_json(options), self._most)
        self._number += 1
        self._newest = data.get("in", "")
        self._sweep = self._sweep or bool(self._newest)
        self._last = (state, data)
        return data

    def recorded(self, state: Any) -> None:
        """This one is what the log has."""
        self._recorded = state.get("in", "") if isinstance(state, dict) else ""
        self._sweep = self._sweep or bool(self._recorded)

    def decided(self) -> None:
        """The newest one is what the log has."""
        self._recorded = self._newest

    def sweep(self, folder: Folder, run: Run) -> None:
        """Remove what newer ones have replaced; the newest stays, since a record whose answer was lost may name it."""
        if self._sweep:
            keep = {self._recorded, self._newest} - {""}
            self._sweep = bool(keep)
            sweep_states(folder, run.lineage, keep, (run.generation, self._number))
