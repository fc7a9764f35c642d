"""Sinks through Spark's data source interface: for frames of Spark Connect there is no other way."""

from __future__ import annotations

import re
from collections.abc import Sequence

from holdfast.errors import ConfigError
from holdfast.sinks.dead_letters import DeadLetters
from holdfast.sinks.route import Route
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark.sinks import check_sinks

FORMAT = "holdfast"
#: What errors call the place.
PLACE = 'format("holdfast")'
#: The option with sinks that a client has made. Spark hides values of options with such names in plans.
HANDED = "holdfast.secret.sinks"
TAKE_OVER = "takeover"
_INSTEAD = "use hf.write_stream for it"
#: The first Spark whose streams can be written by Python in Arrow batches (DataSourceStreamArrowWriter).
_OLDEST = (4, 1)


def check_server(version: str) -> None:
    """Refuse a server that cannot run `format("holdfast")`; it would say so only when the query fails."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is not None and (int(numbers[1]), int(numbers[2])) < _OLDEST:
        raise ConfigError(
            f"over Spark Connect, hf.write_stream needs a server with Spark 4.1 or newer, and this one has {version}: "
            f"there it runs as {PLACE}, and older ones hand no Arrow batches of a stream to Python. Use a newer "
            "server, or a classic SparkSession"
        )


def plain_sinks(
    sinks: TwoPhaseCommitSink | Route | Sequence[TwoPhaseCommitSink | Route], dead_letters: DeadLetters | None
) -> list[TwoPhaseCommitSink]:
    """Only sinks that take the rows as they are: what Spark would have to compute for a sink cannot be added here."""
    found = []
    for one in check_sinks(sinks, dead_letters):
        if one != Route(one.sink):
            raise ConfigError(
                f"{PLACE}: sink {one.sink.name!r} has where, select or reject, and a data source cannot add columns to "
                f"the query: filter and select in the query itself, or {_INSTEAD}"
            )
        asks = "delete_when" if one.sink.delete_when is not None else "the columns it is to take"
        if one.sink.delete_when is not None or one.sink.own_columns is not None:
            raise ConfigError(
                f"{PLACE}: sink {one.sink.name!r} says {asks} in its options, which Spark has to compute, and a data "
                f"source cannot add columns to the query: name the columns in the query as the sink wants them, or "
                f"{_INSTEAD}"
            )
        found.append(one.sink)
    return found
