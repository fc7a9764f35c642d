"""Kafka -> Kafka, for the driver of the crash tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.connectors.kafka.sink import write_ahead
from holdfast.connectors.kafka.sink.options import KafkaSink
from holdfast.connectors.kafka.sink.two_phase import TwoPhase
from holdfast.core.naming import Task
from tests.crash.late import sleep_once

TOGETHER = write_ahead.MAX_TRANSACTION_BYTES


class Troubled(KafkaSink):
    """A sink whose tasks meet what executors and brokers can do to them."""

    #: one task of all pauses before it begins, and outlives its executor
    sleepy = False
    #: subtasks from this one on have transactions with this timeout
    late_from, late_ms = 0, 0

    def begin(self, task: Task) -> Any:
        """See KafkaSink."""
        if self.sleepy:
            sleep_once()
        way = self._chosen
        if self.late_ms and task.subtask >= self.late_from and isinstance(way, TwoPhase):
            target = way._target
            config = {**target.config, "transaction.timeout.ms": self.late_ms}
            way = TwoPhase(dataclasses.replace(target, config=config))
        return way.begin(task)


def read(spark: SparkSession, spec: Mapping[str, Any]) -> DataFrame:
    """The source, in the layout the test wants."""
    source = hf.read_kafka(
        spark,
        bootstrap_servers=spec["servers"],
        topics=[spec["source"]],
        group_id=spec["group"],
        start=hf.StartFrom.earliest(),
        options={"maxOffsetsPerTrigger": str(spec["per_checkpoint"])},
    )
    rows = source.select("key", "value")
    if "shift" in spec:
        # The same three sets of rows whatever the shift, under other indexes.
        from pyspark.sql import functions as f

        number = f.pmod(f.col("value").cast("string").cast("int") + spec["shift"], f.lit(3))
        return rows.repartitionById(3, number.cast("int"))
    return rows.repartition(spec["partitions"]) if "partitions" in spec else rows


def sinks(spec: Mapping[str, Any]) -> list[hf.TwoPhaseCommitSink]:
    """One sink a topic."""
    made: list[hf.TwoPhaseCommitSink] = []
    # Beside two-phase each log file is published alone, so that some can be there without the others; by itself
    # write-ahead publishes these few rows together.
    write_ahead.MAX_TRANSACTION_BYTES = 1 if len(spec["out"]) > 1 else TOGETHER
    for mode, topic in spec["out"].items():
        sink = Troubled(spec["servers"], topic, mode=mode, config=spec.get("config", {}), name=mode)
        sink.sleepy = spec.get("sleepy", False)
        sink.late_from, sink.late_ms = spec.get("late_from", 0), spec.get("late_ms", 0)
        made.append(sink)
    return made
