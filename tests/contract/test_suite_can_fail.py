"""A suite that cannot fail is worth nothing: each broken sink here must turn the right checks red."""

import json
import threading
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.errors import ConfigError
from holdfast.testing import ContractError, exercise_sink
from holdfast.testing.contract import CHECKS, contracts
from tests.contract.conftest import load

RenamedFiles = load("renamed_files").RenamedFiles


class VisibleBeforeCommit(RenamedFiles):
    def pre_commit(self, txn):
        data = super().pre_commit(txn)
        (self.folder / f"_{data['token']}").rename(self.folder / f"{data['token']}.json")
        return data


class CommitAppends(RenamedFiles):
    """Committing twice delivers twice: it copies and keeps the source."""

    def commit(self, checkpoint_id, committables, tasks):
        for c in committables:
            with (self.folder / "all.json").open("a") as file:
                file.write((self.folder / f"_{c['token']}").read_text())


class CommitFailsTheSecondTime(RenamedFiles):
    def commit(self, checkpoint_id, committables, tasks):
        for c in committables:
            (self.folder / f"_{c['token']}").rename(self.folder / f"{c['token']}.json")


class CommitForgetsSubtasks(RenamedFiles):
    def commit(self, checkpoint_id, committables, tasks):
        return super().commit(checkpoint_id, committables[:1], tasks)


class CommitTakesMissingForDone(RenamedFiles):
    def commit(self, checkpoint_id, committables, tasks):
        super().commit(checkpoint_id, committables, tasks)
        return hf.Outcome.COMMITTED


class CommitNeedsTheSameObject(RenamedFiles):
    """What it needs to commit is kept in memory instead of in the committable."""

    known = None

    def validate(self, checkpoint_id, committables, tasks):
        self.known = checkpoint_id

    def commit(self, checkpoint_id, committables, tasks):
        if self.known != checkpoint_id:
            raise LookupError("this checkpoint was prepared by another driver")
        return super().commit(checkpoint_id, committables, tasks)


class AbortDoesNothing(RenamedFiles):
    def abort(self, txn):
        txn.close()


class RecoverDoesNothing(RenamedFiles):
    def recover(self, pipeline, generation, decided):
        pass


class RecoverDeletesDecidedWork(RenamedFiles):
    def recover(self, pipeline, generation, decided):
        super().recover(pipeline, generation, {})


def recovers_all_but(**ignored):
    """A sink whose recover compares everything but one part of the token."""

    class Careless(RenamedFiles):
        name = "careless"

        def recover(self, pipeline, generation, decided):
            kept = {c["token"] for committables in decided.values() for c in committables}
            for hidden in self.folder.glob("_*"):
                task = hf.parse_token(hidden.name[1:])
                same = {
                    "pipeline": task.pipeline == pipeline,
                    "sink": task.sink == self.name,
                    "lineage": task.lineage == self.lineage,
                    "generation": task.generation <= generation,
                }
                if all({**same, **ignored}.values()) and task.token not in kept:
                    hidden.unlink()

    return Careless


class RecoverOnlyItsOwnGeneration(RenamedFiles):
    def recover(self, pipeline, generation, decided):
        kept = {c["token"] for committables in decided.values() for c in committables}
        for hidden in self.folder.glob("_*"):
            task = hf.parse_token(hidden.name[1:])
            ours = (task.pipeline, task.sink, task.lineage) == (pipeline, self.name, self.lineage)
            if ours and task.generation == generation and task.token not in kept:
                hidden.unlink()


class SameNameForEveryAttempt(RenamedFiles):
    def begin(self, task):
        return (self.folder / f"_{task.pipeline}-{task.checkpoint_id}-{task.subtask}").open("w", encoding="utf-8")

    def recover(self, pipeline, generation, decided):
        kept = {c["token"] for committables in decided.values() for c in committables}
        for hidden in self.folder.glob(f"_{pipeline}-*"):
            if hidden.name[1:] not in kept:
                hidden.unlink()


class ReturnsATuple(RenamedFiles):
    def pre_commit(self, txn):
        return ("token", super().pre_commit(txn)["token"])


class ReturnsATupleInside(RenamedFiles):
    def pre_commit(self, txn):
        return {**super().pre_commit(txn), "version": (1, 0)}


class ReturnsAPath(RenamedFiles):
    def pre_commit(self, txn):
        return {**super().pre_commit(txn), "path": Path(txn.name)}


class HoldsALock(RenamedFiles):
    def __init__(self, folder):
        super().__init__(folder)
        self.lock = threading.Lock()


class HoldsAConnectionOnceOpened(RenamedFiles):
    def open(self, run):
        super().open(run)
        self.connection = threading.Lock()


class LosesNulls(RenamedFiles):
    def write(self, txn, batch):
        for row in batch.to_pylist():
            txn.write(json.dumps({k: "" if v is None else v for k, v in row.items()}) + "\n")


class LosesTheLastBatch(RenamedFiles):
    def write(self, txn, batch):
        if not txn.tell():
            super().write(txn, batch)


class OtherNameEachTime(RenamedFiles):
    count = 0

    def __init__(self, folder):
        super().__init__(folder)
        OtherNameEachTime.count += 1
        self.name = f"sink-{OtherNameEachTime.count}"


BROKEN = [
    (VisibleBeforeCommit, {"invisible_before_the_decision", "crash_before_the_decision", "failed_task_leaves_nothing"}),
    (CommitAppends, {"commit_is_repeated", "commit_answer_is_lost", "recovery_is_repeated", "every_fault_point"}),
    (CommitFailsTheSecondTime, {"commit_is_repeated", "commit_answer_is_lost", "every_fault_point"}),
    (CommitForgetsSubtasks, {"several_checkpoints_and_subtasks"}),
    (CommitTakesMissingForDone, {"abort_undoes_a_prepared_task", "crash_before_the_decision", "late_task_is_swept"}),
    (CommitNeedsTheSameObject, {"crash_after_the_decision"}),
    (AbortDoesNothing, {"abort_undoes_a_prepared_task", "abort_undoes_a_half_written_task"}),
    (RecoverDoesNothing, {"crash_before_the_decision", "late_task_is_swept", "forgotten_attempt_is_swept"}),
    (RecoverDeletesDecidedWork, {"crash_after_the_decision", "recovery_is_repeated", "every_fault_point"}),
    (recovers_all_but(pipeline=True, lineage=True), {"other_pipelines_are_left_alone"}),
    (recovers_all_but(lineage=True), {"other_locations_are_left_alone"}),
    (recovers_all_but(sink=True), {"other_sinks_are_left_alone"}),
    (recovers_all_but(generation=True), {"newer_generations_are_left_alone"}),
    (RecoverOnlyItsOwnGeneration, {"crash_before_the_decision", "late_task_is_swept"}),
    (SameNameForEveryAttempt, {"other_pipelines_are_left_alone", "late_task_cannot_touch_newer_work"}),
    (ReturnsATuple, {"committables_are_plain_data"}),
    (ReturnsATupleInside, {"committables_are_plain_data"}),
    (ReturnsAPath, {"committables_are_plain_data"}),
    (HoldsALock, {"can_be_pickled"}),
    (HoldsAConnectionOnceOpened, {"can_be_pickled"}),
    (LosesNulls, {"values_survive"}),
    (LosesTheLastBatch, {"several_checkpoints_and_subtasks", "values_survive"}),
    (OtherNameEachTime, {"same_name_after_restart"}),
]


def failures(sink, folder, **options):
    options.setdefault("leftovers", lambda: [path.name for path in folder.glob("_*")])
    with pytest.raises(ContractError) as caught:
        exercise_sink(lambda: sink(folder), lambda: load("renamed_files").read(folder), **options)
    for name in caught.value.failures:
        assert f"{name} ({', '.join(contracts(name))})" in str(caught.value)
    return caught.value.failures


@pytest.mark.parametrize(("sink", "red"), BROKEN, ids=[f"{sink.__name__}-{min(red)}" for sink, red in BROKEN])
def test_a_broken_sink_turns_the_right_checks_red(sink, red, tmp_path):
    assert red <= set(failures(sink, tmp_path))


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("sink", [RecoverDoesNothing, AbortDoesNothing])
def test_forgotten_work_is_found_without_leftovers(sink, tmp_path):
    found = failures(sink, tmp_path, leftovers=None)
    assert {"abort_undoes_a_prepared_task", "crash_before_the_decision"} & set(found)


@pytest.mark.parametrize(("part", "check"), [("sink", "sinks"), ("lineage", "locations")])
def test_one_flaw_turns_one_check_red(part, check, tmp_path):
    assert set(failures(recovers_all_but(**{part: True}), tmp_path)) == {f"other_{check}_are_left_alone"}


class NeverTakesAnything(hf.WriteAheadSink):
    def __init__(self, folder):
        super().__init__(committer=hf.FileCheckpointCommitter(f"{folder}/marks"))
        self.folder = str(folder)

    def send_values(self, values, checkpoint_id, timestamp):
        return False


class AppendsToAFile(NeverTakesAnything):
    """Its endpoint cannot know a resend: at-least-once, whatever its author says."""

    def send_values(self, values, checkpoint_id, timestamp):
        with Path(self.folder, "all.json").open("a") as file:
            file.writelines(json.dumps(row) + "\n" for batch in values for row in batch.to_pylist())
        return True


def test_a_write_ahead_sink_with_plain_sends_is_not_exactly_once(tmp_path):
    found = failures(AppendsToAFile, tmp_path, leftovers=None)
    assert set(found) == {"mark_is_lost", "every_fault_point"}


def test_a_write_ahead_sink_with_plain_sends_is_at_least_once(tmp_path):
    def read():
        return load("renamed_files").read(tmp_path)

    report = exercise_sink(lambda: AppendsToAFile(tmp_path), read, guarantee="at-least-once")
    assert "mark_is_lost" in report.passed


def test_a_sink_that_never_delivers_is_red_everywhere(tmp_path):
    found = failures(NeverTakesAnything, tmp_path, leftovers=None)
    assert {"several_checkpoints_and_subtasks", "commit_is_retried", "empty_batch"} <= set(found)


def test_the_message_names_sink_check_contract_and_difference(tmp_path):
    with pytest.raises(AssertionError) as caught:
        exercise_sink(
            lambda: CommitForgetsSubtasks(tmp_path),
            lambda: load("renamed_files").read(tmp_path),
            only=["several_checkpoints_and_subtasks"],
        )
    assert str(caught.value) == (
        "sink 'CommitForgetsSubtasks' breaks the contract in 1 of 1 checks:\n"
        "- several_checkpoints_and_subtasks (T1, T2): after checkpoint 0 with 3 subtasks: "
        "in 5, out 2, lost 3, doubled 0; lost: 1, 2, 4"
    )


def test_every_check_says_what_must_hold_and_cites_the_contract():
    for name, check in CHECKS.items():
        assert contracts(name), name
        assert check.__doc__.rstrip().endswith(")."), name


def test_progress_and_only(tmp_path):
    told = []
    report = exercise_sink(
        lambda: RenamedFiles(tmp_path),
        lambda: load("renamed_files").read(tmp_path),
        only=["empty_batch", "mark_is_lost"],
        progress=told.append,
        reset=lambda: told.append("reset"),
    )
    assert told == ["empty_batch", "reset", "mark_is_lost", "reset"]
    assert report.passed == ("empty_batch",)
    assert report.skipped == {"mark_is_lost": "it is not a write-ahead sink"}
    assert str(report) == "RenamedFiles: exactly-once, 1 checks passed, 1 do not apply"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"guarantee": "mostly"}, "guarantee must be one of exactly-once, effectively-once, at-least-once"),
        ({"make_row": lambda n: {}}, "schema and make_row go together"),
        ({"only": ["spelling"]}, "there is no check 'spelling'"),
    ],
)
def test_wrong_options_are_refused(options, words, tmp_path):
    with pytest.raises(ConfigError, match=words):
        exercise_sink(lambda: RenamedFiles(tmp_path), list, **options)
