"""Which interfaces of Spark are used that are not public, and what is done where one is missing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeVar

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

logger = logging.getLogger("holdfast")
T = TypeVar("T")

#: name -> what it is for, and what is done without it
INTERFACES: Mapping[str, str] = {
    "StreamExecution.lastExecution": "the plan of a micro-batch; without it rows come from the frame, a copy more",
    "SparkPlan.schema": "whether that plan has the frame's columns; without it rows come from the frame, a copy more",
    "Dataset.toArrowBatchRdd": "rows of a plan as Arrow batches; without it rows come from the frame, a copy more",
    "MicroBatchScanExec.start": "how many rows from Kafka a batch has; without it few rows are not written by one task",
    "StatusTracker._jtracker": "whether Spark ran a stage again; without it, the public way, with more questions",
    "to_arrow_schema": "the Arrow schema of a frame; without it, that of an empty batch that Spark makes, "
    "and format('holdfast') says so and stops",
    "StreamExecution.queryExecutionThread": "a query that fails between two batches; without it, it is stopped",
    "StreamingQuery.exception": "why Spark ended a query; without it, what PySpark says",
    "LogicalPlan.collectLeaves": "the Kafka sources of a query; without it no group offsets are committed",
    "QueryExecution.analyzed": "the plan that `holdfast run --dry-run` shows; without it none is shown",
    "LogicalPlan.expressions": "what `holdfast check` looks for in a plan; without it nothing is found there",
    "ClassLoader.loadClass": "the version of Spark's Kafka connector; without it, it is not checked",
    "SparkContext.hadoopConfiguration": "credentials of object stores; without it, those of the environment",
    "java.lang.Thread.sleep": "a wait that Spark's stop interrupts; without it, a plain one",
    "SparkContext._ensure_initialized": "what spark-submit was told; without it our defaults win over that",
    "SparkContext._gateway": "a Spark whose Java process has ended; without it, the whole program must start again",
    "DataStreamWriter._sq": "the kind of query that start() gives; without it the query is wrapped",
    "StreamingQuery._jsq": "what a query is wrapped around; without it, and without _sq, a start says so and stops",
    "connect.DataStreamWriter": "a writer of Spark Connect that is ours; without it format('holdfast') must be used",
    "pyspark.cloudpickle": "orders for tasks, modules beside a job file; without it PyPI's, and tasks import modules",
    "FileSystemBasedCheckpointFileManager": "Spark's quick way to write its own files; without it, its usual one",
    "pyspark.daemon.manager": "a daemon of workers that has imported; without it Spark's own is started in its place",
    "hadoop.fs.Path": "a location without a scheme; without it, one with a scheme must be given",
}
#: file of Spark's own checkpoint -> what is read from it, and what is done where it has another form
FILES: Mapping[str, str] = {
    "offsets/N": "where each source stands before batch N, and its watermark; another version of the format is refused "
    "by savepoints and rewinds, and group offsets are not committed",
    "commits/N": "that Spark has finished batch N: its name alone; without any, no batch counts as finished",
    "metadata": "the id of the query, which a copy of a checkpoint gets anew; Spark refuses one that it cannot read",
    "state/, sources/": "copied by savepoints and left alone else; a name that is not known is copied too",
}
#: what Spark does that it promises nowhere -> what hangs on it, and what is done where it does otherwise
HABITS: Mapping[str, str] = {
    "sql.streaming.queryId": "a property of a micro-batch's jobs: which plan is read; without it rows come from the "
    "frame, a copy more",
    "streaming.sql.batchId": "the same: format('holdfast') writes no row unless it names the batch that was prepared",
    "workers below Java": "format('holdfast') finds Spark's driver above its process, and its settings in Java's "
    "command line; what it does not find there counts as not set",
    "streamWriter() twice": "format('holdfast') prepares in the first one and decides in the one that was pickled; "
    "tasks that were handed no batch fail, and nothing is written",
    "texts of errors": "which error is Spark's own stop, cancelled job or second query; another text is told as a "
    "failure of the query, and loses nothing",
}
#: The interfaces that were missing so far; each is logged once.
missed: set[str] = set()


def use(name: str, ask: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """What the interface gives, or the fallback where it is not there; errors of Spark itself go up."""
    try:
        return ask()
    except (Py4JJavaError, Py4JNetworkError):
        raise
    except (Py4JError, AttributeError, TypeError, ImportError) as error:
        if name not in missed:
            missed.add(name)
            logger.warning("this Spark has no %s (%s): %s", name, error, INTERFACES[name])
        return otherwise()


def missing_file(name: str, path: str) -> None:
    """Say, once, that a file of Spark's has another form than we know."""
    if name not in missed:
        missed.add(name)
        logger.warning("%s is not as this holdfast knows it: %s", path, FILES[name])
