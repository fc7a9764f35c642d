"""What holdfast does to Spark's Python workers between tasks."""

from __future__ import annotations

import gc
import os

from pyspark.sql import SparkSession

from holdfast.spark.tasks import SparkTasks


def look(_: int) -> tuple[int, int, int]:
    """(process, objects the collector passes over, objects it goes through)."""
    return os.getpid(), gc.get_freeze_count(), len(gc.get_objects())


def import_more(_: int) -> None:
    """What the first task had no need of."""
    import wsgiref.validate
    import xml.dom.expatbuilder
    import xmlrpc.server

    assert wsgiref and xml and xmlrpc


def test_what_a_worker_has_imported_is_not_collected_again(spark: SparkSession) -> None:
    """PySpark collects after every task, in the time of the next one."""
    tasks = SparkTasks(spark.sparkContext)
    for function in (look, import_more):
        for _ in range(4):  # until every worker process has had one
            tasks.map(function, [0, 1])
    seen = tasks.map(look, [0, 1])
    assert os.getpid() not in {pid for pid, _, _ in seen}
    assert all(frozen > 10 * left for _, frozen, left in seen), seen
    assert gc.get_freeze_count() == 0, "the driver is left alone"
