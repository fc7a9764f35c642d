"""What is sent to the tasks of a batch: by value, so that one whose Python lacks holdfast or an extra can say so.

With `hf.write_stream` the driver asks the executors before it starts (holdfast.spark.packages). Here nobody can: so
each task looks first, and fails with such words, before anything is written or decided.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage

from holdfast.spark.look import look, wrong

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.doors.orders import TaskOrder


class Parcel(DataSourceStreamArrowWriter):
    """An order, with all that it takes to find out whether it can be carried out here."""

    def __init__(
        self, order: bytes, modules: Sequence[str], extras: Sequence[str], ours: Sequence[str], version: str, mark: str
    ) -> None:
        self._order, self._modules, self._mark = order, modules, mark
        self._wanted = (extras, ours, version)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """One partition; nothing of holdfast may be used before the look."""
        import json
        import pickle

        problem = wrong(look(self._modules, self._order, 0), *self._wanted, door=True)
        if problem is not None:
            kind, text = problem
            # As holdfast.spark.failures.marked does it, which cannot be had here.
            raise RuntimeError(f"{kind}: {text}\n{self._mark}{json.dumps({'error': kind, 'message': text})}")
        from holdfast.doors.source import Writing

        order: TaskOrder = pickle.loads(self._order)  # noqa: S301  the driver's own bytes, as every task gets them
        return Writing(order).write(iterator)


def packed(order: TaskOrder) -> bytes:
    """The parcel of an order, pickled."""
    from holdfast.core.version import __version__
    from holdfast.doors import parcel
    from holdfast.spark import look as looking
    from holdfast.spark.failures import MARK
    from holdfast.spark.packages import extras_of, modules_of, ours
    from holdfast.spark.private import by_value, pickled

    sinks = [getattr(sink, "template", sink) for sink in order.sinks or ()]
    extras = extras_of(sinks, order.run.location)
    body = pickled(order)
    with by_value(parcel, looking):
        return pickled(Parcel(body, modules_of(extras), extras, ours(), __version__, MARK))
