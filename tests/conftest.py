"""For all tests: Spark starts from kept classes, where `make test` or `python -m tests.class_archive` kept them; servers
that several kinds of tests use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import class_archive
from tests.servers.cassandra import CassandraServer

class_archive.use()


@pytest.fixture(scope="session")
def cassandra(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CassandraServer]:
    """A real Cassandra, one for the whole session."""
    server = CassandraServer(Path(tmp_path_factory.mktemp("cassandra")))
    server.start()
    yield server
    server.stop()
