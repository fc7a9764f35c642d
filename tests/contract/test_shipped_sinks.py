import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import holdfast as hf
from holdfast.testing import exercise_sink
from holdfast.testing.contract import CHECKS


class AppendOnce(hf.WriteAheadSink):
    """Sends are idempotent: a send is a file whose name is its checkpoint and subtask."""

    def __init__(self, folder, committer):
        super().__init__(committer=committer)
        self.folder = str(folder)

    def send_values(self, values, checkpoint_id, timestamp):
        task = hf.current_task()
        assert task.checkpoint_id == checkpoint_id
        assert task.timestamp == timestamp
        rows = [row for batch in values for row in batch.to_pylist()]
        path = Path(self.folder, f"{task.lineage}-{task.sink}-{checkpoint_id}-{task.subtask}.json")
        path.write_text(json.dumps(rows), encoding="utf-8")
        return True


def read_json(folder):
    return [row for file in Path(folder).glob("*.json") for row in json.loads(file.read_text(encoding="utf-8"))]


def read_table(path):
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        try:
            return [dict(row) for row in connection.execute("SELECT * FROM t")]
        except sqlite3.OperationalError:
            return []


#: checks that need to be given something, or that ask for what not every sink has
OPTIONAL = {
    "bad_value_is_refused_in_the_task",
    "still_prepared_tells_the_truth",
    "changed_options_change_nothing_decided",
    "restored_endpoint_is_refused",
    "repair_is_repeated",
}


def assert_all_ran(report, *skipped, ran=(), not_exercised=()):
    """All checks passed but these; of the optional ones at least those in `ran`; every fault fired that could."""
    assert set(report.skipped) - OPTIONAL == set(skipped), report.skipped
    assert not set(ran) & set(report.skipped), report.skipped
    assert set(report.not_exercised) == set(not_exercised), report.not_exercised
    assert set(report.passed) | set(report.skipped) | set(not_exercised) == set(CHECKS)
    assert [why for why in report.not_fired.values() if "should have happened" in why] == []


@pytest.mark.usefixtures("each_way")
def test_sqlite_ledger(tmp_path):
    path = str(tmp_path / "db.sqlite")
    report = exercise_sink(lambda: hf.SqliteSink(path, "t"), lambda: read_table(path))
    assert_all_ran(report, "mark_is_lost")


def test_sqlite_upsert(tmp_path):
    path = str(tmp_path / "db.sqlite")
    report = exercise_sink(lambda: hf.SqliteSink(path, "t", mode="upsert", key=["id"]), lambda: read_table(path))
    assert_all_ran(report, "mark_is_lost")


def test_stdout(capsys):
    shown = []

    def read():
        shown.append(capsys.readouterr().out)
        return [json.loads(line) for line in "".join(shown).splitlines()]

    report = exercise_sink(hf.StdoutSink, read, guarantee="at-least-once")
    assert_all_ran(report, "invisible_before_the_decision")


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize("kind", ["file", "sql"])
def test_write_ahead_with_an_idempotent_send(tmp_path, kind):
    def make():
        if kind == "file":
            return AppendOnce(tmp_path, hf.FileCheckpointCommitter(str(tmp_path / "marks")))
        return AppendOnce(tmp_path, hf.SqlCheckpointCommitter(f"sqlite:///{tmp_path}/marks.db"))

    report = exercise_sink(make, lambda: read_json(tmp_path), ledger=True)
    assert_all_ran(report, ran=["restored_endpoint_is_refused"])
    assert {fault.partition("=")[0] for fault in report.not_fired} == {"offsets", "repair"}


@pytest.mark.usefixtures("each_way")
def test_renamed_files(tmp_path, renamed_files):
    report = exercise_sink(
        lambda: renamed_files.RenamedFiles(tmp_path),
        lambda: renamed_files.read(tmp_path),
        leftovers=lambda: [path.name for path in tmp_path.glob("_*")],
    )
    assert_all_ran(report, "mark_is_lost")
    fired = {fault.fault for fault in report.faults if fault.check == "every_fault_point" and fault.fired}
    assert len(fired) == 16
    none = ("commit.subtask", "commit.mark", "offsets", "repair")
    assert set(report.not_fired) == {f"{point}={mode}" for point in none for mode in ("error", "lost")}
    assert report.not_fired["commit.subtask=lost"] == "its commit has no such step"
    assert "16 of 24 faults fired\n- commit.subtask=error did not fire: its commit has no such step" in str(report)


def test_http_endpoint(tmp_path, http_endpoint):
    with http_endpoint.Server() as server:
        committer = hf.FileCheckpointCommitter(str(tmp_path))
        report = exercise_sink(
            lambda: http_endpoint.HttpEndpoint(server.url, committer=committer), lambda: list(server.rows)
        )
    assert_all_ran(report, ran=["restored_endpoint_is_refused"])


def test_upsert_endpoint(tmp_path, upsert_endpoint):
    report = exercise_sink(
        lambda: upsert_endpoint.KeyFiles(tmp_path, key="id"),
        lambda: upsert_endpoint.read(tmp_path),
        guarantee="effectively-once",
        leftovers=lambda: [path.name for path in tmp_path.glob(".*")],
    )
    commits = ["commit_answer_is_lost", "commit_is_retried"]
    assert_all_ran(report, "invisible_before_the_decision", "mark_is_lost", not_exercised=commits)
    assert (
        report.not_exercised["commit_is_retried"] == "commit.sink=error did not fire: its tasks leave nothing to commit"
    )
