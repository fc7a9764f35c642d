"""`hf.route`: the rows and columns of one sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from holdfast.core.options import Rule, checked, fits, text
from holdfast.errors import ConfigError
from holdfast.sinks.two_phase import TwoPhaseCommitSink

#: what is wrong is not quoted: a sink's address may hold a password
_SINK = Rule("a sink", lambda value: isinstance(value, TwoPhaseCommitSink), secret=True)
_Predicate = Annotated[str, text("a predicate in Spark SQL such as 'amount > 10'")]
_SELECT = Rule(
    "expressions in Spark SQL such as ['id', 'amount * 2 AS twice']",
    lambda value: (
        (isinstance(value, str) or fits(Sequence[str], value))
        and bool(value)
        and all(one.strip() for one in ([value] if isinstance(value, str) else value))
    ),
)


@dataclass(frozen=True)
class Route:
    """A sink with its own rows and columns; made by `route`."""

    sink: TwoPhaseCommitSink
    where: str | None = None
    select: tuple[str, ...] | None = None
    reject: str | None = None


@checked
def route(
    sink: Annotated[TwoPhaseCommitSink, _SINK],
    *,
    where: _Predicate | None = None,
    select: Annotated[str | Sequence[str], _SELECT] | None = None,
    reject: _Predicate | None = None,
) -> Route:
    """Give a sink its own rows and columns; goes wherever `write_stream` takes a sink.

    `where` is a predicate in Spark SQL: the sink gets the rows for which it is true. `select` are expressions over the
    stream's columns, as in `DataFrame.selectExpr`. `reject` is a predicate that marks rows as bad: they go to the
    pipeline's dead letters, and without those the query stops at them. All of it is computed by Spark in the one pass
    over the stream, and every sink is still part of the one decision.
    """
    chosen = None if select is None else (select,) if isinstance(select, str) else tuple(select)
    if chosen is not None and sink.own_columns is not None:
        raise ConfigError(
            f"route: sink {sink.name!r} says by its own options which columns it gets: leave those out, or select"
        )
    return Route(sink, where, chosen, reject)
