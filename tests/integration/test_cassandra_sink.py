"""CassandraSink on a real server, without Spark: write times, keys, types, refusals (W9, I1)."""

from __future__ import annotations

import datetime
import threading
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.committers import cassandra_client
from holdfast.connectors.cassandra import send
from holdfast.errors import ConfigError, RowError, SinkError
from holdfast.sinks.subtask import make_task, running
from holdfast.sinks.write_ahead import _Deliver
from holdfast.testing.local import LocalBatch, LocalQuery, LocalRun
from tests.servers.cassandra import CassandraServer
from tests.servers.kafka import free_port

KEYED = pa.schema([("k", pa.string()), ("v", pa.int64()), ("note", pa.string())])


def rows(*values: tuple[Any, ...], schema: pa.Schema = KEYED) -> list[pa.RecordBatch]:
    return [pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in values], schema=schema)]


class Rig:
    """A keyspace of its own, and queries into its tables."""

    def __init__(self, server: CassandraServer, folder: Path) -> None:
        self.server, self.folder = server, folder
        self.keyspace = f"shop_{uuid.uuid4().hex[:8]}"
        self.execute(
            f"CREATE KEYSPACE {self.keyspace} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        )

    def execute(self, statement: str) -> list[dict[str, Any]]:
        return self.server.execute(statement)

    def create(self, columns: str = "k text PRIMARY KEY, v bigint, note text", table: str = "t") -> None:
        self.execute(f"CREATE TABLE {self.keyspace}.{table} ({columns})")

    def sink(self, **options: Any) -> hf.CassandraSink:
        return hf.CassandraSink(**{"keyspace": self.keyspace, "table": "t", **self.server.options, **options})

    def query(self, schema: pa.Schema = KEYED, name: str = "orders") -> LocalQuery:
        return LocalQuery(str(self.folder / name), name, schema)

    def start(self, schema: pa.Schema = KEYED, **options: Any) -> LocalRun:
        return self.query(schema).start([self.sink(**options)])

    def read(self, what: str = "*", table: str = "t") -> list[dict[str, Any]]:
        found = self.execute(f"SELECT {what} FROM {self.keyspace}.{table}")
        return sorted(found, key=lambda row: str(next(iter(row.values()))))


@pytest.fixture
def rig(cassandra: CassandraServer, tmp_path: Path) -> Rig:
    return Rig(cassandra, tmp_path)


# -- later wins -------------------------------------------------------------------------------------------------------


def test_i1_a_later_checkpoint_replaces_rows_by_key(rig: Rig) -> None:
    rig.create()
    run = rig.start()
    run.run(0, LocalBatch([rows(("a", 1, "x"), ("b", 2, None)), rows(("c", 3, "z"))]))
    run.run(1, LocalBatch([rows(("a", 4, None))]))
    run.close()
    assert rig.read() == [
        {"k": "a", "v": 4, "note": None},
        {"k": "b", "v": 2, "note": None},
        {"k": "c", "v": 3, "note": "z"},
    ]


def test_w9_a_paused_driver_that_wakes_up_writes_no_old_value_over_a_newer_one(rig: Rig) -> None:
    """It stands between the log and the endpoint with checkpoint 0; its successor delivers 0 and 1; then it goes on."""
    rig.create()
    query = rig.query()
    old = query.start([rig.sink()])
    held: list[Any] = []

    def keep(reports: list[Any]) -> None:
        held.extend(c.data for report in reports for c in report.committables)

    old.run(0, LocalBatch([rows(("a", 1, "old"), ("b", 1, "old"))], prepared=keep))
    new = query.start([rig.sink()])
    new.run(1, LocalBatch([rows(("a", 2, None))]))
    before = rig.read("k, v, note, writetime(v)")
    sink = old.sinks[0]
    # The log's files are gone by now; what the paused driver had read of them is in its memory.
    task = make_task(old.info, sink.name, 0, 0, 0, held[0]["timestamp"])
    with running(task):
        assert sink.send_values(iter(rows(("a", 1, "old"), ("b", 1, "old"))), 0, held[0]["timestamp"]) is True
    new.close()
    assert rig.read("k, v, note, writetime(v)") == before
    assert [row["v"] for row in before] == [2, 1]


def test_w9_a_resend_is_skipped_when_the_mark_is_there_and_harmless_when_not(rig: Rig) -> None:
    """Also for sets, maps and frozen lists: what a resend must not do is add to them."""
    rig.create("k text PRIMARY KEY, v bigint, tags set<text>, parts map<text, bigint>, path frozen<list<bigint>>")
    tags, parts, path = pa.list_(pa.string()), pa.map_(pa.string(), pa.int64()), pa.list_(pa.int64())
    schema = pa.schema([("k", pa.string()), ("v", pa.int64()), ("tags", tags), ("parts", parts), ("path", path)])
    batch = rows(("a", 1, ["x", "y"], [("p", 1)], [1, 1]), ("b", None, [], None, []), schema=schema)
    look = "k, v, tags, parts, path, writetime(v), writetime(tags)"
    held: list[Any] = []
    files: dict[str, bytes] = {}
    run = rig.start(schema)

    def keep(reports: list[Any]) -> None:
        for committable in (c.data for report in reports for c in report.committables):
            held.append(committable)
            files[committable["handle"]] = run.query.storage.read(committable["handle"])

    run.run(0, LocalBatch([batch], prepared=keep))
    before = rig.read(look)
    for name, content in files.items():
        file = Path(run.query.folder, "holdfast", name)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    deliver = _Deliver(run.sinks[0], run.info, 0)  # type: ignore[arg-type]
    assert deliver(held) == [hf.Outcome.ALREADY_COMMITTED]
    rig.execute(f"TRUNCATE {rig.keyspace}.holdfast_committer")
    assert deliver(held) == [hf.Outcome.COMMITTED]
    assert rig.read(look) == before
    run.run(1, LocalBatch([rows(("a", 2, ["z"], [("q", 2)], [2]), schema=schema)]))
    run.close()
    now = rig.read("tags, parts, path")[-1]
    assert (set(now["tags"]), dict(now["parts"]), list(now["path"])) == ({"z"}, {"q": 2}, [2]), "replaced, not added to"


def test_a_list_that_is_not_frozen_doubles_when_it_is_written_again(rig: Rig) -> None:
    """The reason why the sink refuses it, so that the reason stays true."""
    rig.create("k text PRIMARY KEY, v list<text>")
    for _ in range(2):
        rig.execute(f"INSERT INTO {rig.keyspace}.t (k, v) VALUES ('a', ['x']) USING TIMESTAMP 5")
    assert rig.read("v") == [{"v": ["x", "x"]}]


def test_write_times_grow_also_when_the_clock_is_set_back(rig: Rig) -> None:
    """Within a run and over a restart: the newest time is in the decision record."""
    rig.create()
    query = rig.query()
    run = query.start([rig.sink()])
    run._clock.skip(3600)
    run.run(0, LocalBatch([rows(("a", 1, None))]))
    (first,) = rig.read("writetime(v) AS at")
    run._clock.skip(-3600)
    run.run(1, LocalBatch([rows(("a", 2, None))]))
    run.run(2, LocalBatch([rows()]))
    run = query.start([rig.sink()])
    run.run(3, LocalBatch([rows(("a", 3, None))]))
    run.close()
    (last,) = rig.read("v, writetime(v) AS at")
    assert last["v"] == 3
    assert first["at"] > time.time() * 1e6 + 3e9
    assert last["at"] == first["at"] + 2000


def test_the_write_time_is_the_start_of_the_checkpoint_so_that_later_writes_of_others_win(rig: Rig) -> None:
    rig.create()
    began = time.time() * 1e6
    run = rig.start()
    run.run(0, LocalBatch([rows(("a", 1, None))]))
    run.close()
    (row,) = rig.read("writetime(v) AS at")
    assert began - 1000 <= row["at"] <= time.time() * 1e6


@pytest.mark.parametrize(("nulls", "note"), [("write", None), ("skip", "kept")])
def test_a_null_deletes_the_value_or_leaves_it(rig: Rig, nulls: str, note: str | None) -> None:
    rig.create()
    run = rig.start(nulls=nulls)
    run.run(0, LocalBatch([rows(("a", 1, "kept"))]))
    run.run(1, LocalBatch([rows(("a", None, None))]))
    run.run(2, LocalBatch([rows(("b", None, None))]))
    run.close()
    v = None if nulls == "write" else 1
    assert rig.read() == [{"k": "a", "v": v, "note": note}, {"k": "b", "v": None, "note": None}]


# -- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "partitions", [[rows(("a", 1, "z"), ("a", 2, "a"))], [rows(("a", 1, "z")), rows(("a", 2, "a"))]]
)
def test_i1_two_rows_of_one_key_need_an_order_and_are_refused_before_the_decision(
    rig: Rig, partitions: list[list[pa.RecordBatch]]
) -> None:
    rig.create()
    query = rig.query()
    run = query.start([rig.sink()])
    with pytest.raises(RowError, match=r"checkpoint 0 has several rows with primary key \{'k': 'a'\}.*order_by="):
        run.run(0, LocalBatch(partitions))
    assert query.storage.walk("decisions") == query.storage.walk("wal") == []
    run.close()
    run = query.start([rig.sink(order_by="v")])
    run.run(0, LocalBatch(partitions))
    # Of two values with one write time Cassandra takes the larger: the last row's must be the smaller to show anything.
    run.run(1, LocalBatch([rows(("b", 9, "z"), ("b", None, "y"), ("b", 3, "x")), rows(("b", 9, "a"))]))
    run.close()
    assert rig.read() == [{"k": "a", "v": 2, "note": "a"}, {"k": "b", "v": 9, "note": "a"}]


def test_a_row_without_a_key_is_refused_before_the_decision(rig: Rig) -> None:
    rig.create()
    run = rig.start()
    with pytest.raises(RowError, match=r"column 'k' \(text\): it has no value.*primary key.*Filter such rows out"):
        run.run(0, LocalBatch([rows((None, 1, None))]))
    assert run.query.storage.walk("decisions") == []
    run.close()


def test_rows_of_one_partition_travel_together(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.create("day date, id bigint, v text, PRIMARY KEY ((day), id)")
    schema = pa.schema([("day", pa.date32()), ("id", pa.int64()), ("v", pa.string())])
    sent: list[int] = []
    together = send.Sender._together

    def count(self: Any, bound: list[Any]) -> Any:
        sent.append(len(bound))
        return together(self, bound)

    monkeypatch.setattr(send.Sender, "_together", count)
    days = [datetime.date(2024, 1, 1), datetime.date(2024, 1, 2)]
    values = [(days[i % 2], i, "x") for i in range(500)] + [(days[0], 1000, "y" * 40_000), (days[0], 1001, "z")]
    run = rig.start(schema)
    run.run(0, LocalBatch([rows(*values, schema=schema)]))
    run.close()
    assert len(rig.read()) == 502
    assert sum(sent) == 502
    assert max(sent) == 100
    assert len(sent) <= 8


# -- types ------------------------------------------------------------------------------------------------------------


def test_every_type_arrives_as_it_was(rig: Rig) -> None:
    rig.create(
        "k uuid PRIMARY KEY, a ascii, b blob, c boolean, d tinyint, e smallint, f int, g bigint, h varint, i float, "
        "j double, k2 decimal, l timestamp, m date, n time, o timeuuid, p inet, q frozen<list<int>>, r set<text>, "
        "s map<text, frozen<list<timestamp>>>, t vector<float, 3>"
    )
    key, stamp = uuid.uuid4(), uuid.uuid1()
    moment = datetime.datetime(2024, 5, 1, 12, 0, 0, 123000, tzinfo=datetime.UTC)
    schema = pa.schema(
        [
            ("k", pa.string()), ("a", pa.string()), ("b", pa.binary()), ("c", pa.bool_()), ("d", pa.int8()),
            ("e", pa.int16()), ("f", pa.int32()), ("g", pa.int64()), ("h", pa.int64()), ("i", pa.float32()),
            ("j", pa.float64()), ("k2", pa.decimal128(20, 3)), ("l", pa.timestamp("us", "UTC")), ("m", pa.date32()),
            ("n", pa.time64("us")), ("o", pa.string()), ("p", pa.string()), ("q", pa.list_(pa.int32())),
            ("r", pa.list_(pa.string())), ("s", pa.map_(pa.string(), pa.list_(pa.timestamp("us")))),
            ("t", pa.list_(pa.float32())),
        ]
    )  # fmt: skip
    full = (
        str(key).upper(), "x", b"\x00\xff", True, -128, -1, 2**31 - 1, -(2**63), 7, 0.5, 1e300, Decimal("-1.250"),
        moment, datetime.date(1969, 12, 31), datetime.time(23, 59, 59, 999999), str(stamp), "::1", [1, 1], ["b", "a"],
        [("x", [moment.replace(tzinfo=None)])], [0.5, 1.0, -1.0],
    )  # fmt: skip
    run = rig.start(schema)
    empty = str(uuid.uuid4())
    run.run(0, LocalBatch([rows(full, schema=schema), rows((empty, *[None] * 20), schema=schema)]))
    run.close()
    found = {str(row.pop("k")): row for row in rig.read()}
    got = found[str(key)]
    assert got["s"] is not None
    assert {k: list(v) for k, v in got.pop("s").items()} == {"x": [moment.replace(tzinfo=None)]}
    assert got["m"].date() == datetime.date(1969, 12, 31)
    assert got["n"].nanosecond_time == 86_399_999_999_000
    assert (got.pop("m"), got.pop("n")) != (None, None)
    assert {name: list(v) if name in "qrt" else v for name, v in got.items()} == {
        "a": "x", "b": b"\x00\xff", "c": True, "d": -128, "e": -1, "f": 2**31 - 1, "g": -(2**63), "h": 7, "i": 0.5,
        "j": 1e300, "k2": Decimal("-1.250"), "l": moment.replace(tzinfo=None), "o": stamp, "p": "::1", "q": [1, 1],
        "r": ["a", "b"], "t": [0.5, 1.0, -1.0],
    }  # fmt: skip
    assert set(found[empty].values()) == {None}


def test_names_in_upper_case_and_with_quotes(rig: Rig) -> None:
    rig.execute(f'CREATE TABLE {rig.keyspace}."Orders" ("K" text PRIMARY KEY, "a ""b" bigint)')
    schema = pa.schema([("K", pa.string()), ('a "b', pa.int64())])
    run = rig.start(schema, table="Orders")
    run.run(0, LocalBatch([rows(("a", 1), schema=schema)]))
    run.close()
    assert rig.execute(f'SELECT "a ""b" AS v FROM {rig.keyspace}."Orders"') == [{"v": 1}]


# -- refusals ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("k text PRIMARY KEY, hits counter", "has the counter hits: counting again what is sent again"),
        ("k text PRIMARY KEY, v bigint, note list<text>", "column 'note' is a list.*doubles its elements"),
        ("k text PRIMARY KEY, v bigint", r"no column 'note' \(upper and lower case count; it has k, v\)"),
        (
            "k text, day date, v bigint, note text, PRIMARY KEY (k, day)",
            "no column 'day', which is part of the primary",
        ),
        ("k text PRIMARY KEY, v int, note text", "column 'v' is int and the DataFrame's is int64.*takes int, so cast"),
        ("k text, v bigint, note text static, PRIMARY KEY (k, v)", "column 'note' is static"),
    ],
)
def test_a_table_that_cannot_take_the_rows_is_refused_at_the_start(rig: Rig, columns: str, message: str) -> None:
    rig.create(columns)
    with pytest.raises(ConfigError, match=message):
        rig.start()


def test_a_missing_table_or_keyspace_is_named(rig: Rig) -> None:
    with pytest.raises(ConfigError, match=rf"there is no table {rig.keyspace}\.t in Cassandra at 127.*create it"):
        rig.start()
    with pytest.raises(ConfigError, match="there is no keyspace 'nowhere'"):
        rig.start(keyspace="nowhere")


@pytest.mark.parametrize(
    ("order_by", "message"),
    [
        ("at", "key and order_by must be columns of the DataFrame; at is not among k, v, note"),
        ("k", r"order_by='k' is part of the key \(k\)"),
    ],
)
def test_an_order_that_orders_nothing_is_refused(rig: Rig, order_by: str, message: str) -> None:
    rig.create()
    with pytest.raises(ConfigError, match=message):
        rig.start(order_by=order_by)


def test_a_start_without_the_server_says_which_and_that_nothing_is_lost(rig: Rig) -> None:
    port = free_port()
    where = rf"Cassandra at 127\.0\.0\.1:{port} cannot be reached.*Nothing is lost"
    with pytest.raises(SinkError, match=f"the marks of sink 'cassandra-.*{where}"):
        rig.start(port=port)
    marks = hf.FileCheckpointCommitter(str(rig.folder / "marks"))
    with pytest.raises(SinkError, match=f"^sink 'cassandra-.*{where}"):
        rig.start(port=port, committer=marks)
    assert rig.sink(port=port).address == f"127.0.0.1:{port}, {rig.keyspace}.t"


def test_a_table_that_is_dropped_meanwhile_stops_the_query_and_loses_nothing(rig: Rig) -> None:
    rig.create()
    query = rig.query()
    run = query.start([rig.sink()])
    run.run(0, LocalBatch([rows(("a", 1, None))]))
    rig.execute(f"DROP TABLE {rig.keyspace}.t")
    with pytest.raises(ConfigError, match=r"refused.*Rows of checkpoint 1.*Nothing is lost.*start the query"):
        run.run(1, LocalBatch([rows(("b", 2, None))]))
    run.close()
    rig.create()
    run = query.start([rig.sink()])
    assert [row["k"] for row in rig.read()] == ["b"]
    run.close()


def test_rights_that_are_missing_are_told_and_the_password_is_not(rig: Rig) -> None:
    rig.create()
    user = f"reader_{uuid.uuid4().hex[:8]}"
    rig.execute(f"CREATE ROLE {user} WITH PASSWORD = 'secret-word' AND LOGIN = true")
    query = rig.query()
    committer = hf.FileCheckpointCommitter(str(rig.folder / "marks"))
    run = query.start([rig.sink(username=user, password="secret-word", committer=committer)])
    with pytest.raises(ConfigError, match=f"^sink 'c.*User {user} has no MODIFY permission.*Nothing is lost") as info:
        run.run(0, LocalBatch([rows(("a", 1, None))]))
    assert "secret-word" not in str(info.value)
    for file in query.storage.walk(""):
        assert b"secret-word" not in query.storage.read(file)
    run.close()


def test_w6_a_server_that_hangs_holds_nothing_up_for_longer_than_the_timeout(rig: Rig) -> None:
    rig.create()
    run = rig.start(timeout=2)
    run.run(0, LocalBatch([rows(("a", 1, None))]))
    with rig.server.hung():
        began = time.monotonic()
        run.run(1, LocalBatch([rows(("a", 2, None))]))
        run.run(2, LocalBatch([rows(("b", 3, None))]))
        assert time.monotonic() - began < 30
        assert [action.checkpoint_id for action in run.coordinator.pending] == [1, 2]
    run.deliver()
    assert run.coordinator.pending == []
    run.close()
    assert [(row["k"], row["v"]) for row in rig.read()] == [("a", 2), ("b", 3)]


# -- manners ----------------------------------------------------------------------------------------------------------


def test_no_thread_and_no_session_is_left(rig: Rig, wait: Callable[..., None]) -> None:
    rig.create()
    cassandra_client.close_idle()
    before = {thread for thread in threading.enumerate() if thread.name != "event_loop"}
    run = rig.start()
    for checkpoint_id in range(3):
        run.run(checkpoint_id, LocalBatch([rows((f"k{checkpoint_id}", 1, None))]))
    assert len(cassandra_client._sessions._shared) == 1, "the committer and all deliveries share one"
    run.close()
    assert cassandra_client._sessions._shared == {}
    wait(lambda: {t for t in threading.enumerate() if t.name != "event_loop"} <= before)


def test_never_more_requests_under_way_than_allowed(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.create()
    most, now, lock = [0], [0], threading.Lock()
    taken, submit = send._Window._taken, send._Window.submit

    def start(self: Any, statement: Any) -> None:
        submit(self, statement)
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])

    def end(self: Any, found: Any) -> None:
        with lock:
            now[0] -= 1
        taken(self, found)

    monkeypatch.setattr(send._Window, "submit", start)
    monkeypatch.setattr(send._Window, "_taken", end)
    run = rig.start(concurrency=4)
    run.run(0, LocalBatch([rows(*((f"k{i}", i, None) for i in range(300)))]))
    run.close()
    assert len(rig.read()) == 300
    assert 1 < most[0] <= 5, "counted after the request went out, so one may be counted that is done"


@pytest.fixture
def wait() -> Callable[..., None]:
    def until(condition: Callable[[], bool], seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    return until
