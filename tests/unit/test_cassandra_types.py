"""Arrow columns as Cassandra values, and the last row of a key (I1); no server."""

from __future__ import annotations

import datetime
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.connectors.cassandra.limits import Indexed, Limits, _size
from holdfast.connectors.cassandra.rows import check_rows
from holdfast.connectors.cassandra.table import Column, Table
from holdfast.connectors.cassandra.types import CqlType, fits, normalise, parse_type, problem
from holdfast.core.naming import Task
from holdfast.errors import ConfigError, RowError
from holdfast.sinks import wal
from holdfast.sinks.keys import FindDuplicates, LastRows, only


@pytest.mark.parametrize(
    "text",
    [
        "int",
        "frozen<list<int>>",
        "map<text, frozen<set<uuid>>>",
        "vector<float, 3>",
        "frozen<address>",
        "tuple<int, text>",
    ],
)
def test_a_type_reads_and_prints_as_cassandra_writes_it(text: str) -> None:
    assert str(parse_type(text)) == text


def test_what_is_frozen_is_known() -> None:
    assert parse_type("frozen<list<int>>") == CqlType("list", (CqlType("int"),), frozen=True)
    assert not parse_type("list<frozen<set<int>>>").frozen


TEXT = "00000000-0000-1000-8000-00000000000a"
MOMENT = datetime.datetime(2024, 5, 1, 12, 0, 0, 123456)


@pytest.mark.parametrize(
    ("cql", "kind"),
    [
        ("int", pa.int64()),
        ("bigint", pa.uint64()),
        ("float", pa.float64()),
        ("double", pa.int64()),
        ("text", pa.int64()),
        ("bigint", pa.string()),
        ("timestamp", pa.date32()),
        ("frozen<list<int>>", pa.list_(pa.int64())),
        ("map<text, int>", pa.map_(pa.string(), pa.string())),
        ("set<int>", pa.int32()),
        ("duration", pa.int64()),
        ("frozen<address>", pa.struct([("street", pa.string())])),
    ],
)
def test_what_could_lose_something_does_not_fit(cql: str, kind: pa.DataType) -> None:
    assert not fits(parse_type(cql), kind)


@pytest.mark.parametrize(
    ("cql", "kind", "given", "why"),
    [
        ("uuid", pa.string(), "abc", "'abc' is not a UUID in its usual form"),
        ("uuid", pa.string(), TEXT.replace("-", ""), "is not a UUID in its usual form"),
        ("timeuuid", pa.string(), "5ec540f0-8062-4bcc-96e8-53d992c419e2", r"is not a time-based UUID \(version 1\)"),
        ("inet", pa.string(), "1.2.3", "'1.2.3' is not an IP address"),
        ("inet", pa.string(), "fe80::1%eth0", "is not an IP address"),
        ("ascii", pa.string(), "é", "is not ASCII"),
        ("set<int>", pa.list_(pa.int32()), [1, None], "null inside a collection"),
        ("set<uuid>", pa.list_(pa.string()), ["abc"], "is not a UUID"),
        ("map<text, int>", pa.map_(pa.string(), pa.int32()), [("a", None)], "null inside a collection"),
        ("frozen<list<frozen<list<int>>>>", pa.list_(pa.list_(pa.int32())), [[None]], "null inside a collection"),
        ("vector<float, 2>", pa.list_(pa.float32()), [0.5], "does not have 2 elements"),
    ],
)
def test_a_value_cassandra_would_refuse_is_found_before_it_is_sent(
    cql: str, kind: pa.DataType, given: Any, why: str
) -> None:
    array = pa.array([None, given], kind)
    assert problem(array.slice(0, 1), parse_type(cql)) is None
    found = problem(array, parse_type(cql))
    assert found is not None
    assert re.search(why, found), found


def table(*columns: tuple[str, str, str]) -> Table:
    return Table(
        "shop", "t", tuple(Column(name, kind, i, parse_type(cql)) for i, (name, kind, cql) in enumerate(columns))
    )


ORDERS = table(
    ("id", "partition_key", "bigint"),
    ("line", "clustering", "text"),
    ("note", "static", "text"),
    ("amount", "regular", "double"),
    ("tags", "regular", "list<text>"),
    ("Name", "regular", "text"),
)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ([("id", pa.int64())], r"no column 'line', which is part of the primary key \(id, line\)"),
        (
            [("id", pa.int64()), ("line", pa.string()), ("name", pa.string())],
            "it has no column 'name' .upper and lower",
        ),
        ([("id", pa.int64()), ("line", pa.string()), ("note", pa.string())], "column 'note' is static"),
        (
            [("id", pa.int64()), ("line", pa.string()), ("tags", pa.list_(pa.string()))],
            "column 'tags' is a list, and sending a list again doubles its elements: make it frozen<list<text>>",
        ),
        (
            [("id", pa.int64()), ("line", pa.string()), ("amount", pa.string())],
            "column 'amount' is double and the DataFrame's is string: it takes double, so cast it",
        ),
        ([("id", pa.int64()), ("line", pa.string()), ("line", pa.string())], "several columns 'line'"),
    ],
)
def test_columns_that_do_not_go_together_are_named(schema: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=f"rows do not go into table shop.t: .*{message}"):
        ORDERS.check_columns(pa.schema(schema))


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"'id' is bigint.*'tags' is a list.*no column 'line'"):
        ORDERS.check_columns(pa.schema([("id", pa.string()), ("tags", pa.list_(pa.string()))]))


def test_a_table_with_an_unwritten_list_is_fine() -> None:
    ORDERS.check_columns(pa.schema([("id", pa.int64()), ("line", pa.string()), ("Name", pa.string())]))


def test_a_collection_as_a_key_is_refused() -> None:
    keyed = table(("k", "partition_key", "frozen<list<int>>"))
    with pytest.raises(ConfigError, match=r"'k' of the primary key is frozen<list<int>>.*plain keys only"):
        keyed.check_columns(pa.schema([("k", pa.list_(pa.int32()))]))


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "it has no value, and the column is part of the primary key"),
        ("", "it is empty, and the column is the partition key"),
        ("x" * 65536, "it is longer than 65535 bytes"),
    ],
)
def test_i1_a_key_cassandra_would_refuse_is_an_error_of_the_row(value: Any, why: str) -> None:
    batch = pa.RecordBatch.from_pydict({"k": pa.array(["a", value])})
    with pytest.raises(RowError, match=rf"sink 's': a row does not go into table shop.t, column 'k' \(text\): {why}"):
        check_rows("s", table(("k", "partition_key", "text")), Limits(), batch)


def refused(batch: dict[str, pa.Array], table: Table, limits: Limits | None = None) -> str:
    with pytest.raises(RowError) as caught:
        check_rows("s", table, limits or Limits(), pa.RecordBatch.from_pydict(batch))
    return str(caught.value)


def test_rule_11_a_row_larger_than_a_mutation_is_refused_by_its_largest_column() -> None:
    wide = table(("k", "partition_key", "text"), ("a", "regular", "text"), ("b", "regular", "blob"))
    batch = {"k": pa.array(["x", "y"]), "a": pa.array(["x", "y" * 900]), "b": pa.array([b"x", b"y" * 2000])}
    assert re.search(
        r"column 'b' \(blob\): it has 2000 bytes, and the whole row up to \d+: Cassandra takes 3000 in one mutation",
        refused(batch, wide, Limits(3000)),
    )
    check_rows("s", wide, Limits(5000), pa.RecordBatch.from_pydict(batch))


def test_rule_11_each_element_of_a_collection_that_is_not_frozen_counts_as_a_cell() -> None:
    many = pa.array([list(range(1000))], pa.list_(pa.int32()))
    for cql, limit in (("set<int>", 50_000), ("frozen<set<int>>", 9_000)):
        made = table(("k", "partition_key", "text"), ("s", "regular", cql))
        assert "in one mutation" in refused({"k": pa.array(["x"]), "s": many}, made, Limits(limit - 5000))
        check_rows("s", made, Limits(limit + 10_000), pa.RecordBatch.from_pydict({"k": pa.array(["x"]), "s": many}))


def test_rule_11_a_partition_key_of_several_parts_has_one_limit() -> None:
    parts = table(("a", "partition_key", "text"), ("b", "partition_key", "text"))
    half = pa.array(["x" * 40_000])
    assert "the partition key (a, b) has 80006 bytes, and Cassandra takes 65535" in refused(
        {"a": half, "b": half}, parts
    )
    check_rows("s", parts, Limits(), pa.RecordBatch.from_pydict({"a": pa.array([""]), "b": pa.array([""])}))


@pytest.mark.parametrize(
    ("cql", "value", "limits", "why"),
    [
        ("text", "x" * 11, Limits(value=10), r"has 11 bytes.*takes 10 \(column_value_size_fail_threshold"),
        ("frozen<list<int>>", [1, 2, 3], Limits(items=2), r"has 3 elements.*items_per_collection_fail_threshold"),
        ("frozen<list<int>>", [1, 2, 3], Limits(collection=20), "has 28 bytes.*collection_size_fail_threshold"),
        ("set<text>", ["x" * 65_536], Limits(), "an element has 65536 bytes.*a set that is not frozen.*65535"),
    ],
)
def test_rule_11_limits_of_the_cluster_hold_before_the_decision(cql: str, value: Any, limits: Limits, why: str) -> None:
    made = table(("k", "partition_key", "text"), ("v", "regular", cql))
    kind = pa.list_(pa.int32()) if "int" in cql else None
    text = refused({"k": pa.array(["x"]), "v": pa.array([value], kind)}, made, limits)
    assert re.search(rf"column 'v' \({re.escape(cql)}\): .*{why}", text), text


def test_rule_11_what_an_index_or_a_view_does_not_take_is_refused() -> None:
    def made(cql: str, **asked: Any) -> Table:
        column = Column("v", "regular", -1, parse_type(cql), Indexed(**{"longest": 10, **asked}))
        return Table("shop", "t", (Column("k", "partition_key", 0, CqlType("text")), column))

    def row(value: Any, kind: pa.DataType | None = None) -> dict[str, pa.Array]:
        return {"k": pa.array(["a", "b"]), "v": pa.array([None, value], kind)}

    assert "it has 11 bytes, and an index or view of this column takes 10" in refused(row("x" * 11), made("text"))
    assert "is the partition key of a view" in refused(row(""), made("text", not_empty=True))
    floats = pa.list_(pa.float32())
    assert "[0.0, 0.0] has no direction" in refused(row([0.0, 0.0], floats), made("vector<float, 2>"))
    assert "[nan, 1.0] has no direction" in refused(row([float("nan"), 1.0], floats), made("vector<float, 2>"))
    check_rows("s", made("text"), Limits(), pa.RecordBatch.from_pydict(row("")))


def test_sizes_of_the_server_are_read_in_every_version_s_words() -> None:
    assert _size({"a": "4MiB"}, "a") == 4 * 1024**2
    assert _size({"a": "2097152B"}, "a") == 2 * 1024**2
    assert _size({"a_in_kb": "2048"}, "a") == 2 * 1024**2
    assert [_size(found, "a") for found in ({"a": "-1"}, {"a": "null"}, {"a": "0"}, {})] == [None] * 4


def test_rule_16_a_table_travels_in_a_committable() -> None:
    again = Table.from_json(ORDERS.to_json())
    assert again == ORDERS
    assert again.key == ("id", "line")


# -- two rows of one key ----------------------------------------------------------------------------------------------


def seal(folder: Path, subtask: int, *batches: list[dict[str, Any]], schema: pa.Schema) -> dict[str, Any]:
    task = Task("orders", "s", "a" * 32, 1, 0, subtask, subtask, 0, str(folder))
    writer = wal.LogWriter(task)
    for rows in batches:
        writer.write(pa.RecordBatch.from_pylist(rows, schema=schema))
    return writer.seal()


SCHEMA = pa.schema([("k", pa.string()), ("v", pa.int64()), ("at", pa.int64())])


def row(k: Any, v: int, at: int | None = 0) -> dict[str, Any]:
    return {"k": k, "v": v, "at": at}


def test_i1_the_last_row_of_a_key_is_found_over_all_subtasks(tmp_path: Path) -> None:
    handles = [
        seal(tmp_path, 0, [row("a", 1, 5), row("b", 2, None)], [row("a", 3, 4)], schema=SCHEMA),
        seal(tmp_path, 1, [row("a", 4, 9), row("b", 5, -1), row("c", 6, 1)], schema=SCHEMA),
        seal(tmp_path, 2, [row("c", 7, 1)], schema=SCHEMA),
    ]
    chosen = LastRows(str(tmp_path), ("k",), "at")(handles)
    kept = [
        value
        for handle, rows in zip(handles, chosen, strict=True)
        for batch in only(wal.read_log(str(tmp_path), handle), rows)
        for value in batch.column("v").to_pylist()
    ]
    assert kept == [4, 5, 7], "the largest order; no value is the smallest; of equal ones the last in the log"


def test_i1_keys_are_compared_as_the_endpoint_compares_them(tmp_path: Path) -> None:
    """Two moments that differ in microseconds are one key there: earlier versions decided such rows."""
    schema = pa.schema([("k", pa.timestamp("us")), ("v", pa.int64()), ("at", pa.int64())])
    later = MOMENT + datetime.timedelta(microseconds=1)
    handle = seal(tmp_path, 0, [row(MOMENT, 1), row(later, 2)], schema=schema)

    class Milliseconds:
        def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
            return pa.RecordBatch.from_arrays([normalise(batch.column("k"), CqlType("timestamp"))], names=["k"])

    assert FindDuplicates(str(tmp_path), ("k",))([handle]) is None
    assert FindDuplicates(str(tmp_path), ("k",), Milliseconds())([handle]) == {"k": 1714564800123}
    assert LastRows(str(tmp_path), ("k",), "at", Milliseconds())([handle])[0].to_pylist() == [1]
