"""Which attempts at a subtask may go by the same number: never two that can be alive at the same time.

A pass is one job of the engine that writes a checkpoint: its first run, a run after a failure, a repair. Endpoints that
remember every name for days (Kafka's transactional ids) want few numbers, but a late attempt that meets its own number
in use would end what somebody else has prepared. So a pass has the number of an earlier one only if of that one nobody
can be left: each of its subtasks had a single attempt, and that has ended. Within a pass, attempts at a subtask differ
by the engine's count of them. Spark begins that count anew when it runs a whole stage again (a shuffle file was lost),
and does not tell its Python tasks: there the number of the task, which never repeats, tells them apart, modulo RING.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

#: Numbers of passes. Those whose pass had failures rest until all others that rest were used: an attempt would have to
#: outlive some 250 passes with failures to meet its number.
PASSES = 256
#: Numbers that take turns while all goes well: Kafka may still be busy with the last transaction of an id.
TURNS = 2
#: A prime: whatever the number of partitions, the tasks of two runs of a stage rarely meet. The larger, the more rarely
#: (one distance of so many), and the more ids a broker keeps for each subtask.
RING = 127


@dataclass(frozen=True)
class Attempt:
    """One attempt at a subtask, as the engine counts."""

    #: which try of this subtask it is, from 0, in its run of the stage
    number: int
    #: of all tasks
    task: int
    #: whether the engine has run the stage only once
    first_stage: bool = True


class Passes:
    """The numbers of the passes of one query run, on the driver; one pass runs at a time."""

    def __init__(self) -> None:
        self._turns = deque(range(TURNS))
        self._resting = deque(range(TURNS, PASSES))

    def begin(self, *, repair: bool = False) -> int:
        """The number of a pass that begins. A repair never has that of a pass whose work it repairs."""
        among = self._resting if repair else self._turns
        among.rotate(-1)
        return among[-1]

    def end(self, number: int, won: Iterable[Attempt] | None) -> None:
        """This pass is over; `won`: an attempt for each subtask. None: it failed."""
        alone = won is not None and all(attempt.number == 0 and attempt.first_stage for attempt in won)
        if not alone and number in self._turns:
            self._turns.remove(number)
            self._turns.append(self._resting.popleft())
            self._resting.append(number)


def place(number: int, attempt: Attempt) -> int:
    """One number for an attempt in a pass of this number."""
    return (attempt.number * RING + attempt.task % RING) * PASSES + number
