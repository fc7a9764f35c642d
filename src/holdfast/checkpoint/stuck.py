"""What is decided and cannot be committed: the findings that queries left, and whatever else is owed (D4).

Stuck is whatever is decided and owed while no driver is at it; a finding in `lost/` only says why.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from holdfast.checkpoint import records
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.reports import sealed
from holdfast.checkpoint.storage import Storage
from holdfast.core.model import CheckpointId, Committable
from holdfast.core.recovery import Facts, OwedCommit, plan_recovery
from holdfast.core.repair import Replayed, plan_repair
from holdfast.errors import CommitError, ConfigError, RecordError


class Standing(StrEnum):
    """How a finding relates to what the log says now."""

    STUCK = "stuck"
    RESOLVED = "an order about it is recorded"
    OUTDATED = "its transactions were replaced since"
    DONE = "its checkpoint was committed since"


@dataclass(frozen=True)
class Finding:
    """What is owed, and what a query that stopped found out about it."""

    checkpoint_id: CheckpointId
    sink: str
    subtasks: tuple[int, ...]
    rows: int
    #: False: the sink cannot tell which of these are gone, or whether they are
    certain: bool
    #: when it was found, or began, in milliseconds since the epoch
    since: int
    problem: str
    #: subtasks and rows of Spark's replay; None when there was none to look at
    replay_subtasks: int | None
    replay_rows: int | None
    #: if the next replay is as that one (or as the first run): rows produced by `produce-anyway`, and what is not
    #: proven about them
    produced: int
    possibly_doubled: int
    possibly_lost: int
    #: of the finding; empty when no query left one
    nonce: str
    #: type and action of the error
    error: str = ""
    action: str = ""
    #: of the rows, those in files of the log: they can be kept
    sealed_rows: int = 0


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
            f"{path} is damaged ({type(error).__name__}); it only says why a query stopped, and decides nothing: "
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
    finding = make_finding(
        OwedCommit(checkpoint_id, sink),
        lost,
        [c for n, c in mine.items() if n not in {c.subtask for c in lost}],
        [Replayed(**r) for r in body["replay"]],
        certain=bool(body["certain"]),
        since=int(body["at"]),
        problem=str(body["problem"]),
        nonce=str(body["nonce"]),
        error=str(body.get("error", "LostError")),
        action=str(body.get("action", "operator")),
    )
    return finding, _standing(finding, lost, mine, facts)


def make_finding(
    commit: OwedCommit,
    lost: Sequence[Committable],
    kept: Sequence[Committable],
    replay: Sequence[Replayed],
    *,
    certain: bool,
    **told: Any,
) -> Finding:
    """With the forecast of what producing it again would do."""
    # Without a replay to look at, one that is equal to the first run is assumed.
    assumed = not replay
    seen = list(replay) or [Replayed(c.subtask, c.rows, c.digest or f"{n:x}") for n, c in enumerate([*lost, *kept])]
    plan = plan_repair(lost, seen, kept)
    rows = {r.subtask: r.rows for r in seen}
    matched, rest = sum(rows[n] for _, n in plan.matches), sum(rows[n] for n in plan.rest)
    gone, unmatched = sum(c.rows for c in lost), sum(c.rows for c in plan.unmatched)
    produced = matched + (rest if plan.unmatched else 0)
    if not certain:
        doubled = produced  # nobody knows whether any of them is missing
    elif plan.possible:
        doubled = 0
    else:
        doubled = produced - gone if assumed else rest
    return Finding(
        checkpoint_id=commit.checkpoint_id,
        sink=commit.sink,
        subtasks=tuple(c.subtask for c in lost),
        rows=gone,
        certain=certain,
        replay_subtasks=None if assumed else len(seen),
        replay_rows=None if assumed else sum(rows.values()),
        produced=produced,
        possibly_doubled=doubled,
        possibly_lost=0 if plan.possible or assumed else unmatched,
        sealed_rows=sum(c.rows for c in lost if sealed(c)),
        **told,
    )


def _standing(finding: Finding, lost: list[Committable], mine: Mapping[int, Committable], facts: Facts) -> Standing:
    decided = facts.decided.get(finding.checkpoint_id)
    if decided is not None and decided.resolution.get(finding.sink, {}).get("finding") == finding.nonce:
        return Standing.RESOLVED
    if finding.checkpoint_id > max(facts.decided, default=-1):
        return Standing.STUCK  # decided by a newer driver, after this log was read: not ours to call done
    if decided is None or finding.sink in facts.commits.get(finding.checkpoint_id, ()):
        return Standing.DONE
    if any(c.subtask not in mine or mine[c.subtask].data != c.data for c in lost):
        return Standing.OUTDATED
    return Standing.STUCK


def owed_findings(log: CheckpointLog) -> dict[OwedCommit, Finding]:
    """Everything that is decided and owed, with what is known about it."""
    known = {OwedCommit(f.checkpoint_id, f.sink): f for f, standing in findings(log) if standing is Standing.STUCK}
    found = {}
    for action in plan_recovery(log.facts):
        decided = log.facts.decided[action.checkpoint_id]
        problem = "not committed yet; no query has found out why it could not be"
        found[action] = known.get(action) or make_finding(
            action, decided.of(action.sink), [], [], certain=False, since=decided.timestamp, problem=problem, nonce=""
        )
    return found


def choose(
    log: CheckpointLog, checkpoint_id: CheckpointId | None = None, sink: str | None = None, *, whole_sink: bool = False
) -> list[Finding]:
    """What is meant, or the error that says why there is nothing or which to name.

    With `whole_sink`, a sink without a checkpoint means everything that it owes.
    """
    found = owed_findings(log)
    meant = {a: f for a, f in found.items() if checkpoint_id in (None, a.checkpoint_id) and sink in (None, a.sink)}
    resolved = {a: o for a in meant if (o := _open_order(log, a)) is not None and not meant[a].nonce}
    if whole_sink and sink is not None and checkpoint_id is None:
        # Also what an earlier order has left; but not what waits for the next start to be struck, or only for a record.
        left = [f for a, f in meant.items() if a not in resolved or (f.subtasks and resolved[a].get("carried_out"))]
        if left:
            return left
    open_ = {a: f for a, f in meant.items() if a not in resolved}
    noticed = [f for f in open_.values() if f.nonce]
    stuck = noticed or list(open_.values())
    if len(stuck) == 1:
        return stuck
    if stuck:
        names = ", ".join(f"{f.checkpoint_id} --sink {f.sink}" for f in stuck)
        raise ConfigError(f"more than one checkpoint is stuck; name the one you mean: {names}")
    for action, order in resolved.items():
        raise CommitError(
            f"checkpoint {action.checkpoint_id} of sink {action.sink!r} was resolved already: {order['how']}, by "
            f"{order['by']}. Start the query"
        )
    raise _not_stuck(log, checkpoint_id, sink)


def _open_order(log: CheckpointLog, action: OwedCommit) -> Mapping[str, Any] | None:
    order: Mapping[str, Any] | None = log.facts.decided[action.checkpoint_id].resolution.get(action.sink)
    return None if order is None or order["how"] == "accept-restored" else order


def _not_stuck(log: CheckpointLog, checkpoint_id: CheckpointId | None, sink: str | None) -> Exception:
    """Why there is nothing to decide about."""
    last, of = log.last_decided, "" if sink is None else f" by sink {sink!r}"
    if checkpoint_id is None:
        return ConfigError(f"nothing is stuck: everything that is decided was committed{of or ' by every sink'}")
    decided = log.facts.decided.get(checkpoint_id)
    if decided is None:
        if last is None or checkpoint_id > last:
            newest = "none is" if last is None else f"the newest is {last}"
            return ConfigError(f"checkpoint {checkpoint_id} is not stuck: it is not decided ({newest})")
        return ConfigError(
            f"checkpoint {checkpoint_id} is not stuck: it is complete, and so old that its record is gone"
        )
    if sink is not None and sink not in decided.sinks:
        names = ", ".join(decided.sinks)
        return ConfigError(f"checkpoint {checkpoint_id} has no rows for a sink {sink!r}; its sinks: {names}")
    for name, order in decided.resolution.items():
        if sink in (None, name) and order["how"] != "accept-restored":
            return CommitError(
                f"checkpoint {checkpoint_id} of sink {name!r} was resolved already: {order['how']}, by {order['by']}. "
                "Start the query"
            )
    return ConfigError(f"checkpoint {checkpoint_id} is not stuck: it was committed{of or ' by every sink'}")
