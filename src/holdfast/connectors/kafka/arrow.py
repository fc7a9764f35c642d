"""Arrow batches as librdkafka messages: pointers into the Arrow buffers, no Python object a row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kafka.rdkafka import MESSAGE, PARTITION_UA
from holdfast.errors import ConfigError, RowError

COLUMNS = ("key", "value", "topic", "partition")
_BYTES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
#: somewhere to point to for values that are there but empty; a null pointer would mean null
_EMPTY = np.zeros(1, "u1")


def check_schema(schema: pa.Schema, topic: str | None) -> None:
    """The columns of Spark's own Kafka sink: value, and optionally key, topic, partition; no headers yet."""
    names = schema.names
    unknown = [name for name in names if name not in COLUMNS]
    if "value" not in names or unknown:
        raise ConfigError(
            f"a Kafka sink takes the columns {', '.join(COLUMNS)}, and value must be there; the DataFrame has "
            f"{', '.join(names)}. Make them with selectExpr, for example to_json(struct(*)) AS value"
        )
    for name in ("key", "value", "topic"):
        if name in names and not any(is_kind(schema.field(name).type) for is_kind in _BYTES):
            raise ConfigError(f"column {name!r} must be a string or binary, not {schema.field(name).type}")
    if "partition" in names and not pa.types.is_integer(schema.field("partition").type):
        raise ConfigError(f"column 'partition' must be an int, not {schema.field('partition').type}")
    if topic is None and "topic" not in names:
        raise ConfigError("give the sink topic='...', or the DataFrame a column named topic")


def by_topic(batch: pa.RecordBatch, default: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batch, split by its topic column; rows without a topic go to the sink's own."""
    if "topic" not in batch.schema.names:
        assert default is not None
        yield default, batch
        return
    topics = batch.column("topic").cast(pa.string())
    if default is not None:
        # As in Spark: a topic given to the sink overrides the column.
        yield default, batch
        return
    if topics.null_count:
        raise RowError("a row has no topic, and the sink has none either: fill the column, or give the sink topic=...")
    for topic in pc.unique(topics).to_pylist():
        yield topic, batch.filter(pc.equal(topics, topic))


def to_messages(batch: pa.RecordBatch, partitions: int) -> tuple[np.ndarray, bool, list[Any]]:
    """(messages, whether each has a partition, what must stay alive until they are handed over)."""
    messages = np.zeros(batch.num_rows, MESSAGE)
    messages["partition"] = PARTITION_UA
    alive = [_point(messages, batch.column("value"), "payload", "len")]
    if "key" in batch.schema.names:
        alive.append(_point(messages, batch.column("key"), "key", "key_len"))
    partitioned = "partition" in batch.schema.names
    if partitioned:
        column = batch.column("partition")
        numbers = pc.fill_null(column.cast(pa.int32()), PARTITION_UA).to_numpy(zero_copy_only=False)
        if len(numbers) and (numbers.max() >= partitions or numbers.min() < PARTITION_UA):
            raise RowError(
                f"a row names partition {numbers.max()}, and the topic has partitions 0 to {partitions - 1}: the "
                "checkpoint was not decided and nothing of it is visible"
            )
        messages["partition"] = numbers
    return messages, partitioned, alive


def _point(messages: np.ndarray, column: pa.Array, pointer: str, length: str) -> Any:
    """Let each message point at its bytes in the column's buffer; null is no pointer, empty is one of length 0."""
    column = column.cast(pa.large_binary())
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, "i8")[column.offset : column.offset + len(column) + 1]
    base = data.address if data is not None and data.size else _EMPTY.ctypes.data
    messages[pointer] = (base + offsets[:-1]).astype("u8")
    messages[length] = np.diff(offsets).astype("u8")
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        messages[pointer][nulls] = 0
        messages[length][nulls] = 0
    return column
