"""A SparkSession that works on a laptop, and under spark-submit as it was submitted."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Annotated

from pyspark.sql import SparkSession

from holdfast.core.options import SECRETS, checked, one_of, text
from holdfast.errors import ConfigError
from holdfast.spark import checkpoint_files, class_archive, daemon, private
from holdfast.spark.jars import kafka_jars

_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # With it Spark starts other workers for SQL than for RDDs, and holdfast uses both.
    "spark.sql.execution.pyspark.udf.simplifiedTraceback.enabled": "false",
    checkpoint_files.OURS: "true",
}
#: For one machine only: on a cluster they would be wrong.
_LOCAL_DEFAULTS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
#: Arrow's own advice for production: without it each access to a value checks again what its writer has checked.
_JAVA_OPTIONS = "-Darrow.enable_unsafe_memory_access=true -Darrow.enable_null_check_for_get=false"
#: Over TCP every task waits 40 ms: Spark sends its last bytes only when the worker's system acknowledges the others.
_SOCKETS, _SOCKET_FOLDER = (f"spark.python.unix.domain.socket.{name}" for name in ("enabled", "dir"))
#: How long the name of their folder may be: Spark adds 43 characters, and a system takes 104.
_LONGEST = 61
_PYTHON = "spark.pyspark.python"
_PRELOAD = f"spark.executorEnv.{daemon.VARIABLE}"
_STORE = "spark.sql.streaming.stateStore"
#: state kind -> settings: each checkpoint writes what has changed, and whole snapshots are made beside the batches
STATES = {
    "rocksdb": {
        f"{_STORE}.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        f"{_STORE}.rocksdb.changelogCheckpointing.enabled": "true",
        # Names that are never used twice: a task that is late or runs twice overwrites nobody's state.
        f"{_STORE}.checkpointFormatVersion": "2",
        # How many changes a restart reads, at most, after the last snapshot.
        f"{_STORE}.minDeltasForSnapshot": "10",
        f"{_STORE}.rocksdb.compactOnCommit": "false",
        # One cache for all stores of an executor, of 500 MB at most (maxMemoryUsageMB). Without it each has 8 MB, which
        # most reads miss where there are a million keys.
        f"{_STORE}.rocksdb.boundedMemoryUsage": "true",
    }
}
#: Set by spark-submit, which has started the JVM already.
_SUBMITTED = "PYSPARK_GATEWAY_PORT"


@checked
def session(
    app_name: Annotated[str, text("a name")],
    *,
    kafka: bool = False,
    state: Annotated[str, one_of(*STATES)] | None = None,
    conf: Annotated[Mapping[str, str], SECRETS] | None = None,
) -> SparkSession:
    """A SparkSession whose workers run this very Python; `conf` adds to and overrides the defaults.

    What was submitted (`spark-submit --master ... --conf ...`, `spark-defaults.conf`, `PYSPARK_SUBMIT_ARGS`) wins over
    the defaults, which fill only what nobody has set; without any it is local. With `kafka=True` Spark's Kafka
    connector is added; it is fetched once and kept in `~/.cache/holdfast`. With `state="rocksdb"` keyed state is kept
    in RocksDB, and a checkpoint writes only what has changed of it. Spark's Java maps its classes from an archive that
    `holdfast prepare` has made, if there is one (`spark.holdfast.classArchive`: `use`, `make` it beside the program, or
    `off`).

    Plain PySpark starts the system's `python3` for its workers, which in a virtual environment is another one, without
    the packages. A session that already runs is returned as it is, if its workers run this Python.
    """
    stores = {} if state is None else STATES[state]
    private.forget_dead_spark()
    if SparkSession.getActiveSession() is not None:
        # The active one may be a copy that a running micro-batch works with; the builder returns the first one.
        running = _checked(SparkSession.builder.getOrCreate())
        for key, value in stores.items():
            running.conf.set(key, (conf or {}).get(key, value))
        return running
    given = submitted()
    settings = {**given, **(conf or {})}
    master = settings.get("spark.master") or os.environ.get("MASTER") or "local[*]"
    local = master.startswith("local")
    # Another machine may not have the temporary folder of this one.
    sockets = _sockets(tempfile.gettempdir() if local else "/tmp")
    defaults = {**_DEFAULTS, **stores, **sockets, **(_LOCAL_DEFAULTS | _daemon() if local else {})}
    if local:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        defaults[_PYTHON] = sys.executable
    elif _PYTHON in settings:
        # PySpark asks the environment only, unless spark-submit has put it there.
        os.environ.setdefault("PYSPARK_PYTHON", settings[_PYTHON])
    chosen = {"spark.master": master, **{k: v for k, v in defaults.items() if k not in given}, **(conf or {})}
    # spark-submit has started its Java already.
    archive = "" if _SUBMITTED in os.environ else class_archive.options(settings)
    for key, more in ((class_archive.JAVA_OPTIONS, archive), ("spark.executor.extraJavaOptions", "")):
        chosen[key] = " ".join(filter(None, [_JAVA_OPTIONS, more, settings.get(key, "")]))
    if kafka:
        chosen.setdefault(_PRELOAD, "holdfast.connectors.kafka.sink.two_phase")
        jars = [str(jar) for jar in kafka_jars()]
        chosen["spark.jars"] = ",".join(filter(None, [settings.get("spark.jars", ""), *jars]))
    builder = SparkSession.builder.appName(app_name)
    for key, value in chosen.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def _checked(running: SparkSession) -> SparkSession:
    context = running.sparkContext
    python = running.conf.get(_PYTHON, None) or os.environ.get("PYSPARK_PYTHON")
    if (context.master or "").startswith("local") and python != sys.executable:
        raise ConfigError(
            f"a SparkSession is running already and its workers run {python or 'python3'}, not {sys.executable}: "
            "stop it first, or set spark.pyspark.python when you build it"
        )
    return running


def submitted() -> dict[str, str]:
    """What somebody has set before us."""
    if _SUBMITTED in os.environ:
        return private.submitted()
    return {**_defaults_file(), **_arguments(os.environ.get("PYSPARK_SUBMIT_ARGS", ""))}


def _defaults_file() -> dict[str, str]:
    """Spark's own file of defaults, where there is one."""
    home = os.environ.get("SPARK_HOME")
    folder = os.environ.get("SPARK_CONF_DIR") or (f"{home}/conf" if home else None)
    file = None if folder is None else Path(folder, "spark-defaults.conf")
    if file is None or not file.is_file():
        return {}
    lines = (line.strip() for line in file.read_text().splitlines())
    pairs = (line.replace("=", " ", 1).split(None, 1) for line in lines if line and not line.startswith("#"))
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def _arguments(text: str) -> dict[str, str]:
    """The settings among spark-submit's arguments."""
    words = shlex.split(text)
    found: dict[str, str] = {}
    for word, value in pairwise(words):
        if word == "--master":
            found["spark.master"] = value
        elif word in ("--conf", "-c") and "=" in value:
            key, _, setting = value.partition("=")
            found[key] = setting
    return found


def _daemon() -> dict[str, str]:
    """Our own daemon of workers, if a new Python finds it: Spark may bring holdfast to its tasks in other ways.

    On a cluster it may do so only after the daemon has started, so there Spark's own stays.
    """
    found = subprocess.run([sys.executable, "-c", f"import {daemon.__name__}"], capture_output=True, check=False)
    return {"spark.python.daemon.module": daemon.__name__} if found.returncode == 0 else {}


def _sockets(folder: str) -> dict[str, str]:
    """Sockets of the file system, where there are any and their names are not too long."""
    if os.name != "posix" or len(os.fsencode(folder)) > _LONGEST:
        return {_SOCKETS: "false"}
    return {_SOCKETS: "true", _SOCKET_FOLDER: folder}
