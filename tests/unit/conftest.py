"""Fixtures of the unit tests: no Spark, and the only server is moto's S3."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.loops import Threads
from holdfast.core.retry import Retry
from tests.servers.s3_fixtures import bucket, s3_server
from tests.unit.inprocess import Endpoint, Engine

__all__ = ["bucket", "s3_server"]


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "checkpoint" / "holdfast")


@pytest.fixture
def threaded() -> Iterator[Callable[..., Engine]]:
    """Engines with a thread for each sink, and the real time; ended after the test."""
    made: list[Engine] = []

    def make(location: str, *sinks: Any, **options: Any) -> Engine:
        settings = {"loops": Threads(), "clock": time.time, "retry": Retry(for_=0.5, first_wait=0.02), **options}
        made.append(Engine(location, *sinks, **settings))
        return made[-1]

    yield make
    for engine in made:
        engine.coordinator.close(0.0)
