"""What a job file may hold. Option names are those of the Python classes and functions: they are made from them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator, model_validator

from holdfast.connectors.cassandra.sink import CassandraSink
from holdfast.connectors.files.sink import FileSink
from holdfast.connectors.kafka.sink.options import KafkaSink
from holdfast.connectors.kafka.source.start import StartFrom
from holdfast.connectors.postgres.sink import PostgresSink
from holdfast.connectors.sqlite import SqliteSink
from holdfast.connectors.stdout import StdoutSink
from holdfast.core.units import parse_duration
from holdfast.errors import ConfigError
from holdfast.pipeline.options import Options, field_of, model_of, options_of
from holdfast.spark.debezium import from_debezium
from holdfast.spark.kafka import read_kafka
from holdfast.spark.stream import write_stream

SINKS: dict[str, type[Options]] = {
    "kafka": model_of(KafkaSink),
    "postgres": model_of(PostgresSink),
    "files": model_of(FileSink),
    "sqlite": model_of(SqliteSink),
    "cassandra": model_of(CassandraSink, ("committer",)),
    "stdout": model_of(StdoutSink),
}
#: Formats of Spark's file source.
FORMATS = Literal["json", "csv", "parquet", "orc", "text", "avro", "xml", "binaryFile"]
VIEW = r"[A-Za-z_][A-Za-z0-9_]*"


class Part(BaseModel):
    """A part of a job file; an unknown key is an error."""

    model_config = ConfigDict(extra="forbid")

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Nothing: options may hold secrets."""
        return ()


class Start(Part):
    """Where a Kafka source starts, when a word is not enough."""

    timestamp: datetime | int | None = Field(default=None, description="The first row at or after it; or milliseconds.")
    offsets: dict[str, dict[int, int]] | None = Field(default=None, description="{topic: {partition: next offset}}")
    group_offsets: bool | None = Field(default=None, description="true, to give a fallback of its own.")
    fallback: Literal["earliest", "latest", "error"] | None = Field(
        default=None, description="For partitions without an offset."
    )

    @model_validator(mode="after")
    def _one(self) -> Start:
        _exactly_one(self, ("timestamp", "offsets", "group_offsets"))
        return self

    def build(self) -> StartFrom:
        """As read_kafka wants it."""
        fallback = {} if self.fallback is None else {"fallback": self.fallback}
        if self.timestamp is not None:
            if fallback:
                raise ConfigError("start: a timestamp takes no fallback: a partition without one starts at its end")
            at = self.timestamp
            return StartFrom.timestamp(at if isinstance(at, int) else int(at.timestamp() * 1000))
        if self.offsets is not None:
            return StartFrom.specific_offsets(self.offsets, **fallback)
        return StartFrom.group_offsets(**fallback)


class KafkaSource(model_of(read_kafka, ("spark", "start"), "KafkaSource")):  # type: ignore[misc]
    """Kafka topics, read by hf.read_kafka."""

    start: Literal["group_offsets", "earliest", "latest"] | Start = Field(
        default="group_offsets", description="Counts only while the pipeline has no checkpoint."
    )

    def start_from(self) -> StartFrom:
        """As read_kafka wants it."""
        if isinstance(self.start, Start):
            return self.start.build()
        made: StartFrom = getattr(StartFrom, self.start)()
        return made


class FileSource(Part):
    """Files that appear in a folder, read by Spark's own source."""

    path: str = Field(description="The folder, or a pattern.")
    format: FORMATS = Field(description="As Spark calls it.")
    schema_: str | None = Field(
        default=None,
        alias="schema",
        description="As in SQL: id long, amount double. Without it, it is inferred once and kept.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="For Spark's source, as they are.")


class RateSource(Part):
    """Rows made by Spark, for trying things out: timestamp and value."""

    rows_per_second: int = Field(default=1, ge=1)
    partitions: int | None = Field(default=None, ge=1)


class Debezium(model_of(from_debezium, ("df", "schema"), "Debezium")):  # type: ignore[misc]
    """The source's messages are changes of a table, unwrapped by hf.from_debezium."""

    schema_: str = Field(alias="schema", description="The columns of the table, as in SQL: id long, name string.")


class Source(Part):
    """One source: kafka, files or rate."""

    kafka: KafkaSource | None = None
    files: FileSource | None = None
    rate: RateSource | None = None
    debezium: Debezium | None = Field(default=None, description="Its messages are changes of a table.")

    @model_validator(mode="after")
    def _one(self) -> Source:
        _exactly_one(self, ("kafka", "files", "rate"))
        return self


class Watermark(Part):
    """How late rows may come."""

    column: str
    delay: str = Field(description="As Spark writes it: 10 seconds.")


class Step(Part):
    """One SQL step: `name: SELECT ...`, and a watermark if it needs one; the next steps can read it by that name."""

    view: str = Field(pattern=f"^{VIEW}$")
    sql: str
    watermark: Watermark | None = None

    @model_validator(mode="before")
    @classmethod
    def _unfold(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            raise ValueError("a step is `name: SELECT ...`")
        names = [key for key in value if key != "watermark"]
        if len(names) != 1:
            raise ValueError("a step has one name, `name: SELECT ...`, and at most a watermark beside it")
        return {"view": str(names[0]), "sql": value[names[0]], **{k: v for k, v in value.items() if k == "watermark"}}

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: Any, handler: Any) -> dict[str, Any]:
        """As it is written, not as it is unfolded."""
        made = handler(core_schema)
        properties = handler.resolve_ref_schema(made).get("properties", {})
        return {
            "type": "object",
            "description": cls.__doc__,
            "properties": {"watermark": properties.get("watermark", {})},
            "additionalProperties": {"type": "string", "description": "Spark SQL"},
        }


class PythonSink(Part):
    """A sink class of your own."""

    class_: str = Field(alias="class", description="my_module.MySink; the module lies beside the job file.")
    options: dict[str, Any] = Field(default_factory=dict, description="The arguments of its constructor.")


class _Sink(Part):
    """One sink, and its own rows and columns if it does not get all of them, as hf.route has it."""

    where: str | None = Field(default=None, description="Spark SQL: the sink gets the rows for which it is true.")
    select: str | list[str] | None = Field(default=None, description="Spark SQL: the columns the sink gets.")
    reject: str | None = Field(default=None, description="Spark SQL: rows for which it is true are dead letters.")

    @model_validator(mode="after")
    def _one(self) -> _Sink:
        _exactly_one(self, (*SINKS, "python"))
        return self

    @property
    def kind(self) -> str:
        """Which of them."""
        return next(name for name in (*SINKS, "python") if getattr(self, name, None) is not None)


def _whole(value: Any) -> Any:
    """`python: my_module.MySink` without options."""
    return {"class": value} if isinstance(value, str) else value


Sink = create_model(
    "Sink",
    __base__=_Sink,
    __validators__={"whole": field_validator("python", mode="before")(_whole)},
    **{name: (options | None, None) for name, options in SINKS.items()},  # type: ignore[call-overload]
    python=(PythonSink | None, None),
)


class Letters(Part):
    """Where rows go that a sink refuses or a route rejects, as hf.DeadLetters has it."""

    sink: Sink = Field(description="A sink, without where, select and reject.")  # type: ignore[valid-type]
    max_ratio: float | None = Field(default=0.01, description="Of a checkpoint's rows; past it the batch fails.")
    max_rows: int | None = Field(default=1000, description="In one checkpoint; past it the batch fails.")


class Trigger(Part):
    """When a micro-batch begins."""

    processing_time: str | None = Field(default=None, description="5 seconds: a batch this often.")
    available_now: bool | None = Field(default=None, description="true: what is there now, then end.")
    once: bool | None = Field(default=None, description="true: one batch, then end.")

    @model_validator(mode="after")
    def _one(self) -> Trigger:
        _exactly_one(self, ("processing_time", "available_now", "once"))
        return self


class Restart(Part):
    """Whether `holdfast run` starts a query again that failed in a way a restart may mend."""

    attempts: int = Field(default=10, ge=0, description="Failures in a row before it gives up.")
    backoff: str = Field(default="5s..5m", description="The first and the longest wait; it doubles in between.")

    @field_validator("backoff")
    @classmethod
    def _two(cls, value: str) -> str:
        first, dots, longest = value.partition("..")
        low = parse_duration("backoff", first.strip())
        high = parse_duration("backoff", longest.strip()) if dots else low
        if low is None or high is None or low > high:
            raise ValueError("backoff must be two durations, the shorter one first: 5s..5m")
        return value

    def wait(self, failures: int) -> float:
        """Seconds to wait after so many failures in a row."""
        first, dots, longest = self.backoff.partition("..")
        low = parse_duration("backoff", first.strip()) or 0.0
        high = (parse_duration("backoff", longest.strip()) or 0.0) if dots else low
        return min(high, low * 2.0 ** min(failures - 1, 40))


class _Job(Part):
    """A pipeline: where rows come from, what is done to them, where they go, and how it is run."""

    source: Source | None = Field(default=None, description="The only source; SQL steps call it `source`.")
    sources: dict[str, Source] | None = Field(default=None, description="Several, by the names that SQL steps use.")
    functions: str | list[str] | None = Field(
        default=None, description="Modules whose Python functions SQL steps may call; they lie beside the job file."
    )
    transform: list[Step] = Field(default_factory=list, description="SQL steps; what the last one gives is delivered.")
    sinks: list[Sink] = Field(min_length=1, description="Where rows go: all get a checkpoint, or none.")  # type: ignore[valid-type]
    dead_letters: Letters | None = Field(default=None, description="Without it, a bad row stops the query.")
    output_mode: Literal["append", "update", "complete"] = "append"
    trigger: Trigger | None = Field(default=None, description="Without it, a batch begins when the last one has ended.")
    state: Literal["rocksdb"] | None = Field(
        default=None, description="Where keyed state is kept; without it, in the memory of the executors."
    )
    spark: dict[str, Any] = Field(default_factory=dict, description="Settings of Spark.")
    restart: Restart | None = Field(default=None, description="Without it, the first failure ends the run.")

    @model_validator(mode="after")
    def _sources(self) -> _Job:
        if (self.source is None) == (self.sources is None):
            raise ValueError("give source, or sources with names: one of the two")
        if self.sources is not None and not self.transform:
            raise ValueError("with several sources, transform says what is made of them")
        return self

    @property
    def by_name(self) -> dict[str, Source]:
        """Every source by the name that SQL steps use."""
        return self.sources if self.sources is not None else {"source": self.source}  # type: ignore[dict-item]

    @property
    def bounded(self) -> bool:
        """Whether it ends by itself."""
        return self.trigger is not None and bool(self.trigger.available_now or self.trigger.once)


_NOT_IN_FILES = ("df", "sinks", "take_over", "dead_letters")
#: options of write_stream that a job file has too
STREAM_OPTIONS = tuple(option.name for option in options_of(write_stream, _NOT_IN_FILES))


@cache
def job_model() -> type[_Job]:
    """The whole, with the options of write_stream."""
    fields: dict[str, Any] = dict(field_of(option) for option in options_of(write_stream, _NOT_IN_FILES))
    return create_model("Job", __base__=_Job, __doc__=_Job.__doc__, **fields)


Job = _Job


def _exactly_one(part: BaseModel, names: tuple[str, ...]) -> None:
    given = [name for name in names if getattr(part, name, None) is not None]
    if len(given) != 1:
        said = f", not {' and '.join(given)}" if given else ""
        raise ValueError(f"give one of {', '.join(names)}{said}")
