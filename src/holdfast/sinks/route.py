"""`hf.route`: the rows and columns of one sink."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import ConfigError
from holdfast.sinks.two_phase import TwoPhaseCommitSink


@dataclass(frozen=True)
class Route:
    """A sink with its own rows and columns; made by `route`."""

    sink: TwoPhaseCommitSink
    where: str | None = None
    select: tuple[str, ...] | None = None
    reject: str | None = None


def route(
    sink: TwoPhaseCommitSink,
    *,
    where: str | None = None,
    select: str | Sequence[str] | None = None,
    reject: str | None = None,
) -> Route:
    """Give a sink its own rows and columns; goes wherever `write_stream` takes a sink.

    `where` is a predicate in Spark SQL: the sink gets the rows for which it is true. `select` are expressions over the
    stream's columns, as in `DataFrame.selectExpr`. `reject` is a predicate that marks rows as bad: they go to the
    pipeline's dead letters, and without those the query stops at them. All of it is computed by Spark in the one pass
    over the stream, and every sink is still part of the one decision.
    """
    if not isinstance(sink, TwoPhaseCommitSink):
        raise ConfigError(f"route: sink must be a sink, not {type(sink).__name__}")
    for option, value in (("where", where), ("reject", reject)):
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise ConfigError(f"route: {option} must be a predicate in Spark SQL such as 'amount > 10', not {value!r}")
    chosen = None if select is None else (select,) if isinstance(select, str) else tuple(select)
    if chosen is not None and (not chosen or any(not isinstance(e, str) or not e.strip() for e in chosen)):
        raise ConfigError(
            f"route: select must be expressions in Spark SQL such as ['id', 'amount * 2 AS twice'], not {select!r}"
        )
    if chosen is not None and sink.own_columns is not None:
        raise ConfigError(
            f"route: sink {sink.name!r} says by its own options which columns it gets: leave those out, or select"
        )
    return Route(sink, where, chosen, reject)
