"""`holdfast dead-letters`: letters are listed, shown and sent again, each once, whoever dies in between (R6)."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import holdfast as hf
from holdfast.checkpoint.bad_rows import Letters
from holdfast.checkpoint.dead import Order, give_order
from holdfast.cli.app import app
from holdfast.errors import RowError
from holdfast.sinks.dead_letters import KeptLetters
from holdfast.sinks.letters import SCHEMA as LETTERS
from holdfast.testing.local import Died, armed
from tests.unit.inprocess import Endpoint, Engine, PreparingSink
from tests.unit.test_dead_letters import Picky, Table


def cli(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["dead-letters", *map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    return json.loads(result.stdout) if code == 0 else result.stderr


class Pipeline:
    """A picky sink and its letters, which can be mended."""

    def __init__(self, folder: Path, **limits: Any) -> None:
        self.location, self.end = folder / "ck", Endpoint()
        self.rule = Letters(("dead", KeptLetters.name), **limits)
        self.dead = Table(folder)
        self.engine = Engine(self.location / "holdfast", *self.sinks(), letters=self.rule, schema={"dead": LETTERS})

    def sinks(self, *, mended: bool = False) -> list[Any]:
        good = PreparingSink(self.end, "picky") if mended else Picky(self.end, tells=True)
        return [good, self.dead, KeptLetters()]

    def run(self, number: int, *partitions: Any) -> None:
        self.engine.run(number, *partitions, letters=self.rule)
        self.engine.settle()

    def restart(self, *, mended: bool = True) -> None:
        self.engine.restart(*self.sinks(mended=mended), letters=self.rule, schema={"dead": LETTERS})

    def cli(self, command: str, *rest: object, code: int = 0) -> Any:
        return cli(command, self.location, *rest, code=code)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    made = Pipeline(tmp_path)
    made.run(0, [1, 2, 3], [6, 4])
    made.run(1, [9, 5])
    return made


def test_letters_are_counted_by_checkpoint_sink_and_reason_and_shown_with_their_rows(pipeline: Pipeline) -> None:
    found = pipeline.cli("list")
    assert found["letters"] == 3
    assert [(row["checkpoint_id"], row["sink"], row["letters"], row["waits"]) for row in found["by"]] == [
        (0, "picky", 2, 2),
        (1, "picky", 1, 1),
    ]
    assert found["by"][0]["reason"] == "is a multiple of three"
    shown = pipeline.cli("show")["letters"]
    assert sorted(letter["content"]["id"] for letter in shown) == [3, 6, 9]
    assert {letter["letter"] for letter in shown} == {"0-0-1", "0-1-1", "1-0-1"}
    assert pipeline.cli("show", "--limit", 1)["more"]
    assert pipeline.cli("list", "--checkpoint", 1)["letters"] == 1
    assert pipeline.cli("list", "--sink", "other")["letters"] == 0
    assert pipeline.cli("list", "--reason", "of three")["letters"] == 3
    text = CliRunner().invoke(app, ["dead-letters", "show", str(pipeline.location)])
    assert '"id": 3' in text.stdout and "is a multiple of three" in text.stdout


@pytest.mark.contract("R6")
def test_a_replay_sends_each_letter_once_with_the_first_checkpoint_after_the_start(pipeline: Pipeline) -> None:
    assert pipeline.cli("replay", "--yes")["letters"] == 3
    assert pipeline.cli("replay", "--yes") == {"location": str(pipeline.location), "letters": 0, "order": None}
    assert pipeline.cli("list")["by"][0]["ordered"] == 2
    pipeline.restart()
    assert sorted(pipeline.end.rows) == [1, 2, 4, 5], "not before there is a decision to be part of"
    pipeline.run(2, [7])
    assert sorted(pipeline.end.rows) == [1, 2, 3, 4, 5, 6, 7, 9]
    pipeline.run(3, [8])
    pipeline.restart()
    pipeline.run(4, [10])
    assert sorted(pipeline.end.rows) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert [row["sent_again"] for row in pipeline.cli("list")["by"]] == [2, 1]
    assert {letter["sent_by"] for letter in pipeline.cli("show")["letters"]} == {2}
    assert pipeline.cli("replay", "--yes")["letters"] == 0


def test_only_what_is_meant_is_sent(pipeline: Pipeline) -> None:
    assert pipeline.cli("replay", "--checkpoint", 1, "--yes")["letters"] == 1
    pipeline.restart()
    pipeline.run(2, [7])
    assert sorted(pipeline.end.rows) == [1, 2, 4, 5, 7, 9]
    assert pipeline.cli("replay", "--yes")["letters"] == 2


def test_what_is_refused_again_is_a_new_letter(pipeline: Pipeline) -> None:
    pipeline.cli("replay", "--yes")
    pipeline.restart(mended=False)
    pipeline.run(2, [7])
    assert sorted(pipeline.end.rows) == [1, 2, 4, 5, 7]
    counts = [(row["checkpoint_id"], row["waits"], row["sent_again"]) for row in pipeline.cli("list")["by"]]
    assert counts == [(0, 0, 2), (1, 0, 1), (2, 3, 0)]
    assert len(pipeline.dead.letters) == 6


@pytest.mark.contract("R6")
@pytest.mark.parametrize(
    "fault", ["task.prepared=lost@2", "decision=error", "decision=lost", "commit.sink=lost", "commit.record=error"]
)
def test_killed_in_the_middle_a_replay_is_finished_or_has_sent_nothing(pipeline: Pipeline, fault: str) -> None:
    pipeline.cli("replay", "--yes")
    pipeline.restart()
    with armed(fault, died=True), pytest.raises(Died):
        pipeline.run(2, [7])
    pipeline.restart()
    pipeline.run(2, [7])
    pipeline.run(3, [8])
    pipeline.restart()
    pipeline.run(4, [10])
    assert sorted(pipeline.end.rows) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert not pipeline.end.prepared


def test_an_order_can_be_taken_back_until_it_is_carried_out(tmp_path: Path) -> None:
    pipeline = Pipeline(tmp_path, max_rows=2)
    pipeline.run(0, [3, 6, 1])
    pipeline.run(1, [9, 12])
    pipeline.cli("replay", "--yes")
    pipeline.restart(mended=False)
    with pytest.raises(RowError, match="max_rows=2"):
        pipeline.run(2, [7])
    assert "pass --fence" in pipeline.cli("replay", "--cancel", code=1), "this process is still there"
    assert pipeline.cli("replay", "--cancel", "--fence")["cancelled"] == 4
    assert pipeline.cli("list")["by"][0]["waits"] == 2
    pipeline.restart()
    pipeline.run(2, [7])
    assert sorted(pipeline.end.rows) == [1, 7]
    assert pipeline.cli("replay", "--yes")["letters"] == 4
    pipeline.restart()
    pipeline.run(3, [8])
    assert sorted(pipeline.end.rows) == [1, 3, 6, 7, 8, 9, 12]
    assert pipeline.cli("replay", "--cancel", "--fence")["cancelled"] == 0


def test_two_orders_of_the_same_moment_do_not_name_the_same_letter(pipeline: Pipeline) -> None:
    storage = pipeline.engine.storage
    assert give_order(storage, Order(0, {"picky": {"x": [0]}}))
    assert not give_order(storage, Order(0, {"picky": {"x": [0]}}))
    assert pipeline.cli("replay", "--yes")["order"] == 1


def test_without_letters_and_at_a_bad_location(tmp_path: Path) -> None:
    Engine(tmp_path / "ck" / "holdfast", PreparingSink(Endpoint(), "a")).run(0, [1])
    assert cli("list", tmp_path / "ck")["letters"] == 0
    assert cli("replay", tmp_path / "ck", "--yes")["letters"] == 0
    for command in ("list", "show", "replay"):
        assert "error" in cli(command, tmp_path / "nothing", code=3)


def test_a_replay_asks_first(pipeline: Pipeline) -> None:
    assert "pass --yes" in pipeline.cli("replay", code=3)


@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_letters_go_again_through_real_sinks(tmp_path: Path, kind: str) -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    bad = pa.RecordBatch.from_arrays([pa.array([1, 2]), pa.array([b"ok", b"\xff"]).view(pa.string())], schema=schema)

    def sinks() -> list[Any]:
        out: Any = hf.SqliteSink(tmp_path / "out.db", "orders", name="out")
        dead: Any = hf.SqliteSink(tmp_path / "dead.db", "letters", name="dead")
        if kind == "files":
            out = hf.FileSink(tmp_path / "out", "json", rolling=hf.Rolling(age="0s"), name="out")
            dead = hf.FileSink(tmp_path / "dead", rolling=hf.Rolling(age="0s"), name="dead")
        return [out, dead, KeptLetters()]

    rule, schemas = Letters(("dead", KeptLetters.name)), {"out": schema, "dead": LETTERS}
    engine = Engine(tmp_path / "ck" / "holdfast", *sinks(), letters=rule, schema=schemas)
    engine.run(0, [bad], letters=rule)
    engine.settle()
    assert cli("replay", tmp_path / "ck", "--yes")["letters"] == 1
    engine.restart(*sinks(), letters=rule, schema=schemas)
    engine.run(1, [bad.slice(0, 1)], letters=rule)
    engine.settle()
    found = cli("list", tmp_path / "ck")["by"]
    assert [(row["checkpoint_id"], row["waits"], row["sent_again"]) for row in found] == [(0, 0, 1), (1, 1, 0)]
    if kind == "files":
        letters = [
            n
            for f in sorted((tmp_path / "dead").glob("*.parquet"))
            for n in pq.ParquetFile(f).read()["letter"].to_pylist()
        ]
        assert sorted(letters) == ["0-0-1", "1-1-1"]


class Strict:
    """A real sink that refuses the name "NULL" in the task, and what mends that; a table of its own for letters."""

    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder, self.kind, self.mended = folder, kind, False
        if kind == "sqlite":
            self._make("CHECK (name <> 'NULL')")

    def _make(self, rule: str) -> None:
        with closing(sqlite3.connect(self.folder / "out.db")) as database:
            database.execute(f"CREATE TABLE new (id BIGINT, name TEXT {rule})")
            if self.mended:
                database.execute("INSERT INTO new SELECT * FROM orders")
                database.execute("DROP TABLE orders")
            database.execute("ALTER TABLE new RENAME TO orders")
            database.commit()

    def mend(self) -> None:
        self.mended = True
        if self.kind == "sqlite":
            self._make("")

    def sinks(self) -> list[Any]:
        dead = hf.SqliteSink(self.folder / "dead.db", "letters", name="dead")
        if self.kind == "sqlite":
            return [hf.SqliteSink(self.folder / "out.db", "orders", name="out"), dead, KeptLetters()]
        readers = ("python",) if self.mended else ("python", "pandas")
        rolling = hf.Rolling(age="0s")
        out = hf.FileSink(self.folder / "out", "csv", csv_readers=readers, rolling=rolling, name="out")
        return [out, dead, KeptLetters()]

    def rows(self) -> list[tuple[int, str]]:
        if self.kind == "sqlite":
            with closing(sqlite3.connect(self.folder / "out.db")) as database:
                return database.execute("SELECT id, name FROM orders ORDER BY 1, 2").fetchall()
        found = []
        for file in (self.folder / "out").glob("*.csv"):
            with file.open(newline="") as text:
                found += [(int(row["id"]), row["name"]) for row in csv.DictReader(text)]
        return sorted(found)


@pytest.mark.contract("R6")
@pytest.mark.parametrize("fault", ["", "decision=error", "decision=lost", "commit.sink=lost", "commit.record=error"])
@pytest.mark.parametrize("kind", ["sqlite", "files"])
def test_a_letter_that_is_taken_after_a_mend_arrives_once_in_a_real_sink(tmp_path: Path, kind: str, fault: str) -> None:
    strict, rule = Strict(tmp_path, kind), Letters(("dead", KeptLetters.name))
    options: dict[str, Any] = {"letters": rule, "schema": {"out": strict.schema, "dead": LETTERS}}

    def rows(*names: str) -> list[pa.RecordBatch]:
        found = [{"id": number, "name": name} for number, name in enumerate(names)]
        return [pa.RecordBatch.from_pylist(found, schema=strict.schema)]

    engine = Engine(tmp_path / "ck" / "holdfast", *strict.sinks(), **options)
    engine.run(0, rows("good", "NULL"), rows("fine"), letters=rule)
    engine.settle()
    assert strict.rows() == [(0, "fine"), (0, "good")]
    assert cli("replay", tmp_path / "ck", "--yes")["letters"] == 1
    strict.mend()
    engine.restart(*strict.sinks(), **options)
    if fault:
        with armed(fault, died=True), pytest.raises(Died):
            engine.run(1, rows("later"), letters=rule)
            engine.settle()
        engine.restart(*strict.sinks(), **options)
    engine.run(1, rows("later"), letters=rule)
    engine.settle()
    for number in (2, 3):
        engine.restart(*strict.sinks(), **options)
        engine.run(number, rows("more"), letters=rule)
        engine.settle()
    assert Counter(strict.rows()) == Counter(
        [(0, "fine"), (0, "good"), (0, "later"), (0, "more"), (0, "more"), (1, "NULL")]
    )
    found = cli("list", tmp_path / "ck")["by"]
    assert [(row["checkpoint_id"], row["waits"], row["sent_again"]) for row in found] == [(0, 0, 1)]
    with closing(sqlite3.connect(tmp_path / "dead.db")) as database:
        assert database.execute("SELECT count(*) FROM letters").fetchone() == (1,), "no second letter"
