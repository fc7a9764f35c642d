"""The checkpoint committer (C1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

from holdfast.core.model import CheckpointId
from holdfast.core.naming import parse_job_id
from holdfast.errors import ConfigError


class CheckpointCommitter(ABC):
    """Remembers, for each subtask of one sink, the last checkpoint that was delivered.

    Never moves backwards. A committer is pickled to the executors: between `close` and `open` it holds configuration
    only. Ids are set before `create_resource`, which is called once per query run, on the driver.
    """

    job_id: str = ""
    operator_id: str = ""
    #: extras of holdfast whose packages it needs in tasks
    extras: tuple[str, ...] = ()

    def set_job_id(self, job_id: str) -> None:
        """Which pipeline this is; stable over restarts."""
        self.job_id = job_id

    def set_operator_id(self, operator_id: str) -> None:
        """Which sink of it."""
        self.operator_id = operator_id

    def create_resource(self) -> None:  # noqa: B027
        """Create the folder or table, if it is not there."""

    def open(self) -> None:  # noqa: B027
        """Connect."""

    def close(self) -> None:  # noqa: B027
        """Disconnect; never deletes anything."""

    @abstractmethod
    def commit_checkpoint(self, subtask: int, checkpoint_id: CheckpointId) -> None:
        """This subtask's rows up to this checkpoint are delivered; durable when it returns."""

    @abstractmethod
    def is_checkpoint_committed(self, subtask: int, checkpoint_id: CheckpointId) -> bool:
        """Whether they are."""

    def progress(self) -> Mapping[str, CheckpointId] | None:
        """{lineage: last checkpoint any subtask committed} for this pipeline name and sink, of every lineage.

        Lets a start refuse an old or deleted checkpoint location, and marks that were restored or deleted (rule 15).
        Empty means that nothing is marked. None, the default, means unknown: then neither can be noticed.
        """
        return None

    @property
    def made(self) -> bool:
        """Whether the folder or table is there; by default it is believed to be."""
        return True

    def take_over(self) -> None:  # noqa: B027
        """Forget what other lineages of this pipeline name committed; called only when the user asked for it."""

    def shared_paths(self) -> Sequence[str]:
        """Folders that the driver and tasks must both see; a start proves that they do. None by default."""
        return ()

    @property
    def address(self) -> str:
        """Where the marks are, for errors: a path, a host and table, never a secret."""
        return ""

    def _pipeline(self) -> str:
        parsed = parse_job_id(self.job_id)
        if parsed is None:
            raise ConfigError(f"{type(self).__name__}: set_job_id was not called, or with {self.job_id!r}")
        return parsed[0]
