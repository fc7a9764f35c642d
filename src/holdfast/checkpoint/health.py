"""Healthy, degraded or down: what `holdfast status` tells a pager (R7).

Down: rows do not move and nobody is at it. Degraded: a driver is at it, and a person should look. Else healthy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint import runs
from holdfast.checkpoint.pulse import ENDED, FAILED, STARTING
from holdfast.checkpoint.runs import DEAD, SILENT, Owner, RunInfo, read_runs
from holdfast.checkpoint.storage import Storage
from holdfast.errors import FIX, OPERATOR

HEALTHY, DEGRADED, DOWN = "healthy", "degraded", "down"
#: so many runs that failed or died within so many seconds are a crash loop
LOOP_FAILURES, LOOP_WINDOW = 3, 600.0
#: a sink's loop that is at the same commit for longer, in seconds, or has failed so often in a row, is in trouble
STUCK_AFTER, STUCK_FAILURES = 60.0, 3
_TODO = {
    OPERATOR: "a person has to look and decide",
    FIX: "the configuration or the query has to change",
}


@dataclass(frozen=True)
class Facts:
    """What is judged."""

    location: str
    owner: Owner | None
    #: of the newest run that failed
    error: Mapping[str, Any] | None
    #: runs that failed or died in the window
    failures: int
    stuck: Sequence[str]
    damaged: Sequence[str]
    #: sink -> checkpoints
    owed: Mapping[str, int]
    #: sink -> doing, since, failures, problem of its loop
    loops: Mapping[str, Mapping[str, Any]]
    completed_at: int | None


@dataclass(frozen=True)
class Health:
    """The verdict, and why in sentences."""

    state: str
    reasons: tuple[str, ...]


def judge(facts: Facts, *, now: float, max_age: float | None = None) -> Health:
    """The verdict on what is known."""
    owner = facts.owner
    gone = owner is not None and owner.alive is False
    bad = DOWN if gone else DEGRADED
    found: list[tuple[str, str]] = [*_of_driver(facts, now)]
    found += [(bad, f"{what} is stuck: see holdfast resolve {facts.location}") for what in facts.stuck]
    found += [(bad, f"{path} is damaged or missing") for path in facts.damaged]
    if facts.failures >= LOOP_FAILURES:
        found.append(
            (bad, f"{facts.failures} runs failed or died in the last {LOOP_WINDOW / 60:.0f} minutes: a crash loop")
        )
    found += [(DEGRADED, text) for text in _of_loops(facts, now)]
    if max_age is not None:
        found += [(bad, text) for text in _of_age(facts, now, max_age)]
    states = {state for state, _ in found}
    state = DOWN if DOWN in states else DEGRADED if states else HEALTHY
    return Health(state, tuple(text for _, text in sorted(found, key=lambda f: f[0] != DOWN)))


def _of_driver(facts: Facts, now: float) -> list[tuple[str, str]]:
    owner = facts.owner
    if owner is None:
        return []
    where = f"process {owner.pid} on {owner.host}"
    if owner.state == FAILED:
        error = facts.error or {}
        todo = _TODO.get(str(error.get("action")), "start it again; it may well work")
        told = f"{error.get('type', 'an error')}: {error.get('message', '')}"
        return [(DOWN, f"the query failed {_ago(owner.seen, now)}, and {todo}: {told}")]
    if owner.state == DEAD:
        return [(DOWN, f"the driver ({where}) is gone without a word, last seen {_ago(owner.seen, now)}: start it")]
    if owner.state == SILENT:
        silent = _seconds(owner.started if owner.seen is None else owner.seen, now)
        doing = "is still starting and " if owner.seen is None else ""
        return [(DEGRADED, f"the driver ({where}) {doing}has given no sign of life for {silent:.0f} s")]
    if owner.state == STARTING and _seconds(owner.started, now) >= runs.LONG_START:
        return [(DEGRADED, f"the driver ({where}) is still starting after {_seconds(owner.started, now):.0f} s")]
    if owner.state == ENDED and facts.owed:
        owes = ", ".join(f"{sink} {count}" for sink, count in facts.owed.items())
        return [(DOWN, f"the query was stopped while sinks owe checkpoints ({owes}): start it and they are delivered")]
    return []


def _of_loops(facts: Facts, now: float) -> list[str]:
    """Sinks whose loop hangs in its endpoint or fails again and again."""
    found = []
    for sink, loop in facts.loops.items():
        doing, since = str(loop.get("doing")), float(loop.get("since", now))
        failures, problem = int(loop.get("failures", 0)), loop.get("problem")
        seconds = now - since
        if doing == "idle" or (failures < STUCK_FAILURES and seconds < STUCK_AFTER):
            continue
        why = f", {failures} failures in a row: {problem}" if problem else ", without an answer"
        found.append(f"sink {sink!r} is {doing} for {seconds:.0f} s{why}")
    return found


def _of_age(facts: Facts, now: float, max_age: float) -> list[str]:
    since = facts.completed_at
    if since is not None:
        age = _seconds(since, now)
        return [f"no checkpoint was completed for {age:.0f} s, and --max-age is {max_age:.0f} s"] * (age > max_age)
    begun = None if facts.owner is None else facts.owner.started
    late = begun is None or _seconds(begun, now) > max_age
    return [f"no checkpoint was ever completed, and --max-age is {max_age:.0f} s"] * late


def died(generation: int, run: RunInfo | None, owner: Owner | None, since: float, started: int) -> bool:
    """Whether this run failed, or was gone without a word, after `since` (seconds)."""
    last = started if run is None else run.at
    if last < since * 1000 or (run is not None and run.state == ENDED):
        return False
    newest = owner is not None and owner.generation == generation
    return (run is not None and run.state == FAILED) or not newest or (owner is not None and owner.state == DEAD)


def last_error(storage: Storage) -> Mapping[str, Any] | None:
    """The error of the newest run that failed: type, message, action, at and generation."""
    for run in reversed(read_runs(storage)):
        if run.state == FAILED and run.error is not None:
            return {**run.error, "at": run.at, "generation": run.generation}
    return None


def _seconds(milliseconds: int | None, now: float) -> float:
    return max(0.0, now - (milliseconds or 0) / 1000)


def _ago(milliseconds: int | None, now: float) -> str:
    return "at an unknown time" if milliseconds is None else f"{_seconds(milliseconds, now):.0f} s ago"
