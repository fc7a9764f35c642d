"""`write_stream`: the foreachBatch adapter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.history import engine_position, log_location
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import EnginePosition
from holdfast.checkpoint.storage import open_storage
from holdfast.core.naming import check_name
from holdfast.errors import ConfigError
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark.kafka import KafkaProgress
from holdfast.spark.live import HoldfastQuery, reserve
from holdfast.spark.partitions import Query, arrow_schema
from holdfast.spark.tasks import SparkBatch, SparkTasks

DELIVERIES = ("exactly-once", "at-least-once")
_CHECKPOINT = "checkpointlocation"


def write_stream(
    df: DataFrame,
    sinks: TwoPhaseCommitSink | Sequence[TwoPhaseCommitSink],
    *,
    name: str,
    checkpoint_location: str,
    delivery: str = "exactly-once",
    take_over: bool = False,
) -> DataStreamWriter:
    """Deliver a streaming DataFrame into sinks; one decision for all of them.

    Returns a DataStreamWriter: `outputMode`, `trigger`, `start` as always. `name` is the pipeline's identity at every
    endpoint and must stay the same over restarts. `take_over` lets this checkpoint location own a name that a ledger
    knows from another one; rows may then be delivered twice.
    """
    check_name("name", name)
    if not isinstance(df, DataFrame) or not df.isStreaming:
        raise ConfigError("df must be a streaming DataFrame (spark.readStream...); for a batch use DataFrame.write")
    if not hasattr(df, "_jdf"):
        raise ConfigError("Spark Connect is not supported: use a classic SparkSession")
    if delivery not in DELIVERIES:
        raise ConfigError(f"delivery must be one of {', '.join(DELIVERIES)}, not {delivery!r}")
    if not isinstance(checkpoint_location, str) or not checkpoint_location.strip():
        raise ConfigError(f"checkpoint_location must be a path or URL, not {checkpoint_location!r}")
    _refuse_speculation(df)
    return HoldfastWriter(df, _check_sinks(sinks), name, _qualify(df, checkpoint_location), delivery, take_over)


class HoldfastWriter(DataStreamWriter):
    """Spark's DataStreamWriter, which claims the checkpoint location and recovers before Spark starts the query."""

    def __init__(
        self,
        df: DataFrame,
        sinks: list[TwoPhaseCommitSink],
        name: str,
        location: str,
        delivery: str,
        take_over: bool,
    ) -> None:
        super().__init__(df)
        self._sinks, self._name, self._location = sinks, name, location
        self._delivery, self._take_over = delivery, take_over
        super().queryName(name)
        super().option("checkpointLocation", location)

    def start(self, *args: Any, **kwargs: Any) -> StreamingQuery:
        """Claim a generation, fence older drivers, finish what they decided, then start the query."""
        if args or set(kwargs) - {"outputMode", "queryName"}:
            raise ConfigError("start() takes outputMode and queryName only: where rows go is the sinks' business")
        _refuse_speculation(self._df)
        with reserve(self._location, self._sinks) as live:
            log = CheckpointLog(open_storage(log_location(self._location)), self._name)
            tasks = SparkTasks(self._df.sparkSession.sparkContext)
            coordinator = Coordinator(log, self._sinks, tasks, delivery=self._delivery, take_over=self._take_over)

            def position() -> EnginePosition:
                return EnginePosition(*engine_position(self._location))

            sources = KafkaProgress(self._df, open_storage(self._location))
            sources.check_start(position().planned)
            coordinator.start(position, arrow_schema(self._df))

            def advance(last: bool = False) -> None:
                sources.commit(coordinator.complete_through, self._location, last=last)

            running = Query(self._df.sparkSession)

            def run(frame: DataFrame, batch_id: int) -> None:
                advance()
                coordinator.run(batch_id, SparkBatch(frame, batch_id, running))

            try:
                super().foreachBatch(run)
                query = super().start(**kwargs)
            except BaseException:
                coordinator.close()
                raise
            assert isinstance(query, HoldfastQuery)
            query.live = live
            live.follow(query, coordinator, advance)
            return query

    def _sq(self, jsq: Any) -> StreamingQuery:
        return HoldfastQuery(jsq)

    def option(self, key: str, value: Any) -> DataStreamWriter:
        """See DataStreamWriter; the checkpoint location is fixed by `write_stream`."""
        if key.lower() == _CHECKPOINT:
            raise ConfigError("checkpointLocation is the checkpoint_location of write_stream: pass it there")
        return super().option(key, value)

    def options(self, **options: Any) -> DataStreamWriter:
        """See DataStreamWriter."""
        for key, value in options.items():
            self.option(key, value)
        return self

    def foreachBatch(self, func: Any) -> DataStreamWriter:
        """Not available: write_stream is itself built on it."""
        raise ConfigError("foreachBatch() does not go with write_stream: rows go to its sinks; call start()")

    def foreach(self, f: Any) -> DataStreamWriter:
        """Not available: rows go to the sinks."""
        raise ConfigError("foreach() does not go with write_stream: rows go to its sinks; call start()")

    def toTable(self, *args: Any, **kwargs: Any) -> StreamingQuery:
        """Not available: rows go to the sinks."""
        raise ConfigError("toTable() does not go with write_stream: rows go to its sinks; call start()")


def _check_sinks(sinks: TwoPhaseCommitSink | Sequence[TwoPhaseCommitSink]) -> list[TwoPhaseCommitSink]:
    chosen = [sinks] if isinstance(sinks, TwoPhaseCommitSink) else list(sinks)
    if not chosen:
        raise ConfigError("sinks must hold at least one sink")
    for sink in chosen:
        if not isinstance(sink, TwoPhaseCommitSink):
            raise ConfigError(
                f"sinks must be TwoPhaseCommitSink, WriteAheadSink or IdempotentSink objects, not {type(sink).__name__}"
            )
        check_name(f"the name of sink {type(sink).__name__}", sink.name)
    names = [sink.name for sink in chosen]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(
            f"two sinks have the name {twice[0]!r}, and ledgers and log files would mix them up: give one another name"
        )
    return chosen


def _refuse_speculation(df: DataFrame) -> None:
    if df.sparkSession.sparkContext.getConf().get("spark.speculation", "false").lower() == "true":
        raise ConfigError(
            "spark.speculation=true runs the code of a task twice, and the losing copy can write after the checkpoint "
            "is decided: set spark.speculation=false for this application"
        )


def _qualify(df: DataFrame, location: str) -> str:
    """The location with its scheme, as Spark itself resolves it: `/data` is HDFS where that is the default."""
    context = df.sparkSession.sparkContext
    jvm: Any = context._jvm
    configuration = context._jsc.hadoopConfiguration()
    path = jvm.org.apache.hadoop.fs.Path(location)
    if path.toUri().getScheme() is not None:
        return location.rstrip("/")
    return str(path.getFileSystem(configuration).makeQualified(path).toString()).rstrip("/")
