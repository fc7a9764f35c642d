"""The fault matrix with the checkpoint in a bucket (R4): points 1 to 6, 8 and 9, on two servers, on a bad day.

The same cases are for Azure's and Google's stores: `make clouds`.
"""

from __future__ import annotations

from tests.crash import scenarios
from tests.crash.harness import Work
from tests.crash.processes import end
from tests.crash.scenarios import Case

STORES = ("moto", "versity")
POINTS = (1, 2, 3, 4, 5, 6, 8, 9)
CLOUD_STORES = ("azurite", "fake-gcs")


def sinks_of(stores: tuple[str, ...]) -> tuple[str, ...]:
    """The sink of a case is `<sink>-<server>`."""
    return tuple(f"{sink}-{store}" for store in stores for sink in scenarios.SINKS)


SINKS, CLOUD_SINKS = sinks_of(STORES), sinks_of(CLOUD_STORES)


def two_drivers(work: Work) -> None:
    """Two drivers are started at the same moment; whoever loses says so, and every row is there once."""
    drivers = [work.start() for _ in range(2)]
    runs = [work.runs - 1, work.runs]
    try:
        codes = [driver.wait(300) for driver in drivers]
    finally:
        for driver in drivers:
            end(driver)
    assert set(codes) <= {0, 1}, f"{codes}\n{work.log()}"
    assert work.generations() == 2, "both were at it"
    for run, code in zip(runs, codes, strict=True):
        # Spark itself may notice first that it is not alone.
        words = ("FileAlreadyExists", "Cannot overwrite an existing file")
        known = ("FencedError", "Another driver is at this checkpoint location", *words)
        assert code == 0 or any(text in work.printed(run) for text in known), work.log(run)
    work.run_clean()
    work.assert_clean()


def _cases(stores: tuple[str, ...]) -> list[Case]:
    cases = [
        Case(case.point, case.title, f"{case.sink}-{store}", case.way, case.scenario)
        for store in stores
        for case in scenarios.CASES
        if case.point in POINTS
    ]
    title = "driver stopped, second driver started, first continued"
    return cases + [Case(9, title, sink, "race", two_drivers) for sink in sinks_of(stores)]


#: In `make test`: a kill after the decision, with rows in the bucket.
_ALWAYS = {("write-ahead-moto", 3, "kill")}
CASES = [Case(c.point, c.title, c.sink, c.way, c.scenario, (c.sink, c.point, c.way) in _ALWAYS) for c in _cases(STORES)]
CLOUDS = _cases(CLOUD_STORES)
