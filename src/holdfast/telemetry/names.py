"""Every metric there is: the one table that endpoint, docs, rules and Grafana dashboard are made from."""

from __future__ import annotations

from dataclasses import dataclass

COUNTER, GAUGE = "counter", "gauge"


@dataclass(frozen=True)
class Metric:
    """One line of the table. Every metric has the label `pipeline`, too."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()
    #: how Grafana shows it: a unit of its own list
    unit: str = "short"


#: checkpoints: counted when they are over, since this process began
_CHECKPOINTS = (
    Metric(
        "holdfast_checkpoints_total",
        COUNTER,
        "Checkpoints that are over, by how they ended: complete, failed, or aborted by a stop or a newer run.",
        ("status",),
    ),
    Metric("holdfast_checkpoints_restored_total", COUNTER, "Checkpoints decided by an earlier run and finished here."),
    Metric("holdfast_checkpoints_in_progress", GAUGE, "Checkpoints that Spark has planned and nobody has decided."),
    Metric(
        "holdfast_checkpoint_seconds_total",
        COUNTER,
        "Seconds that complete checkpoints took, by phase.",
        ("phase",),
        "s",
    ),
    Metric("holdfast_last_checkpoint_seconds", GAUGE, "Seconds the newest checkpoint took, by phase.", ("phase",), "s"),
)
#: what was delivered
_DELIVERED = (
    Metric("holdfast_rows_total", COUNTER, "Rows of complete checkpoints, by sink.", ("sink",)),
    Metric(
        "holdfast_bytes_total",
        COUNTER,
        "Bytes of complete checkpoints as they were prepared, by sink.",
        ("sink",),
        "bytes",
    ),
    Metric("holdfast_commits_total", COUNTER, "Sinks' commits of checkpoints, by outcome.", ("sink", "outcome")),
    Metric(
        "holdfast_committables_total",
        COUNTER,
        "What subtasks had prepared, by the outcome of its commit: committed, already_committed, given-up.",
        ("sink", "outcome"),
    ),
    Metric(
        "holdfast_commit_retries_total", COUNTER, "Commits that failed and were tried again, in this run.", ("sink",)
    ),
    Metric("holdfast_repaired_rows_total", COUNTER, "Rows an endpoint had dropped, produced again.", ("sink",)),
)
#: what is owed: decided, and not committed yet
_OWED = (
    Metric("holdfast_pending_checkpoints", GAUGE, "Checkpoints a sink still owes.", ("sink",)),
    Metric("holdfast_pending_rows", GAUGE, "Rows a sink still owes.", ("sink",)),
    Metric("holdfast_pending_bytes", GAUGE, "Bytes a sink still owes.", ("sink",), "bytes"),
    Metric("holdfast_pending_age_seconds", GAUGE, "Age of the oldest checkpoint a sink owes.", ("sink",), "s"),
    Metric("holdfast_held_back_rows", GAUGE, "Committed rows in files that are not completed yet.", ("sink",)),
    Metric("holdfast_sink_failures", GAUGE, "Failures in a row of a sink's delivery loop.", ("sink",)),
    Metric("holdfast_stuck_checkpoints", GAUGE, "Checkpoints that wait for an operator: holdfast resolve."),
    Metric("holdfast_lost_rows", GAUGE, "Rows of stuck checkpoints that the endpoint has lost.", ("sink",)),
)
#: where the pipeline stands
_STANDING = (
    Metric("holdfast_health", GAUGE, "0 healthy, 1 degraded, 2 down: as the exit code of holdfast status."),
    Metric("holdfast_last_complete_checkpoint", GAUGE, "The last checkpoint below which all are complete."),
    Metric("holdfast_freshness_seconds", GAUGE, "Seconds since a checkpoint was completed.", (), "s"),
    Metric("holdfast_generation", GAUGE, "The number of the newest query run: it grows with each start."),
    Metric("holdfast_failed_runs", GAUGE, "Query runs that failed or died in the last ten minutes."),
    Metric("holdfast_fenced_runs", GAUGE, "Of the newest 30 runs, those that a newer one fenced before their end."),
    Metric("holdfast_up", GAUGE, "1 when the checkpoint location could be read, else 0; then most others are missing."),
)
#: the source and Spark, while the query runs in this process
_SPARK = (
    Metric("holdfast_source_lag_rows", GAUGE, "Rows that wait in the source, where Spark tells (Kafka)."),
    Metric("holdfast_input_rows_per_second", GAUGE, "Rows that come in, as Spark measures it."),
    Metric("holdfast_processed_rows_per_second", GAUGE, "Rows that are processed, as Spark measures it."),
    Metric("holdfast_state_rows", GAUGE, "Rows in Spark's state, of all operators."),
    Metric("holdfast_state_bytes", GAUGE, "Memory of Spark's state, of all operators.", (), "bytes"),
)
#: All there are, by what they are about. docs/operations.md shows this table; a test compares the two.
SECTIONS = {
    "Where pipelines stand": _STANDING,
    "Checkpoints": _CHECKPOINTS,
    "Delivered": _DELIVERED,
    "Owed": _OWED,
    "Source and Spark": _SPARK,
}
METRICS = tuple(metric for section in SECTIONS.values() for metric in section)
BY_NAME = {metric.name: metric for metric in METRICS}
