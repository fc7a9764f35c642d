"""Every interface of Spark that is not public and that holdfast uses, each with what is done where it is missing.

Spark may change these from one version to the next. So nothing else of holdfast touches them. Where one is missing,
that is logged once and the fallback does, which is slower or says less but loses nothing. `INTERFACES` lists them, and
tests/integration/test_private.py notices when one is missing or its fallback does not work; `make compat` runs it on
every version of Spark that is supported. `FILES` are Spark's own files that holdfast reads: `checkpoint/enginefiles.py`
refuses a format that it does not know.
"""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, TypeVar

import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark import RDD, SparkConf, SparkContext
from pyspark.serializers import NoOpSerializer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from holdfast.errors import ConfigError, HoldfastError

logger = logging.getLogger("holdfast")
T = TypeVar("T")

#: name -> what it is for, and what is done without it
INTERFACES: Mapping[str, str] = {
    "StreamExecution.lastExecution": "the plan of a micro-batch; without it rows come from the frame, a copy more",
    "SparkPlan.schema": "whether that plan has the frame's columns; without it rows come from the frame, a copy more",
    "Dataset.toArrowBatchRdd": "rows of a plan as Arrow batches; without it rows come from the frame, a copy more",
    "StatusTracker._jtracker": "whether Spark ran a stage again; without it, the public way, with more questions",
    "to_arrow_schema": "the Arrow schema of a frame; without it, that of an empty batch that Spark makes",
    "StreamExecution.queryExecutionThread": "a query that fails between two batches; without it, it is stopped",
    "StreamingQuery.exception": "why Spark ended a query; without it, what PySpark says",
    "LogicalPlan.collectLeaves": "the Kafka sources of a query; without it no group offsets are committed",
    "QueryExecution.analyzed": "the plan that `holdfast run --dry-run` shows; without it none is shown",
    "LogicalPlan.expressions": "what `holdfast check` looks for in a plan; without it nothing is found there",
    "ClassLoader.loadClass": "the version of Spark's Kafka connector; without it, it is not checked",
    "SparkContext.hadoopConfiguration": "credentials of object stores; without it, those of the environment",
    "java.lang.Thread.sleep": "a wait that Spark's stop interrupts; without it, a plain one",
    "SparkContext._ensure_initialized": "what spark-submit was told; without it our defaults win over that",
    "SparkContext._gateway": "a Spark whose Java process has ended; without it, the whole program must start again",
    "DataStreamWriter._sq": "the kind of query that start() gives; without it the query is wrapped",
    "StreamingQuery._jsq": "what a query is wrapped around; without it, and without _sq, a start says so and stops",
    "connect.DataStreamWriter": "a writer of Spark Connect that is ours; without it format('holdfast') must be used",
    "cloudpickle.register_pickle_by_value": "modules beside a job file; without it tasks must import them",
    "FileSystemBasedCheckpointFileManager": "Spark's quick way to write its own files; without it, its usual one",
    "pyspark.daemon.manager": "a daemon of workers that has imported; without it Spark's own is started in its place",
    "hadoop.fs.Path": "a location without a scheme; without it, one with a scheme must be given",
}
#: file of Spark's own checkpoint -> what is read from it, and what is done where it has another form
FILES: Mapping[str, str] = {
    "offsets/N": "where each source stands before batch N, and its watermark; another version of the format is refused "
    "by savepoints and rewinds, and group offsets are not committed",
    "commits/N": "that Spark has finished batch N: its name alone; without any, no batch counts as finished",
    "metadata": "the id of the query, which a copy of a checkpoint gets anew; Spark refuses one that it cannot read",
    "state/, sources/": "copied by savepoints and left alone else; a name that is not known is copied too",
}
#: In Spark 4.1 and newer, and in 4.0.
_FILE_MANAGERS = tuple(
    f"org.apache.spark.sql.execution.streaming.{package}FileSystemBasedCheckpointFileManager"
    for package in ("checkpointing.", "")
)
#: The interfaces that were missing so far; each is logged once.
missed: set[str] = set()


def _use(name: str, use: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """What the interface gives, or the fallback where it is not there; errors of Spark itself go up."""
    try:
        return use()
    except (Py4JJavaError, Py4JNetworkError):
        raise
    except (Py4JError, AttributeError, TypeError) as error:
        if name not in missed:
            missed.add(name)
            logger.warning("this Spark has no %s (%s): %s", name, error, INTERFACES[name])
        return otherwise()


def missing_file(name: str, path: str) -> None:
    """Say, once, that a file of Spark's has another form than we know."""
    if name not in missed:
        missed.add(name)
        logger.warning("%s is not as this holdfast knows it: %s", path, FILES[name])


def plan_of(session: SparkSession, query_id: str, batch_id: int) -> Any | None:
    """The physical plan of a running query's micro-batch; None where the frame must do."""

    def use() -> Any | None:
        query = session.streams._jsqm.get(query_id)
        execution = None if query is None else query.streamingQuery().lastExecution()
        if execution is None or execution.currentBatchId() != batch_id:
            return None
        return execution.executedPlan()

    return _use("StreamExecution.lastExecution", use, lambda: None)


def first_run(context: SparkContext, stage: int) -> bool:
    """Whether Spark has run this stage once; False where it does not know it any more."""
    tracker = context.statusTracker()

    def use() -> bool:
        # The public way asks Java for every field, one after the other, in every batch.
        info = tracker._jtracker.getStageInfo(stage)
        return info is not None and int(info.currentAttemptId()) == 0

    def ask() -> bool:
        info = tracker.getStageInfo(stage)
        return info is not None and info.currentAttemptId == 0

    return _use("StatusTracker._jtracker", use, ask)


def same_schema(frame: DataFrame, plan: Any) -> bool:
    """Whether a plan gives the very columns of the frame."""

    def use() -> bool:
        return bool(plan.schema().json() == frame._jdf.schema().json())

    return _use("SparkPlan.schema", use, lambda: False)


def plan_rows(frame: DataFrame, plan: Any) -> RDD[bytes] | None:
    """The rows of a plan as Arrow messages without their schema; None where the frame must do."""

    def use() -> RDD[bytes]:
        return RDD(frame._jdf.toArrowBatchRdd(plan).toJavaRDD(), frame.sparkSession.sparkContext, NoOpSerializer())

    return _use("Dataset.toArrowBatchRdd", use, lambda: None)


def arrow_schema(frame: DataFrame) -> pa.Schema:
    """The rows' schema as the tasks see it."""
    zone = str(frame.sparkSession.conf.get("spark.sql.session.timeZone"))

    def use() -> pa.Schema:
        return arrow_schema_of(frame.schema, zone)

    def otherwise() -> pa.Schema:
        return in_zone(frame.sparkSession.createDataFrame([], frame.schema).toArrow().schema, zone)

    return _use("to_arrow_schema", use, otherwise)


def arrow_schema_of(schema: StructType, zone: str) -> pa.Schema:
    """A schema of Spark's as tasks see it in a session of this time zone."""
    from pyspark.sql.pandas.types import to_arrow_schema

    if "timezone" in inspect.signature(to_arrow_schema).parameters:
        return to_arrow_schema(schema, timezone=zone)
    return in_zone(to_arrow_schema(schema), zone)  # Spark 4.0 and 4.1


def in_zone(schema: pa.Schema, zone: str) -> pa.Schema:
    """The schema with its points in time in this zone, at any depth: tasks get them so, whatever the driver is told."""
    return pa.schema([_zoned(field, zone) for field in schema], schema.metadata)


def _zoned(field: pa.Field, zone: str) -> pa.Field:
    kind = field.type
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return field.with_type(pa.timestamp(kind.unit, zone))
    if pa.types.is_struct(kind):
        return field.with_type(pa.struct([_zoned(inner, zone) for inner in kind]))
    if pa.types.is_map(kind):
        return field.with_type(pa.map_(_zoned(kind.key_field, zone), _zoned(kind.item_field, zone)))
    if pa.types.is_large_list(kind):
        return field.with_type(pa.large_list(_zoned(kind.value_field, zone)))
    if pa.types.is_list(kind):
        return field.with_type(pa.list_(_zoned(kind.value_field, zone)))
    return field


def interrupt(query: StreamingQuery) -> None:
    """End a query so that Spark takes it for a failure."""

    def use() -> None:
        query._jsq.streamingQuery().queryExecutionThread().interrupt()

    # A stop looks like a clean end to Spark's listeners and to awaitAnyTermination; the query itself still tells.
    _use("StreamExecution.queryExecutionThread", use, lambda: StreamingQuery.stop(query))


def failure_text(query: StreamingQuery) -> str | None:
    """Why Spark says that the query failed; None when it ended by itself or was stopped."""

    def use() -> str | None:
        told = query._jsq.exception()
        return None if told.isEmpty() else str(told.get().toString())

    def otherwise() -> str | None:
        told = StreamingQuery.exception(query)
        return None if told is None else str(told)

    return _use("StreamingQuery.exception", use, otherwise)


def streaming_sources(df: DataFrame) -> list[Mapping[str, str]]:
    """The options of every streaming source in the plan, in Spark's order; that of the lines in `offsets/N`."""

    def use() -> list[Mapping[str, str]]:
        leaves = df._jdf.queryExecution().analyzed().collectLeaves()
        found: list[Mapping[str, str]] = []
        for number in range(leaves.size()):
            leaf = leaves.apply(number)
            if leaf.isStreaming():
                v2 = leaf.getClass().getSimpleName() == "StreamingRelationV2"
                found.append(dict(leaf.extraOptions().asCaseSensitiveMap()) if v2 else {})
        return found

    return _use("LogicalPlan.collectLeaves", use, list)


def pause(context: SparkContext) -> None:
    """Wait a moment; in a batch, Spark's stop of the query ends it."""
    jvm: Any = context._jvm
    _use("java.lang.Thread.sleep", lambda: jvm.java.lang.Thread.sleep(50), lambda: time.sleep(0.05))


def qualified(context: SparkContext, location: str) -> str:
    """The location with its scheme, as Spark itself resolves it: `/data` is HDFS where that is the default."""
    if "://" in location:
        return location.rstrip("/")

    def use() -> str:
        jvm: Any = context._jvm
        path = jvm.org.apache.hadoop.fs.Path(location)
        if path.toUri().getScheme() is not None:
            return location.rstrip("/")
        return str(path.getFileSystem(context._jsc.hadoopConfiguration()).makeQualified(path).toString()).rstrip("/")

    def otherwise() -> str:
        raise ConfigError(
            f"checkpoint_location {location!r} has no scheme, and this Spark does not say which is its default: give "
            f"it as file://{location} or with the scheme of your store"
        )

    return _use("hadoop.fs.Path", use, otherwise)


def analyzed(df: DataFrame) -> Any:
    """Spark's own plan of a query, before it is optimized."""

    def otherwise() -> Any:
        raise ConfigError("this Spark does not show its plan, which hf.route needs: let the query filter and select")

    return _use("QueryExecution.analyzed", lambda: df._jdf.queryExecution().analyzed(), otherwise)


@dataclass(frozen=True)
class PlanPart:
    """A node of Spark's plan, or an expression in one."""

    name: str
    text: str
    #: of a node: what it reads from; of an expression: the name of its node
    around: tuple[str, ...]
    is_node: bool
    #: by itself, whatever it is made of
    deterministic: bool = True


def plan_parts(df: DataFrame) -> list[PlanPart]:
    """Every node and expression of the analyzed plan; none where this Spark does not show it."""

    def each(seq: Any) -> list[Any]:
        return [seq.apply(number) for number in range(seq.size())]

    def expression(one: Any, node: str, found: list[PlanPart]) -> None:
        inner = each(one.children())
        own = bool(one.deterministic()) or not all(bool(child.deterministic()) for child in inner)
        found.append(PlanPart(str(one.getClass().getSimpleName()), str(one.sql()), (node,), False, own))
        for child in inner:
            expression(child, node, found)

    def node(one: Any, found: list[PlanPart]) -> None:
        inner = each(one.children())
        name = str(one.getClass().getSimpleName())
        below = tuple(str(child.getClass().getSimpleName()) for child in inner)
        found.append(PlanPart(name, str(one.nodeName()), below, True))
        for part in each(one.expressions()):
            expression(part, name, found)
        for child in inner:
            node(child, found)

    def use() -> list[PlanPart]:
        found: list[PlanPart] = []
        node(df._jdf.queryExecution().analyzed(), found)
        return found

    return _use("LogicalPlan.expressions", use, list)


def class_origin(context: SparkContext, name: str) -> str | None:
    """The jar that a Java class comes from; None when there is none of that name."""

    def use() -> str | None:
        jvm: Any = context._jvm
        loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
        try:
            found = loader.loadClass(name).getProtectionDomain().getCodeSource()
        except Py4JJavaError:  # ClassNotFoundException
            return None
        return None if found is None else str(found.getLocation().toString())

    return _use("ClassLoader.loadClass", use, lambda: None)


def hadoop_settings(
    context: SparkContext,
) -> tuple[Callable[[str], str | None], Callable[[str], Mapping[str, str]]]:
    """Hadoop's settings as Spark was told them: one, and all whose names begin so, by the rest of their names."""

    def use() -> tuple[Callable[[str], str | None], Callable[[str], Mapping[str, str]]]:
        configuration: Any = context._jsc.hadoopConfiguration()
        return configuration.get, lambda prefix: dict(configuration.getPropsWithPrefix(prefix))

    return _use("SparkContext.hadoopConfiguration", use, lambda: (lambda name: None, lambda prefix: {}))


def plan_text(df: DataFrame) -> str:
    """Spark's plan of a query, for people; it need not run for that."""

    def use() -> str:
        return str(df._jdf.queryExecution().analyzed().toString())

    return _use("QueryExecution.analyzed", use, lambda: "this Spark does not show its plan")


def submitted() -> dict[str, str]:
    """What spark-submit was told; it has started the JVM already."""

    def use() -> dict[str, str]:
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())

    return _use("SparkContext._ensure_initialized", use, dict)


def forget_dead_spark() -> None:
    """If Spark's Java process has ended under this one, let PySpark start another as if there had been none."""

    def use() -> None:
        gateway = SparkContext._gateway
        if gateway is None or gateway.proc is None:  # none, or one that spark-submit started, as it did us
            return
        try:
            gateway.jvm.java.lang.System.nanoTime()
            return
        except (Py4JNetworkError, ConnectionError):
            logger.warning("Spark's Java process has ended: another one is started")
        SparkContext._active_spark_context = SparkContext._gateway = SparkContext._jvm = None
        SparkSession._instantiatedSession = SparkSession._activeSession = None

    _use("SparkContext._gateway", use, lambda: None)


def stop_java(spark: SparkSession, timeout: float) -> int:
    """Stop Spark and end the Java process that this one has started; its exit code."""

    def use() -> int:
        process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        process.stdin.close()  # it ends when its standard input does
        return int(process.wait(timeout))

    def otherwise() -> int:
        raise HoldfastError("this PySpark does not show the Java process it has started")

    return _use("SparkContext._gateway", use, otherwise)


def java_query(query: StreamingQuery) -> Any:
    """What a StreamingQuery is made of."""

    def otherwise() -> Any:
        query.stop()  # nobody would hear why it fails
        raise ConfigError("holdfast cannot follow the queries of this version of Spark: use one that the README names")

    return _use("StreamingQuery._jsq", lambda: query._jsq, otherwise)


def fill_writer(writer: Any, made: Any) -> None:
    """Make of a writer of Spark Connect what Spark has made of another one, without what is private to it."""

    def otherwise() -> None:
        raise ConfigError(
            "holdfast cannot extend the writer of this Spark Connect: use df.writeStream.format('holdfast') with the "
            "sink's options"
        )

    _use("connect.DataStreamWriter", lambda: vars(writer).update(vars(made)), otherwise)


def pickle_by_value(module: ModuleType) -> None:
    """Let tasks get what is in a module that they cannot import."""

    def use() -> None:
        from pyspark import cloudpickle

        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]

    _use("cloudpickle.register_pickle_by_value", use, lambda: None)


def file_manager(context: SparkContext) -> str | None:
    """The class that writes Spark's own checkpoint files without starting processes; None where there is none."""

    def use() -> str:
        for name in _FILE_MANAGERS:
            if class_origin(context, name) is not None:
                return name
        raise AttributeError("no class of this name")

    return _use("FileSystemBasedCheckpointFileManager", use, lambda: None)


def is_classic(df: DataFrame) -> bool:
    """Whether this is a frame of a SparkSession with a JVM, not of Spark Connect."""
    return hasattr(df, "_jdf")


def has_jvm(spark: SparkSession) -> bool:
    """Whether this session's driver is here; that of Spark Connect is elsewhere."""
    return hasattr(spark, "_jsparkSession")


def settings_of(spark: SparkSession) -> Any:
    """What has `get(key, default)` of Spark's settings; a session of Spark Connect has no context."""
    return spark.sparkContext.getConf() if has_jvm(spark) else spark.conf
