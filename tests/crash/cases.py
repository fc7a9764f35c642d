"""All cases of the fault matrix, and where each runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tests.crash import endpoint_scenarios, kafka_scenarios, routes_scenarios, scenarios, stores_scenarios
from tests.crash.harness import Work
from tests.crash.kafka_work import MODES, KafkaWork
from tests.crash.scenarios import Case
from tests.crash.stores_work import STORES, StoresWork

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
#: The points at which a server is killed or its disk exchanged; they have one of their own.
SERVER_KILLED = (14, 17)


@contextmanager
def work_for(case: Case, folder: Path, server: Callable[[str, bool], Any]) -> Iterator[Work]:
    """A folder for the case; `server` gives the one of a name ("kafka") to share, or one that may be killed."""
    mortal = case.point in SERVER_KILLED
    if case.sink in MODES:
        broker = server("kafka_cluster", False) if case.sink == "kafka-three" else server("kafka", mortal)
        with closing(KafkaWork(folder, case.sink, broker)) as kafka_work:
            yield kafka_work
    elif case.sink in STORES:
        with closing(StoresWork(folder, case.sink, lambda name: server(name, mortal))) as stores_work:
            yield stores_work
    elif case.sink in routes_scenarios.SINKS:
        yield routes_scenarios.RoutesWork(folder, case.sink)
    else:
        yield Work(folder, case.sink)
