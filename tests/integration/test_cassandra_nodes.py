"""CassandraSink on two real nodes, of which one hangs or is gone: what is told, what is sent again, what is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from cassandra import ConsistencyLevel, OperationTimedOut, ReadTimeout, Unavailable
from cassandra.cluster import NoHostAvailable

import holdfast as hf
from holdfast.testing.local import LocalBatch, LocalQuery
from tests.servers.cassandra import CassandraServer

SCHEMA = pa.schema([("k", pa.string()), ("c", pa.int64()), ("v", pa.int64())])


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[CassandraServer]]:
    """Two nodes, each with a copy of every row: a quorum is both of them."""
    folder = Path(tmp_path_factory.mktemp("nodes"))
    first = CassandraServer(folder / "1", alone=False)
    second = CassandraServer(folder / "2", beside=first)
    try:
        first.start()
        second.start()
        wait_until(first, "the nodes find each other", lambda node: bool(node.execute("SELECT peer FROM system.peers")))
        first.execute("CREATE KEYSPACE shop WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 2}")
        # Rows of one partition travel as an unlogged batch, those of a plain key one by one.
        first.execute("CREATE TABLE shop.grouped (k text, c bigint, v bigint, PRIMARY KEY (k, c))")
        first.execute("CREATE TABLE shop.single (k text PRIMARY KEY, c bigint, v bigint)")
        yield [first, second]
    finally:
        first.stop(kill=True)
        second.stop(kill=True)


class Rig:
    """A query into one of the tables, by way of the first node."""

    def __init__(self, nodes: list[CassandraServer], folder: Path, table: str) -> None:
        self.node, self.table = nodes[0], table
        sink = hf.CassandraSink(
            keyspace="shop",
            table=table,
            committer=hf.FileCheckpointCommitter(folder / "marks"),
            timeout=20,
            name="out",
            **self.node.options,
        )
        self.run = LocalQuery(str(folder / "checkpoint"), f"to-{table}", SCHEMA).start([sink])

    def write(self, checkpoint: int) -> None:
        """Two rows; in the table with a clustering column they are of one partition."""
        values = [{"k": "k" if self.table == "grouped" else f"k{n}", "c": n, "v": checkpoint} for n in range(2)]
        self.run.run(checkpoint, LocalBatch([[pa.RecordBatch.from_pylist(values, schema=SCHEMA)]]))

    @property
    def problem(self) -> str:
        """Why the sink lags."""
        (delivery,) = self.run.coordinator.deliveries
        return str(delivery.problem)

    @property
    def pending(self) -> list[int]:
        return [action.checkpoint_id for action in self.run.coordinator.pending]

    def values(self) -> list[int]:
        return [row["v"] for row in self.node.execute(f"SELECT v FROM shop.{self.table}")]


@pytest.mark.parametrize("table", ["single", "grouped"])
def test_w6_a_replica_that_hangs_is_a_timeout_of_its_kind_and_the_rows_are_sent_again(
    nodes: list[CassandraServer], tmp_path: Path, table: str
) -> None:
    """To Cassandra an unlogged batch within one partition is one write: its kind is SIMPLE, too."""
    rig = Rig(nodes, tmp_path, table)
    rig.write(0)
    assert (rig.pending, rig.values()) == ([], [0, 0])
    with nodes[1].hung():
        rig.write(1)
        rig.write(2)
        assert rig.pending == [1, 2], "the stream goes on"
        assert "a write (SIMPLE) timed out, 1 of the 2 replicas that consistency LOCAL_QUORUM needs" in rig.problem
        assert "it is sent again, which changes nothing" in rig.problem
    wait_until_up(nodes)
    rig.run.deliver()
    assert (rig.pending, rig.values()) == ([], [2, 2])
    rig.run.close()


def test_w6_a_replica_that_is_gone_is_told_as_too_few_and_nothing_is_lost(
    nodes: list[CassandraServer], tmp_path: Path
) -> None:
    rig = Rig(nodes, tmp_path, "single")
    rig.write(0)
    nodes[1].stop(kill=True)
    try:
        wait_until(nodes[0], "the other node is noticed to be gone", is_down)
        rig.write(1)
        assert rig.pending == [1]
        assert "too few replicas are alive: consistency LOCAL_QUORUM needs 2, and 1 are; nothing was" in rig.problem
    finally:
        nodes[1].start()
    wait_until_up(nodes)
    rig.run.deliver()
    assert (rig.pending, rig.values()) == ([], [1, 1])
    rig.run.close()


def is_up(node: CassandraServer) -> bool:
    try:
        quorum(node)
    except (NoHostAvailable, OperationTimedOut, ReadTimeout):
        return False
    return True


def is_down(node: CassandraServer) -> bool:
    """Whether it is known that a quorum of both is not to be had; the driver has then asked every host."""
    try:
        quorum(node)
    except (OperationTimedOut, ReadTimeout):
        return False
    except NoHostAvailable as error:
        return any(isinstance(why, Unavailable) for why in error.errors.values())
    return False


def quorum(node: CassandraServer) -> None:
    node.execute("SELECT v FROM shop.single WHERE k = 'k0'", consistency=ConsistencyLevel.QUORUM)


def wait_until_up(nodes: list[CassandraServer]) -> None:
    wait_until(nodes[0], "both nodes answer", is_up)


def wait_until(node: CassandraServer, what: str, true: Callable[[CassandraServer], bool]) -> None:
    deadline = time.monotonic() + 60
    while not true(node):
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.2)
