"""The operator's ways out of a checkpoint that an endpoint lost and no replay could repair (P5).

The query that stopped left a finding in `lost/`. An order about it goes into the log as a repair record, by a
generation of its own, so that no driver decides meanwhile; then a report is left and the finding removed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.checkpoint import records
from holdfast.checkpoint.history import engine_position, log_location
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.repair import GIVE_UP, MARK_DELIVERED, PRODUCE_ANYWAY, report_name
from holdfast.checkpoint.storage import Storage, open_storage
from holdfast.core.model import CheckpointId, Committable, RecordKind
from holdfast.core.recovery import Facts
from holdfast.core.repair import Replayed, plan_repair
from holdfast.errors import CommitError, ConfigError, RecordError

WAYS = (PRODUCE_ANYWAY, GIVE_UP, MARK_DELIVERED)


class Standing(StrEnum):
    """How a finding relates to what the log says now."""

    STUCK = "stuck"
    RESOLVED = "an order about it is recorded"
    OUTDATED = "its transactions were replaced since"
    DONE = "its checkpoint was committed since"


@dataclass(frozen=True)
class Finding:
    """What a query that stopped found lost."""

    checkpoint_id: CheckpointId
    sink: str
    subtasks: tuple[int, ...]
    rows: int
    #: False: the sink cannot tell which of these are gone, or whether they are
    certain: bool
    #: when it was found, in milliseconds since the epoch
    since: int
    problem: str
    #: subtasks and rows of Spark's replay; None when there was none to look at
    replay_subtasks: int | None
    replay_rows: int | None
    #: if the next replay is as that one: rows produced by `produce-anyway`, and what is not proven about them
    produced: int
    possibly_doubled: int
    possibly_lost: int
    nonce: str


def read_finding(storage: Storage, file: str, facts: Facts) -> tuple[Finding, Standing] | None:
    """One file of `lost/`; None when a query removed it meanwhile."""
    path = f"{storage.url}/lost/{file}"
    try:
        body = records.decode(storage.read(f"lost/{file}"), path, "lost")
        return _finding(body, facts)
    except FileNotFoundError:
        return None
    except (RecordError, KeyError, TypeError, ValueError) as error:
        raise RecordError(
            f"{path} is damaged ({type(error).__name__}); it only says what a query found lost, and decides nothing: "
            "move it away and start the query, which finds out again"
        ) from error


def findings(log: CheckpointLog) -> list[tuple[Finding, Standing]]:
    """Every finding, and whether it still stands."""
    found = (read_finding(log.storage, file, log.facts) for file in log.storage.names("lost"))
    return sorted((f for f in found if f is not None), key=lambda f: (f[0].checkpoint_id, f[0].sink))


def _finding(body: Mapping[str, Any], facts: Facts) -> tuple[Finding, Standing]:
    checkpoint_id, sink, gone = int(body["checkpoint_id"]), str(body["sink"]), body["lost"]
    decided = facts.decided.get(checkpoint_id)
    mine = {c.subtask: c for c in decided.of(sink)} if decided is not None else {}
    lost = [Committable(sink, c["subtask"], c["data"], c["rows"], 0, c["digest"]) for c in gone]
    replay = [Replayed(**r) for r in body["replay"]]
    plan = plan_repair(lost, replay, [c for n, c in mine.items() if n not in {c.subtask for c in lost}])
    rows = {r.subtask: r.rows for r in replay}
    matched, rest = sum(rows[n] for _, n in plan.matches), sum(rows[n] for n in plan.rest)
    unmatched = sum(c.rows for c in plan.unmatched)
    finding = Finding(
        checkpoint_id=checkpoint_id,
        sink=sink,
        subtasks=tuple(c.subtask for c in lost),
        rows=sum(c.rows for c in lost),
        certain=bool(body["certain"]),
        since=int(body["at"]),
        problem=str(body["problem"]),
        replay_subtasks=len(replay) if replay else None,
        replay_rows=sum(rows.values()) if replay else None,
        produced=matched + (rest if plan.unmatched else 0),
        possibly_doubled=0 if plan.possible else rest,
        possibly_lost=0 if plan.possible else unmatched,
        nonce=str(body["nonce"]),
    )
    return finding, _standing(finding, lost, mine, facts)


def _standing(finding: Finding, lost: list[Committable], mine: Mapping[int, Committable], facts: Facts) -> Standing:
    decided = facts.decided.get(finding.checkpoint_id)
    if decided is not None and decided.resolution.get(finding.sink, {}).get("finding") == finding.nonce:
        return Standing.RESOLVED
    if decided is None or finding.sink in facts.commits.get(finding.checkpoint_id, ()):
        return Standing.DONE
    if any(c.subtask not in mine or mine[c.subtask].data != c.data for c in lost):
        return Standing.OUTDATED
    return Standing.STUCK


def choose(log: CheckpointLog, checkpoint_id: CheckpointId | None = None, sink: str | None = None) -> Finding:
    """The one finding that is meant, or the error that says why there is none or which to name."""
    meant = [
        (f, standing)
        for f, standing in findings(log)
        if checkpoint_id in (None, f.checkpoint_id) and sink in (None, f.sink)
    ]
    stuck = [f for f, standing in meant if standing is Standing.STUCK]
    if len(stuck) == 1:
        return stuck[0]
    if stuck:
        names = ", ".join(f"{f.checkpoint_id} --sink {f.sink}" for f in stuck)
        raise ConfigError(f"more than one checkpoint is stuck; name the one you mean: {names}")
    what = "nothing" if checkpoint_id is None else f"checkpoint {checkpoint_id}"
    what += "" if sink is None else f" of sink {sink!r}"
    for finding, standing in meant:
        raise CommitError(
            f"checkpoint {finding.checkpoint_id} of sink {finding.sink!r} is not stuck any more: {standing.value}. "
            "Start the query: it goes on, or finds out anew what is lost"
        )
    decided = None if checkpoint_id is None else log.facts.decided.get(checkpoint_id)
    for name, order in ({} if decided is None else decided.resolution).items():
        if sink in (None, name):
            raise CommitError(
                f"checkpoint {checkpoint_id} of sink {name!r} was resolved already: {order['how']}, by {order['by']}. "
                "Start the query"
            )
    raise ConfigError(
        f"{what} is recorded as stuck. Start the query first: it finds out, produces again what it can, and records "
        "what it cannot"
    )


def check_way(location: str, finding: Finding, how: str) -> None:
    """Refuse what cannot be carried out: Spark replays only what it has not committed."""
    committed = engine_position(location)[1]
    if how == PRODUCE_ANYWAY and committed is not None and finding.checkpoint_id <= committed:
        raise ConfigError(
            f"Spark has committed batch {finding.checkpoint_id} and does not replay it, so its rows cannot be produced "
            f"again: choose --{GIVE_UP} or --{MARK_DELIVERED}"
        )


def consequence(finding: Finding, how: str) -> str:
    """What an order means for the rows, in a sentence."""
    rows, gone = f"{finding.rows:,} rows", "are" if finding.certain else "may be"
    if how == GIVE_UP:
        return f"{rows} of checkpoint {finding.checkpoint_id} {gone} missing in sink {finding.sink!r} for ever"
    if how == MARK_DELIVERED:
        return (
            f"{rows} of checkpoint {finding.checkpoint_id} are taken to be in sink {finding.sink!r} because you say "
            "so; those that are not are missing for ever"
        )
    if finding.replay_rows is None:
        return f"the next replay of checkpoint {finding.checkpoint_id} is produced: rows may be doubled or missing"
    return (
        f"if the next replay is as the last, {finding.produced:,} rows are produced into sink {finding.sink!r}; "
        f"{finding.possibly_doubled:,} of them may be there already, and {finding.possibly_lost:,} rows of the first "
        "run may stay missing"
    )


def resolve(location: str, pipeline: str, finding: Finding, how: str, who: Mapping[str, Any]) -> dict[str, Any]:
    """Record the order, by a generation of its own; returns the report. `who` is by, host and at."""
    log = CheckpointLog(open_storage(log_location(location)), pipeline)
    log.start()
    if choose(log, finding.checkpoint_id, finding.sink) != finding:
        raise CommitError(f"checkpoint {finding.checkpoint_id}: another finding was recorded meanwhile; look again")
    check_way(location, finding, how)
    order = {
        "how": how,
        **who,
        "rows": finding.rows,
        "subtasks": list(finding.subtasks),
        "certain": finding.certain,
        "finding": finding.nonce,
        "expected": _expected(finding, how),
    }
    decided = log.facts.decided[finding.checkpoint_id]
    # One without data removes that of its number: the rest of the checkpoint commits at the next start.
    gone = [] if how == PRODUCE_ANYWAY else [Committable(finding.sink, n, None) for n in finding.subtasks]
    orders, at = {finding.sink: order}, decided.timestamp
    kind = RecordKind.REPAIR
    log.decide(finding.checkpoint_id, decided.sinks, gone, timestamp=at, state={}, kind=kind, resolution=orders)
    finish(log)
    return report_of(finding.checkpoint_id, finding.sink, order)


def finish(log: CheckpointLog) -> None:
    """Leave the report of every recorded order and remove its finding; also after a kill between the two."""
    for file in log.storage.names("lost"):
        found = read_finding(log.storage, file, log.facts)
        if found is None or found[1] not in (Standing.RESOLVED, Standing.DONE):
            continue
        finding, standing = found
        if standing is Standing.RESOLVED:
            order = log.facts.decided[finding.checkpoint_id].resolution[finding.sink]
            body = report_of(finding.checkpoint_id, finding.sink, order)
            name = report_name(finding.checkpoint_id, finding.sink)
            data = records.encode("report", records.new_nonce(), body)
            # A second order about the same rows replaces the report of the first; a run's own is not replaced.
            if not log.storage.create(name, data) and _report_finding(log.storage, name) != finding.nonce:
                log.storage.replace(name, data)
        log.storage.delete(f"lost/{file}")


def report_of(checkpoint_id: CheckpointId, sink: str, order: Mapping[str, Any]) -> dict[str, Any]:
    """What is known lost or doubled by an order that was just given."""
    how = order["how"]
    return {**order, "checkpoint_id": checkpoint_id, "sink": sink, "carried_out": how != PRODUCE_ANYWAY} | (
        order["expected"] if how != PRODUCE_ANYWAY else {}
    )


def _expected(finding: Finding, how: str) -> dict[str, int]:
    if how == GIVE_UP:
        return {"rows_lost" if finding.certain else "rows_possibly_lost": finding.rows}
    if how == MARK_DELIVERED:
        return {"rows_claimed_delivered": finding.rows}
    return {
        "rows_produced": finding.produced,
        "rows_possibly_doubled": finding.possibly_doubled,
        "rows_possibly_lost": finding.possibly_lost,
    }


def _report_finding(storage: Storage, name: str) -> str | None:
    finding = records.decode(storage.read(name), f"{storage.url}/{name}", "report").get("finding")
    return None if finding is None else str(finding)
