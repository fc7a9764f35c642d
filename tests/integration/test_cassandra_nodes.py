"""CassandraSink on two real nodes, of which one hangs or is gone: what is told, what is sent again, what is there."""

from __future__ import annotations

import re
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

#: marks in files; marks in the same cluster, as by default; marks in files, and rows that are read before they are sent
FILES, CLUSTER, ORDER = "files", "cluster", "order"
_FEW = "timed out, 1 of the 2 replicas that consistency LOCAL_QUORUM needs"
#: what is told of a replica that hangs: the first thing that needs it. A read may be asked of that very node.
_READ = rf"(a read {_FEW} answered; it is asked again|127\.0\.0\.2:\d+ gave no answer within `timeout`)"
HUNG = {
    FILES: rf"^sink 'out': .*a write \(SIMPLE\) {_FEW}.*it is sent again, which changes nothing",
    CLUSTER: f"^the marks of sink 'out': .*{_READ}",
    ORDER: f"^sink 'out': .*{_READ}",
}
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
        first.execute("CREATE TABLE shop.ordered (k text PRIMARY KEY, c bigint, v bigint)")
        yield [first, second]
    finally:
        first.stop(kill=True)
        second.stop(kill=True)


class Rig:
    """A query into one of the tables, by way of the first node."""

    def __init__(self, nodes: list[CassandraServer], folder: Path, table: str, way: str = FILES) -> None:
        self.node, self.table = nodes[0], table
        sink = hf.CassandraSink(
            keyspace="shop",
            table=table,
            committer=hf.FileCheckpointCommitter(folder / "marks") if way != CLUSTER else None,
            order_by="v" if way == ORDER else None,
            timeout=20,
            name="out",
            **self.node.options,
        )
        self.run = LocalQuery(str(folder / "checkpoint"), f"to-{table}-{folder.name}", SCHEMA).start([sink])
        self.node.execute(f"TRUNCATE shop.{table}")

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


@pytest.mark.parametrize(
    ("table", "way"),
    [("single", FILES), ("grouped", FILES), ("single", CLUSTER), ("grouped", CLUSTER), ("ordered", ORDER)],
)
def test_w6_a_replica_that_hangs_is_a_timeout_of_its_kind_and_the_rows_are_sent_again(
    nodes: list[CassandraServer], tmp_path: Path, table: str, way: str
) -> None:
    """To Cassandra an unlogged batch within one partition is one write: its kind is SIMPLE, too."""
    rig = Rig(nodes, tmp_path, table, way)
    rig.write(0)
    assert (rig.pending, rig.values()) == ([], [0, 0])
    with nodes[1].hung():
        rig.write(1)
        rig.write(2)
        assert rig.pending == [1, 2], "the stream goes on"
        assert re.search(HUNG[way], rig.problem), rig.problem
    wait_until_up(nodes)
    rig.run.deliver()
    assert (rig.pending, rig.values()) == ([], [2, 2])
    rig.run.close()


def test_w6_a_replica_that_is_gone_is_told_as_too_few_and_nothing_is_lost(
    nodes: list[CassandraServer], tmp_path: Path
) -> None:
    """Stopped and started once for all ways: a node takes half a minute."""
    places = {FILES: "single", CLUSTER: "grouped", ORDER: "ordered"}
    rigs = {way: Rig(nodes, tmp_path / f"gone-{way}", table, way) for way, table in places.items()}
    for rig in rigs.values():
        rig.write(0)
        assert rig.pending == []
    nodes[1].stop(kill=True)
    try:
        wait_until(nodes[0], "the other node is noticed to be gone", is_down)
        for way, rig in rigs.items():
            rig.write(1)
            assert rig.pending == [1], way
            assert "too few replicas are alive: consistency LOCAL_QUORUM needs 2, and 1 are" in rig.problem, way
    finally:
        nodes[1].start()
    wait_until_up(nodes)
    for way, rig in rigs.items():
        rig.run.deliver()
        assert (rig.pending, rig.values()) == ([], [1, 1]), way
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
