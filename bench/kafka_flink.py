"""Flink's exactly-once Kafka sink for the benchmark: a SQL job on Flink's own local cluster, in one Java process.

Flink's jars come from PyPI and its Kafka connector from Maven Central, on first use, into `~/.cache/holdfast`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from bench.kafka_topics import ALIKE, PARTITIONS
from holdfast.spark.jars import Coordinate, cache_folder, fetch_jars

VERSION = "2.3.0"
CONNECTORS = (
    Coordinate("org.apache.flink", "flink-sql-connector-kafka", "5.0.0-2.2"),
    # not among the jars on PyPI, and the SQL client runs inside it
    Coordinate("org.apache.flink", "flink-sql-gateway", VERSION),
    Coordinate("org.apache.flink", "flink-sql-gateway-api", VERSION),
)
#: About the time of one batch of Spark's: rows become visible as often.
CHECKPOINT_MS = 1500
_OPENED = (
    "java.util",
    "java.lang",
    "java.time",
    "java.net",
    "java.io",
    "java.nio",
    "java.text",
    "java.util.concurrent",
)
_LOGGING = """rootLogger.level = ERROR
rootLogger.appenderRef.console.ref = console
appender.console.name = console
appender.console.type = CONSOLE
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c %m%n
"""


def jars() -> list[Path]:
    """Everything on the class path; fetched when it is not there."""
    folder = cache_folder() / f"flink-{VERSION}"
    if not folder.is_dir():
        unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(unfinished)]
        subprocess.run([*command, f"apache-flink-libraries=={VERSION}"], check=True)
        unfinished.rename(folder)
    own = folder / "pyflink"
    return [*sorted(own.glob("lib/*.jar")), *sorted(own.glob("opt/*.jar")), *fetch_jars(CONNECTORS)]


def reading(servers: str, topic: str, *, bounded: bool = True) -> dict[str, str]:
    """Options of a table over a topic; bounded it ends with the rows that are there, and with it the job."""
    return {
        "connector": "kafka",
        "properties.bootstrap.servers": servers,
        "topic": topic,
        "scan.startup.mode": "earliest-offset",
        **({"scan.bounded.mode": "latest-offset"} if bounded else {}),
        "properties.isolation.level": "read_committed",
    }


def writing(servers: str, topic: str) -> dict[str, str]:
    """Options of a table that is written exactly once."""
    return {
        "connector": "kafka",
        "properties.bootstrap.servers": servers,
        "topic": topic,
        "sink.delivery-guarantee": "exactly-once",
        "sink.transactional-id-prefix": topic,
        "properties.transaction.timeout.ms": "900000",
        **{f"properties.{key}": value for key, value in ALIKE.items()},
    }


def table(name: str, columns: str, options: Mapping[str, str]) -> str:
    listed = ", ".join(f"'{key}' = '{value}'" for key, value in options.items())
    return f"CREATE TABLE {name} ({columns}) WITH ({listed});"


def settings(more: Mapping[str, str] | None = None) -> list[str]:
    """What the SQL client is told before anything else."""
    told = {
        "execution.target": "local",
        "table.dml-sync": "true",
        "parallelism.default": str(PARTITIONS),
        "execution.checkpointing.interval": f"{CHECKPOINT_MS} ms",
        **(more or {}),
    }
    return [f"SET '{key}' = '{value}';" for key, value in told.items()]


def script(servers: str, source: str, target: str) -> str:
    """Two tables and one INSERT of bytes as they are."""
    raw = {"key.format": "raw", "key.fields": "k", "value.format": "raw", "value.fields-include": "EXCEPT_KEY"}
    lines = [
        *settings(),
        table("source", "k BYTES, v BYTES", {**reading(servers, source), **raw}),
        table("target", "k BYTES, v BYTES", {**writing(servers, target), **raw}),
        "INSERT INTO target SELECT k, v FROM source;",
    ]
    return "\n".join(lines) + "\n"


def command(folder: Path, script: str) -> tuple[list[str], dict[str, str]]:
    """(command, environment) of one run of a script."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.yaml").write_text(f"parallelism.default: {PARTITIONS}\n")
    (folder / "log4j.properties").write_text(_LOGGING)
    (folder / "job.sql").write_text(script)
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java") or "java"
    opened = [f"--add-opens=java.base/{package}=ALL-UNNAMED" for package in _OPENED]
    return [
        java, "-Xmx2g", *opened, "--add-exports=java.base/sun.net.util=ALL-UNNAMED",
        f"-Dlog4j.configurationFile={folder / 'log4j.properties'}",
        "-cp", ":".join(map(str, jars())), "org.apache.flink.table.client.SqlClient",
        "-f", str(folder / "job.sql"), "-hist", str(folder / "history"),
    ], {**os.environ, "FLINK_CONF_DIR": str(folder)}  # fmt: skip
