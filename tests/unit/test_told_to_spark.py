"""What Spark is told of an error that ends a batch: it takes some of them for its own stop (rule 17)."""

from __future__ import annotations

import pytest

from holdfast.errors import EngineError, FencedError, RowError
from holdfast.spark.failures import QueryFailedError, StoppedError, for_spark

#: As Py4J gives it: the call, then Java's error with its trace.
JAVA = "An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.\n: "
TRACE = "\n\tat org.apache.spark.scheduler.DAGScheduler.runJob(DAGScheduler.scala:1)" * 300
INTERRUPTED = Exception(f"{JAVA}java.lang.InterruptedException{TRACE}")
CANCELLED = [
    Exception(f"{JAVA}org.apache.spark.SparkException: {text} part of cancelled job group 7c1d{TRACE}")
    for text in ("[SPARK_JOB_CANCELLED] Job 12 cancelled", "Job 12 cancelled")
]


def ours_around(error: Exception) -> Exception:
    try:
        raise QueryFailedError(f"Spark could not run the batch: {error.args[0].splitlines()[0]}") from error
    except QueryFailedError as failure:
        return failure


@pytest.mark.parametrize("error", [INTERRUPTED, *CANCELLED, *map(ours_around, CANCELLED)], ids=range(5))
def test_a_stop_that_cancels_the_job_first_and_one_that_interrupts_first_are_the_same(error: Exception) -> None:
    told = for_spark(error, over=True, stopping=True)
    assert isinstance(told, StoppedError)
    assert len(str(told)) < 200, "Spark's pattern overflows its stack on long texts"


def test_also_when_the_stop_is_sparks_own() -> None:
    for error in (INTERRUPTED, *CANCELLED):
        assert isinstance(for_spark(error, over=True, stopping=False), StoppedError)


@pytest.mark.parametrize("error", [*CANCELLED, *map(ours_around, CANCELLED)], ids=range(4))
def test_a_job_that_somebody_cancels_in_a_running_query_fails_it(error: Exception) -> None:
    assert for_spark(error, over=False, stopping=False) is error


@pytest.mark.parametrize(
    "error", [RowError("sink 'db': no"), FencedError("another driver"), ours_around(Exception(JAVA))]
)
def test_another_error_that_meets_a_stop_is_told_in_few_words_and_stays_a_failure(error: Exception) -> None:
    told = for_spark(error, over=True, stopping=True)
    assert isinstance(told, EngineError) and told.__cause__ is None and len(str(told)) < 300
    assert for_spark(error, over=False, stopping=False) is error
    assert for_spark(error, over=False, stopping=True) is error, "a stop that waits for the batch has not met it yet"
