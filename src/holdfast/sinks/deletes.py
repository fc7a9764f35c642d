"""`delete_when`: rows that delete. One meaning, in every sink that replaces rows by key.

A row for which the condition is true deletes the row of its key, if `order_by` does not say that it is older. With
`order_by` the delete is remembered for `keep_deletes`, so that an older row that comes late does not bring the row
back. Spark computes the condition in the one pass (`holdfast.spark.routes`), and the sink gets it as one more column.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.core.options import Rule
from holdfast.core.units import parse_duration
from holdfast.errors import ConfigError

#: the column that says whether a row deletes; holdfast's own, it is in no table
DELETED = "__holdfast_deleted"
#: Cassandra's longest time to live
LONGEST = 20 * 365 * 86400


def _can_be_kept(value: Any) -> bool:
    try:
        seconds = parse_duration("keep_deletes", value)
    except ConfigError:
        return False
    return seconds is not None and 1 <= seconds <= LONGEST


KeepDeletes = Annotated[
    float | str | timedelta, Rule('a duration from "1s" to 20 years, such as "7d", or seconds', _can_be_kept)
]


def check_delete_when(delete_when: str | None, keep_deletes: KeepDeletes, *, upsert: bool = True) -> float:
    """The seconds for which deletes are remembered; ConfigError for an option that says nothing."""
    if delete_when is not None and not upsert:
        raise ConfigError("delete_when belongs to mode='upsert': other modes append every row")
    return parse_duration("keep_deletes", keep_deletes) or 0.0


def without(sink: str, schema: pa.Schema, delete_when: str | None) -> pa.Schema:
    """The columns of the rows themselves, without the one that says whether a row deletes."""
    place = schema.get_field_index(DELETED)
    if delete_when is None:
        if place >= 0:
            raise ConfigError(f"sink {sink!r}: {DELETED} is the name of a column of holdfast's own: rename yours")
        return schema
    if place < 0:
        raise ConfigError(
            f"sink {sink!r}: delete_when={delete_when!r} is computed by hf.write_stream, and these rows did not come "
            "through it"
        )
    return schema.remove(place)


def marks(batch: pa.RecordBatch) -> pa.Array:
    """For each row whether it deletes; a condition that is null is not true."""
    return pc.fill_null(batch.column(DELETED), fill_value=False)


def split(batch: pa.RecordBatch) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """(rows to be there, rows that delete), both without the mark."""
    deleted = marks(batch)
    rows = batch.drop_columns([DELETED])
    if not deleted.true_count:
        return rows, rows.slice(0, 0)
    return rows.filter(pc.invert(deleted)), rows.filter(deleted)


def kept_name(prefix: str, *parts: str) -> str:
    """The name of the table that remembers deletes: another key or order is another table."""
    text = "\0".join(parts).encode()
    return prefix + hashlib.blake2b(text, digest_size=8).hexdigest()
