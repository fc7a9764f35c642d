"""Refusing rows that a topic could never take, before they are sealed: afterwards it is too late (rule 11)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.connectors.kafka.client import topics
from holdfast.connectors.kafka.client.topics import Topic
from holdfast.connectors.kafka.producer import headers
from holdfast.connectors.kafka.producer.arrow import by_topic
from holdfast.connectors.kafka.sink.target import Target
from holdfast.errors import RowError

#: librdkafka's default of message.max.bytes
_CLIENT_LIMIT = 1_000_000
#: Bytes around a row: at most as a message, as a batch of one, and of each header.
_MESSAGE, _BATCH, _HEADER = 36, 61, 20
#: What this worker process knows, by brokers and name. Topics only grow; a row that does not fit makes it look again.
_KNOWN: dict[tuple[str, str], Topic] = {}


def check_rows(batch: pa.RecordBatch, target: Target) -> None:
    """RowError, which names sink, column and reason, unless a topic as it is now takes every row."""
    names = batch.schema.names
    where = f"{target.owner}: "
    if "partition" in names and (pc.min(batch.column("partition")).as_py() or 0) < 0:
        raise RowError(
            f"{where}column 'partition': a row names a negative partition: leave it null to let Kafka choose"
        )
    if "headers" in names:
        headers.check(batch.column("headers"), where)
    for name, rows in by_topic(batch, target.topic):
        known = _KNOWN.get((target.servers, name)) or target.known.get(name)
        if known is None or _problem(rows, known, target):
            # It may have been made, widened or told otherwise since.
            known = _look_up(name, target)
            problem = _problem(rows, known, target)
            if problem:
                raise RowError(f"{where}topic {name!r}: {problem}")


def _look_up(name: str, target: Target) -> Topic:
    found = topics.look_up(target.settings, [name], owner=target.owner).get(name)
    if found is None:
        raise RowError(
            f"{target.owner}: topic {name!r} is not in Kafka at {target.servers}, or may not be seen: create it, or "
            "grant DESCRIBE and WRITE on it"
        )
    _KNOWN[target.servers, name] = found
    return found


def _problem(rows: pa.RecordBatch, topic: Topic, target: Target) -> str | None:
    """What is wrong with these rows for this topic."""
    if "partition" in rows.schema.names:
        most = pc.max(rows.column("partition")).as_py()
        if most is not None and most >= topic.partitions:
            return (
                f"column 'partition': a row names partition {most}, and there are 0 to {topic.partitions - 1}: add "
                "partitions, or name others in the query"
            )
    if topic.compacted and ("key" not in rows.schema.names or rows.column("key").null_count):
        return "column 'key': a row has none, and the topic is compacted: give each row a key"
    client = int(target.config.get("message.max.bytes", _CLIENT_LIMIT)) - _MESSAGE
    limit = client if topic.limit is None else min(client, topic.limit - _MESSAGE - _BATCH)
    # A row is no larger than its batch: most need no closer look.
    if rows.nbytes + _HEADER * _entries(rows) > limit:
        longest = int(_sizes(rows).max(initial=0))
        if longest > limit:
            return (
                f"column 'value': a row of {longest} bytes, with its key and headers, is too large: {limit} bytes fit. "
                "Raise message.max.bytes in config and max.message.bytes of the topic, or make the rows smaller"
            )
    return None


def _entries(rows: pa.RecordBatch) -> int:
    return len(pc.list_flatten(rows.column("headers"))) if "headers" in rows.schema.names else 0


def _sizes(rows: pa.RecordBatch) -> npt.NDArray[np.int64]:
    """Bytes of each row."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("key", "value"):
        if name in rows.schema.names:
            sizes += _lengths(rows.column(name))
    if _entries(rows):
        column = rows.column("headers")
        entries = pc.list_flatten(column)
        each = _HEADER + _lengths(pc.struct_field(entries, "key")) + _lengths(pc.struct_field(entries, "value"))
        row = pc.list_parent_indices(column).to_numpy(zero_copy_only=False)
        sizes += np.bincount(row, weights=each, minlength=len(sizes)).astype(np.int64)
    return sizes


def _lengths(column: pa.Array) -> npt.NDArray[np.int64]:
    lengths = pc.fill_null(pc.binary_length(column), 0)
    found: npt.NDArray[np.int64] = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
    return found
