"""Jars by their Maven coordinates, with the Ivy that PySpark ships.

`spark.jars.packages` would do the same, but Spark's Kafka connector names a token provider that some mirrors lack, and
one missing jar fails the whole resolution. Here each coordinate is taken as it is listed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pyspark

from holdfast.errors import ConfigError, HoldfastError

#: Seen on Maven Central in November 2026.
KNOWN = "Maven Central had connectors for Spark 4.0.0 to 4.0.4, 4.1.0 to 4.1.3 and 4.2.0 when this was written"


@dataclass(frozen=True)
class Coordinate:
    """One artifact; with `transitive`, all it needs too; with a `classifier`, another jar of that version."""

    group: str
    artifact: str
    version: str
    transitive: bool = False
    classifier: str = ""

    @property
    def folder(self) -> str:
        """Its name in the cache."""
        plain = f"{self.artifact}-{self.version}-{int(self.transitive)}"
        return f"{plain}-{self.classifier}" if self.classifier else plain


#: What Spark's Kafka connector needs. The token provider of 4.0.0 works with all connectors up to 4.2.
_BESIDE_KAFKA = (
    Coordinate("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.0.0"),
    Coordinate("org.apache.kafka", "kafka-clients", "3.9.2"),
    Coordinate("org.apache.commons", "commons-pool2", "2.13.1"),
    Coordinate("org.scala-lang.modules", "scala-parallel-collections_2.13", "1.2.0"),
    Coordinate("com.google.code.findbugs", "jsr305", "3.0.0"),
)


def kafka_jars() -> list[Path]:
    """Spark's Kafka source and sink, of the version of the Spark that runs."""
    connector = Coordinate("org.apache.spark", "spark-sql-kafka-0-10_2.13", pyspark.__version__)
    try:
        return [*fetch_jars([connector]), *fetch_jars(_BESIDE_KAFKA)]
    except HoldfastError as error:
        raise ConfigError(
            f"Spark {pyspark.__version__} reads from Kafka with {connector.artifact}:{connector.version}, which could "
            f"not be had. {KNOWN}. If this machine cannot reach Maven Central, fetch the jars "
            "elsewhere, start without kafka=True and name them in spark.jars; else use a Spark that has a connector"
        ) from error


def cache_folder() -> Path:
    """Where jars are kept between runs: `HOLDFAST_CACHE`, or `~/.cache/holdfast`."""
    return Path(os.environ.get("HOLDFAST_CACHE") or Path.home() / ".cache" / "holdfast")


def fetch_jars(coordinates: Sequence[Coordinate]) -> list[Path]:
    """The jars of these coordinates; fetched once, then taken from the cache."""
    jars: list[Path] = []
    for coordinate in coordinates:
        folder = cache_folder() / "jars" / coordinate.folder
        if not folder.is_dir():
            _fetch(coordinate, folder)
        jars += sorted(folder.glob("*.jar"))
    return jars


def _fetch(coordinate: Coordinate, folder: Path) -> None:
    """Fetch into a folder beside it and rename: a folder that exists is whole, whoever was killed."""
    unfinished = folder.with_name(f"{folder.name}.{os.getpid()}")
    ivy = next(Path(pyspark.__file__).parent.glob("jars/ivy-*.jar"))
    command = [
        _java(), f"-Divy.default.ivy.user.dir={cache_folder() / 'ivy'}", "-jar", str(ivy),
        *_wanted(coordinate, unfinished), "-confs", "default", "-types", "jar", "bundle",
        "-retrieve", f"{unfinished}/[artifact]-[revision](-[classifier]).[ext]",
    ]  # fmt: skip
    if not coordinate.transitive:
        command.append("-notransitive")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not list(unfinished.glob("*.jar")):
        shutil.rmtree(unfinished, ignore_errors=True)
        raise HoldfastError(
            f"{coordinate.group}:{coordinate.artifact}:{coordinate.version} could not be fetched from Maven Central: "
            f"{(done.stdout + done.stderr).strip()[-800:]}"
        )
    try:
        unfinished.rename(folder)
    except OSError:
        # Another process was faster and its folder is as good as ours.
        shutil.rmtree(unfinished)
        if not folder.is_dir():
            raise


def _wanted(coordinate: Coordinate, unfinished: Path) -> list[str]:
    """The arguments that name it: Ivy's command line knows no classifiers, a file does."""
    if not coordinate.classifier:
        return ["-dependency", coordinate.group, coordinate.artifact, coordinate.version]
    unfinished.mkdir(parents=True)
    file = unfinished / "ivy.xml"
    file.write_text(
        '<ivy-module version="2.0" xmlns:m="http://ant.apache.org/ivy/maven">'
        '<info organisation="holdfast" module="fetch"/><dependencies>'
        f'<dependency org="{coordinate.group}" name="{coordinate.artifact}" rev="{coordinate.version}">'
        f'<artifact name="{coordinate.artifact}" type="jar" ext="jar" m:classifier="{coordinate.classifier}"/>'
        "</dependency></dependencies></ivy-module>"
    )
    return ["-ivy", str(file)]


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    if found is None:
        raise HoldfastError("no java on PATH and no JAVA_HOME: install Java 17 (Debian: openjdk-17-jre-headless)")
    return found
