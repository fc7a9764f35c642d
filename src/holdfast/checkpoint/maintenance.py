"""Work of a sink that comes due without rows: a file that is old enough, the end of a run (F3, F6, rule 7).

Whatever a sink is about to do is first written into the log, as its new operator state. A slot of the log is filled
once and by the newest driver only, so two drivers can never plan differently for the same rows.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import Tasks
from holdfast.checkpoint.records import check_plain


@runtime_checkable
class NeedsMaintenance(Protocol):
    """What a sink has that keeps rows of complete checkpoints; no other needs it."""

    name: str

    def revise_state(self, now: float, *, last: bool) -> Any:
        """The operator state with what is due now planned in it, or None when nothing is; `last`: the run has ended."""

    def initialize_state(self, state: Any) -> None:
        """That state is recorded now."""

    def act_on_state(self, tasks: Tasks) -> None:
        """Do what the recorded state says and is not done yet; repeatable."""


def maintain(log: CheckpointLog, sink: NeedsMaintenance, tasks: Tasks, now: float, *, last: bool = False) -> None:
    """Let a sink finish what is planned, record what is due, and do it."""
    sink.act_on_state(tasks)
    state = sink.revise_state(now, last=last)
    if state is not None:
        log.amend_state(sink.name, check_plain(f"sink {sink.name!r}: revise_state", state))
        sink.initialize_state(state)
        sink.act_on_state(tasks)
