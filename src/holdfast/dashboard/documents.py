"""The data of every page: what `/api` answers, and what the pages are made of."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from holdfast import __version__
from holdfast.checkpoint import journal, records
from holdfast.checkpoint.drivers import read_drivers
from holdfast.checkpoint.health import DEGRADED, DOWN, HEALTHY
from holdfast.checkpoint.history import CheckpointStats, engine_position
from holdfast.checkpoint.limited import open_limited
from holdfast.checkpoint.rates import RATE_OVER, finished, rows_per_second, seconds_of
from holdfast.checkpoint.resolve import consequence, ways
from holdfast.checkpoint.status import Status
from holdfast.core.hiding import hide, hide_text
from holdfast.core.model import Committable
from holdfast.dashboard import numbers
from holdfast.dashboard.places import LARGEST, Place, Places
from holdfast.errors import HoldfastError, MissingExtraError, RecordError

if TYPE_CHECKING:
    from holdfast.connectors.kafka.sink.inspect import PipelineTransactions

#: nothing can be said, as the files cannot be read
UNKNOWN = "unknown"
WORST_FIRST = (DOWN, UNKNOWN, DEGRADED, HEALTHY)
#: checkpoints on the timeline, and behind the plots
TIMELINE, PLOTTED = 120, 500
#: of one checkpoint, so many committables and characters of a record are shown
SHOWN_COMMITTABLES, SHOWN_TEXT = 500, 200_000
READ_ERRORS = (HoldfastError, OSError)


def overview(places: Places) -> dict[str, Any]:
    """All pipelines, the worst first."""
    cards = [card(place) for place in places]
    counts = {state: sum(c["health"] == state for c in cards) for state in WORST_FIRST}
    return {"health": counts, "pipelines": sorted(cards, key=lambda c: WORST_FIRST.index(c["health"]))}


def card(place: Place) -> dict[str, Any]:
    """One pipeline at a glance; files that cannot be read are an error text, not an error."""
    base = {"slug": place.slug, "location": hide_text(place.location)}
    try:
        found = place.status()
        history = place.history.newest(RATE_OVER * 3)
    except READ_ERRORS as error:
        why = hide_text(str(error))
        return {**base, **_NOTHING, "health": UNKNOWN, "reasons": [why], "error": why}
    return {**base, **_glance(found, history), "error": None}


_NOTHING: dict[str, Any] = {
    "pipeline": None, "running": False, "state": None, "rows_per_second": None, "lag_seconds": None, "lag_rows": None,
    "pending": None, "oldest_pending": None, "last_complete": None, "completed_at": None, "last_failure": None,
    "recent": [],
}  # fmt: skip


def _glance(found: Status, history: list[CheckpointStats]) -> dict[str, Any]:
    oldest = min((p.oldest for p in found.pending), default=None)
    alive = found.owner is not None and found.owner.alive is not False
    return {
        "health": found.health,
        "reasons": [hide_text(reason) for reason in found.reasons],
        "pipeline": found.pipeline,
        "running": alive,
        "state": None if found.owner is None else found.owner.state,
        "rows_per_second": _rounded(rows_per_second(history)),
        "lag_seconds": 0.0 if oldest is None else max(0.0, (found.at - oldest) / 1000),
        "lag_rows": sum(p.rows for p in found.pending),
        "pending": sum(p.checkpoints for p in found.pending),
        "oldest_pending": oldest,
        "last_complete": found.last_complete,
        "completed_at": found.completed_at,
        "last_failure": hide(found.last_error),
        "recent": [_rounded(part["rows_per_second"]) for part in numbers.series(history, 40)],
    }


def pipeline(place: Place) -> dict[str, Any]:
    """One pipeline: its status, timeline, plots, sinks, drivers and what is stuck."""
    found = place.status()
    problem, history = None, []
    try:
        history = place.history.newest(PLOTTED)
    except RecordError as error:
        problem = hide_text(str(error))
    stuck = [{**asdict(f), "ways": {how: consequence(f, how) for how in ways(f)}} for f in found.stuck]
    log = place.log()
    return {
        "slug": place.slug,
        **_glance(found, history),
        "error": problem,
        "status": hide(asdict(found)),
        "stuck": hide(stuck),
        "timeline": [_entry(stats) for stats in history[-TIMELINE:]],
        "series": numbers.series(history),
        "durations": numbers.quantiles([seconds_of(s) for s in finished(history)]),
        "drivers": hide([asdict(driver) for driver in read_drivers(log, found.owner)]),
        "savepoints": hide(place.savepoints()),
        "actions": hide(journal.read(place.location, largest=LARGEST)),
    }


def _entry(stats: CheckpointStats) -> dict[str, Any]:
    known: dict[str, Any] = hide(asdict(stats))
    return {**known, "seconds": round(seconds_of(stats), 6)}


def checkpoints(place: Place, before: int | None, limit: int) -> dict[str, Any]:
    """A page of the history: the newest, or those below a number; newest first."""
    place.status()
    pages = place.history
    found = pages.newest(limit) if before is None else pages.between(max(0, before - limit), before - 1)
    newest = pages.newest(1)
    first = max(0, before - limit) if before is not None else min((s.checkpoint_id for s in found), default=0)
    last = newest[-1].checkpoint_id if newest else None
    return {
        "slug": place.slug,
        "pipeline": place.status().pipeline,
        "checkpoints": [_entry(stats) for stats in reversed(found)],
        "newest": last,
        "limit": limit,
        "older": first if first > 0 else None,
        "newer": None if before is None or last is None or before > last else before + limit,
    }


def checkpoint(place: Place, number: int) -> dict[str, Any] | None:
    """One checkpoint: statistics, and the records as they are on disk; None when nothing is known of it."""
    found = place.status()
    log = place.log()
    log.load()
    problem: str | None = None
    stats: list[CheckpointStats] = []
    try:
        stats = [s for s in place.history.newest(PLOTTED) if s.checkpoint_id == number]
        stats = stats or place.history.between(number, number)
    except RecordError as error:
        problem = hide_text(str(error))
    decided = log.facts.decided.get(number)
    files = log.files_of(number)
    # A damaged slot is of no known checkpoint: it is shown with each.
    damaged = [hide(asdict(damage)) for damage in log.damaged]
    if not stats and decided is None and not files:
        return None
    commits = log.committed_by(number)
    committables = () if decided is None else decided.committables
    return {
        "slug": place.slug,
        "pipeline": found.pipeline,
        "checkpoint_id": number,
        "error": problem,
        "statistics": _entry(stats[0]) if stats else None,
        "decided": decided is not None,
        "timestamp": None if decided is None else decided.timestamp,
        "sinks": _sinks(stats[0] if stats else None, () if decided is None else decided.sinks, commits, committables),
        "committables": [_committable(c) for c in committables[:SHOWN_COMMITTABLES]],
        "committables_total": len(committables),
        "records": [_record(place, name) for name in files],
        "damaged": damaged,
        "newest": found.last_decided,
    }


def _sinks(
    stats: CheckpointStats | None, named: tuple[str, ...], commits: Mapping[str, int], all_: tuple[Committable, ...]
) -> list[dict[str, Any]]:
    told = {} if stats is None else stats.sinks
    found = []
    for sink in dict.fromkeys([*named, *told]):
        known, mine = told.get(sink, {}), [c for c in all_ if c.sink == sink]
        found.append(
            {
                "sink": sink,
                "outcome": known.get("outcome"),
                "rows": known.get("rows", sum(c.rows for c in mine)),
                "bytes": known.get("bytes", sum(c.bytes for c in mine)),
                "subtasks": known.get("subtasks", len(mine)),
                "committed": sink in commits if named else None,
                "committed_by": commits.get(sink),
            }
        )
    return hide(found)  # type: ignore[no-any-return]


def _committable(c: Committable) -> dict[str, Any]:
    told = {"sink": c.sink, "subtask": c.subtask, "rows": c.rows, "bytes": c.bytes, "digest": c.digest, "data": c.data}
    return hide(told)  # type: ignore[no-any-return]


def _record(place: Place, name: str) -> dict[str, Any]:
    """A file as it is on disk, set in lines; one that is damaged or too large is an error text."""
    storage = place.log().storage
    told: dict[str, Any] = {"name": name, "bytes": None, "text": None, "error": None, "cut": False}
    try:
        data = storage.read(name)
    except FileNotFoundError:
        return {**told, "error": "it was pruned just now"}
    except READ_ERRORS as error:
        return {**told, "error": hide_text(str(error))}
    told["bytes"] = len(data)
    try:
        kinds = ("decision", "repair", "abort", "state", "commit", "lost", "report")
        body = records.decode(data, f"{storage.url}/{name}", *kinds)
        text = json.dumps(hide(body), indent=2, ensure_ascii=False)
    except RecordError as error:
        told["error"] = hide_text(str(error))
        text = hide_text(data[: SHOWN_TEXT + 1].decode("utf-8", "replace"))
    return {**told, "text": text[:SHOWN_TEXT], "cut": len(text) > SHOWN_TEXT}


def summary(place: Place, last: int) -> dict[str, Any]:
    """Least, median, 99th percentile and greatest of the newest checkpoints."""
    found = place.status()
    return {
        "slug": place.slug,
        "pipeline": found.pipeline,
        "asked": last,
        **numbers.summary(place.history.newest(last)),
    }


def configuration(place: Place) -> dict[str, Any]:
    """What the files say of how a pipeline is set up; secrets are hidden."""
    found = place.status()
    log = place.log()
    log.load()
    newest = log.last_decided
    mine = () if newest is None else log.facts.decided[newest].committables
    examples = {c.sink: c.data for c in reversed(mine)}
    return {
        "slug": place.slug,
        "pipeline": found.pipeline,
        "holdfast": __version__,
        "location": hide_text(place.location),
        "lineage": found.lineage,
        "sinks": [
            {
                "sink": s.sink,
                "may_lag": s.may_lag,
                "from_checkpoint": s.from_checkpoint,
                "gaps": [list(gap) for gap in s.gaps],
                "removed": s.removed,
                "newest_committable": hide(examples.get(s.sink)),
            }
            for s in found.sinks
        ],
        "spark": _spark(place),
    }


def _spark(place: Place) -> dict[str, Any]:
    """Spark's own files: the query's id, and of the newest batch its settings and where its sources stand."""
    storage = open_limited(place.location, LARGEST)
    planned = engine_position(place.location)[0]
    told: dict[str, Any] = {"query_id": None, "batch": planned, "settings": {}, "offsets": [], "error": None}
    try:
        told["query_id"] = json.loads(storage.read("metadata")).get("id")
    except FileNotFoundError:
        pass  # a query that is not Spark's, or not there yet
    except (ValueError, AttributeError, *READ_ERRORS) as error:
        told["error"] = f"metadata cannot be read: {error}"
    if planned is None:
        return told
    try:
        lines = storage.read(f"offsets/{planned}").decode("utf-8", "replace").splitlines()[1:]
        told["settings"] = hide(json.loads(lines[0]).get("conf", {})) if lines else {}
        told["offsets"] = [hide_text(line[:10_000]) for line in lines[1:]]
    except FileNotFoundError:
        pass  # a new batch was planned meanwhile, and this one is gone
    except (ValueError, AttributeError, *READ_ERRORS) as error:
        told["error"] = f"offsets/{planned} cannot be read: {error}"
    return told


def pipeline_transactions(place: Place, kafka: Mapping[str, str]) -> PipelineTransactions:
    """The brokers' side of a pipeline; ConfigError when nobody knows where they are."""
    try:
        from holdfast.connectors.kafka.sink.inspect import PipelineTransactions
    except ImportError as error:
        raise MissingExtraError("pip install 'holdfast[kafka]': the brokers are asked with its client") from error
    settings: dict[str, Any] = {"log_level": 0, **kafka}
    servers = settings.pop("bootstrap.servers", None)
    return PipelineTransactions(place.location, servers, settings)


def transactions(place: Place, kafka: Mapping[str, str]) -> dict[str, Any]:
    """What the brokers have open for this pipeline: they are asked now."""
    told: dict[str, Any] = {"slug": place.slug, "error": None, "servers": [], "transactions": [], "lost": []}
    try:
        with pipeline_transactions(place, kafka) as found:
            told["servers"] = found.servers
            seen = found.open()
            lost = found.lost(seen)
    except READ_ERRORS as error:
        return {**told, "error": hide_text(str(error))}
    for name, group in (("transactions", seen), ("lost", lost)):
        told[name] = [
            {**asdict(s), "verdict": s.verdict.value, "partitions": [list(p) for p in s.partitions],
             "ends_at": None if s.started is None else s.started + s.timeout_ms}
            for s in group
        ]  # fmt: skip
    return told


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)
