"""Spark's Java process dies in the middle of a call: one error for that, whatever its end of a socket does (D7)."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError

from holdfast.checkpoint.ports import Run
from holdfast.errors import RESTART
from holdfast.spark import packages, tasks
from holdfast.spark.failures import QueryFailedError, SparkGoneError
from holdfast.spark.tasks import SparkBatch, SparkTasks

GONE = [
    ConnectionRefusedError(111, "Connection refused"),
    ConnectionResetError(104, "Connection reset by peer"),
    BrokenPipeError(32, "Broken pipe"),
    EOFError(),
    Py4JNetworkError("Answer from Java side is empty"),
    Py4JError("An error occurred while calling o45.collect"),
]


class Spark:
    """Whatever it is asked, it raises; it has no cluster, and no plan of a batch."""

    master, defaultParallelism = "spark://nowhere", 1

    def __init__(self, error: Exception) -> None:
        self.error, self.passes, self.batches = error, self, self

    def begin(self, *, repair: bool) -> int:
        return 0

    def limit(self, session: Any) -> None:
        """Nothing to limit."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in ("sparkSession", "plan", "ended"):
            return lambda *_: None
        raise self.error


def batch_of(error: Exception, monkeypatch: pytest.MonkeyPatch) -> SparkBatch:
    def fail(*_: Any, **__: Any) -> list[str]:
        raise error

    monkeypatch.setattr(tasks, "each_partition", fail)
    spark: Any = Spark(error)
    return SparkBatch(spark, 0, spark, {}, None)


@pytest.mark.contract("D7")
@pytest.mark.parametrize("error", GONE, ids=lambda error: type(error).__name__)
def test_d7_a_call_that_java_does_not_answer_any_more_says_that_it_is_gone(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    spark: Any = Spark(error)
    batch = batch_of(error, monkeypatch)
    calls = [
        lambda: batch.write(Run("p", "a" * 16, 0, "/tmp"), [], 0, 0),
        lambda: batch.digests("sink"),
        batch.drain,
        lambda: SparkTasks(spark).map(str, [1]),
        lambda: packages._ask(spark, lambda number: {}),
    ]
    for call in calls:
        with pytest.raises(SparkGoneError) as raised:
            call()
        assert raised.value.action == RESTART and raised.value.__cause__ is error


def test_an_error_of_sparks_own_is_not_taken_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    class Told(Py4JJavaError):
        def __init__(self) -> None:
            Exception.__init__(self, "boom")

        def __str__(self) -> str:
            return "org.apache.spark.SparkException: boom"

    with pytest.raises(QueryFailedError, match="boom"):
        batch_of(Told(), monkeypatch).digests("sink")


def test_an_endpoint_that_refuses_is_not_taken_for_the_end_of_spark() -> None:
    """What a delivery raised in a task comes back as itself."""
    refused = ConnectionRefusedError(111, "the endpoint is away")

    class Answers:
        def parallelize(self, *_: Any) -> Answers:
            return self

        map = parallelize

        def collect(self) -> list[tuple[str, Exception]]:
            return [("error", refused)]

    context: Any = Answers()
    with pytest.raises(ConnectionRefusedError) as raised:
        SparkTasks(context).map(str, [1])
    assert raised.value is refused
