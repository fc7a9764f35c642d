"""Runs a function over the partitions of a micro-batch, its rows as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as t

from holdfast.core.passes import Attempt, Passes
from holdfast.errors import ConfigError
from holdfast.spark import private
from holdfast.spark.batches import ArrowBatches

#: Takes the batches of a partition, gives a few short texts.
PartitionFunction = Callable[[Iterator[pa.RecordBatch]], Iterator[str]]
_TEXTS = pa.schema([("text", pa.string())])
#: Types that Java and Python lay out in the same way without telling each other.
_PLAIN = (
    t.BooleanType, t.ByteType, t.ShortType, t.IntegerType, t.LongType, t.FloatType, t.DoubleType, t.DecimalType,
    t.StringType, t.BinaryType, t.DateType, t.TimestampType, t.TimestampNTZType,
)  # fmt: skip
_LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
#: A batch of at most so many rows from Kafka is written by one task, where all its sinks gain by that. By default none.
FEW_ROWS = "spark.holdfast.fewRows"
#: What Spark tells every job of a micro-batch.
_QUERY_ID = "sql.streaming.queryId"


class PlanReader:
    """The running query, where its micro-batches have their physical plans.

    The frame that foreachBatch gets is made of the plan's result, and reading it copies every row once more; mapInArrow
    then puts each into a row of its own. Together that is a quarter of all CPU time of a Kafka to Kafka query. So rows
    are taken from the plan itself where that is known to be the same: rows are small (only mapInArrow limits the bytes
    of a batch), their types plain, and the plan is that of this very micro-batch. Else from the frame.
    """

    def __init__(self, session: SparkSession) -> None:
        self._session = session
        self.batches = ArrowBatches()
        self.passes = Passes()
        self._few = _few_rows(session)
        #: whether this query's plan does little; None: it has not been seen
        self._light: bool | None = None

    def has_few_rows(self, plan: Any) -> bool:
        """Whether one task should write a whole micro-batch: its rows are few, and little is done to them before."""
        if self._few and self._light is None:
            self._light = private.few_steps(plan)
        rows = private.kafka_rows(plan) if self._few and self._light else None
        return rows is not None and rows <= self._few

    def ended(self, number: int, won: Sequence[tuple[int, int, int]] | None) -> None:
        """A pass over the rows is over; of each task that won: its stage, which try it was, and its own number."""
        if won is None:
            self.passes.end(number, None)
            return
        context = self._session.sparkContext
        once = {stage: private.first_run(context, stage) for stage in {stage for stage, _, _ in won}}
        self.passes.end(number, [Attempt(tries, task, once[stage]) for stage, tries, task in won])

    def plan(self, frame: DataFrame, batch_id: int) -> Any | None:
        """The physical plan of a micro-batch; None where the frame must do."""
        session = frame.sparkSession
        plain = all(isinstance(field.dataType, _PLAIN) for field in frame.schema)
        if not self.batches.small or not plain or session.conf.get(_LARGE, "false") != "false":
            return None
        query_id = session.sparkContext.getLocalProperty(_QUERY_ID)
        plan = None if query_id is None else private.plan_of(self._session, query_id, batch_id)
        return plan if plan is not None and private.same_schema(frame, plan) else None


def _few_rows(session: SparkSession) -> int:
    told = session.conf.get(FEW_ROWS, None) or "0"
    if not told.isdigit():
        raise ConfigError(f"{FEW_ROWS}={told}: give a number of rows; 0 if no batch shall be written by one task alone")
    return int(told)


def each_partition(
    frame: DataFrame, plan: Any | None, function: PartitionFunction, *, together: bool = False
) -> list[str]:
    """One Spark job; what `function` gave for each partition, or for all `together`, if they come from the plan."""
    rows = None if plan is None else private.plan_rows(frame, plan)
    if rows is None:
        return [row[0] for row in frame.mapInArrow(_through_arrow(function), "text string").collect()]
    schema = private.arrow_schema(frame).serialize().to_pybytes()
    rows = rows.coalesce(1) if together else rows
    return list(rows.mapPartitions(_decoding(schema, function)).collect())


def _through_arrow(function: PartitionFunction) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for text in function(batches):
            yield pa.RecordBatch.from_arrays([pa.array([text])], schema=_TEXTS)

    return run


def _decoding(schema: bytes, function: PartitionFunction) -> Callable[[Iterable[bytes]], Iterable[str]]:
    """Spark sends the batches without the schema, which is the same for all."""

    def run(messages: Iterable[bytes]) -> Iterable[str]:
        known = pa.ipc.read_schema(pa.py_buffer(schema))
        return function(pa.ipc.read_record_batch(pa.py_buffer(message), known) for message in messages)

    return run
