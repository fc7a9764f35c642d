"""All cases of the fault matrix, and where each runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.crash import kafka_scenarios, scenarios
from tests.crash.harness import Work
from tests.crash.kafka_work import MODES, KafkaWork
from tests.crash.scenarios import Case
from tests.servers.kafka import KafkaBroker

SINKS = (*scenarios.SINKS, *kafka_scenarios.SINKS)
CASES = [*scenarios.CASES, *kafka_scenarios.CASES]
#: The point at which a broker is killed; it has one of its own.
BROKER_KILLED = 14


@contextmanager
def work_for(case: Case, folder: Path, broker: Callable[[bool], KafkaBroker]) -> Iterator[Work]:
    """A folder for the case; `broker` gives one to share, or one that may be killed."""
    if case.sink not in MODES:
        yield Work(folder, case.sink)
        return
    work = KafkaWork(folder, case.sink, broker(case.point == BROKER_KILLED))
    try:
        yield work
    finally:
        work.close()
