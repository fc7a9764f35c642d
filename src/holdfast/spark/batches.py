"""How large the Arrow batches are in which Spark hands rows to Python."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from holdfast.checkpoint.ports import SubtaskReport

BYTES, ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
NO_LIMIT = 2**31 - 1
#: Spark's own limit of rows, and how far it is raised: to batches of some megabytes, or fifty thousand rows.
_STEP, _MOST, _WANTED = 10_000, 50_000, 4 * 1024**2


class ArrowBatches:
    """Limits the batches by the size of rows in the last checkpoint; one for each query run.

    By default a batch ends at 10,000 rows or 64 MB, and Spark 4.1 and newer looks after every row whether it has 64 MB.
    With rows of a hundred bytes that takes a sixth of the JVM's time, and the batch ends with one megabyte all the
    same. So while rows are small, batches get more of them and are not measured. A run begins with Spark's limits, it
    goes back to them when rows are large, and a limit that the user has set stays.
    """

    def __init__(self) -> None:
        self._bytes_per_row: float | None = None
        self._rows: int | None = None

    def limit(self, session: SparkSession) -> None:
        """Set the limits for the next batch, in the session that Spark has cloned for this query."""
        conf = session.conf
        if self._rows is None and (conf.get(BYTES, None), conf.get(ROWS, None)) != (None, None):
            return
        rows = self._rows_of_small()
        if rows is not None and rows != self._rows:
            conf.set(BYTES, NO_LIMIT)
            conf.set(ROWS, rows)
        elif rows is None and self._rows is not None:
            conf.unset(BYTES)
            conf.unset(ROWS)
        self._rows = rows

    @property
    def small(self) -> bool:
        """Whether rows are small, as far as is known, and the limits are ours."""
        return self._rows is not None

    def _rows_of_small(self) -> int | None:
        """How many rows make a good batch; None when already Spark's number of them makes a large one."""
        if self._bytes_per_row is None or self._bytes_per_row * _STEP > 2 * _WANTED:
            return None
        fitting = int(_WANTED / max(1.0, self._bytes_per_row)) // _STEP * _STEP
        return max(_STEP, min(_MOST, fitting))

    def learn(self, reports: Sequence[SubtaskReport]) -> None:
        """What the rows of a checkpoint were like; one without rows says nothing."""
        sizes = [report.bytes / report.rows for report in reports if report.rows]
        self._bytes_per_row = max(sizes, default=self._bytes_per_row)
