"""Going back: a stopped pipeline starts again after an earlier checkpoint, or from other offsets of its source.

What is removed is copied to `holdfast/rewound/<id>/` first. Then the plan is recorded in `rewind.json`; while that is
there no query starts, and the next `holdfast rewind` finishes what a kill interrupted.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from holdfast.checkpoint import enginefiles, records
from holdfast.checkpoint.history import log_location, note_rewind
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.origin import Ahead, Further, Origin, check_provable, further_than
from holdfast.checkpoint.reader import LogReader
from holdfast.checkpoint.runs import note_command
from holdfast.checkpoint.savepoint import check_delivered, copy
from holdfast.checkpoint.start_from import merged_plan, told
from holdfast.checkpoint.status import require_used
from holdfast.checkpoint.storage import Storage, open_storage
from holdfast.core.model import CheckpointId
from holdfast.errors import CheckpointInUseError, ConfigError, RecordError, SavepointError

#: there while a rewind is under way
PLAN = "rewind.json"
BACKUPS = "rewound"


@dataclass(frozen=True)
class Rewind:
    """What a rewind does."""

    location: str
    pipeline: str
    #: the query goes on after this checkpoint
    checkpoint_id: CheckpointId
    ahead: str
    #: what sinks have got since
    further: Mapping[str, Further]
    #: files of the checkpoint location that are removed
    removes: Sequence[str]
    #: file -> its new content
    writes: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    #: rows of the source that are never read
    left_out: int = 0
    #: a new lineage, since checkpoint numbers are used again
    new_lineage: bool = True
    backup: str | None = None
    #: the lineage that is left, by which ledgers know what sinks have; known once it has begun
    lineage: str | None = None

    def to_json(self) -> dict[str, Any]:
        """For `--json` and the record."""
        writes = {name: base64.b64encode(data).decode() for name, data in self.writes.items()}
        return {**asdict(self), "removes": list(self.removes), "writes": writes}

    @staticmethod
    def parse(body: Mapping[str, Any]) -> Rewind:
        """The one of a record."""
        names = {k: v for k, v in body.items() if k not in ("kind", "version", "nonce")}
        further = {sink: Further(**f) for sink, f in body["further"].items()}
        writes = {name: base64.b64decode(text) for name, text in body["writes"].items()}
        return Rewind(**{**names, "further": further, "writes": writes})


def check_not_rewinding(storage: Storage) -> None:
    """Raise while a rewind that was interrupted is not finished."""
    if PLAN in storage.names(""):
        location = storage.url.removesuffix("/holdfast")
        raise RecordError(
            f"a rewind of {location} was interrupted: run `holdfast rewind {location}` again, which finishes it"
        )


def interrupted(location: str) -> Rewind | None:
    """The rewind that somebody was killed over; None when there is none."""
    storage = open_storage(log_location(location))
    try:
        data = storage.read(PLAN)
    except FileNotFoundError:
        return None
    return Rewind.parse(records.decode(data, f"{storage.url}/{PLAN}", "rewind"))


def plan_rewind(
    location: str,
    *,
    to: CheckpointId | None = None,
    offsets: Mapping[str, Mapping[str, int]] | None = None,
    ahead: Ahead = Ahead.REFUSE,
    leave_out: bool = False,
) -> Rewind:
    """What would be done; nothing is changed. Raises where it cannot be done, or the choice does not allow it."""
    location = location.rstrip("/")
    log, pipeline = _stopped(location)
    source = open_storage(location)
    engine = enginefiles.files_of(source)
    last = log.last_decided
    if last is None or engine.committed is None:
        raise ConfigError(f"{location} has no committed checkpoint to go back to")
    check_delivered(log, location)
    if (to is None) == (offsets is None):
        raise ConfigError("choose one: --to CHECKPOINT or --to-offsets JSON")
    if offsets is not None:
        return _to_offsets(location, pipeline, log, source, engine.committed, offsets, ahead, leave_out=leave_out)
    assert to is not None
    if to not in log.facts.decided or to > engine.committed:
        known = [number for number in log.facts.decided if number <= engine.committed]
        raise ConfigError(
            f"checkpoint {to} is not there: {location} can go back to {min(known)} ... {max(known)}"
            if known
            else f"{location} has no checkpoint to go back to"
        )
    enginefiles.read_offsets(source, to)
    enginefiles.check_state_kept(source, to)
    further = further_than(log, location, to)
    _check_choice(further, to, ahead)
    writes = {}
    if ahead is Ahead.SKIP and further:
        check_provable(log, further)
        writes = {f"offsets/{to + 1}": merged_plan(location, log, to)}
    removes = enginefiles.files_after(source, to) + [f"holdfast/{name}" for name in log.names_after(to)]
    return Rewind(location, pipeline, to, str(ahead), further, removes, writes)


def _stopped(location: str) -> tuple[LogReader, str]:
    require_used(location)
    log = LogReader(location)
    pipeline = str(log.identity().get("pipeline", ""))
    log.load()
    if log.damaged or not pipeline:
        raise RecordError("; ".join(d.problem for d in log.damaged) or f"{location} has no lineage record")
    owner = log.owner()
    if owner is not None and owner.alive is not False:
        raise CheckpointInUseError(
            f"the pipeline {pipeline!r} {'runs' if owner.alive else 'may run'} in process {owner.pid} on {owner.host}: "
            "stop it first. Nothing was changed"
        )
    return log, pipeline


def _check_choice(further: Mapping[str, Further], to: CheckpointId, ahead: Ahead) -> None:
    if further and ahead is Ahead.REFUSE:
        raise SavepointError(
            f"{told(further, to)}. Nothing was changed. Choose --ahead redeliver: these rows are delivered again; or "
            "--ahead skip: they are left out, if the replay proves equal"
        )


def _to_offsets(
    location: str,
    pipeline: str,
    log: LogReader,
    source: Storage,
    committed: CheckpointId,
    offsets: Mapping[str, Mapping[str, int]],
    ahead: Ahead,
    *,
    leave_out: bool,
) -> Rewind:
    """The next batch begins at these offsets; checkpoint numbers go on, so ledgers and lineage stay."""
    if log.last_decided != committed:
        raise SavepointError(
            f"Spark has not committed checkpoint {log.last_decided} yet, which is decided: start the query once, stop "
            "it, and go back then"
        )
    if any(enginefiles.version(name) is not None for name in source.walk("state")):
        raise SavepointError(
            "the query keeps state, which knows rows up to where it stands: reading some again would count them twice. "
            "Go back to a checkpoint, with its state (--to)"
        )
    if ahead is Ahead.SKIP:
        raise ConfigError("--ahead skip goes with --to: offsets in the middle of batches prove nothing")
    lines = enginefiles.read_offsets(source, committed)
    now = enginefiles.positions(lines)
    after, skipped = list(lines), 0
    for topic, partitions in offsets.items():
        index = _source_of(topic, now)
        for partition, offset in partitions.items():
            if str(partition) not in now[index][topic]:
                raise ConfigError(f"topic {topic!r} has no partition {partition} in {location}/offsets/{committed}")
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
                raise ConfigError(f"the offset of {topic!r} {partition} must be a number from 0 on, not {offset!r}")
            skipped += max(0, offset - now[index][topic][str(partition)])
        merged = {**now[index], topic: {**now[index][topic], **{str(p): o for p, o in partitions.items()}}}
        after[index + 2] = enginefiles.line(merged)
        now[index] = merged
    if skipped and not leave_out:
        raise SavepointError(
            f"{skipped:,} messages lie between where the query stands and these offsets, and would never be read: pass "
            "--leave-out if that is what you want. Nothing was changed"
        )
    first = _first_beyond(source, committed, offsets)
    further = {} if first is None else further_than(log, location, first - 1)
    _check_choice(further, committed if first is None else first - 1, ahead)
    name = f"offsets/{committed}"
    removes = [*enginefiles.files_after(source, committed), name, enginefiles.checksum_of(name)]
    there = set(source.names("offsets"))
    removes = [n for n in removes if n.rpartition("/")[2] in there or not n.startswith("offsets/")]
    writes = {name: "\n".join(after).encode()}
    return Rewind(
        location, pipeline, committed, str(ahead), further, removes, writes, skipped, new_lineage=False
    )  # fmt: skip


def _source_of(topic: str, now: Sequence[Any]) -> int:
    found = [
        i for i, position in enumerate(now) if isinstance(position, dict) and isinstance(position.get(topic), dict)
    ]
    if len(found) != 1:
        raise ConfigError(
            f"{'no Kafka source' if not found else 'more than one source'} of the query reads topic {topic!r}: offsets "
            'are given as {"topic": {"0": 17}}, as in the files of the checkpoint'
        )
    return found[0]


def _first_beyond(
    source: Storage, committed: CheckpointId, offsets: Mapping[str, Mapping[str, int]]
) -> CheckpointId | None:
    """The first checkpoint that has read something from these offsets on; None when none has."""
    first = None
    numbers = sorted((int(n) for n in source.names("offsets") if n.isdigit() and int(n) <= committed), reverse=True)
    for number in numbers:
        ends = enginefiles.positions(enginefiles.read_offsets(source, number))
        beyond = any(
            isinstance(end, dict) and isinstance(end.get(topic), dict) and end[topic].get(str(partition), 0) > offset
            for end in ends
            for topic, partitions in offsets.items()
            for partition, offset in partitions.items()
        )
        if not beyond:
            break
        first = number
    return first


def rewind(plan: Rewind) -> Rewind:
    """Do it, by a generation of our own; returns it with its backup. Repeatable, from the record on."""
    location, log_storage = open_storage(plan.location), open_storage(log_location(plan.location))
    log = CheckpointLog(log_storage, plan.pipeline)
    log.start()
    note_command(log_storage, log.generation, "rewind")
    if plan.backup is None:
        if further_than(log, plan.location, plan.checkpoint_id) != dict(plan.further) and plan.new_lineage:
            raise SavepointError(f"{plan.location} has changed meanwhile: look again")
        backup = f"holdfast/{BACKUPS}/{time.strftime('%Y%m%dT%H%M%S', time.gmtime())}-{records.new_nonce()[:4]}"
        for name in plan.removes:
            copy(location, location, name, f"{backup}/{name}")
        plan = Rewind(**{**vars(plan), "backup": backup, "lineage": log.lineage})
        log_storage.create(PLAN, records.encode("rewind", records.new_nonce(), plan.to_json()))
    for name in plan.removes:
        location.delete(name)
    for name, data in plan.writes.items():
        location.delete(enginefiles.checksum_of(name))
        location.replace(name, data)
    if plan.new_lineage:
        ahead, left = Ahead(plan.ahead), plan.lineage or log.lineage
        Origin(plan.pipeline, left, plan.checkpoint_id, plan.location, ahead, plan.further).write(log_storage)
        if log.lineage == left:  # else this is the rest of one that was interrupted after it
            # Ledgers know the old one up to where it got: the next start sets them aside.
            log.replace_lineage()
        note_rewind(log_storage, log.generation, plan.checkpoint_id)
    log_storage.delete(PLAN)
    return plan
