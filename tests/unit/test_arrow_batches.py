"""How many rows Spark puts into an Arrow batch, by the size of rows that went before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.checkpoint.ports import SubtaskReport
from holdfast.spark.batches import BYTES, FIRST, ROWS, ArrowBatches


class Conf(dict[str, Any]):
    """As PySpark's RuntimeConfig."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def unset(self, key: str) -> None:
        self.pop(key, None)


def report(bytes_per_row: int, rows: int = 1000) -> SubtaskReport:
    return SubtaskReport(0, rows, rows * bytes_per_row, ())


def limits(batches: ArrowBatches, conf: Conf) -> Conf:
    batches.limit(SimpleNamespace(conf=conf))  # type: ignore[arg-type]
    return conf


def after(batches: ArrowBatches, *sizes: int) -> int | None:
    """Rows of a batch after checkpoints with rows of these sizes."""
    conf = limits(batches, Conf())
    for size in sizes:
        batches.learn([report(size)])
        limits(batches, conf)
    assert BYTES not in conf, "the limit of bytes is Spark's own, and finite"
    return conf.get(ROWS)


def test_a_run_begins_with_few_rows_and_no_limit_is_ever_lifted() -> None:
    """Before the first checkpoint nothing is known: a thousand of Kafka's largest messages are one gigabyte."""
    assert after(ArrowBatches()) == FIRST == 1_000
    assert after(ArrowBatches(), 1, 1, 1, 1, 1, 1) == 20_000


@pytest.mark.parametrize(("size", "rows"), [(1, 4_000), (130, 4_000), (800, 4_000), (900, None), (10**6, None)])
def test_small_rows_get_larger_batches_little_by_little(size, rows) -> None:
    assert after(ArrowBatches(), size) == rows


def test_the_largest_rows_count_and_a_batch_without_rows_changes_nothing() -> None:
    batches, conf = ArrowBatches(), Conf()
    limits(batches, conf)
    batches.learn([report(100), report(0, rows=0)])
    assert limits(batches, conf)[ROWS] == 4_000
    batches.learn([])
    assert batches.small
    batches.learn([report(100), report(10_000)])
    assert limits(batches, conf) == {} and not batches.small
    batches.learn([report(100)])
    assert limits(batches, conf) == {ROWS: FIRST}


def test_after_a_batch_that_was_too_large_rows_come_with_sparks_own_limits() -> None:
    batches, conf = ArrowBatches(), Conf()
    limits(batches, conf)
    batches.too_large()
    batches.learn([report(1)])
    assert limits(batches, conf) == {} and not batches.small


@pytest.mark.parametrize("given", [{BYTES: "1MB"}, {ROWS: "500"}])
def test_a_limit_that_the_user_has_set_stays(given) -> None:
    batches = ArrowBatches()
    batches.learn([report(100)])
    assert limits(batches, Conf(given)) == given
