"""The values of a pipeline's metrics, and where each comes from.

Everything is read from the files of the checkpoint location (status and history) when somebody asks, and from Spark's
last progress where a query runs in this process; nothing is counted on the way of a row. Counters count from the start
of the process, as Prometheus expects of one that restarts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.drivers import FENCED, read_drivers
from holdfast.checkpoint.health import DEGRADED, DOWN, HEALTHY
from holdfast.checkpoint.history import CheckpointStats
from holdfast.checkpoint.reader import LogReader
from holdfast.checkpoint.status import Status, read_status
from holdfast.core.states import State
from holdfast.errors import ConfigError, FencedError, LostError, StorageError
from holdfast.telemetry.names import BY_NAME
from holdfast.telemetry.newly import Newly

#: how the text of an error begins that is nobody's fault
_NO_FAULT = (f"{FencedError.__name__}:", "StoppedError")
_HEALTH = {HEALTHY: 0, DEGRADED: 1, DOWN: 2}


@dataclass(frozen=True)
class Sample:
    """A value of one metric."""

    name: str
    value: float
    labels: Mapping[str, str]


class Metrics:
    """The metrics of one pipeline; threads may ask at the same time."""

    def __init__(
        self, pipeline: str, location: str, progress: Callable[[], Mapping[str, Any] | None] = lambda: None
    ) -> None:
        """`progress` is Spark's last progress, None when there is none."""
        self.pipeline, self._location, self._progress = pipeline, location, progress
        self._lock = threading.Lock()
        self._counts: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
        self._newly = Newly(location)

    def samples(self) -> list[Sample]:
        """All that is known now."""
        with self._lock:
            found = [*self._of_spark()]
            try:
                self._count(self._newly.look())
                found += [*self._of_history(self._newly.history), *self._of_status()]
            except ConfigError:
                found.append(self._sample("holdfast_up", 1))  # nothing was ever started there
            except StorageError:
                found.append(self._sample("holdfast_up", 0))
            found += [Sample(name, value, dict(labels)) for (name, labels), value in self._counts.items()]
            return found

    # -- where values come from --------------------------------------------------------------------------------------

    def _count(self, over: Iterable[CheckpointStats]) -> None:
        for stats in over:
            self._add("holdfast_checkpoints_total", 1, status=_ended(stats))
            if stats.status != State.COMPLETE:
                continue
            self._add("holdfast_checkpoints_restored_total", int(stats.restored))
            for phase, seconds in stats.durations.items():
                self._add("holdfast_checkpoint_seconds_total", seconds, phase=phase)
            for sink, told in stats.sinks.items():
                self._add("holdfast_rows_total", int(told.get("rows", 0)), sink=sink)
                self._add("holdfast_bytes_total", int(told.get("bytes", 0)), sink=sink)
                if told.get("outcome"):
                    labels = {"sink": sink, "outcome": str(told["outcome"])}
                    self._add("holdfast_commits_total", 1, **labels)
                    self._add("holdfast_committables_total", int(told.get("subtasks", 0)), **labels)
            for sink, told in stats.repaired.items():
                self._add("holdfast_repaired_rows_total", int(told.get("rows", 0)), sink=sink)

    def _of_history(self, history: list[CheckpointStats]) -> Iterator[Sample]:
        timed = [stats for stats in history if stats.durations]
        for phase, seconds in (timed[-1].durations if timed else {}).items():
            yield self._sample("holdfast_last_checkpoint_seconds", seconds, phase=phase)

    def _of_status(self) -> Iterator[Sample]:
        status: Status = read_status(self._location)
        yield self._sample("holdfast_up", 1)
        yield self._sample("holdfast_health", _HEALTH[status.health])
        yield self._sample("holdfast_stuck_checkpoints", len(status.stuck))
        yield self._sample("holdfast_failed_runs", status.failures_last_10_minutes)
        if status.last_complete is not None:
            yield self._sample("holdfast_last_complete_checkpoint", status.last_complete)
        if status.completed_at is not None:
            yield self._sample("holdfast_freshness_seconds", max(0.0, (status.at - status.completed_at) / 1000))
        if status.owner is not None:
            yield self._sample("holdfast_generation", status.owner.generation)
        if status.planned is not None:
            decided = -1 if status.last_decided is None else status.last_decided
            yield self._sample("holdfast_checkpoints_in_progress", max(0, status.planned - decided))
        lost: dict[str, int] = {}
        for finding in status.stuck:
            if finding.error == LostError.__name__:
                lost[finding.sink] = lost.get(finding.sink, 0) + finding.rows
        for name, rows in lost.items():
            yield self._sample("holdfast_lost_rows", rows, sink=name)
        drivers = read_drivers(LogReader(self._location), status.owner)
        fenced = [d for d in drivers if d.state == FENCED or (d.error or {}).get("type") == FencedError.__name__]
        yield self._sample("holdfast_fenced_runs", len(fenced))
        for sink in status.sinks:
            age = 0.0 if sink.oldest is None else max(0.0, (status.at - sink.oldest) / 1000)
            yield self._sample("holdfast_pending_checkpoints", sink.checkpoints, sink=sink.sink)
            yield self._sample("holdfast_pending_rows", sink.rows, sink=sink.sink)
            yield self._sample("holdfast_pending_bytes", sink.bytes, sink=sink.sink)
            yield self._sample("holdfast_pending_age_seconds", age, sink=sink.sink)
            yield self._sample("holdfast_held_back_rows", sink.held_back_rows, sink=sink.sink)
            yield self._sample("holdfast_sink_failures", sink.failures, sink=sink.sink)
            yield self._sample("holdfast_commit_retries_total", sink.retried, sink=sink.sink)

    def _of_spark(self) -> Iterator[Sample]:
        progress = self._progress()
        if progress is None:
            return
        lag = source_lag(progress)
        if lag is not None:
            yield self._sample("holdfast_source_lag_rows", lag)
        yield self._sample("holdfast_input_rows_per_second", float(progress.get("inputRowsPerSecond") or 0.0))
        yield self._sample("holdfast_processed_rows_per_second", float(progress.get("processedRowsPerSecond") or 0.0))
        operators = progress.get("stateOperators") or []
        yield self._sample("holdfast_state_rows", sum(int(o.get("numRowsTotal") or 0) for o in operators))
        yield self._sample("holdfast_state_bytes", sum(int(o.get("memoryUsedBytes") or 0) for o in operators))

    def _sample(self, name: str, value: float, **labels: str) -> Sample:
        assert set(labels) == set(BY_NAME[name].labels), name
        return Sample(name, value, {"pipeline": self.pipeline, **labels})

    def _add(self, name: str, value: float, **labels: str) -> None:
        key = (name, tuple(self._sample(name, value, **labels).labels.items()))
        self._counts[key] = self._counts.get(key, 0.0) + value


def source_lag(progress: Mapping[str, Any]) -> int | None:
    """Rows that wait in Kafka, where Spark tells."""
    told = [source.get("metrics") or {} for source in progress.get("sources") or []]
    rows = [metrics["maxOffsetsBehindLatest"] for metrics in told if "maxOffsetsBehindLatest" in metrics]
    return sum(int(float(value)) for value in rows) if rows else None


def _ended(stats: CheckpointStats) -> str:
    """Complete, failed, or aborted: nothing was wrong with it, but it was stopped, or a newer run came."""
    if stats.status == State.COMPLETE or stats.error is None:
        return stats.status
    return str(State.ABORTED) if stats.error.startswith(_NO_FAULT) else "failed"
