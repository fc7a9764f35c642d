"""What `write_stream` gives back refuses what would go around its sinks, on a classic Spark and over Spark Connect."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.errors import ConfigError
from holdfast.spark.connect_writer import ConnectWriter
from holdfast.spark.stream import HoldfastWriter


@pytest.fixture(params=[HoldfastWriter, ConnectWriter])
def writer(request: pytest.FixtureRequest) -> Any:
    """As it is, but for its Spark, which is not asked."""
    return request.param.__new__(request.param)


@pytest.mark.parametrize(
    ("method", "argument"), [("format", "kafka"), ("foreachBatch", print), ("foreach", print), ("toTable", "t")]
)
def test_rows_go_to_the_sinks_and_nowhere_else(writer: Any, method: str, argument: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^{method}\(\) does not go with write_stream: rows go to its sinks"):
        getattr(writer, method)(argument)


@pytest.mark.parametrize("kind", ["continuous", "realTime"])
def test_only_micro_batches(writer: Any, kind: str) -> None:
    with pytest.raises(ConfigError, match=r"^trigger: .* processingTime, availableNow or once"):
        writer.trigger(**{kind: "1 second"})
