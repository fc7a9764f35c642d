"""Which rows and columns of Spark's batches are a sink's own: filtered and projected in Arrow, no Python object a row.

`holdfast.spark.routes` has Spark compute predicates and expressions as further columns of the one pass; a selection
says where they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc


@dataclass(frozen=True)
class Selection:
    """From a batch of the stream to the rows of one sink; equal selections give equal rows."""

    #: (place in the batch, name for the sink); None: the batch as it is
    columns: tuple[tuple[int, str], ...] | None = None
    #: the place of a boolean column: rows for which it is true go to the sink
    where: int | None = None
    #: ... and of those, rows for which this one is true are bad
    reject: int | None = None
    #: the expression behind `reject`, which is the reason that a bad row is told
    rule: str = ""

    def schema(self, schema: pa.Schema) -> pa.Schema:
        """Of the sink's own rows."""
        if self.columns is None:
            return schema
        return pa.schema([schema.field(place).with_name(name) for place, name in self.columns])

    def split(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch | None]:
        """The sink's rows, and those that are bad, None when there are none."""
        rows = batch
        if self.columns is not None:
            arrays = [batch.column(place) for place, _ in self.columns]
            rows = pa.RecordBatch.from_arrays(arrays, schema=self.schema(batch.schema))
        wanted = None if self.where is None else batch.column(self.where)
        if self.reject is not None:
            bad = pc.fill_null(batch.column(self.reject), fill_value=False)
            marked = bad if wanted is None else pc.and_(pc.fill_null(wanted, fill_value=False), bad)
            if marked.true_count:
                good = pc.invert(bad) if wanted is None else pc.and_(wanted, pc.invert(bad))
                return rows.filter(good), rows.filter(marked)
        if wanted is None or wanted.true_count == len(wanted):
            return rows, None
        return rows.filter(wanted), None


#: sink -> its selection; a sink that is not there gets the batches as they are
Selections = Mapping[str, Selection]
WHOLE = Selection()
