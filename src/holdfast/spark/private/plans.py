"""Spark's plans: of a query, and of a micro-batch, whose rows come straight from it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import ConfigError
from holdfast.spark.private import interfaces

#: The name of a node in the text of a plan, behind what draws the tree.
_NODE = re.compile(r"[A-Za-z]\w*")
_STEPS = {"Project", "Filter", "MicroBatchScan", "WholeStageCodegen"}
#: Code of the user's, which may take its time.
_FUNCTION = re.compile(r"UDF|[iI]nvoke\(")


def plan_of(session: SparkSession, query_id: str, batch_id: int) -> Any | None:
    """The physical plan of a running query's micro-batch; None where the frame must do."""

    def use() -> Any | None:
        query = session.streams._jsqm.get(query_id)
        execution = None if query is None else query.streamingQuery().lastExecution()
        if execution is None or execution.currentBatchId() != batch_id:
            return None
        return execution.executedPlan()

    return interfaces.use("StreamExecution.lastExecution", use, lambda: None)


def few_steps(plan: Any) -> bool:
    """Whether a micro-batch is but read, filtered and projected by Spark's own code, in one stage."""

    def use() -> bool:
        lines = str(plan.toString()).splitlines()
        names = {found[0] for line in lines if (found := _NODE.search(line)) is not None}
        return names <= _STEPS and not any(_FUNCTION.search(line) for line in lines)

    return interfaces.use("MicroBatchScanExec.start", use, lambda: False)


def kafka_rows(plan: Any) -> int | None:
    """How many rows a micro-batch reads from Kafka, at most; None where it is not known, or some are from elsewhere."""

    def use() -> int | None:
        leaves = plan.collectLeaves()
        rows = 0
        for number in range(leaves.size()):
            leaf = leaves.apply(number)
            if leaf.stream().getClass().getSimpleName() != "KafkaMicroBatchStream":
                return None
            start, end = (json.loads(offset.json()) for offset in (leaf.start(), leaf.end()))
            for topic, partitions in end.items():
                if partitions.keys() != start.get(topic, {}).keys():
                    return None  # where a new partition begins is not said
                rows += sum(partitions.values()) - sum(start[topic].values())
        return rows

    return interfaces.use("MicroBatchScanExec.start", use, lambda: None)


def first_run(context: SparkContext, stage: int) -> bool:
    """Whether Spark has run this stage once; False where it does not know it any more."""
    tracker = context.statusTracker()

    def use() -> bool:
        # The public way asks Java for every field, one after the other, in every batch.
        info = tracker._jtracker.getStageInfo(stage)
        return info is not None and int(info.currentAttemptId()) == 0

    def ask() -> bool:
        info = tracker.getStageInfo(stage)
        return info is not None and info.currentAttemptId == 0

    return interfaces.use("StatusTracker._jtracker", use, ask)


def same_schema(frame: DataFrame, plan: Any) -> bool:
    """Whether a plan gives the very columns of the frame."""

    def use() -> bool:
        return bool(plan.schema().json() == frame._jdf.schema().json())

    return interfaces.use("SparkPlan.schema", use, lambda: False)


def plan_rows(frame: DataFrame, plan: Any) -> RDD[bytes] | None:
    """The rows of a plan as Arrow messages without their schema; None where the frame must do."""

    def use() -> RDD[bytes]:
        from pyspark.serializers import NoOpSerializer

        return RDD(frame._jdf.toArrowBatchRdd(plan).toJavaRDD(), frame.sparkSession.sparkContext, NoOpSerializer())

    return interfaces.use("Dataset.toArrowBatchRdd", use, lambda: None)


def streaming_sources(df: DataFrame) -> list[Mapping[str, str]]:
    """The options of every streaming source in the plan, in Spark's order; that of the lines in `offsets/N`."""

    def use() -> list[Mapping[str, str]]:
        leaves = df._jdf.queryExecution().analyzed().collectLeaves()
        found: list[Mapping[str, str]] = []
        for number in range(leaves.size()):
            leaf = leaves.apply(number)
            if leaf.isStreaming():
                v2 = leaf.getClass().getSimpleName() == "StreamingRelationV2"
                found.append(dict(leaf.extraOptions().asCaseSensitiveMap()) if v2 else {})
        return found

    return interfaces.use("LogicalPlan.collectLeaves", use, list)


def analyzed(df: DataFrame) -> Any:
    """Spark's own plan of a query, before it is optimized."""

    def otherwise() -> Any:
        raise ConfigError("this Spark does not show its plan, which hf.route needs: let the query filter and select")

    return interfaces.use("QueryExecution.analyzed", lambda: df._jdf.queryExecution().analyzed(), otherwise)


@dataclass(frozen=True)
class PlanPart:
    """A node of Spark's plan, or an expression in one."""

    name: str
    text: str
    #: of a node: what it reads from; of an expression: the name of its node
    around: tuple[str, ...]
    is_node: bool
    #: by itself, whatever it is made of
    deterministic: bool = True


def plan_parts(df: DataFrame) -> list[PlanPart]:
    """Every node and expression of the analyzed plan; none where this Spark does not show it."""

    def each(seq: Any) -> list[Any]:
        return [seq.apply(number) for number in range(seq.size())]

    def expression(one: Any, node: str, found: list[PlanPart]) -> None:
        inner = each(one.children())
        own = bool(one.deterministic()) or not all(bool(child.deterministic()) for child in inner)
        found.append(PlanPart(str(one.getClass().getSimpleName()), str(one.sql()), (node,), False, own))
        for child in inner:
            expression(child, node, found)

    def node(one: Any, found: list[PlanPart]) -> None:
        inner = each(one.children())
        name = str(one.getClass().getSimpleName())
        below = tuple(str(child.getClass().getSimpleName()) for child in inner)
        found.append(PlanPart(name, str(one.nodeName()), below, True))
        for part in each(one.expressions()):
            expression(part, name, found)
        for child in inner:
            node(child, found)

    def use() -> list[PlanPart]:
        found: list[PlanPart] = []
        node(df._jdf.queryExecution().analyzed(), found)
        return found

    return interfaces.use("LogicalPlan.expressions", use, list)


def plan_text(df: DataFrame) -> str:
    """Spark's plan of a query, for people; it need not run for that."""

    def use() -> str:
        return str(df._jdf.queryExecution().analyzed().toString())

    return interfaces.use("QueryExecution.analyzed", use, lambda: "this Spark does not show its plan")
