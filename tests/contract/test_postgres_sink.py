"""PostgresSink keeps the contract in each mode (T1-T8, I1), and SqlCheckpointCommitter does in PostgreSQL (C3)."""

import psycopg
import pytest

import holdfast as hf
from holdfast.testing import exercise_sink
from tests.contract.test_shipped_sinks import AppendOnce, assert_all_ran, read_json
from tests.servers.postgres import left_behind


@pytest.fixture
def dsn(postgres):
    return postgres.new_database()


def read_table(dsn, table="t"):
    with psycopg.connect(dsn, row_factory=psycopg.rows.dict_row) as connection:
        try:
            return connection.execute(f"SELECT * FROM {table}").fetchall()
        except psycopg.errors.UndefinedTable:
            return []


@pytest.mark.usefixtures("each_way")
@pytest.mark.parametrize(
    "options",
    [{"stage": "server"}, {"stage": "log"}, {"mode": "two-phase"}, {"mode": "upsert", "key": ["id"]}],
    ids=["ledger", "log", "two-phase", "upsert"],
)
def test_each_mode_keeps_the_contract(dsn, options):
    report = exercise_sink(
        lambda: hf.PostgresSink(dsn, "t", create=True, **options),
        lambda: read_table(dsn),
        leftovers=lambda: left_behind(dsn),
    )
    assert_all_ran(report, "mark_is_lost")


def test_write_ahead_with_marks_in_postgresql(dsn, tmp_path):
    def make():
        return AppendOnce(tmp_path, hf.SqlCheckpointCommitter(dsn))

    report = exercise_sink(make, lambda: read_json(tmp_path), ledger=True)
    assert_all_ran(report, ran=["restored_endpoint_is_refused"])
