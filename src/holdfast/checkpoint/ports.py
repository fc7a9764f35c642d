"""What the coordinator asks of sinks and of the engine; the base classes and holdfast.spark provide it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar, runtime_checkable

from holdfast.core.model import CheckpointId, Committable, Outcome
from holdfast.core.repair import Replayed

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Committed:
    """What a commit record says: this checkpoint is at the endpoint, so its ledger must know it."""

    checkpoint_id: CheckpointId
    #: when it was decided, in milliseconds since the epoch: ledgers that forget need not know it for ever
    at: int
    #: subtask -> the newest checkpoint with rows of it: ledgers that mark each subtask must know each
    subtasks: Mapping[int, CheckpointId] = field(default_factory=dict)


@dataclass(frozen=True)
class Run:
    """One run of a query, as its sinks see it."""

    pipeline: str
    lineage: str
    generation: int
    #: where the log is; write-ahead rows live below it
    location: str
    delivery: str = "exactly-once"
    #: the newest checkpoint the log knows; a ledger beyond it is ahead of this checkpoint location
    last_decided: CheckpointId | None = None
    #: the user wants this location to own the pipeline name, whatever ledgers say
    take_over: bool = False
    #: pyarrow.Schema of the sink's own rows, or None when it is not known
    schema: Any = None
    #: sink -> the newest checkpoint with rows of it that a commit record says is committed (rule 15)
    committed: Mapping[str, Committed] = field(default_factory=dict)
    #: lineages whose name this location took over, in this run or before
    set_aside: tuple[str, ...] = ()
    #: the user lets this location take over names; `take_over` says that it does
    may_take_over: bool = False

    def takes_from(self, lineage: str) -> bool:
        """Whether work that this other lineage, or one that begins so, has prepared is this location's to undo."""
        return self.take_over or any(other.startswith(lineage) for other in self.set_aside)


@dataclass(frozen=True)
class EnginePosition:
    """What Spark's own checkpoint says: the last batch it planned and the last one it committed."""

    planned: CheckpointId | None = None
    committed: CheckpointId | None = None


@dataclass(frozen=True)
class SubtaskReport:
    """What one task sent back."""

    subtask: int
    rows: int
    bytes: int
    committables: tuple[Committable, ...]
    #: sink -> its own rows, and their order-free digest, None when it did not ask for it; those without rows are absent
    written: Mapping[str, tuple[int, str | None]] = field(default_factory=dict)
    #: rows that a sink refused or a route rejected, once for each sink
    bad: int = 0
    #: whether a sink refused some
    refused: bool = False
    #: the first of them: sink, column, reason, content, message
    first_bad: tuple[Mapping[str, Any], ...] = ()
    #: sink -> column that it leaves out -> values
    discarded: Mapping[str, Mapping[str, int]] = field(default_factory=dict)

    @staticmethod
    def parse(body: Mapping[str, Any]) -> SubtaskReport:
        """One that has become JSON on its way."""
        committables = tuple(Committable(**c) for c in body["committables"])
        written = {sink: (rows, digest) for sink, (rows, digest) in body["written"].items()}
        first = tuple(body["first_bad"])
        return SubtaskReport(**{**body, "committables": committables, "written": written, "first_bad": first})

    def rows_of(self, sink: str) -> int:
        """How many rows this sink got."""
        return self.written[sink][0] if sink in self.written else 0


class Tasks(Protocol):
    """Runs functions where the executors are."""

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """`function` of each item, in order; an exception of one goes up."""


@runtime_checkable
class HasBeside(Protocol):
    """Tasks that can do something beside those of the stream."""

    def beside(self, function: Callable[[Item], Result], item: Item) -> Result:
        """`function` of one item, where it takes no core from the stream's tasks, if there is such a place."""


def beside(tasks: Tasks, function: Callable[[Item], Result], item: Item) -> Result:
    """One piece of work that mostly waits for an endpoint, and in which an executor is of no use but for its place."""
    if isinstance(tasks, HasBeside):
        return tasks.beside(function, item)
    return tasks.map(function, [item])[0]


class Batch(Protocol):
    """One micro-batch of the engine."""

    def write(
        self,
        run: Run,
        sinks: Sequence[Any],
        checkpoint_id: CheckpointId,
        timestamp: int,
        *,
        only: Collection[int] | None = None,
        repair: int = 0,
        careful: bool = False,
    ) -> list[SubtaskReport]:
        """Write every partition, or `only` some, to every sink in one pass, pre-commit, and report.

        `repair` counts the repairs of this checkpoint: names at endpoints must not meet those of earlier ones.
        `careful`: find the rows that a sink refuses, and leave them out; else its RowError goes up.
        """

    def digests(self, sink: str) -> list[Replayed]:
        """Rows and digest of every partition that has rows of this sink, written nowhere: what a repair compares."""

    def drain(self) -> None:
        """Run the batch into nothing, so that the engine's state and watermark advance."""


class Sink(Protocol):
    """A sink as the driver sees it."""

    name: str
    may_lag: bool
    overlaps: bool
    repairable: bool
    transaction_timeout: float | None
    max_pending: int | None
    max_pending_bytes: int | None

    def open(self, run: Run) -> None:
        """A query run starts: check the endpoint, create what is missing. LineageError if it is not ours."""

    def close(self) -> None:
        """The query run is over."""

    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """Undo this pipeline's work of this and older generations that is not in `decided`."""

    def validate(self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks) -> None:
        """Last chance to refuse before the decision; what it sees is all subtasks together."""

    def still_prepared(self, committables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Those of them that the endpoint still holds, asked before the decision (rule 14)."""

    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Make it visible; idempotent."""

    def as_decided(self, committables: Sequence[Mapping[str, Any]]) -> Any:
        """The sink that writes lost work anew, as it was decided (rule 16)."""

    def rows_of(self, committables: Sequence[Mapping[str, Any]]) -> Iterator[Any] | None:
        """The rows of prepared work as record batches, when an operator gives them up; None: they cannot be read."""

    def give_up(self, committables: Sequence[Mapping[str, Any]]) -> Any:
        """The operator state without this work, which an operator gave up; None: the state has none of it."""

    def initialize_state(self, state: Any) -> None:
        """The operator state of the newest decided checkpoint, None when there is none."""

    def snapshot_state(self, checkpoint_id: CheckpointId) -> Any:
        """Operator state to save with this checkpoint; plain JSON data."""

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:
        """Every sink has committed this checkpoint."""

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:
        """This checkpoint failed before its decision."""


class LoopTasks:
    """Runs the functions here, one after the other: for unit tests, and for work that belongs on the driver."""

    def map(self, function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
        """See Tasks."""
        return [function(item) for item in items]
