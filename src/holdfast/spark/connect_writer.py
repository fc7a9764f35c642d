"""`write_stream` on a frame of Spark Connect: the sinks go to the server, and Spark's data source interface runs them.

Imported only with such a frame at hand: its base class needs the client's packages.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.connect.streaming.query import StreamingQuery
from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

from holdfast.errors import ConfigError
from holdfast.sinks.dead_letters import DeadLetters
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark.connect import FORMAT, HANDED, TAKE_OVER
from holdfast.spark.private import fill_writer, pickled
from holdfast.spark.refusals import Refusals

logger = logging.getLogger("holdfast")
_FIXED = ("checkpointlocation", "name", HANDED, TAKE_OVER)
_CLASSIC = "through Spark Connect holdfast runs as a data source, and {}: use a classic SparkSession for it"


class ConnectWriter(Refusals, DataStreamWriter):
    """The writer of Spark Connect; what a data source cannot have is refused here, before anything starts."""

    def __init__(
        self,
        df: DataFrame,
        sinks: list[TwoPhaseCommitSink],
        *,
        name: str,
        location: str,
        settings: Mapping[str, Any],
        dead_letters: DeadLetters | None,
        history_retain: int,
    ) -> None:
        fill_writer(self, df.writeStream)
        told = {key: value for key, value in settings.items() if key != "take_over"}
        made = {"sinks": sinks, "settings": told, "dead_letters": dead_letters, "history_retain": history_retain}
        DataStreamWriter.format(self, FORMAT)
        super().queryName(name)
        super().option("name", name)
        super().option("checkpointLocation", location)
        super().option(TAKE_OVER, bool(settings["take_over"]))
        super().option(HANDED, base64.b64encode(pickled(made)).decode())

    def outputMode(self, outputMode: str) -> DataStreamWriter:
        """See DataStreamWriter; append only."""
        if outputMode.lower() != "append":
            raise ConfigError(_CLASSIC.format(f"Spark gives data sources no {outputMode} mode"))
        return super().outputMode(outputMode)

    def start(self, *args: Any, **kwargs: Any) -> StreamingQuery:
        """See DataStreamWriter; nothing of holdfast runs on the server before the first batch."""
        logger.warning(
            "through Spark Connect recovery begins with the query's first batch: what an earlier run left undelivered "
            "waits until rows come, and `holdfast status` shows it"
        )
        return super().start(*args, **kwargs)

    def option(self, key: str, value: Any) -> DataStreamWriter:
        """See DataStreamWriter; what `write_stream` was given is fixed."""
        if key.lower() in _FIXED:
            raise ConfigError(f"option {key} is set by write_stream: pass it there")
        return super().option(key, value)
