"""All cases of the fault matrix, and where each runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.crash import (
    cluster_scenarios,
    door_scenarios,
    endpoint_scenarios,
    kafka_scenarios,
    routes_scenarios,
    s3_scenarios,
    scenarios,
    stores_scenarios,
)
from tests.crash.bucket_work import BucketWork
from tests.crash.door_work import door_work
from tests.crash.harness import Work
from tests.crash.kafka_work import MODES, KafkaWork
from tests.crash.scenarios import Case
from tests.crash.stores_work import STORES, StoresWork
from tests.crash.three_work import Three

SINKS = (
    *scenarios.SINKS,
    *kafka_scenarios.SINKS,
    *stores_scenarios.SINKS,
    *endpoint_scenarios.SINKS,
    *routes_scenarios.SINKS,
)
CASES = [
    *scenarios.CASES,
    *kafka_scenarios.CASES,
    *stores_scenarios.CASES,
    *endpoint_scenarios.CASES,
    *routes_scenarios.CASES,
]
CLUSTER, S3, CLOUDS = cluster_scenarios.CASES, s3_scenarios.CASES, s3_scenarios.CLOUDS
#: command -> its cases, and their sinks: `make matrix`, `make cluster` (on a Spark cluster), `make s3` (in a bucket),
#: `make clouds` (in Azure's and Google's stores), `make doors` (through format("holdfast"))
SUITES: dict[str, tuple[list[Case], tuple[str, ...]]] = {
    "matrix": (CASES, SINKS),
    "cluster": (CLUSTER, cluster_scenarios.SINKS),
    "s3": (S3, s3_scenarios.SINKS),
    "clouds": (CLOUDS, s3_scenarios.CLOUD_SINKS),
    "doors": (door_scenarios.CASES, door_scenarios.SINKS),
}
#: The points at which a server is killed or its disk exchanged; they have one of their own.
SERVER_KILLED = (14, 17)


@contextmanager
def work_for(case: Case, folder: Path, server: Callable[[str, bool], Any]) -> Iterator[Work]:
    """A folder for the case; `server` gives the one of a name ("kafka") to share, or one that may be killed."""
    mortal = case.point in SERVER_KILLED
    with _work(case, folder, lambda name: server(name, mortal)) as work:
        if case.point == cluster_scenarios.POINT:
            cluster = server("spark_cluster", False)
            cluster.mend()
            work.spark_cluster = cluster
        yield work


@contextmanager
def _work(case: Case, folder: Path, server: Callable[[str], Any]) -> Iterator[Work]:
    if case.sink.startswith(door_scenarios.DOOR):
        behind = case.sink.removeprefix(door_scenarios.DOOR).removeprefix("-")
        with door_work(folder, behind or "sqlite", server) as behind_the_door:
            yield behind_the_door
    elif case.sink in MODES:
        broker = server("kafka_cluster" if case.sink == "kafka-three" else "kafka")
        with closing(KafkaWork(folder, case.sink, broker)) as kafka_work:
            yield kafka_work
    elif case.sink in (*s3_scenarios.SINKS, *s3_scenarios.CLOUD_SINKS):
        sink = next(sink for sink in scenarios.SINKS if case.sink.startswith(f"{sink}-"))
        yield BucketWork(folder, sink, server(case.sink.removeprefix(f"{sink}-")))
    elif case.sink in STORES:
        kind = Three if case.sink == "three" else StoresWork
        with closing(kind(folder, case.sink, server)) as stores_work:
            yield stores_work
    elif case.sink in routes_scenarios.SINKS:
        yield routes_scenarios.RoutesWork(folder, case.sink)
    else:
        yield Work(folder, case.sink)
