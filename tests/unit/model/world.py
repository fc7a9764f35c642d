"""One state of the modelled world, and the bounds of a scenario.

Everything is a tuple or a frozenset, so that a state is its own key. A crash needs no step of its own: it is a pause
that never ends, and the search visits every state in which an older driver, or a task, is never scheduled again.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.core.states import State

from .kernel import KERNEL, Commits, Entries, Kernel

Row = tuple[int, int]
#: generation, checkpoint, subtask, attempt: who wrote it, which at Kafka is the producer id and epoch
Writer = tuple[int, int, int, int]
#: what a committable says: the name at the endpoint and the writer
Data = tuple[str, Writer]
Op = tuple[Any, ...]


class Txn(NamedTuple):
    """A transaction at the endpoint. Aborted and timed-out ones are simply gone."""

    name: str
    writer: Writer
    rows: tuple[Row, ...]
    committed: bool = False


class File(NamedTuple):
    """A sealed write-ahead file in the log."""

    name: str
    writer: Writer
    rows: tuple[Row, ...]


class Driver(NamedTuple):
    """A query run: what it will do next, and what it remembers."""

    generation: int
    agenda: tuple[Op, ...]
    #: what it has read of the log, and written since
    entries: Entries = ()
    commits: Commits = frozenset()
    slot: int = 0
    reports: tuple[tuple[int, Data, str], ...] = ()
    #: subtasks whose transaction the endpoint said is gone, in the last pass of delivery
    lost: tuple[tuple[int, int], ...] = ()
    state: State = State.RUNNING

    @property
    def dead(self) -> bool:
        """Whether it has stopped for good."""
        return self.agenda == DEAD


DEAD: tuple[Op, ...] = (("dead",),)


class World(NamedTuple):
    """Log, Spark's checkpoint, endpoint, drivers and what is still allowed to go wrong."""

    generations: tuple[int, ...] = ()
    entries: Entries = ()
    commits: Commits = frozenset()
    #: the last batch Spark has committed
    spark: int = -1
    drivers: tuple[Driver, ...] = ()
    #: tasks that may still run: (writer, rows)
    tasks: frozenset[tuple[Writer, tuple[Row, ...]]] = frozenset()
    txns: frozenset[Txn] = frozenset()
    files: frozenset[File] = frozenset()
    #: write-ahead endpoint: which generation initialised a writer last, and the last checkpoint it marked
    writers: tuple[tuple[int, int], ...] = ()
    marks: tuple[tuple[int, int], ...] = ()
    delivered: tuple[Row, ...] = ()
    group_offsets: int = -1
    #: every decision and repair ever made: (checkpoint, kind, data of its committables); pruning forgets nothing here
    promised: frozenset[tuple[int, str, tuple[Data, ...]]] = frozenset()
    #: the last batch start of the newest driver is over: no task of the dead writes any more
    idle: bool = False
    retries: int = 0
    failures: int = 0
    refusals: int = 0
    timeouts: int = 0
    #: which invariant the last step broke
    broken: str = ""

    def is_promised(self, data: Data) -> bool:
        """Whether a record ever named this work."""
        return any(data in work for _, _, work in self.promised)


@dataclass(frozen=True)
class Bounds:
    """How large a scenario is. Within it, every interleaving is visited."""

    generations: int = 2
    checkpoints: int = 2
    subtasks: int = 2
    #: executors lost: the first attempt goes on unseen, a second one is started
    retries: int = 0
    #: batches that fail while their tasks run
    failures: int = 0
    #: sends the endpoint refuses
    refusals: int = 0
    #: open transactions the endpoint drops
    timeouts: int = 0
    #: a third driver starts only when the first has died, so that two are alive at a time
    one_after_another: bool = False
    retain: int = 1
    #: the source is quiet at the end: no further batch comes
    quiet: bool = False
    write_ahead: bool = False
    kernel: Kernel = field(default=KERNEL, repr=False)

    def first(self) -> World:
        """The world before anything happened."""
        return World(retries=self.retries, failures=self.failures, refusals=self.refusals, timeouts=self.timeouts)

    def split(self, generation: int, checkpoint_id: int, subtask: int) -> tuple[Row, ...]:
        """The rows of a subtask. Spark replays the same rows, but subtask indexes move between runs."""
        return ((checkpoint_id, (subtask + generation) % self.subtasks),)


def digest(rows: tuple[Row, ...]) -> str:
    """An order-free hash of rows: a sum, as the real one."""
    hashes = [int.from_bytes(hashlib.sha256(repr(row).encode()).digest()[:8], "big") for row in rows]
    return f"{sum(hashes) % (1 << 64):016x}"


# What may be found broken.
UNDONE = "decided work was undone"
TWO_DECISIONS = "one checkpoint was decided twice"
TWICE = "a row was delivered twice"
LOST = "a decided row was never delivered"
OPEN = "undecided work stayed open"
AHEAD = "group offsets lead"
HELD_BACK = "a decided checkpoint was held back by a quiet source"
STOPPED = "the newest driver stopped"
SKIPPED = "rows were skipped in silence"
