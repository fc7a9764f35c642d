"""Servers for the integration tests, each started when the first test asks for it."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import pytest
from pyspark.sql import SparkSession

from tests.servers.kafka import KafkaBroker
from tests.servers.s3_fixtures import bucket, s3_server
from tests.spark_conf import FAST

__all__ = ["bucket", "s3_server"]


@pytest.fixture
def topic(kafka: KafkaBroker) -> Callable[..., str]:
    """Makes a topic of its own name."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": kafka.bootstrap})

    def make(prefix: str = "t", partitions: int = 2, **config: str) -> str:
        name = f"{prefix}-{uuid.uuid4().hex[:8]}"
        admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(60)
        return name

    return make


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all integration tests, with the Kafka connector (but for `make compat` where there is none)."""
    import holdfast as hf

    kafka = "HOLDFAST_TESTS_WITHOUT_KAFKA" not in os.environ
    session = hf.session("tests", kafka=kafka, conf={**FAST, "spark.master": "local[2]"})
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def rocksdb(spark: SparkSession) -> Iterator[SparkSession]:
    """The same Spark, which keeps state in RocksDB for one test."""
    import holdfast as hf
    from holdfast.spark.session import STATES

    before = {key: spark.conf.get(key, None) for key in STATES["rocksdb"]}
    yield hf.session("tests", state="rocksdb")
    for key, value in before.items():
        spark.conf.unset(key) if value is None else spark.conf.set(key, value)
