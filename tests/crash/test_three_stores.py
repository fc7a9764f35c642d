"""T8: one stream into Kafka, PostgreSQL and files with one decision; the driver is killed between each two commits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.crash import stores_job
from tests.crash.three_work import Three
from tests.servers.kafka import KafkaBroker
from tests.servers.postgres import PostgresServer


@pytest.fixture
def work(tmp_path: Path, kafka: KafkaBroker, postgres: PostgresServer) -> Iterator[Three]:
    servers = {"kafka": kafka, "postgres": postgres}
    with closing(Three(tmp_path / "work", "three", servers.__getitem__)) as work:
        yield work


@pytest.mark.timeout(600)
def test_t8_the_driver_is_killed_between_each_two_commits_and_the_three_are_equal(work: Three) -> None:
    names = [sink.name for sink in stores_job.sinks([(store.kind, store.options) for store in work.stores])]
    for checkpoint, late in enumerate(names):
        # One hangs in its commit, the two others have done theirs: then the driver dies. The next run begins with it.
        others = set(names) - {late}
        work.kill_when(f"commit.sink:{late}=hang", lambda at=checkpoint, done=others: done <= work.committed_by(at))  # type: ignore[misc]
        assert late not in work.committed_by(checkpoint), work.log()
        seen = [checkpoint + (name != late) for name in names]
        assert work.counts() == seen, f"{late} was late\n{work.log()}"
    work.crash("batch.return=kill")
    assert work.counts() == [3, 3, 3], work.log()
    work.run_clean()
    work.assert_clean()
    kafka, table, files = (sorted(store.received()) for store in work.stores)
    assert kafka == table == files == work.sent()
