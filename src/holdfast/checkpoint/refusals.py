"""When the coordinator stops instead of guessing: each says what is wrong, where, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.origin import Further, Origin, is_equal, read_origin
from holdfast.checkpoint.ports import EnginePosition, Sink
from holdfast.checkpoint.reports import sealed
from holdfast.core.model import CheckpointId
from holdfast.core.recovery import owed, plan_recovery
from holdfast.core.repair import Replayed
from holdfast.errors import (
    BacklogFullError,
    ConfigError,
    LineageError,
    RecordError,
    RestoredEndpointError,
    StaleCheckpointError,
    UndeliveredError,
)

logger = logging.getLogger("holdfast")


def check_engine(log: CheckpointLog, engine: EnginePosition, *, adopt: bool) -> None:
    """Refuse when Spark's checkpoint and the log are not of the same moment: an old copy of one was restored.

    With `adopt`, an empty log beside a used checkpoint is taken as the beginning.
    """
    last, where = log.last_decided, log.storage.url
    if last is None:
        if engine.committed is not None and not adopt:
            raise StaleCheckpointError(
                f"Spark's checkpoint has committed batches up to {engine.committed}, but the log in {where} is "
                "empty: it was deleted, and rows it still held are not delivered; or this checkpoint was made by a "
                "query without holdfast. Restore the whole checkpoint location, or start a new one, or pass "
                "take_over=True to write_stream to go on from here"
            )
        return
    if engine.planned is None or engine.planned < last:
        found = "no batches" if engine.planned is None else f"batches up to {engine.planned}"
        raise StaleCheckpointError(
            f"the log in {where} has decided checkpoints up to {last}, but Spark's checkpoint beside it knows "
            f"{found}: Spark's part was deleted or is an old copy, and its next rows would be taken for delivered "
            "ones. Restore the whole checkpoint location, or start a new one under a new pipeline name"
        )
    if engine.committed is not None and engine.committed > last:
        raise StaleCheckpointError(
            f"Spark's checkpoint has committed batches up to {engine.committed}, but the log in {where} ends at "
            f"{last}: the log is an old copy. Restore the whole checkpoint location, or start a new one under a "
            "new pipeline name"
        )


def check_not_stale(log: CheckpointLog, checkpoint_id: CheckpointId) -> None:
    """Refuse a batch that was decided so long ago that its record is pruned."""
    last = log.last_decided
    if last is not None and checkpoint_id <= last:
        raise StaleCheckpointError(
            f"Spark asks for checkpoint {checkpoint_id}, but {last} is decided already and {checkpoint_id} is no "
            f"longer in the log of {log.storage.url}: Spark's part of the checkpoint is an old copy. Restore "
            "the whole checkpoint location, or start a new one under a new pipeline name"
        )


def check_sinks(log: CheckpointLog, names: Collection[str]) -> None:
    """Refuse to start when a decided checkpoint owes rows to a sink that is no longer in the pipeline."""
    for action in plan_recovery(log.facts):
        if action.sink not in names:
            location = log.storage.url.removesuffix("/holdfast")
            raise ConfigError(
                f"checkpoint {action.checkpoint_id} is decided and still owes its rows to sink {action.sink!r}, "
                f"which is not among this pipeline's sinks ({', '.join(names)}): start once more with that "
                f"sink, let it catch up, then remove it; or, if it is gone for good, `holdfast resolve {location} "
                f"--sink {action.sink} --give-up` keeps its rows in a report"
            )


def check_patterns(log: CheckpointLog, sinks: Iterable[Sink]) -> None:
    """Refuse a sink that had a pattern over columns and has none now, or the other way: its state is another one."""
    saved = {} if log.last_decided is None else log.facts.decided[log.last_decided].state
    for sink in sinks:
        has = bool(getattr(sink, "has_targets", False))
        kept = [c.data for committables in owed(log.facts, sink.name).values() for c in committables]
        if sink.name in saved:
            kept.append(saved[sink.name])
        if any((isinstance(data, Mapping) and "targets" in data) != has for data in kept if data is not None):
            raise ConfigError(
                f"sink {sink.name!r} had {'no pattern' if has else 'a pattern'} over columns before, and what it keeps "
                f"in the log is for that. Give the sink {'with it' if has else 'without it'} another name=...; "
                "start once more with the former one first if rows of it are not delivered yet"
            )


def check_take_over(log: CheckpointLog, why: LineageError) -> None:
    """Refuse to set a ledger aside that may be all that knew of deliveries of this very location.

    Rows in the write-ahead log would be sent whether the endpoint has them or not. What is prepared at an endpoint
    tells by itself; what names its lineage (Kafka) is looked for under that one; and an endpoint that was restored says
    up to where it has them.
    """
    if isinstance(why, RestoredEndpointError):
        return
    left = {
        sink: sorted(n for n, mine in pending.items() if any(sealed(c) and "lineage" not in c.data for c in mine))
        for sink in dict.fromkeys(action.sink for action in plan_recovery(log.facts))
        if (pending := owed(log.facts, sink))
    }
    for sink, numbers in left.items():
        if not numbers:
            continue
        which = f"checkpoint {numbers[0]}" if len(numbers) == 1 else f"checkpoints {numbers[0]} to {numbers[-1]}"
        command = f"`holdfast resolve {log.storage.url.removesuffix('/holdfast')} --sink {sink}"
        raise type(why)(
            f"take_over is refused, because it could deliver {which} of sink {sink!r} a second time: decided in "
            f"{log.storage.url}, with no record of a delivery, and the marks that would tell whether there was one are "
            f"not this location's any more. Look whether the endpoint has the rows. If it has, {command} "
            f"--mark-delivered`; if not, {command} --give-up`, which keeps them in a report, and after this start "
            f"--send-again. Then start with take_over=True again. Why it was needed: {why}"
        ) from why


@dataclass(frozen=True)
class FullBacklog:
    """A sink has as much undelivered as it allows."""

    option: str
    #: what that is, for an error
    much: str
    #: so many of the oldest checkpoints must be delivered before there is room
    excess: int


def full_backlogs(log: CheckpointLog, sinks: Iterable[Sink]) -> dict[str, FullBacklog]:
    """Sinks that have as much undelivered as they allow (W6)."""
    found: dict[str, FullBacklog] = {}
    for sink in sinks:
        if sink.max_pending is None and sink.max_pending_bytes is None:
            continue
        pending = owed(log.facts, sink.name)
        sizes = [sum(c.bytes for c in committables) for _, committables in sorted(pending.items())]
        for option, amounts, limit in (
            ("max_pending", [1] * len(sizes), sink.max_pending),
            ("max_pending_bytes", sizes, sink.max_pending_bytes),
        ):
            left, excess = sum(amounts), 0
            while limit is not None and left > 0 and left >= limit:
                left, excess = left - amounts[excess], excess + 1
            if excess:
                much = f"{len(sizes)} undelivered checkpoints ({sum(sizes)} bytes), and {option}={limit}"
                before = found.get(sink.name)
                found[sink.name] = FullBacklog(option, much, max(excess, before.excess if before else 0))
    return found


def check_backlog(log: CheckpointLog, sinks: Iterable[Sink], problems: Mapping[str, str | None]) -> None:
    """Refuse a further batch while a sink that may lag has more undelivered than it allows (W6)."""
    for name, full in full_backlogs(log, sinks).items():
        why = problems.get(name) or "none, it is slow or hangs"
        raise BacklogFullError(
            f"sink {name!r} has {full.much}; its last failure: {why}. Nothing is lost: the rows are in the log under "
            f"{log.storage.url}. Repair the endpoint or raise {full.option}, then start the query again"
        )


def undelivered(
    log: CheckpointLog, sinks: Iterable[Sink], problems: Mapping[str, str | None]
) -> UndeliveredError | None:
    """What sinks still owe when a run ends (D8); None when nothing is left."""
    left = []
    for sink in sinks:
        pending = owed(log.facts, sink.name)
        if pending:
            rows = sum(c.rows for committables in pending.values() for c in committables)
            first, last = min(pending), max(pending)
            which = f"checkpoint {first}" if first == last else f"{len(pending)} checkpoints ({first} to {last})"
            left.append(f"sink {sink.name!r}: {which}, {rows} rows; {problems.get(sink.name) or 'it is still at work'}")
    if not left:
        return None
    return UndeliveredError(
        f"the run ended before everything decided was delivered: {'. '.join(left)}. Nothing is lost: the rows are "
        f"prepared or in the log under {log.storage.url}, and the next start delivers them first. drain_timeout says "
        "how long the end of a run waits"
    )


def warn_of_timeouts(sinks: Iterable[Sink], elapsed: float) -> None:
    """Say it while there is time: past its timeout an endpoint drops a transaction, decided or not (T7)."""
    for sink in sinks:
        timeout = sink.transaction_timeout
        if timeout is not None and elapsed > 0.8 * timeout:
            logger.warning(
                "transactions of sink %s have been open for %.1f s, over 80 %% of the endpoint's timeout of "
                "%.1f s: raise the timeout or make batches smaller",
                sink.name,
                elapsed,
                timeout,
            )


def check_origin(log: CheckpointLog) -> Origin | None:
    """Where this lineage began; RecordError when a start-from was interrupted before it was whole."""
    origin = read_origin(log.storage)
    if origin is not None and log.last_decided is None:
        location = log.storage.url.removesuffix("/holdfast")
        raise RecordError(
            f"{location} was being made from {origin.source}, and that was interrupted: delete it and make it again"
        )
    return origin


def check_equal(sink: str, expected: Further, replay: Sequence[Replayed]) -> None:
    """Refuse to leave out rows that are not those which a sink has."""
    if not is_equal(expected, replay):
        rows = sum(part.rows for part in replay)
        raise StaleCheckpointError(
            f"sink {sink!r} has {expected.rows:,} rows of {expected.checkpoints} checkpoints beyond the beginning of "
            f"this lineage, and the replay of the same input gives {rows:,} rows that are not the same: nothing was "
            "left out, and nothing delivered. A query with state or time in it gives other rows when its batches are "
            "cut in another way. Make the location again with --ahead redeliver, or go on from the newest checkpoint"
        )
