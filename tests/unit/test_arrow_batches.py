"""How many rows Spark puts into an Arrow batch, by the size of rows that went before."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.checkpoint.ports import SubtaskReport
from holdfast.spark.batches import BYTES, NO_LIMIT, ROWS, ArrowBatches


class Conf(dict[str, Any]):
    """As PySpark's RuntimeConfig."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def unset(self, key: str) -> None:
        self.pop(key, None)


def report(bytes_per_row: int, rows: int = 1000) -> SubtaskReport:
    return SubtaskReport(0, rows, rows * bytes_per_row, (), None)


def limits(batches: ArrowBatches, conf: Conf) -> Conf:
    batches.limit(SimpleNamespace(conf=conf))  # type: ignore[arg-type]
    return conf


@pytest.mark.parametrize(
    ("bytes_per_row", "rows"), [(1, 50_000), (130, 30_000), (400, 10_000), (800, 10_000), (900, None), (10**6, None)]
)
def test_small_rows_get_larger_batches_that_nobody_measures(bytes_per_row, rows) -> None:
    batches = ArrowBatches()
    assert limits(batches, Conf()) == {}, "a run begins with Spark's limits"
    batches.learn([report(bytes_per_row)])
    assert limits(batches, Conf()) == ({} if rows is None else {BYTES: NO_LIMIT, ROWS: rows})


def test_the_largest_rows_count_and_a_batch_without_rows_changes_nothing() -> None:
    batches, conf = ArrowBatches(), Conf()
    batches.learn([report(100), report(0, rows=0)])
    assert limits(batches, conf)
    batches.learn([])
    assert limits(batches, conf)
    batches.learn([report(100), report(10_000)])
    assert limits(batches, conf) == {}
    batches.learn([report(100)])
    assert limits(batches, conf)


@pytest.mark.parametrize("given", [{BYTES: "1MB"}, {ROWS: "500"}])
def test_a_limit_that_the_user_has_set_stays(given) -> None:
    batches = ArrowBatches()
    batches.learn([report(100)])
    assert limits(batches, Conf(given)) == given
