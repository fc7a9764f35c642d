"""What the files of a checkpoint location say, read without claiming a generation: the query may run or be dead."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint import health
from holdfast.checkpoint.clients import returning_files
from holdfast.checkpoint.history import CheckpointStats, engine_position, log_location, read_checkpoints
from holdfast.checkpoint.reader import Damage, LogReader, PendingSink
from holdfast.checkpoint.runs import Owner, RunInfo, read_run
from holdfast.checkpoint.sinkbook import Membership, read_book
from holdfast.checkpoint.storage import open_storage
from holdfast.checkpoint.stuck import Finding
from holdfast.core.model import CheckpointId
from holdfast.errors import ConfigError


@dataclass(frozen=True)
class SinkStatus:
    """What one sink owes, does and holds back; times in milliseconds since the epoch."""

    sink: str
    #: decided and not committed
    checkpoints: int = 0
    rows: int = 0
    bytes: int = 0
    oldest: int | None = None
    #: what its delivery loop is about, if a driver lives
    doing: str | None = None
    since: int | None = None
    failures: int = 0
    #: attempts that failed, since its driver started
    retried: int = 0
    problem: str | None = None
    may_lag: bool | None = None
    #: complete, but in files that readers do not see before they are rolled
    held_back_rows: int = 0
    held_back_since: int | None = None
    #: the first checkpoint it got rows of; None when that is not known
    from_checkpoint: CheckpointId | None = None
    #: checkpoints it got nothing of, as it was not in the pipeline: first and last
    gaps: tuple[tuple[CheckpointId, CheckpointId], ...] = ()
    #: since which checkpoint it is no longer in the pipeline
    removed: CheckpointId | None = None


@dataclass(frozen=True)
class Status:
    """A checkpoint location at one moment."""

    #: healthy, degraded or down, and why in sentences
    health: str
    reasons: tuple[str, ...]
    #: when this was read, in milliseconds since the epoch
    at: int
    location: str
    pipeline: str | None
    lineage: str | None
    owner: Owner | None
    #: of the newest run that failed: type, message, action, at, generation
    last_error: Mapping[str, Any] | None
    #: query runs started in the last hour, and those that failed or died in the last ten minutes
    starts_last_hour: int
    failures_last_10_minutes: int
    last_decided: CheckpointId | None
    #: it and all before it are committed by every sink, and when that was so
    last_complete: CheckpointId | None
    completed_at: int | None
    #: Spark's own checkpoint
    planned: CheckpointId | None
    committed: CheckpointId | None
    pending: tuple[PendingSink, ...]
    sinks: tuple[SinkStatus, ...]
    last_checkpoint: CheckpointStats | None
    #: decided, not to be committed: the query stops there until an operator decides
    stuck: tuple[Finding, ...]
    #: the reports of what operators decided, oldest checkpoint first
    resolutions: tuple[Mapping[str, Any], ...]
    damaged: tuple[Damage, ...]
    #: what holds as long as the pipeline is as it is, and has to be known
    warnings: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether nothing needs attention."""
        return self.health == health.HEALTHY


def read_status(checkpoint_location: str, *, max_age: float | None = None, largest: int | None = None) -> Status:
    """Read the files of a checkpoint location; ConfigError when holdfast has never used it.

    With `max_age`, no checkpoint complete for so many seconds is a fault. A record larger than `largest` is damaged.
    """
    require_used(checkpoint_location)
    log = LogReader(checkpoint_location, largest=largest)
    lineage, owner = log.identity(), log.owner()
    log.load()
    stats = log.guarded("history", lambda: read_checkpoints(checkpoint_location, last=20, largest=largest)) or []
    finished = [entry for entry in stats if entry.durations]
    planned, committed = engine_position(checkpoint_location)
    now = time.time()
    pending, stuck, complete = log.pending(), log.stuck(), log.complete()
    run = None if owner is None else read_run(log.storage, owner.generation)
    book = log.guarded("sinks.json", lambda: read_book(log.storage)) or {}
    sinks = _sinks(log, pending, run if owner is not None and owner.alive is not False else None, book)
    starts = log.started_since(now - 3600)
    failed = [s for s in starts if health.died(s[0], s[2], owner, now - health.LOOP_WINDOW, s[1])]
    last_error = health.last_error(log.storage)
    completed_at = None if complete is None else complete[1]
    judged = health.judge(
        health.Facts(
            location=checkpoint_location,
            owner=owner,
            error=last_error,
            failures=len(failed),
            stuck=[f"checkpoint {f.checkpoint_id} of sink {f.sink!r}" for f in stuck],
            damaged=[damage.path for damage in log.damaged],
            owed={p.sink: p.checkpoints for p in pending},
            loops={} if run is None or owner is None or owner.alive is False else run.sinks,
            completed_at=completed_at,
        ),
        now=now,
        max_age=max_age,
    )
    return Status(
        health=judged.state,
        reasons=judged.reasons,
        at=int(now * 1000),
        location=checkpoint_location,
        pipeline=lineage.get("pipeline"),
        lineage=lineage.get("lineage"),
        owner=owner,
        last_error=last_error,
        starts_last_hour=len(starts),
        failures_last_10_minutes=len(failed),
        last_decided=log.last_decided,
        last_complete=None if complete is None else complete[0],
        completed_at=completed_at,
        planned=planned,
        committed=committed,
        pending=pending,
        sinks=sinks,
        last_checkpoint=finished[-1] if finished else None,
        stuck=stuck,
        resolutions=log.resolutions(),
        damaged=tuple(log.damaged),
        warnings=_warnings(log),
    )


def _warnings(log: LogReader) -> tuple[str, ...]:
    said = {sink: returning_files(folder) for sink, folder in log.folders().items()}
    return tuple(f"sink {sink!r}: {text}" for sink, text in said.items() if text)


def _sinks(
    log: LogReader, pending: tuple[PendingSink, ...], run: RunInfo | None, book: Mapping[str, Membership]
) -> tuple[SinkStatus, ...]:
    """Everything that is known of each sink, those of the newest checkpoint first."""
    owes = {p.sink: p for p in pending}
    loops = {} if run is None else run.sinks
    held = log.held_back()
    last = log.last_decided
    newest = () if last is None else log.facts.decided[last].sinks
    found = []
    for name in dict.fromkeys([*newest, *loops, *owes, *book]):
        debt, loop, place = owes.get(name), loops.get(name, {}), book.get(name)
        rows, since = held.get(name, (0, None))
        found.append(
            SinkStatus(
                sink=name,
                checkpoints=0 if debt is None else debt.checkpoints,
                rows=0 if debt is None else debt.rows,
                bytes=0 if debt is None else debt.bytes,
                oldest=None if debt is None else debt.oldest,
                doing=loop.get("doing"),
                since=None if "since" not in loop else int(loop["since"] * 1000),
                failures=int(loop.get("failures", 0)),
                retried=int(loop.get("retried", 0)),
                problem=loop.get("problem"),
                may_lag=loop.get("may_lag"),
                held_back_rows=rows,
                held_back_since=since,
                from_checkpoint=None if place is None else place.since,
                gaps=() if place is None else place.gaps,
                removed=None if place is None else place.removed,
            )
        )
    return tuple(found)


def require_used(checkpoint_location: str) -> None:
    """Raise ConfigError unless holdfast has used this location."""
    storage = open_storage(log_location(checkpoint_location))
    if any(storage.names(folder) for folder in ("", "generations", "decisions")):
        return
    hint = ""
    if open_storage(checkpoint_location).names("generations"):
        hint = f"; did you mean {checkpoint_location.rstrip('/').removesuffix('/holdfast')}?"
    raise ConfigError(f"{checkpoint_location} is not a checkpoint location of holdfast: there is no log in it{hint}")
