"""Brokers for the crash tests, each started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers.kafka import KafkaBroker


@pytest.fixture(scope="session")
def mortal_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that tests kill and restart."""
    broker = KafkaBroker(tmp_path_factory.mktemp("mortal-kafka"))
    broker.start()
    yield broker
    broker.stop(kill=True)
