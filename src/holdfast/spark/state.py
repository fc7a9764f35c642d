"""Looking into the keyed state of a stopped query, with Spark's own state reader (S1)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from holdfast.checkpoint.history import engine_position
from holdfast.checkpoint.storage import open_storage
from holdfast.errors import ConfigError, EngineError, first_line

#: the kind of state whose variables have names, and that has timers
_WITH_VARIABLES = "transformWithState"
_DEFAULT_STORE = "default"
TIMERS = "timers"
#: Spark's name of the clock that timers follow -> ours
_CLOCKS = {"EventTime": "event", "ProcessingTime": "processing"}


@dataclass(frozen=True)
class Part:
    """One named thing that an operator keeps: a store, a state variable, or its timers."""

    name: str
    #: value, list, map, timers, or store where it has no name of its own
    kind: str
    rows: int
    #: rows by partition; those without any are left out
    partitions: Mapping[int, int] = field(default_factory=dict)
    #: some of its rows: key, value, and what else there is
    sample: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Operator:
    """One stateful operator of the query."""

    operator_id: int
    name: str
    partitions: int
    #: of its files; snapshots and changes of several checkpoints together
    bytes: int
    parts: tuple[Part, ...] = ()


def read_state(spark: SparkSession, location: str, *, sample: int = 5) -> list[Operator]:
    """The stateful operators of a stopped query at its last committed batch; none when it has no state."""
    storage = open_storage(location)
    if engine_position(location)[1] is None:
        raise ConfigError(f"{location} has no committed checkpoint, and so no state to look at")
    files = storage.walk("state")
    if not files:
        return []
    found: dict[int, Operator] = {}
    try:
        described = [row.asDict() for row in spark.read.format("state-metadata").load(location).collect()]
        for row in sorted(described, key=lambda r: (r["operatorId"], r["stateStoreName"])):
            number = int(row["operatorId"])
            size = sum(storage.size(name) for name in files if name.startswith(f"state/{number}/"))
            parts = tuple(_parts(spark, location, row, sample))
            known = found.get(number, Operator(number, str(row["operatorName"]), int(row["numPartitions"]), size))
            found[number] = Operator(number, known.name, known.partitions, known.bytes, (*known.parts, *parts))
    except PySparkException as error:
        raise EngineError(f"Spark could not read the state at {location}: {first_line(error)}") from error
    return list(found.values())


def _parts(spark: SparkSession, location: str, row: Mapping[str, Any], sample: int) -> Iterator[Part]:
    reader = spark.read.format("statestore").option("operatorId", row["operatorId"])
    if not str(row["operatorName"]).startswith(_WITH_VARIABLES):
        store = str(row["stateStoreName"])
        yield _part(store, "store", reader.option("storeName", store).load(location), sample)
        return
    properties = json.loads(row.get("operatorProperties") or "{}")
    for variable in properties.get("stateVariables", ()):
        name = str(variable["stateName"])
        if name.startswith("$"):
            continue  # Spark's own: timers, expiry
        kind = str(variable["stateVariableType"]).removesuffix("State").lower()
        yield _part(name, kind, reader.option("stateVarName", name).load(location), sample)
    clock = _CLOCKS.get(str(properties.get("timeMode")))
    if clock is not None:
        timers = spark.read.format("statestore").option("operatorId", row["operatorId"])
        waiting = timers.option("readRegisteredTimers", "true").load(location)
        yield _part(f"{TIMERS} ({clock} time)", TIMERS, waiting, sample)


def _part(name: str, kind: str, frame: DataFrame, sample: int) -> Part:
    counts = {int(r[0]): int(r[1]) for r in frame.groupBy("partition_id").count().collect()}
    some = tuple(row.asDict(recursive=True) for row in frame.limit(sample).collect()) if sample else ()
    return Part(name, kind, sum(counts.values()), dict(sorted(counts.items())), some)
