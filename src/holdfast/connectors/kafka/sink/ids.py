"""Transactional ids and the groups of their marks: bounded in number, and each says whose it is (rule 2, P4)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from holdfast.core.naming import Task, escape, unescape

#: Generations are taken modulo this, so that the broker keeps a bounded number of ids.
GENERATIONS = 256
_ID = re.compile(r"hfk1-([^-]+)-([^-]+)-([0-9a-f]{12})-(\d+)-(\d+)-(\d+)")
_PUBLISHER = re.compile(r"hfw1-([^-]+)-([^-]+)-([0-9a-f]{12})-(\d+)")


@dataclass(frozen=True)
class KafkaId:
    """A transactional id of the two-phase mode, taken apart."""

    pipeline: str
    sink: str
    #: the first twelve digits: enough to tell two checkpoint locations of one name apart
    lineage: str
    generation: int
    subtask: int
    attempt: int

    def __str__(self) -> str:
        return f"{prefix(self.pipeline, self.sink, self.lineage)}{self.generation}-{self.subtask}-{self.attempt}"


def prefix(pipeline: str, sink: str, lineage: str) -> str:
    """What all two-phase ids of one sink of one pipeline begin with."""
    return f"hfk1-{escape(pipeline)}-{escape(sink)}-{lineage[:12]}-"


def make(task: Task) -> KafkaId:
    """The id for one attempt.

    Spark's numbers of attempts grow for ever; places do not (`holdfast.core.passes`). A
    repair has a place of its own, so the mark of a committed sibling is not written over.
    """
    generation = task.generation % GENERATIONS
    attempt = task.attempt if task.place is None else task.place
    return KafkaId(task.pipeline, task.sink, task.lineage[:12], generation, task.subtask, attempt)


def parse(text: str) -> KafkaId | None:
    """The inverse of `str`; None for any other text."""
    match = _ID.fullmatch(text)
    if match is None:
        return None
    try:
        found = KafkaId(unescape(match[1]), unescape(match[2]), match[3], *(int(n) for n in match.groups()[3:]))
    except ValueError:
        return None
    return found if str(found) == text else None


def is_own_or_older(generation: int, own: int) -> bool:
    """Whether an id's generation, known modulo 256 only, is this driver's or an older one's.

    Generations form a ring: the half up to our own is older, the half beyond it newer. A driver that slept through more
    than that many successors is stopped by the fence before it looks.
    """
    return (own - generation) % GENERATIONS < GENERATIONS // 2


def publisher(pipeline: str, sink: str, lineage: str, subtask: int) -> str:
    """The transactional id that publishes a subtask's log file: one for each, so that it fences all others."""
    return f"hfw1-{escape(pipeline)}-{escape(sink)}-{lineage[:12]}-{subtask}"


@dataclass(frozen=True)
class PublisherId:
    """A transactional id of the write-ahead mode, taken apart."""

    pipeline: str
    sink: str
    lineage: str
    subtask: int

    def __str__(self) -> str:
        return publisher(self.pipeline, self.sink, self.lineage, self.subtask)


def parse_publisher(text: str) -> PublisherId | None:
    """The inverse of `publisher`; None for any other text."""
    match = _PUBLISHER.fullmatch(text)
    if match is None:
        return None
    try:
        found = PublisherId(unescape(match[1]), unescape(match[2]), match[3], int(match[4]))
    except ValueError:
        return None
    return found if str(found) == text else None


def prefixes(pipeline: str) -> tuple[str, str]:
    """What the transactional ids of all sinks of a pipeline begin with, by mode."""
    return f"hfk1-{escape(pipeline)}-", f"hfw1-{escape(pipeline)}-"


def sink_prefixes(pipeline: str, sink: str) -> tuple[str, str]:
    """What the transactional ids of one sink begin with, by mode, whatever checkpoint location they come from."""
    return f"hfk1-{escape(pipeline)}-{escape(sink)}-", f"hfw1-{escape(pipeline)}-{escape(sink)}-"


def owner_id(pipeline: str, sink: str, lineage: str) -> str:
    """The transactional id that hands the ledger to a checkpoint location."""
    return f"{ledger_group(pipeline, sink)}-{lineage}"


def mark_group(transactional_id: str, lineage: str) -> str:
    """The group whose offset is the mark of a transactional id; it carries the lineage (rule 10)."""
    return f"{transactional_id}-{lineage}"


def ledger_group(pipeline: str, sink: str) -> str:
    """The group that says how far a sink has got, whatever checkpoint location it was fed from."""
    return f"hfl1-{escape(pipeline)}-{escape(sink)}"
