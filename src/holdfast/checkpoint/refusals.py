"""When the coordinator stops instead of guessing: each says what is wrong, where, and what to do."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence

from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.origin import Further, Origin, is_equal, read_origin
from holdfast.checkpoint.ports import EnginePosition, Sink
from holdfast.core.model import CheckpointId
from holdfast.core.recovery import owed, plan_recovery
from holdfast.core.repair import Replayed
from holdfast.errors import BacklogFullError, ConfigError, RecordError, StaleCheckpointError, UndeliveredError

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


def full_backlogs(log: CheckpointLog, sinks: Iterable[Sink]) -> dict[str, tuple[str, str]]:
    """Sinks that have as much undelivered as they allow (W6): the option, and what that is."""
    found: dict[str, tuple[str, str]] = {}
    for sink in sinks:
        pending = owed(log.facts, sink.name)
        size = sum(c.bytes for committables in pending.values() for c in committables)
        for option, value, limit in (
            ("max_pending", len(pending), sink.max_pending),
            ("max_pending_bytes", size, sink.max_pending_bytes),
        ):
            if limit is not None and value > 0 and value >= limit:
                much = f"{len(pending)} undelivered checkpoints ({size} bytes), and {option}={limit}"
                found[sink.name] = (option, much)
    return found


def check_backlog(log: CheckpointLog, sinks: Iterable[Sink], problems: Mapping[str, str | None]) -> None:
    """Refuse a further batch while a sink that may lag has more undelivered than it allows (W6)."""
    for name, (option, much) in full_backlogs(log, sinks).items():
        why = problems.get(name) or "none, it is slow or hangs"
        raise BacklogFullError(
            f"sink {name!r} has {much}; its last failure: {why}. Nothing is lost: the rows are in the log under "
            f"{log.storage.url}. Repair the endpoint or raise {option}, then start the query again"
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
