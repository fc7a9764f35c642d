"""Which sinks a pipeline has had, and from which checkpoint on: `sinks.json`, written at each start that changes it.

A sink that is added later gets no earlier rows, and one that was away for a while has a gap. Both are the user's to
know: they are logged at the start and shown by `holdfast status`. Nothing is decided by this file.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from holdfast.checkpoint import records
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.storage import Storage
from holdfast.core.model import CheckpointId
from holdfast.errors import RecordError

logger = logging.getLogger("holdfast")
NAME = "sinks.json"


@dataclass(frozen=True)
class Membership:
    """When one sink was in the pipeline."""

    #: the first checkpoint it got; None: not known, it was there before this file
    since: CheckpointId | None
    #: checkpoints it got nothing of: first and last
    gaps: tuple[tuple[CheckpointId, CheckpointId], ...] = ()
    #: the first checkpoint it got no more, while it is not in the pipeline
    removed: CheckpointId | None = None


def read_book(storage: Storage) -> dict[str, Membership]:
    """Sink -> when it was in the pipeline; empty when there is no such file yet."""
    try:
        body = records.decode(storage.read(NAME), f"{storage.url}/{NAME}", "sinks")
        return {
            name: Membership(m["since"], tuple((int(a), int(b)) for a, b in m["gaps"]), m["removed"])
            for name, m in body["sinks"].items()
        }
    except FileNotFoundError:
        return {}
    except (RecordError, KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"{storage.url}/{NAME} is damaged ({type(error).__name__}); it only says since when each sink is in the "
            "pipeline, and decides nothing: move it away"
        ) from error


def note_sinks(log: CheckpointLog, names: Sequence[str]) -> None:
    """A run starts with these sinks: say and remember what that means for those that come, go or come back."""
    try:
        known = read_book(log.storage)
    except RecordError as error:
        logger.warning("%s; it is made anew", error)
        known = {}
    first = 0 if log.last_decided is None else log.last_decided + 1
    before = known or _from_records(log)
    after = dict(before)
    for name in names:
        after[name] = _joined(name, before.get(name), first)
    for name, member in before.items():
        if name not in names and member.removed is None:
            logger.warning("sink %s is no longer in the pipeline: it gets nothing from checkpoint %d on", name, first)
            after[name] = replace(member, removed=first)
    if after != known:
        body = {"sinks": {name: asdict(member) for name, member in after.items()}}
        log.storage.replace(NAME, records.encode("sinks", records.new_nonce(), body))


def _joined(name: str, member: Membership | None, first: CheckpointId) -> Membership:
    if member is None:
        if first:
            logger.warning(
                "sink %s is new in this pipeline: it gets rows from checkpoint %d on, and nothing of what was decided "
                "before",
                name,
                first,
            )
        return Membership(first)
    if member.removed is None:
        return member
    if member.removed >= first:  # nothing was decided without it
        return replace(member, removed=None)
    gap = (member.removed, first - 1)
    logger.warning(
        "sink %s is back in this pipeline: it gets rows from checkpoint %d on, and has a gap: nothing of checkpoints "
        "%d to %d was sent to it",
        name,
        first,
        *gap,
    )
    return replace(member, removed=None, gaps=(*member.gaps, gap))


def _from_records(log: CheckpointLog) -> Mapping[str, Membership]:
    """For a location that an older holdfast has used: the decisions that are kept name their sinks."""
    decided = log.facts.decided
    found: dict[str, Membership] = {}
    oldest = min(decided, default=0)
    for number, checkpoint in decided.items():
        for name in checkpoint.sinks:
            found.setdefault(name, Membership(number if number > oldest or number == 0 else None))
    last = log.last_decided
    for name, member in found.items():
        if last is not None and name not in decided[last].sinks:
            gone = 1 + max(number for number, checkpoint in decided.items() if name in checkpoint.sinks)
            found[name] = replace(member, removed=gone)
    return found
