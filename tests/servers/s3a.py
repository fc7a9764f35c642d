"""Spark's own way to S3 (`s3a://`): Hadoop's module, and of Amazon's SDK only the parts that it needs here (19 MB)."""

from __future__ import annotations

from pathlib import Path

from holdfast.spark.jars import Coordinate, fetch_jars

_SDK = ("software.amazon.awssdk", "2.35.4")
#: Of the Hadoop that Spark 4.2 ships; its bundle of the whole SDK has 600 MB.
S3A = (
    Coordinate("org.apache.hadoop", "hadoop-aws", "3.5.0"),
    Coordinate(_SDK[0], "s3-transfer-manager", _SDK[1], transitive=True),
    Coordinate(_SDK[0], "sts", _SDK[1], transitive=True),
    Coordinate("software.amazon.s3.analyticsaccelerator", "analyticsaccelerator-s3", "1.3.1"),
)


def jars() -> list[Path]:
    """Fetched once, then from the cache."""
    return fetch_jars(S3A)


def settings(endpoint: str) -> dict[str, str]:
    """What Spark is told of a store at this address."""
    told = {
        "endpoint": endpoint,
        "endpoint.region": "us-east-1",
        "access.key": "x",
        "secret.key": "y",
        "path.style.access": "true",
        "connection.ssl.enabled": "false",
        # The default one needs more of the SDK.
        "input.stream.type": "classic",
    }
    return {
        "spark.jars": ",".join(map(str, jars())),
        **{f"spark.hadoop.fs.s3a.{name}": value for name, value in told.items()},
    }
