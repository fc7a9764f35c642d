"""A committer in plain files (C2)."""

from __future__ import annotations

import fcntl
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from holdfast.checkpoint.storage import make_folder, write_durably
from holdfast.committers.base import CheckpointCommitter
from holdfast.core.model import CheckpointId
from holdfast.core.naming import parse_job_id
from holdfast.core.options import checked
from holdfast.core.paths import AnyPath, path_text
from holdfast.errors import ConfigError, RecordError, StorageError

_CONTENT = re.compile(rb"0x[0-9a-f]{16}\n?")
_SUBTASK = re.compile(r"0|[1-9]\d*")
#: seconds to wait for another process that is writing a mark
LOCK_WAIT = 10.0


class FileCheckpointCommitter(CheckpointCommitter):
    """Files under `base_path`, which every executor must reach: `<job id>/<operator id>/<subtask>`.

    A file holds `0x` and 16 hex digits: the last delivered checkpoint. Writes are atomic and durable.
    """

    @checked
    def __init__(self, base_path: AnyPath) -> None:
        text = path_text("base_path", base_path)
        if "://" in text:
            raise ConfigError(f"base_path must be a local path that every executor reaches, not {text!r}")
        self.base_path = str(Path(text).absolute())

    @property
    def _folder(self) -> Path:
        return Path(self.base_path, self.job_id, self.operator_id)

    def shared_paths(self) -> Sequence[str]:
        """See CheckpointCommitter."""
        return (self.base_path,)

    @property
    def address(self) -> str:
        """See CheckpointCommitter."""
        return self.base_path

    def create_resource(self) -> None:
        """Create the folder; an existing one is used."""
        self._pipeline()
        with _reaching(self._folder):
            make_folder(self._folder)

    def commit_checkpoint(self, subtask: int, checkpoint_id: CheckpointId) -> None:
        """See CheckpointCommitter."""
        path = self._folder / str(subtask)
        with _reaching(path), self._locked():
            stored = self._read(path)
            if stored is None or stored < checkpoint_id:
                write_durably(path, f"0x{checkpoint_id:016x}".encode(), exclusive=False)

    def is_checkpoint_committed(self, subtask: int, checkpoint_id: CheckpointId) -> bool:
        """See CheckpointCommitter."""
        path = self._folder / str(subtask)
        with _reaching(path):
            stored = self._read(path)
        return stored is not None and checkpoint_id <= stored

    def progress(self) -> Mapping[str, CheckpointId]:
        """See CheckpointCommitter."""
        found = {}
        with _reaching(Path(self.base_path)):
            for lineage, paths in self._lineages().items():
                numbers = [number for number in map(self._read, paths) if number is not None]
                if numbers:
                    found[lineage] = max(numbers)
        return found

    def take_over(self) -> None:
        """See CheckpointCommitter."""
        with _reaching(Path(self.base_path)):
            for paths in self._lineages().values():
                for path in paths:
                    if path.parent != self._folder:
                        path.unlink(missing_ok=True)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One look and write at a time: a driver paused between the two would set a newer mark back (rule 9)."""
        with (self._folder / ".lock").open("ab") as file:
            deadline = time.monotonic() + LOCK_WAIT
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() > deadline:
                        raise StorageError(
                            f"the marks in {self._folder} are held by another process, for longer than {LOCK_WAIT} s: "
                            "an older driver of this pipeline is stopped in the middle; stop it for good"
                        ) from None
                    time.sleep(0.01)
            yield

    def _lineages(self) -> dict[str, list[Path]]:
        """{lineage: the subtasks' files} of every pipeline of this name."""
        found = {}
        base, pipeline = Path(self.base_path), self._pipeline()
        for folder in base.iterdir() if base.is_dir() else ():
            job, operator = parse_job_id(folder.name), folder / self.operator_id
            if job is not None and job[0] == pipeline and operator.is_dir():
                found[job[1]] = [path for path in operator.iterdir() if _SUBTASK.fullmatch(path.name)]
        return found

    @staticmethod
    def _read(path: Path) -> CheckpointId | None:
        try:
            content = path.read_bytes()
        except FileNotFoundError:
            return None
        if not _CONTENT.fullmatch(content):
            raise RecordError(
                f"{path} is damaged: it should hold 0x and 16 hex digits. Restore it, or write into it the last "
                "checkpoint whose rows you see at the endpoint, as 0x and 16 hex digits"
            )
        return int(content, 16)


@contextmanager
def _reaching(path: Path) -> Iterator[None]:
    """What the file system refuses, with the path and what to look at."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"the marks at {path} cannot be read or written: {error}. See that the disk is there, has room and is "
            "writable for driver and executors"
        ) from error
