"""Proving at the start that executors see the folders the driver sees."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark import SparkContext

from holdfast.checkpoint.shared import check_shared, places_of
from holdfast.errors import HoldfastError
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark.failures import failure_of
from holdfast.spark.tasks import SparkTasks

#: tasks that look, at most: Spark deals them out over the executors that are there
MOST = 64


def is_cluster(context: SparkContext) -> bool:
    """Whether tasks run in other processes than the driver's, on machines that may not be its own."""
    master = context.master or ""
    return not master.startswith("local") or master.startswith("local-cluster")


def lookers(context: SparkContext) -> int:
    """How many tasks look at what the executors have."""
    return min(MOST, max(2, context.defaultParallelism))


def prove_shared(context: SparkContext, sinks: Sequence[TwoPhaseCommitSink], location: str) -> None:
    """ConfigError when a folder that a sink needs is not shared; free where tasks run on the driver's machine."""
    if not is_cluster(context):
        return
    try:
        check_shared(places_of(sinks, location), SparkTasks(context), lookers(context))
    except HoldfastError:
        raise
    except Exception as error:
        raise failure_of(str(error)) from error
