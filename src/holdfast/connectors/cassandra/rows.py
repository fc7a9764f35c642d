"""Rows of a batch as Cassandra will be given them, and the proof that it can take each one (rule 11)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.cassandra.encode import encode, lengths
from holdfast.connectors.cassandra.limits import LONGEST_KEY, Limits
from holdfast.connectors.cassandra.table import Column, Table
from holdfast.connectors.cassandra.types import CqlType, pairs, problem, shown
from holdfast.errors import RowError

#: bytes around a row and around a cell, rounded up: ids, times, flags, lengths
ROW, _CELL = 512, 48
Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Encoded columns, and an upper bound for the bytes of each row as a mutation."""

    names: list[str]
    columns: list[pa.Array]
    sizes: Sizes


def encode_rows(table: Table, batch: pa.RecordBatch) -> Rows:
    """What is sent for these rows."""
    names = batch.schema.names
    columns = [encode(batch.column(name), table.type_of(name)) for name in names]
    sizes = np.full(batch.num_rows, ROW, np.int64)
    for name, column in zip(names, columns, strict=True):
        sizes += lengths(column) + _around(batch.column(name), name, table.type_of(name))
    return Rows(names, columns, sizes)


def check_rows(sink: str, table: Table, limits: Limits, batch: pa.RecordBatch) -> None:
    """Encode every value, and find now what Cassandra would refuse after the decision; RowError with the column."""
    sizes = np.full(batch.num_rows, ROW, np.int64)
    partition = np.zeros(batch.num_rows, np.int64)
    largest = np.zeros(batch.num_rows, np.int64)
    blame = np.zeros(batch.num_rows, np.int64)
    columns = [table[name] for name in batch.schema.names]
    for number, column in enumerate(columns):
        values = batch.column(column.name)
        why = problem(values, column.type)
        if why:
            raise _refused(sink, table, column, why)
        try:
            found = lengths(encode(values, column.type))
        except (ValueError, OverflowError) as error:
            raise _refused(sink, table, column, f"a value cannot be written as that: {error}") from error
        why = _key_problem(table, column, values, found) or _limit_problem(column, values, found, limits)
        if why:
            raise _refused(sink, table, column, why)
        if column.name in table.partition:
            partition += found + 3
        sizes += found + _around(values, column.name, column.type)
        blame[found > largest] = number
        largest = np.maximum(largest, found)
    if len(table.partition) > 1 and partition.max(initial=0) > LONGEST_KEY:
        parts = ", ".join(table.partition)
        raise _refused(
            sink, table, table[table.partition[0]],
            f"the partition key ({parts}) has {partition.max()} bytes, and Cassandra takes {LONGEST_KEY}",
        )  # fmt: skip
    if sizes.max(initial=0) > limits.mutation:
        row = int(sizes.argmax())
        raise _refused(
            sink, table, columns[blame[row]],
            f"it has {largest[row]} bytes, and the whole row up to {sizes[row]}: Cassandra takes {limits.mutation} in "
            "one mutation (half of its commitlog_segment_size; see max_mutation)",
        )  # fmt: skip


def _refused(sink: str, table: Table, column: Column, why: str) -> RowError:
    return RowError(
        f"sink {sink!r}: a row does not go into table {table}, column {column.name!r} ({column.type}): {why}. Filter "
        "such rows out, or mend them in the query"
    )


def _around(values: pa.Array, name: str, cql: CqlType) -> Sizes | int:
    """What a column costs besides its bytes: a collection that is not frozen has a cell for each element."""
    plain = _CELL + 4 * len(name)
    return plain + _CELL * _items(values) if cql.name in ("set", "map") and not cql.frozen else plain


def _items(values: pa.Array) -> Sizes:
    counts = pc.list_value_length(values.cast(pa.list_(_pair(values.type))) if pa.types.is_map(values.type) else values)
    found: Sizes = counts.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return found


def _pair(kind: pa.DataType) -> pa.DataType:
    return pa.struct([("key", kind.key_type), ("value", kind.item_type)])


def _key_problem(table: Table, column: Column, values: pa.Array, found: Sizes) -> str | None:
    if not column.is_key:
        return None
    if values.null_count:
        return "it has no value, and the column is part of the primary key"
    if found.max(initial=0) > LONGEST_KEY:
        return f"it is longer than {LONGEST_KEY} bytes, and the column is part of the primary key"
    if table.partition == (column.name,) and found.min(initial=1) == 0:
        return "it is empty, and the column is the partition key"
    return None


def _limit_problem(column: Column, values: pa.Array, found: Sizes, limits: Limits) -> str | None:
    cql, most = column.type, int(found.max(initial=0))
    if cql.name in ("list", "set", "map", "vector"):
        parts = pairs(values) if cql.name == "map" else (values.flatten(),)
        longest = [_longest(part, part_type) for part, part_type in zip(parts, cql.arguments, strict=False)]
        inner, key = max(longest), longest[0]
        if cql.name in ("set", "map") and not cql.frozen and key > LONGEST_KEY:
            what = "an element" if cql.name == "set" else "a key"
            return f"{what} has {key} bytes, and in a {cql.name} that is not frozen Cassandra takes {LONGEST_KEY}"
        if limits.collection is not None and most > limits.collection:
            return f"it has {most} bytes, and this cluster takes {limits.collection} (collection_size_fail_threshold)"
        items = int(_items(values).max(initial=0))
        if limits.items is not None and items > limits.items:
            return (
                f"it has {items} elements, and this cluster takes {limits.items} (items_per_collection_fail_threshold)"
            )
    else:
        inner = most
    if limits.value is not None and inner > limits.value:
        return f"it has {inner} bytes, and this cluster takes {limits.value} (column_value_size_fail_threshold)"
    if column.indexed is None:
        return None
    if inner > column.indexed.longest:
        return f"it has {inner} bytes, and an index or view of this column takes {column.indexed.longest}"
    if column.indexed.not_empty and values.null_count < len(values) and found[~_null(values)].min() == 0:
        return "it is empty, and the column is the partition key of a view"
    if cql.name == "vector":
        return _vector_problem(values)
    return None


def _null(values: pa.Array) -> npt.NDArray[np.bool_]:
    found: npt.NDArray[np.bool_] = values.is_null().to_numpy(zero_copy_only=False)
    return found


def _longest(values: pa.Array, cql: CqlType) -> int:
    return int(lengths(encode(values, cql)).max(initial=0))


def _vector_problem(values: pa.Array) -> str | None:
    """An index of vectors takes only those that have a direction."""
    numbers = values.drop_null().flatten().to_numpy(zero_copy_only=False).astype(np.float64)
    if not len(numbers):
        return None
    rows = numbers.reshape(len(values) - values.null_count, -1)
    bad = ~np.isfinite(rows).all(axis=1) | (np.abs(rows).sum(axis=1) < 1e-6)
    return f"{shown(rows[bad][0].tolist())} has no direction, and the column has an index" if bad.any() else None
