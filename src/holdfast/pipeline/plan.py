"""What a job would do, for `--dry-run`."""

from __future__ import annotations

from typing import Any

from holdfast.pipeline.options import guarantee
from holdfast.spark.private import plan_text
from holdfast.spark.stream import HoldfastWriter


def describe(writer: HoldfastWriter) -> dict[str, Any]:
    """Columns, sinks with their guarantees, and Spark's plan; plain data."""
    frame = writer.frame
    return {
        "pipeline": writer.pipeline,
        "checkpoint_location": writer.location,
        "columns": {field.name: field.dataType.simpleString() for field in frame.schema},
        "sinks": [
            {
                "name": sink.name,
                "kind": type(sink).__name__,
                "address": sink.address,
                "mode": getattr(sink, "mode", None),
                "guarantee": guarantee(type(sink)),
            }
            for sink in writer.sinks
        ],
        "plan": plan_text(frame),
    }
