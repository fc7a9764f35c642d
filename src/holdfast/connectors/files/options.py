"""The options of a file sink, and its half that runs in tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from holdfast.connectors.files import formats
from holdfast.connectors.files.buckets import Buckets, TimeBucket
from holdfast.connectors.files.parts import Folder
from holdfast.connectors.files.rolling import Rolling
from holdfast.connectors.files.task import TaskFiles
from holdfast.core.naming import Task, check_name
from holdfast.errors import ConfigError, SinkError, StorageError
from holdfast.sinks.two_phase import TwoPhaseCommitSink

#: Where an object is there as a whole or not at all.
STORES = ("file", "s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss")


class FileTasks(TwoPhaseCommitSink):
    """What tasks need of a file sink."""

    def __init__(
        self,
        path: str,
        format: str = "parquet",
        *,
        bucket_by: str | TimeBucket | Sequence[str | TimeBucket] = (),
        rolling: Rolling | None = None,
        compression: str | None = None,
        name: str | None = None,
    ) -> None:
        if not isinstance(path, str | Path) or not str(path).strip("/"):
            raise ConfigError(f"path must be a folder or the URL of one, not {path!r}")
        if rolling is not None and not isinstance(rolling, Rolling):
            raise ConfigError(f"rolling must be hf.Rolling(size=..., age=..., inactivity=...), not {rolling!r}")
        text = str(path)
        scheme, _, rest = text.partition("://")
        if rest and scheme not in STORES:
            raise ConfigError(
                f"path must be local or on one of {', '.join(STORES)}, where a file appears as a whole: on {scheme!r} "
                "a file that a killed driver left half written would be taken for a committed one"
            )
        self.path = text.rstrip("/") if ":" in text.split("/")[0] else str(Path(text).absolute())
        self._format, self.compression = formats.choose(format, compression)
        self.format = format
        self.buckets = Buckets.of(bucket_by)
        self.rolling = rolling or Rolling()
        self.name = check_name("name", name or _default_name(self.path))
        self._reset()

    def _reset(self) -> None:
        """What a driver remembers of a run is the subclass's."""

    def begin(self, task: Task) -> TaskFiles:
        """See TwoPhaseCommitSink."""
        with self._told():
            return TaskFiles(
                Folder(self.path, task.pipeline, self.name), task, self.buckets, self.format, self.rolling.size_bytes
            )

    def write(self, txn: TaskFiles, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink; rows that could not become a file are refused here."""
        with self._told():
            txn.write(batch)

    def pre_commit(self, txn: TaskFiles) -> Mapping[str, Any] | None:
        """The parts, and what they were proved to go into (rule 16)."""
        with self._told():
            return {"version": 2, **self._options, "columns": txn.columns, "parts": txn.seal()}

    def abort(self, txn: TaskFiles) -> None:
        """See TwoPhaseCommitSink."""
        with self._told():
            txn.discard()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """A folder that fails is this sink's endpoint, not the checkpoint location."""
        try:
            yield
        except StorageError as error:
            if type(error) is not StorageError:  # damage, or a store that is not fit: said by itself
                raise
            raise SinkError(f"sink {self.name!r} ({self.path}): {error}") from error
        except pa.ArrowException as error:
            raise SinkError(
                f"sink {self.name!r} ({self.path}): a file could not be written or read: {error}"
            ) from error

    @property
    def address(self) -> str:
        """See TwoPhaseCommitSink."""
        return self.path

    @property
    def _options(self) -> dict[str, Any]:
        return {"path": self.path, "format": self.format, "compression": self.compression}


def _default_name(path: str) -> str:
    """After the folder; what makes no name is left out."""
    last = "".join(c for c in path.rpartition("/")[2] if c.isalnum() or c in "-_.")
    return f"files-{last}".encode()[:60].decode(errors="ignore").rstrip(".-")
