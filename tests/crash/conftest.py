"""Servers for the crash tests, each started when the first test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash import warm
from tests.servers.cassandra import CassandraServer
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer
from tests.servers.s3_fixtures import moto

__all__ = ["moto"]


@pytest.fixture(scope="session", autouse=True)
def warm_drivers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A driver whose query has ended serves the next test."""
    warm.POOL = warm.Pool(tmp_path_factory.mktemp("drivers"))
    yield
    warm.POOL.close()
    warm.POOL = None


@pytest.fixture(scope="session")
def mortal_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker that tests kill and restart."""
    broker = KafkaBroker(tmp_path_factory.mktemp("mortal-kafka"))
    broker.start()
    yield broker
    broker.stop(kill=True)


@pytest.fixture(scope="session")
def mortal_postgres() -> Iterator[PostgresServer]:
    """One that tests kill and restart."""
    server = PostgresServer(fsync="off")
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def mortal_cassandra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraServer]:
    """One that tests kill and restart."""
    server = CassandraServer(tmp_path_factory.mktemp("mortal-cassandra"))
    server.start()
    yield server
    server.stop(kill=True)
