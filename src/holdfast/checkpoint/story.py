"""What the history is told of each checkpoint: by the batch, and by whichever loop commits last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.history import History
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.phases import Phases, summary
from holdfast.checkpoint.ports import SubtaskReport
from holdfast.checkpoint.repair import Repaired
from holdfast.core.model import CheckpointId, Decided
from holdfast.core.recovery import plan_recovery
from holdfast.core.states import Event, State, advance, recorded
from holdfast.errors import first_line

#: checkpoint -> {sink: outcome}
Outcomes = Callable[[CheckpointId], Mapping[str, Any]]


class Story:
    """The checkpoints of one run, as the history has them."""

    def __init__(self, log: CheckpointLog, outcomes: Outcomes, trigger: str | None = None) -> None:
        self._log, self._outcomes = log, outcomes
        self._trigger = {} if trigger is None else {"trigger": trigger}
        self._history = History(log.storage, log.generation, retain=log.history_retain)
        self._lock = threading.Lock()
        #: the state of each checkpoint that is decided, and not complete as far as the history was told
        self._open = {number: recorded(committed=False) for number in self._pending()}
        #: what earlier runs decided and did not finish
        self.inherited = frozenset(self._open)

    def _pending(self) -> set[CheckpointId]:
        return {action.checkpoint_id for action in plan_recovery(self._log.facts)}

    def failed(self, checkpoint_id: CheckpointId, state: State, started: int, error: BaseException) -> None:
        """It was not decided."""
        text = f"{type(error).__name__}: {first_line(error)}"
        self._history.add(checkpoint_id, {"status": state, "started": started, "error": text})

    def repaired(self, checkpoint_id: CheckpointId, state: State, done: Sequence[Repaired]) -> None:
        """Lost rows were produced again; `state`: before that."""
        entry = {"repaired": {r.sink: {"rows": r.rows, "subtasks": r.subtasks} for r in done}}
        self._history.add(checkpoint_id, {"status": advance(state, Event.REPAIR), **entry})

    def replayed(self, checkpoint_id: CheckpointId, started: int) -> None:
        """Spark ran a decided batch again."""
        with self._lock:
            known = self._open.get(checkpoint_id)
            state = recorded(committed=True) if known is None else self._settle(checkpoint_id, known)
            self._history.add(checkpoint_id, {"status": state, "restored": True, "started": started})

    def decided(
        self,
        checkpoint_id: CheckpointId,
        state: State,
        clock: Phases,
        reports: Sequence[SubtaskReport],
        decided: Decided,
    ) -> None:
        """The batch is done with it; a sink may still be committing it."""
        with self._lock:
            state = self._settle(checkpoint_id, state)
            told = summary(reports, decided, self._outcomes(checkpoint_id))
            self._history.add(checkpoint_id, {"status": state, **self._trigger, **clock.told(), **told})

    def committed(self, checkpoint_id: CheckpointId) -> None:
        """A loop has committed it: if it was the last one, and the history does not know yet, say so."""
        with self._lock:
            if checkpoint_id in self._open and checkpoint_id not in self._pending():
                state = advance(self._open.pop(checkpoint_id), Event.COMMIT)
                sinks = {sink: {"outcome": outcome} for sink, outcome in self._outcomes(checkpoint_id).items()}
                entry = {"restored": checkpoint_id in self.inherited, "sinks": sinks}
                self._history.add(checkpoint_id, {"status": state, **entry})

    def keyed_state(self, found: Mapping[CheckpointId, Mapping[str, Any]]) -> None:
        """What the engine says of the state after some checkpoints: rows, bytes, seconds of the snapshot."""
        self._history.add_all({number: {"state": dict(told)} for number, told in found.items()})

    def _settle(self, checkpoint_id: CheckpointId, state: State) -> State:
        if checkpoint_id not in self._pending():
            return advance(state, Event.COMMIT)
        self._open[checkpoint_id] = advance(state, Event.LAG)
        return self._open[checkpoint_id]
