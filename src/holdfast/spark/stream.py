"""`write_stream`: the foreachBatch adapter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from holdfast.checkpoint import hadoop
from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.history import engine_position, log_location
from holdfast.checkpoint.log import HISTORY_RETAIN, CheckpointLog
from holdfast.checkpoint.ports import EnginePosition
from holdfast.checkpoint.prepare import undone
from holdfast.checkpoint.pulse import Pulse
from holdfast.checkpoint.storage import open_storage
from holdfast.core.naming import check_name
from holdfast.core.options import Duration, Rule, checked, fits, made, one_of, whole
from holdfast.core.paths import AnyPath, path_text
from holdfast.core.retry import Retry
from holdfast.core.units import parse_duration
from holdfast.errors import ConfigError, HoldfastError
from holdfast.sinks.dead_letters import DeadLetters
from holdfast.sinks.route import Route
from holdfast.sinks.selection import WHOLE
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark import private
from holdfast.spark.checkpoint_files import quick_files
from holdfast.spark.connect import check_server, plain_sinks
from holdfast.spark.failures import StoppedError, for_spark
from holdfast.spark.kafka import KafkaProgress
from holdfast.spark.packages import prove_packages
from holdfast.spark.partitions import PlanReader
from holdfast.spark.query import HoldfastQuery
from holdfast.spark.refusals import Refusals
from holdfast.spark.routes import Routed, routed
from holdfast.spark.running import LAST_CALL, reserve
from holdfast.spark.shared import prove_shared
from holdfast.spark.sinks import check_sinks, schemas_of, with_letters
from holdfast.spark.tasks import SparkBatch, SparkTasks

DELIVERIES = ("exactly-once", "at-least-once")
_CHECKPOINT = "checkpointlocation"
_STREAMING = Rule(
    "a streaming DataFrame (spark.readStream...; for a batch use DataFrame.write)",
    lambda value: isinstance(value, DataFrame) and value.isStreaming,
    secret=True,  # to show a frame may be to run it
)
_SINKS = Rule(
    "TwoPhaseCommitSink, WriteAheadSink or IdempotentSink objects, or hf.route(...) of one",
    lambda value: isinstance(value, TwoPhaseCommitSink | Route) or fits(Sequence[TwoPhaseCommitSink | Route], value),
    secret=True,
)


@checked
def write_stream(
    df: Annotated[DataFrame, _STREAMING],
    sinks: Annotated[TwoPhaseCommitSink | Route | Sequence[TwoPhaseCommitSink | Route], _SINKS],
    *,
    name: str,
    checkpoint_location: AnyPath,
    delivery: Annotated[str, one_of(*DELIVERIES)] = "exactly-once",
    take_over: bool = False,
    retry: Annotated[Retry, made('hf.Retry(for_="5m", ...)', Retry)] | None = None,
    drain_timeout: Duration = 60.0,
    history_retain: Annotated[int, whole(1)] = HISTORY_RETAIN,
    dead_letters: Annotated[DeadLetters, made("hf.DeadLetters(sink, ...)", DeadLetters)] | None = None,
) -> DataStreamWriter:
    """Deliver a streaming DataFrame into sinks; one decision for all of them.

    Returns a DataStreamWriter: `outputMode`, `trigger`, `start` as always. On a frame of Spark Connect the sinks run as
    `format("holdfast")` on the server. `name` is the pipeline's identity at every
    endpoint and must stay the same over restarts. `take_over` lets this checkpoint location own a name that a ledger
    knows from another one; rows may then be delivered twice. `retry` says how long a start, a batch and a commit wait
    for an endpoint that is away. A bounded run (`availableNow`, `once`) or a stop gives sinks that lag `drain_timeout`
    to catch up; what is left then is an UndeliveredError, and the next start delivers it. Statistics of the newest
    `history_retain` checkpoints are kept. `dead_letters` says where rows go that a sink refuses or a route rejects;
    without it the query stops at them.
    """
    check_name("name", name)
    location = path_text("checkpoint_location", checkpoint_location, "a path or URL")
    drain = parse_duration("drain_timeout", drain_timeout)
    refuse_speculation(df.sparkSession)
    settings = {"delivery": delivery, "take_over": take_over, "retry": retry, "drain_timeout": drain}
    if not private.is_classic(df):
        return _over_connect(
            df, plain_sinks(sinks, dead_letters), name, location, settings, dead_letters, history_retain
        )
    hadoop.use(hadoop.read_settings(*private.hadoop_settings(df.sparkSession.sparkContext)))
    made = routed(df, check_sinks(sinks, dead_letters))
    _check_patterns(made)
    settings["dead_letters"] = dead_letters
    qualified = private.qualified(df.sparkSession.sparkContext, location)
    return HoldfastWriter(made, name, qualified, settings, history_retain)


class HoldfastWriter(Refusals, DataStreamWriter):
    """Spark's DataStreamWriter, which claims the checkpoint location and recovers before Spark starts the query."""

    def __init__(
        self,
        made: Routed,
        name: str,
        location: str,
        settings: Mapping[str, Any],
        history_retain: int,
    ) -> None:
        super().__init__(made.frame)
        self._df = made.frame
        self._history_retain = history_retain
        self._selections = made.selections
        self._name, self._location = name, location
        self._settings, self._bounded = dict(settings), False
        #: what the history calls the trigger; without one Spark begins a batch as soon as there are rows
        self._trigger_text = "as soon as possible"
        self._dead_letters: DeadLetters | None = self._settings.pop("dead_letters", None)
        self._sinks, self._letters = with_letters(made.sinks, self._dead_letters)
        super().queryName(name)
        super().option("checkpointLocation", location)

    @property
    def pipeline(self) -> str:
        """The pipeline's name."""
        return self._name

    @property
    def location(self) -> str:
        """The checkpoint location, as Spark spells it."""
        return self._location

    @property
    def frame(self) -> DataFrame:
        """The rows, with the columns that routes need."""
        return self._df

    @property
    def settings(self) -> Mapping[str, Any]:
        """delivery, take_over, retry and drain_timeout."""
        return dict(self._settings)

    @property
    def sinks(self) -> list[TwoPhaseCommitSink]:
        """The sinks."""
        return list(self._sinks)

    def start(self, *args: Any, **kwargs: Any) -> StreamingQuery:
        """Claim a generation, fence older drivers, finish what they decided, then start the query."""
        if args or set(kwargs) - {"outputMode", "queryName"}:
            raise ConfigError("start() takes outputMode and queryName only: where rows go is the sinks' business")
        refuse_speculation(self._df.sparkSession)
        with reserve(self._location, [getattr(sink, "template", sink) for sink in self._sinks]) as running:
            storage = open_storage(log_location(self._location))
            log = CheckpointLog(storage, self._name, history_retain=self._history_retain)
            context = self._df.sparkSession.sparkContext
            coordinator = Coordinator(
                log,
                self._sinks,
                SparkTasks(context),
                bounded=self._bounded,
                letters=self._letters,
                location=self._location,
                trigger=self._trigger_text,
                **self._settings,
            )
            pulse = Pulse(log)
            running.drain_timeout = self._settings["drain_timeout"]

            def position() -> EnginePosition:
                return EnginePosition(*engine_position(self._location))

            sources = KafkaProgress(self._df, open_storage(self._location))
            running.pipeline, running.delivery, running.sources = (
                self._name,
                self._settings["delivery"],
                sources.options,
            )
            known = position()
            sources.check_start(known.planned, known.committed)
            # Before a generation is claimed: a start that cannot work fences nobody.
            prove_packages(context, self._sinks, storage.url)
            prove_shared(context, self._sinks, storage.url)
            running.announce()
            begin_run(coordinator, pulse, position, self.schemas())

            def advance(last: bool = False) -> None:
                sources.commit(coordinator.complete_through, self._location, last=last)

            plans = PlanReader(self._df.sparkSession)

            def run(frame: DataFrame, batch_id: int) -> None:
                try:
                    running.gate(lambda: private.pause(context))
                    running.in_batch = True
                    sources.commit_beside(coordinator.complete_through, self._location)
                    coordinator.run(batch_id, SparkBatch(frame, batch_id, plans, self._selections, self._letters))
                except Exception as error:
                    told = for_spark(
                        error, over=running.ended_by_stop(), stopping=running.stopping, at_once=running.at_once
                    )
                    if isinstance(error, HoldfastError) and not isinstance(told, StoppedError):
                        running.failure = running.failure or error
                    if told is error:
                        raise
                    raise told from None
                running.in_batch = False

            try:
                DataStreamWriter.foreachBatch(self, run)
                with quick_files(self._df.sparkSession, self._location):
                    query = super().start(**kwargs)
            except BaseException as error:
                ended = partial(pulse.end, coordinator.deliveries, error)
                undone([ended, lambda: coordinator.close(LAST_CALL)], error)
                raise
            if not isinstance(query, HoldfastQuery):  # Spark no longer asks _sq for the kind of query
                query = HoldfastQuery(private.java_query(query))
            query.running = running
            running.follow(query, coordinator, pulse, advance)
            return query

    def schemas(self) -> dict[str, pa.Schema]:
        """Each sink's: that of its own rows."""
        return schemas_of(private.arrow_schema(self._df), self._sinks, self._selections, self._dead_letters)

    def _sq(self, jsq: Any) -> StreamingQuery:
        return HoldfastQuery(jsq)

    def trigger(self, *args: Any, **kwargs: Any) -> HoldfastWriter:
        """See DataStreamWriter; a run that ends with its input ends only when its sinks have caught up."""
        super().trigger(*args, **kwargs)
        self._bounded = bool(kwargs.get("availableNow") or kwargs.get("once"))
        self._trigger_text = ", ".join(k if v is True else f"{k}={v}" for k, v in kwargs.items() if v is not None)
        return self

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


def _over_connect(
    df: DataFrame,
    sinks: list[TwoPhaseCommitSink],
    name: str,
    location: str,
    settings: Mapping[str, Any],
    dead_letters: DeadLetters | None,
    history_retain: int,
) -> DataStreamWriter:
    """The driver is elsewhere: the sinks go there by Spark's data source interface."""
    check_server(df.sparkSession.version)
    from holdfast.spark.connect_writer import ConnectWriter

    made: Any = ConnectWriter(
        df,
        sinks,
        name=name,
        location=location,
        settings=settings,
        dead_letters=dead_letters,
        history_retain=history_retain,
    )
    writer: DataStreamWriter = made  # it has the same methods, and by Spark's design no base in common
    return writer


def begin_run(
    coordinator: Coordinator, pulse: Pulse, position: Callable[[], EnginePosition], schemas: Mapping[str, pa.Schema]
) -> None:
    """Recover, and leave word of a start that failed: `holdfast status` shows it."""
    try:
        with pulse.starting(lambda: coordinator.at_work):
            coordinator.start(position, schemas)
    except HoldfastError as error:
        if coordinator.claimed:
            undone([partial(pulse.end, coordinator.at_work, error)], error)
        raise
    pulse.beat(coordinator.deliveries, now=True)
    pulse.prune()


def _check_patterns(made: Routed) -> None:
    """What a sink's pattern is made of must be among its own columns."""
    if any(sink.pattern is not None for sink in made.sinks):
        whole = private.arrow_schema(made.frame)
        for sink in made.sinks:
            if sink.pattern is not None:
                sink.pattern.check(made.selections.get(sink.name, WHOLE).schema(whole))


def refuse_speculation(spark: SparkSession) -> None:
    """A copy of a task that lost could write after the decision."""
    if str(private.settings_of(spark).get("spark.speculation", "false")).lower() == "true":
        raise ConfigError(
            "spark.speculation=true runs the code of a task twice, and the losing copy can write after the checkpoint "
            "is decided: set spark.speculation=false for this application"
        )
