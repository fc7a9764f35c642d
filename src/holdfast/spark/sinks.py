"""The sinks of a query: checked together, and as they run."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from holdfast.checkpoint.bad_rows import Letters
from holdfast.core.naming import check_name
from holdfast.errors import ConfigError
from holdfast.sinks.dead_letters import DeadLetters, KeptLetters
from holdfast.sinks.fan import fanned
from holdfast.sinks.letters import KEPT
from holdfast.sinks.route import Route
from holdfast.sinks.selection import WHOLE, Selections
from holdfast.sinks.two_phase import TwoPhaseCommitSink


def check_sinks(
    sinks: TwoPhaseCommitSink | Route | Sequence[TwoPhaseCommitSink | Route], dead_letters: DeadLetters | None
) -> list[Route]:
    """The sinks as routes, each under a name of its own."""
    given = [sinks] if isinstance(sinks, TwoPhaseCommitSink | Route) else list(sinks)
    if not given:
        raise ConfigError("sinks must hold at least one sink")
    chosen = [one if isinstance(one, Route) else Route(one) for one in given]
    every = [*(one.sink for one in chosen), *([] if dead_letters is None else [dead_letters.sink])]
    for sink in every:
        check_name(f"the name of sink {type(sink).__name__}", sink.name)
        # With the object, so that it gets to tasks: a class of a script is made anew there, without what its base has.
        vars(sink).setdefault("name", sink.name)
    names = [sink.name for sink in every]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"two sinks have the name {twice[0]!r}, and ledgers and log files would mix them up: give one another name"
        )
    return chosen


def with_letters(
    sinks: Sequence[TwoPhaseCommitSink], dead_letters: DeadLetters | None
) -> tuple[list[TwoPhaseCommitSink], Letters | None]:
    """The sinks as they run, with those that take dead letters, and who these are."""
    made = [fanned(sink) for sink in sinks]
    if dead_letters is None:
        return made, None
    taking = [fanned(dead_letters.sink), KeptLetters()]
    names = tuple(sink.name for sink in taking)
    return [*made, *taking], Letters(names, dead_letters.max_ratio, dead_letters.max_rows)


def schemas_of(
    whole: pa.Schema, sinks: Sequence[TwoPhaseCommitSink], selections: Selections, dead_letters: DeadLetters | None
) -> dict[str, pa.Schema]:
    """Each sink's: that of its own rows."""
    schemas = {sink.name: selections.get(sink.name, WHOLE).schema(whole) for sink in sinks}
    if dead_letters is not None:
        schemas |= {dead_letters.sink.name: dead_letters.schema, KeptLetters.name: KEPT}
    return schemas
