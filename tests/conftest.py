"""For all tests: how Spark is started; servers that several kinds of tests use."""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.door_query import DoorQuery
from tests.servers.cassandra import CassandraServer
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_cluster import KafkaCluster
from tests.servers.postgres import PostgresServer
from tests.servers.spark_cluster import SparkCluster

# Examples and the demo start their own Spark, and no test runs one for so long that the second compiler pays.
os.environ["SPARK_SUBMIT_OPTS"] = f"{os.environ.get('SPARK_SUBMIT_OPTS', '')} -XX:TieredStopAtLevel=1".strip()

# The same examples in every run, so that nothing is red by chance; `make explore` (tests/explore.py) draws new ones.
# Neither fails because a machine is busy.
settings.register_profile("repeat", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, derandomize=False, print_blob=True)
settings.load_profile("repeat")

SERVERS = ("spark_cluster", "cassandra", "kafka_cluster", "kafka", "postgres", "spark")


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in a hook of its own
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Side by side (`pytest -n 2 --dist loadgroup`) each server has one worker, a file stays together, and crash cases,
    which take most of the time, go to whoever is free. Those that need a server have one of their own: a worker that
    had them and all other tests of that server would be at it long after the others."""
    for item in items:
        asked = [server for server in SERVERS if server in getattr(item, "fixturenames", ())]
        crash = "tests/crash/" in item.nodeid
        if asked:
            item.add_marker(pytest.mark.xdist_group(f"{asked[0]}-crash" if crash else asked[0]))
        elif not crash:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.fixture(autouse=True)
def own_log_settings() -> Iterator[None]:
    """`holdfast run`, which some tests call in their own process, takes holdfast's log lines away from all others."""
    logger = logging.getLogger("holdfast")
    before = logger.level, logger.propagate, logger.disabled, list(logger.handlers)
    yield
    logger.level, logger.propagate, logger.disabled, logger.handlers[:] = before
    logger.manager._clear_cache()  # levels are remembered


@pytest.fixture(params=["write_stream", "door"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test of the contract suite runs twice: as hf.write_stream does it, and as `format("holdfast")` does."""
    if request.param == "door":
        monkeypatch.setattr("holdfast.testing.context.LocalQuery", DoorQuery)


@pytest.fixture(scope="session")
def cassandra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraServer]:
    """A real Cassandra, one for the whole session."""
    server = CassandraServer(Path(tmp_path_factory.mktemp("cassandra")))
    server.start()
    yield server
    server.stop(kill=True)


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real broker."""
    broker = KafkaBroker(Path(tmp_path_factory.mktemp("kafka")))
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def kafka_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaCluster]:
    """Three real brokers."""
    cluster = KafkaCluster(Path(tmp_path_factory.mktemp("cluster")))
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real server, with prepared transactions; each test makes a database of its own."""
    server = PostgresServer(fsync="off")  # no test cuts the power
    server.start()
    yield server
    server.close()


@pytest.fixture(scope="session")
def spark_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A real Spark cluster: a master, two workers with a core each."""
    cluster = SparkCluster(Path(tmp_path_factory.mktemp("spark-cluster")))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
