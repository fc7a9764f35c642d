"""hf.session: the workers run the Python that runs the driver."""

from __future__ import annotations

import sys

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast import errors

pytestmark = pytest.mark.spark


def test_workers_run_the_python_of_the_driver(spark: SparkSession) -> None:
    """Plain PySpark starts `python3` from PATH, which in a virtual environment is another one."""
    assert spark.sparkContext.parallelize([0], 1).map(lambda _: sys.executable).collect() == [sys.executable]


def test_a_running_session_is_returned(spark: SparkSession) -> None:
    assert hf.session("another name") is spark


def test_a_running_session_with_another_python_is_refused(spark: SparkSession, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/opt/other/bin/python")
    with pytest.raises(errors.ConfigError, match=r"not /opt/other/bin/python.*stop it first"):
        hf.session("x")


def test_a_session_needs_a_name() -> None:
    with pytest.raises(errors.ConfigError, match="app_name"):
        hf.session("")
