"""Spark's Java and PySpark's own objects: queries, sessions, settings, writers."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from holdfast.errors import ConfigError, HoldfastError
from holdfast.spark.private import interfaces

logger = logging.getLogger("holdfast")
#: In Spark 4.1 and newer, and in 4.0.
_FILE_MANAGERS = tuple(
    f"org.apache.spark.sql.execution.streaming.{package}FileSystemBasedCheckpointFileManager"
    for package in ("checkpointing.", "")
)


def interrupt(query: StreamingQuery) -> None:
    """End a query so that Spark takes it for a failure."""

    def use() -> None:
        query._jsq.streamingQuery().queryExecutionThread().interrupt()

    # A stop looks like a clean end to Spark's listeners and to awaitAnyTermination; the query itself still tells.
    interfaces.use("StreamExecution.queryExecutionThread", use, lambda: StreamingQuery.stop(query))


def failure_text(query: StreamingQuery) -> str | None:
    """Why Spark says that the query failed; None when it ended by itself or was stopped."""

    def use() -> str | None:
        told = query._jsq.exception()
        return None if told.isEmpty() else str(told.get().toString())

    def otherwise() -> str | None:
        told = StreamingQuery.exception(query)
        return None if told is None else str(told)

    return interfaces.use("StreamingQuery.exception", use, otherwise)


def pause(context: SparkContext) -> None:
    """Wait a moment; in a batch, Spark's stop of the query ends it."""

    def use() -> None:
        jvm: Any = context._jvm
        jvm.java.lang.Thread.sleep(50)

    interfaces.use("java.lang.Thread.sleep", use, lambda: time.sleep(0.05))


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

    return interfaces.use("hadoop.fs.Path", use, otherwise)


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

    return interfaces.use("ClassLoader.loadClass", use, lambda: None)


def hadoop_settings(
    context: SparkContext,
) -> tuple[Callable[[str], str | None], Callable[[str], Mapping[str, str]]]:
    """Hadoop's settings as Spark was told them: one, and all whose names begin so, by the rest of their names."""

    def use() -> tuple[Callable[[str], str | None], Callable[[str], Mapping[str, str]]]:
        configuration: Any = context._jsc.hadoopConfiguration()
        return configuration.get, lambda prefix: dict(configuration.getPropsWithPrefix(prefix))

    return interfaces.use("SparkContext.hadoopConfiguration", use, lambda: (lambda name: None, lambda prefix: {}))


def submitted() -> dict[str, str]:
    """What spark-submit was told; it has started the JVM already."""

    def use() -> dict[str, str]:
        SparkContext._ensure_initialized()
        return dict(SparkConf().getAll())

    return interfaces.use("SparkContext._ensure_initialized", use, dict)


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

    interfaces.use("SparkContext._gateway", use, lambda: None)


def stop_java(spark: SparkSession, timeout: float) -> int:
    """Stop Spark and end the Java process that this one has started; its exit code."""

    def use() -> int:
        process = spark.sparkContext._gateway.proc  # type: ignore[union-attr]
        spark.stop()
        process.stdin.close()  # it ends when its standard input does
        return int(process.wait(timeout))

    def otherwise() -> int:
        raise HoldfastError("this PySpark does not show the Java process it has started")

    return interfaces.use("SparkContext._gateway", use, otherwise)


def java_query(query: StreamingQuery) -> Any:
    """What a StreamingQuery is made of."""

    def otherwise() -> Any:
        query.stop()  # nobody would hear why it fails
        raise ConfigError("holdfast cannot follow the queries of this version of Spark: use one that the README names")

    return interfaces.use("StreamingQuery._jsq", lambda: query._jsq, otherwise)


def fill_writer(writer: Any, made: Any) -> None:
    """Make of a writer of Spark Connect what Spark has made of another one, without what is private to it."""

    def otherwise() -> None:
        raise ConfigError(
            "holdfast cannot extend the writer of this Spark Connect: use df.writeStream.format('holdfast') with the "
            "sink's options"
        )

    interfaces.use("connect.DataStreamWriter", lambda: vars(writer).update(vars(made)), otherwise)


def pickle_by_value(module: ModuleType, *, forget: bool = False) -> None:
    """Let tasks get what is in a module that they cannot import; or no more, with `forget`."""
    if forget:
        _cloudpickle().unregister_pickle_by_value(module)
    else:
        _cloudpickle().register_pickle_by_value(module)


def pickled(thing: Any) -> bytes:
    """As Spark pickles what its tasks are given."""
    made: bytes = _cloudpickle().dumps(thing)
    return made


def _cloudpickle() -> Any:
    """Spark's own copy, which has no types: what is registered there also holds for its closures."""

    def otherwise() -> Any:
        import cloudpickle

        return cloudpickle

    return interfaces.use("pyspark.cloudpickle", lambda: importlib.import_module("pyspark.cloudpickle"), otherwise)


@contextmanager
def by_value(*modules: ModuleType) -> Iterator[None]:
    """Pickle with the code of these modules: where holdfast is missing, nothing of it can be imported."""
    for module in modules:
        pickle_by_value(module)
    try:
        yield
    finally:
        for module in modules:
            pickle_by_value(module, forget=True)


def file_manager(context: SparkContext) -> str | None:
    """The class that writes Spark's own checkpoint files without starting processes; None where there is none."""

    def use() -> str:
        for name in _FILE_MANAGERS:
            if class_origin(context, name) is not None:
                return name
        raise AttributeError("no class of this name")

    return interfaces.use("FileSystemBasedCheckpointFileManager", use, lambda: None)


def is_classic(df: DataFrame) -> bool:
    """Whether this is a frame of a SparkSession with a JVM, not of Spark Connect."""
    return not _of_connect(df)


def has_jvm(spark: SparkSession) -> bool:
    """Whether this session's driver is here; that of Spark Connect is elsewhere."""
    return not _of_connect(spark)


def _of_connect(thing: object) -> bool:
    """By the package of its class, which need not be installed."""
    return any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(thing).__mro__)


def settings_of(spark: SparkSession) -> Any:
    """What has `get(key, default)` of Spark's settings; a session of Spark Connect has no context."""
    return spark.sparkContext.getConf() if has_jvm(spark) else spark.conf
