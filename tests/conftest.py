"""Shared by all tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all integration tests."""
    import holdfast as hf

    session = hf.session("tests", conf={"spark.master": "local[2]", "spark.driver.memory": "1g"})
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
