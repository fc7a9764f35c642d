"""Spark's classes kept in Java's own format, made once for a machine by `python -m tests.prepare`.

The tests start Spark hundreds of times, and a third of each start is Java reading and verifying the same classes. Java
can map them from a class data sharing archive instead. Java itself checks that an archive fits its class path, and goes
on without one that does not.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pyspark

from holdfast.spark.jars import cache_folder
from tests import spark_conf

#: What spark-submit adds to the command line of every JVM it starts, whoever asks it to.
VARIABLE = "SPARK_SUBMIT_OPTS"
_WEEK = 7 * 24 * 3600


def location() -> Path:
    """Where the archive of this Java and these jars is, or will be."""
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else shutil.which("java")
    binary = Path(java or "java").resolve()
    jars = Path(pyspark.__file__).parent / "jars"
    parts = [str(binary), str(jars)]
    # Java compares the files and their order, which is the order the folder gives them in.
    for file in [binary, *jars.iterdir()]:
        state = file.stat()
        parts.append(f"{file.name} {state.st_size} {state.st_mtime_ns}")
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache_folder() / "classes" / f"spark-{pyspark.__version__}-{key}.jsa"


def use() -> None:
    """From now on every Spark that this process or a child of it starts takes its classes from the archive, if any."""
    archive = location()
    if archive.exists():
        add_option(f"-XX:SharedArchiveFile={archive}")


def add_option(option: str) -> None:
    """For every Spark that this process or a child of it starts."""
    options = os.environ.get(VARIABLE, "").split()
    if option not in options:
        os.environ[VARIABLE] = " ".join([*options, option])


def make() -> Path | None:
    """Make the archive unless it is there; None when this Java makes none."""
    archive = location()
    if archive.exists():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="holdfast-classes-") as work:
        unfinished = archive.with_name(f"{archive.name}.{os.getpid()}")
        code = _run_spark(Path(work), f"-Xlog:disable -XX:ArchiveClassesAtExit={unfinished}")
    if code != 0 or not unfinished.exists():
        unfinished.unlink(missing_ok=True)
        return None
    # Java crashes on half an archive: the name is only ever that of a whole file. Two makers at once make the same.
    with unfinished.open("rb") as file:
        os.fsync(file.fileno())
    unfinished.rename(archive)
    for other in archive.parent.iterdir():
        with contextlib.suppress(FileNotFoundError):
            if other != archive and other.stat().st_mtime < time.time() - _WEEK:
                other.unlink()
    return archive


def _run_spark(work: Path, java_options: str) -> int:
    """Do what the tests' drivers do, so that Java has seen their classes when it ends; Java's exit code."""
    import holdfast as hf
    from tests.crash import job
    from tests.crash.harness import Work

    options = f"{spark_conf.FAST['spark.driver.extraJavaOptions']} {java_options}"
    conf = {**spark_conf.FAST, "spark.master": "local[2]", "spark.driver.extraJavaOptions": options}
    spark = hf.session("classes", conf=conf)
    for sink in ("sqlite", "write-ahead", "stateful"):
        folder = Work(work / sink, sink).folder
        sys.argv = ["job", json.dumps({"work": str(folder), "sink": sink, "name": sink})]
        job.main()
    # Kafka's source is of another kind than files; so is this one.
    rate = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).load()
    query = rate.writeStream.format("noop").option("checkpointLocation", f"{work}/rate").trigger(once=True).start()
    query.awaitTermination(60)
    java = spark.sparkContext._gateway.proc
    spark.stop()
    # Java ends when its standard input does, and writes the archive then.
    java.stdin.close()
    return int(java.wait(120))
