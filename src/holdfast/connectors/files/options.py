"""The options of a file sink, and its half that runs in tasks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa

from holdfast.connectors.files import csvtext, formats
from holdfast.connectors.files.buckets import Buckets, TimeBucket
from holdfast.connectors.files.parts import Folder
from holdfast.connectors.files.rolling import Rolling
from holdfast.connectors.files.task import TaskFiles
from holdfast.core.naming import Task, check_name
from holdfast.core.options import checked, made, one_of
from holdfast.core.paths import AnyPath, path_text
from holdfast.errors import ConfigError, SinkError, StorageError
from holdfast.sinks.pattern import MAX_TARGETS, Targets, parse_pattern
from holdfast.sinks.schema_change import EVOLVE, FREEZE, SchemaChange
from holdfast.sinks.two_phase import TwoPhaseCommitSink

#: Where an object is there as a whole or not at all.
STORES = ("file", "s3", "s3a", "s3n", "gs", "gcs", "az", "abfs", "abfss")


class FileTasks(TwoPhaseCommitSink):
    """What tasks need of a file sink."""

    @checked
    def __init__(
        self,
        path: AnyPath,
        format: Annotated[str, one_of(*formats.FORMATS)] = "parquet",
        *,
        bucket_by: str | TimeBucket | Sequence[str | TimeBucket] = (),
        partition_by: str | TimeBucket | Sequence[str | TimeBucket] | None = None,
        rolling: Annotated[Rolling, made("hf.Rolling(size=..., age=..., inactivity=...)", Rolling)] | None = None,
        compression: str | None = None,
        csv_readers: str | Sequence[str] = csvtext.READERS,
        schema_change: SchemaChange = FREEZE,
        max_targets: Targets = MAX_TARGETS,
        name: str | None = None,
    ) -> None:
        text = path_text("path", path, "a folder or the URL of one")
        if not text.strip("/"):
            raise ConfigError(f"path must be a folder or the URL of one, not {path!r}")
        scheme, _, rest = text.partition("://")
        if rest and scheme not in STORES:
            raise ConfigError(
                f"path must be local or on one of {', '.join(STORES)}, where a file appears as a whole: on {scheme!r} "
                "a file that a killed driver left half written would be taken for a committed one"
            )
        self.path = text.rstrip("/") if ":" in text.split("/")[0] else str(Path(text).absolute())
        self.pattern, self.max_targets = parse_pattern("path", self.path, dots=True), max_targets
        if self.pattern is not None and not self.pattern.root.rpartition("/")[0].partition("://" if rest else "/")[2]:
            raise ConfigError(f"path={text!r}: begin it with a folder that is the same for all rows, as in /data/{{x}}")
        self._format, self.compression = formats.choose(format, compression)
        self.format = format
        if partition_by is not None and bucket_by != ():
            raise ConfigError("bucket_by and partition_by are two words for one option: give one of them")
        self.buckets = Buckets.of(bucket_by if partition_by is None else partition_by)
        self.csv_readers = csvtext.choose_readers(csv_readers)
        self.rolling = rolling or Rolling()
        self.schema_change = schema_change
        if self.schema_change == EVOLVE and format == "csv":
            raise ConfigError(
                "schema_change='evolve' does not go with format='csv': most readers take the columns of a folder of "
                "CSV files by their place in the first one. Write into a new folder, or as parquet or json"
            )
        self.name = check_name("name", name or _default_name(self.path))
        self._reset()

    def _reset(self) -> None:
        """What a driver remembers of a run is the subclass's."""

    def begin(self, task: Task) -> TaskFiles:
        """See TwoPhaseCommitSink."""
        with self._told():
            folder, limit = Folder(self.path, task.pipeline, self.name), self.rolling.size_bytes
            return TaskFiles(folder, task, self.buckets, self.format, limit, self.csv_readers)

    def write(self, txn: TaskFiles, batch: pa.RecordBatch) -> None:
        """See TwoPhaseCommitSink; rows that could not become a file are refused here."""
        with self._told():
            txn.write(batch)

    def pre_commit(self, txn: TaskFiles) -> Mapping[str, Any] | None:
        """The parts, and what they were proved to go into (rule 16)."""
        with self._told():
            parts = txn.put_list()
            return {"version": 4 if "list" in parts else 2, **self._options, "columns": txn.columns, **parts}

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

    def shared_paths(self, location: str) -> Sequence[str]:
        """See TwoPhaseCommitSink; tasks write hidden files there, and the driver completes them."""
        return (self.path if self.pattern is None else self.pattern.root.rpartition("/")[0],)

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
