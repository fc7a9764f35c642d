"""Own rows for each sink, without Spark: what a selection takes, what a task makes of it, what a repair matches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.sinks.selection import Selection
from tests.unit.inprocess import Endpoint, Engine, LosingSink, PreparingSink

BATCH = pa.RecordBatch.from_pydict(
    {
        "id": pa.array([1, 2, 3, 4]),
        "name": pa.array(["a", None, "c", "d"]),
        "large": pa.array([True, None, True, False]),
        "bad": pa.array([False, True, None, True]),
        "twice": pa.array([2, 4, 6, 8]),
    }
)


class TestSelection:
    def test_without_anything_the_batch_is_passed_on_as_it_is(self) -> None:
        assert Selection().split(BATCH) == (BATCH, None)
        assert Selection().split(BATCH)[0] is BATCH

    def test_a_row_is_taken_only_if_the_predicate_is_true(self) -> None:
        rows, bad = Selection(((0, "id"),), where=2).split(BATCH)
        assert rows.to_pydict() == {"id": [1, 3]}
        assert bad is None

    def test_columns_get_the_names_and_the_order_of_the_route(self) -> None:
        selection = Selection(((4, "double"), (1, "n"), (4, "again")))
        assert selection.split(BATCH)[0].schema.names == ["double", "n", "again"]
        assert selection.split(BATCH)[0].schema == selection.schema(BATCH.schema)

    def test_bad_rows_are_those_of_the_sink_that_the_predicate_marks(self) -> None:
        rows, bad = Selection(((0, "id"),), reject=3).split(BATCH)
        assert (rows.to_pydict(), bad and bad.to_pydict()) == ({"id": [1, 3]}, {"id": [2, 4]})
        rows, bad = Selection(((0, "id"),), where=2, reject=3).split(BATCH)
        assert (rows.to_pydict(), bad) == ({"id": [1, 3]}, None), "rows of others are not its business"

    def test_rows_that_are_all_wanted_are_not_copied(self) -> None:
        batch = pa.RecordBatch.from_pydict({"id": pa.array([1, 2]), "yes": pa.array([True, True])})
        rows, _ = Selection(((0, "id"),), where=1).split(batch)
        assert rows.column(0).buffers()[1].address == batch.column(0).buffers()[1].address


def numbered(*ids: int) -> pa.RecordBatch:
    """Rows with two predicates: even, and above 10."""
    return pa.RecordBatch.from_pydict(
        {"id": pa.array(ids), "even": pa.array([i % 2 == 0 for i in ids]), "big": pa.array([i > 10 for i in ids])}
    )


EVEN, BIG = Selection(((0, "id"),), where=1), Selection(((0, "id"),), where=2)


@pytest.mark.contract("R6")
def test_each_sink_gets_its_own_rows_and_one_without_any_opens_nothing(tmp_path: Path) -> None:
    ends = [Endpoint() for _ in range(3)]
    sinks = [PreparingSink(end, name) for end, name in zip(ends, ("even", "big", "all"), strict=True)]
    engine = Engine(tmp_path, *sinks)
    selections = {"even": EVEN, "big": BIG, "all": Selection(((0, "id"),))}
    engine.run(0, [numbered(1, 2, 3)], [numbered(4)], selections=selections)
    assert [end.rows for end in ends] == [[2, 4], [], [1, 2, 3, 4]]
    assert ends[1].called("begin") == [] == ends[1].called("commit")
    decided = engine.log.facts.decided[0]
    assert [(c.sink, c.subtask, c.rows) for c in decided.committables if c.sink != "all"] == [
        ("even", 0, 1),
        ("even", 1, 1),
    ]
    assert all(c.bytes == 8 for c in decided.of("even")), "bytes are those of its own rows"
    engine.run(1, [numbered(12, 13)], selections=selections)
    assert [end.rows for end in ends] == [[2, 4, 12], [12, 13], [1, 2, 3, 4, 12, 13]]


@pytest.mark.parametrize("lost", ["even", "big"])
def test_a_repair_of_a_routed_sink_matches_its_own_rows(tmp_path: Path, lost: str) -> None:
    ends = {"even": Endpoint(), "big": Endpoint()}
    sinks = [(LosingSink if name == lost else PreparingSink)(end, name) for name, end in ends.items()]
    engine = Engine(tmp_path, *sinks)
    selections = {"even": EVEN, "big": BIG}
    engine.run(0, [numbered(2, 5, 12)], [numbered(1, 3)], [numbered(20, 21, 4)], selections=selections)
    assert sorted(ends["even"].rows) == [2, 4, 12, 20]
    assert sorted(ends["big"].rows) == [12, 20, 21]


def test_sinks_of_the_same_rows_have_the_same_digest_and_others_another(tmp_path: Path) -> None:
    sinks = [PreparingSink(Endpoint(), name) for name in ("a", "b", "c")]
    for sink in sinks:
        sink.repairable = True
    engine = Engine(tmp_path, *sinks)
    engine.run(0, [numbered(2, 12, 13)], selections={"a": EVEN, "b": EVEN, "c": BIG})
    a, b, c = engine.log.facts.decided[0].committables
    assert (a.rows, a.digest) == (b.rows, b.digest)
    assert (c.rows, c.digest) != (a.rows, a.digest)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": ""}, "where must be a predicate"),
        ({"where": 3}, "where must be a predicate"),
        ({"reject": " "}, "reject must be a predicate"),
        ({"select": []}, "select must be expressions"),
        ({"select": ["id", ""]}, "select must be expressions"),
        ({"select": [3]}, "select must be expressions"),
    ],
)
def test_an_option_that_is_none_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(hf.HoldfastError, match=message):
        hf.route(PreparingSink(Endpoint()), **options)


def test_only_a_sink_can_be_routed() -> None:
    with pytest.raises(hf.HoldfastError, match="sink must be a sink, not str"):
        hf.route("orders")  # type: ignore[arg-type]


def test_kafka_columns_are_given_once() -> None:
    sink = hf.KafkaSink("localhost:1", "orders", key="customer", value="to_json(struct(*))")
    assert sink.own_columns == ("(customer) AS key", "(to_json(struct(*))) AS value")
    with pytest.raises(hf.HoldfastError, match="leave those out, or select"):
        hf.route(sink, select=["id"])
    with pytest.raises(hf.HoldfastError, match="key needs value"):
        hf.KafkaSink("localhost:1", "orders", key="customer")
    with pytest.raises(hf.HoldfastError, match="value must be an expression"):
        hf.KafkaSink("localhost:1", "orders", value=" ")
