"""Names and options of PostgresSink: what needs no server."""

from __future__ import annotations

import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast as hf
from holdfast.connectors.postgres.convert import convert
from holdfast.connectors.postgres.names import literal, make_gid, names_digest, parse_gid, parse_table, quote
from holdfast.connectors.postgres.types import Wire
from holdfast.core.naming import MAX_ESCAPED, Task, escape
from holdfast.errors import ConfigError, MissingExtraError, RowError

DSN = "postgresql://user:secret@localhost/shop"
NAMES = st.text(min_size=1, max_size=100).filter(lambda name: len(escape(name)) <= MAX_ESCAPED)
NUMBERS = st.integers(0, 2**31)
LARGE = st.integers(0, 2**63 - 1)


@given(NAMES, NAMES, st.uuids(), NUMBERS, LARGE, NUMBERS, LARGE)
def test_rule_2_a_gid_parses_back_and_fits(
    pipeline: str, sink: str, lineage: Any, generation: int, checkpoint: int, subtask: int, attempt: int
) -> None:
    task = Task(pipeline, sink, lineage.hex, generation, checkpoint, subtask, attempt)
    text = make_gid(task)
    assert len(text.encode()) <= 199
    found = parse_gid(text)
    assert found is not None
    assert (found.names, found.lineage) == (names_digest(pipeline, sink), lineage.hex)
    assert (found.generation, found.checkpoint_id) == (generation, checkpoint)
    assert make_gid(task) != text, "an attempt that comes twice has two gids"


@given(st.tuples(NAMES, NAMES), st.tuples(NAMES, NAMES))
def test_rule_2_other_names_have_another_digest(one: tuple[str, str], other: tuple[str, str]) -> None:
    assert (names_digest(*one) == names_digest(*other)) == (one == other)


@pytest.mark.parametrize("text", ["", "hfp1-a-b", "x" * 200, "hfp1-a-b-" + "0" * 16 + "-" + "0" * 32 + "-1-2-3-4-zz"])
def test_any_other_gid_is_not_ours(text: str) -> None:
    assert parse_gid(text) is None


@pytest.mark.parametrize(
    ("text", "sql"),
    [
        ("orders", '"orders"'),
        ("shop.orders", '"shop"."orders"'),
        ('"my.schema"."or""ders"', '"my.schema"."or""ders"'),
        ("Shop.Orders", '"Shop"."Orders"'),
        ('"two words"', '"two words"'),
        ("größe", '"größe"'),
    ],
)
def test_tables_are_taken_as_they_are_written(text: str, sql: str) -> None:
    assert parse_table(text).sql == sql


def test_quotes_and_backslashes_are_escaped() -> None:
    assert quote('a"b') == '"a""b"'
    assert literal("it's") == "'it''s'"
    assert literal("a\\'b") == " E'a\\\\''b'"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dsn": ""}, "dsn must be text like postgresql://"),
        ({"dsn": None}, "dsn must be text, not NoneType"),
        ({"table": ""}, "table must be"),
        ({"table": "a.b.c"}, "table must be"),
        ({"table": "two words"}, "put a name with a dot in quotes"),
        ({"table": "x" * 64}, "more than the 63 bytes"),
        ({"mode": "merge"}, "mode must be one of ledger, two-phase, upsert, append, not 'merge'"),
        ({"mode": "upsert"}, r"mode='upsert' needs key=\[...\]"),
        ({"mode": "upsert", "key": "id"}, r"key must be a list of columns: key=\['id'\]"),
        ({"key": ["id"]}, "key and order_by belong to mode='upsert'"),
        ({"mode": "two-phase", "order_by": "v"}, "mode='two-phase' appends every row"),
        ({"schema": ""}, "schema must be a name"),
        ({"lock_timeout": 0}, "lock_timeout must be a number of seconds above 0"),
        ({"lock_timeout": "60"}, "lock_timeout must be a number"),
        ({"name": " x"}, "name ' x' may hold printable"),
    ],
)
def test_every_wrong_option_is_named_when_the_sink_is_made(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        hf.PostgresSink(**{"dsn": DSN, "table": "orders", **options})


def test_name_and_repr_hold_nothing_of_the_dsn() -> None:
    sink = hf.PostgresSink(DSN, "shop.orders")
    assert sink.name == "postgres-shop.orders"
    assert repr(sink) == "PostgresSink(name='postgres-shop.orders')"
    assert repr(sink.server) == "Server(localhost/shop)"


@pytest.mark.parametrize("package", ["psycopg", "adbc_driver_manager", "adbc_driver_postgresql"])
def test_a_missing_package_names_the_extra(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'holdfast\[postgres\]'"):
        hf.PostgresSink(DSN, "orders")


def test_the_committer_names_the_extra_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'holdfast\[postgres\]'"):
        hf.SqlCheckpointCommitter(DSN)


@given(st.lists(st.one_of(st.none(), st.uuids()), max_size=20), st.integers(0, 5))
def test_uuids_become_bytes_in_slices_too(values: list[Any], start: int) -> None:
    column = pa.array([None if v is None else str(v) for v in values], pa.string())[start:]
    made = convert("u", column, Wire(pa.binary(16), "uuid"))
    assert made.to_pylist() == [None if v is None else v.bytes for v in values[start:]]


@pytest.mark.parametrize("text", ["", "1", "g" * 32, " " * 32, "é" * 16, "0" * 31 + "é", "0" * 30 + "  "])
def test_other_text_is_no_uuid(text: str) -> None:
    with pytest.raises(RowError, match=r"column 'u': .*not a uuid"):
        convert("u", pa.array(["0" * 32, text]), Wire(pa.binary(16), "uuid"))
