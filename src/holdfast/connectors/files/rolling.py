"""When waiting rows become a file: decided here, done elsewhere (F3).

Tasks leave their rows as hidden parts. Parts of one bucket and one schema wait together until they are large enough,
old enough or quiet enough; then they become one file. Many small parts are merged meanwhile, so that what must be
remembered of them stays small.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.core.options import Duration, Size, check_fields
from holdfast.core.units import parse_duration, parse_size
from holdfast.errors import ConfigError

#: that many parts of one level become one part of the next: each row is copied once a level
FAN_IN = 20


@dataclass(frozen=True)
class Rolling:
    """When a file is completed: at this size, this long after its first row, or this long after its last one.

    None switches a limit off. `age="0s"` completes the files of every checkpoint at once.
    """

    size: Size | None = "128MB"
    #: with the timer's rounds and the writing of the file, rows are seen within a minute
    age: Duration | None = "45s"
    inactivity: Duration | None = "15s"

    def __post_init__(self) -> None:
        check_fields(self, "rolling")
        if (self.size_bytes, self.age_seconds, self.inactivity_seconds) == (None, None, None):
            raise ConfigError("rolling needs a size, an age or an inactivity: without any, no row would be seen")

    @property
    def size_bytes(self) -> int | None:
        """The size in bytes."""
        return parse_size("rolling.size", self.size)

    @property
    def age_seconds(self) -> float | None:
        """The age in seconds."""
        return parse_duration("rolling.age", self.age)

    @property
    def inactivity_seconds(self) -> float | None:
        """The inactivity in seconds."""
        return parse_duration("rolling.inactivity", self.inactivity)

    def due(self, now: float, since: int, until: int) -> bool:
        """Whether rows that came between two moments (milliseconds) have waited long enough now (seconds)."""
        limits = ((self.age_seconds, since), (self.inactivity_seconds, until))
        return any(limit is not None and now - start / 1000 >= limit for limit, start in limits)


@dataclass(frozen=True)
class Part:
    """Decided rows of one bucket, schema and format in one hidden file."""

    file: str
    bucket: str
    schema: str
    rows: int
    bytes: int
    #: None for a merged part whose content was not read back yet
    sha256: str | None
    #: the checkpoints its rows are of, and when those began (milliseconds)
    first: int
    last: int
    since: int
    until: int
    #: how often its rows were merged
    level: int = 0
    #: what its rows were proved to go into when they were decided (rule 16); empty in records of the first version
    format: str = ""
    compression: str = ""
    #: where its bytes begin, in a file that it shares with other buckets; -1: the file is its own
    offset: int = -1

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Part:
        """Read back from a record."""
        return cls(**data)


@dataclass(frozen=True)
class Roll:
    """Parts that become one file: a committed one, or (`hidden`) a larger part."""

    number: int
    target: str
    parts: tuple[Part, ...]
    hidden: bool = False
    #: the first number that was planned in the same record; -1 in records of older versions: by itself
    planned: int = -1

    @property
    def group(self) -> int:
        """What is announced together."""
        return self.number if self.planned < 0 else self.planned

    @property
    def rows(self) -> int:
        """How many rows it holds."""
        return sum(part.rows for part in self.parts)

    @property
    def bytes(self) -> int:
        """How large its parts are."""
        return sum(part.bytes for part in self.parts)

    def merged(self) -> Part:
        """The part a hidden one leaves; its size is known when it is written."""
        first, last = self.parts[0], self.parts[-1]
        return replace(
            first,
            file=self.target,
            rows=self.rows,
            bytes=self.bytes,
            sha256=None,
            last=max(part.last for part in self.parts),
            until=max(part.until for part in self.parts),
            since=min(part.since for part in self.parts),
            level=last.level + 1,
            offset=-1,
        )


@dataclass(frozen=True)
class Group:
    """What becomes of some parts, before it has a number and a name."""

    parts: tuple[Part, ...]
    hidden: bool


def plan(
    parts: Iterable[Part], rolling: Rolling, now: float, *, last: bool = False, ratio: float = 1.0
) -> tuple[list[Group], list[Part | Group]]:
    """(files to complete, what goes on waiting: parts, or groups of parts to be merged into one).

    `ratio` is how large a file was for the parts it was made of. Order is kept: within a bucket, rows that came first
    are in the file that is completed first.
    """
    together: dict[tuple[str, ...], list[Part]] = {}
    for part in parts:
        together.setdefault((part.bucket, part.schema, part.format, part.compression), []).append(part)
    files: list[Group] = []
    waiting: list[Part | Group] = []
    for group in together.values():
        full, rest = _fill(group, rolling.size_bytes, ratio)
        files += full
        if not rest:
            continue
        since, until = min(part.since for part in rest), max(part.until for part in rest)
        if last or rolling.due(now, since, until):
            files.append(Group(tuple(rest), hidden=False))
        else:
            waiting += _merge(rest)
    return files, waiting


def _fill(parts: Sequence[Part], limit: int | None, ratio: float) -> tuple[list[Group], list[Part]]:
    """Files that are full, and the parts of the one that is not."""
    files: list[Group] = []
    current: list[Part] = []
    size = 0
    for part in parts:
        current.append(part)
        size += part.bytes
        if limit is not None and size * ratio >= limit:
            files.append(Group(tuple(current), hidden=False))
            current, size = [], 0
    return files, current


def _merge(parts: Sequence[Part]) -> list[Part | Group]:
    """Runs of FAN_IN neighbours of one level become one of the next."""
    done: list[Part | Group] = []
    run: list[Part] = []
    for part in parts:
        if run and run[-1].level != part.level:
            done += run
            run = []
        run.append(part)
        if len(run) == FAN_IN:
            done.append(Group(tuple(run), hidden=True))
            run = []
    return done + run
