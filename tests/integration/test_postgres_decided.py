"""PostgresSink between decision and commit: changed options, lost work, rows that collide, a take-over."""

from __future__ import annotations

import threading
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from holdfast.core.model import Outcome
from holdfast.errors import ConfigError, InjectedFault, LostError, RowError
from holdfast.testing.local import Died, PickledTasks, armed
from tests.integration.pg import SCHEMA, Query, as_it_was, batch, rows
from tests.servers.postgres import PostgresServer, execute

LEDGER, TWO_PHASE = {"mode": "ledger"}, {"mode": "two-phase"}
UPSERT = {"mode": "upsert", "key": ["id"], "order_by": "name"}


@pytest.fixture
def query(postgres: PostgresServer, tmp_path: Path) -> Query:
    return Query(tmp_path / "checkpoint", postgres.new_database())


def prepare(run: Any, *partitions: Any, checkpoint: int = 0) -> list[Any]:
    """The committables of a checkpoint that nobody has decided yet."""
    reports = batch(*partitions).write(run.info, run.sinks, checkpoint, 0)
    return [c.data for report in reports for c in report.committables]


# -- rule 16 ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("now", [UPSERT, TWO_PHASE, {**LEDGER, "schema": "elsewhere"}], ids=["upsert", "two", "schema"])
def test_rule_16_what_was_decided_as_ledger_is_appended_whatever_the_options_are_now(
    query: Query, now: dict[str, Any]
) -> None:
    execute(query.dsn, "CREATE TABLE t (id bigint, name text)")
    execute(query.dsn, "CREATE TABLE other (id bigint PRIMARY KEY, name text)")
    run = query.start(query.sink("t", name="out", **LEDGER))
    twice = [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}]
    with pytest.raises(InjectedFault), armed("decision=lost"):
        run.run(0, batch(twice))
    run = query.start(query.sink("other", name="out", **now))
    run.run(0, batch(twice))
    run.run(1, batch(rows(2)))
    run.close()
    assert query.select() == [(1, "a"), (1, "b")], "two rows are two rows"
    assert query.ids("other") == [2]
    assert query.leftovers == []


@pytest.mark.parametrize("now", [LEDGER, TWO_PHASE, {"mode": "upsert", "key": ["id"]}], ids=["ledger", "two", "upsert"])
def test_rule_16_what_was_decided_as_upsert_replaces_by_the_key_and_order_of_then(
    query: Query, now: dict[str, Any]
) -> None:
    execute(query.dsn, "CREATE TABLE t (id bigint PRIMARY KEY, name text)")
    run = query.start(query.sink(name="out", **UPSERT))
    run.run(0, batch([{"id": 1, "name": "m"}]))
    with pytest.raises(InjectedFault), armed("decision=lost"):
        run.run(1, batch([{"id": 1, "name": "z"}, {"id": 1, "name": "a"}, {"id": 2, "name": "a"}]))
    run = query.start(query.sink(name="out", **now))
    run.run(1, batch(rows(9)))
    run.close()
    assert query.select() == [(1, "z"), (2, "a")]


@pytest.mark.parametrize("now", [LEDGER, UPSERT], ids=["ledger", "upsert"])
def test_rule_16_what_was_prepared_is_committed_in_another_mode_table_and_schema(
    query: Query, now: dict[str, Any]
) -> None:
    execute(query.dsn, "CREATE TABLE t (id bigint, name text)")
    execute(query.dsn, "CREATE TABLE other (id bigint PRIMARY KEY, name text)")
    run = query.start(query.sink(name="out", **TWO_PHASE))
    with pytest.raises(Died), armed("commit.subtask=error@2", died=True):
        run.run(0, batch(rows(1), rows(2), rows(3)))
    run = query.start(query.sink("other", name="out", schema="elsewhere", **now))
    run.run(0, batch(rows(1), rows(2), rows(3)))
    run.run(1, batch(rows(4)))
    run.close()
    assert query.ids() == [1, 2, 3] and query.ids("other") == [4]
    assert query.leftovers == []


@pytest.mark.parametrize("now", [TWO_PHASE, LEDGER, UPSERT], ids=["two", "ledger", "upsert"])
def test_rule_16_a_repair_goes_into_the_table_and_ledger_of_the_decision(query: Query, now: dict[str, Any]) -> None:
    execute(query.dsn, "CREATE TABLE t (id bigint, name text)")
    execute(query.dsn, "CREATE TABLE other (id bigint PRIMARY KEY, name text)")
    run = query.start(query.sink(name="out", **TWO_PHASE))
    decided: list[Any] = []
    with pytest.raises(InjectedFault), armed("decision=lost"):
        run.run(0, batch(rows(1), rows(2, 22), rows(3), prepared=decided.extend))
    take_away(query, decided[1].committables[0].data)
    run = query.start(query.sink("other", name="out", schema="elsewhere", **now))
    run.run(0, batch(rows(1), rows(2, 22), rows(3)))
    run.run(1, batch(rows(4)))
    run.close()
    assert query.ids() == [1, 2, 3, 22] and query.ids("other") == [4]
    assert query.select("SELECT sum(row_count)::int FROM _holdfast.ledger WHERE checkpoint_id = 0") == [(4,)]
    assert query.leftovers == []
    query.start(query.sink("other", name="out", schema="elsewhere", **now)).close()


def test_committables_of_version_1_are_committed_by_the_options(query: Query) -> None:
    run = query.start(name="out", **UPSERT)
    run.run(0, batch([{"id": 1, "name": "m"}]))
    data = prepare(run, [{"id": 1, "name": "z"}, {"id": 1, "name": "a"}], checkpoint=1)
    old = [as_it_was(query, c, "no token", 1) for c in data]
    moved = query.sink("other", create=True, name="out")
    moved.open(replace(run.info, last_decided=1))
    with pytest.raises(ConfigError, match=r"checkpoint 1 was decided for table public.t by an older version"):
        moved.commit(1, old, PickledTasks())
    assert run.sinks[0].commit(1, old, PickledTasks()) is Outcome.COMMITTED
    assert query.select() == [(1, "z")]
    moved.close()
    run.close()

    two = query.sink(name="two", **TWO_PHASE)
    two.open(replace(run.info, last_decided=None))
    reports = batch(rows(7)).write(run.info, [two], 0, 0)
    (prepared,) = [c.data for report in reports for c in report.committables]
    old_one = {k: prepared[k] for k in ("kind", "gid", "subtask", "rows")} | {"version": 1}
    assert two.commit(0, [old_one], PickledTasks()) is Outcome.COMMITTED
    two.close()
    assert query.ids() == [1, 7]


def test_a_committable_of_a_newer_version_is_not_touched(query: Query) -> None:
    run = query.start()
    (data,) = prepare(run, rows(1))
    with pytest.raises(ConfigError, match="prepared by a newer version of holdfast"):
        run.sinks[0].commit(0, [{**data, "version": 5}], PickledTasks())
    run.close()
    assert query.ids() == []


# -- rule 14 and what is lost -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [LEDGER, TWO_PHASE], ids=["ledger", "two-phase"])
def test_rule_14_what_is_gone_is_noticed_before_the_decision(query: Query, options: dict[str, Any]) -> None:
    run = query.start(**options)
    data = prepare(run, rows(1), rows(2), rows(3))
    (sink,) = run.sinks
    assert sink.still_prepared(data) == data
    take_away(query, data[1])
    assert sink.still_prepared(data) == [data[0], data[2]]
    assert sink.still_prepared([]) == []
    run.close()
    query.start(**options).close()
    assert query.leftovers == []


def open_work(query: Query) -> set[Any]:
    parts = query.select("SELECT part FROM _holdfast.staged")
    gids = query.select("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()")
    return {row[0] for row in parts + gids}


def take_away(query: Query, committable: dict[str, Any]) -> None:
    gid = committable.get("gid")
    of_it = f'FROM _holdfast."{committable.get("table")}" WHERE _holdfast_part = {committable.get("part")}'
    execute(query.dsn, f"ROLLBACK PREPARED '{gid}'" if gid else f"DELETE {of_it}")


def test_one_of_three_prepared_transactions_is_lost_and_only_that_one(query: Query) -> None:
    run = query.start(**TWO_PHASE)
    data = prepare(run, rows(1, 11), rows(2, 12, 22), rows(3))
    take_away(query, data[1])
    with pytest.raises(
        LostError, match=r"1 of 3 prepared transactions of checkpoint 0 \(3 rows, subtasks 1\)"
    ) as error:
        run.sinks[0].commit(0, data, PickledTasks())
    assert list(error.value.lost) == [data[1]] and error.value.certain
    assert query.ids() == [1, 3, 11], "the others are committed"
    with pytest.raises(LostError) as again:
        run.sinks[0].commit(0, data, PickledTasks())
    assert list(again.value.lost) == [data[1]]
    run.close()


def test_what_somebody_rolled_back_is_produced_again_from_the_replay(query: Query) -> None:
    run = query.start(**TWO_PHASE)
    meddled: list[str] = []

    def meddle(reports: list[Any]) -> None:
        if not meddled:
            (lost,) = reports[1].committables
            meddled.append(lost.data["gid"])
            take_away(query, lost.data)

    run.run(0, batch(rows(1, 11), rows(2, 12), rows(3), prepared=meddle))
    run.run(1, batch(rows(4)))
    run.close()
    assert meddled and query.ids() == [1, 2, 3, 4, 11, 12]
    assert query.leftovers == []


@pytest.mark.parametrize("options", [LEDGER, UPSERT], ids=["ledger", "upsert"])
def test_staged_rows_that_somebody_deleted_are_lost_and_only_those(query: Query, options: dict[str, Any]) -> None:
    run = query.start(**options)
    data = prepare(run, rows(1), rows(2, 22), rows(3))
    take_away(query, data[1])
    with pytest.raises(LostError, match=r"of 1 of 3 subtasks of checkpoint 0 \(2 rows, subtasks 1\)") as error:
        run.sinks[0].commit(0, data, PickledTasks())
    assert list(error.value.lost) == [data[1]] and error.value.certain
    assert query.ids() == [], "a checkpoint is moved as a whole"
    made = batch(rows(2, 22)).write(run.info, run.sinks, 0, 0)
    replaced = [data[0], made[0].committables[0].data, data[2]]
    assert run.sinks[0].commit(0, replaced, PickledTasks()) is Outcome.COMMITTED
    run.close()
    assert query.ids() == [1, 2, 3, 22]


def test_a_repair_in_another_mode_is_committed_beside_what_was_prepared(query: Query) -> None:
    run = query.start(query.sink(create=True, name="out", **TWO_PHASE))
    data = prepare(run, rows(1), rows(2))
    take_away(query, data[1])
    with pytest.raises(LostError):
        run.sinks[0].commit(0, data, PickledTasks())
    staged = query.sink(name="out")
    staged.open(replace(run.info, last_decided=0))
    (report,) = batch(rows(2)).write(run.info, [staged], 0, 0)
    both = [data[0], report.committables[0].data]
    assert staged.commit(0, both, PickledTasks()) is Outcome.COMMITTED
    assert staged.commit(0, both, PickledTasks()) is Outcome.ALREADY_COMMITTED
    staged.close()
    run.close()
    assert query.ids() == [1, 2]


# -- rows that collide ------------------------------------------------------------------------------------------------

RAISES = "CREATE FUNCTION f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'never on Mondays'; END $$"
COLLISIONS = [
    ("CREATE TABLE t (id bigint CONSTRAINT one UNIQUE, name text)", "INSERT INTO t VALUES (1)", "constraint 'one'"),
    (
        "CREATE TABLE k (id bigint PRIMARY KEY); CREATE TABLE t (id bigint CONSTRAINT there REFERENCES k, name text)",
        "",
        "constraint 'there'",
    ),
    (
        "CREATE TABLE t (id bigint, name text, CONSTRAINT apart EXCLUDE USING btree (id WITH =))",
        "INSERT INTO t VALUES (1)",
        "constraint 'apart'",
    ),
    (
        f"CREATE TABLE t (id bigint, name text); {RAISES}; CREATE TRIGGER f BEFORE INSERT ON t FOR EACH ROW "
        "EXECUTE FUNCTION f()",
        "",
        "never on Mondays",
    ),
]


@pytest.mark.parametrize(("tables", "there", "message"), COLLISIONS, ids=["unique", "foreign", "exclusion", "trigger"])
def test_rule_12_what_only_the_commit_can_refuse_names_the_constraint_and_its_rows_can_be_read(
    query: Query, tables: str, there: str, message: str
) -> None:
    for statement in [tables, there]:
        if statement:
            execute(query.dsn, statement)
    run = query.start(**LEDGER)
    data = prepare(run, rows(1), rows(2, 3))
    with pytest.raises(RowError, match=rf"checkpoint 0 does not go into table public.t.*{message}.*holdfast resolve"):
        run.sinks[0].commit(0, data, PickledTasks())
    read = run.sinks[0].rows_of(data)
    assert read is not None
    assert pa.Table.from_batches(list(read)).to_pylist() == rows(1, 2, 3)
    run.close()


def test_rows_of_reads_every_type_and_leaves_out_what_is_gone(postgres: PostgresServer, tmp_path: Path) -> None:
    schema = pa.schema([*SCHEMA, ("n", pa.decimal128(10, 2)), ("at", pa.timestamp("us", "UTC")), ("mood", pa.string())])
    query = Query(tmp_path, postgres.new_database(), schema=schema)
    execute(query.dsn, "CREATE TYPE mood AS ENUM ('sad', 'happy')")
    execute(query.dsn, "CREATE TABLE t (id bigint, name text, n numeric, at timestamptz, mood mood)")
    run = query.start(create=False)
    given = {"id": 1, "name": "é", "n": 1, "at": 0, "mood": "sad"}
    made = pa.RecordBatch.from_pylist([given, {"id": 2}], schema=schema)
    reports = batch().__class__([[made], [made]]).write(run.info, run.sinks, 0, 0)
    data = [c.data for report in reports for c in report.committables]
    take_away(query, data[0])
    (found,) = run.sinks[0].rows_of(data)
    assert found.num_rows == 2 and found.schema.field("at").type == pa.timestamp("us", "UTC")
    assert found.column("mood").to_pylist() == ["sad", None] and found.column("n").to_pylist() == ["1", None]
    run.close()
    two = query.sink(**TWO_PHASE)
    assert two.rows_of([{"version": 2, "kind": "prepared", "gid": "x", "subtask": 0, "rows": 1}]) is None


# -- a take-over, and a commit beside the next checkpoint -------------------------------------------------------------


@pytest.mark.parametrize("later", [False, True], ids=["the run that takes over", "a later run"])
@pytest.mark.parametrize("options", [LEDGER, TWO_PHASE], ids=["ledger", "two-phase"])
def test_a_take_over_undoes_what_other_lineages_prepared_and_did_not_decide(
    query: Query, tmp_path: Path, options: dict[str, Any], later: bool
) -> None:
    other = Query(tmp_path / "other", query.dsn)
    run = other.start(**options)
    decided = prepare(run, rows(1))
    prepare(run, rows(2), rows(3))
    foreign = Query(tmp_path / "foreign", query.dsn, name="not orders")
    theirs = prepare(foreign.start(**options), rows(4))
    taken = query.sink(**options)
    over: dict[str, Any] = {"set_aside": (run.info.lineage,)} if later else {"take_over": True}
    info = replace(run.info, lineage=uuid.uuid4().hex, generation=0, last_decided=0, **over)
    taken.open(info)
    taken.recover("orders", 0, {0: decided})
    kept = {c.get("gid") or c["part"] for c in [*decided, *theirs]}
    assert open_work(query) == kept, "what is decided stays, and what is another pipeline's"
    assert taken.commit(0, decided, PickledTasks()) is Outcome.COMMITTED
    assert query.ids() == [1]
    foreign.start(**options).close()
    taken.close()
    assert query.leftovers == []


@pytest.mark.parametrize("options", [LEDGER, TWO_PHASE], ids=["ledger", "two-phase"])
def test_who_takes_the_name_from_a_run_that_took_it_keeps_what_it_prepares(
    query: Query, tmp_path: Path, options: dict[str, Any]
) -> None:
    """Rule 2: that run may sweep on, paused or not, until it finds that the name is not its own any more."""
    other = Query(tmp_path / "other", query.dsn).start(**options)
    taken, successor = query.sink(**options), query.sink(**options)
    info = replace(other.info, lineage=uuid.uuid4().hex, take_over=True)
    taken.open(info)
    taken.recover("orders", 0, {})
    newer = replace(info, lineage=uuid.uuid4().hex)
    successor.open(newer)
    work = [c.data for report in batch(rows(9)).write(newer, [successor], 0, 0) for c in report.committables]
    taken.recover("orders", 0, {})
    assert successor.still_prepared(work) == work
    assert successor.commit(0, work, PickledTasks()) is Outcome.COMMITTED
    assert query.ids() == [9]
    taken.close()
    successor.close()
    other.close()


@pytest.mark.parametrize("options", [LEDGER, UPSERT], ids=["ledger", "upsert"])
def test_a_commit_runs_beside_the_next_checkpoint(query: Query, options: dict[str, Any]) -> None:
    run = query.start(**options)
    (sink,) = run.sinks
    assert sink.overlaps and not sink.repairable
    assert query.sink(**TWO_PHASE).repairable and not query.sink(**TWO_PHASE).overlaps
    outcomes: list[Any] = []
    data = prepare(run, rows(*range(100)))
    for checkpoint in range(12):
        commit = threading.Thread(
            target=lambda c=checkpoint, d=data: outcomes.append(sink.commit(c, d, PickledTasks()))
        )
        commit.start()
        sink.recover("orders", run.info.generation, {checkpoint: data})
        start = 100 * (checkpoint + 1)
        data = prepare(
            run, rows(*range(start, start + 50)), rows(*range(start + 50, start + 100)), checkpoint=checkpoint + 1
        )
        sink.validate(checkpoint + 1, data, PickledTasks())
        assert sink.still_prepared(data) == data
        commit.join()
    assert outcomes == [Outcome.COMMITTED] * 12
    run.close()
    assert query.ids() == list(range(1200))


def test_two_threads_never_share_a_connection(query: Query) -> None:
    run = query.start()
    server = run.sinks[0].server
    barrier, seen = threading.Barrier(2), []

    def use() -> None:
        for _ in range(20):
            with server.connect() as connection:
                barrier.wait(60)
                seen.append(connection.info.backend_pid)
                barrier.wait(60)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 40 and all(seen[i] != seen[i + 1] for i in range(0, 40, 2))
    assert len(set(seen)) == 2, "both are kept"
    run.close()
    with psycopg.connect(query.dsn) as connection:
        left = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY (%s)", (seen,)).fetchone()
    assert left is not None
