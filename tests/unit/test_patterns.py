"""Tables, folders and topics as patterns over columns, without Spark: R6, D1, rules 15 and 16."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.checkpoint.bad_rows import Letters
from holdfast.connectors.files.flush import flush
from holdfast.connectors.kafka.producer.arrow import check_schema
from holdfast.connectors.kafka.sink.options import with_topic
from holdfast.errors import ConfigError, RestoredEndpointError, RowError
from holdfast.pipeline.problems import read_job
from holdfast.sinks.dead_letters import KeptLetters
from holdfast.sinks.fan import fanned
from holdfast.sinks.letters import SCHEMA as LETTERS
from holdfast.sinks.pattern import Pattern, parse_pattern, places
from holdfast.sinks.targets import target_name
from holdfast.testing.local import Died, armed
from tests.unit.inprocess import Engine

SCHEMA = pa.schema([("id", pa.int64()), ("country", pa.string())])


def rows(*pairs: tuple[int, str | None]) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist([{"id": i, "country": c} for i, c in pairs], schema=SCHEMA)]


def sqlite(folder: Path, table: str = "orders_{country}", **options: Any) -> hf.SqliteSink:
    return hf.SqliteSink(folder / "out.db", table, name="orders", **options)


def engine(folder: Path, *sinks: Any, **options: Any) -> Engine:
    return Engine(folder / "ck", *map(fanned, sinks), **{"schema": SCHEMA, **options})


def tables(file: Path) -> dict[str, list[int]]:
    connection = sqlite3.connect(file)
    try:
        names = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'orders%'")
        return {
            name: sorted(row[0] for row in connection.execute(f'SELECT "id" FROM "{name}"') if row[0] != "id")
            for (name,) in names.fetchall()
        }
    finally:
        connection.close()


class TestPattern:
    def pattern(self, text: str = "a_{x}_{y}", **options: Any) -> Pattern:
        made = parse_pattern("table", text, **options)
        assert made is not None
        return made

    def names(self, pattern: Pattern, **columns: Sequence[Any]) -> list[str]:
        found: list[str] = pattern.names(pa.RecordBatch.from_pydict(dict(columns)), lambda name: None).to_pylist()
        return found

    def test_a_name_without_columns_is_a_name(self) -> None:
        assert parse_pattern("table", "orders") is None
        assert parse_pattern("table", None) is None

    def test_columns_become_parts_of_the_name(self) -> None:
        assert self.names(self.pattern(), x=["de", "fr"], y=[1, 22]) == ["a_de_1", "a_fr_22"]
        assert self.names(self.pattern("{{x}}{x}"), x=["de"]) == ["{x}de"]

    @pytest.mark.parametrize("text", ["a{", "a}", "{}", "{a{b}}", "{a}}"])
    def test_a_brace_alone_is_refused_when_the_sink_is_made(self, text: str, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match="written twice"):
            sqlite(tmp_path, text)

    @pytest.mark.parametrize(
        "value", ["", "..", ".a", "a/b", "a\n", "\na", 'a"b', "a b", "a'b", "-a", "_a", "a\0", "é", "a.b"]
    )
    def test_a_value_that_could_be_more_than_a_part_of_a_name_is_refused_by_row_and_column(self, value: str) -> None:
        with pytest.raises(RowError, match="column 'x'") as caught:
            self.names(self.pattern("t_{x}"), x=["fine", value, "fine2", value])
        assert (caught.value.rows, caught.value.column) == ((1, 3), "x")

    def test_text_that_is_no_text_is_refused_too(self) -> None:
        with pytest.raises(RowError, match="makes no name") as caught:
            self.names(self.pattern("t_{x}"), x=pa.array([b"fine", b"ab\xff"]).view(pa.string()))
        assert caught.value.rows == (1,)

    def test_null_is_refused_by_row_and_column(self) -> None:
        with pytest.raises(RowError, match="is null") as caught:
            self.names(self.pattern(), x=["a", "b"], y=[1, None])
        assert (caught.value.rows, caught.value.column) == ((1,), "y")

    def test_dots_go_into_topics_and_folders(self) -> None:
        assert self.names(self.pattern("t.{x}", dots=True), x=["a.b"]) == ["t.a.b"]
        with pytest.raises(RowError):
            self.names(self.pattern("t.{x}", dots=True), x=["..", "a"])

    def test_rows_are_dealt_out_in_order(self) -> None:
        encoded = pa.array(["b", "a", "b", "a", "c"]).dictionary_encode()
        assert {name: found.to_pylist() for name, found in places(encoded)} == {"b": [0, 2], "a": [1, 3], "c": [4]}

    @pytest.mark.parametrize(("column", "kind"), [("z", pa.int64()), ("x", pa.float64()), ("x", pa.binary())])
    def test_a_column_that_is_missing_or_makes_no_name_is_told(self, column: str, kind: pa.DataType) -> None:
        with pytest.raises(ConfigError, match=r"table='t_\{x\}'"):
            self.pattern("t_{x}").check(pa.schema([(column, kind)]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: hf.SqliteSink("/tmp/a.db", "sqlite_{x}"), "not begin with sqlite_"),
        (lambda: hf.SqliteSink("/tmp/a.db", "a_{x}", max_targets=0), "max_targets must be"),
        (lambda: hf.PostgresSink("postgresql://x/y", "a_{x}", mode="two-phase"), "does not go with mode='two-phase'"),
        (lambda: hf.CassandraSink(["x"], "k", "a-{x}"), "letters, digits and underscores"),
        (lambda: hf.FileSink("/{x}/a"), "begin it with a folder"),
        (lambda: hf.FileSink("s3://{x}/a"), "begin it with a folder"),
    ],
)  # fmt: skip
def test_what_cannot_be_a_pattern_is_refused_when_the_sink_is_made(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.mark.contract("R6")
def test_rows_go_to_the_tables_that_their_values_name_and_a_new_one_costs_one_more_run(tmp_path: Path) -> None:
    run = engine(tmp_path, sqlite(tmp_path))
    assert run.run(0, rows((1, "de"), (2, "fr")), rows((3, "de"), (4, "it"))).writes == 2
    assert run.run(1, rows((5, "de")), rows((6, "fr"))).writes == 1
    assert run.run(2, rows((7, "es"))).writes == 2
    run.settle()
    assert tables(tmp_path / "out.db") == {
        "orders_de": [1, 3, 5],
        "orders_fr": [2, 6],
        "orders_it": [4],
        "orders_es": [7],
    }
    decided = run.log.facts.decided[1].of("orders")
    assert [one["target"] for c in decided for one in c.data["targets"]] == ["orders_de", "orders_fr"]
    assert all(one["data"]["into"]["table"] == one["target"] for c in decided for one in c.data["targets"])


def test_a_restart_knows_every_table_and_finishes_what_was_decided(tmp_path: Path) -> None:
    run = engine(tmp_path, sqlite(tmp_path))
    run.run(0, rows((1, "de"), (2, "fr")))
    run.settle()
    with armed("decision=lost", died=True), pytest.raises(Died):
        run.run(1, rows((3, "de"), (4, "it")))
    run.restart(fanned(sqlite(tmp_path)))
    run.run(1, rows((3, "de"), (4, "it")))
    run.run(2, rows((5, "it")))
    run.settle()
    assert tables(tmp_path / "out.db") == {"orders_de": [1, 3], "orders_fr": [2], "orders_it": [4, 5]}


@pytest.mark.contract("R6")
@pytest.mark.parametrize(
    "point",
    ["task.prepared=lost", "decision=error", "commit.subtask=lost", "commit.subtask=error@2", "commit.sink=lost"],
)
def test_a_driver_that_dies_anywhere_loses_and_doubles_nothing(tmp_path: Path, point: str) -> None:
    run = engine(tmp_path, sqlite(tmp_path))
    run.run(0, rows((1, "de")))
    run.settle()
    with armed(point, died=True), pytest.raises(Died):
        run.run(1, rows((2, "de"), (3, "fr")))
        run.settle()
    run.restart(fanned(sqlite(tmp_path)))
    run.run(1, rows((2, "de"), (3, "fr")))
    run.settle()
    assert tables(tmp_path / "out.db") == {"orders_de": [1, 2], "orders_fr": [3]}
    run.tick()
    assert not run.files("wal"), "what a dead driver's tasks had prepared is swept"


def test_more_names_than_max_targets_are_refused_before_the_decision(tmp_path: Path) -> None:
    run = engine(tmp_path, sqlite(tmp_path, max_targets=2))
    run.run(0, rows((1, "aa"), (2, "bb")))
    with pytest.raises(RowError, match=r"'orders_cc' would be one more than max_targets=2") as caught:
        run.run(1, rows((3, "aa"), (4, "cc")))
    assert caught.value.column == "country"
    assert 1 not in run.log.facts.decided


def dead(folder: Path) -> tuple[hf.SqliteSink, Letters]:
    return hf.SqliteSink(folder / "dead.db", "letters", name="dead"), Letters(("dead", KeptLetters.name))


def letters_of(folder: Path) -> list[tuple[int, str]]:
    connection = sqlite3.connect(folder / "dead.db")
    try:
        found = connection.execute("SELECT content, reason FROM letters").fetchall()
    finally:
        connection.close()
    return sorted((json.loads(content)["id"], reason) for content, reason in found)


def test_with_dead_letters_a_bad_name_is_a_refused_row_and_the_others_arrive(tmp_path: Path) -> None:
    sink, rule = dead(tmp_path)
    run = engine(
        tmp_path, sqlite(tmp_path, max_targets=3), sink, KeptLetters(), letters=rule,
        schema={"orders": SCHEMA, "dead": LETTERS},
    )  # fmt: skip
    run.run(0, rows((1, "de"), (2, None), (3, "../x")), rows((4, "fr"), (5, "gb"), (6, "it"), (7, "de")), letters=rule)
    run.settle()
    assert tables(tmp_path / "out.db") == {"orders_de": [1, 7], "orders_fr": [4], "orders_gb": [5]}
    assert [number for number, _ in letters_of(tmp_path)] == [2, 3, 6]
    assert "max_targets=3" in letters_of(tmp_path)[2][1]


def test_a_name_that_the_store_would_cut_or_has_no_room_for_is_refused(tmp_path: Path) -> None:
    long = "x" * 300
    for sink, told in (
        (hf.FileSink(tmp_path / "out" / "{country}", name="files"), "300 bytes, and 255 are allowed"),
        (hf.PostgresSink("postgresql://x/y", "orders_{country}", name="pg"), "more than the 63 bytes"),
        (hf.CassandraSink(["x"], "k", "orders_{country}", name="c"), "1 to 48 letters"),
    ):
        wrong = sink.wrong_target(sink.pattern.fill(long)) if sink.pattern is not None else None
        assert wrong is not None and told in wrong
    run = Engine(tmp_path / "ck", fanned(hf.FileSink(tmp_path / "out" / "{country}", name="files")), schema=SCHEMA)
    with pytest.raises(RowError, match="255 are allowed"):
        run.run(0, rows((1, "de"), (2, long)))
    assert not run.log.facts.decided


def test_a_name_that_has_no_fitting_table_makes_its_rows_bad_ones(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "out.db")
    connection.execute("CREATE TABLE orders_fr (other TEXT)")
    connection.close()
    sink, rule = dead(tmp_path)
    schemas = {"orders": SCHEMA, "dead": LETTERS}
    run = engine(tmp_path, sqlite(tmp_path), sink, KeptLetters(), letters=rule, schema=schemas)
    run.run(0, rows((1, "de"), (2, "fr")), letters=rule)
    run.settle()
    assert tables(tmp_path / "out.db")["orders_de"] == [1]
    ((number, reason),) = letters_of(tmp_path)
    assert number == 2 and "has no column id" in reason


def test_a_ledger_that_lost_a_table_s_rows_is_noticed_at_the_start(tmp_path: Path) -> None:
    run = engine(tmp_path, sqlite(tmp_path))
    run.run(0, rows((1, "de"), (2, "fr")))
    run.run(1, rows((3, "fr")))
    run.settle()
    connection = sqlite3.connect(tmp_path / "out.db")
    connection.execute("DELETE FROM holdfast_ledger WHERE sink = ?", (target_name("orders", "orders_de"),))
    connection.commit()
    connection.close()
    with pytest.raises(RestoredEndpointError, match="orders_de"):
        run.restart(fanned(sqlite(tmp_path)))


def test_a_table_that_was_dropped_is_a_problem_of_its_own_rows_only(tmp_path: Path) -> None:
    run = engine(tmp_path, sqlite(tmp_path))
    run.run(0, rows((1, "de"), (2, "fr")))
    run.settle()
    connection = sqlite3.connect(tmp_path / "out.db")
    connection.execute("DROP TABLE orders_fr")
    connection.execute("CREATE VIEW orders_fr AS SELECT 1 AS other")
    connection.close()
    run.restart(fanned(sqlite(tmp_path)))
    run.run(1, rows((3, "de")))
    with pytest.raises(RowError, match=r"'orders_fr' cannot be written to"):
        run.run(2, rows((4, "fr")))
    connection = sqlite3.connect(tmp_path / "out.db")
    connection.execute("DROP VIEW orders_fr")
    connection.close()
    run.restart(fanned(sqlite(tmp_path)))
    run.run(2, rows((4, "fr")))
    run.settle()
    assert tables(tmp_path / "out.db") == {"orders_de": [1, 3], "orders_fr": [4]}


def test_a_pattern_comes_and_goes_only_with_another_name(tmp_path: Path) -> None:
    run = engine(tmp_path, sqlite(tmp_path))
    run.run(0, rows((1, "de")))
    run.settle()
    with pytest.raises(ConfigError, match="had a pattern over columns before"):
        run.restart(sqlite(tmp_path, "orders"))
    other = hf.SqliteSink(tmp_path / "out.db", "orders_{country}_{id}", name="orders")
    run.restart(fanned(other))
    run.run(1, rows((2, "de")))
    run.settle()
    assert tables(tmp_path / "out.db") == {"orders_de": [1], "orders_de_2": [2]}
    plain = Engine(tmp_path / "b", hf.SqliteSink(tmp_path / "b.db", "orders", name="orders"), schema=SCHEMA)
    plain.run(0, rows((1, "de")))
    with pytest.raises(ConfigError, match="had no pattern over columns before"):
        plain.restart(fanned(hf.SqliteSink(tmp_path / "b.db", "orders_{country}", name="orders")))


def test_a_new_location_takes_over_each_table_as_it_is_met(tmp_path: Path) -> None:
    first = engine(tmp_path, sqlite(tmp_path))
    first.run(0, rows((1, "de")))
    first.settle()
    second = Engine(tmp_path / "other", fanned(sqlite(tmp_path)), schema=SCHEMA)
    with pytest.raises(hf.HoldfastError, match="take_over=True"):
        second.run(0, rows((1, "de")))
    second.restart(fanned(sqlite(tmp_path)), take_over=True)
    second.run(0, rows((2, "de"), (3, "fr")))
    second.settle()
    assert tables(tmp_path / "out.db") == {"orders_de": [1, 2], "orders_fr": [3]}


def test_upserts_in_each_table_and_duplicates_are_told(tmp_path: Path) -> None:
    run = engine(tmp_path, sqlite(tmp_path, mode="upsert", key=["id"]))
    run.run(0, rows((1, "de"), (1, "fr")))
    run.run(1, rows((1, "de")))
    run.settle()
    assert tables(tmp_path / "out.db") == {"orders_de": [1], "orders_fr": [1]}
    with pytest.raises(RowError, match="several rows with key"):
        run.run(2, rows((2, "de")), rows((2, "de")))


def test_folders_by_a_pattern_with_rows_that_wait_over_a_restart(tmp_path: Path) -> None:
    def sink() -> Any:
        return fanned(hf.FileSink(tmp_path / "out" / "{country}", name="files", rolling=hf.Rolling(inactivity="1h")))

    run = Engine(tmp_path / "ck", sink(), schema=SCHEMA)
    run.run(0, rows((1, "de"), (2, "fr")))
    run.settle()
    run.restart(sink())
    run.run(1, rows((3, "de"), (4, "i.t")))
    run.settle()
    assert not list((tmp_path / "out").glob("*/*.parquet")), "they wait for more rows"
    run.tick(2 * 3600.0)
    run.tick(2 * 3600.0)
    found = {
        folder.name: sorted(
            i for file in folder.glob("*.parquet") for i in pq.ParquetFile(file).read()["id"].to_pylist()
        )
        for folder in (tmp_path / "out").iterdir()
    }
    assert found == {"de": [1, 3], "fr": [2], "i.t": [4]}


def test_flush_completes_the_last_files_of_every_folder(tmp_path: Path) -> None:
    sink = fanned(hf.FileSink(tmp_path / "out" / "{country}", name="files", rolling=hf.Rolling(inactivity="1h")))
    run = Engine(tmp_path / "ck" / "holdfast", sink, schema=SCHEMA)
    run.run(0, rows((1, "de"), (2, "fr")))
    run.settle()
    done = flush(run.storage, "orders", run.log.lineage)
    assert [(Path(one.path).name, one.files, one.rows) for one in done] == [("de", 1, 1), ("fr", 1, 1)]
    assert flush(run.storage, "orders", run.log.lineage) == []
    assert len(list((tmp_path / "out").glob("*/*.parquet"))) == 2


def test_a_job_file_has_patterns(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(
        "name: n\ncheckpoint_location: /tmp/ck\nsource: {rate: {rows_per_second: 1}}\nsinks:\n"
        "  - sqlite: {path: /tmp/out.db, table: 'orders_{country}', max_targets: 7, name: orders}\n"
        "  - kafka: {bootstrap_servers: 'localhost:9092', topic: 'orders.{country}', value: to_json(struct(*))}\n"
        "  - files: {path: '/data/{country}'}\n"
    )
    sinks = [getattr(item, item.kind).build() for item in read_job(job, ()).job.sinks]
    assert [sink.pattern.columns for sink in sinks] == [("country",)] * 3
    assert [sink.max_targets for sink in sinks] == [7, 100, 100]


def test_the_name_of_a_target_at_the_endpoint_is_bounded_and_its_own() -> None:
    assert target_name("orders", "orders_de") == "orders#orders_de"
    long = [target_name("s" * 90, f"{'t' * 60}{n}") for n in range(2)]
    assert all(len(name) < 100 for name in long) and long[0] != long[1]


class TestTopics:
    batch = pa.RecordBatch.from_pydict(
        {"value": ["a", "b", "c"], "country": ["de", "f.r", "de"], "key": ["1", "2", "3"]}
    )

    def sink(self, topic: str = "orders.{country}", **options: Any) -> hf.KafkaSink:
        return hf.KafkaSink("localhost:1", topic, **options)

    def test_rows_are_sent_with_their_topic_and_without_what_only_names_it(self) -> None:
        sink = self.sink()
        assert sink.pattern is not None
        sent = sink._named(self.batch, sink.pattern)
        assert sent.to_pydict() == {
            "value": ["a", "b", "c"],
            "key": ["1", "2", "3"],
            "topic": ["orders.de", "orders.f.r", "orders.de"],
        }
        assert with_topic(self.batch.schema, sink.pattern).names == ["value", "key", "topic"]
        check_schema(sink.sent(self.batch.schema), sink.target.topic)  # what `holdfast check` asks

    def test_expressions_of_the_sink_keep_the_column(self) -> None:
        assert self.sink(value="to_json(struct(*))").own_columns == ("(to_json(struct(*))) AS value", "`country`")

    def test_one_topic_too_many_and_a_name_too_long_are_refused_by_row(self) -> None:
        sink = self.sink(max_targets=1)
        assert sink.pattern is not None
        with pytest.raises(RowError, match="max_targets=1") as caught:
            sink._named(self.batch, sink.pattern)
        assert caught.value.rows == (1,)
        assert sink._named(self.batch.slice(0, 1), sink.pattern).num_rows == 1
        with pytest.raises(RowError, match="max_targets=1"):
            sink._named(self.batch.slice(1, 1), sink.pattern)
        long = self.sink("t" * 248 + "{country}")
        with pytest.raises(RowError, match="Kafka takes 249"):
            long._named(self.batch, long.pattern)  # type: ignore[arg-type]  # it has one

    def test_what_was_decided_with_another_pattern_is_produced_anew_with_that_one(self) -> None:
        told = {"version": 2, "transactional_id": "x", "partitioner": "murmur2_random", "topic": None}
        as_then = self.sink().as_decided([{**told, "topic_pattern": "old.{country}"}])
        assert as_then.pattern is not None and as_then.pattern.text == "old.{country}"
        assert self.sink().as_decided([{**told, "topic": "plain"}]).pattern is None
