"""What a pipeline reads and writes, under the names that lineage catalogues know: OpenLineage's naming rules."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from holdfast.checkpoint.enginefiles import sources_of
from holdfast.checkpoint.limited import open_limited
from holdfast.core.hiding import hide_text
from holdfast.errors import StorageError

#: bytes of Spark's offsets that are read
_LARGEST = 1 << 20
_DESCRIBED = re.compile(r"(?P<kind>\w+)\[(?P<rest>.*)\]", re.DOTALL)


@dataclass(frozen=True)
class Named:
    """A dataset."""

    namespace: str
    name: str


@dataclass(frozen=True)
class Read:
    """A dataset and which part of it one checkpoint read; offsets as Spark writes them, None before the first."""

    dataset: Named
    start: Any
    end: Any


def of_sink(sink: Any, pipeline: str) -> Named:
    """Where a sink writes; one that catalogues have no rule for is named by its pipeline."""
    kind, address = type(sink).__name__, str(sink.address)
    if kind == "KafkaSink":
        topic = sink.target.topic
        return Named(f"kafka://{address.split(',')[0].strip()}", topic or f"topics of {pipeline}.{sink.name}")
    if kind == "PostgresSink":
        host, _, database = address.partition("/")
        table = ".".join(part for part in (database, str(sink.table)) if part)
        return Named(f"postgres://{host if ':' in host else f'{host}:5432'}", table)
    if kind == "SqliteSink":
        return Named("file", f"{address}/{sink.table.name}")
    if kind == "CassandraSink":
        hosts, _, table = address.partition(", ")
        return Named(f"cassandra://{hosts.split(',')[0].strip()}", table)
    if kind == "FileSink":
        return of_path(address)
    return Named("holdfast", f"{pipeline}.{sink.name}")


def of_path(path: str) -> Named:
    """A folder of this machine or of an object store."""
    parts = urlsplit(path)
    if parts.scheme in ("", "file"):
        return Named("file", parts.path if parts.scheme else path)
    scheme = "s3" if parts.scheme in ("s3a", "s3n") else parts.scheme
    # Azure's containers stand where others have a user: container@account.
    where = parts.netloc if scheme in ("abfs", "abfss") else parts.hostname or ""
    return Named(f"{scheme}://{where}", parts.path.strip("/") or "/")


def guarantee(sink: Any) -> str:
    """What a sink promises: the beginning of its docstring."""
    return " ".join((inspect.getdoc(type(sink)) or "").partition("\n\n")[0].split())


def inputs(
    location: str, checkpoint: int, sources: Sequence[Mapping[str, str]], described: Sequence[str], pipeline: str
) -> list[Read]:
    """What a checkpoint read, from Spark's own files; nothing when Spark has pruned them.

    `described` is how Spark's progress calls each source, where it is known.
    """
    ends = _lines(location, checkpoint)
    starts = _lines(location, checkpoint - 1) if checkpoint > 0 else []
    found = []
    for index, end in enumerate(ends):
        start = starts[index] if index < len(starts) else None
        options = sources[index] if index < len(sources) else {}
        if _of_kafka(end):
            server = options.get("kafka.bootstrap.servers", "unknown").split(",")[0].strip()
            before = start if isinstance(start, Mapping) else {}
            found += [Read(Named(f"kafka://{server}", topic), before.get(topic), end[topic]) for topic in end]
        else:
            called = described[index] if index < len(described) else ""
            found.append(Read(_of_source(called, f"{pipeline}.source-{index}"), start, end))
    return found


def _of_kafka(offsets: Any) -> bool:
    return isinstance(offsets, Mapping) and bool(offsets) and all(isinstance(v, Mapping) for v in offsets.values())


def _of_source(described: str, otherwise: str) -> Named:
    match = _DESCRIBED.fullmatch(described)
    if match is not None and match["kind"] == "FileStreamSource":
        return of_path(hide_text(match["rest"]))
    return Named("holdfast", otherwise)


def _lines(location: str, checkpoint: int) -> list[Any]:
    """Where each source stood at the end of a checkpoint."""
    try:
        text = open_limited(location, _LARGEST).read(f"offsets/{checkpoint}").decode("utf-8", "replace")
    except (FileNotFoundError, StorageError):
        return []
    found: list[Any] = []
    for line in sources_of(text.splitlines()):
        try:
            found.append(json.loads(line))
        except ValueError:
            found.append(None if line == "-" else hide_text(line))
    return found
