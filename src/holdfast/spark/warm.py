"""Starting Spark's Python workers while the driver recovers and Spark plans the first batch."""

from __future__ import annotations

import logging
import threading

from pyspark import SparkContext

logger = logging.getLogger("holdfast")
#: Applications whose workers are there, by their ids.
_warmed: set[str] = set()


def warm_workers(context: SparkContext) -> threading.Thread | None:
    """Beside the caller, once for an application: an empty task for each core of a local Spark."""
    name = str(context.applicationId)
    if name in _warmed or not (context.master or "").startswith("local["):
        return None
    _warmed.add(name)
    cores = context.defaultParallelism

    def work() -> None:
        try:
            context.setLocalProperty("spark.job.description", "holdfast starts the Python workers")
            context.parallelize(range(cores), cores).foreach(_nothing)
        except Exception as error:  # noqa: BLE001  only time was to be won: what is wrong with Spark, the query tells
            logger.debug("the workers were not started beforehand: %s", error)

    thread = threading.Thread(target=work, name="holdfast-warm", daemon=True)
    thread.start()
    return thread


def _nothing(_: int) -> None:
    """The worker is there: that is all."""
