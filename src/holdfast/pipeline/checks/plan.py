"""What in a query gives other rows when a batch is run again."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.pipeline.checks.registry import Problem, check, warning
from holdfast.pipeline.checks.situation import Situation
from holdfast.spark.private import PlanPart, plan_parts

#: Spark says that they are not deterministic, but of the same file they are the same.
_STABLE = ("InputFileName", "InputFileBlockStart", "InputFileBlockLength")
#: The clock as it is when a batch is planned anew. `current_timestamp()`, `current_date()` and `localtimestamp()` are
#: the batch's own time, which Spark keeps in its checkpoint: they are the same each time.
_CLOCK = ("Now",)
_FUNCTIONS = ("PythonUDF", "PythonUDAF", "ScalaUDF", "PythonUDTF")
_STATEFUL = (
    "Aggregate", "Deduplicate", "DeduplicateWithinWatermark", "FlatMapGroupsWithState", "TransformWithState",
    "TransformWithStateInPySpark", "FlatMapGroupsInPandasWithState", "GlobalLimit",
)  # fmt: skip
_REMEDY = "Take the value from the source, or compute it from columns, so that the same rows give the same result"


def needs_equal_replay(situation: Situation, parts: list[PlanPart]) -> str | None:
    """Who needs a batch that is run again to give the same rows; None when nobody does."""
    names = [sink.name for sink in situation.sinks if sink.repairable]
    if names and situation.delivery == "exactly-once":
        return f"sink {' and '.join(map(repr, names))} produces lost transactions again from the replay"
    stateful = next((part.name for part in parts if part.is_node and part.name in _STATEFUL), None)
    return None if stateful is None else f"the state of {stateful} must fit the rows that were delivered"


def _told(situation: Situation, parts: list[PlanPart], found: list[str], what: str) -> Iterator[Problem]:
    if not found:
        return
    who = needs_equal_replay(situation, parts)
    if who is not None:
        texts = ", ".join(dict.fromkeys(found))
        yield warning(f"{texts} {what}, and {who}")


@check("plan-random", remedy=_REMEDY)
def random_values(situation: Situation) -> Iterator[Problem]:
    """No value is made by chance or by the clock where a replay must be equal."""
    parts = plan_parts(situation.frame)
    values = [p for p in parts if not p.is_node and p.name not in (*_STABLE, *_FUNCTIONS)]
    found = [p.text for p in values if not p.deterministic or p.name in _CLOCK]
    yield from _told(situation, parts, found, "is another value each time a batch is run")


@check(
    "plan-functions",
    remedy="Let the function depend on its arguments only and leave out asNondeterministic(), or use mode: write-ahead",
)
def own_functions(situation: Situation) -> Iterator[Problem]:
    """No function is marked as giving another result each time where a replay must be equal."""
    parts = plan_parts(situation.frame)
    found = [p.text for p in parts if not p.is_node and p.name in _FUNCTIONS and not p.deterministic]
    yield from _told(situation, parts, found, "is marked as not deterministic")


@check("plan-limit", remedy="Leave LIMIT out, or order the rows first; filter by a column instead")
def limits(situation: Situation) -> Iterator[Problem]:
    """No LIMIT takes rows without an order."""
    parts = plan_parts(situation.frame)
    found = ["LIMIT without ORDER BY" for p in parts if p.is_node and p.name == "LocalLimit" and "Sort" not in p.around]
    yield from _told(situation, parts, found, "takes whichever rows come first")
