"""Producing again what an endpoint dropped after the decision (rule 4, P5).

Hash pass over the replay, match by content, write the matched rows anew, verify, record, commit. What cannot be matched
stops the query; the finding is kept in `lost/<checkpoint>.<sink>.json`, and `holdfast resolve` is the way out.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.checkpoint.bad_rows import Letters
from holdfast.checkpoint.dead import KEPT_BY
from holdfast.checkpoint.findings import finding_name, record_finding
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import Batch, Run, Sink, SubtaskReport, Tasks
from holdfast.checkpoint.reports import PRODUCE_ANYWAY, write_report
from holdfast.core import faults
from holdfast.core.model import CheckpointId, Committable, Decided, RecordKind
from holdfast.core.recovery import OwedCommit
from holdfast.core.repair import RepairPlan, Replayed, plan_repair
from holdfast.errors import CommitError, LostError

logger = logging.getLogger("holdfast")


@dataclass(frozen=True)
class Repaired:
    """What a repair did."""

    sink: str
    rows: int
    subtasks: int


class Repairs:
    """The repairs of one query run."""

    def __init__(
        self,
        log: CheckpointLog,
        sinks: Mapping[str, Sink],
        lost: dict[OwedCommit, LostError],
        letters: Letters | None = None,
        tasks: Tasks | None = None,
    ) -> None:
        self._log, self._letters, self._tasks = log, letters, tasks
        self._sinks = sinks
        #: what the last delivery found lost, shared with it
        self._lost = lost
        self._told: set[OwedCommit] = set()

    def needed(self, checkpoint_id: CheckpointId) -> bool:
        """Whether a sink lost something of this checkpoint."""
        return any(action.checkpoint_id == checkpoint_id for action in list(self._lost))  # loops add to it

    def check(self, replayable_after: CheckpointId | None) -> None:
        """Raise for what no replay can bring back: the sink cannot say what, or the engine is beyond it."""
        for action, error in list(self._lost.items()):
            forced = self._ordered(action) == PRODUCE_ANYWAY
            beyond = replayable_after is not None and action.checkpoint_id <= replayable_after
            if beyond or not (forced or (error.certain and error.lost and self._repairable(action, error))):
                raise self.stop(action, error, [])
            if action not in self._told:
                self._told.add(action)
                logger.warning("%s. It is produced again from the replay of the checkpoint", error)

    def _repairable(self, action: OwedCommit, error: LostError) -> bool:
        """Whether what was decided then can be; the sink may be in another mode now."""
        sink = self._sinks[action.sink]
        return bool(sink.repairable or sink.as_decided(error.lost).repairable)

    def repair(self, checkpoint_id: CheckpointId, batch: Batch, run: Run) -> list[Repaired]:
        """Write anew what was lost of this checkpoint and record it; committing it is up to the next delivery."""
        done = []
        for action, error in sorted(self._lost.items(), key=lambda item: item[0]):
            if action.checkpoint_id == checkpoint_id:
                done.append(self._repair(action, error, batch, run))
                del self._lost[action]
        return done

    def _repair(self, action: OwedCommit, error: LostError, batch: Batch, run: Run) -> Repaired:
        decided = self._log.facts.decided[action.checkpoint_id]
        mine = decided.of(action.sink)
        lost = [c for c in mine if c.data in error.lost]
        if error.lost and not lost:
            raise self.stop(action, error, [])  # the sink speaks of work that is not in the record
        lost = lost or list(mine)
        kept = [c for c in mine if c not in lost]
        batch = self._source(action, decided, batch)
        repair = 1 + self._log.repairs(action.checkpoint_id)
        sink, at = self._sinks[action.sink].as_decided([c.data for c in lost]), decided.timestamp
        whole_pass: list[SubtaskReport] | None = None
        if self._careful(decided):
            # Which rows the sink took is known only when they are written; what is not wanted is undone by the sweep.
            whole_pass = batch.write(run, [sink], action.checkpoint_id, at, repair=repair, careful=True)
            replay = [
                Replayed(r.subtask, n, d or "") for r in whole_pass for n, d in [r.written.get(sink.name, (0, ""))] if n
            ]
        else:
            replay = batch.digests(action.sink)
        plan = plan_repair(lost, replay, kept)
        forced = self._ordered(action) == PRODUCE_ANYWAY
        if not plan.possible and not forced:
            raise self.stop(action, error, replay, plan)
        whole = plan.rest if plan.unmatched else ()
        wanted = {number for _, number in plan.matches} | set(whole)
        if whole_pass is None:
            reports = batch.write(run, [sink], action.checkpoint_id, at, only=wanted, repair=repair)
        else:
            reports = [report for report in whole_pass if report.subtask in wanted]
        proven = _verify(action, reports, [r for r in replay if r.subtask in wanted], forced=forced)
        new = _replacements(mine, plan, whole, reports)
        with faults.point("repair"):
            self._log.decide(action.checkpoint_id, decided.sinks, new, timestamp=at, state={}, kind=RecordKind.REPAIR)
        rows = sum(report.rows_of(action.sink) for report in reports)
        if forced:
            self._report(action, decided, plan, reports if proven else (), reports)
        self._log.storage.delete(finding_name(action.checkpoint_id, action.sink))
        logger.warning(
            "checkpoint %d, sink %s: %d rows in %d subtasks were produced again in place of what the endpoint dropped",
            action.checkpoint_id,
            action.sink,
            rows,
            len(reports),
        )
        return Repaired(action.sink, rows, len(reports))

    def _source(self, action: OwedCommit, decided: Decided, batch: Batch) -> Batch:
        """Where the lost rows are found again: the replay, but dead letters are kept and are in no replay."""
        if self._letters is None or action.sink not in self._letters.sinks:
            return batch
        keeper: Any = self._sinks[KEPT_BY]
        found: Batch = keeper.as_batch(decided.of(KEPT_BY), action.checkpoint_id, self._tasks)
        return found

    def _careful(self, decided: Decided) -> bool:
        """Whether rows of this checkpoint were set aside: then a replay has rows that are in no transaction."""
        return self._letters is not None and any(decided.of(name) for name in self._letters.sinks)

    def stop(
        self, action: OwedCommit, error: LostError, replay: Sequence[Replayed], plan: RepairPlan | None = None
    ) -> LostError:
        """Keep the finding for the operator, and the error that tells the ways out."""
        record_finding(self._log, action, error, lost=error.lost, replay=replay)
        location = self._log.storage.url.removesuffix("/holdfast")
        why = ""
        if plan is not None:
            missing = ", ".join(f"{c.subtask} ({c.rows} rows)" for c in plan.unmatched)
            why = (
                f". Spark's replay of the checkpoint differs from the first run ({sum(r.rows for r in replay)} rows in "
                f"{len(replay)} subtasks), and the rows of subtask {missing} are not in it: producing it again could "
                "double rows or leave some out"
            )
        return LostError(
            f"{error}{why}. The decision is kept and nothing was given up. Ways out, each of which asks first and is "
            f"recorded: `holdfast resolve {location} {action.checkpoint_id} --produce-anyway`, `--give-up` or "
            "`--mark-delivered`; see docs/operations.md",
            error.lost,
            certain=error.certain,
        )

    def _ordered(self, action: OwedCommit) -> str | None:
        order = self._log.facts.decided[action.checkpoint_id].resolution.get(action.sink)
        return None if order is None or order.get("carried_out") else order["how"]

    def _report(
        self,
        action: OwedCommit,
        decided: Decided,
        plan: RepairPlan,
        proven: Sequence[SubtaskReport],
        reports: Sequence[SubtaskReport],
    ) -> None:
        """Of what was produced; `proven` is what the hash pass saw too."""
        matched = {number for _, number in plan.matches} | set(plan.rest if plan.possible else ())
        produced = sum(r.rows_of(action.sink) for r in reports)
        unproven = produced - sum(r.rows_of(action.sink) for r in proven if r.subtask in matched)
        body = {
            **decided.resolution[action.sink],
            "checkpoint_id": action.checkpoint_id,
            "sink": action.sink,
            "rows_produced": produced,
            "rows_proven_equal": produced - unproven,
            "rows_lost_recorded": sum(c.rows for c in (*plan.unmatched, *(c for c, _ in plan.matches))),
            "rows_possibly_doubled": unproven,
            "rows_possibly_lost": _possibly_lost(plan, proven=bool(proven)),
            "carried_out": True,
            "at": int(time.time() * 1000),
        }
        write_report(self._log, body)


def _possibly_lost(plan: RepairPlan, *, proven: bool) -> int:
    if plan.possible and proven:
        return 0
    lost = plan.unmatched if proven else (*plan.unmatched, *(c for c, _ in plan.matches))
    return sum(c.rows for c in lost)


def _verify(
    action: OwedCommit, reports: Sequence[SubtaskReport], expected: Sequence[Replayed], *, forced: bool
) -> bool:
    """Whether what was written is what the hash pass saw; it must be, unless an operator wants it as it comes."""
    written = {(r.subtask, *r.written[action.sink]) for r in reports if action.sink in r.written}
    equal = written == {(r.subtask, r.rows, r.digest) for r in expected}
    if not equal and not forced:
        raise CommitError(
            f"checkpoint {action.checkpoint_id}, sink {action.sink!r}: two passes over Spark's replay gave different "
            "rows, so nothing of it was produced. The decision is kept; start the query again"
        )
    return equal


def _replacements(
    mine: Sequence[Committable], plan: RepairPlan, whole: Sequence[int], reports: Sequence[SubtaskReport]
) -> list[Committable]:
    """The committables of the repair record: new ones under the numbers of those they replace."""
    made = {report.subtask: c for report in reports for c in report.committables}
    gone = [lost for lost, number in plan.matches if number not in made]  # only if a second pass gave other rows
    new = [replace(made[number], subtask=lost.subtask) for lost, number in plan.matches if number in made]
    new += [Committable(c.sink, c.subtask, None) for c in (*plan.unmatched, *gone)]
    free = 1 + max(c.subtask for c in mine)
    new += [replace(made[number], subtask=free + n) for n, number in enumerate(whole) if number in made]
    return new
