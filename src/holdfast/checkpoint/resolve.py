"""The operator's ways out of whatever is decided and cannot be committed (D4, P5).

An order goes into the log as a repair record, by a generation of its own, so that no driver decides meanwhile; then a
report is left and the finding removed. Rows in the log are copied to the report first. What is prepared at an endpoint
can only be read there: such an order is carried out by the next start (holdfast.checkpoint.orders).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.checkpoint import records
from holdfast.checkpoint.findings import finding_name
from holdfast.checkpoint.history import CheckpointStats, checkpoints, engine_position, log_location
from holdfast.checkpoint.log import ACCEPT_RESTORED, THROUGH, CheckpointLog
from holdfast.checkpoint.orders import finish
from holdfast.checkpoint.reports import (
    GIVE_UP,
    MARK_DELIVERED,
    PRODUCE_ANYWAY,
    keep_file,
    report_of,
    rows_folder,
    sealed,
)
from holdfast.checkpoint.runs import note_command, read_runs
from holdfast.checkpoint.storage import Storage, open_storage
from holdfast.checkpoint.stuck import Finding, owed_findings
from holdfast.core.model import CheckpointId, Committable, RecordKind
from holdfast.core.recovery import OwedCommit
from holdfast.errors import CommitError, ConfigError

TRY_AGAIN = "try-again"
WAYS = (TRY_AGAIN, PRODUCE_ANYWAY, GIVE_UP, MARK_DELIVERED)


def ways(finding: Finding) -> tuple[str, ...]:
    """Those that can help with this one: only what an endpoint lost can be produced again."""
    return tuple(how for how in WAYS if how != PRODUCE_ANYWAY or finding.error == "LostError")


def check_way(location: str, finding: Finding, how: str) -> None:
    """Refuse what cannot be carried out: Spark replays only what it has not committed."""
    if how != PRODUCE_ANYWAY:
        return
    number, others = finding.checkpoint_id, f"choose --{TRY_AGAIN}, --{GIVE_UP} or --{MARK_DELIVERED}"
    if how not in ways(finding):
        raise ConfigError(
            f"checkpoint {number} of sink {finding.sink!r} was not lost by its endpoint, as far as is known, so there "
            f"is nothing to produce again: {others}"
        )
    committed = engine_position(location)[1]
    if committed is not None and number <= committed:
        raise ConfigError(
            f"Spark has committed batch {number} and does not replay it, so its rows cannot be produced again: {others}"
        )


def consequence(finding: Finding, how: str) -> str:
    """What an order means for the rows, in a sentence."""
    number, sink = finding.checkpoint_id, finding.sink
    rows, gone = f"{finding.rows:,} rows of checkpoint {number}", "are" if finding.certain else "may be"
    if how == TRY_AGAIN:
        return f"nothing is changed for {rows}: the next start tries again to commit them to sink {sink!r}"
    if how == GIVE_UP:
        return f"{rows} {gone} missing in sink {sink!r} for ever{_kept(finding)}"
    if how == MARK_DELIVERED:
        return f"{rows} are taken to be in sink {sink!r} because you say so; those that are not are missing for ever"
    replay = "as the last" if finding.replay_rows is not None else "as the first run"
    return (
        f"if the next replay is {replay}, {finding.produced:,} rows are produced into sink {sink!r}; "
        f"{finding.possibly_doubled:,} of them may be there already, and {finding.possibly_lost:,} rows of the first "
        "run may stay missing"
    )


def _kept(finding: Finding) -> str:
    if finding.sealed_rows:
        return f"; {finding.sealed_rows:,} are in the log, are kept in a report and can be sent again"
    if finding.certain:
        return ""
    return "; if the endpoint still has them, the next start reads them into a report, then undoes them there"


def record_orders(
    location: str, pipeline: str, meant: Sequence[Finding], how: str, who: Mapping[str, Any]
) -> list[dict[str, Any]]:
    """Record the orders, by a generation of their own; returns the reports. `who` is by, host and at."""
    log = CheckpointLog(open_storage(log_location(location)), pipeline)
    log.start()
    note_command(log.storage, log.generation, "resolve")
    found = owed_findings(log)
    done = []
    for finding in meant:
        if found.get(OwedCommit(finding.checkpoint_id, finding.sink)) != finding:
            raise CommitError(
                f"checkpoint {finding.checkpoint_id} of sink {finding.sink!r}: something changed meanwhile; look again"
            )
        check_way(location, finding, how)
        done.append(_order(log, finding, how, who))
    finish(log)
    return [report_of(number, sink, log.facts.decided[number].resolution[sink]) for number, sink in done]


def _order(log: CheckpointLog, finding: Finding, how: str, who: Mapping[str, Any]) -> tuple[CheckpointId, str]:
    number, sink = finding.checkpoint_id, finding.sink
    decided = log.facts.decided[number]
    about = [c for c in decided.of(sink) if c.subtask in finding.subtasks]
    struck = [] if how == PRODUCE_ANYWAY else about
    files = []
    if how != PRODUCE_ANYWAY:
        files = [keep_file(log.storage, rows_folder(number, sink), c) for c in about if sealed(c)]
    # What is prepared at the endpoint can be read there, by the next start, and nowhere else; and a sink's operator
    # state may speak of it.
    later = [c for c in struck if not sealed(c)] if not finding.certain else []
    order = {
        "id": records.new_nonce(),
        "how": how,
        **who,
        "rows": finding.rows,
        "subtasks": list(finding.subtasks),
        "certain": finding.certain,
        "problem": finding.problem,
        "finding": finding.nonce or None,
        "expected": _expected(finding, how),
        "files": files,
        "carried_out": how != PRODUCE_ANYWAY and not later,
        **_accepted(decided.resolution.get(sink)),
    }
    # One without data removes that of its number: the rest of the checkpoint commits at the next start.
    gone = [Committable(sink, c.subtask, None) for c in struck if c not in later]
    at, kind = decided.timestamp, RecordKind.REPAIR
    log.decide(number, decided.sinks, gone, timestamp=at, state={}, kind=kind, resolution={sink: order})
    return number, sink


def _accepted(before: Mapping[str, Any] | None) -> dict[str, Any]:
    """An order replaces the one before it; but what was accepted as missing stays accepted."""
    return {THROUGH: before[THROUGH]} if before is not None and THROUGH in before else {}


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


def try_again(storage: Storage, meant: Sequence[Finding]) -> None:
    """Forget why it failed: the next start tries to commit it, as every start does."""
    for finding in meant:
        storage.delete(finding_name(finding.checkpoint_id, finding.sink))


# -- an endpoint that was restored -----------------------------------------------------------------------------------


def missing_in(log: CheckpointLog, location: str, sink: str) -> dict[str, Any]:
    """What a restored endpoint is not asked for any more: first, last, and the rows as far as they are known."""
    known = log.committed().get(sink)
    if known is None:
        raise ConfigError(f"sink {sink!r} has committed nothing that its endpoint would be expected to know")
    first, last = _told_behind(log.storage, sink) or (None, known.checkpoint_id)
    stats: dict[int, CheckpointStats] = {s.checkpoint_id: s for s in checkpoints(location)}
    numbers = [n for n in stats if first is not None and first <= n <= last]
    rows = sum(int(stats[n].sinks.get(sink, {}).get("rows", 0)) for n in numbers)
    return {"sink": sink, "first": first, "through": known.checkpoint_id, "rows": rows if numbers else None}


def _told_behind(storage: Storage, sink: str) -> tuple[int, int] | None:
    """What the newest run that was refused by this sink's endpoint said it lacks."""
    for run in reversed(read_runs(storage)):
        error = run.error or {}
        if "behind" in error and f"--sink {sink} --accept-restored" in str(error.get("message")):
            return int(error["behind"][0]), int(error["behind"][1])
    return None


def accept_consequence(missing: Mapping[str, Any]) -> str:
    """What accepting it means, in a sentence."""
    last = missing["through"]
    if missing["first"] is None:
        which = f"whatever sink {missing['sink']!r} lacks of the checkpoints up to {last}"
    else:
        rows = "" if missing["rows"] is None else f" ({missing['rows']:,} rows)"
        which = f"checkpoints {missing['first']} to {last} of sink {missing['sink']!r}{rows}"
    return f"{which} are not sent again and not asked for any more; the pipeline goes on after checkpoint {last}"


def accept_restored(location: str, pipeline: str, missing: Mapping[str, Any], who: Mapping[str, Any]) -> dict[str, Any]:
    """Record that the endpoint is taken as it is; returns the report."""
    log = CheckpointLog(open_storage(log_location(location)), pipeline)
    log.start()
    note_command(log.storage, log.generation, "resolve")
    sink, last = missing["sink"], log.last_decided
    known = log.committed().get(sink)
    if last is None or known is None or known.checkpoint_id != missing["through"]:
        raise CommitError(f"sink {sink!r}: something changed meanwhile; look again")
    decided = log.facts.decided[last]
    before = decided.resolution.get(sink, {})
    order = {
        "id": records.new_nonce(),
        "how": ACCEPT_RESTORED,
        **who,
        THROUGH: missing["through"],
        "first": missing["first"],
        "rows": missing["rows"] or 0,
        "subtasks": [],
        "expected": {} if missing["rows"] is None else {"rows_possibly_lost": missing["rows"]},
        "carried_out": True,
    }
    if before and not before.get("carried_out", True):
        order = {**before, THROUGH: missing["through"]}  # an order that waits for the next start must not be forgotten
    at, kind = decided.timestamp, RecordKind.REPAIR
    log.decide(last, decided.sinks, (), timestamp=at, state={}, kind=kind, resolution={sink: order})
    finish(log)
    return report_of(last, sink, order)
