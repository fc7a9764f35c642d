"""The fault matrix through `format("holdfast")`: what `make matrix` does to hf.write_stream, behind the door.

Here a fault does not hit the driver but the process beside it; work folders know (tests.crash.door_work). Left out are
7, as no consumer group follows; 10, as rows that an endpoint dropped are refused with a sentence; of 14 a server that
is away for long, which ends the query; and 17 to 19, which the door has no part in. `stores` are files, two tables of
PostgreSQL and one of Cassandra under one decision. `make test` has the points against the process alone
(tests/unit/test_door_process.py) and a few pipelines whole (tests/crash/test_doors.py).
"""

from __future__ import annotations

from tests.crash import kafka_scenarios, scenarios, stores_scenarios
from tests.crash.scenarios import Case, crash_then_restart

#: What the sinks of all such cases begin with; that of `make cluster` has nothing more.
DOOR = "door"
BEHIND = (
    "sqlite", "write-ahead", "kafka", "kafka-write-ahead", "files", "postgres", "postgres-log", "postgres-two-phase",
    "cassandra", "stores",
)  # fmt: skip
SINKS = tuple(f"{DOOR}-{sink}" for sink in BEHIND)
POINTS = (1, 2, 3, 4, 5, 6, 8, 9, 11, 12, 13)
#: ... and of 14, a server that is killed and restarted: before the decision and after it.
RESTARTED = ("prepared", "decided")


def _column(sink: str) -> list[Case]:
    known = (*scenarios.CASES, *kafka_scenarios.CASES, *stores_scenarios.CASES)
    found = [
        case
        for case in known
        if case.sink == sink and (case.point in POINTS or (case.point == 14 and case.way in RESTARTED))
    ]
    # Of the process alone, with a driver that lives: hf.write_stream has it in its recovery only.
    found.append(Case(5, kafka_scenarios.TITLES[5], sink, "no record", crash_then_restart("commit.record=kill@2")))
    return [Case(case.point, case.title, f"{DOOR}-{sink}", case.way, case.scenario) for case in found]


CASES = [case for sink in BEHIND for case in _column(sink)]
