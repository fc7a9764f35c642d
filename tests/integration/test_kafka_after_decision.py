"""KafkaSink and rules 11, 14, 15, 16, and take-over, on a real broker."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast import errors
from holdfast.checkpoint.ports import Committed, LoopTasks
from holdfast.connectors.kafka.client.transactions import TransactionClient
from holdfast.connectors.kafka.sink import ids, marks, write_ahead
from holdfast.core.model import Outcome
from holdfast.sinks.subtask import make_task
from tests.integration.test_kafka_modes import SCHEMA, Local, rows
from tests.integration.test_kafka_sink import consume
from tests.servers.kafka import KafkaBroker

MODES = ("two-phase", "write-ahead")


def values(broker: KafkaBroker, topic: str) -> list[bytes]:
    return sorted(row["value"] for row in consume(broker, topic))


def leave_open(local: Local, sealed: dict[str, Any]) -> str:
    """What a worker that is killed while it publishes leaves behind: a publisher with its rows and marks, open."""
    sink = local.sink._of("write-ahead")
    publish = write_ahead._Publish(sink._target, local.run, 0)
    publisher = ids.publisher(local.run.pipeline, local.sink.name, local.run.lineage, sealed["subtask"])
    producer = sink._target.producer(publisher)
    commit, producer.commit = producer.commit, lambda: None
    producer.initialise()
    publish._send(publisher, producer, [sealed], None)
    producer.commit = commit
    producer.drop()
    return publisher


class TestPublishers:
    def test_a_publisher_left_open_by_a_killed_worker_holds_up_no_other(self, kafka, topic, tmp_path) -> None:
        """It took 30 s each, and failed: all publishers write the ledger group, which was read with require_stable."""
        name = topic("publishers", 1)
        local = Local(hf.KafkaSink(kafka.bootstrap, name, mode="write-ahead"), tmp_path)
        [killed], [other] = local.write(0, rows("killed"), 7), local.write(0, rows("other"), 1)
        leave_open(local, killed)
        began = time.monotonic()
        assert local.sink.commit(0, [other], LoopTasks()) is Outcome.COMMITTED
        # Also one sealed so long ago that the brokers' memory is in doubt, which is when the ledger is asked.
        [old] = local.write(1, rows("old"), 2)
        assert local.sink.commit(1, [{**old, "timestamp": 0}], LoopTasks()) is Outcome.COMMITTED
        assert local.sink.commit(0, [killed], LoopTasks()) is Outcome.COMMITTED
        assert time.monotonic() - began < 28
        assert values(kafka, name) == [b"killed", b"old", b"other"]

    def test_a_start_ends_what_killed_workers_were_publishing(self, kafka, topic, tmp_path) -> None:
        """Nobody may come back to that publisher: it would hold consumers back until its timeout."""
        name = topic("publishers", 1)
        local = Local(hf.KafkaSink(kafka.bootstrap, name, mode="write-ahead"), tmp_path)
        [killed] = local.write(0, rows("a"), 7)
        publisher = leave_open(local, killed)
        with TransactionClient({"bootstrap.servers": kafka.bootstrap}) as client:
            assert client.named(publisher)
            local.sink.recover(local.run.pipeline, 0, {0: [killed]})
            assert not client.named(publisher)
        assert local.sink.commit(0, [killed], LoopTasks()) is Outcome.COMMITTED
        assert values(kafka, name) == [b"a"]


@pytest.mark.contract("D3")
class TestStillPrepared:
    """Rule 14."""

    def test_what_the_broker_dropped_is_not_still_prepared(self, kafka, topic, tmp_path) -> None:
        name = topic("timeout", 1)
        short = Local(hf.KafkaSink(kafka.bootstrap, name, config={"transaction.timeout.ms": 1500}), tmp_path)
        prepared = short.write(0, rows("a"))
        assert short.sink.still_prepared(prepared) == prepared
        deadline = time.monotonic() + 60
        while short.sink.still_prepared(prepared):
            assert time.monotonic() < deadline, "the broker looks every second here"
            time.sleep(0.3)
        again = short.write(0, rows("a"))
        assert short.sink.commit(0, again, LoopTasks()) is Outcome.COMMITTED
        short.sink.close()
        assert values(kafka, name) == [b"a"]

    def test_another_transaction_of_the_same_id_is_another(self, kafka, topic, tmp_path) -> None:
        local = Local(hf.KafkaSink(kafka.bootstrap, topic("same", 1)), tmp_path)
        first, other = local.write(0, rows("a")), local.write(0, rows("b"), 1)
        local.attempts = 0
        second = local.write(0, rows("a"))
        assert first[0]["transactional_id"] == second[0]["transactional_id"]
        assert local.sink.still_prepared([*first, *other]) == other
        assert local.sink.still_prepared([*second, *other]) == [*second, *other]
        local.sink.recover(local.run.pipeline, 0, {})
        assert local.sink.still_prepared([*second, *other]) == []
        local.sink.close()

    def test_sealed_rows_keep(self, kafka, topic, tmp_path) -> None:
        local = Local(hf.KafkaSink(kafka.bootstrap, topic("kept", 1), mode="write-ahead"), tmp_path)
        sealed = local.write(0, rows("a"))
        assert local.sink.still_prepared(sealed) == sealed


@pytest.mark.contract("D5")
@pytest.mark.parametrize("mode", MODES)
class TestRestored:
    """Rule 15: the ledger lacks what commit records say."""

    def committed(self, kafka: KafkaBroker, topic: str, folder: Path, mode: str) -> Local:
        local = Local(hf.KafkaSink(kafka.bootstrap, topic, mode=mode, name="out"), folder, last_decided=4)
        assert local.sink.commit(3, local.write(3, rows("a")), LoopTasks()) is Outcome.COMMITTED
        return local

    def restart(self, local: Local, checkpoint_id: int, *, days: float = 0, **run: Any) -> None:
        at = int((time.time() - days * 86400) * 1000)
        local.sink.open(replace(local.run, committed={"out": Committed(checkpoint_id, at)}, **run))
        local.sink.close()

    def test_a_ledger_that_knows_all_is_ours_and_one_behind_is_refused(self, kafka, topic, tmp_path, mode) -> None:
        local = self.committed(kafka, topic("ledger", 1), tmp_path, mode)
        self.restart(local, 3)
        with pytest.raises(errors.RestoredEndpointError, match=r"group 'hfl1-.*checkpoints 4 to 4 were") as told:
            self.restart(local, 4)
        assert told.value.behind == (4, 4) and told.value.action == "operator"
        self.restart(local, 4, days=6.5)  # brokers forget

    def test_marks_that_go_while_the_query_runs_are_missed_by_the_next_commit_after_a_pause(
        self, kafka, topic, tmp_path, mode, monkeypatch
    ) -> None:
        """Else its own mark hides for ever what the brokers have lost."""
        from confluent_kafka.admin import AdminClient

        name = topic("while", 1)
        local = self.committed(kafka, name, tmp_path, mode)
        monkeypatch.setattr(marks, "QUIET", 0.0)
        assert local.sink.commit(4, local.write(4, rows("b")), LoopTasks()) is Outcome.COMMITTED
        group = ids.ledger_group(local.run.pipeline, "out")
        deadline = time.monotonic() + 60
        while marks.read({"bootstrap.servers": kafka.bootstrap}, [group], stable=False)[group][0].offset < 5:
            assert time.monotonic() < deadline, "the broker writes the marks a moment after the commit"
            time.sleep(0.1)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.delete_consumer_groups([group])[group].result(60)
        with pytest.raises(errors.RestoredEndpointError, match="none; but checkpoints 0 to 4 were committed"):
            local.sink.commit(5, local.write(5, rows("c")), LoopTasks())
        assert values(kafka, name) == [b"a", b"b"]
        local.sink.recover(local.run.pipeline, 0, {})
        local.sink.close()

    def test_a_topic_deleted_and_made_anew_is_noticed(self, kafka, topic, tmp_path, mode) -> None:
        """Kafka forgets a group's offsets with their topic."""
        from confluent_kafka.admin import AdminClient, NewTopic

        name = topic("anew", 1)
        local = self.committed(kafka, name, tmp_path, mode)
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.delete_topics([name])[name].result(60)
        deadline = time.monotonic() + 60
        while name in admin.list_topics(timeout=60).topics:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
        group = ids.ledger_group(local.run.pipeline, "out")
        while marks.read({"bootstrap.servers": kafka.bootstrap}, [group], stable=False)[group]:
            assert time.monotonic() < deadline, "the coordinator forgets them a moment later"
            time.sleep(0.1)
        with pytest.raises(errors.RestoredEndpointError, match="none; but checkpoints 0 to 3 were committed"):
            self.restart(local, 3)
        # Whoever takes over goes on from here, and the next start as well.
        self.restart(local, 3, take_over=True)
        self.restart(local, 3)

    def test_marks_that_are_still_being_written_are_waited_for(self, kafka, topic, tmp_path, mode, monkeypatch) -> None:
        """Kafka says "committed" before it has written the marks: a fast restart must not take that for a loss."""
        local = self.committed(kafka, topic("late", 1), tmp_path, mode)
        asked, states = [], [["hfk1-x"], [], [], []]
        read = marks.read

        def late(settings: Any, groups: Any, **options: Any) -> Any:
            asked.append(groups)
            return {group: [] for group in groups} if len(asked) == 1 else read(settings, groups, **options)

        monkeypatch.setattr(marks, "read", late)
        monkeypatch.setattr(TransactionClient, "named", lambda *_: states.pop(0))
        self.restart(local, 3)
        assert len(asked) == 2 and states == []


@pytest.mark.contract("D6")
class TestChangedOptions:
    """Rule 16: what was decided is committed as it was meant."""

    @pytest.mark.parametrize(("old", "new"), [MODES, MODES[::-1]])
    def test_another_mode(self, kafka, topic, tmp_path, old, new) -> None:
        name = topic("mode", 1)
        before = Local(hf.KafkaSink(kafka.bootstrap, name, mode=old, name="out"), tmp_path)
        decided, undecided = before.write(0, rows("a")), before.write(1, rows("undecided"), 1)
        before.sink.close()
        after = hf.KafkaSink(kafka.bootstrap, name, mode=new, name="out")
        after.open(replace(before.run, generation=1, last_decided=0))
        after.recover(before.run.pipeline, 1, {0: decided})
        assert after.commit(0, decided, LoopTasks()) is Outcome.COMMITTED
        assert after.commit(0, decided, LoopTasks()) is Outcome.ALREADY_COMMITTED or old == "two-phase"
        after.notify_checkpoint_complete(0)
        local = Local(after, tmp_path, pipeline=before.run.pipeline, lineage=before.run.lineage, last_decided=0)
        assert after.commit(1, local.write(1, rows("b")), LoopTasks()) is Outcome.COMMITTED
        after.close()
        assert values(kafka, name) == [b"a", b"b"], "and what was not decided is swept"
        if old == "write-ahead":
            assert not (tmp_path / undecided[0]["handle"]).exists()

    def test_less_than_exactly_once(self, kafka, topic, tmp_path) -> None:
        name = topic("delivery", 1)
        before = Local(hf.KafkaSink(kafka.bootstrap, name, name="out"), tmp_path)
        decided = before.write(0, rows("a"))
        before.sink.close()
        after = hf.KafkaSink(kafka.bootstrap, name, delivery="at-least-once", name="out")
        after.open(replace(before.run, generation=1, last_decided=0))
        after.recover(before.run.pipeline, 1, {0: decided})
        assert after.commit(0, decided, LoopTasks()) is Outcome.COMMITTED
        after.close()
        assert values(kafka, name) == [b"a"]

    def test_sealed_rows_go_where_they_were_meant_to(self, kafka, topic, tmp_path) -> None:
        meant, now = topic("meant", 1), topic("now", 1)
        before = Local(hf.KafkaSink(kafka.bootstrap, meant, mode="write-ahead", name="out"), tmp_path)
        [sealed] = before.write(0, rows("a"))
        assert (sealed["version"], sealed["topic"], sealed["partitioner"]) == (2, meant, "murmur2_random")
        after = hf.KafkaSink(kafka.bootstrap, now, mode="write-ahead", name="out")
        after.open(before.run)
        assert [batch.to_pylist() for batch in after.rows_of([sealed])] == [rows("a").to_pylist()]
        assert after.commit(0, [sealed], LoopTasks()) is Outcome.COMMITTED
        assert values(kafka, meant) == [b"a"] and values(kafka, now) == []
        # Version 1 did not say: it is where the sink writes now.
        [old] = before.write(1, rows("b"))
        old = {k: v for k, v in old.items() if k not in ("topic", "partitioner", "lineage")} | {"version": 1}
        assert after.commit(1, [old], LoopTasks()) is Outcome.COMMITTED
        assert values(kafka, now) == [b"b"]


class TestTakeOver:
    def test_what_other_locations_left_open_is_aborted_unless_a_record_names_it(self, kafka, topic, tmp_path) -> None:
        name = topic("over", 1)
        first = Local(hf.KafkaSink(kafka.bootstrap, name, name="out"), tmp_path / "a", generation=7)
        first.sink.commit(0, first.write(0, rows("a")), LoopTasks())
        decided, left = first.write(1, rows("b")), first.write(1, rows("left"), 1)
        same = {"pipeline": first.run.pipeline, "lineage": first.run.lineage, "last_decided": 1}
        sealed = Local(hf.KafkaSink(kafka.bootstrap, name, mode="write-ahead", name="out"), tmp_path / "a", **same)
        leave_open(sealed, *sealed.write(1, rows("publisher"), 3))
        stranger = Local(hf.KafkaSink(kafka.bootstrap, name, name="out2"), tmp_path / "s", pipeline=first.run.pipeline)
        kept = stranger.write(0, rows("stranger"))

        options = {"pipeline": first.run.pipeline, "lineage": "f" * 32, "last_decided": 1}
        with pytest.raises(errors.ForeignLineageError):
            Local(hf.KafkaSink(kafka.bootstrap, name, name="out"), tmp_path / "b", **options)
        second = Local(hf.KafkaSink(kafka.bootstrap, name, name="out"), tmp_path / "b", take_over=True, **options)
        second.sink.recover(first.run.pipeline, 0, {1: decided})
        assert second.sink.still_prepared([*decided, *left]) == decided
        assert stranger.sink.still_prepared(kept) == kept
        assert second.sink.commit(1, decided, LoopTasks()) is Outcome.COMMITTED
        stranger.sink.commit(0, kept, LoopTasks())
        assert values(kafka, name) == [b"a", b"b", b"stranger"]
        # The name of the old location came with its rows; the next start finds its own all the same.
        known = {"out": Committed(1, int(time.time() * 1000))}
        options["set_aside"] = (first.run.lineage,)
        third = Local(hf.KafkaSink(kafka.bootstrap, name, name="out"), tmp_path / "b", committed=known, **options)
        late = first.write(2, rows("late"), 2)
        third.sink.recover(first.run.pipeline, 1, {})
        assert third.sink.still_prepared(late) == [], "a later run knows whose name was taken"
        for local in (first, sealed, stranger, second, third):
            local.sink.close()

    def test_who_takes_the_name_from_a_running_query_keeps_what_it_prepares(self, kafka, topic, tmp_path) -> None:
        """Rule 2: the run that took over before sweeps on."""
        name = topic("over", 1)

        def start(place: str, **options: Any) -> Local:
            sink = hf.KafkaSink(kafka.bootstrap, name, name="out")
            return Local(sink, tmp_path / place, lineage=place * 32, pipeline=f"over-{name}", **options)

        first = start("a")
        first.sink.commit(0, first.write(0, rows("a")), LoopTasks())
        second = start("b", take_over=True, last_decided=0)
        second.sink.recover(second.run.pipeline, 0, {})
        third = start("c", take_over=True, last_decided=0)
        newer = third.write(1, rows("c"))
        second.sink.recover(second.run.pipeline, 0, {})
        assert third.sink.still_prepared(newer) == newer
        assert third.sink.commit(1, newer, LoopTasks()) is Outcome.COMMITTED
        assert values(kafka, name) == [b"a", b"c"]
        for local in (first, second, third):
            local.sink.close()

    def test_sealed_rows_of_another_location_are_published_once(self, kafka, topic, tmp_path) -> None:
        """Published, but not recorded: only the publisher of that location knows."""
        name = topic("over", 1)
        first = Local(hf.KafkaSink(kafka.bootstrap, name, mode="write-ahead", name="out"), tmp_path)
        sealed = first.write(0, rows("a"))
        assert first.sink.commit(0, sealed, LoopTasks()) is Outcome.COMMITTED
        after = hf.KafkaSink(kafka.bootstrap, name, mode="write-ahead", name="out")
        after.open(replace(first.run, lineage="e" * 32, take_over=True, last_decided=0))
        assert after.commit(0, sealed, LoopTasks()) is Outcome.ALREADY_COMMITTED
        assert values(kafka, name) == [b"a"]


@pytest.mark.contract("D1")
@pytest.mark.parametrize("mode", MODES)
class TestRows:
    """Rule 11: refused in the task by name, or delivered."""

    def test_rows_the_topic_finds_too_large(self, kafka, topic, tmp_path, mode) -> None:
        name = topic("small", 1, **{"max.message.bytes": "5000"})
        local = Local(hf.KafkaSink(kafka.bootstrap, name, mode=mode, name="out"), tmp_path)
        with pytest.raises(errors.RowError, match=r"sink 'out'.*too large"):
            local.write(0, rows("x" * 6000))
        # As large as they may be, and more of them than go into one batch.
        fit = [f"{n:04}" * 600 for n in range(50)]
        batch = pa.RecordBatch.from_pylist([{"key": None, "value": value.encode()} for value in fit], SCHEMA)
        largest = rows("y" * ((5000 - 36 - 61) // 2))
        prepared = [*local.write(1, batch), *local.write(1, largest, 1)]
        assert local.sink.commit(1, prepared, LoopTasks()) is Outcome.COMMITTED
        local.sink.close()
        assert len(values(kafka, name)) == 51

    def test_rows_without_a_key_for_a_compacted_topic(self, kafka, topic, tmp_path, mode) -> None:
        name = topic("compacted", 1, **{"cleanup.policy": "compact"})
        local = Local(hf.KafkaSink(kafka.bootstrap, name, mode=mode, name="out"), tmp_path)
        with pytest.raises(errors.RowError, match=r"sink 'out'.*compacted"):
            local.write(0, pa.RecordBatch.from_pylist([{"key": None, "value": b"a"}], SCHEMA))
        assert local.sink.commit(1, local.write(1, rows("k")), LoopTasks()) is Outcome.COMMITTED
        local.sink.close()

    def test_a_topic_that_is_not_there(self, kafka, tmp_path, mode) -> None:
        """That a row names; the sink's own is looked for at the start."""
        local = Local(hf.KafkaSink(kafka.bootstrap, mode=mode, name="out"), tmp_path)
        row = pa.RecordBatch.from_pylist([{"topic": "not-there", "value": b"a"}])
        with pytest.raises(errors.RowError, match=r"sink 'out'.*topic 'not-there'.*[Cc]reate it"):
            local.write(0, row)
        local.sink.close()


def test_a_row_refused_before_the_mark_is_told_as_such(kafka, topic, tmp_path) -> None:
    """The transaction has failed by then, and the mark with it: told as that, the batch would be tried for minutes."""
    name = topic("compacted", 1, **{"cleanup.policy": "compact"})
    local = Local(hf.KafkaSink(kafka.bootstrap, name, name="out"), tmp_path)
    rows = [{"key": b"k", "value": b"a"}, {"key": None, "value": b"a"}]
    for attempt in range(12):
        txn = local.sink.begin(make_task(local.run, "out", 0, 0, attempt, 0))
        # The first row of a partition is waited for, the second is not.
        local.sink.write(txn, pa.RecordBatch.from_pylist(rows, SCHEMA))
        time.sleep(attempt % 4 * 0.002)  # the answer comes before, during or after the mark
        with pytest.raises(errors.RowError, match=r"sink 'out'.*compacted"):
            local.sink.pre_commit(txn)
        local.sink.abort(txn)
    txn = local.sink.begin(make_task(local.run, "out", 0, 0, 12, 0))
    with pytest.raises(errors.RowError, match=r"sink 'out'.*compacted"):
        local.sink.write(txn, pa.RecordBatch.from_pylist(rows[1:], SCHEMA))
    local.sink.abort(txn)
    local.sink.close()
