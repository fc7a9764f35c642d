"""CassandraSink after the decision: nothing depends on rows, options or other threads any more (rules 11, 13, 16)."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.committers import cassandra_client
from holdfast.errors import ConfigError, InjectedFault, RowError, SinkError
from holdfast.sinks.subtask import make_task, running
from holdfast.testing.local import LocalBatch, PickledTasks, armed, pickled_copy
from tests.integration.test_cassandra_sink import KEYED, Rig, rows
from tests.servers.cassandra import CassandraServer


@pytest.fixture
def rig(cassandra: CassandraServer, tmp_path: Path) -> Rig:
    return Rig(cassandra, tmp_path)


def test_a_server_that_hangs_fails_a_send_within_half_a_minute(rig: Rig) -> None:
    """With the default timeout, with a session and without: then the loop of this sink tries again."""
    rig.create()
    run = rig.start()
    run.run(0, LocalBatch([rows(("a", 1, None))]))
    sink = run.sinks[0]
    task = make_task(run.info, sink.name, 1, 0, 0, 5)
    with rig.server.hung():
        for _ in range(2):
            began = time.monotonic()
            with running(task), pytest.raises(SinkError, match=r"^sink 'cassandra-.*Nothing is lost"):
                sink.send_values(iter(rows(*((f"k{i}", i, None) for i in range(500)))), 1, 5)  # type: ignore[attr-defined]
            assert time.monotonic() - began < 30
    run.close()


def test_rule_13_a_cluster_that_hangs_does_not_hold_up_the_users_of_another(rig: Rig) -> None:
    """Connecting to one takes its time; the sessions of this process are not locked meanwhile."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        stuck = threading.Thread(target=try_to_connect, args=(rig, silent.getsockname()[1]))
        stuck.start()
        time.sleep(0.5)
        with cassandra_client.borrow(rig.sink().settings) as client:
            assert client.query("SELECT release_version FROM system.local")
        assert stuck.is_alive(), "it is still connecting"
        stuck.join(90)


def try_to_connect(rig: Rig, port: int) -> None:
    with contextlib.suppress(SinkError):
        cassandra_client.Lease(rig.sink(port=port, timeout=10).settings).give_back()


# -- what was decided -------------------------------------------------------------------------------------------------


def test_rule_16_options_that_changed_since_do_not_change_what_was_decided(rig: Rig) -> None:
    """Decided with order_by and nulls="skip" into t; then the sink is started with other options and another table."""
    rig.create()
    rig.create(table="other")
    query = rig.query()
    run = query.start([rig.sink(nulls="skip", order_by="v", name="s")])
    run.run(0, LocalBatch([rows(("a", 1, "kept"))]))
    # Of two values with one write time Cassandra takes the larger: the last row must have the smaller note.
    batch = LocalBatch([rows(("a", 2, None), ("b", 1, "z")), rows(("b", 2, "a"))])
    with armed("decision=lost"), pytest.raises(InjectedFault):
        run.run(1, batch)
    run = query.start([rig.sink(table="other", name="s", consistency="ONE")])
    assert rig.read() == [{"k": "a", "v": 2, "note": "kept"}, {"k": "b", "v": 2, "note": "a"}]
    assert rig.read(table="other") == []
    run.run(1, batch)
    run.run(2, LocalBatch([rows(("c", 3, None))]))
    run.close()
    assert rig.read(table="other") == [{"k": "c", "v": 3, "note": None}]


def test_rule_16_a_committable_of_the_first_version_still_commits(rig: Rig) -> None:
    rig.create()
    run = rig.start(order_by="v")
    sink = run.sinks[0]
    reports = LocalBatch([rows(("a", 1, "z")), rows(("a", 2, "a"))]).write(run.info, run.sinks, 0, 7)
    new = ("keyspace", "table", "columns", "order_by", "nulls", "consistency")
    old = [{k: v for k, v in c.data.items() if k not in new} | {"version": 1} for r in reports for c in r.committables]
    assert set(old[0]) == {"version", "handle", "subtask", "timestamp", "rows", "bytes", "sha256"}
    assert sink.commit(0, old, PickledTasks()) is hf.Outcome.COMMITTED
    run.close()
    assert rig.read() == [{"k": "a", "v": 2, "note": "a"}]


def test_a_table_made_anew_with_other_types_is_noticed_before_a_byte_is_sent(rig: Rig) -> None:
    rig.create()
    query = rig.query()
    run = query.start([rig.sink()])
    with armed("decision=lost"), pytest.raises(InjectedFault):
        run.run(0, LocalBatch([rows(("a", 1, "x"))]))
    rig.execute(f"DROP TABLE {rig.keyspace}.t")
    rig.create("k text PRIMARY KEY, v bigint, note int")
    query.schema = None
    with pytest.raises(ConfigError, match=r"column 'note' of .*\.t is int now, and was text when these rows were dec"):
        query.start([rig.sink()])
    assert rig.read() == []


def test_rule_13_a_delivery_shares_nothing_with_the_batch_thread(rig: Rig) -> None:
    """Deliveries in one thread, in order, while another saves state and sends the sink to tasks."""
    rig.create()
    run = rig.start(order_by="v")
    sink = run.sinks[0]
    prepared = []
    for checkpoint_id in range(8):
        batch = LocalBatch([rows((f"k{checkpoint_id}", 1, "z")), rows((f"k{checkpoint_id}", 2, "a"))])
        reports = batch.write(run.info, [sink], checkpoint_id, 1000 + checkpoint_id)
        prepared.append([c.data for report in reports for c in report.committables])
    failures: list[Exception] = []

    def deliver() -> None:
        try:
            for number in range(8):
                assert sink.commit(number, prepared[number], PickledTasks()) is hf.Outcome.COMMITTED
        except Exception as error:  # noqa: BLE001  looked at below
            failures.append(error)

    def state() -> dict[str, object]:
        # What is delivered and marked is the loop's own, and no copy of the sink carries it.
        return {name: value for name, value in vars(sink).items() if name not in ("_delivered", "_marked")}

    thread = threading.Thread(target=deliver)
    before = state()
    thread.start()
    while thread.is_alive():
        pickled_copy(sink)
        sink.snapshot_state(9)
        assert state() == before
    assert failures == []
    run.close()
    assert [(row["k"], row["v"], row["note"]) for row in rig.read()] == [(f"k{n}", 2, "a") for n in range(8)]


# -- rows that are too large ------------------------------------------------------------------------------------------


def test_rule_11_the_limit_of_the_server_is_known_and_a_larger_row_is_refused_before_the_decision(rig: Rig) -> None:
    """This server's segments have 4 MiB, so a mutation may have 2."""
    rig.create()
    run = rig.start()
    assert run.sinks[0]._limits.mutation == 2 * 1024**2  # type: ignore[attr-defined]
    with pytest.raises(RowError, match=r"column 'note' \(text\): it has 2097152 bytes.*takes 2097152 in one mutation"):
        run.run(0, LocalBatch([rows(("a", 1, "x" * 2097152))]))
    assert run.query.storage.walk("decisions") == []
    run = rig.start()
    run.run(0, LocalBatch([rows(("a", 1, "x" * (2097152 - 1000)), ("b", 2, None))]))
    assert run.coordinator.pending == []
    run.close()
    run = rig.query(name="smaller").start([rig.sink(max_mutation="10KiB")])
    with pytest.raises(RowError, match="takes 10240 in one mutation"):
        run.run(0, LocalBatch([rows(("a", 1, "x" * 10_000))]))
    run.close()


def test_rule_11_large_rows_of_one_partition_do_not_travel_together(rig: Rig) -> None:
    """Each is as large as a mutation may be: two in one batch would be refused after the decision."""
    rig.create("p text, k text, v bigint, note text, PRIMARY KEY (p, k)")
    schema = pa.schema([("p", pa.string()), *KEYED])
    run = rig.start(schema)
    large = [("p", f"k{i}", i, "x" * (2097152 - 1500)) for i in range(3)] + [("p", f"s{i}", i, "y") for i in range(50)]
    run.run(0, LocalBatch([rows(*large, schema=schema)]))
    assert run.coordinator.pending == []
    run.close()
    assert len(rig.read("p, k")) == 53


def test_rule_11_what_an_index_takes_is_known(rig: Rig) -> None:
    rig.create()
    rig.execute(f"CREATE INDEX ON {rig.keyspace}.t (note)")
    run = rig.start()
    with pytest.raises(RowError, match=r"column 'note' \(text\): it has 65535 bytes, and an index or.*takes 65534"):
        run.run(0, LocalBatch([rows(("a", 1, "x" * 65535))]))
    run = rig.start()
    run.run(0, LocalBatch([rows(("a", 1, "x" * 65534))]))
    assert run.coordinator.pending == []
    run.close()
