"""How large the Arrow batches are in which Spark hands rows to Python."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from holdfast.checkpoint.ports import SubtaskReport

BYTES, ROWS = "spark.sql.execution.arrow.maxBytesPerBatch", "spark.sql.execution.arrow.maxRecordsPerBatch"
#: Rows of a batch before anything is known of them: with Kafka's largest messages they are a gigabyte.
FIRST = 1_000
#: Rows are small while so many of them, Spark's own limit, have no more than eight megabytes.
_SPARK_ROWS, _SMALL = 10_000, 8 * 1024**2
#: ... and then a batch gets as many as make some megabytes, and four times more than in the last checkpoint at most.
_MOST, _WANTED, _GROWTH = 20_000, 4 * 1024**2, 4


class ArrowBatches:
    """Limits the batches that come straight from the plan, by the rows of the last checkpoint; one for each query run.

    There Spark counts rows and nothing else: it measures bytes only where rows come from the frame, row by row, which
    takes a sixth of the JVM's time and is what large rows want. So the count is always finite: small as long as nothing
    is known, larger while rows are small. When rows are large, or a batch was too large to be made, they come from the
    frame with Spark's own limits of rows and bytes. A limit that the user has set stays.
    """

    def __init__(self) -> None:
        self._bytes_per_row: float | None = None
        self._rows: int | None = None
        self._given = False
        self._failed = False

    def limit(self, session: SparkSession) -> None:
        """Set the limit for the next batch, in the session that Spark has cloned for this query."""
        conf = session.conf
        if self._rows is None and not self._given:
            self._given = (conf.get(BYTES, None), conf.get(ROWS, None)) != (None, None)
        if self._given:
            return
        rows = self._wanted()
        if rows is not None and rows != self._rows:
            conf.set(ROWS, rows)
        elif rows is None and self._rows is not None:
            conf.unset(ROWS)
        self._rows = rows

    @property
    def small(self) -> bool:
        """Whether rows may come from the plan: they are few or small, as far as is known, and the limit is ours."""
        return self._rows is not None

    def _wanted(self) -> int | None:
        """How many rows make a good batch; None when already Spark's number of them makes a large one."""
        size = self._bytes_per_row
        if self._failed or (size is not None and size * _SPARK_ROWS > _SMALL):
            return None
        if size is None or self._rows is None:
            return self._rows or FIRST
        return max(FIRST, min(_MOST, self._rows * _GROWTH, int(_WANTED / max(1.0, size))))

    def learn(self, reports: Sequence[SubtaskReport]) -> None:
        """What the rows of a checkpoint were like; one without rows says nothing."""
        sizes = [report.bytes / report.rows for report in reports if report.rows]
        self._bytes_per_row = max(sizes, default=self._bytes_per_row)

    def too_large(self) -> None:
        """A batch could not be made: from now on rows come from the frame."""
        self._failed = True
