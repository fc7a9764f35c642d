"""What CassandraSink and CassandraCheckpointCommitter check without a server."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import cassandra
import pytest

from holdfast.committers import cassandra_client
from holdfast.committers.cassandra import CassandraCheckpointCommitter
from holdfast.committers.cassandra_failures import explain
from holdfast.committers.cassandra_settings import Settings, make_settings
from holdfast.connectors.cassandra.sink import CassandraSink
from holdfast.core.naming import job_id
from holdfast.errors import ConfigError, HoldfastError, SinkError, permanent
from tests.servers.kafka import free_port

SECRET = "hunter2-secret"


def sink(**options: Any) -> CassandraSink:
    return CassandraSink(**{"contact_points": ["h"], "keyspace": "shop", "table": "orders", **options})


def committer(**options: Any) -> CassandraCheckpointCommitter:
    return CassandraCheckpointCommitter(**{"contact_points": ["h"], "keyspace": "shop", **options})


@pytest.mark.parametrize("make", [sink, committer])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contact_points": "localhost"}, "contact_points must be a list of host names"),
        ({"contact_points": []}, "contact_points must be a list"),
        ({"contact_points": [5]}, "contact_points must be a list of host names, not"),
        ({"contact_points": [" h"]}, "contact_points: ' h' is not a host name"),
        ({"contact_points": ["cassandra://h"]}, "is not a host name or an address"),
        ({"port": 0}, "port must be a number from 1 to 65535"),
        ({"port": "9042"}, "port must be a number"),
        ({"keyspace": 'a"; DROP'}, "keyspace must be 1 to 48 letters"),
        ({"keyspace": "k" * 49}, "keyspace must be 1 to 48 letters"),
        ({"table": "shop.orders"}, "table must be 1 to 48 letters"),
        ({"username": "u"}, "username and password go together"),
        ({"password": "p"}, "username and password go together"),
        ({"username": "u", "password": 5}, "password must be text, or None, not int"),
        ({"username": 5, "password": "p"}, "username must be text"),
        ({"local_dc": ""}, "local_dc must be text"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"timeout": "1"}, "timeout must be a number of seconds"),
        ({"tls": "ca.pem"}, "tls must be True, False or a dict with some of ca, certificate, key, check_hostname"),
        ({"tls": {"cafile": "x"}}, "tls must be True, False or a dict"),
        ({"tls": {"ca": 5}}, "tls: ca must be the path of a PEM file"),
        ({"tls": {"key": "k.pem"}}, "tls: key goes with certificate"),
        ({"tls": {"check_hostname": 1}}, "tls: check_hostname must be True or False"),
        ({"consistency": "quorum"}, "consistency must be one of .*QUORUM, .* not 'quorum'"),
    ],
)
def test_options_are_checked_when_the_object_is_made(make: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order_by": 5}, "order_by must be the name of a column"),
        ({"nulls": None}, "nulls must be one of write, skip, not None"),
        ({"concurrency": 0}, "concurrency must be a whole number from 1 to 10000"),
        ({"concurrency": True}, "concurrency must be a whole number"),
        ({"committer": "marks"}, "committer must be a CheckpointCommitter"),
        ({"max_pending": 0}, "max_pending must be a whole number"),
        ({"name": " x"}, "name ' x' may hold printable characters"),
    ],
)
def test_options_of_the_sink(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sink(**options)


@pytest.mark.parametrize(
    ("replication", "message"),
    [
        (3, "replication must be a dict, or None, not 3"),
        ({"dc1": 3}, "class must be one of SimpleStrategy, NetworkTopologyStrategy, not None"),
        ({"class": "LocalStrategy"}, "class must be one of"),
        ({"class": "SimpleStrategy"}, "SimpleStrategy takes replication_factor and nothing else"),
        ({"class": "SimpleStrategy", "dc1": 3}, "SimpleStrategy takes replication_factor"),
        ({"class": "NetworkTopologyStrategy"}, "needs the copies in each datacenter"),
        ({"class": "NetworkTopologyStrategy", "d'c": 1}, "is not the name of a datacenter"),
        ({"class": "NetworkTopologyStrategy", "dc1": 0}, "dc1 must be a number of copies of at least 1, not 0"),
        ({"class": "NetworkTopologyStrategy", "dc1": "3"}, "dc1 must be a number of copies"),
    ],
)
def test_replication_is_the_users_choice_and_is_checked(replication: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        committer(replication=replication)


def test_c3_a_mark_is_read_at_a_level_that_sees_every_write() -> None:
    with pytest.raises(ConfigError, match="consistency must be one of LOCAL_QUORUM, QUORUM, ALL, not 'ONE'"):
        committer(consistency="ONE")


@pytest.mark.parametrize(
    ("rows", "marks"),
    [
        ("LOCAL_QUORUM", "LOCAL_QUORUM"), ("QUORUM", "QUORUM"), ("ALL", "ALL"), ("EACH_QUORUM", "QUORUM"),
        ("LOCAL_ONE", "LOCAL_QUORUM"), ("ONE", "LOCAL_QUORUM"), ("TWO", "LOCAL_QUORUM"), ("THREE", "LOCAL_QUORUM"),
    ],
)  # fmt: skip
def test_marks_are_as_consistent_as_rows_and_never_less_than_a_read_must_see(rows: str, marks: str) -> None:
    made = sink(consistency=rows).committer
    assert isinstance(made, CassandraCheckpointCommitter)
    assert made.consistency == marks
    assert sink().consistency == committer().consistency == "LOCAL_QUORUM"


@pytest.mark.parametrize("level", ["LOCAL_ONE", "ONE", "TWO", "THREE"])
def test_an_order_needs_a_level_whose_reads_see_every_write(level: str) -> None:
    with pytest.raises(
        ConfigError, match=f"order_by compares a row with the stored one.*{level}.*LOCAL_QUORUM, QUORUM"
    ):
        sink(order_by="at", consistency=level)
    assert sink(order_by="at", consistency="EACH_QUORUM").order_by == "at"


def test_the_kinds_of_timeouts_are_told_apart() -> None:
    for kind, number in cassandra.WriteType.name_to_value.items():
        error = cassandra.WriteTimeout(
            "m", write_type=number, consistency=cassandra.ConsistencyLevel.QUORUM, required_responses=2,
            received_responses=1,
        )  # fmt: skip
        text = explain(error)
        assert text is not None
        assert f"a write ({kind}) timed out, 1 of the 2 replicas that consistency QUORUM needs answered" in text
        assert ("it is sent again, which changes nothing" in text) is (kind not in ("COUNTER", "CAS", "CDC"))
    away = cassandra.Unavailable(
        "m", consistency=cassandra.ConsistencyLevel.LOCAL_QUORUM, required_replicas=2, alive_replicas=1
    )
    assert explain(away) == (
        "too few replicas are alive: consistency LOCAL_QUORUM needs 2, and 1 are; nothing was written"
    )
    silent = cassandra.OperationTimedOut({"127.0.0.2:9042": "Client request timeout"}, "127.0.0.2:9042")
    assert explain(silent) == "127.0.0.2:9042 gave no answer within `timeout`; it is asked again, which changes nothing"
    assert explain(ValueError("x")) is None


def test_the_default_committer_is_in_the_same_keyspace_and_cluster() -> None:
    made = sink(username="u", password=SECRET, port=1234)
    assert isinstance(made.committer, CassandraCheckpointCommitter)
    assert made.committer.keyspace == "shop"
    assert made.committer._settings == made.settings
    assert made.name == "cassandra-shop-orders"


def test_a_password_is_in_no_text() -> None:
    made = sink(username="u", password=SECRET)
    mine = committer(username="u", password=SECRET)
    for thing in (made, mine, made.settings, made.committer):
        assert SECRET not in f"{thing!r} {thing}"
    assert pickle.loads(pickle.dumps(made)).settings.password == SECRET, "executors need it"


def test_ids_must_be_set_first() -> None:
    with pytest.raises(ConfigError, match="CassandraCheckpointCommitter: set_job_id was not called"):
        committer().create_resource()
    ready = committer()
    ready.set_job_id(job_id("orders", "a" * 32))
    with pytest.raises(HoldfastError, match="CassandraCheckpointCommitter is not open: call open"):
        ready.commit_checkpoint(0, 1)


def test_a_missing_driver_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "cassandra.py").write_text("raise ImportError('no driver')")
    code = (
        "import holdfast as hf\n"
        "for make in hf.CassandraSink, hf.CassandraCheckpointCommitter:\n"
        "    try: make(['h'], 'k', table='t')\n"
        "    except hf.HoldfastError as error: print(type(error).__name__, error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    expected = "MissingExtraError Cassandra needs more packages: pip install 'holdfast[cassandra]'\n"
    assert done.stdout == 2 * expected


def test_w6_a_cluster_that_is_down_is_named_and_the_error_says_that_nothing_is_lost() -> None:
    """Not an error for good: the coordinator tries again."""
    port = free_port()
    down = committer(contact_points=["127.0.0.1"], port=port, username="u", password=SECRET, timeout=2)
    with pytest.raises(SinkError, match=rf"Cassandra at 127\.0\.0\.1:{port} cannot be reached.*Nothing is") as info:
        down.open()
    assert not permanent(info.value)
    assert SECRET not in str(info.value)
    down.close()


def test_a_name_without_an_address_is_named() -> None:
    with pytest.raises(HoldfastError, match=r"Cassandra at no-such-host\.invalid:9042: no address is known for it"):
        committer(contact_points=["no-such-host.invalid"]).open()


def test_a_tls_file_that_is_missing_is_named(tmp_path: Path) -> None:
    settings = make_settings(["127.0.0.1"], 9042, None, None, {"ca": str(tmp_path / "ca.pem")}, None, 1)
    with pytest.raises(ConfigError, match=r"tls: a file of .*ca.pem.* cannot be used"):
        cassandra_client.Lease(settings)


class FakeClient:
    """Stands in for a session where only its life is looked at."""

    made: list[FakeClient]

    def __init__(self, settings: Settings) -> None:
        self.settings, self.closed = settings, False
        self.made.append(self)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[FakeClient]:
    FakeClient.made = []
    monkeypatch.setattr(cassandra_client, "Client", FakeClient)
    monkeypatch.setattr(cassandra_client, "_sessions", cassandra_client._Sessions())
    return FakeClient.made


def test_a_session_is_shared_kept_for_a_while_and_closed(made: list[FakeClient]) -> None:
    settings = Settings(("h",))
    with cassandra_client.borrow(settings) as one, cassandra_client.borrow(settings) as two:
        assert one is two
    with cassandra_client.borrow(settings) as again:
        assert again is one
        cassandra_client.close_idle()
        assert not made[0].closed, "somebody uses it"
    cassandra_client.close_idle()
    assert made[0].closed
    with cassandra_client.borrow(settings):
        assert len(made) == 2
    cassandra_client.close_idle()


def test_a_session_that_failed_is_not_used_again(made: list[FakeClient]) -> None:
    settings = Settings(("h",))
    lease = cassandra_client.Lease(settings)
    with pytest.raises(OSError, match="reset"), cassandra_client.borrow(settings):
        raise OSError("reset")
    assert not made[0].closed, "the other one still holds it"
    lease.give_back()
    assert made[0].closed
    with cassandra_client.borrow(settings):
        assert len(made) == 2
    cassandra_client.close_idle()


def test_an_idle_session_is_closed_by_itself(made: list[FakeClient], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cassandra_client, "IDLE", 0.05)
    with cassandra_client.borrow(Settings(("h",))):
        pass
    shared = next(iter(cassandra_client._sessions._shared.values()), None)
    if shared is not None and shared.timer is not None:
        shared.timer.join(60)
    assert made[0].closed


def test_a_forked_process_uses_no_session_of_its_parent(made: list[FakeClient]) -> None:
    settings = Settings(("h",))
    with cassandra_client.borrow(settings):
        pass
    child = os.fork()
    if not child:
        with cassandra_client.borrow(settings):
            os._exit(0 if len(made) == 2 and not made[0].closed else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    cassandra_client.close_idle()
