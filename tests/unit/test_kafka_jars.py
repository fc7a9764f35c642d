"""Spark's Kafka connector, where it cannot be had."""

from __future__ import annotations

import pyspark
import pytest

from holdfast.errors import ConfigError, EngineError
from holdfast.spark import jars


def test_a_spark_without_a_connector_says_which_have_one_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def fetch(coordinates: object) -> None:
        raise EngineError("not found: spark-sql-kafka")

    monkeypatch.setattr(jars, "fetch_jars", fetch)
    with pytest.raises(ConfigError) as raised:
        jars.kafka_jars()
    said = str(raised.value)
    assert f"spark-sql-kafka-0-10_2.13:{pyspark.__version__}, which could not be had" in said
    assert jars.KNOWN in said and "4.2.0" in jars.KNOWN
    assert "start without kafka=True and name them in spark.jars" in said
    assert isinstance(raised.value.__cause__, EngineError)
