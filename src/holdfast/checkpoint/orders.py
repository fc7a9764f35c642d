"""What a start does about orders that `holdfast resolve` recorded: reports, rows at endpoints, commit records.

Every step can be repeated: a kill anywhere leaves the order in the log, and the next start or command does the rest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from holdfast.checkpoint.guard import described, guarded
from holdfast.checkpoint.history import History
from holdfast.checkpoint.log import ACCEPT_RESTORED, CheckpointLog
from holdfast.checkpoint.ports import Sink
from holdfast.checkpoint.records import check_plain
from holdfast.checkpoint.reports import (
    GIVE_UP,
    MARK_DELIVERED,
    PRODUCE_ANYWAY,
    keep_rows,
    read_report,
    report_of,
    rows_folder,
    write_report,
)
from holdfast.checkpoint.stuck import Standing, read_finding
from holdfast.core.model import CheckpointId, Committable, RecordKind
from holdfast.core.recovery import plan_recovery
from holdfast.core.states import Event, advance, recorded
from holdfast.errors import HoldfastError, RecordError, first_line, permanent

logger = logging.getLogger("holdfast")
#: does something with a sink, again while its endpoint is away
Again = Callable[[str, Callable[[], Any], Sink], None]
GIVEN_UP = "given up"
#: of the history, beyond those that the run itself fills
ORDERS_SEGMENT = 10**9


def _orders(log: CheckpointLog) -> Iterator[tuple[CheckpointId, str, Mapping[str, Any]]]:
    for number, decided in list(log.facts.decided.items()):
        for sink, order in decided.resolution.items():
            yield number, sink, order


def _waiting(log: CheckpointLog) -> list[tuple[CheckpointId, str, Mapping[str, Any]]]:
    """Orders to strike rows that are prepared at an endpoint."""
    ends = (GIVE_UP, MARK_DELIVERED)
    return [o for o in _orders(log) if o[2]["how"] in ends and o[2].get("carried_out") is False]


def abandon(log: CheckpointLog, names: Sequence[str]) -> None:
    """Carry out orders about sinks that are no longer in the pipeline: nobody can read their rows back."""
    for number, sink, order in _waiting(log):
        if sink not in names:
            why = f"sink {sink!r} is no longer in the pipeline: what its endpoint had prepared could not be read"
            _strike(log, number, sink, order, None, why)
    finish(log, names)


def carry_out(log: CheckpointLog, sinks: Sequence[Sink], again: Again) -> None:
    """Read rows that are given up from their endpoints into the report, then strike them; the sweep undoes them."""
    named = {sink.name: sink for sink in sinks}
    for number, name, order in _waiting(log):
        kept, why = _read_back(log, number, named[name], order, again) if order["how"] == GIVE_UP else (None, None)
        _leave_out(log, number, named[name], order)
        _strike(log, number, name, order, kept, why)
    finish(log, list(named))


def _about(log: CheckpointLog, number: CheckpointId, sink: str, order: Mapping[str, Any]) -> list[Committable]:
    return [c for c in log.facts.decided[number].of(sink) if c.subtask in order["subtasks"]]


def _read_back(
    log: CheckpointLog, number: CheckpointId, sink: Sink, order: Mapping[str, Any], again: Again
) -> tuple[dict[str, Any] | None, str | None]:
    """The file with the rows, or why there is none."""
    data = [c.data for c in _about(log, number, sink.name, order)]
    target = f"{rows_folder(number, sink.name)}/prepared-{order['id']}.arrow"
    found: list[dict[str, Any] | None] = []
    nothing = f"{described(sink)} cannot read prepared rows back"

    def read() -> None:
        rows = sink.rows_of(data)
        found[:] = [] if rows is None else [keep_rows(log.storage, target, rows)]

    try:
        again("reading back rows that are given up", read, sink)
    except HoldfastError as error:
        if not permanent(error):
            raise
        return None, f"{described(sink)}: its rows could not be read back: {first_line(error)}"
    return (found[0], None if found[0] else f"{described(sink)} had no rows left") if found else (None, nothing)


def _leave_out(log: CheckpointLog, number: CheckpointId, sink: Sink, order: Mapping[str, Any]) -> None:
    """Take the rows out of the sink's operator state, which may plan to do something with them later."""
    with guarded(sink, "giving rows up"):
        state = sink.give_up([c.data for c in _about(log, number, sink.name, order)])
    if state is not None:
        log.amend_state(sink.name, check_plain(f"sink {sink.name!r}: give_up", state))
        with guarded(sink, "restoring its state"):
            sink.initialize_state(state)


def _strike(
    log: CheckpointLog,
    number: CheckpointId,
    sink: str,
    order: Mapping[str, Any],
    kept: Mapping[str, Any] | None,
    why: str | None,
) -> None:
    """Record that these rows are not to be committed any more."""
    decided = log.facts.decided[number]
    gone = [Committable(sink, c.subtask, None) for c in _about(log, number, sink, order)]
    files = [*order.get("files", ()), *([kept] if kept else [])]
    done = {**order, "carried_out": True, "files": files, **({"not_kept": why} if why else {})}
    at, kind = decided.timestamp, RecordKind.REPAIR
    log.decide(number, decided.sinks, gone, timestamp=at, state={}, kind=kind, resolution={sink: done})
    logger.warning(
        "checkpoint %d, sink %s: %d rows are not committed, as ordered by %s (%s); %s",
        number, sink, order["rows"], order["by"], order["how"],
        f"{kept['rows']} of them are kept in the report" if kept else why or "none are kept",
    )  # fmt: skip


def finish(log: CheckpointLog, present: Collection[str] = ()) -> None:
    """Whatever recorded orders leave to do: reports, commit records, files that nobody needs, findings.

    The loops of sinks that are `present` record their commits by themselves.
    """
    settled = []
    for number, sink, order in _orders(log):
        _report(log, number, sink, order)
        if order["how"] in (GIVE_UP, MARK_DELIVERED) and order.get("carried_out", True):
            for file in order.get("files", ()):
                if "source" in file:
                    _forget(log, file["source"])
            if sink not in present and _settle(log, number, sink):
                settled.append((number, sink))
    _tell(log, settled)
    for file in log.storage.names("lost"):
        try:
            found = read_finding(log.storage, file, log.facts)
        except RecordError as error:
            logger.warning("%s", error)
            continue
        if found is not None and found[1] in (Standing.RESOLVED, Standing.DONE):
            log.storage.delete(f"lost/{file}")


def _report(log: CheckpointLog, number: CheckpointId, sink: str, order: Mapping[str, Any]) -> None:
    """Leave the report unless it is there; the one a run wrote about what it produced is better than the order."""
    old = read_report(log.storage, number, sink)
    body = report_of(number, sink, order)
    final = order["how"] in (PRODUCE_ANYWAY, ACCEPT_RESTORED)
    if old is None or not _same(old, order) or (not final and old.get("carried_out") != body["carried_out"]):
        write_report(log, body)


def _same(report: Mapping[str, Any], order: Mapping[str, Any]) -> bool:
    """Whether a report is about this order; those of an older holdfast have no id."""
    if "id" in order:
        return bool(report.get("id") == order["id"])
    return bool(report.get("finding") == order.get("finding"))


def _settle(log: CheckpointLog, number: CheckpointId, sink: str) -> bool:
    """If nothing is left to commit, record it, so that a start without this sink can go on."""
    decided, commits = log.facts.decided[number], log.facts.commits.get(number, ())
    if sink in commits or sink not in decided.sinks or decided.of(sink):
        return False
    log.record_commit(number, sink, {"outcome": GIVEN_UP, "rows": 0, "bytes": 0, "subtasks": 0})
    return True


def _tell(log: CheckpointLog, settled: Sequence[tuple[CheckpointId, str]]) -> None:
    """The history of checkpoints that are complete by this."""
    missing = {action.checkpoint_id for action in plan_recovery(log.facts)}
    history = History(log.storage, log.generation, segment=ORDERS_SEGMENT)
    for number, sink in settled:
        if number not in missing:
            # Orders are carried out by a start, or by a command that has fenced the driver: both find records only.
            state = advance(recorded(committed=False), Event.GIVE_UP)
            history.add(number, {"status": state, "sinks": {sink: {"outcome": GIVEN_UP}}})


def _forget(log: CheckpointLog, source: str) -> None:
    """The file is in the report, and no record names it any more."""
    log.storage.delete(source)
    log.storage.remove_folder(source.rpartition("/")[0])
