"""The base of every sink."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from holdfast.checkpoint.ports import Run, Tasks
from holdfast.core.model import CheckpointId, Outcome
from holdfast.core.naming import Task, check_name
from holdfast.errors import ConfigError, first_line
from holdfast.sinks.pattern import MAX_TARGETS, Pattern


class TwoPhaseCommitSink(ABC):
    """Exactly-once into any endpoint that can prepare work in one process and commit it from another.

    Needs from the endpoint: prepared work survives the process that prepared it; committing twice is harmless;
    undecided work can be found again by its name and undone.

    Four methods run in the Spark task (`begin`, `write`, `pre_commit`, `abort`), two on the driver (`commit`,
    `recover`). A sink is pickled to the executors: it holds configuration, never connections.
    """

    #: unique within a pipeline; a subclass or an instance may set another
    name: str = ""
    #: the query goes on while this sink cannot commit; its checkpoints stay decided and are delivered later
    may_lag: bool = False
    #: commits checkpoint N while the tasks of N + 1 run, at most one behind: for a sink whose prepared work keeps, and
    #: whose `commit` shares nothing with `validate`, `snapshot_state` and `recover`, which then run beside it
    overlaps: bool = False
    #: a batch of few rows may be written by one subtask (`spark.holdfast.fewRows`): each costs more than such rows do
    gathers: bool = False
    #: seconds after which the endpoint drops an open transaction, for the warning at 80 %; None: never
    transaction_timeout: float | None = None
    #: what the endpoint drops after the decision is produced again from the replay: `commit` raises LostError with the
    #: committables it dropped
    repairable: bool = False
    #: limits of what a sink that may lag leaves undelivered before the query fails; None: none
    max_pending: int | None = None
    max_pending_bytes: int | None = None
    #: Spark SQL expressions that make this sink's columns, as in `hf.route(select=...)`; None: the DataFrame's own
    own_columns: tuple[str, ...] | None = None
    #: a Spark SQL condition: rows for which it is true delete, and the sink finds it in column `deletes.DELETED`
    delete_when: str | None = None
    #: columns of its rows that it has no place for: they are left out in the task, and their values counted
    discards: tuple[str, ...] = ()
    #: its rows are messages, with the columns key and value: dead letters come to it as one JSON object each
    takes_messages: bool = False
    #: its table, folder or topic as a pattern over columns
    pattern: Pattern | None = None
    #: with a pattern, `for_target` makes a sink for each name (see fan.py); one that sends rows anywhere needs none
    fans_out: bool = True
    max_targets: int = MAX_TARGETS
    #: extras of holdfast whose packages its tasks need: a start looks whether executors have them
    extras: tuple[str, ...] = ()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = cls.__name__
        check_name(f"the name of sink class {cls.__name__}", cls.name)

    # in the Spark task

    @abstractmethod
    def begin(self, task: Task) -> Any:
        """Open a transaction for this attempt; whatever is returned is handed to the other three."""

    @abstractmethod
    def write(self, txn: Any, batch: pa.RecordBatch) -> None:
        """Write rows into it."""

    @abstractmethod
    def pre_commit(self, txn: Any) -> Mapping[str, Any] | None:
        """Make it durable but not visible, and return the committable: all it takes to commit it from elsewhere.

        Plain JSON data. None when nothing is to be committed.
        """

    @abstractmethod
    def abort(self, txn: Any) -> None:
        """This task failed or was cancelled: undo it. May be called after `pre_commit`."""

    # on the driver

    @abstractmethod
    def commit(
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> Outcome | None:
        """Make all subtasks' work visible. Idempotent; raise to have it retried. None means committed."""

    @abstractmethod
    def recover(
        self, pipeline: str, generation: int, decided: Mapping[CheckpointId, Sequence[Mapping[str, Any]]]
    ) -> None:
        """Undo this pipeline's work of this and older generations that is not in `decided`.

        Called at the start, at each batch start and after a failed batch. Never touch work of newer generations or of
        others.
        """

    # optional, on the driver

    def open(self, run: Run) -> None:  # noqa: B027
        """A query run starts: check the endpoint, create what is missing."""

    def close(self) -> None:  # noqa: B027
        """The query run is over."""

    def validate(  # noqa: B027
        self, checkpoint_id: CheckpointId, committables: Sequence[Mapping[str, Any]], tasks: Tasks
    ) -> None:
        """Raise to refuse a checkpoint before it is decided, seeing all subtasks at once."""

    def still_prepared(self, committables: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
        """Those of these committables whose prepared work the endpoint still holds; all of them by default.

        Asked before the decision, when so much time has passed that some could be gone: then the batch runs again,
        which costs nothing; after the decision it would cost a repair.
        """
        return committables

    def as_decided(self, committables: Sequence[Mapping[str, Any]]) -> Any:
        """The sink that writes anew, in tasks, what was lost of this work: with the options of the decision (rule 16).

        This one by default, with today's options.
        """
        return self

    def rows_of(self, committables: Sequence[Mapping[str, Any]]) -> Iterator[pa.RecordBatch] | None:
        """The rows of prepared work, read back for the report when an operator gives them up; None: they cannot be."""
        return None

    def give_up(self, committables: Sequence[Mapping[str, Any]]) -> Any:
        """An operator gave up this prepared work: the operator state without it, or None if the state has none of it.

        The work itself is undone by the next `recover`, which does not find it in `decided` any more.
        """
        return None

    def initialize_state(self, state: Any) -> None:  # noqa: B027
        """The operator state saved with the newest decided checkpoint; None when there is none."""

    def snapshot_state(self, checkpoint_id: CheckpointId) -> Any:
        """Operator state to save in this checkpoint's decision record; plain JSON data, or None."""
        return None

    def notify_checkpoint_complete(self, checkpoint_id: CheckpointId) -> None:  # noqa: B027
        """Every sink of the pipeline has committed this checkpoint."""

    def notify_checkpoint_aborted(self, checkpoint_id: CheckpointId) -> None:  # noqa: B027
        """This checkpoint failed before its decision; Spark will run the batch again."""

    def shared_paths(self, location: str) -> Sequence[str]:
        """Folders, as paths or URLs, that the driver and tasks must both see: a start proves that they do.

        `location` is the folder of holdfast's log, where the write-ahead log is. None by default.
        """
        return ()

    def for_target(self, target: str) -> TwoPhaseCommitSink:
        """The sink of one name that the pattern gives; ConfigError when there can be none."""
        raise ConfigError(f"sink {self.name!r} takes no pattern over columns")

    def wrong_target(self, target: str) -> str | None:
        """Why a name cannot be had, told by the name alone and in the task; None when it can."""
        try:
            self.for_target(target)
        except ConfigError as error:
            return f"is no name: {first_line(error)}"
        return None

    @property
    def address(self) -> str:
        """Where the endpoint is, for errors and status: a path, a host and port, never a secret."""
        return ""

    def __repr__(self) -> str:
        """Name only: options may hold secrets."""
        return f"{type(self).__name__}(name={self.name!r})"
