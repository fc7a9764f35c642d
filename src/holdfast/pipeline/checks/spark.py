"""Spark itself: settings and versions."""

from __future__ import annotations

import re
from collections.abc import Iterator

from holdfast.checkpoint.history import log_location
from holdfast.pipeline.checks.registry import Problem, check, fatal, warning
from holdfast.pipeline.checks.situation import Situation
from holdfast.spark.packages import prove_packages
from holdfast.spark.private import class_origin

#: first and last minor version that is supported
OLDEST, NEWEST = (4, 0), (4, 3)
_PROVIDER = "org.apache.spark.sql.kafka010.KafkaSourceProvider"
_JAR = re.compile(r"spark-sql-kafka-0-10_[\d.]+-([\w.]+?)\.jar")


@check("spark-version", remedy="Install a Spark from 4.0 to 4.3: pip install 'pyspark>=4.0,<4.4'")
def version(situation: Situation) -> Iterator[Problem]:
    """This Spark is one that holdfast is tested with."""
    found = judge_version(situation.spark.version)
    if found is not None:
        yield found


def judge_version(text: str) -> Problem | None:
    """What is wrong with a version of Spark."""
    numbers = re.match(r"(\d+)\.(\d+)", text)
    minor = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
    if OLDEST <= minor <= NEWEST:
        return None
    return warning(f"Spark {text} is none of 4.0 to 4.3, which holdfast is tested with")


@check("spark-kafka-connector", remedy="Give Spark the connector of its own version: hf.session(kafka=True) does")
def connector(situation: Situation) -> Iterator[Problem]:
    """Spark's Kafka connector is of Spark's own version."""
    if not situation.sources:
        return
    found = judge_connector(class_origin(situation.spark.sparkContext, _PROVIDER), situation.spark.version)
    if found is not None:
        yield found


@check(
    "spark-packages",
    remedy="Install what is missing on every machine, or ship it with the job: --archives, --py-files (docs/deploy)",
)
def packages(situation: Situation) -> Iterator[Problem]:
    """Executors have the packages that tasks need; on one machine they are the driver's own."""
    prove_packages(situation.spark.sparkContext, situation.sinks, log_location(situation.location))
    yield from ()


def judge_connector(jar: str | None, spark: str) -> Problem | None:
    """What is wrong with the jar that Spark reads Kafka with."""
    found = None if jar is None else _JAR.search(jar)
    if found is None or found[1] == spark:
        return None
    text = f"Spark is {spark} and its Kafka connector {found[1]} ({jar})"
    same_minor = found[1].split(".")[:2] == spark.split(".")[:2]
    return warning(text) if same_minor else fatal(text)
