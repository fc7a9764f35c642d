"""`write_stream`: the foreachBatch adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.history import engine_position, log_location
from holdfast.checkpoint.log import CheckpointLog
from holdfast.checkpoint.ports import EnginePosition
from holdfast.checkpoint.pulse import Pulse
from holdfast.checkpoint.storage import open_storage
from holdfast.core.naming import check_name
from holdfast.core.retry import Retry
from holdfast.core.units import parse_duration
from holdfast.errors import ConfigError, HoldfastError
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark.failures import StoppedError, interrupted
from holdfast.spark.kafka import KafkaProgress
from holdfast.spark.live import LAST_CALL, reserve
from holdfast.spark.partitions import Query, arrow_schema
from holdfast.spark.query import HoldfastQuery
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
    retry: Retry | None = None,
    drain_timeout: str | float = 60.0,
) -> DataStreamWriter:
    """Deliver a streaming DataFrame into sinks; one decision for all of them.

    Returns a DataStreamWriter: `outputMode`, `trigger`, `start` as always. `name` is the pipeline's identity at every
    endpoint and must stay the same over restarts. `take_over` lets this checkpoint location own a name that a ledger
    knows from another one; rows may then be delivered twice. `retry` says how long a start, a batch and a commit wait
    for an endpoint that is away. A bounded run (`availableNow`, `once`) or a stop gives sinks that lag `drain_timeout`
    to catch up; what is left then is an UndeliveredError, and the next start delivers it.
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
    if retry is not None and not isinstance(retry, Retry):
        raise ConfigError(f'retry must be hf.Retry(for_="5m", ...), not {retry!r}')
    drain = parse_duration("drain_timeout", drain_timeout)
    if drain is None:
        raise ConfigError('drain_timeout must be a duration such as "60s", "5m" or seconds, not None')
    _refuse_speculation(df)
    settings = {"delivery": delivery, "take_over": take_over, "retry": retry, "drain_timeout": drain}
    return HoldfastWriter(df, _check_sinks(sinks), name, _qualify(df, checkpoint_location), settings)


class HoldfastWriter(DataStreamWriter):
    """Spark's DataStreamWriter, which claims the checkpoint location and recovers before Spark starts the query."""

    def __init__(
        self,
        df: DataFrame,
        sinks: list[TwoPhaseCommitSink],
        name: str,
        location: str,
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__(df)
        self._sinks, self._name, self._location = sinks, name, location
        self._settings, self._bounded = settings, False
        super().queryName(name)
        super().option("checkpointLocation", location)

    def start(self, *args: Any, **kwargs: Any) -> StreamingQuery:
        """Claim a generation, fence older drivers, finish what they decided, then start the query."""
        if args or set(kwargs) - {"outputMode", "queryName"}:
            raise ConfigError("start() takes outputMode and queryName only: where rows go is the sinks' business")
        _refuse_speculation(self._df)
        with reserve(self._location, self._sinks) as live:
            log = CheckpointLog(open_storage(log_location(self._location)), self._name)
            context = self._df.sparkSession.sparkContext
            coordinator = Coordinator(log, self._sinks, SparkTasks(context), bounded=self._bounded, **self._settings)
            pulse = Pulse(log)
            live.drain_timeout = self._settings["drain_timeout"]

            def position() -> EnginePosition:
                return EnginePosition(*engine_position(self._location))

            sources = KafkaProgress(self._df, open_storage(self._location))
            sources.check_start(position().planned)
            _start(coordinator, pulse, position, arrow_schema(self._df))

            def advance(last: bool = False) -> None:
                sources.commit(coordinator.complete_through, self._location, last=last)

            running = Query(self._df.sparkSession)
            jvm: Any = context._jvm

            def run(frame: DataFrame, batch_id: int) -> None:
                try:
                    live.gate(lambda: jvm.java.lang.Thread.sleep(50))
                    live.in_batch = True
                    advance()
                    coordinator.run(batch_id, SparkBatch(frame, batch_id, running))
                except Exception as error:
                    if interrupted(error) and (live.stopping or not isinstance(error, HoldfastError)):
                        raise StoppedError from None
                    if isinstance(error, HoldfastError):
                        live.failure = live.failure or error
                    raise
                live.in_batch = False

            try:
                super().foreachBatch(run)
                query = super().start(**kwargs)
            except BaseException as error:
                pulse.end(coordinator.deliveries, error)
                coordinator.close(LAST_CALL)
                raise
            assert isinstance(query, HoldfastQuery)
            query.live = live
            live.follow(query, coordinator, pulse, advance)
            return query

    def _sq(self, jsq: Any) -> StreamingQuery:
        return HoldfastQuery(jsq)

    def trigger(self, *args: Any, **kwargs: Any) -> DataStreamWriter:
        """See DataStreamWriter; a run that ends with its input ends only when its sinks have caught up."""
        if kwargs.get("continuous") is not None or kwargs.get("realTime") is not None:
            raise ConfigError("trigger: holdfast delivers micro-batches: processingTime, availableNow or once")
        self._bounded = bool(kwargs.get("availableNow") or kwargs.get("once"))
        return super().trigger(*args, **kwargs)

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


def _start(coordinator: Coordinator, pulse: Pulse, position: Callable[[], EnginePosition], schema: pa.Schema) -> None:
    """Recover, and leave word of a start that failed: `holdfast status` shows it."""
    try:
        coordinator.start(position, schema)
    except HoldfastError as error:
        if coordinator.claimed:
            pulse.end(coordinator.deliveries, error)
        raise
    pulse.beat(coordinator.deliveries, now=True)
    pulse.prune()


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
        # With the object, so that it gets to tasks: a class of a script is made anew there, without what its base has.
        vars(sink).setdefault("name", sink.name)
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
