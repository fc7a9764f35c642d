"""`holdfast prepare`: fetch and make, once for a machine or an image, what a first start would wait for."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Group
from rich.text import Text

from holdfast.cli.output import OK, JsonOption, reporting, size

KafkaOption = Annotated[bool, typer.Option("--kafka", help="Also fetch Spark's Kafka connector from Maven Central.")]


def prepare(kafka: KafkaOption = False, json: JsonOption = False) -> None:
    """Keep an archive of Spark's classes, with which Spark starts sooner; takes half a minute, the second time nothing.

    Run it when an image is built or after Spark or Java was updated. It is kept in ~/.cache/holdfast, or in
    HOLDFAST_CACHE, and hf.session uses it by itself.
    """
    with reporting(json=json) as out:
        from holdfast.spark.class_archive import make  # loads pyspark
        from holdfast.spark.jars import kafka_jars

        archive = make()
        found = archive.stat().st_size
        jars = kafka_jars() if kafka else []
        document = {"archive": str(archive), "bytes": found, "jars": [str(jar) for jar in jars]}
        lines = [f"Spark's classes: {archive} ({size(found)})", *(f"connector: {jar}" for jar in jars)]
        out.result(document, lambda: Group(*map(Text, lines)))
        out.exit(OK)
