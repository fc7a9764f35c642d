"""A failure is a failure, a hung endpoint is nobody else's, a stop is polite (D2, D7, D8, S6, rules 13 and 17)."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming.listener import StreamingQueryListener

import holdfast as hf
from holdfast import errors
from holdfast.checkpoint.status import read_status
from tests.integration.helpers import add_file, ids, read_files

pytestmark = pytest.mark.spark


class Slow(hf.WriteAheadSink):
    """Sends into a file; while the file `hang` exists, a send hangs; while `bad` exists, it raises for good."""

    name = "slow"

    def __init__(self, folder: Path, name: str = "slow") -> None:
        super().__init__(committer=hf.FileCheckpointCommitter(str(folder / f"marks-{name}")))
        self.folder, self.name = str(folder), name

    def send_values(self, values: Iterator[pa.RecordBatch], checkpoint_id: int, timestamp: int) -> bool:
        folder = Path(self.folder)
        if (folder / "bad").exists():
            raise errors.RowError("sink 'slow': nobody takes this row")
        while (folder / "hang").exists():
            time.sleep(0.1)
        with (folder / f"sent-{self.name}").open("a") as file:
            file.writelines(f"{n}\n" for batch in values for n in batch.column("id").to_pylist())
        return True

    def sent(self) -> list[int]:
        path = Path(self.folder, f"sent-{self.name}")
        return sorted(map(int, path.read_text().split())) if path.exists() else []


@pytest.fixture(autouse=True)
def _ended(spark) -> Iterator[None]:  # type: ignore[no-untyped-def]
    yield
    for query in spark.streams.active:
        query.stop()


def start(spark, folder: Path, sinks, location: str = "checkpoint", trigger: str = "0 seconds", **options):  # type: ignore[no-untyped-def]
    (folder / "in").mkdir(exist_ok=True)
    writer = hf.write_stream(
        read_files(spark, folder / "in"),
        sinks,
        name=f"{location}-{folder.name}",
        checkpoint_location=str(folder / location),
        **options,
    )
    return writer.trigger(processingTime=trigger).start()


def until(condition, seconds: float = 60.0) -> None:  # type: ignore[no-untyped-def]
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.1)


def test_d2_endpoints_that_hang_delay_no_batch_no_other_sink_no_stop_and_no_other_pipeline(spark, tmp_path) -> None:
    """As many as the machine has cores, and one more: each send that hangs would hold one."""
    database = tmp_path / "out.db"
    (tmp_path / "hang").touch()
    hung = [Slow(tmp_path, f"slow-{n}") for n in range(spark.sparkContext.defaultParallelism + 1)]
    query = start(spark, tmp_path, [hf.SqliteSink(str(database), "orders"), *hung])
    for number in range(5):
        add_file(tmp_path / "in", number, range(number * 10, number * 10 + 10))
        query.processAllAvailable()
    assert ids(database) == list(range(50))
    assert all(sink.sent() == [] for sink in hung)
    began = time.monotonic()
    with pytest.raises(errors.UndeliveredError, match=r"'slow-0': 5 checkpoints \(0 to 4\), 50 rows"):
        query.stop()
    assert time.monotonic() - began < 30
    assert "UndeliveredError" in str(query.exception())
    other = tmp_path / "other.db"
    second = start(spark, tmp_path, hf.SqliteSink(str(other), "orders"), "second")
    second.processAllAvailable()
    second.stop()
    assert ids(other) == list(range(50))
    (tmp_path / "hang").unlink()
    again = [Slow(tmp_path, sink.name) for sink in hung]
    third = start(spark, tmp_path, [hf.SqliteSink(str(database), "orders"), *again])
    until(lambda: all(set(sink.sent()) == set(range(50)) for sink in again))
    third.stop()
    assert ids(database) == list(range(50))


class Held(hf.SqliteSink):
    """The batch waits for it; while the file `hold` exists, the method whose name it holds hangs."""

    overlaps = False

    def __init__(self, folder: Path) -> None:
        super().__init__(str(folder / "out.db"), "orders", name="held")
        self.folder = str(folder)

    def _hang(self, method: str) -> None:
        hold = Path(self.folder, "hold")
        while hold.exists() and hold.read_text() == method:
            Path(self.folder, "held").touch()
            time.sleep(0.05)

    def open(self, *args) -> None:  # type: ignore[no-untyped-def]
        self._hang("open")
        super().open(*args)

    def recover(self, *args) -> None:  # type: ignore[no-untyped-def]
        self._hang("recover")
        super().recover(*args)

    def commit(self, *args):  # type: ignore[no-untyped-def]
        self._hang("commit")
        return super().commit(*args)


@pytest.mark.parametrize("method", ["recover", "commit"])
def test_d2_a_stop_returns_although_the_batch_waits_for_an_endpoint_that_hangs(
    spark, tmp_path, monkeypatch, method
) -> None:
    """Spark's stop waits for the batch, and its interrupt does not reach Python."""
    monkeypatch.setattr("holdfast.spark.query.CURRENT", 1.0)
    query = start(spark, tmp_path, Held(tmp_path))
    add_file(tmp_path / "in", 0, range(10))
    query.processAllAvailable()
    (tmp_path / "hold").write_text(method)
    add_file(tmp_path / "in", 1, range(10, 20))
    until(lambda: (tmp_path / "held").exists())
    began = time.monotonic()
    with pytest.raises(errors.HoldfastError, match="sink 'held'"):
        query.stop()
    assert time.monotonic() - began < 30
    assert query.exception() is not None and not query.isActive
    (tmp_path / "hold").unlink()
    again = start(spark, tmp_path, Held(tmp_path))
    until(lambda: ids(tmp_path / "out.db") == list(range(20)))
    again.stop()


class Told(hf.SqliteSink):
    """Notes what it is told; while the file `hold` exists, its tasks hang."""

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(str(folder / f"{name}.db"), "orders", name=name)
        self.folder = str(folder)

    def write(self, txn, batch) -> None:  # type: ignore[no-untyped-def]
        super().write(txn, batch)
        while Path(self.folder, "hold").exists():
            Path(self.folder, "held").touch()
            time.sleep(0.05)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        with Path(self.folder, f"told-{self.name}").open("a") as file:
            file.write(f"{checkpoint_id}\n")


def test_s6_a_stop_in_the_middle_of_a_batch_tells_every_sink_and_the_next_run_starts_clean(
    spark, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("holdfast.spark.query.CURRENT", 1.0)
    query = start(spark, tmp_path, [Told(tmp_path, "a"), Told(tmp_path, "b")])
    add_file(tmp_path / "in", 0, range(10))
    query.processAllAvailable()
    (tmp_path / "hold").touch()
    add_file(tmp_path / "in", 1, range(10, 20))
    until((tmp_path / "held").exists)
    query.stop()
    assert not query.isActive
    assert [(tmp_path / f"told-{name}").read_text().split() for name in "ab"] == [["1"], ["1"]]
    assert [ids(tmp_path / f"{name}.db") for name in "ab"] == [list(range(10))] * 2
    (tmp_path / "hold").unlink()
    again = start(spark, tmp_path, [Told(tmp_path, "a"), Told(tmp_path, "b")])
    again.processAllAvailable()
    again.stop()
    assert [ids(tmp_path / f"{name}.db") for name in "ab"] == [list(range(20))] * 2
    assert [(tmp_path / f"told-{name}").read_text().split() for name in "ab"] == [["1"], ["1"]]


def test_d2_a_sink_that_hangs_when_it_is_opened_is_named_by_status_and_by_the_start(
    spark, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr("holdfast.checkpoint.pulse.EVERY", 0.1)
    monkeypatch.setattr("holdfast.checkpoint.health.STUCK_AFTER", 0.0)
    location, hold = str(tmp_path / "checkpoint"), tmp_path / "hold"
    hold.write_text("open")
    told: list[str] = []

    def look() -> None:
        until((tmp_path / "held").exists)
        until(lambda: told.extend(read_status(location).reasons) or bool(told))
        hold.unlink()

    watcher = threading.Thread(target=look)
    watcher.start()
    start(spark, tmp_path, Held(tmp_path)).stop()
    watcher.join()
    assert told[0].startswith("sink 'held' is starting for")
    hold.write_text("open")
    monkeypatch.setattr("holdfast.core.retry.ONE_CALL", 0.5)
    with pytest.raises(errors.SinkError, match=r"sink 'held' .*has been starting for \d+ s without an answer"):
        start(spark, tmp_path, Held(tmp_path), retry=hf.Retry(for_=0))
    found = read_status(location)
    assert (found.health, found.last_error["type"]) == ("down", "SinkError")  # type: ignore[index]
    hold.unlink()


class Seen(StreamingQueryListener):
    """How queries ended, as Spark tells it."""

    def __init__(self) -> None:
        self.ends: list[str | None] = []

    def onQueryStarted(self, event) -> None: ...  # type: ignore[no-untyped-def]

    def onQueryProgress(self, event) -> None: ...  # type: ignore[no-untyped-def]

    def onQueryIdle(self, event) -> None: ...  # type: ignore[no-untyped-def]

    def onQueryTerminated(self, event) -> None:  # type: ignore[no-untyped-def]
        self.ends.append(event.exception)


def test_d7_a_failure_in_a_delivery_loop_fails_the_query_for_everybody(spark, tmp_path) -> None:
    seen = Seen()
    spark.streams.addListener(seen)
    try:
        (tmp_path / "hang").touch()
        add_file(tmp_path / "in", 0, range(10))
        query = start(spark, tmp_path, Slow(tmp_path))
        query.processAllAvailable()
        (tmp_path / "bad").touch()
        (tmp_path / "hang").unlink()
        add_file(tmp_path / "in", 1, range(10, 20))  # the next send raises, whether a batch is under way or none
        spark.streams.resetTerminated()
        with pytest.raises(StreamingQueryException):
            spark.streams.awaitAnyTermination()
        with pytest.raises(errors.RowError, match="nobody takes this row") as it:
            query.awaitTermination()
        assert it.value.action == "fix"
        assert "RowError" in str(query.exception())
        until(lambda: seen.ends)
        assert seen.ends[0] is not None
    finally:
        spark.streams.removeListener(seen)


def test_d7_also_when_no_batch_comes(spark, tmp_path) -> None:
    """An interrupt is what Spark takes for a failure; a stop would look like a clean end."""
    add_file(tmp_path / "in", 0, range(10))
    (tmp_path / "hang").touch()
    query = start(spark, tmp_path, Slow(tmp_path), trigger="1 hour")
    until(lambda: query.lastProgress is not None and not query.status["isTriggerActive"])
    (tmp_path / "bad").touch()
    query.running.coordinator.deliveries[0].tasks.cancel()  # ends the attempt that hangs; the next one raises for good
    spark.streams.resetTerminated()
    with pytest.raises(StreamingQueryException):
        spark.streams.awaitAnyTermination()
    with pytest.raises(errors.RowError, match="nobody takes this row"):
        query.awaitTermination()
    assert "RowError" in str(query.exception())


def test_an_ordinary_stop_prints_nothing_and_leaves_nothing(spark, tmp_path, capfd) -> None:
    """It waits for the checkpoint under way: no broken pipes, no stack traces, nothing prepared."""
    database = tmp_path / "out.db"
    for number in range(40):
        add_file(tmp_path / "in", number, range(number * 10, number * 10 + 10))
    query = start(spark, tmp_path, hf.SqliteSink(str(database), "orders"))
    until(lambda: query.lastProgress is not None)
    capfd.readouterr()
    began = time.monotonic()
    query.stop()
    assert time.monotonic() - began < 30
    out = capfd.readouterr()
    assert "Traceback" not in out.err and "Exception" not in out.err and "Error" not in out.err
    assert query.exception() is None
    assert not list((tmp_path / "checkpoint" / "holdfast" / "wal").rglob("*.arrow"))
    done = ids(database)
    assert 0 < len(done) < 400 and done == list(range(len(done)))


def test_a_stop_at_once_sweeps_what_it_leaves(spark, tmp_path) -> None:
    class Waiting(hf.SqliteSink):
        def pre_commit(self, txn):  # type: ignore[no-untyped-def]
            made = super().pre_commit(txn)
            (tmp_path / "prepared").touch()
            time.sleep(60)
            return made

    add_file(tmp_path / "in", 0, range(10))
    query = start(spark, tmp_path, Waiting(str(tmp_path / "out.db"), "orders"))
    until(lambda: (tmp_path / "prepared").exists())
    began = time.monotonic()
    query.stop(now=True)
    assert time.monotonic() - began < 45
    until(lambda: not list((tmp_path / "checkpoint" / "holdfast" / "wal").rglob("*.arrow")))
    assert [c.status for c in hf.checkpoints(str(tmp_path / "checkpoint"))] == ["aborted"]
