"""Spark's own part of a checkpoint location, as files: which of them make up one moment, and which came later.

Spark writes `offsets/N` before batch N and `commits/N` after it; state of version N + 1 holds all up to batch N. A copy
of one moment takes the commits first, then offsets up to the last commit + 1, then state: in another order offsets
could lead commits by two, and Spark would skip a batch with no more than a warning.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.storage import Storage
from holdfast.core.model import CheckpointId
from holdfast.errors import RecordError, StaleCheckpointError

METADATA = "metadata"
_NUMBER = re.compile(r"0|[1-9]\d*")
#: `17.delta`, `17.snapshot`, `17.zip`, `17.changelog`; with an id of the writer in the second checkpoint format
_VERSION = re.compile(r"(\d+)(?:_[^/.]*)*\.(?:delta|snapshot|zip|changelog)(?:\.crc)?")
#: the lines of an offsets file before those of the sources: the format's version, the batch's metadata
_HEAD = 2
#: the version that Spark writes unless it is told otherwise: one line for each source, in their order
_FORMAT = "v1"


@dataclass(frozen=True)
class EngineFiles:
    """The files of one moment; names relative to the checkpoint location."""

    committed: CheckpointId | None
    planned: CheckpointId | None
    #: what is not an offset, in no order
    others: tuple[str, ...]
    #: `offsets/N`, ascending
    offsets: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """All of them; offsets last, so that half a copy never looks whole."""
        return (*self.others, *self.offsets)


def _numbers(storage: Storage, folder: str) -> list[int]:
    return sorted(int(name) for name in storage.names(folder) if _NUMBER.fullmatch(name))


def files_of(storage: Storage) -> EngineFiles:
    """The files that a copy of this moment needs; the query may be at work, but must be between two batches."""
    commits = _numbers(storage, "commits")
    committed = commits[-1] if commits else None
    through = -1 if committed is None else committed
    offsets = [number for number in _numbers(storage, "offsets") if number <= through + 1]
    others = [f"commits/{number}" for number in commits]
    others += [name for name in storage.walk("sources") if not _temporary(name)]
    others += _needed([name for name in storage.walk("state") if not _temporary(name)], through + 1)
    others += [METADATA] if METADATA in storage.names("") else []
    names = tuple(f"offsets/{number}" for number in offsets)
    return EngineFiles(committed, offsets[-1] if offsets else None, tuple(others), names)


def _needed(names: Sequence[str], last: int) -> list[str]:
    """Of the files of state stores, those that make up a version: no later ones, and none that snapshots replace.

    From the last snapshot but one, since in the second format one may be of a task that lost, and of no use.
    """
    snapshots: dict[str, set[int]] = {}
    for name in names:
        number = version(name)
        if number is not None and number <= last and name.endswith((".zip", ".snapshot")):
            snapshots.setdefault(name.rpartition("/")[0], set()).add(number)
    first = {folder: sorted(numbers)[-2:][0] for folder, numbers in snapshots.items()}
    found = []
    for name in names:
        number = version(name)
        if number is None or first.get(name.rpartition("/")[0], 0) <= number <= last:
            found.append(name)
    return found


def files_after(storage: Storage, checkpoint_id: CheckpointId) -> list[str]:
    """What Spark has written of later batches than this one: plans, commits, state, and checksums of these."""
    found = []
    for folder in ("commits", "offsets"):
        for name in storage.names(folder):
            number = name.removeprefix(".").removesuffix(".crc")
            if _NUMBER.fullmatch(number) and int(number) > checkpoint_id:
                found.append(f"{folder}/{name}")
    found += [name for name in storage.walk("state") if (version(name) or 0) > checkpoint_id + 1]
    return found


def version(name: str) -> int | None:
    """Of a file of a state store, the version that it belongs to; None for files that belong to several."""
    match = _VERSION.fullmatch(name.rpartition("/")[2].removeprefix("."))
    return None if match is None else int(match[1])


def check_state_kept(storage: Storage, checkpoint_id: CheckpointId) -> None:
    """Raise unless Spark still keeps the state that a batch after this one begins with."""
    partitions: dict[str, set[int]] = {}
    for name in storage.walk("state"):
        number = version(name)
        if number is not None:
            partitions.setdefault(name.rpartition("/")[0], set()).add(number)
    for folder, versions in sorted(partitions.items()):
        if checkpoint_id + 1 not in versions:
            raise StaleCheckpointError(
                f"{storage.url}/{folder} no longer has the state of checkpoint {checkpoint_id} (version "
                f"{checkpoint_id + 1}; it has {min(versions)} to {max(versions)}): Spark keeps that of the last "
                "spark.sql.streaming.minBatchesToRetain batches. Choose a later checkpoint"
            )


def _temporary(name: str) -> bool:
    file = name.rpartition("/")[2]
    return file.startswith(".") and file.endswith((".tmp", ".crc"))


def checksum_of(name: str) -> str:
    """Where Hadoop keeps the checksum of a file on a local disk; it must go when the file is rewritten."""
    folder, slash, file = name.rpartition("/")
    return f"{folder}{slash}.{file}.crc"


def new_identity() -> bytes:
    """A `metadata` file of a query that has never run: two queries of one id stop each other."""
    return json.dumps({"id": str(uuid.uuid4())}, separators=(",", ":")).encode()


def read_offsets(storage: Storage, checkpoint_id: CheckpointId) -> list[str]:
    """The lines of an offsets file: two of Spark's own, then one for each source."""
    name = f"offsets/{checkpoint_id}"
    try:
        lines = storage.read(name).decode().splitlines()
    except FileNotFoundError:
        raise StaleCheckpointError(
            f"{storage.url}/{name} is not there: Spark keeps the offsets of the last "
            "spark.sql.streaming.minBatchesToRetain batches. Choose a later checkpoint"
        ) from None
    if lines and lines[0] != _FORMAT:
        raise RecordError(
            f"{storage.url}/{name} is in a format of Spark's that holdfast does not read: {lines[0][:20]!r}, not "
            f"{_FORMAT!r}. Start the query without spark.sql.streaming.offsetLog.formatVersion, from a new location"
        )
    if len(lines) <= _HEAD:
        raise RecordError(f"{storage.url}/{name} is damaged: it names no source. Restore it from a copy")
    return lines


def sources_of(lines: Sequence[str]) -> list[str]:
    """Those of the sources; none of a format that we do not know."""
    return list(lines[_HEAD:]) if lines and lines[0] == _FORMAT else []


def positions(lines: Sequence[str]) -> list[Any]:
    """Where each source stands, as data; `-` is a source without an offset yet."""
    found = []
    for line in lines[_HEAD:]:
        try:
            found.append(json.loads(line))
        except ValueError:
            found.append(None if line == "-" else line)
    return found


def with_positions(lines: Sequence[str], ends: Sequence[str]) -> bytes:
    """The offsets file with other ends: Spark's own lines of the one, the sources' of the other."""
    return "\n".join([*lines[:_HEAD], *ends[_HEAD:]]).encode()


def line(position: Any) -> str:
    """A source's position as a line of an offsets file."""
    return json.dumps(position, separators=(",", ":"))
