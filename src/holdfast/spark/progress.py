"""What Spark says of a query's keyed state after each batch (S4)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.query import StreamingQuery

from holdfast.core.model import CheckpointId

#: what stores call the bytes that they keep on disk; the in-memory store says only what it uses
_ON_DISK = "rocksdbSstFileSize"


def states_of(query: StreamingQuery | None, after: CheckpointId) -> dict[CheckpointId, dict[str, Any]]:
    """Batch -> operators, rows, bytes and the seconds of the snapshot, for batches after this one; none without state.

    A slow reader misses those that Spark has forgotten (`spark.sql.streaming.numRecentProgressUpdates`, 100).
    """
    found: dict[CheckpointId, dict[str, Any]] = {}
    for progress in [] if query is None else query.recentProgress:
        number, operators = int(progress["batchId"]), progress["stateOperators"]
        if number > after and operators:
            found[number] = summed(operators)
    return found


def summed(operators: list[Mapping[str, Any]]) -> dict[str, Any]:
    """All operators of a query together."""
    return {
        "operators": len(operators),
        "rows": sum(int(o["numRowsTotal"]) for o in operators),
        "updated": sum(int(o["numRowsUpdated"]) for o in operators),
        "bytes": sum(int(o["customMetrics"].get(_ON_DISK) or o["memoryUsedBytes"]) for o in operators),
        # Of all tasks together, one after the other; they work side by side.
        "snapshot_seconds": round(sum(int(o["commitTimeMs"]) for o in operators) / 1000, 3),
    }
