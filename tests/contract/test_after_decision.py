"""The checks about what comes after the decision, and faults that do not fire: each can turn red, or grey."""

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import LostError, RestoredEndpointError, RowError
from holdfast.testing import ContractError, exercise_sink
from holdfast.testing.context import SCHEMA
from tests.contract.conftest import load
from tests.contract.test_shipped_sinks import AppendOnce, read_json

RenamedFiles = load("renamed_files").RenamedFiles


@pytest.fixture
def exercise(tmp_path):
    """Runs one check on a sink of a class, in a folder of its own."""

    def run(sink, check, **options):
        folder = tmp_path / f"{len(list(tmp_path.iterdir()))}"
        folder.mkdir()
        if options.pop("dropping", False):
            options["drop_prepared"] = lambda: [path.unlink() for path in folder.glob("_*")]
        return exercise_sink(lambda: sink(folder), lambda: load("renamed_files").read(folder), only=[check], **options)

    return run


@pytest.fixture
def red(exercise):
    def run(sink, check, **options):
        with pytest.raises(ContractError) as caught:
            exercise(sink, check, **options)
        return caught.value.failures[check]

    return run


def too_long():
    return [
        pa.RecordBatch.from_pylist([{"id": -n, "name": "x" * 100 * n, "amount": None}], schema=SCHEMA) for n in (1, 2)
    ]


class Refuses(RenamedFiles):
    """Its endpoint takes names of up to 50 letters."""

    def write(self, txn, batch):
        if any(len(name or "") > 50 for name in batch.column("name").to_pylist()):
            raise RowError(f"sink {self.name!r}: column 'name' has a value that is too long")
        super().write(txn, batch)


class RefusesWhenDecided(RenamedFiles):
    def commit(self, checkpoint_id, committables, tasks):
        super().commit(checkpoint_id, committables, tasks)
        raise RowError(f"sink {self.name!r}: column 'name' has a value that is too long")


class RefusesWithoutAName(Refuses):
    def write(self, txn, batch):
        try:
            super().write(txn, batch)
        except RowError:
            raise RowError("too long") from None


def test_d1_a_bad_value_must_be_refused_in_the_task(exercise, red):
    check = "bad_value_is_refused_in_the_task"
    assert exercise(Refuses, check, unacceptable=too_long).passed == (check,)
    assert "it was decided" in red(RenamedFiles, check, unacceptable=too_long)
    late = red(RefusesWhenDecided, check, unacceptable=too_long)
    assert "was refused after its checkpoint was decided" in late
    unnamed = red(RefusesWithoutAName, check, unacceptable=too_long)
    assert "without the sink's name" in unnamed
    skipped = exercise(Refuses, check).skipped
    assert skipped == {check: "unacceptable=... was not given"}


class KnowsWhatIsPrepared(RenamedFiles):
    def still_prepared(self, committables):
        return [c for c in committables if (self.folder / f"_{c['token']}").exists()]


class SaysItIsGone(RenamedFiles):
    def still_prepared(self, committables):
        return committables[1:]


def test_d3_still_prepared_must_tell_the_truth(exercise, red):
    check = "still_prepared_tells_the_truth"
    assert exercise(KnowsWhatIsPrepared, check, dropping=True).passed == (check,)
    lie = red(RenamedFiles, check, dropping=True)
    assert lie == "the endpoint dropped all that was prepared, and 2 are said to be still there"
    assert "1 of 2 committables were said to be gone at once" in red(SaysItIsGone, check)
    assert exercise(RenamedFiles, check).skipped == {check: "drop_prepared=... was not given"}


class KnowsItsLog(AppendOnce):
    """What a write-ahead sink has prepared is in the log, where the suite can drop it by itself."""

    def still_prepared(self, committables):
        from holdfast.checkpoint.storage import open_storage

        there = set(open_storage(self.run.location).walk("wal"))
        return [c for c in committables if c["handle"] in there]


def test_d3_of_a_write_ahead_sink_the_suite_drops_the_log_itself(tmp_path):
    def make():
        return KnowsItsLog(tmp_path, hf.FileCheckpointCommitter(str(tmp_path / "marks")))

    report = exercise_sink(make, lambda: read_json(tmp_path), only=["still_prepared_tells_the_truth"])
    assert report.passed == ("still_prepared_tells_the_truth",)


class Elsewhere(RenamedFiles):
    """Commits into a folder that is an option, by the option of now, or by what was decided."""

    name = "elsewhere"

    def __init__(self, folder, target, *, decided):
        super().__init__(folder)
        self.target, self.decided = target, decided

    def pre_commit(self, txn):
        return {**super().pre_commit(txn), "target": str(self.target)}

    def commit(self, checkpoint_id, committables, tasks):
        super().commit(checkpoint_id, committables, tasks)
        for c in committables:
            path = self.folder / f"{c['token']}.json"
            target = c["target"] if self.decided else str(self.target)
            if path.exists() and target != str(self.folder):
                path.rename(f"{target}/{path.name}")


@pytest.mark.parametrize("decided", [True, False])
def test_d6_options_must_be_in_the_committable(tmp_path, decided):
    other, check = tmp_path / "other", "changed_options_change_nothing_decided"
    other.mkdir()

    def run(**options):
        return exercise_sink(
            lambda: Elsewhere(tmp_path, tmp_path, decided=decided),
            lambda: load("renamed_files").read(tmp_path),
            only=[check],
            **options,
        )

    if decided:
        assert run(changed=lambda: Elsewhere(tmp_path, other, decided=True)).passed == (check,)
        assert run().skipped == {check: "changed=... was not given"}
    else:
        with pytest.raises(ContractError, match="decided, then started with other options: in 6, out 0, lost 6"):
            run(changed=lambda: Elsewhere(tmp_path, other, decided=False))


class AlwaysSaysRestored(RenamedFiles):
    def open(self, run):
        super().open(run)
        if run.committed:
            raise RestoredEndpointError("this endpoint is behind")


def test_d5_a_ledger_must_be_compared_with_the_log(exercise, red):
    check = "restored_endpoint_is_refused"
    assert "no ledger" in exercise(RenamedFiles, check).skipped[check]
    assert "starts all the same" in red(RenamedFiles, check, ledger=True)
    wrong = red(AlwaysSaysRestored, check)
    assert "an endpoint that has all that was committed is refused" in wrong


class Repairable(RenamedFiles):
    name, repairable = "repairable", True

    def commit(self, checkpoint_id, committables, tasks):
        outcome = super().commit(checkpoint_id, committables, tasks)
        lost = [c for c in committables if not (self.folder / f"{c['token']}.json").exists()]
        if lost:
            raise LostError("dropped", lost)
        return outcome


def test_p5_the_repair_point_fires_for_a_sink_that_can_be_repaired(exercise):
    check = "repair_is_repeated"
    report = exercise(Repairable, check, dropping=True)
    assert report.passed == (check,)
    assert report.not_fired == {}
    assert {fault.fault for fault in report.faults} == {"decision=lost", "repair=error", "repair=lost"}
    assert exercise(Repairable, check).skipped == {check: "drop_prepared=... was not given"}


class DeliversItsOwnWay(AppendOnce):
    """A write-ahead sink whose own commit never comes to the points of the base class."""

    def commit(self, checkpoint_id, committables, tasks):
        from holdfast.sinks import wal
        from holdfast.sinks.subtask import make_task, running

        self.committer.open()
        for c in committables:
            task = make_task(self.run, self.name, checkpoint_id, c["subtask"], 0, c["timestamp"])
            with running(task):
                self.send_values(wal.read_log(self.run.location, c), checkpoint_id, c["timestamp"])
            self.committer.commit_checkpoint(c["subtask"], checkpoint_id)
        self.committer.close()
        self.forget_when_complete(checkpoint_id, committables)


def test_a_check_whose_fault_does_not_fire_is_not_among_the_passed_ones(tmp_path):
    report = exercise_sink(
        lambda: DeliversItsOwnWay(tmp_path, hf.FileCheckpointCommitter(str(tmp_path / "marks"))),
        lambda: read_json(tmp_path),
        only=["mark_is_lost", "commit_is_retried"],
    )
    assert report.passed == ("commit_is_retried",)
    assert report.not_exercised == {
        "mark_is_lost": "commit.mark=error did not fire; commit.subtask=lost@2 did not fire"
    }
    assert report.not_fired["commit.mark=error"] == "it should have happened in mark_is_lost"
    assert str(report) == (
        "DeliversItsOwnWay: exactly-once, 1 checks passed, 0 do not apply, 1 not exercised (mark_is_lost); "
        "1 of 3 faults fired\n- commit.mark=error did not fire: it should have happened in mark_is_lost\n"
        "- commit.subtask=lost@2 did not fire: it should have happened in mark_is_lost"
    )
