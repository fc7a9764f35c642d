"""The states of a checkpoint and every transition there is.

The coordinator moves only along this table and the diagram in the docs is printed from it, so neither can drift.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a checkpoint stands."""

    RUNNING = "running"
    PREPARED = "prepared"
    DECIDED = "decided"
    LAGGING = "lagging"
    COMPLETE = "complete"
    ABORTED = "aborted"

    @property
    def final(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self in (State.COMPLETE, State.ABORTED)


class Event(StrEnum):
    """What can happen to a checkpoint."""

    PREPARE = "every task pre-committed"
    DECIDE = "decision record durable"
    COMMIT = "last sink committed"
    LAG = "a sink that may lag could not commit"
    REPAIR = "repair record durable"
    RESTART = "driver restarted"
    GIVE_UP = "an operator gave up what was left"
    FAIL = "a task or the driver failed"
    FENCE = "a successor filled the slot"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.RUNNING, Event.PREPARE): State.PREPARED,
    (State.RUNNING, Event.FAIL): State.ABORTED,
    (State.RUNNING, Event.FENCE): State.ABORTED,
    (State.PREPARED, Event.DECIDE): State.DECIDED,
    (State.PREPARED, Event.FAIL): State.ABORTED,
    (State.PREPARED, Event.FENCE): State.ABORTED,
    (State.DECIDED, Event.COMMIT): State.COMPLETE,
    (State.DECIDED, Event.LAG): State.LAGGING,
    (State.DECIDED, Event.GIVE_UP): State.COMPLETE,
    (State.DECIDED, Event.REPAIR): State.DECIDED,
    (State.DECIDED, Event.RESTART): State.DECIDED,
    (State.LAGGING, Event.COMMIT): State.COMPLETE,
    (State.LAGGING, Event.LAG): State.LAGGING,
    (State.LAGGING, Event.RESTART): State.DECIDED,
}


class TransitionError(RuntimeError):
    """The coordinator tried a step the table does not have: a bug in holdfast, not in its use."""


def advance(state: State, event: Event) -> State:
    """The state after the event, or an error when the table has no such step."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise TransitionError(f"a checkpoint that is {state} cannot take {event!r}; please report this") from None


def recorded(*, committed: bool) -> State:
    """The state of a decided checkpoint to whoever has only its records: a driver or a command that came later.

    Whether it was lagging before makes no difference: a restart leads to the same state from there.
    """
    found = advance(State.DECIDED, Event.RESTART)
    return advance(found, Event.COMMIT) if committed else found


def diagram() -> str:
    """The table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> running"]
    lines += [f"    {source} --> {target}: {event}" for (source, event), target in TRANSITIONS.items()]
    lines += [f"    {state} --> [*]" for state in State if state.final]
    return "\n".join(lines) + "\n"
