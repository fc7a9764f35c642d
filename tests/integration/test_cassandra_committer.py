"""CassandraCheckpointCommitter on a real server (C1-C5, rule 9)."""

from __future__ import annotations

import pickle
import random
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.checkpoint.ports import Committed, Run
from holdfast.committers.cassandra import CassandraCheckpointCommitter
from holdfast.core.naming import job_id, operator_id
from holdfast.errors import CommitError, ConfigError, HoldfastError, MarkError, RestoredEndpointError, SinkError
from tests.servers.cassandra import DATACENTER, CassandraServer
from tests.unit.inprocess import Endpoint, Engine, SendingSink

LINEAGE, OTHER = "a" * 32, "b" * 32
ONE_COPY = {"class": "SimpleStrategy", "replication_factor": 1}
Make = Callable[..., CassandraCheckpointCommitter]


@pytest.fixture
def keyspace() -> str:
    return f"marks_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def make(request: pytest.FixtureRequest, cassandra: CassandraServer, keyspace: str) -> Make:
    def ready(
        pipeline: str = "orders", lineage: str = LINEAGE, sink: str = "target", **options: Any
    ) -> CassandraCheckpointCommitter:
        made = CassandraCheckpointCommitter(
            **{"keyspace": keyspace, "replication": ONE_COPY, **cassandra.options, **options}
        )
        made.set_job_id(job_id(pipeline, lineage))
        made.set_operator_id(operator_id(sink))
        made.create_resource()
        made.open()
        request.addfinalizer(made.close)
        return made

    return ready


def test_c3_committed_means_up_to_the_stored_checkpoint(make: Make) -> None:
    committer = make()
    assert not committer.is_checkpoint_committed(0, 0)
    committer.commit_checkpoint(0, 0)
    committer.commit_checkpoint(0, 5)
    assert [committer.is_checkpoint_committed(0, c) for c in (0, 4, 5, 6)] == [True, True, True, False]
    assert not committer.is_checkpoint_committed(1, 0), "subtasks are told apart"


def test_rule_9_a_committer_never_moves_backwards(make: Make) -> None:
    committer = make()
    committer.commit_checkpoint(0, 5)
    committer.commit_checkpoint(0, 3)
    assert committer.progress() == {LINEAGE: 5}
    committer.commit_checkpoint(0, 5)
    assert committer.progress() == {LINEAGE: 5}


def test_rule_9_racing_writers_leave_the_largest_mark(make: Make) -> None:
    """Whoever is last to write: a paused driver beside its successor, and every order of their marks."""
    committers, failures = [make() for _ in range(4)], []

    def write(committer: CassandraCheckpointCommitter, seed: int) -> None:
        marks = list(range(60))
        random.Random(seed).shuffle(marks)
        try:
            for mark in marks:
                committer.commit_checkpoint(0, mark)
                if not committer.is_checkpoint_committed(0, mark):
                    failures.append((seed, mark))
        except HoldfastError as error:
            failures.append((seed, error))

    threads = [threading.Thread(target=write, args=(c, seed)) for seed, c in enumerate(committers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert committers[0].progress() == {LINEAGE: 59}


def test_c4_one_row_for_each_subtask_and_close_deletes_nothing(
    make: Make, cassandra: CassandraServer, keyspace: str
) -> None:
    first = make()
    for checkpoint_id in range(30):
        first.commit_checkpoint(3, checkpoint_id)
    first.close()
    first.close()
    again = make()
    again.create_resource()
    assert again.is_checkpoint_committed(3, 29)
    rows = cassandra.execute(f"SELECT pipeline, operator_id, subtask, checkpoint_id FROM {keyspace}.holdfast_committer")
    assert rows == [{"pipeline": "orders", "operator_id": "target", "subtask": 3, "checkpoint_id": 29}]


def test_a_committer_can_be_pickled_to_an_executor(make: Make) -> None:
    committer = make()
    committer.commit_checkpoint(0, 1)
    copy = pickle.loads(pickle.dumps(committer))
    copy.open()
    copy.open()
    assert copy.is_checkpoint_committed(0, 1)
    copy.commit_checkpoint(0, 2)
    copy.close()
    assert committer.is_checkpoint_committed(0, 2)


def test_c5_ids_tell_pipelines_sinks_and_lineages_apart(make: Make) -> None:
    make().commit_checkpoint(0, 9)
    assert make().is_checkpoint_committed(0, 9)
    for others in ({"pipeline": "bills"}, {"sink": "other"}, {"lineage": OTHER}, {"pipeline": "orders-x"}):
        assert not make(**others).is_checkpoint_committed(0, 9)


def test_a_take_over_forgets_the_other_lineages_of_this_sink_and_nothing_else(make: Make) -> None:
    make().commit_checkpoint(0, 3)
    make().commit_checkpoint(1, 4)
    make(lineage=OTHER).commit_checkpoint(0, 8)
    make(pipeline="bills", lineage=OTHER).commit_checkpoint(0, 5)
    make(sink="other", lineage=OTHER).commit_checkpoint(0, 6)
    assert make().progress() == {LINEAGE: 4, OTHER: 8}
    make().take_over()
    assert make().progress() == {LINEAGE: 4}
    assert make(pipeline="bills").progress() == {OTHER: 5}
    assert make(sink="other").progress() == {OTHER: 6}


def test_a_mark_that_would_not_stay_is_an_error(make: Make) -> None:
    """Its deletion is newer: without a look, every send would seem marked and none would be."""
    make(lineage=OTHER).commit_checkpoint(0, 8)
    make().take_over()
    with pytest.raises(CommitError, match=r"does not stay: it was deleted there.*take_over=True, or TRUNCATE"):
        make(lineage=OTHER).commit_checkpoint(0, 9)
    make().commit_checkpoint(0, 0)


def test_c3_keyspace_and_table_are_created_as_the_user_says(cassandra: CassandraServer, make: Make) -> None:
    name = f"Marks_{uuid.uuid4().hex[:8]}"
    with pytest.raises(ConfigError, match=f"there is no keyspace '{name}'.*replication="):
        make(keyspace=name, replication=None)
    replication = {"class": "NetworkTopologyStrategy", DATACENTER: 1}
    make(keyspace=name, replication=replication, table="My_Marks").commit_checkpoint(0, 1)
    (found,) = cassandra.execute(f"SELECT replication FROM system_schema.keyspaces WHERE keyspace_name = '{name}'")
    assert dict(found["replication"]) == {
        "class": "org.apache.cassandra.locator.NetworkTopologyStrategy",
        DATACENTER: "1",
    }
    assert len(cassandra.execute(f'SELECT * FROM "{name}"."My_Marks"')) == 1
    make(keyspace=name, replication=None, table="My_Marks")


def test_a_table_of_somebody_else_is_left_alone(cassandra: CassandraServer, make: Make, keyspace: str) -> None:
    make()
    cassandra.execute(f"CREATE TABLE {keyspace}.orders (id int PRIMARY KEY)")
    with pytest.raises(ConfigError, match=rf"table {keyspace}\.orders is not a committer's, it has the columns id"):
        make(table="orders")


def test_a_wrong_password_is_told_without_it(make: Make) -> None:
    with pytest.raises(
        ConfigError, match=r"^the marks of sink 'target': Cassandra at .*does not let user 'cas"
    ) as info:
        make(password="hunter2")
    with pytest.raises(ConfigError, match="lets nobody in without a password: give username and password"):
        make(username=None, password=None)
    assert "hunter2" not in str(info.value)


def test_missing_rights_are_named(cassandra: CassandraServer, make: Make, keyspace: str) -> None:
    make()
    user = f"reader_{uuid.uuid4().hex[:8]}"
    cassandra.execute(f"CREATE ROLE {user} WITH PASSWORD = 'secret-word' AND LOGIN = true")
    committer = make(username=user, password="secret-word")
    with pytest.raises(ConfigError, match=rf"refused.*User {user} has no MODIFY permission") as info:
        committer.commit_checkpoint(0, 1)
    assert "secret-word" not in str(info.value)


def test_tls(cassandra: CassandraServer, make: Make) -> None:
    ca = str(cassandra.certificate)
    make(tls={"ca": ca}).commit_checkpoint(0, 1)
    assert make(tls={"ca": ca, "check_hostname": False}).is_checkpoint_committed(0, 1)
    with pytest.raises(SinkError, match=r"cannot be reached.*CERTIFICATE_VERIFY_FAILED"):
        make(tls=True)


def test_an_unknown_datacenter_is_named(make: Make) -> None:
    with pytest.raises(SinkError, match="no host is in datacenter 'moon'"):
        make(local_dc="moon")
    make(local_dc=DATACENTER).commit_checkpoint(0, 1)


def test_rule_15_marks_that_are_dropped_or_older_than_what_was_committed_are_refused(
    cassandra: CassandraServer, make: Make, keyspace: str, tmp_path: Path
) -> None:
    """A table restored from an older snapshot, a table dropped, a keyspace dropped: each start says so."""
    table = f"{keyspace}.holdfast_committer"

    def start(subtasks: dict[int, int] | None = None) -> None:
        sink = SendingSink(Endpoint(), make(), "target")
        known = {"target": Committed(5, 1_700_000_000_000, subtasks or {})}
        sink.open(Run("orders", LINEAGE, 0, str(tmp_path), last_decided=9, committed=known))

    make().commit_checkpoint(1, 5)
    make().commit_checkpoint(0, 3)
    start({0: 3, 1: 5})
    with pytest.raises(
        RestoredEndpointError, match=r"lacks marks .* for checkpoint 5 of subtask 0, 2 of subtask 2; but"
    ):
        start({0: 5, 1: 5, 2: 2})
    cassandra.execute(f"TRUNCATE {table}")
    make().commit_checkpoint(0, 3)
    where = rf"CassandraCheckpointCommitter at 127\.0\.0\.1:\d+, {table}\) of sink 'target'"
    with pytest.raises(RestoredEndpointError, match=rf"{where} knows.*up to checkpoint 3; .*4 to 5") as caught:
        start()
    assert caught.value.behind == (4, 5)
    for drop in (f"DROP TABLE {table}", f"DROP KEYSPACE {keyspace}"):
        cassandra.execute(drop)
        for _ in range(2):  # the first start makes it anew
            with pytest.raises(RestoredEndpointError, match="none; but checkpoints 0 to 5"):
                start()


def test_d10_a_mark_that_cassandra_refuses_stops_the_query_after_one_send(
    cassandra: CassandraServer, make: Make, keyspace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.sinks.write_ahead.MARK_WAITS", (0.0, 0.0))
    make()
    user = f"reader_{uuid.uuid4().hex[:8]}"
    cassandra.execute(f"CREATE ROLE {user} WITH PASSWORD = 'secret-word' AND LOGIN = true")
    cassandra.execute(f"GRANT SELECT ON KEYSPACE {keyspace} TO {user}")
    endpoint = Endpoint()
    engine = Engine(tmp_path / "log", SendingSink(endpoint, make(username=user, password="secret-word"), "target"))
    with pytest.raises(MarkError, match=r"checkpoint 0, subtask 0 was sent.*no MODIFY permission.*once more") as info:
        engine.run(0, [1])
    assert "secret-word" not in str(info.value)
    assert endpoint.called("send") == [(0,)]
