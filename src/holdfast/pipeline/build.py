"""From a job file to Spark: its session, its sources, its SQL steps and the writer with its sinks."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from holdfast.checkpoint import records
from holdfast.checkpoint.history import log_location
from holdfast.checkpoint.storage import open_storage
from holdfast.errors import ConfigError, first_line
from holdfast.pipeline.document import Place
from holdfast.pipeline.model import STREAM_OPTIONS, FileSource, PythonSink, Source, Step
from holdfast.pipeline.options import Options
from holdfast.pipeline.problems import Described
from holdfast.sinks.dead_letters import DeadLetters
from holdfast.sinks.route import Route, route
from holdfast.sinks.two_phase import TwoPhaseCommitSink
from holdfast.spark.debezium import from_debezium
from holdfast.spark.kafka import read_kafka
from holdfast.spark.private import pickle_by_value
from holdfast.spark.session import session
from holdfast.spark.stream import HoldfastWriter, write_stream

#: Where a schema that was inferred is kept, below the log.
_SCHEMA = "sources/{}.json"


class Builder:
    """Builds what one job file describes; errors point at the place in the file."""

    def __init__(self, described: Described, *, keep: bool = True) -> None:
        """Without `keep`, a schema that is inferred is not written into the checkpoint location."""
        self._keep = keep
        self.job: Any = described.job
        self._document, self._secrets = described.document, described.secrets
        self._folder = Path(described.document.path).resolve().parent

    @contextmanager
    def _at(self, *place: str | int) -> Iterator[None]:
        """Say where in the file it was, and nothing that `${...}` stands for."""
        try:
            yield
        except ConfigError as error:
            raise self._document.error(place, self._secrets.hide(str(error))) from None
        except PySparkException as error:
            first = str(error).strip().partition("\n\n")[0].partition("\nJVM stacktrace")[0]
            raise self._document.error(place, self._secrets.hide(" ".join(first.split()))) from None

    def session(self) -> SparkSession:
        """A SparkSession with the job's settings, and Kafka's connector where a source needs it."""
        conf = {key: _text(value) for key, value in self.job.spark.items()}
        kafka = any(source.kafka is not None for source in self.job.by_name.values())
        with self._at("spark"):
            return session(self.job.name, kafka=kafka, state=self.job.state, conf=conf)

    def writer(self, spark: SparkSession, *, take_over: bool = False) -> HoldfastWriter:
        """Everything but the start."""
        self._register_functions(spark)
        frame = self._transformed(spark)
        given = {name: getattr(self.job, name) for name in STREAM_OPTIONS if name in self.job.model_fields_set}
        built = {name: value.build() if isinstance(value, Options) else value for name, value in given.items()}
        with self._at():
            writer = write_stream(frame, self.sinks(), **built, take_over=take_over, dead_letters=self.dead_letters())
            assert isinstance(writer, HoldfastWriter)
        with self._at("output_mode"):
            writer.outputMode(self.job.output_mode)
        trigger = self.job.trigger
        with self._at("trigger"):
            if trigger is not None and trigger.processing_time is not None:
                writer.trigger(processingTime=trigger.processing_time)
            elif trigger is not None:
                writer.trigger(**({"availableNow": True} if trigger.available_now else {"once": True}))
        return writer

    # -- sources ----------------------------------------------------------------------------------------------------

    def _transformed(self, spark: SparkSession) -> DataFrame:
        frame: DataFrame | None = None
        for name, source in self.job.by_name.items():
            place: Place = ("source",) if self.job.sources is None else ("sources", name)
            with self._at(*place):
                frame = self._read(spark, name, source)
                frame.createOrReplaceTempView(name)
        for number, step in enumerate(self.job.transform):
            with self._at("transform", number):
                frame = _step(spark, step)
        assert frame is not None
        return frame

    def _read(self, spark: SparkSession, name: str, source: Source) -> DataFrame:
        frame = self._read_rows(spark, name, source)
        return frame if source.debezium is None else from_debezium(frame, **source.debezium.given())

    def _read_rows(self, spark: SparkSession, name: str, source: Source) -> DataFrame:
        if source.kafka is not None:
            return read_kafka(spark, **_kafka(source.kafka))
        if source.rate is not None:
            reader = spark.readStream.format("rate").option("rowsPerSecond", source.rate.rows_per_second)
            if source.rate.partitions is not None:
                reader = reader.option("numPartitions", source.rate.partitions)
            return reader.load()
        assert source.files is not None
        files = source.files
        options = {key: _text(value) for key, value in files.options.items()}
        reader = spark.readStream.format(files.format).options(**options)
        if files.format in ("text", "binaryFile"):  # their columns are always the same
            return reader.load(files.path)
        schema = files.schema_ or self._pinned_schema(spark, name, files, options)
        return reader.schema(schema).load(files.path)

    def _pinned_schema(self, spark: SparkSession, name: str, files: FileSource, options: dict[str, str]) -> StructType:
        """Inferred from what is there at the first start, and kept: later files must not change what a column is."""
        storage = open_storage(log_location(self.job.checkpoint_location))
        file = _SCHEMA.format(name)
        try:
            data = storage.read(file)
        except FileNotFoundError:
            advice = "put a file there first, or give schema: id long, amount double"
            try:
                inferred = spark.read.format(files.format).options(**options).load(files.path).schema
            except PySparkException as error:
                told = f"the schema of {files.path} cannot be inferred ({first_line(error)}): {advice}"
                raise ConfigError(told) from error
            if not inferred.fields:
                told = f"the schema of {files.path} cannot be inferred, there is nothing in it: {advice}"
                raise ConfigError(told) from None
            if not self._keep:
                return inferred
            body = {"path": files.path, "schema": inferred.jsonValue()}
            storage.create(file, records.encode("source-schema", records.new_nonce(), body))
            data = storage.read(file)
        found = records.decode(data, f"{storage.url}/{file}", "source-schema")
        return StructType.fromJson(json.loads(json.dumps(found["schema"])))

    # -- code of the user -------------------------------------------------------------------------------------------

    def _register_functions(self, spark: SparkSession) -> None:
        given = self.job.functions
        for name in [given] if isinstance(given, str) else given or []:
            with self._at("functions"):
                module = self._module(name)
                if hasattr(module, "register"):
                    module.register(spark)
                    continue
                found = {n: f for n, f in vars(module).items() if hasattr(f, "returnType") and hasattr(f, "func")}
                if not found:
                    raise ConfigError(
                        f"module {name!r} has no functions for SQL: mark them with pyspark's @udf or @pandas_udf, or "
                        "give it def register(spark)"
                    )
                for function, made in found.items():
                    spark.udf.register(function, made)

    def _module(self, name: str) -> ModuleType:
        """Import a module that lies beside the job file, or is installed.

        What lies beside the file travels with its functions and sinks: tasks could not import it, nor run what only a
        driver can, such as a `@udf` at the top of it.
        """
        folder = str(self._folder)
        if folder not in sys.path:
            sys.path.insert(0, folder)
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not name.startswith(error.name):
                raise
            raise ConfigError(f"there is no module {name!r}, neither in {folder} nor installed") from None
        file = getattr(module, "__file__", None)
        if file and self._folder in Path(file).resolve().parents:
            pickle_by_value(module)
        return module

    def sinks(self) -> list[TwoPhaseCommitSink | Route]:
        """The sinks, in the file's order, each with its own rows and columns if it says so."""
        return [self._sink(item, "sinks", number) for number, item in enumerate(self.job.sinks)]

    def _sink(self, item: Any, *place: str | int) -> TwoPhaseCommitSink | Route:
        with self._at(*place, item.kind):
            options = getattr(item, item.kind)
            made: TwoPhaseCommitSink = self._own_sink(options) if item.kind == "python" else options.build()
        own = {name: getattr(item, name) for name in ("where", "select", "reject") if getattr(item, name) is not None}
        with self._at(*place):
            return route(made, **own) if own else made

    def dead_letters(self) -> DeadLetters | None:
        """Where bad rows go, if the file says so."""
        given = self.job.dead_letters
        if given is None:
            return None
        made = self._sink(given.sink, "dead_letters", "sink")
        with self._at("dead_letters"):
            return DeadLetters(made, given.max_ratio, given.max_rows)  # type: ignore[arg-type]  # it says so itself

    def _own_sink(self, options: PythonSink) -> TwoPhaseCommitSink:
        module, dot, name = options.class_.rpartition(".")
        if not dot:
            raise ConfigError(f"class must be module.Class, not {options.class_!r}")
        made = getattr(self._module(module), name, None)
        if not isinstance(made, type) or not issubclass(made, TwoPhaseCommitSink):
            raise ConfigError(
                f"{options.class_} is not a sink class: it must extend hf.TwoPhaseCommitSink, hf.WriteAheadSink or "
                "hf.IdempotentSink"
            )
        try:
            return made(**options.options)
        except TypeError as error:
            raise ConfigError(f"{options.class_} does not take these options: {error}") from error


def _step(spark: SparkSession, step: Step) -> DataFrame:
    frame = spark.sql(step.sql)
    if step.watermark is not None:
        frame = frame.withWatermark(step.watermark.column, step.watermark.delay)
    frame.createOrReplaceTempView(step.view)
    return frame


def _kafka(options: Any) -> dict[str, Any]:
    given = options.given()
    given["start"] = options.start_from()
    if given.get("options"):
        given["options"] = {key: _text(value) for key, value in given["options"].items()}
    return dict(given)


def _text(value: Any) -> str:
    """As Spark wants settings."""
    return str(value).lower() if isinstance(value, bool) else str(value)
