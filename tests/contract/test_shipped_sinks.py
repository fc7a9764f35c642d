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


def assert_all_ran(report, *skipped):
    assert set(report.skipped) == set(skipped), report.skipped
    assert set(report.passed) | set(skipped) == set(CHECKS)


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


@pytest.mark.parametrize("kind", ["file", "sql"])
def test_write_ahead_with_an_idempotent_send(tmp_path, kind):
    def make():
        if kind == "file":
            return AppendOnce(tmp_path, hf.FileCheckpointCommitter(str(tmp_path / "marks")))
        return AppendOnce(tmp_path, hf.SqlCheckpointCommitter(f"sqlite:///{tmp_path}/marks.db"))

    assert_all_ran(exercise_sink(make, lambda: read_json(tmp_path)))


def test_renamed_files(tmp_path, renamed_files):
    report = exercise_sink(
        lambda: renamed_files.RenamedFiles(tmp_path),
        lambda: renamed_files.read(tmp_path),
        leftovers=lambda: [path.name for path in tmp_path.glob("_*")],
    )
    assert_all_ran(report, "mark_is_lost")


def test_http_endpoint(tmp_path, http_endpoint):
    with http_endpoint.Server() as server:
        committer = hf.FileCheckpointCommitter(str(tmp_path))
        report = exercise_sink(
            lambda: http_endpoint.HttpEndpoint(server.url, committer=committer), lambda: list(server.rows)
        )
    assert_all_ran(report)


def test_upsert_endpoint(tmp_path, upsert_endpoint):
    report = exercise_sink(
        lambda: upsert_endpoint.KeyFiles(tmp_path, key="id"),
        lambda: upsert_endpoint.read(tmp_path),
        guarantee="effectively-once",
        leftovers=lambda: [path.name for path in tmp_path.glob(".*")],
    )
    assert_all_ran(report, "invisible_before_the_decision", "mark_is_lost")
