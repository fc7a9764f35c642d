"""What an endpoint drops after the decision is produced again from the replay, or the query stops (P5, rule 4)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.model import Committable, Outcome, Record, RecordKind, Slot, fold
from holdfast.core.repair import Replayed, plan_repair
from holdfast.errors import CommitError, LostError
from holdfast.sinks.digest import Digest
from holdfast.testing.local import armed
from tests.unit.inprocess import Endpoint, Engine, InProcessBatch, PreparingSink


class LossySink(PreparingSink):
    """Answers which transactions its endpoint dropped."""

    repairable = True

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]], tasks: Any) -> Outcome | None:
        gone = [c for c in committables if c["token"] not in {*self.endpoint.prepared, *self.endpoint.committed}]
        there = [c for c in committables if c not in gone]
        outcome = super().commit(checkpoint_id, there, tasks)
        if gone:
            raise LostError(f"sink {self.name!r}: {len(gone)} transactions of checkpoint {checkpoint_id} gone", gone)
        return outcome


def drop(endpoint: Endpoint, *subtasks: int) -> None:
    """The endpoint's timeout strikes for these subtasks' prepared work."""
    for token in [t for t in endpoint.prepared if int(t.split("-")[-2]) in subtasks]:
        del endpoint.prepared[token]


@pytest.fixture
def endpoint() -> Endpoint:
    return Endpoint()


@pytest.fixture
def engine(tmp_path, endpoint: Endpoint) -> Engine:
    return Engine(f"{tmp_path}/holdfast", LossySink(endpoint))


def decide_only(engine: Engine, *partitions: Sequence[int]) -> None:
    """Checkpoint 0 is decided and its driver dies."""
    engine.sinks[0].endpoint.fail("commit", *[RuntimeError("the endpoint is away")] * 3)
    with pytest.raises(CommitError):
        engine.run(0, *partitions)


class TestReplay:
    def test_only_the_lost_subtask_is_produced_again_although_indexes_moved(self, engine, endpoint) -> None:
        decide_only(engine, [1, 2], [3, 4, 5], [6])
        drop(endpoint, 1)
        engine.restart()
        assert sorted(endpoint.rows) == [1, 2, 6]
        batch = engine.run(0, [6], [1, 2], [5, 4, 3])
        assert sorted(endpoint.rows) == [1, 2, 3, 4, 5, 6]
        assert batch.writes == 1 and batch.drained == 0
        assert not endpoint.prepared and not engine.pending

    def test_all_lost_and_split_in_another_way(self, engine, endpoint) -> None:
        decide_only(engine, [1, 2], [3, 4, 5], [6])
        drop(endpoint, 0, 1, 2)
        engine.restart()
        engine.run(0, [1, 3, 5], [2, 4, 6])
        assert sorted(endpoint.rows) == [1, 2, 3, 4, 5, 6] and not engine.pending
        engine.run(1, [7])
        assert sorted(endpoint.rows) == list(range(1, 8))

    def test_two_lost_ones_merged_beside_a_committed_sibling(self, engine, endpoint) -> None:
        decide_only(engine, [1, 2], [3, 4], [5, 6])
        drop(endpoint, 0, 2)
        engine.restart()
        engine.run(0, [1, 6, 2, 5], [4, 3])
        assert sorted(endpoint.rows) == [1, 2, 3, 4, 5, 6]

    def test_equal_partitions_are_interchangeable_and_used_once(self, engine, endpoint) -> None:
        decide_only(engine, [7], [7], [8])
        drop(endpoint, 0, 1)
        engine.restart()
        engine.run(0, [8], [7], [7])
        assert sorted(endpoint.rows) == [7, 7, 8]

    def test_a_crash_before_the_repair_record_repairs_again_and_after_it_does_not(self, engine, endpoint) -> None:
        """Trace 4 of faults.md."""
        decide_only(engine, [1, 2], [3])
        drop(endpoint, 0)
        engine.restart()
        with armed("repair=error"), pytest.raises(Exception, match="fault repair"):
            engine.run(0, [3], [1, 2])
        assert not endpoint.prepared, "what the failed repair prepared is undone"
        engine.restart()
        with armed("repair=lost"), pytest.raises(Exception, match="fault repair"):
            engine.run(0, [3], [2, 1])
        engine.restart()
        assert sorted(endpoint.rows) == [1, 2, 3], "the start commits what the repair recorded"
        batch = engine.run(0, [1, 2], [3])
        assert batch.drained == 1 and batch.writes == 0
        assert sorted(endpoint.rows) == [1, 2, 3]

    def test_the_repair_is_lost_too(self, engine, endpoint) -> None:
        decide_only(engine, [1, 2], [3])
        drop(endpoint, 0)
        engine.restart()
        with armed("repair=lost"), pytest.raises(Exception, match="fault repair"):
            engine.run(0, [3], [1, 2])
        endpoint.prepared.clear()
        engine.restart()
        engine.run(0, [2, 1], [3])
        assert sorted(endpoint.rows) == [1, 2, 3] and not engine.pending

    def test_within_the_same_batch(self, engine, endpoint) -> None:
        """A pause between decision and commit: the batch is at hand, the query goes on."""
        sink = engine.sinks[0]

        class Late(LossySink):
            def commit(self, checkpoint_id, committables, tasks):  # type: ignore[no-untyped-def]
                if not endpoint.called("commit"):
                    drop(endpoint, 1)
                return super().commit(checkpoint_id, committables, tasks)

        late = Late(endpoint)
        engine.restart(late)
        engine.run(0, [1], [2, 3])
        assert sorted(endpoint.rows) == [1, 2, 3] and not engine.pending
        assert sink is not late

    def test_other_sinks_commit_although_one_lost(self, tmp_path) -> None:
        lossy, other = Endpoint(), Endpoint()
        engine = Engine(f"{tmp_path}/holdfast", LossySink(lossy, "lossy"), PreparingSink(other, "other"))
        lossy.fail("commit", *[RuntimeError("away")] * 3)
        with pytest.raises(CommitError):
            engine.run(0, [1], [2])
        drop(lossy, 0)
        engine.restart()
        assert other.rows == [1, 2] and lossy.rows == [2]
        engine.run(0, [2], [1])
        assert sorted(lossy.rows) == [1, 2] and other.rows == [1, 2]


class TestStop:
    def test_a_replay_that_differs_stops_and_names_the_ways_out(self, engine, endpoint) -> None:
        decide_only(engine, [1, 2], [3])
        drop(endpoint, 0)
        engine.restart()
        with pytest.raises(LostError) as caught:
            engine.run(0, [1, 9], [3])
        text = str(caught.value)
        assert "checkpoint 0" in text and "subtask 0 (2 rows)" in text
        for way in ("holdfast resolve", "--produce-anyway", "--give-up", "--mark-delivered"):
            assert way in text
        assert endpoint.rows == [3] and not endpoint.prepared
        finding = engine.storage.read("lost/0.prepared.json")
        assert json.loads(finding)["record"]["lost"][0]["rows"] == 2
        engine.restart()
        with pytest.raises(LostError):
            engine.run(0, [1, 9], [3])
        engine.restart()
        engine.run(0, [3], [2, 1])
        assert sorted(endpoint.rows) == [1, 2, 3], "a later replay that is equal repairs it"

    def test_two_passes_that_differ_produce_nothing(self, engine, endpoint) -> None:
        decide_only(engine, [1, 2], [3])
        drop(endpoint, 0)
        engine.restart()

        class Restless(InProcessBatch):
            def digests(self, sink):  # type: ignore[no-untyped-def]
                seen = super().digests(sink)
                self.partitions = ([2, 9], [3])
                return seen

        with pytest.raises(CommitError, match="two passes"):
            engine.coordinator.run(0, Restless([1, 2], [3]))
        assert endpoint.rows == [3] and not endpoint.prepared

    def test_what_spark_has_committed_cannot_be_replayed(self, engine, endpoint) -> None:
        decide_only(engine, [1, 2], [3])
        drop(endpoint, 0)
        engine.committed = 0
        with pytest.raises(LostError, match="holdfast resolve"):
            engine.restart()


def test_an_order_to_produce_anyway_holds_for_one_repair() -> None:
    """If what was produced is lost too, it is not doubled again without asking."""
    first = Record(Slot(0, 0), RecordKind.DECISION, 0, ("s",), (Committable("s", 0, {"n": 0}),))
    order = Record(Slot(1, 0), RecordKind.REPAIR, 0, ("s",), resolution={"s": {"how": "produce-anyway"}})
    done = Record(Slot(2, 0), RecordKind.REPAIR, 0, ("s",), (Committable("s", 1, {"n": 1}),))
    assert "carried_out" not in fold([first, order])[0].resolution["s"]
    assert fold([first, order, done])[0].resolution["s"]["carried_out"] is True


Parts = st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=5)


def _committables(parts: list[list[int]]) -> list[Committable]:
    return [Committable("s", n, {"n": n}, len(p), 0, _digest(p)) for n, p in enumerate(parts)]


def _digest(part: list[int]) -> str:
    """The one that sinks record."""
    digest = Digest()
    digest.add(pa.record_batch({"i": part}))
    assert digest.text is not None
    return digest.text


@given(parts=Parts, data=st.data())
def test_whatever_is_matched_is_just_what_was_lost(parts: list[list[int]], data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.sampled_from(range(len(parts)))))
    replay = data.draw(st.permutations(parts))
    if data.draw(st.booleans()):
        replay = [sorted(part) for part in replay[:-1]] + [[*replay[-1], data.draw(st.integers(0, 5))]]
    recorded = _committables(parts)
    seen = [Replayed(n, len(p), _digest(p)) for n, p in enumerate(replay)]
    kept = [c for c in recorded if c.subtask not in lost]
    plan = plan_repair([c for c in recorded if c.subtask in lost], seen, kept)
    if plan.possible:
        chosen = [n for _, n in plan.matches] + (list(plan.rest) if plan.unmatched else [])
        produced = sorted(i for n in chosen for i in replay[n])
        assert produced == sorted(i for n in lost for i in parts[n])
        assert len(set(chosen)) == len(chosen)
    elif sorted(map(sorted, replay)) == sorted(map(sorted, parts)):
        raise AssertionError("an equal replay was not recognised")
