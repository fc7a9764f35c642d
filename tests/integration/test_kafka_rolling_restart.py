"""A query with both modes of KafkaSink while all three brokers restart, one after the other (D9).

`HOLDFAST_ROLLS=10 .venv/bin/pytest tests/integration/test_kafka_rolling_restart.py` goes round ten times, and kills
every second time.
"""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from tests.integration.helpers import add_file, read_files
from tests.integration.test_kafka_brokers_away import make_topic
from tests.integration.test_kafka_sink import consume
from tests.servers.kafka_cluster import KafkaCluster

ROLLS = int(os.environ.get("HOLDFAST_ROLLS", "1"))
ROWS = 50


class Feeder(threading.Thread):
    """Puts a file of new ids into a folder several times a second, until it is told to stop."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self._folder, self._end = folder, threading.Event()
        self.files = 0
        self.add()

    def add(self) -> None:
        add_file(self._folder, self.files, range(self.files * ROWS, (self.files + 1) * ROWS))
        self.files += 1

    def run(self) -> None:
        while not self._end.wait(0.5):
            self.add()

    def stop(self) -> int:
        """How many rows there are."""
        self._end.set()
        self.join()
        return self.files * ROWS


def ids_in(cluster: KafkaCluster, topic: str) -> list[int]:
    return sorted(int(row["value"]) for row in consume(cluster, topic))


@pytest.mark.contract("D9")
@pytest.mark.spark
@pytest.mark.timeout(600 * ROLLS)
def test_every_row_once_and_the_query_never_fails(spark: Any, kafka_cluster: KafkaCluster, tmp_path: Path) -> None:
    cluster = kafka_cluster
    topics = {mode: make_topic(cluster.bootstrap, 3) for mode in ("two-phase", "write-ahead")}
    feeder = Feeder(tmp_path / "in")
    frame = read_files(spark, tmp_path / "in").selectExpr("cast(id as string) value")
    sinks = [hf.KafkaSink(cluster.bootstrap, topic, mode=mode, name=mode) for mode, topic in topics.items()]
    location = str(tmp_path / "c")
    query = hf.write_stream(frame, sinks, name=topics["two-phase"], checkpoint_location=location).start()
    try:
        feeder.start()
        deadline = time.monotonic() + 60
        while len(hf.checkpoints(location)) < 2:
            assert time.monotonic() < deadline and query.isActive, query.exception()
            time.sleep(0.2)
        for roll in range(ROLLS):
            for broker in cluster.brokers:
                cluster.restart(broker, kill=roll % 2 == 1)
                assert query.isActive, query.exception()
        expected, deadline = list(range(feeder.stop())), time.monotonic() + 120
        for topic in topics.values():
            while len(ids_in(cluster, topic)) < len(expected):
                assert query.isActive, query.exception()
                assert time.monotonic() < deadline, f"{len(ids_in(cluster, topic))} of {len(expected)} rows"
                time.sleep(0.5)
            assert ids_in(cluster, topic) == expected
        assert query.isActive and query.exception() is None
    finally:
        feeder.stop()
        query.stop()
