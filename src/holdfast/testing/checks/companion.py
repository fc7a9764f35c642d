"""A second sink on the same stream, which fails where it is told to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Tasks
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task
from holdfast.sinks.two_phase import TwoPhaseCommitSink


class CompanionError(Exception):
    """The companion was told to fail."""


class Companion(TwoPhaseCommitSink):
    """Delivers nothing to nowhere."""

    name = "contract-companion"

    def __init__(self, failing: str = "") -> None:
        self._failing = failing

    def _step(self, name: str) -> None:
        if name == self._failing:
            raise CompanionError(f"the companion was told to fail in {name}")

    def begin(self, task: Task) -> Any:
        """See TwoPhaseCommitSink."""
        self._step("begin")

    def write(self, txn: Any, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink."""
        self._step("write")

    def pre_commit(self, txn: Any) -> Mapping[str, Any] | None:
        """See TwoPhaseCommitSink."""
        self._step("pre_commit")
        return {"version": 1}

    def abort(self, txn: Any) -> None:
        """See TwoPhaseCommitSink."""

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """See TwoPhaseCommitSink."""
        self._step("commit")
        return Outcome.COMMITTED

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """See TwoPhaseCommitSink."""
