"""The fault matrix through `format("holdfast")`: what `make matrix` does to hf.write_stream, behind the door.

Here a fault does not hit the driver but the process beside it; work folders know (tests.crash.door_work). Left out are
7, as no consumer group follows; 10, as rows that an endpoint dropped are refused with a sentence; and what is done to
servers (14, 17 to 19), which the door has no part in. `make test` has the points against the process alone
(tests/unit/test_door_process.py) and a few pipelines whole (tests/crash/test_doors.py).
"""

from __future__ import annotations

from tests.crash import kafka_scenarios, scenarios, stores_scenarios
from tests.crash.scenarios import Case, crash_then_restart

#: What the sinks of all such cases begin with; that of `make cluster` has nothing more.
DOOR = "door"
BEHIND = (
    "sqlite", "write-ahead", "kafka", "kafka-write-ahead", "files", "postgres", "postgres-log", "postgres-two-phase",
    "cassandra",
)  # fmt: skip
SINKS = tuple(f"{DOOR}-{sink}" for sink in BEHIND)
POINTS = (1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13)


def _column(sink: str) -> list[Case]:
    known = (*scenarios.CASES, *kafka_scenarios.CASES, *stores_scenarios.CASES)
    found = [case for case in known if case.sink == sink and case.point in POINTS]
    # Of the process alone, with a driver that lives: hf.write_stream has it in its recovery only.
    title = next(case.title for case in found if case.point == 5)
    found.append(Case(5, title, sink, "no record", crash_then_restart("commit.record=kill@2")))
    return [Case(case.point, case.title, f"{DOOR}-{sink}", case.way, case.scenario) for case in found]


CASES = [case for sink in BEHIND for case in _column(sink)]
