"""What holdfast does to Spark's Python workers between tasks."""

from __future__ import annotations

import gc
import os

from pyspark.sql import SparkSession

from holdfast.spark.tasks import SparkTasks

#: A worker that has imported PySpark, pyarrow and holdfast has more objects than these.
IMPORTED = 20_000


def look(_: int) -> tuple[int, int]:
    """(process, objects the collector passes over)."""
    return os.getpid(), gc.get_freeze_count()


def test_what_a_worker_has_imported_is_not_collected_again(spark: SparkSession) -> None:
    """PySpark collects after every task, in the time of the next one."""
    tasks = SparkTasks(spark.sparkContext)
    for _ in range(4):  # until every worker process has had one
        seen = tasks.map(look, [0, 1])
    assert os.getpid() not in {pid for pid, _ in seen}
    assert all(frozen > IMPORTED for _, frozen in seen), seen
    assert gc.get_freeze_count() == 0, "the driver is left alone"
