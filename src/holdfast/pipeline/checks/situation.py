"""What checks look at: the query as it would be started, and what is known of its past."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession

from holdfast.checkpoint.history import CheckpointStats, checkpoints, engine_position
from holdfast.checkpoint.ports import EnginePosition, Run
from holdfast.checkpoint.reader import LogReader
from holdfast.core.retry import Retry
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark.kafka import ReadFrom, kafka_sources
from holdfast.spark.stream import HoldfastWriter

#: checkpoints of the history that are looked at
LOOK_BACK = 200


@dataclass(frozen=True)
class Place:
    """Where a pipeline keeps its checkpoints; what is read there is read once."""

    location: str

    @cached_property
    def log(self) -> LogReader:
        """The log, with what is damaged in it."""
        log = LogReader(self.location)
        if self.used:
            log.load()
        return log

    @cached_property
    def used(self) -> bool:
        """Whether a pipeline has ever started there."""
        return bool(LogReader(self.location).storage.names(""))

    @cached_property
    def engine(self) -> EnginePosition:
        """Where Spark's own checkpoint stands."""
        return EnginePosition(*engine_position(self.location))

    @cached_property
    def history(self) -> list[CheckpointStats]:
        """The newest checkpoints that are over."""
        return [stats for stats in checkpoints(self.location, last=LOOK_BACK) if stats.durations]


@dataclass
class Situation:
    """A query that could be started."""

    pipeline: str
    location: str
    sinks: Sequence[TwoPhaseCommitSink]
    #: sink -> pyarrow.Schema of its rows
    schemas: Mapping[str, Any]
    delivery: str = "exactly-once"
    take_over: bool = False
    retry: Retry = field(default_factory=Retry)
    #: tasks that run at the same time
    parallelism: int = 1
    sources: Sequence[ReadFrom] = ()
    #: the rows as Spark plans them; only checks of the query and of Spark itself ask for it
    frame: Any = None

    @classmethod
    def of(cls, writer: HoldfastWriter) -> Situation:
        """As a writer would start it."""
        settings = writer.settings
        return cls(
            writer.pipeline,
            writer.location,
            writer.sinks,
            writer.schemas(),
            str(settings["delivery"]),
            bool(settings["take_over"]),
            settings["retry"] or Retry(),
            writer.frame.sparkSession.sparkContext.defaultParallelism,
            kafka_sources(writer.frame),
            writer.frame,
        )

    @property
    def takes_over(self) -> bool:
        """Ledgers of other locations are set aside, as the user wants."""
        return self.take_over or self.delivery == "at-least-once"

    @property
    def spark(self) -> SparkSession:
        """The session it would run in."""
        session: SparkSession = self.frame.sparkSession
        return session

    @cached_property
    def place(self) -> Place:
        """What is known of its past."""
        return Place(self.location)

    @cached_property
    def run(self) -> Run:
        """As sinks would be told of it."""
        return self.place.log.as_run(self.pipeline, delivery=self.delivery)

    def state_of(self, sink: TwoPhaseCommitSink) -> Any:
        """The operator state of the newest decided checkpoint; None when there is none."""
        last = self.place.log.last_decided
        return None if last is None else self.place.log.facts.decided[last].state.get(sink.name)

    def run_of(self, sink: TwoPhaseCommitSink) -> Run:
        """The same for one sink, with the columns of its rows; nothing is taken over by looking."""
        return replace(self.run, schema=self.schemas.get(sink.name), take_over=False)
