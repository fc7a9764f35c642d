"""What a Nexmark query wrote: compared as rows, in no order, and when which part of the events had been dealt with."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from bench.nexmark_events import BASE
from bench.nexmark_queries import Query


@dataclass(frozen=True)
class Audit:
    """How an output differs from the one it should be."""

    lost: int
    doubled: int
    #: rows that should not be there even once
    strange: int

    @property
    def equal(self) -> bool:
        return not (self.lost or self.doubled or self.strange)


def parse(query: Query, values: Iterable[bytes]) -> pa.Table:
    """Rows of JSON as a table; a field that is not one of the query's is an error."""
    text = io.BytesIO(b"\n".join(values))
    if not text.getbuffer().nbytes:
        return query.schema.empty_table()
    told = pyarrow.json.ParseOptions(explicit_schema=query.schema, unexpected_field_behavior="error")
    return pyarrow.json.read_json(text, pyarrow.json.ReadOptions(block_size=1 << 24), told).select(query.schema.names)


def audit(wanted: pa.Table, found: pa.Table) -> Audit:
    """As multisets: how often each row is in one and in the other."""
    names = wanted.schema.names
    both = pa.concat_tables([_counted(wanted, 1, 0), _counted(found, 0, 1)])
    counts = both.group_by(names, use_threads=True).aggregate([("wanted", "sum"), ("found", "sum")])
    should, does = (counts[f"{which}_sum"].to_numpy() for which in ("wanted", "found"))
    more = np.maximum(does - should, 0)
    return Audit(
        lost=int(np.maximum(should - does, 0).sum()),
        doubled=int(more[should > 0].sum()),
        strange=int(more[should == 0].sum()),
    )


def _counted(table: pa.Table, wanted: int, found: int) -> pa.Table:
    for name, value in (("wanted", wanted), ("found", found)):
        table = table.append_column(name, pa.array(np.full(table.num_rows, value, np.int64)))
    return table


class Progress:
    """How many events have been dealt with when so many rows are visible.

    Rows are not spread evenly over the events: a hot auction may be one that q2 asks for. But each has the time from
    which on it can be known, and so has each event.
    """

    def __init__(self, query: Query, reference: pa.Table, events: int, rate: int) -> None:
        self.events = events
        due = np.sort(pc.subtract(reference[query.due], BASE).to_numpy())
        self._events = np.minimum(due * rate // 1000, events)

    def points(self, visible: Sequence[tuple[float, int]]) -> list[tuple[float, int]]:
        """Points of visible rows, as points of events; the last row stands for all events."""
        return [(at, self._at(rows)) for at, rows in visible if rows > 0]

    def _at(self, rows: int) -> int:
        # ends of transactions are counted where there are many rows
        return self.events if rows >= len(self._events) else int(self._events[rows - 1])
