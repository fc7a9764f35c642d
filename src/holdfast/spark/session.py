"""A SparkSession that works on a laptop."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping

from pyspark.sql import SparkSession

from holdfast.errors import ConfigError
from holdfast.spark.jars import SPARK_KAFKA, resolve

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    # With it Spark starts other workers for SQL than for RDDs, and holdfast uses both.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
}
#: Arrow's own advice for production: without it each access to a value checks again what its writer has checked.
_JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
#: Over TCP every task waits 40 ms: Spark sends its last bytes only when the worker's system acknowledges the others.
_SOCKETS, _SOCKET_FOLDER = (f"spark.python.unix.domain.socket.{name}" for name in ("enabled", "dir"))
#: How long the name of their folder may be: Spark adds 43 characters, and a system takes 104.
_LONGEST = 61


def session(app_name: str, *, kafka: bool = False, conf: Mapping[str, str] | None = None) -> SparkSession:
    """A local SparkSession whose workers run this very Python; `conf` adds to and overrides the defaults.

    With `kafka=True` Spark's Kafka connector is added; it is fetched once and kept in `~/.cache/holdfast`.

    Plain PySpark starts the system's `python3` for its workers, which in a virtual environment is another one, without
    the packages. A session that already runs is returned as it is, if its workers run this Python.
    """
    if not isinstance(app_name, str) or not app_name:
        raise ConfigError(f"app_name must be a name, not {app_name!r}")
    running = SparkSession.getActiveSession()
    if running is not None:
        python = running.conf.get("spark.pyspark.python", None) or os.environ.get("PYSPARK_PYTHON")
        if python != sys.executable:
            raise ConfigError(
                f"a SparkSession is running already and its workers run {python or 'python3'}, not {sys.executable}: "
                "stop it first, or set spark.pyspark.python when you build it"
            )
        return running
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {**_DEFAULTS, **_sockets(), "spark.pyspark.python": sys.executable, **(conf or {})}
    for key in ("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"):
        settings[key] = f"{_JAVA_OPTIONS} {settings.get(key, '')}".strip()
    if kafka:
        jars = [str(jar) for jar in resolve(SPARK_KAFKA)]
        settings["spark.jars"] = ",".join(filter(None, [settings.get("spark.jars", ""), *jars]))
    builder = SparkSession.builder.appName(app_name)
    if "spark.master" not in settings:
        builder = builder.master("local[*]")
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _sockets() -> dict[str, str]:
    """Sockets of the file system, where there are any and their names are not too long."""
    folder = tempfile.gettempdir()
    if os.name != "posix" or len(os.fsencode(folder)) > _LONGEST:
        return {_SOCKETS: "false"}
    return {_SOCKETS: "true", _SOCKET_FOLDER: folder}
