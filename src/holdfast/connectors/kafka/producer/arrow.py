"""Arrow batches as librdkafka messages: pointers into the Arrow buffers, no Python object a row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kafka.producer import headers
from holdfast.connectors.kafka.producer.library import MESSAGE, PARTITION_UA, of_long_key
from holdfast.connectors.kafka.producer.partitioner import (
    LONGEST_KEY,
    MURMUR2_RANDOM,
    Turns,
    murmur2,
    of_keys,
    order_by,
)
from holdfast.errors import ConfigError, RowError

COLUMNS = ("key", "value", "topic", "partition", "headers")
_BYTES = (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary, pa.types.is_large_binary)
_NAME = re.compile(rb"[a-zA-Z0-9._-]{1,249}")
NO_TOPIC = (
    "column 'topic': a row has no topic, and the sink has none either: fill the column, or give the sink topic=..."
)
#: somewhere to point to for values that are there but empty; a null pointer would mean null
_EMPTY = np.zeros(1, "u1")


def check_schema(schema: pa.Schema, topic: str | None) -> None:
    """The columns of Spark's own Kafka sink: value, and optionally key, topic, partition, headers."""
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
    if "headers" in names and not headers.check_type(schema.field("headers").type):
        raise ConfigError(
            f"column 'headers' must be array<struct<key:string,value:binary>>, not {schema.field('headers').type}"
        )
    if topic is None and "topic" not in names:
        raise ConfigError("give the sink topic='...', or the DataFrame a column named topic")


def by_topic(batch: pa.RecordBatch, default: str | None) -> Iterator[tuple[str, pa.RecordBatch]]:
    """The batch, split by its topic column; rows without a topic go to the sink's own."""
    if "topic" not in batch.schema.names:
        assert default is not None
        yield default, batch
        return
    if default is not None:
        # As in Spark: a topic given to the sink overrides the column.
        yield default, batch
        return
    topics = batch.column("topic").cast(pa.binary())
    if topics.null_count:
        raise RowError(NO_TOPIC)
    for name in pc.unique(topics).to_pylist():
        yield topic_name(name), batch.filter(pc.equal(topics, name))


def topic_name(name: bytes) -> str:
    """A row's topic, if it can be one."""
    if _NAME.fullmatch(name) is None or name in (b".", b".."):
        raise RowError(
            f"column 'topic': Kafka has no topic with such a name: {name[:100].decode(errors='backslashreplace')!r}; "
            "it takes up to 249 letters, digits, dots, underscores and dashes"
        )
    return name.decode()


def to_messages(
    batch: pa.RecordBatch, partitions: int, partitioner: str = MURMUR2_RANDOM, turns: Turns | None = None
) -> tuple[np.ndarray, bool, list[Any]]:
    """(messages, whether they have partitions, what must stay alive until they are handed over).

    With Kafka's default partitioner the partitions are computed here and the messages sorted by them, those of one
    partition in the order of the rows; with any other they are left to librdkafka, but for those the rows name.
    """
    value = _bytes_of(batch.column("value"))
    key = _bytes_of(batch.column("key")) if "key" in batch.schema.names else None
    partition = _named(batch, partitions)
    if partitioner == MURMUR2_RANDOM and (partition is None or bool((partition == PARTITION_UA).any())):
        computed = _computed(batch.num_rows, key, partitions, turns or Turns())
        partition = computed if partition is None else np.where(partition == PARTITION_UA, computed, partition)
    # Rows that librdkafka must place could meet a sorted row in its partition: then the order stays as it is.
    order = order_by(partition) if partition is not None and partition.min(initial=0) >= 0 else None

    def sorted_(numbers: npt.NDArray[Any]) -> npt.NDArray[Any]:
        # Column by column: whole messages are nine times as wide as what is moved here.
        return numbers if order is None else numbers.take(order)

    messages = np.zeros(batch.num_rows, MESSAGE)
    messages["partition"] = PARTITION_UA if partition is None else sorted_(partition)
    messages["private"] = sorted_(np.arange(batch.num_rows))
    messages["payload"], messages["len"] = sorted_(value.address), sorted_(value.length)
    if key is not None:
        messages["key"], messages["key_len"] = sorted_(key.address), sorted_(key.length)
    return messages, partition is not None, [value.column, *([] if key is None else [key.column])]


class _Bytes(NamedTuple):
    """Where the bytes of each value are, and how many; null is no address, empty is one of length 0."""

    address: npt.NDArray[np.uint64]
    length: npt.NDArray[np.int64]
    column: pa.Array


def _named(batch: pa.RecordBatch, partitions: int) -> npt.NDArray[np.int32] | None:
    """The partitions the rows name, -1 where they name none."""
    if "partition" not in batch.schema.names:
        return None
    column = batch.column("partition")
    extremes = pc.min_max(column)
    least, most = extremes["min"].as_py(), extremes["max"].as_py()
    if least is not None and (most >= partitions or least < PARTITION_UA):
        raise RowError(
            f"column 'partition': a row names partition {most if most >= partitions else least}, and the topic has "
            f"partitions 0 to {partitions - 1}: add partitions to it and start again, or name others in the query"
        )
    numbers: npt.NDArray[np.int32] = pc.fill_null(column.cast(pa.int32()), PARTITION_UA).to_numpy(zero_copy_only=False)
    return numbers


def _computed(rows: int, keys: _Bytes | None, partitions: int, turns: Turns) -> npt.NDArray[np.int32]:
    """Where Kafka's default partitioner puts each row."""
    if partitions == 1:
        return np.zeros(rows, np.int32)
    if keys is None:
        return np.full(rows, turns.next(rows, partitions), np.int32)
    lengths, column = keys.length, keys.column
    long = np.flatnonzero(lengths > LONGEST_KEY)
    if len(long):
        lengths = lengths.copy()
        lengths[long] = 0
    _, offsets, data = column.buffers()
    starts = np.frombuffer(offsets, "i8")[column.offset : column.offset + rows]
    content = np.frombuffer(data, "u1") if data is not None and data.size else _EMPTY
    partition = of_keys(murmur2(content, starts, lengths), partitions)
    if column.null_count:
        partition[keys.address == 0] = turns.next(column.null_count, partitions)
    for row in long:
        partition[row] = of_long_key(int(keys.address[row]), int(keys.length[row]), partitions)
    return partition


def _bytes_of(column: pa.Array) -> _Bytes:
    """The values of a column of text or bytes, in its own buffer."""
    column = column.cast(pa.large_binary())
    _, offsets_buffer, data = column.buffers()
    offsets = np.frombuffer(offsets_buffer, "i8")[column.offset : column.offset + len(column) + 1]
    base = data.address if data is not None and data.size else _EMPTY.ctypes.data
    address, length = (base + offsets[:-1]).astype("u8"), np.diff(offsets)
    if column.null_count:
        nulls = column.is_null().to_numpy(zero_copy_only=False)
        address[nulls] = 0
        length[nulls] = 0
    return _Bytes(address, length, column)
