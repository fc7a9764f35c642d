"""Brokers restart, die and come back under a sink's driver: it waits, bounded, and tells what is left in words (D9)."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast import errors
from holdfast.checkpoint.ports import LoopTasks
from holdfast.connectors.kafka.client import wire
from holdfast.connectors.kafka.client.transactions import TransactionClient
from holdfast.connectors.kafka.sink import ids
from holdfast.core.model import Outcome
from tests.crash.processes import wait_for
from tests.integration.test_kafka_modes import Local, rows
from tests.integration.test_kafka_sink import consume
from tests.servers.kafka import KafkaBroker
from tests.servers.kafka_cluster import KafkaCluster

MODES = ("two-phase", "write-ahead")


def make_topic(bootstrap: str, replicas: int = 1) -> str:
    from confluent_kafka.admin import AdminClient, NewTopic

    name = f"t-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, 2, replicas)])[name].result(60)
    return name


@pytest.fixture(scope="module")
def mortal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A broker of this file's own: others would miss theirs."""
    broker = KafkaBroker(Path(tmp_path_factory.mktemp("mortal")), java=("-Xmx400m", "-XX:TieredStopAtLevel=1"))
    broker.start()
    yield broker
    broker.stop(kill=True)


def together(*calls: Any) -> list[Any]:
    """The answers of functions that run in threads of their own; an exception is an answer."""

    def call(function: Any) -> Any:
        try:
            return function()
        except Exception as error:  # noqa: BLE001  the caller compares it
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(call, calls))


@pytest.mark.contract("D9")
def test_a_clean_restart_of_the_only_broker_fails_neither_sweep_nor_commit(mortal, tmp_path) -> None:
    """It failed 4 times of 4: the first request after the restart met a dead socket.

    One sink is busy while the broker is away, on two threads as in the kernel; two are used when it is back.
    """
    names = {mode: make_topic(mortal.bootstrap) for mode in (*MODES, "busy")}
    locals_ = {
        mode: Local(hf.KafkaSink(mortal.bootstrap, name, mode=mode if mode in MODES else MODES[0]), tmp_path / mode)
        for mode, name in names.items()
    }
    for local in locals_.values():
        assert local.sink.commit(0, local.write(0, rows("a")), LoopTasks()) is Outcome.COMMITTED
    prepared = {mode: local.write(1, rows("b")) for mode, local in locals_.items()}

    def restart() -> None:
        mortal.stop()
        time.sleep(3)
        mortal.start()

    busy, left = locals_["busy"], prepared["busy"]

    def when_it_is_down(function: Any) -> Any:
        deadline = time.monotonic() + 60
        while mortal.running and time.monotonic() < deadline:
            time.sleep(0.01)
        return function()

    assert together(
        restart,
        lambda: when_it_is_down(lambda: busy.sink.recover(busy.run.pipeline, 0, {1: left})),
        lambda: when_it_is_down(lambda: busy.sink.commit(1, left, LoopTasks())),
    ) == [None, None, Outcome.COMMITTED]
    for mode in MODES:
        local, mine = locals_[mode], prepared[mode]
        local.sink.recover(local.run.pipeline, 0, {1: mine})
        assert local.sink.still_prepared(mine) == mine
        assert local.sink.commit(1, mine, LoopTasks()) is Outcome.COMMITTED
        local.sink.recover(local.run.pipeline, 0, {})
    for mode, local in locals_.items():
        local.sink.close()
        assert sorted(r["value"] for r in consume(mortal, names[mode])) == [b"a", b"b"]


def test_what_stays_away_is_a_transient_error_that_names_sink_and_servers(mortal, tmp_path, monkeypatch) -> None:
    name = make_topic(mortal.bootstrap)
    local = Local(hf.KafkaSink(mortal.bootstrap, name, name="out"), tmp_path)
    prepared = local.write(0, rows("a"))
    mortal.stop(kill=True)
    monkeypatch.setattr(wire, "PATIENCE", 0.1)
    sink, pipeline = local.sink, local.run.pipeline
    try:
        for call in (
            lambda: sink.recover(pipeline, 0, {0: prepared}),
            lambda: sink.commit(0, prepared, LoopTasks()),
            lambda: sink.still_prepared(prepared),
            lambda: sink.open(local.run),
        ):
            began = time.monotonic()
            with pytest.raises(
                errors.SinkError, match=rf"sink 'out': Kafka at {mortal.bootstrap} did not .*check"
            ) as e:
                call()
            assert not errors.permanent(e.value) and time.monotonic() - began < 28
    finally:
        mortal.start()
    # Tried again, it works.
    monkeypatch.undo()
    sink.open(local.run)
    assert sink.commit(0, prepared, LoopTasks()) is Outcome.COMMITTED
    sink.close()


@pytest.mark.contract("D9")
class TestThreeBrokers:
    """Replication 3: one may be away."""

    @pytest.fixture(autouse=True)
    def patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """On a busy machine brokers take longer to notice that one is dead; in a query the kernel tries again."""
        monkeypatch.setattr(wire, "PATIENCE", 60.0)

    @pytest.mark.parametrize("kill", [True, False])
    def test_one_of_three_is_down(self, kafka_cluster: KafkaCluster, tmp_path: Path, kill: bool) -> None:
        """13 s of errors after kill -9, UnknownBrokerIdError after SIGTERM; what it coordinated has moved."""
        cluster = kafka_cluster
        name = make_topic(cluster.bootstrap, 3)
        local = Local(hf.KafkaSink(cluster.bootstrap, name, name="out"), tmp_path)
        prefix = ids.prefix(local.run.pipeline, "out", local.run.lineage)
        prepared = [c for subtask in range(4) for c in local.write(0, rows(f"v{subtask}"), subtask)]
        left = local.write(1, rows("left"), 9)
        with TransactionClient({"bootstrap.servers": cluster.bootstrap}) as client:
            refs = {t.ref for t in client.ongoing(prefix)}
            assert len(refs) == 5
            away = cluster.brokers[kill]
            away.stop(kill=kill)
            try:
                # Between the death of a coordinator and the election of another nobody knows its transactions.
                wait_for(lambda: {t.ref for t in client.ongoing(prefix)} == refs, "all are listed again", 60)
                assert {t.ref for t in client.describe([ref.transactional_id for ref in refs])} == refs
                assert local.sink.still_prepared(prepared) == prepared
                local.sink.recover(local.run.pipeline, 0, {0: prepared})
                assert local.sink.commit(0, prepared, LoopTasks()) is Outcome.COMMITTED
                assert local.sink.still_prepared(left) == []
            finally:
                away.start()
            # The list of brokers is not the one without it any more.
            assert client.ongoing(prefix) == []
        local.sink.close()
        cluster.wait()
        assert sorted(r["value"] for r in consume(cluster, name)) == [b"v0", b"v1", b"v2", b"v3"]

    def test_a_rolling_restart_under_sweeps_and_commits(self, kafka_cluster, tmp_path) -> None:
        """Tasks, sweeps and commits all the time, in both modes, while each broker restarts: nothing raises."""
        cluster, rolled = kafka_cluster, threading.Event()

        def roll() -> None:
            try:
                for broker in cluster.brokers:
                    cluster.restart(broker)
            finally:
                rolled.set()

        def write(mode: str) -> list[str]:
            # One of the names suffices: the others are found.
            local = Local(hf.KafkaSink(cluster.brokers[0].bootstrap, topics[mode], mode=mode), tmp_path / mode)
            number, written = 0, []
            while not rolled.is_set() or number < 5:
                values = [f"{number}-{row}" for row in range(20)]
                prepared = local.write(number, rows(*values))
                local.sink.recover(local.run.pipeline, 0, {number: prepared})
                while not local.sink.commit(number, prepared, LoopTasks()).done:
                    pass
                written += values
                number += 1
            local.sink.close()
            return sorted(written)

        topics = {mode: make_topic(cluster.bootstrap, 3) for mode in MODES}
        done, *written = together(roll, *(partial(write, mode) for mode in MODES))
        assert done is None
        for mode, values in zip(MODES, written, strict=True):
            assert sorted(r["value"].decode() for r in consume(cluster, topics[mode])) == values
