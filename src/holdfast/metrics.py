"""Metrics of a pipeline for Prometheus: the table of all names, and where each value comes from.

Everything is read from the files of the checkpoint location (status and history) when somebody asks, and from Spark's
last progress where a query runs in this process; nothing is counted on the way of a row. Counters count from the start
of the process, as Prometheus expects of one that restarts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint.health import DEGRADED, DOWN, HEALTHY
from holdfast.checkpoint.history import CheckpointStats, checkpoints
from holdfast.checkpoint.status import Status, read_status
from holdfast.core.states import State
from holdfast.errors import ConfigError, HoldfastError, MissingExtraError, StorageError

COUNTER, GAUGE = "counter", "gauge"
#: checkpoints of the history that one scrape reads; more than a pipeline completes between two of them
WINDOW = 300


@dataclass(frozen=True)
class Metric:
    """One line of the table. Every metric has the label `pipeline`, too."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


#: All there are. docs/operations.md shows this table; a test compares the two.
METRICS = (
    # -- checkpoints: counted when they are over, since this process began
    Metric("holdfast_checkpoints_total", COUNTER, "Checkpoints that are over, by how they ended.", ("status",)),
    Metric("holdfast_checkpoints_restored_total", COUNTER, "Checkpoints decided by an earlier run and finished here."),
    Metric(
        "holdfast_checkpoint_seconds_total", COUNTER, "Seconds that complete checkpoints took, by phase.", ("phase",)
    ),
    Metric("holdfast_last_checkpoint_seconds", GAUGE, "Seconds the newest checkpoint took, by phase.", ("phase",)),
    # -- what was delivered
    Metric("holdfast_rows_total", COUNTER, "Rows of complete checkpoints, by sink.", ("sink",)),
    Metric("holdfast_bytes_total", COUNTER, "Bytes of complete checkpoints as they were prepared, by sink.", ("sink",)),
    Metric("holdfast_commits_total", COUNTER, "Sinks' commits of checkpoints, by outcome.", ("sink", "outcome")),
    Metric("holdfast_repaired_rows_total", COUNTER, "Rows an endpoint had dropped, produced again.", ("sink",)),
    # -- what is owed: decided, and not committed yet
    Metric("holdfast_pending_checkpoints", GAUGE, "Checkpoints a sink still owes.", ("sink",)),
    Metric("holdfast_pending_rows", GAUGE, "Rows a sink still owes.", ("sink",)),
    Metric("holdfast_pending_bytes", GAUGE, "Bytes a sink still owes.", ("sink",)),
    Metric("holdfast_pending_age_seconds", GAUGE, "Age of the oldest checkpoint a sink owes.", ("sink",)),
    Metric("holdfast_held_back_rows", GAUGE, "Committed rows in files that are not completed yet.", ("sink",)),
    Metric("holdfast_sink_failures", GAUGE, "Failures in a row of a sink's delivery loop.", ("sink",)),
    Metric("holdfast_stuck_checkpoints", GAUGE, "Checkpoints that wait for an operator: holdfast resolve."),
    # -- where the pipeline stands
    Metric("holdfast_health", GAUGE, "0 healthy, 1 degraded, 2 down: as the exit code of holdfast status."),
    Metric("holdfast_last_complete_checkpoint", GAUGE, "The last checkpoint below which all are complete."),
    Metric("holdfast_freshness_seconds", GAUGE, "Seconds since a checkpoint was completed."),
    Metric("holdfast_generation", GAUGE, "The number of the newest query run: it grows with each start."),
    Metric("holdfast_failed_runs", GAUGE, "Query runs that failed or died in the last ten minutes."),
    Metric("holdfast_up", GAUGE, "1 when the checkpoint location could be read, else 0; then most others are missing."),
    # -- the source and Spark, while the query runs in this process
    Metric("holdfast_source_lag_rows", GAUGE, "Rows that wait in the source, where Spark tells (Kafka)."),
    Metric("holdfast_input_rows_per_second", GAUGE, "Rows that come in, as Spark measures it."),
    Metric("holdfast_processed_rows_per_second", GAUGE, "Rows that are processed, as Spark measures it."),
    Metric("holdfast_state_rows", GAUGE, "Rows in Spark's state, of all operators."),
    Metric("holdfast_state_bytes", GAUGE, "Memory of Spark's state, of all operators."),
)
BY_NAME = {metric.name: metric for metric in METRICS}
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
        #: checkpoint -> generation in which it was counted: one that ended badly is run again
        self._counted: set[tuple[int, int | None, str]] = set()
        self._began = False
        self._begin()

    def _begin(self) -> None:
        """What is over already was counted by somebody else, or by nobody."""
        try:
            self._counted = {_key(stats) for stats in self._history() if _over(stats)}
            self._began = True
        except HoldfastError:
            pass  # tried again when somebody asks; until then nothing is counted

    def samples(self) -> list[Sample]:
        """All that is known now."""
        with self._lock:
            found = [*self._of_spark()]
            try:
                if not self._began:
                    self._begin()
                history = self._history()
                self._count(history)
                found += [*self._of_history(history), *self._of_status()]
            except ConfigError:
                found.append(self._sample("holdfast_up", 1))  # nothing was ever started there
            except StorageError:
                found.append(self._sample("holdfast_up", 0))
            found += [Sample(name, value, dict(labels)) for (name, labels), value in self._counts.items()]
            return found

    # -- where values come from --------------------------------------------------------------------------------------

    def _history(self) -> list[CheckpointStats]:
        return checkpoints(self._location, last=WINDOW)

    def _count(self, history: list[CheckpointStats]) -> None:
        for stats in history:
            if not _over(stats) or _key(stats) in self._counted:
                continue
            self._counted.add(_key(stats))
            self._add("holdfast_checkpoints_total", 1, status=stats.status)
            if stats.status != State.COMPLETE:
                continue
            self._add("holdfast_checkpoints_restored_total", int(stats.restored))
            for phase, seconds in stats.durations.items():
                self._add("holdfast_checkpoint_seconds_total", seconds, phase=phase)
            for sink, told in stats.sinks.items():
                self._add("holdfast_rows_total", int(told.get("rows", 0)), sink=sink)
                self._add("holdfast_bytes_total", int(told.get("bytes", 0)), sink=sink)
                if told.get("outcome"):
                    self._add("holdfast_commits_total", 1, sink=sink, outcome=str(told["outcome"]))
            for sink, told in stats.repaired.items():
                self._add("holdfast_repaired_rows_total", int(told.get("rows", 0)), sink=sink)
        oldest = min((stats.checkpoint_id for stats in history), default=0)
        self._counted = {key for key in self._counted if key[0] >= oldest}

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
        for sink in status.sinks:
            age = 0.0 if sink.oldest is None else max(0.0, (status.at - sink.oldest) / 1000)
            yield self._sample("holdfast_pending_checkpoints", sink.checkpoints, sink=sink.sink)
            yield self._sample("holdfast_pending_rows", sink.rows, sink=sink.sink)
            yield self._sample("holdfast_pending_bytes", sink.bytes, sink=sink.sink)
            yield self._sample("holdfast_pending_age_seconds", age, sink=sink.sink)
            yield self._sample("holdfast_held_back_rows", sink.held_back_rows, sink=sink.sink)
            yield self._sample("holdfast_sink_failures", sink.failures, sink=sink.sink)

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


def _over(stats: CheckpointStats) -> bool:
    return stats.status in (State.COMPLETE, State.ABORTED)


def _key(stats: CheckpointStats) -> tuple[int, int | None, str]:
    return stats.checkpoint_id, stats.generation, stats.status


def serve(metrics: Callable[[], Metrics | None], port: int, host: str = "127.0.0.1") -> Callable[[], None]:
    """Answer Prometheus at /metrics until the answer is called; `metrics` is asked at each scrape."""
    try:
        from prometheus_client import CollectorRegistry, start_http_server
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
        from prometheus_client.registry import Collector
    except ImportError as error:
        raise MissingExtraError("metrics need one more package: pip install 'holdfast[metrics]'") from error

    class Answers(Collector):
        def collect(self) -> Iterator[Any]:
            found = metrics()
            samples = [] if found is None else found.samples()
            for metric in METRICS:
                kind = CounterMetricFamily if metric.kind == COUNTER else GaugeMetricFamily
                family = kind(metric.name, metric.help, labels=["pipeline", *metric.labels])
                for sample in samples:
                    if sample.name == metric.name:
                        family.add_metric(
                            [sample.labels[label] for label in ("pipeline", *metric.labels)], sample.value
                        )
                yield family

        def describe(self) -> Iterator[Any]:
            return iter(())  # else it is asked for everything before the query runs

    registry = CollectorRegistry()
    registry.register(Answers())
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        raise ConfigError(
            f"metrics cannot be served at {host}:{port}: {error}. Choose another --metrics-port"
        ) from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
