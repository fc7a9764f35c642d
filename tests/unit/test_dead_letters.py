"""Dead letters without Spark: rows that a sink refuses or a route rejects, decided together with the good ones."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.checkpoint.bad_rows import Letters
from holdfast.core.model import Outcome
from holdfast.errors import LostError, RecordError, RowError
from holdfast.sinks.dead_letters import KeptLetters, _Keep
from holdfast.sinks.letters import KEPT, SCHEMA, contents, read_row
from holdfast.sinks.selection import Selection
from tests.unit.inprocess import Endpoint, Engine, InProcessBatch, LosingSink, PreparingSink

ODD = Selection(((0, "id"),), reject=1, rule="id % 2 = 1")


class Picky(PreparingSink):
    """Refuses multiples of three; says which rows it means, or not, and when it is asked to write, or at the end."""

    def __init__(self, endpoint: Endpoint, name: str = "picky", *, tells: bool = False, late: bool = False) -> None:
        super().__init__(endpoint, name)
        self.tells, self.late = tells, late

    def write(self, txn: str, batch: pa.RecordBatch) -> None:
        super().write(txn, batch)  # half done already, as a real sink may have
        bad = [n for n, i in enumerate(batch.column("id").to_pylist()) if i % 3 == 0]
        if bad and not self.late:
            rows = bad[:1] if self.tells else ()
            raise RowError(f"sink {self.name!r}: three", rows=rows, column="id", reason="is a multiple of three")

    def pre_commit(self, txn: str) -> dict[str, Any]:
        if self.late and any(i % 3 == 0 for i in self.endpoint.prepared[txn]):
            raise RowError(f"sink {self.name!r}: three")
        return super().pre_commit(txn)


class Table(hf.SqliteSink):
    """Dead letters in a database file, to be looked at."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "dead.db", "letters", name="dead")
        self.file = folder / "dead.db"

    @property
    def letters(self) -> list[tuple[Any, ...]]:
        connection = sqlite3.connect(self.file)
        try:
            return sorted(connection.execute("SELECT checkpoint_id, sink, content FROM letters").fetchall())
        finally:
            connection.close()


def letters(**limits: Any) -> Letters:
    return Letters(("dead", KeptLetters.name), **limits)


def numbered(ids: Sequence[int]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64()), "odd": pa.array([i % 2 == 1 for i in ids])})


def engine(folder: Path, *sinks: Any, **limits: Any) -> tuple[Engine, Table, Letters]:
    dead, rule = Table(folder), letters(**limits)
    return Engine(folder / "ck", *sinks, dead, KeptLetters(), letters=rule, schema={"dead": SCHEMA}), dead, rule


@pytest.mark.contract("R6")
@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("tells", [False, True])
def test_refused_rows_are_set_aside_and_every_other_row_gets_to_every_sink(
    tmp_path: Path, tells: bool, late: bool
) -> None:
    picky, other = Endpoint(), Endpoint()
    run, dead, rule = engine(tmp_path, Picky(picky, tells=tells, late=late), PreparingSink(other, "other"))
    batch = run.run(0, range(10), [3, 6], [7, 8], letters=rule)
    run.settle()
    assert sorted(picky.rows) == [1, 2, 4, 5, 7, 7, 8, 8]
    assert sorted(other.rows) == sorted([*range(10), 3, 6, 7, 8])
    assert [json.loads(content)["id"] for _, _, content in dead.letters] == [0, 3, 3, 6, 6, 9]
    assert {(number, sink) for number, sink, _ in dead.letters} == {(0, "picky")}
    assert not picky.prepared and not other.prepared, "no try is left open"
    assert batch.writes == 2, "a plain run, and one that looks for them"
    assert [c.rows for c in run.log.facts.decided[0].of("picky")] == [6, 2], "a subtask without good rows has none"


def test_after_refused_rows_the_next_checkpoints_look_for_them_at_once(tmp_path: Path) -> None:
    run, dead, rule = engine(tmp_path, Picky(Endpoint()))
    assert run.run(0, [3], letters=rule).writes == 2
    assert run.run(1, [1, 6], letters=rule).writes == 1
    for number in range(2, 12):
        assert run.run(number, [1], letters=rule).writes == 1
    assert run.run(12, [9], letters=rule).writes == 2, "ten clean checkpoints later it is optimistic again"
    run.settle()
    assert [json.loads(content)["id"] for _, _, content in dead.letters] == [3, 6, 9]


def test_rows_that_a_route_rejects_need_no_second_run(tmp_path: Path) -> None:
    end = Endpoint()
    run, dead, rule = engine(tmp_path, PreparingSink(end, "even"))
    batch = run.run(0, [numbered(range(6))], selections={"even": ODD}, letters=rule)
    run.settle()
    assert (batch.writes, sorted(end.rows)) == (1, [0, 2, 4])
    assert [(sink, json.loads(content)) for _, sink, content in dead.letters] == [
        ("even", {"id": i}) for i in (1, 3, 5)
    ]


def test_rejected_and_refused_rows_of_one_batch(tmp_path: Path) -> None:
    end = Endpoint()
    run, dead, rule = engine(tmp_path, Picky(end))
    run.run(0, [numbered(range(9))], selections={"picky": ODD}, letters=rule)
    run.settle()
    assert sorted(end.rows) == [2, 4, 8]
    assert sorted(json.loads(content)["id"] for _, _, content in dead.letters) == [0, 1, 3, 5, 6, 7]


def test_a_checkpoint_without_bad_rows_costs_the_letters_sink_nothing(tmp_path: Path) -> None:
    run, _, rule = engine(tmp_path, Picky(Endpoint()))
    run.run(0, [1, 2], letters=rule)
    assert {c.sink for c in run.log.facts.decided[0].committables} == {"picky"}


@pytest.mark.contract("R6")
@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"max_rows": 2}, r"more than 2 rows are bad.*The dead letters allow max_rows=2"),
        ({"max_rows": 3}, r"5 of its 14 rows.*max_rows=3"),
        ({"max_ratio": 0.003}, r"5 of its 14 rows.*max_ratio=0.003"),
    ],
)
def test_past_a_limit_the_batch_fails_before_its_decision(tmp_path: Path, limits: dict[str, Any], told: str) -> None:
    end = Endpoint()
    run, _, rule = engine(tmp_path, Picky(end), **limits)
    with pytest.raises(RowError, match=rf"(?s){told}"):
        run.run(0, [1, 2, 3, 4, 5, 6, 9], [3, 12, 1, 1, 1, 1, 1], letters=rule)
    assert run.log.facts.decided == {} and end.rows == [] and end.prepared == {}


def test_a_small_checkpoint_counts_as_one_of_a_thousand_rows(tmp_path: Path) -> None:
    run, dead, rule = engine(tmp_path, Picky(Endpoint()), max_ratio=0.01, max_rows=1000)
    run.run(0, [1, 3], letters=rule)
    run.settle()
    assert len(dead.letters) == 1


@pytest.mark.contract("R6")
def test_without_dead_letters_the_error_counts_the_bad_rows_and_shows_three(tmp_path: Path) -> None:
    end = Endpoint()
    run = Engine(tmp_path, Picky(end))
    with pytest.raises(RowError) as caught:
        run.run(0, range(1, 11), [12, 15])
    text = str(caught.value)
    assert "sink 'picky': three. In checkpoint 0 5 of its 12 rows" in text
    assert [f'"id": {i},' in text for i in (3, 6, 9, 12)] == [True, True, True, False]
    assert "dead_letters=hf.DeadLetters" in text
    assert run.log.facts.decided == {} and end.prepared == {}
    run.run(0, [1, 2])
    assert end.rows == [1, 2], "the mended query goes on"


def test_without_dead_letters_a_rejected_row_stops_the_query(tmp_path: Path) -> None:
    run = Engine(tmp_path, PreparingSink(Endpoint(), "even"))
    with pytest.raises(RowError, match=r"its route rejects rows with id % 2 = 1. In checkpoint 0 2 of its 4 rows"):
        run.run(0, [numbered(range(4))], selections={"even": ODD})


def test_the_row_itself_is_kept_with_its_letter(tmp_path: Path) -> None:
    run, _, rule = engine(tmp_path, Picky(Endpoint()))
    run.run(0, [3, 4], letters=rule)
    run.settle()
    run.tick()
    (name,) = run.files("dead-letters")
    with pa.ipc.open_stream(run.storage.read(name)) as stream:
        (kept,) = stream.read_all().to_pylist()
    assert set(kept) == set(KEPT.names)
    assert read_row(kept["row"]).to_pylist() == [{"id": 3, "name": "n3"}]
    assert (kept["column"], kept["reason"], kept["pipeline"]) == ("id", "is a multiple of three", "orders")
    assert not [file for file in run.files("wal") if KeptLetters.name in file], "the log forgets them"


class Losing(LosingSink, Picky):
    """Picky, and its endpoint drops a transaction."""


def test_a_repair_leaves_out_what_was_set_aside_and_makes_no_second_letter(tmp_path: Path) -> None:
    end = Endpoint()
    run, dead, rule = engine(tmp_path, Losing(end))
    run.run(0, [1, 2, 3], [4, 6], letters=rule)
    run.settle()
    run.run(1, [5], letters=rule)
    run.settle()
    assert sorted(end.rows) == [1, 2, 4, 5]
    assert [json.loads(content)["id"] for _, _, content in dead.letters] == [3, 6]
    assert not end.prepared


class LosingLetters(PreparingSink):
    """Letters in an endpoint that drops the first transaction after the decision, once, as Kafka may."""

    repairable = True
    dropped = False

    def write(self, txn: str, batch: pa.RecordBatch) -> None:
        self.endpoint.prepared[txn] += [json.loads(text)["id"] for text in batch.column("content").to_pylist()]

    def commit(self, checkpoint_id: int, committables: Any, tasks: Any) -> Outcome | None:
        if not self.dropped:
            self.dropped = True
            del self.endpoint.prepared[committables[0]["token"]]
            raise LostError("dropped", [committables[0]])
        return super().commit(checkpoint_id, committables, tasks)


def test_letters_that_their_endpoint_dropped_are_written_anew_from_the_kept_copy(tmp_path: Path) -> None:
    end, dropping = Endpoint(), Endpoint()
    sinks = [Picky(end), LosingLetters(dropping, "dead"), KeptLetters()]
    run = Engine(tmp_path / "ck", *sinks, letters=letters(), schema={"dead": SCHEMA})
    batch = run.run(0, [1, 2, 3], [4, 6, 9], letters=letters())
    run.settle()
    assert sorted(dropping.rows) == [3, 6, 9]
    assert sorted(end.rows) == [1, 2, 4]
    assert batch.writes == 2, "the stream is not read again for them"
    run.run(1, [5], letters=letters())
    assert not dropping.prepared and not end.prepared, "the sweep undoes what the repair did not need"


@pytest.mark.contract("R6")
def test_only_short_examples_and_counts_leave_the_task(tmp_path: Path) -> None:
    large = pa.RecordBatch.from_pydict({"id": pa.array([3] * 50), "name": pa.array(["x" * 100_000] * 50)})
    sent: list[int] = []

    class Told(InProcessBatch):
        def write(self, *arguments: Any, **options: Any) -> Any:
            reports = super().write(*arguments, **options)
            sent.extend(len(json.dumps(asdict(report))) for report in reports)
            return reports

    run, dead, rule = engine(tmp_path, Picky(Endpoint()))
    run.planned = 0
    run.coordinator.run(0, Told([large], letters=rule))
    run.settle()
    assert len(dead.letters) == 50
    assert max(sent) < 3_000, "five megabytes of letters stay where they are"


def test_content_is_json_whatever_the_values_are() -> None:
    strange = pa.RecordBatch.from_pydict(
        {
            "text": pa.array([b"ab\xff"]).view(pa.string()),
            "bytes": pa.array([b"\xff"]),
            "nan": pa.array([float("nan")]),
            "far": pa.array([2**62], pa.timestamp("us")),
            "map": pa.array([[(1, 2)]], pa.map_(pa.int64(), pa.int64())),
            "none": pa.array([None], pa.int64()),
        }
    )
    (text,) = contents(strange)
    body = json.loads(text)
    assert body["text"] == {"raw": "b'ab\\xff'"}
    assert body["bytes"] == {"base64": "/w=="}
    assert (body["nan"], body["none"]) == ("nan", None)
    assert "since 1970" in body["far"]["raw"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_ratio": 0}, "max_ratio must be a number above 0"),
        ({"max_ratio": 2}, "max_ratio must be a number above 0"),
        ({"max_rows": 0}, "max_rows must be a whole number"),
        ({"max_rows": 1.5}, "max_rows must be a whole number"),
        ({"sink": "dead"}, "sink must be a sink"),
        ({"sink": hf.KafkaSink("localhost:1", "d", mode="write-ahead", value="x")}, "leave its own out"),
    ],
)
def test_an_option_that_is_none_is_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(hf.HoldfastError, match=message):
        hf.DeadLetters(**{"sink": Table(tmp_path), **options})


def test_a_good_row_that_was_only_tried_is_not_in_the_transaction_twice(tmp_path: Path) -> None:
    end = Endpoint()
    run, _, rule = engine(tmp_path, Picky(end, late=True))
    run.run(0, range(9, 12), letters=rule)  # the last row is tried alone, and is good
    run.settle()
    assert sorted(end.rows) == [10, 11]


def test_a_damaged_file_of_letters_is_not_taken_for_a_kept_one(tmp_path: Path) -> None:
    run, _, rule = engine(tmp_path, Picky(Endpoint()))
    run.run(0, [3], letters=rule)
    run.settle()
    storage = run.log.storage
    (name,) = storage.names("dead-letters")
    data = storage.read(f"dead-letters/{name}")
    storage.create("wal/copy.arrow", data)
    handle = {"handle": "wal/copy.arrow", "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    _Keep(storage.url, 1)(handle)
    with pytest.raises(RecordError, match=r"wal/copy\.arrow is damaged"):
        _Keep(storage.url, 2)({**handle, "sha256": hashlib.sha256(data + b"x").hexdigest()})


def test_the_log_forgets_letters_that_are_kept(tmp_path: Path) -> None:
    run, _, rule = engine(tmp_path, Picky(Endpoint()))
    run.run(0, [3], letters=rule)
    run.settle()
    run.coordinator.tell(10.0)
    assert not list((tmp_path / "ck" / "wal").rglob("*.arrow"))
    assert len(list((tmp_path / "ck").rglob("dead-letters/0-*.arrow"))) == 1
